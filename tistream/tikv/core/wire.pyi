from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RequestHeader(_message.Message):
    __slots__ = ("cluster_id",)
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    def __init__(self, cluster_id: _Optional[int] = ...) -> None: ...

class PdError(_message.Message):
    __slots__ = ("type", "message")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    type: int
    message: bytes
    def __init__(self, type: _Optional[int] = ..., message: _Optional[bytes] = ...) -> None: ...

class ResponseHeader(_message.Message):
    __slots__ = ("cluster_id", "error")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    error: PdError
    def __init__(self, cluster_id: _Optional[int] = ..., error: _Optional[_Union[PdError, _Mapping]] = ...) -> None: ...

class Request(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ...) -> None: ...

class Response(_message.Message):
    __slots__ = ("header",)
    HEADER_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ...) -> None: ...

class Peer(_message.Message):
    __slots__ = ("id", "store_id")
    ID_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    id: int
    store_id: int
    def __init__(self, id: _Optional[int] = ..., store_id: _Optional[int] = ...) -> None: ...

class RegionEpoch(_message.Message):
    __slots__ = ("conf_ver", "version")
    CONF_VER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    conf_ver: int
    version: int
    def __init__(self, conf_ver: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class MetaRegion(_message.Message):
    __slots__ = ("id", "start_key", "end_key", "region_epoch", "peers")
    ID_FIELD_NUMBER: _ClassVar[int]
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    REGION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    id: int
    start_key: bytes
    end_key: bytes
    region_epoch: RegionEpoch
    peers: _containers.RepeatedCompositeFieldContainer[Peer]
    def __init__(self, id: _Optional[int] = ..., start_key: _Optional[bytes] = ..., end_key: _Optional[bytes] = ..., region_epoch: _Optional[_Union[RegionEpoch, _Mapping]] = ..., peers: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ...) -> None: ...

class PdRegion(_message.Message):
    __slots__ = ("region", "leader")
    REGION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    region: MetaRegion
    leader: Peer
    def __init__(self, region: _Optional[_Union[MetaRegion, _Mapping]] = ..., leader: _Optional[_Union[Peer, _Mapping]] = ...) -> None: ...

class KeyRange(_message.Message):
    __slots__ = ("start_key", "end_key")
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    start_key: bytes
    end_key: bytes
    def __init__(self, start_key: _Optional[bytes] = ..., end_key: _Optional[bytes] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("name", "member_id", "peer_urls", "client_urls")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ID_FIELD_NUMBER: _ClassVar[int]
    PEER_URLS_FIELD_NUMBER: _ClassVar[int]
    CLIENT_URLS_FIELD_NUMBER: _ClassVar[int]
    name: str
    member_id: int
    peer_urls: _containers.RepeatedScalarFieldContainer[str]
    client_urls: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., member_id: _Optional[int] = ..., peer_urls: _Optional[_Iterable[str]] = ..., client_urls: _Optional[_Iterable[str]] = ...) -> None: ...

class GetMembersResponse(_message.Message):
    __slots__ = ("header", "members", "leader")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    members: _containers.RepeatedCompositeFieldContainer[Member]
    leader: Member
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., leader: _Optional[_Union[Member, _Mapping]] = ...) -> None: ...

class Timestamp(_message.Message):
    __slots__ = ("physical", "logical", "suffix_bits")
    PHYSICAL_FIELD_NUMBER: _ClassVar[int]
    LOGICAL_FIELD_NUMBER: _ClassVar[int]
    SUFFIX_BITS_FIELD_NUMBER: _ClassVar[int]
    physical: int
    logical: int
    suffix_bits: int
    def __init__(self, physical: _Optional[int] = ..., logical: _Optional[int] = ..., suffix_bits: _Optional[int] = ...) -> None: ...

class TsoRequest(_message.Message):
    __slots__ = ("header", "count")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    count: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., count: _Optional[int] = ...) -> None: ...

class TsoResponse(_message.Message):
    __slots__ = ("header", "count", "timestamp")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    count: int
    timestamp: Timestamp
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., count: _Optional[int] = ..., timestamp: _Optional[_Union[Timestamp, _Mapping]] = ...) -> None: ...

class StoreLabel(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class MetaStore(_message.Message):
    __slots__ = ("id", "address", "state", "labels", "version")
    ID_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    id: int
    address: str
    state: int
    labels: _containers.RepeatedCompositeFieldContainer[StoreLabel]
    version: str
    def __init__(self, id: _Optional[int] = ..., address: _Optional[str] = ..., state: _Optional[int] = ..., labels: _Optional[_Iterable[_Union[StoreLabel, _Mapping]]] = ..., version: _Optional[str] = ...) -> None: ...

class GetAllStoresRequest(_message.Message):
    __slots__ = ("header", "exclude_tombstone_stores")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_TOMBSTONE_STORES_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    exclude_tombstone_stores: bool
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., exclude_tombstone_stores: _Optional[bool] = ...) -> None: ...

class GetAllStoresResponse(_message.Message):
    __slots__ = ("header", "stores")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    STORES_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    stores: _containers.RepeatedCompositeFieldContainer[MetaStore]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., stores: _Optional[_Iterable[_Union[MetaStore, _Mapping]]] = ...) -> None: ...

class TimeInterval(_message.Message):
    __slots__ = ("start_timestamp", "end_timestamp")
    START_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    END_TIMESTAMP_FIELD_NUMBER: _ClassVar[int]
    start_timestamp: int
    end_timestamp: int
    def __init__(self, start_timestamp: _Optional[int] = ..., end_timestamp: _Optional[int] = ...) -> None: ...

class MetaStoreStats(_message.Message):
    __slots__ = ("region_count", "used_size", "bytes_written", "interval")
    REGION_COUNT_FIELD_NUMBER: _ClassVar[int]
    USED_SIZE_FIELD_NUMBER: _ClassVar[int]
    BYTES_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    region_count: int
    used_size: int
    bytes_written: int
    interval: TimeInterval
    def __init__(self, region_count: _Optional[int] = ..., used_size: _Optional[int] = ..., bytes_written: _Optional[int] = ..., interval: _Optional[_Union[TimeInterval, _Mapping]] = ...) -> None: ...

class GetStoreRequest(_message.Message):
    __slots__ = ("header", "store_id")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    store_id: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., store_id: _Optional[int] = ...) -> None: ...

class GetStoreResponse(_message.Message):
    __slots__ = ("header", "stats")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    stats: MetaStoreStats
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., stats: _Optional[_Union[MetaStoreStats, _Mapping]] = ...) -> None: ...

class GetRegionRequest(_message.Message):
    __slots__ = ("header", "region_key")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGION_KEY_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    region_key: bytes
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., region_key: _Optional[bytes] = ...) -> None: ...

class GetRegionResponse(_message.Message):
    __slots__ = ("header", "region", "leader")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGION_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    region: MetaRegion
    leader: Peer
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., region: _Optional[_Union[MetaRegion, _Mapping]] = ..., leader: _Optional[_Union[Peer, _Mapping]] = ...) -> None: ...

class ScanRegionsRequest(_message.Message):
    __slots__ = ("header", "start_key", "limit", "end_key")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    start_key: bytes
    limit: int
    end_key: bytes
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., start_key: _Optional[bytes] = ..., limit: _Optional[int] = ..., end_key: _Optional[bytes] = ...) -> None: ...

class ScanRegionsResponse(_message.Message):
    __slots__ = ("header", "region_metas", "leaders", "regions")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGION_METAS_FIELD_NUMBER: _ClassVar[int]
    LEADERS_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    region_metas: _containers.RepeatedCompositeFieldContainer[MetaRegion]
    leaders: _containers.RepeatedCompositeFieldContainer[Peer]
    regions: _containers.RepeatedCompositeFieldContainer[PdRegion]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., region_metas: _Optional[_Iterable[_Union[MetaRegion, _Mapping]]] = ..., leaders: _Optional[_Iterable[_Union[Peer, _Mapping]]] = ..., regions: _Optional[_Iterable[_Union[PdRegion, _Mapping]]] = ...) -> None: ...

class BatchScanRegionsRequest(_message.Message):
    __slots__ = ("header", "ranges", "limit", "contain_all_key_range")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    CONTAIN_ALL_KEY_RANGE_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    ranges: _containers.RepeatedCompositeFieldContainer[KeyRange]
    limit: int
    contain_all_key_range: bool
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., ranges: _Optional[_Iterable[_Union[KeyRange, _Mapping]]] = ..., limit: _Optional[int] = ..., contain_all_key_range: _Optional[bool] = ...) -> None: ...

class BatchScanRegionsResponse(_message.Message):
    __slots__ = ("header", "regions")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    regions: _containers.RepeatedCompositeFieldContainer[PdRegion]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., regions: _Optional[_Iterable[_Union[PdRegion, _Mapping]]] = ...) -> None: ...

class GetGcSafePointResponse(_message.Message):
    __slots__ = ("header", "safe_point")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    safe_point: int
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., safe_point: _Optional[int] = ...) -> None: ...

class UpdateServiceGcSafePointRequest(_message.Message):
    __slots__ = ("header", "service_id", "ttl", "safe_point")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SERVICE_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    service_id: bytes
    ttl: int
    safe_point: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., service_id: _Optional[bytes] = ..., ttl: _Optional[int] = ..., safe_point: _Optional[int] = ...) -> None: ...

class UpdateServiceGcSafePointResponse(_message.Message):
    __slots__ = ("header", "service_id", "ttl", "min_safe_point")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    SERVICE_ID_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    MIN_SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    service_id: bytes
    ttl: int
    min_safe_point: int
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., service_id: _Optional[bytes] = ..., ttl: _Optional[int] = ..., min_safe_point: _Optional[int] = ...) -> None: ...

class KeyspaceScope(_message.Message):
    __slots__ = ("keyspace_id",)
    KEYSPACE_ID_FIELD_NUMBER: _ClassVar[int]
    keyspace_id: int
    def __init__(self, keyspace_id: _Optional[int] = ...) -> None: ...

class GcBarrierRequest(_message.Message):
    __slots__ = ("header", "keyspace_scope", "barrier_id", "barrier_ts", "ttl_seconds")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    BARRIER_ID_FIELD_NUMBER: _ClassVar[int]
    BARRIER_TS_FIELD_NUMBER: _ClassVar[int]
    TTL_SECONDS_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    keyspace_scope: KeyspaceScope
    barrier_id: str
    barrier_ts: int
    ttl_seconds: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., keyspace_scope: _Optional[_Union[KeyspaceScope, _Mapping]] = ..., barrier_id: _Optional[str] = ..., barrier_ts: _Optional[int] = ..., ttl_seconds: _Optional[int] = ...) -> None: ...

class GcBarrier(_message.Message):
    __slots__ = ("id", "ts", "ttl_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    TS_FIELD_NUMBER: _ClassVar[int]
    TTL_S_FIELD_NUMBER: _ClassVar[int]
    id: str
    ts: int
    ttl_s: int
    def __init__(self, id: _Optional[str] = ..., ts: _Optional[int] = ..., ttl_s: _Optional[int] = ...) -> None: ...

class GcBarrierResponse(_message.Message):
    __slots__ = ("header", "barrier")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    BARRIER_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    barrier: GcBarrier
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., barrier: _Optional[_Union[GcBarrier, _Mapping]] = ...) -> None: ...

class GcState(_message.Message):
    __slots__ = ("keyspace_scope", "txn_safe_point", "gc_safe_point", "barriers")
    KEYSPACE_SCOPE_FIELD_NUMBER: _ClassVar[int]
    TXN_SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    GC_SAFE_POINT_FIELD_NUMBER: _ClassVar[int]
    BARRIERS_FIELD_NUMBER: _ClassVar[int]
    keyspace_scope: KeyspaceScope
    txn_safe_point: int
    gc_safe_point: int
    barriers: _containers.RepeatedCompositeFieldContainer[GcBarrier]
    def __init__(self, keyspace_scope: _Optional[_Union[KeyspaceScope, _Mapping]] = ..., txn_safe_point: _Optional[int] = ..., gc_safe_point: _Optional[int] = ..., barriers: _Optional[_Iterable[_Union[GcBarrier, _Mapping]]] = ...) -> None: ...

class GetGcStateResponse(_message.Message):
    __slots__ = ("header", "state")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    state: GcState
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., state: _Optional[_Union[GcState, _Mapping]] = ...) -> None: ...

class LoadKeyspaceRequest(_message.Message):
    __slots__ = ("header", "name")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    name: str
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., name: _Optional[str] = ...) -> None: ...

class Keyspace(_message.Message):
    __slots__ = ("id", "name", "state")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    id: int
    name: str
    state: int
    def __init__(self, id: _Optional[int] = ..., name: _Optional[str] = ..., state: _Optional[int] = ...) -> None: ...

class LoadKeyspaceResponse(_message.Message):
    __slots__ = ("header", "keyspace")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    keyspace: Keyspace
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., keyspace: _Optional[_Union[Keyspace, _Mapping]] = ...) -> None: ...

class GetAllKeyspacesRequest(_message.Message):
    __slots__ = ("header", "start_id", "limit")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    START_ID_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    header: RequestHeader
    start_id: int
    limit: int
    def __init__(self, header: _Optional[_Union[RequestHeader, _Mapping]] = ..., start_id: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class GetAllKeyspacesResponse(_message.Message):
    __slots__ = ("header", "keyspaces")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    KEYSPACES_FIELD_NUMBER: _ClassVar[int]
    header: ResponseHeader
    keyspaces: _containers.RepeatedCompositeFieldContainer[Keyspace]
    def __init__(self, header: _Optional[_Union[ResponseHeader, _Mapping]] = ..., keyspaces: _Optional[_Iterable[_Union[Keyspace, _Mapping]]] = ...) -> None: ...

class NotLeader(_message.Message):
    __slots__ = ("region_id", "leader")
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    LEADER_FIELD_NUMBER: _ClassVar[int]
    region_id: int
    leader: Peer
    def __init__(self, region_id: _Optional[int] = ..., leader: _Optional[_Union[Peer, _Mapping]] = ...) -> None: ...

class RegionNotFound(_message.Message):
    __slots__ = ("region_id",)
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    region_id: int
    def __init__(self, region_id: _Optional[int] = ...) -> None: ...

class KeyNotInRegion(_message.Message):
    __slots__ = ("key", "region_id", "start_key", "end_key")
    KEY_FIELD_NUMBER: _ClassVar[int]
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    key: bytes
    region_id: int
    start_key: bytes
    end_key: bytes
    def __init__(self, key: _Optional[bytes] = ..., region_id: _Optional[int] = ..., start_key: _Optional[bytes] = ..., end_key: _Optional[bytes] = ...) -> None: ...

class EpochNotMatch(_message.Message):
    __slots__ = ("current_regions",)
    CURRENT_REGIONS_FIELD_NUMBER: _ClassVar[int]
    current_regions: _containers.RepeatedCompositeFieldContainer[MetaRegion]
    def __init__(self, current_regions: _Optional[_Iterable[_Union[MetaRegion, _Mapping]]] = ...) -> None: ...

class ServerIsBusy(_message.Message):
    __slots__ = ("reason", "backoff_ms")
    REASON_FIELD_NUMBER: _ClassVar[int]
    BACKOFF_MS_FIELD_NUMBER: _ClassVar[int]
    reason: bytes
    backoff_ms: int
    def __init__(self, reason: _Optional[bytes] = ..., backoff_ms: _Optional[int] = ...) -> None: ...

class StoreNotMatch(_message.Message):
    __slots__ = ("request_store_id", "actual_store_id")
    REQUEST_STORE_ID_FIELD_NUMBER: _ClassVar[int]
    ACTUAL_STORE_ID_FIELD_NUMBER: _ClassVar[int]
    request_store_id: int
    actual_store_id: int
    def __init__(self, request_store_id: _Optional[int] = ..., actual_store_id: _Optional[int] = ...) -> None: ...

class Unread(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RegionError(_message.Message):
    __slots__ = ("message", "not_leader", "region_not_found", "key_not_in_region", "epoch_not_match", "server_is_busy", "stale_command", "store_not_match", "raft_entry_too_large", "max_timestamp_not_synced", "read_index_not_ready", "proposal_in_merging_mode", "data_is_not_ready", "region_not_initialized", "disk_full", "recovery_in_progress", "flashback_in_progress", "flashback_not_prepared", "is_witness", "mismatch_peer_id", "bucket_version_not_match", "undetermined_result")
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    NOT_LEADER_FIELD_NUMBER: _ClassVar[int]
    REGION_NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    KEY_NOT_IN_REGION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_NOT_MATCH_FIELD_NUMBER: _ClassVar[int]
    SERVER_IS_BUSY_FIELD_NUMBER: _ClassVar[int]
    STALE_COMMAND_FIELD_NUMBER: _ClassVar[int]
    STORE_NOT_MATCH_FIELD_NUMBER: _ClassVar[int]
    RAFT_ENTRY_TOO_LARGE_FIELD_NUMBER: _ClassVar[int]
    MAX_TIMESTAMP_NOT_SYNCED_FIELD_NUMBER: _ClassVar[int]
    READ_INDEX_NOT_READY_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_IN_MERGING_MODE_FIELD_NUMBER: _ClassVar[int]
    DATA_IS_NOT_READY_FIELD_NUMBER: _ClassVar[int]
    REGION_NOT_INITIALIZED_FIELD_NUMBER: _ClassVar[int]
    DISK_FULL_FIELD_NUMBER: _ClassVar[int]
    RECOVERY_IN_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FLASHBACK_IN_PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FLASHBACK_NOT_PREPARED_FIELD_NUMBER: _ClassVar[int]
    IS_WITNESS_FIELD_NUMBER: _ClassVar[int]
    MISMATCH_PEER_ID_FIELD_NUMBER: _ClassVar[int]
    BUCKET_VERSION_NOT_MATCH_FIELD_NUMBER: _ClassVar[int]
    UNDETERMINED_RESULT_FIELD_NUMBER: _ClassVar[int]
    message: bytes
    not_leader: NotLeader
    region_not_found: RegionNotFound
    key_not_in_region: KeyNotInRegion
    epoch_not_match: EpochNotMatch
    server_is_busy: ServerIsBusy
    stale_command: Unread
    store_not_match: StoreNotMatch
    raft_entry_too_large: Unread
    max_timestamp_not_synced: Unread
    read_index_not_ready: Unread
    proposal_in_merging_mode: Unread
    data_is_not_ready: Unread
    region_not_initialized: Unread
    disk_full: Unread
    recovery_in_progress: Unread
    flashback_in_progress: Unread
    flashback_not_prepared: Unread
    is_witness: Unread
    mismatch_peer_id: Unread
    bucket_version_not_match: Unread
    undetermined_result: Unread
    def __init__(self, message: _Optional[bytes] = ..., not_leader: _Optional[_Union[NotLeader, _Mapping]] = ..., region_not_found: _Optional[_Union[RegionNotFound, _Mapping]] = ..., key_not_in_region: _Optional[_Union[KeyNotInRegion, _Mapping]] = ..., epoch_not_match: _Optional[_Union[EpochNotMatch, _Mapping]] = ..., server_is_busy: _Optional[_Union[ServerIsBusy, _Mapping]] = ..., stale_command: _Optional[_Union[Unread, _Mapping]] = ..., store_not_match: _Optional[_Union[StoreNotMatch, _Mapping]] = ..., raft_entry_too_large: _Optional[_Union[Unread, _Mapping]] = ..., max_timestamp_not_synced: _Optional[_Union[Unread, _Mapping]] = ..., read_index_not_ready: _Optional[_Union[Unread, _Mapping]] = ..., proposal_in_merging_mode: _Optional[_Union[Unread, _Mapping]] = ..., data_is_not_ready: _Optional[_Union[Unread, _Mapping]] = ..., region_not_initialized: _Optional[_Union[Unread, _Mapping]] = ..., disk_full: _Optional[_Union[Unread, _Mapping]] = ..., recovery_in_progress: _Optional[_Union[Unread, _Mapping]] = ..., flashback_in_progress: _Optional[_Union[Unread, _Mapping]] = ..., flashback_not_prepared: _Optional[_Union[Unread, _Mapping]] = ..., is_witness: _Optional[_Union[Unread, _Mapping]] = ..., mismatch_peer_id: _Optional[_Union[Unread, _Mapping]] = ..., bucket_version_not_match: _Optional[_Union[Unread, _Mapping]] = ..., undetermined_result: _Optional[_Union[Unread, _Mapping]] = ...) -> None: ...

class Context(_message.Message):
    __slots__ = ("region_id", "region_epoch", "peer", "priority", "not_fill_cache", "max_execution_duration_ms", "api_version", "keyspace_id")
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    REGION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    NOT_FILL_CACHE_FIELD_NUMBER: _ClassVar[int]
    MAX_EXECUTION_DURATION_MS_FIELD_NUMBER: _ClassVar[int]
    API_VERSION_FIELD_NUMBER: _ClassVar[int]
    KEYSPACE_ID_FIELD_NUMBER: _ClassVar[int]
    region_id: int
    region_epoch: RegionEpoch
    peer: Peer
    priority: int
    not_fill_cache: bool
    max_execution_duration_ms: int
    api_version: int
    keyspace_id: int
    def __init__(self, region_id: _Optional[int] = ..., region_epoch: _Optional[_Union[RegionEpoch, _Mapping]] = ..., peer: _Optional[_Union[Peer, _Mapping]] = ..., priority: _Optional[int] = ..., not_fill_cache: _Optional[bool] = ..., max_execution_duration_ms: _Optional[int] = ..., api_version: _Optional[int] = ..., keyspace_id: _Optional[int] = ...) -> None: ...

class LockInfo(_message.Message):
    __slots__ = ("primary_lock", "lock_version", "key", "lock_ttl", "lock_type", "use_async_commit", "min_commit_ts", "secondaries")
    PRIMARY_LOCK_FIELD_NUMBER: _ClassVar[int]
    LOCK_VERSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    LOCK_TTL_FIELD_NUMBER: _ClassVar[int]
    LOCK_TYPE_FIELD_NUMBER: _ClassVar[int]
    USE_ASYNC_COMMIT_FIELD_NUMBER: _ClassVar[int]
    MIN_COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    SECONDARIES_FIELD_NUMBER: _ClassVar[int]
    primary_lock: bytes
    lock_version: int
    key: bytes
    lock_ttl: int
    lock_type: int
    use_async_commit: bool
    min_commit_ts: int
    secondaries: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, primary_lock: _Optional[bytes] = ..., lock_version: _Optional[int] = ..., key: _Optional[bytes] = ..., lock_ttl: _Optional[int] = ..., lock_type: _Optional[int] = ..., use_async_commit: _Optional[bool] = ..., min_commit_ts: _Optional[int] = ..., secondaries: _Optional[_Iterable[bytes]] = ...) -> None: ...

class TxnNotFound(_message.Message):
    __slots__ = ("start_ts", "primary_key")
    START_TS_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    start_ts: int
    primary_key: bytes
    def __init__(self, start_ts: _Optional[int] = ..., primary_key: _Optional[bytes] = ...) -> None: ...

class KeyError(_message.Message):
    __slots__ = ("locked", "retryable", "abort", "txn_not_found")
    LOCKED_FIELD_NUMBER: _ClassVar[int]
    RETRYABLE_FIELD_NUMBER: _ClassVar[int]
    ABORT_FIELD_NUMBER: _ClassVar[int]
    TXN_NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    locked: LockInfo
    retryable: bytes
    abort: bytes
    txn_not_found: TxnNotFound
    def __init__(self, locked: _Optional[_Union[LockInfo, _Mapping]] = ..., retryable: _Optional[bytes] = ..., abort: _Optional[bytes] = ..., txn_not_found: _Optional[_Union[TxnNotFound, _Mapping]] = ...) -> None: ...

class KvPair(_message.Message):
    __slots__ = ("error", "key", "value", "commit_ts")
    ERROR_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    error: KeyError
    key: bytes
    value: bytes
    commit_ts: int
    def __init__(self, error: _Optional[_Union[KeyError, _Mapping]] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., commit_ts: _Optional[int] = ...) -> None: ...

class ScanRequest(_message.Message):
    __slots__ = ("context", "start_key", "limit", "version", "key_only", "reverse", "end_key")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KEY_ONLY_FIELD_NUMBER: _ClassVar[int]
    REVERSE_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    context: Context
    start_key: bytes
    limit: int
    version: int
    key_only: bool
    reverse: bool
    end_key: bytes
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., start_key: _Optional[bytes] = ..., limit: _Optional[int] = ..., version: _Optional[int] = ..., key_only: _Optional[bool] = ..., reverse: _Optional[bool] = ..., end_key: _Optional[bytes] = ...) -> None: ...

class ScanResponse(_message.Message):
    __slots__ = ("region_error", "pairs", "error")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    region_error: RegionError
    pairs: _containers.RepeatedCompositeFieldContainer[KvPair]
    error: KeyError
    def __init__(self, region_error: _Optional[_Union[RegionError, _Mapping]] = ..., pairs: _Optional[_Iterable[_Union[KvPair, _Mapping]]] = ..., error: _Optional[_Union[KeyError, _Mapping]] = ...) -> None: ...

class GetRequest(_message.Message):
    __slots__ = ("context", "key", "version")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    context: Context
    key: bytes
    version: int
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., key: _Optional[bytes] = ..., version: _Optional[int] = ...) -> None: ...

class GetResponse(_message.Message):
    __slots__ = ("region_error", "error", "value", "not_found")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    region_error: RegionError
    error: KeyError
    value: bytes
    not_found: bool
    def __init__(self, region_error: _Optional[_Union[RegionError, _Mapping]] = ..., error: _Optional[_Union[KeyError, _Mapping]] = ..., value: _Optional[bytes] = ..., not_found: _Optional[bool] = ...) -> None: ...

class ScanLockRequest(_message.Message):
    __slots__ = ("context", "max_version", "start_key", "limit", "end_key")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    MAX_VERSION_FIELD_NUMBER: _ClassVar[int]
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    context: Context
    max_version: int
    start_key: bytes
    limit: int
    end_key: bytes
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., max_version: _Optional[int] = ..., start_key: _Optional[bytes] = ..., limit: _Optional[int] = ..., end_key: _Optional[bytes] = ...) -> None: ...

class ScanLockResponse(_message.Message):
    __slots__ = ("region_error", "error", "locks")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOCKS_FIELD_NUMBER: _ClassVar[int]
    region_error: RegionError
    error: KeyError
    locks: _containers.RepeatedCompositeFieldContainer[LockInfo]
    def __init__(self, region_error: _Optional[_Union[RegionError, _Mapping]] = ..., error: _Optional[_Union[KeyError, _Mapping]] = ..., locks: _Optional[_Iterable[_Union[LockInfo, _Mapping]]] = ...) -> None: ...

class CheckTxnStatusRequest(_message.Message):
    __slots__ = ("context", "primary_key", "lock_ts", "caller_start_ts", "current_ts", "rollback_if_not_exist", "force_sync_commit")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    PRIMARY_KEY_FIELD_NUMBER: _ClassVar[int]
    LOCK_TS_FIELD_NUMBER: _ClassVar[int]
    CALLER_START_TS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_TS_FIELD_NUMBER: _ClassVar[int]
    ROLLBACK_IF_NOT_EXIST_FIELD_NUMBER: _ClassVar[int]
    FORCE_SYNC_COMMIT_FIELD_NUMBER: _ClassVar[int]
    context: Context
    primary_key: bytes
    lock_ts: int
    caller_start_ts: int
    current_ts: int
    rollback_if_not_exist: bool
    force_sync_commit: bool
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., primary_key: _Optional[bytes] = ..., lock_ts: _Optional[int] = ..., caller_start_ts: _Optional[int] = ..., current_ts: _Optional[int] = ..., rollback_if_not_exist: _Optional[bool] = ..., force_sync_commit: _Optional[bool] = ...) -> None: ...

class CheckTxnStatusResponse(_message.Message):
    __slots__ = ("region_error", "error", "lock_ttl", "commit_version", "action", "lock_info")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOCK_TTL_FIELD_NUMBER: _ClassVar[int]
    COMMIT_VERSION_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    LOCK_INFO_FIELD_NUMBER: _ClassVar[int]
    region_error: RegionError
    error: KeyError
    lock_ttl: int
    commit_version: int
    action: int
    lock_info: LockInfo
    def __init__(self, region_error: _Optional[_Union[RegionError, _Mapping]] = ..., error: _Optional[_Union[KeyError, _Mapping]] = ..., lock_ttl: _Optional[int] = ..., commit_version: _Optional[int] = ..., action: _Optional[int] = ..., lock_info: _Optional[_Union[LockInfo, _Mapping]] = ...) -> None: ...

class CheckSecondaryLocksRequest(_message.Message):
    __slots__ = ("context", "keys", "start_version")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    START_VERSION_FIELD_NUMBER: _ClassVar[int]
    context: Context
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    start_version: int
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., keys: _Optional[_Iterable[bytes]] = ..., start_version: _Optional[int] = ...) -> None: ...

class CheckSecondaryLocksResponse(_message.Message):
    __slots__ = ("region_error", "error", "locks", "commit_ts")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    LOCKS_FIELD_NUMBER: _ClassVar[int]
    COMMIT_TS_FIELD_NUMBER: _ClassVar[int]
    region_error: RegionError
    error: KeyError
    locks: _containers.RepeatedCompositeFieldContainer[LockInfo]
    commit_ts: int
    def __init__(self, region_error: _Optional[_Union[RegionError, _Mapping]] = ..., error: _Optional[_Union[KeyError, _Mapping]] = ..., locks: _Optional[_Iterable[_Union[LockInfo, _Mapping]]] = ..., commit_ts: _Optional[int] = ...) -> None: ...

class ResolveLockRequest(_message.Message):
    __slots__ = ("context", "start_version", "commit_version", "keys")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    START_VERSION_FIELD_NUMBER: _ClassVar[int]
    COMMIT_VERSION_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    context: Context
    start_version: int
    commit_version: int
    keys: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., start_version: _Optional[int] = ..., commit_version: _Optional[int] = ..., keys: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ResolveLockResponse(_message.Message):
    __slots__ = ("region_error", "error")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    region_error: RegionError
    error: KeyError
    def __init__(self, region_error: _Optional[_Union[RegionError, _Mapping]] = ..., error: _Optional[_Union[KeyError, _Mapping]] = ...) -> None: ...

class RawKeyRequest(_message.Message):
    __slots__ = ("context", "key", "cf")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CF_FIELD_NUMBER: _ClassVar[int]
    context: Context
    key: bytes
    cf: str
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., key: _Optional[bytes] = ..., cf: _Optional[str] = ...) -> None: ...

class RawGetResponse(_message.Message):
    __slots__ = ("region_error", "error", "value", "not_found")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    region_error: RegionError
    error: bytes
    value: bytes
    not_found: bool
    def __init__(self, region_error: _Optional[_Union[RegionError, _Mapping]] = ..., error: _Optional[bytes] = ..., value: _Optional[bytes] = ..., not_found: _Optional[bool] = ...) -> None: ...

class RawGetKeyTtlResponse(_message.Message):
    __slots__ = ("region_error", "error", "ttl", "not_found")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    region_error: RegionError
    error: bytes
    ttl: int
    not_found: bool
    def __init__(self, region_error: _Optional[_Union[RegionError, _Mapping]] = ..., error: _Optional[bytes] = ..., ttl: _Optional[int] = ..., not_found: _Optional[bool] = ...) -> None: ...

class RawPutRequest(_message.Message):
    __slots__ = ("context", "key", "value", "cf", "ttl")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CF_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    context: Context
    key: bytes
    value: bytes
    cf: str
    ttl: int
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., key: _Optional[bytes] = ..., value: _Optional[bytes] = ..., cf: _Optional[str] = ..., ttl: _Optional[int] = ...) -> None: ...

class RawBatchPutRequest(_message.Message):
    __slots__ = ("context", "pairs", "cf", "ttls")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    PAIRS_FIELD_NUMBER: _ClassVar[int]
    CF_FIELD_NUMBER: _ClassVar[int]
    TTLS_FIELD_NUMBER: _ClassVar[int]
    context: Context
    pairs: _containers.RepeatedCompositeFieldContainer[KvPair]
    cf: str
    ttls: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., pairs: _Optional[_Iterable[_Union[KvPair, _Mapping]]] = ..., cf: _Optional[str] = ..., ttls: _Optional[_Iterable[int]] = ...) -> None: ...

class RawDeleteRequest(_message.Message):
    __slots__ = ("context", "key", "cf")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CF_FIELD_NUMBER: _ClassVar[int]
    context: Context
    key: _containers.RepeatedScalarFieldContainer[bytes]
    cf: str
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., key: _Optional[_Iterable[bytes]] = ..., cf: _Optional[str] = ...) -> None: ...

class RawDeleteRangeRequest(_message.Message):
    __slots__ = ("context", "start_key", "end_key", "cf")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    CF_FIELD_NUMBER: _ClassVar[int]
    context: Context
    start_key: bytes
    end_key: bytes
    cf: str
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., start_key: _Optional[bytes] = ..., end_key: _Optional[bytes] = ..., cf: _Optional[str] = ...) -> None: ...

class RawWriteResponse(_message.Message):
    __slots__ = ("region_error", "error")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    region_error: RegionError
    error: bytes
    def __init__(self, region_error: _Optional[_Union[RegionError, _Mapping]] = ..., error: _Optional[bytes] = ...) -> None: ...

class RawScanRequest(_message.Message):
    __slots__ = ("context", "start_key", "limit", "key_only", "cf", "reverse", "end_key")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    KEY_ONLY_FIELD_NUMBER: _ClassVar[int]
    CF_FIELD_NUMBER: _ClassVar[int]
    REVERSE_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    context: Context
    start_key: bytes
    limit: int
    key_only: bool
    cf: str
    reverse: bool
    end_key: bytes
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., start_key: _Optional[bytes] = ..., limit: _Optional[int] = ..., key_only: _Optional[bool] = ..., cf: _Optional[str] = ..., reverse: _Optional[bool] = ..., end_key: _Optional[bytes] = ...) -> None: ...

class RawScanResponse(_message.Message):
    __slots__ = ("region_error", "kvs")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    KVS_FIELD_NUMBER: _ClassVar[int]
    region_error: RegionError
    kvs: _containers.RepeatedCompositeFieldContainer[KvPair]
    def __init__(self, region_error: _Optional[_Union[RegionError, _Mapping]] = ..., kvs: _Optional[_Iterable[_Union[KvPair, _Mapping]]] = ...) -> None: ...

class RawChecksumRequest(_message.Message):
    __slots__ = ("context", "algorithm", "ranges")
    CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ALGORITHM_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    context: Context
    algorithm: int
    ranges: _containers.RepeatedCompositeFieldContainer[KeyRange]
    def __init__(self, context: _Optional[_Union[Context, _Mapping]] = ..., algorithm: _Optional[int] = ..., ranges: _Optional[_Iterable[_Union[KeyRange, _Mapping]]] = ...) -> None: ...

class RawChecksumResponse(_message.Message):
    __slots__ = ("region_error", "error", "checksum", "total_kvs", "total_bytes")
    REGION_ERROR_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CHECKSUM_FIELD_NUMBER: _ClassVar[int]
    TOTAL_KVS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_BYTES_FIELD_NUMBER: _ClassVar[int]
    region_error: RegionError
    error: bytes
    checksum: int
    total_kvs: int
    total_bytes: int
    def __init__(self, region_error: _Optional[_Union[RegionError, _Mapping]] = ..., error: _Optional[bytes] = ..., checksum: _Optional[int] = ..., total_kvs: _Optional[int] = ..., total_bytes: _Optional[int] = ...) -> None: ...

class Compatibility(_message.Message):
    __slots__ = ("required_version",)
    REQUIRED_VERSION_FIELD_NUMBER: _ClassVar[int]
    required_version: bytes
    def __init__(self, required_version: _Optional[bytes] = ...) -> None: ...

class ClusterIdMismatch(_message.Message):
    __slots__ = ("current", "request")
    CURRENT_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    current: int
    request: int
    def __init__(self, current: _Optional[int] = ..., request: _Optional[int] = ...) -> None: ...

class RegistrationError(_message.Message):
    __slots__ = ("not_leader", "region_not_found", "epoch_not_match", "duplicate_request", "compatibility", "cluster_id_mismatch", "server_is_busy", "congested")
    NOT_LEADER_FIELD_NUMBER: _ClassVar[int]
    REGION_NOT_FOUND_FIELD_NUMBER: _ClassVar[int]
    EPOCH_NOT_MATCH_FIELD_NUMBER: _ClassVar[int]
    DUPLICATE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    COMPATIBILITY_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_ID_MISMATCH_FIELD_NUMBER: _ClassVar[int]
    SERVER_IS_BUSY_FIELD_NUMBER: _ClassVar[int]
    CONGESTED_FIELD_NUMBER: _ClassVar[int]
    not_leader: NotLeader
    region_not_found: RegionNotFound
    epoch_not_match: EpochNotMatch
    duplicate_request: Unread
    compatibility: Compatibility
    cluster_id_mismatch: ClusterIdMismatch
    server_is_busy: ServerIsBusy
    congested: Unread
    def __init__(self, not_leader: _Optional[_Union[NotLeader, _Mapping]] = ..., region_not_found: _Optional[_Union[RegionNotFound, _Mapping]] = ..., epoch_not_match: _Optional[_Union[EpochNotMatch, _Mapping]] = ..., duplicate_request: _Optional[_Union[Unread, _Mapping]] = ..., compatibility: _Optional[_Union[Compatibility, _Mapping]] = ..., cluster_id_mismatch: _Optional[_Union[ClusterIdMismatch, _Mapping]] = ..., server_is_busy: _Optional[_Union[ServerIsBusy, _Mapping]] = ..., congested: _Optional[_Union[Unread, _Mapping]] = ...) -> None: ...

class RegistrationEvent(_message.Message):
    __slots__ = ("region_id", "entries", "error", "resolved_ts", "request_id")
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_TS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    region_id: int
    entries: _containers.RepeatedScalarFieldContainer[bytes]
    error: RegistrationError
    resolved_ts: int
    request_id: int
    def __init__(self, region_id: _Optional[int] = ..., entries: _Optional[_Iterable[bytes]] = ..., error: _Optional[_Union[RegistrationError, _Mapping]] = ..., resolved_ts: _Optional[int] = ..., request_id: _Optional[int] = ...) -> None: ...

class ResolvedRegions(_message.Message):
    __slots__ = ("regions", "ts", "request_id")
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    TS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    regions: _containers.RepeatedScalarFieldContainer[int]
    ts: int
    request_id: int
    def __init__(self, regions: _Optional[_Iterable[int]] = ..., ts: _Optional[int] = ..., request_id: _Optional[int] = ...) -> None: ...

class ChangeDataEvent(_message.Message):
    __slots__ = ("events", "resolved_ts")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    RESOLVED_TS_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[RegistrationEvent]
    resolved_ts: ResolvedRegions
    def __init__(self, events: _Optional[_Iterable[_Union[RegistrationEvent, _Mapping]]] = ..., resolved_ts: _Optional[_Union[ResolvedRegions, _Mapping]] = ...) -> None: ...

class ChangeDataHeader(_message.Message):
    __slots__ = ("cluster_id", "ticdc_version")
    CLUSTER_ID_FIELD_NUMBER: _ClassVar[int]
    TICDC_VERSION_FIELD_NUMBER: _ClassVar[int]
    cluster_id: int
    ticdc_version: str
    def __init__(self, cluster_id: _Optional[int] = ..., ticdc_version: _Optional[str] = ...) -> None: ...

class ChangeDataRequest(_message.Message):
    __slots__ = ("header", "region_id", "region_epoch", "checkpoint_ts", "start_key", "end_key", "request_id", "extra_op", "kv_api", "filter_loop", "register", "deregister")
    HEADER_FIELD_NUMBER: _ClassVar[int]
    REGION_ID_FIELD_NUMBER: _ClassVar[int]
    REGION_EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_TS_FIELD_NUMBER: _ClassVar[int]
    START_KEY_FIELD_NUMBER: _ClassVar[int]
    END_KEY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EXTRA_OP_FIELD_NUMBER: _ClassVar[int]
    KV_API_FIELD_NUMBER: _ClassVar[int]
    FILTER_LOOP_FIELD_NUMBER: _ClassVar[int]
    REGISTER_FIELD_NUMBER: _ClassVar[int]
    DEREGISTER_FIELD_NUMBER: _ClassVar[int]
    header: ChangeDataHeader
    region_id: int
    region_epoch: RegionEpoch
    checkpoint_ts: int
    start_key: bytes
    end_key: bytes
    request_id: int
    extra_op: int
    kv_api: int
    filter_loop: bool
    register: Unread
    deregister: Unread
    def __init__(self, header: _Optional[_Union[ChangeDataHeader, _Mapping]] = ..., region_id: _Optional[int] = ..., region_epoch: _Optional[_Union[RegionEpoch, _Mapping]] = ..., checkpoint_ts: _Optional[int] = ..., start_key: _Optional[bytes] = ..., end_key: _Optional[bytes] = ..., request_id: _Optional[int] = ..., extra_op: _Optional[int] = ..., kv_api: _Optional[int] = ..., filter_loop: _Optional[bool] = ..., register: _Optional[_Union[Unread, _Mapping]] = ..., deregister: _Optional[_Union[Unread, _Mapping]] = ...) -> None: ...

class FileEncryptionInfo(_message.Message):
    __slots__ = ("encryption_method",)
    ENCRYPTION_METHOD_FIELD_NUMBER: _ClassVar[int]
    encryption_method: int
    def __init__(self, encryption_method: _Optional[int] = ...) -> None: ...

class DataFileInfo(_message.Message):
    __slots__ = ("sha256", "number_of_entries", "min_ts", "max_ts", "cf", "type", "is_meta", "table_id", "length", "range_offset", "range_length", "compression_type", "file_encryption_info")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    NUMBER_OF_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    MIN_TS_FIELD_NUMBER: _ClassVar[int]
    MAX_TS_FIELD_NUMBER: _ClassVar[int]
    CF_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    IS_META_FIELD_NUMBER: _ClassVar[int]
    TABLE_ID_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    RANGE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    RANGE_LENGTH_FIELD_NUMBER: _ClassVar[int]
    COMPRESSION_TYPE_FIELD_NUMBER: _ClassVar[int]
    FILE_ENCRYPTION_INFO_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    number_of_entries: int
    min_ts: int
    max_ts: int
    cf: bytes
    type: int
    is_meta: bool
    table_id: int
    length: int
    range_offset: int
    range_length: int
    compression_type: int
    file_encryption_info: FileEncryptionInfo
    def __init__(self, sha256: _Optional[bytes] = ..., number_of_entries: _Optional[int] = ..., min_ts: _Optional[int] = ..., max_ts: _Optional[int] = ..., cf: _Optional[bytes] = ..., type: _Optional[int] = ..., is_meta: _Optional[bool] = ..., table_id: _Optional[int] = ..., length: _Optional[int] = ..., range_offset: _Optional[int] = ..., range_length: _Optional[int] = ..., compression_type: _Optional[int] = ..., file_encryption_info: _Optional[_Union[FileEncryptionInfo, _Mapping]] = ...) -> None: ...

class DataFileGroup(_message.Message):
    __slots__ = ("path", "data_files_info", "length")
    PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_FILES_INFO_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    path: bytes
    data_files_info: _containers.RepeatedCompositeFieldContainer[DataFileInfo]
    length: int
    def __init__(self, path: _Optional[bytes] = ..., data_files_info: _Optional[_Iterable[_Union[DataFileInfo, _Mapping]]] = ..., length: _Optional[int] = ...) -> None: ...

class BackupMetadata(_message.Message):
    __slots__ = ("files", "store_id", "file_groups", "meta_version")
    FILES_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    FILE_GROUPS_FIELD_NUMBER: _ClassVar[int]
    META_VERSION_FIELD_NUMBER: _ClassVar[int]
    files: _containers.RepeatedScalarFieldContainer[bytes]
    store_id: int
    file_groups: _containers.RepeatedCompositeFieldContainer[DataFileGroup]
    meta_version: int
    def __init__(self, files: _Optional[_Iterable[bytes]] = ..., store_id: _Optional[int] = ..., file_groups: _Optional[_Iterable[_Union[DataFileGroup, _Mapping]]] = ..., meta_version: _Optional[int] = ...) -> None: ...
