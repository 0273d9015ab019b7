"""Messages exchanged with PD (`pdpb`, `metapb`, `keyspacepb`): encoded requests, parsed answers.

- An answer's header is checked first: `PdRefused` when it has an error;
- region keys stay in memcomparable form; an empty key is minus or plus infinity;
- a region without a leader has leader_store_id 0.

Pure: any bytes give a value, PdRefused or CorruptObject.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from tistream import ts
from tistream.codec.protobuf import M, parse
from tistream.errors import CorruptObject, ErrorKind, TiStreamError
from tistream.tikv.core import wire

NULL_KEYSPACE = 0xFFFFFFFF  #: the cluster without keyspaces in GetGCState


class HeaderError(IntEnum):
    """The handled values of pdpb.ErrorType."""

    UNKNOWN = 1
    NOT_BOOTSTRAPPED = 2
    ENTRY_NOT_FOUND = 9
    REGIONS_NOT_CONTAIN_ALL_KEY_RANGE = 12


class PdRefused(TiStreamError):
    """PD answered with an error or an invalid message.

    Usually transient: a PD server answers so while it starts, stops or loses its lead. Known final errors become
    InvalidInput, NotFound or TsExpired."""

    kind = ErrorKind.RETRY
    code = "TS-1034"


class StoreState(IntEnum):
    UP = 0
    OFFLINE = 1
    TOMBSTONE = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """One region as PD knows it. Keys in region form; empty = infinity."""

    id: int
    conf_ver: int
    version: int
    start: bytes
    end: bytes
    leader_store_id: int = 0  #: 0 = PD knows no leader
    leader_peer_id: int = 0  #: the leader's peer id, for requests


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    id: int
    address: str
    state: int = StoreState.UP  #: StoreState, or an unknown number
    version: str = ""
    columnar: bool = False  #: a TiFlash store: it leads no region


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """Statistics of a store's last heartbeat; 0 where missing."""

    regions: int  #: replicas on it, not only leaders
    used_bytes: int
    written_bytes: int  #: in the interval, all replicas on it
    interval_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Members:
    """The PD servers. Advertised URLs, for example http://10.0.0.1:2379."""

    cluster_id: int
    urls: tuple[str, ...]
    leader_urls: tuple[str, ...]  #: empty = no leader


# -- requests ----------------------------------------------------------------------------------------------------------


def header(cluster_id: int) -> bytes:
    """A request without further fields, such as GetGCSafePoint."""
    return wire.Request(header=_header(cluster_id)).SerializeToString()


def tso_request(cluster_id: int, count: int) -> bytes:
    return wire.TsoRequest(header=_header(cluster_id), count=count).SerializeToString()


def get_all_stores(cluster_id: int) -> bytes:
    """Without tombstones."""
    return wire.GetAllStoresRequest(header=_header(cluster_id), exclude_tombstone_stores=True).SerializeToString()


def get_store(cluster_id: int, store_id: int) -> bytes:
    return wire.GetStoreRequest(header=_header(cluster_id), store_id=store_id).SerializeToString()


def get_region(cluster_id: int, key: bytes) -> bytes:
    return wire.GetRegionRequest(header=_header(cluster_id), region_key=key).SerializeToString()


def scan_regions(cluster_id: int, start: bytes, end: bytes, limit: int) -> bytes:
    """The older form."""
    request = wire.ScanRegionsRequest(header=_header(cluster_id), start_key=start, limit=limit, end_key=end)
    return request.SerializeToString()


def batch_scan_regions(cluster_id: int, start: bytes, end: bytes, limit: int) -> bytes:
    """For one range; the answer must cover it without a gap, up to the limit."""
    ranges = [wire.KeyRange(start_key=start, end_key=end)]
    return wire.BatchScanRegionsRequest(
        header=_header(cluster_id), ranges=ranges, limit=limit, contain_all_key_range=True
    ).SerializeToString()


def update_service_safe_point(cluster_id: int, service_id: str, ttl_s: int, safe_point: int) -> bytes:
    return wire.UpdateServiceGcSafePointRequest(
        header=_header(cluster_id), service_id=service_id.encode(), ttl=ttl_s, safe_point=safe_point
    ).SerializeToString()


def gc_request(
    cluster_id: int, keyspace_id: int | None, barrier_id: str = "", barrier_ts: int = 0, ttl_s: int = 0
) -> bytes:
    """SetGCBarrier; DeleteGCBarrier of `barrier_id`; GetGCState."""
    scope = None if keyspace_id is None else wire.KeyspaceScope(keyspace_id=keyspace_id)
    return wire.GcBarrierRequest(
        header=_header(cluster_id),
        keyspace_scope=scope,
        barrier_id=barrier_id,
        barrier_ts=barrier_ts,
        ttl_seconds=ttl_s,
    ).SerializeToString()


def load_keyspace(cluster_id: int, name: str) -> bytes:
    return wire.LoadKeyspaceRequest(header=_header(cluster_id), name=name).SerializeToString()


def keyspace_from(cluster_id: int, keyspace_id: int) -> bytes:
    """GetAllKeyspaces: the first keyspace with this id or a larger one."""
    asked = wire.GetAllKeyspacesRequest(header=_header(cluster_id), start_id=keyspace_id, limit=1)
    return asked.SerializeToString()


def _header(cluster_id: int) -> wire.RequestHeader:
    return wire.RequestHeader(cluster_id=cluster_id)


# -- answers -----------------------------------------------------------------------------------------------------------


def read_members(answer: bytes) -> Members:
    body = _read(wire.GetMembersResponse, answer)
    leader = tuple(body.leader.client_urls)
    urls = dict.fromkeys(url for member in (*body.members, body.leader) for url in member.client_urls)
    return Members(cluster_id=body.header.cluster_id, urls=tuple(urls), leader_urls=leader)


def read_tso(answer: bytes, count: int) -> int:
    """The last of `count` timestamps."""
    body = _read(wire.TsoResponse, answer)
    stamp = body.timestamp
    last = ts.compose(stamp.physical, stamp.logical)
    if (
        body.count != count
        or not stamp.physical
        or stamp.logical > ts.LOGICAL_MASK
        or last > ts.TS_MAX
        or stamp.suffix_bits
    ):
        raise CorruptObject("PD returned invalid timestamps", asked=count, given=body.count, last=last)
    return last


def read_stores(answer: bytes) -> list[Store]:
    return [_store(store) for store in _read(wire.GetAllStoresResponse, answer).stores]


def read_store_stats(answer: bytes) -> StoreStats:
    stats = _read(wire.GetStoreResponse, answer).stats
    return StoreStats(
        regions=stats.region_count,
        used_bytes=stats.used_size,
        written_bytes=stats.bytes_written,
        interval_s=max(stats.interval.end_timestamp - stats.interval.start_timestamp, 0),
    )


def read_safe_point(answer: bytes) -> int:
    return _read(wire.GetGcSafePointResponse, answer).safe_point


def read_region(answer: bytes) -> Region | None:
    """Of GetRegion; None when PD knows none there."""
    body = _read(wire.GetRegionResponse, answer)
    return _region(body.region, body.leader) if body.HasField("region") else None


def read_batch_regions(answer: bytes) -> list[Region]:
    return [_region(found.region, found.leader) for found in _read(wire.BatchScanRegionsResponse, answer).regions]


def read_scanned_regions(answer: bytes) -> list[Region]:
    """Of ScanRegions: the newer form if present, else parallel lists of regions and leaders."""
    body = _read(wire.ScanRegionsResponse, answer)
    if body.regions:
        return [_region(found.region, found.leader) for found in body.regions]
    if len(body.region_metas) != len(body.leaders):
        raise CorruptObject("PD returned different numbers of regions and leaders", regions=len(body.region_metas))
    return [_region(region, leader) for region, leader in zip(body.region_metas, body.leaders, strict=True)]


def read_service_safe_point(answer: bytes) -> int:
    """min_safe_point: above the requested timestamp means that nothing is held."""
    return _read(wire.UpdateServiceGcSafePointResponse, answer).min_safe_point


def read_barrier(answer: bytes) -> wire.GcBarrier | None:
    """Of SetGCBarrier and DeleteGCBarrier; None when there was none to delete."""
    body = _read(wire.GcBarrierResponse, answer)
    return body.barrier if body.HasField("barrier") else None


def read_gc_state(answer: bytes) -> wire.GcState:
    return _read(wire.GetGcStateResponse, answer).state


def read_keyspace(answer: bytes) -> wire.Keyspace:
    return _read(wire.LoadKeyspaceResponse, answer).keyspace


def read_keyspaces(answer: bytes) -> list[wire.Keyspace]:
    return list(_read(wire.GetAllKeyspacesResponse, answer).keyspaces)


def check_header(answer: bytes) -> int:
    """The cluster id of an answer. PdRefused, with `type`, when the header has an error."""
    found = parse(wire.Response, answer).header
    if found.error.type:
        raise PdRefused(found.error.message.decode(errors="replace"), type=found.error.type)
    return found.cluster_id


def _read(kind: type[M], answer: bytes) -> M:
    check_header(answer)
    return parse(kind, answer)


def _store(store: wire.MetaStore) -> Store:
    if not store.id or not store.address:
        raise CorruptObject("PD listed a store without an id or address")
    columnar = any((label.key, label.value) == ("engine", "tiflash") for label in store.labels)
    return Store(id=store.id, address=store.address, state=store.state, version=store.version, columnar=columnar)


def _region(region: wire.MetaRegion, leader: wire.Peer) -> Region:
    if not region.id:
        raise CorruptObject("PD listed a region without an id")
    return Region(
        id=region.id,
        conf_ver=region.region_epoch.conf_ver,
        version=region.region_epoch.version,
        start=region.start_key,
        end=region.end_key,
        leader_store_id=leader.store_id,
        leader_peer_id=leader.id,
    )
