"""Messages of a snapshot read (`kvrpcpb.ScanRequest`, `ScanResponse`).

- An answer is a page of pairs, the reason why the region was not read (`RegionFault`), or a refusal (`KvRefused`);
- a page ends before the first pair with an error. A lock there is returned (`Lock`); the pairs before it are valid;
- keys increase strictly and lie in the requested range. Other keys are damage, never ignored.

Pure: any bytes give a value, KvRefused or CorruptObject.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from tistream.codec.protobuf import parse
from tistream.errors import CorruptObject, TiStreamError
from tistream.keyrange import KeyRange
from tistream.tikv.core import wire
from tistream.tikv.core.pd_messages import Region

_LOW = 1  # kvrpcpb.CommandPri


class ApiVersion(IntEnum):
    """kvrpcpb.APIVersion. TiDB without keyspaces is V1 on every server."""

    V1 = 0
    V2 = 2


class KvRefused(TiStreamError):
    """A store refused to read."""

    code = "TS-1036"


class FaultKind(IntEnum):
    """Why a region was not read; names and numbers are those of the fields of errorpb.Error."""

    OTHER = 0  #: unknown to this version
    NOT_LEADER = 2
    REGION_NOT_FOUND = 3
    KEY_NOT_IN_REGION = 4
    EPOCH_NOT_MATCH = 5
    SERVER_IS_BUSY = 6
    STALE_COMMAND = 7
    STORE_NOT_MATCH = 8
    RAFT_ENTRY_TOO_LARGE = 9
    MAX_TIMESTAMP_NOT_SYNCED = 10
    READ_INDEX_NOT_READY = 11
    PROPOSAL_IN_MERGING_MODE = 12
    DATA_IS_NOT_READY = 13
    REGION_NOT_INITIALIZED = 14
    DISK_FULL = 15
    RECOVERY_IN_PROGRESS = 16
    FLASHBACK_IN_PROGRESS = 17
    FLASHBACK_NOT_PREPARED = 18
    IS_WITNESS = 19
    MISMATCH_PEER_ID = 20
    BUCKET_VERSION_NOT_MATCH = 21
    UNDETERMINED_RESULT = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionFault:
    """A region was not read. All faults are transient; ask PD where the region is now."""

    kind: FaultKind
    message: str
    backoff_ms: int = 0  #: for SERVER_IS_BUSY


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    """An undecided transaction's lock; the read's result depends on its outcome."""

    key: bytes
    primary: bytes
    start_ts: int
    ttl_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Live pairs at the read's timestamp, in key order."""

    keys: list[bytes]
    values: list[bytes]
    commit_ts: list[int]  #: 0 = not in the answer
    lock: Lock | None = None  #: follows these pairs; keys from there on were not read


def scan_request(
    region: Region, part: KeyRange, limit: int, ts: int, api: ApiVersion, keyspace_id: int | None = None
) -> bytes:
    """Up to `limit` pairs of `part` (wire keys, within the region) at `ts`, from the region's leader, with low priority
    and without filling the store's cache."""
    request_context = context(region, api, keyspace_id)
    request_context.priority, request_context.not_fill_cache = _LOW, True
    return wire.ScanRequest(
        context=request_context, start_key=part.start, limit=limit, version=ts, end_key=part.end
    ).SerializeToString()


def context(region: Region, api: ApiVersion, keyspace_id: int | None) -> wire.Context:
    return wire.Context(
        region_id=region.id,
        region_epoch=wire.RegionEpoch(conf_ver=region.conf_ver, version=region.version),
        peer=wire.Peer(id=region.leader_peer_id, store_id=region.leader_store_id),
        api_version=api,
        keyspace_id=keyspace_id or 0,
    )


def read_scan(answer: bytes, range_: KeyRange) -> Page | RegionFault:
    body = parse(wire.ScanResponse, answer)
    keys: list[bytes] = []
    error: wire.KeyError | None = None
    for pair in body.pairs:
        if pair.HasField("error"):
            error = error or pair.error
        elif error is None:
            if pair.key not in range_ or (keys and pair.key <= keys[-1]):
                raise CorruptObject("a scan returned a key that was not requested, or is out of order", key=pair.key)
            keys.append(pair.key)
    if body.HasField("region_error"):
        return read_fault(body.region_error)
    if error is None and body.HasField("error"):
        error = body.error
    return Page(
        keys=keys,
        values=[pair.value for pair in body.pairs[: len(keys)]],
        commit_ts=[pair.commit_ts for pair in body.pairs[: len(keys)]],
        lock=None if error is None else _lock(error),
    )


def read_fault(error: wire.RegionError) -> RegionFault:
    kind = error.WhichOneof("kind")
    return RegionFault(
        kind=FaultKind[kind.upper()] if kind else FaultKind.OTHER,
        message=error.message.decode(errors="replace"),
        backoff_ms=error.server_is_busy.backoff_ms,
    )


def _lock(error: wire.KeyError) -> Lock:
    """The lock of a key error. KvRefused for any other error."""
    if not error.HasField("locked"):
        text = (error.retryable or error.abort).decode(errors="replace")
        raise KvRefused(text or "a store refused to read a key, for an unknown reason")
    lock = error.locked
    return Lock(key=lock.key, primary=lock.primary_lock, start_ts=lock.lock_version, ttl_ms=lock.lock_ttl)
