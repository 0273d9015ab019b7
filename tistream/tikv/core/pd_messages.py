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
from tistream.codec.protobuf import BYTES, VARINT, fields, merged, message, octets, signed, uint
from tistream.errors import CorruptObject, ErrorKind, TiStreamError

NULL_KEYSPACE = 0xFFFFFFFF  #: the cluster without keyspaces in GetGCState
_COLUMNAR = {1: b"engine", 2: b"tiflash"}  # the label of a TiFlash store


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
    """metapb.StoreState."""

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
    """One TiKV store."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class GcBarrier:
    """A barrier that keeps history from being collected."""

    id: str
    ts: int
    ttl_s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GcState:
    """The state of garbage collection."""

    keyspace_id: int
    txn_safe_point: int
    gc_safe_point: int
    barriers: tuple[GcBarrier, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyspace:
    """A keyspace; `state` 0 = enabled."""

    id: int
    name: str
    state: int


# -- requests ----------------------------------------------------------------------------------------------------------


def header(cluster_id: int) -> bytes:
    """The header of every request except GetMembers."""
    return message(1, uint(1, cluster_id))


def tso_request(cluster_id: int, count: int) -> bytes:
    return header(cluster_id) + uint(2, count)


def get_all_stores(cluster_id: int) -> bytes:
    """Without tombstones."""
    return header(cluster_id) + uint(2, 1)


def get_store(cluster_id: int, store_id: int) -> bytes:
    return header(cluster_id) + uint(2, store_id)


def get_region(cluster_id: int, key: bytes) -> bytes:
    return header(cluster_id) + octets(2, key)


def scan_regions(cluster_id: int, start: bytes, end: bytes, limit: int) -> bytes:
    """The older form."""
    return header(cluster_id) + octets(2, start) + uint(3, limit) + octets(4, end)


def batch_scan_regions(cluster_id: int, start: bytes, end: bytes, limit: int) -> bytes:
    """For one range; the answer must cover it without a gap, up to the limit."""
    return header(cluster_id) + message(3, octets(1, start) + octets(2, end)) + uint(4, limit) + uint(5, 1)


def update_service_safe_point(cluster_id: int, service_id: str, ttl_s: int, safe_point: int) -> bytes:
    return header(cluster_id) + octets(2, service_id.encode()) + uint(3, ttl_s) + uint(4, safe_point)


def set_gc_barrier(cluster_id: int, barrier_id: str, barrier_ts: int, ttl_s: int, keyspace_id: int | None) -> bytes:
    return (
        header(cluster_id) + _scope(keyspace_id) + octets(3, barrier_id.encode()) + uint(4, barrier_ts) + uint(5, ttl_s)
    )


def delete_gc_barrier(cluster_id: int, barrier_id: str, keyspace_id: int | None) -> bytes:
    return header(cluster_id) + _scope(keyspace_id) + octets(3, barrier_id.encode())


def get_gc_state(cluster_id: int, keyspace_id: int | None) -> bytes:
    return header(cluster_id) + _scope(keyspace_id)


def load_keyspace(cluster_id: int, name: str) -> bytes:
    return header(cluster_id) + octets(2, name.encode())


def _scope(keyspace_id: int | None) -> bytes:
    return b"" if keyspace_id is None else message(2, uint(1, keyspace_id))


# -- answers -----------------------------------------------------------------------------------------------------------


def read_members(answer: bytes) -> Members:
    cluster_id = check_header(answer)
    urls: list[str] = []
    leader: tuple[str, ...] = ()
    for number, body in fields(answer, {2: BYTES, 3: BYTES}):
        found = tuple(_text(url) for _, url in fields(body, {4: BYTES}))
        if number == 3:
            leader += found
        urls += [url for url in found if url not in urls]
    return Members(cluster_id=cluster_id, urls=tuple(urls), leader_urls=leader)


def read_tso(answer: bytes, count: int) -> int:
    """The last of `count` timestamps."""
    check_header(answer)
    body = merged(answer, {2: VARINT, 3: BYTES})
    stamp = merged(body.get(3, b""), {1: VARINT, 2: VARINT, 3: VARINT})
    physical_ms, logical = stamp.get(1, 0), stamp.get(2, 0)
    last = ts.compose(physical_ms, logical)
    if body.get(2, 0) != count or not physical_ms or logical > ts.LOGICAL_MASK or last > ts.TS_MAX or stamp.get(3, 0):
        raise CorruptObject("PD returned invalid timestamps", asked=count, given=body.get(2, 0), last=last)
    return last


def read_stores(answer: bytes) -> list[Store]:
    check_header(answer)
    return [_store(body) for _, body in fields(answer, {2: BYTES})]


def read_store_stats(answer: bytes) -> StoreStats:
    """Of GetStore."""
    check_header(answer)
    stats = merged(merged(answer, {3: BYTES}).get(3, b""), {4: VARINT, 10: VARINT, 11: VARINT, 15: BYTES})
    interval = merged(stats.get(15, b""), {1: VARINT, 2: VARINT})
    return StoreStats(
        regions=stats.get(4, 0),
        used_bytes=stats.get(10, 0),
        written_bytes=stats.get(11, 0),
        interval_s=max(interval.get(2, 0) - interval.get(1, 0), 0),
    )


def read_safe_point(answer: bytes) -> int:
    """Of GetGCSafePoint."""
    check_header(answer)
    return int(merged(answer, {2: VARINT}).get(2, 0))


def read_region(answer: bytes) -> Region | None:
    """Of GetRegion; None when PD knows none there."""
    check_header(answer)
    body = merged(answer, {2: BYTES, 3: BYTES})
    return _region(body[2], body.get(3, b"")) if 2 in body else None


def read_batch_regions(answer: bytes) -> list[Region]:
    """Of BatchScanRegions."""
    check_header(answer)
    return [_pd_region(body) for _, body in fields(answer, {2: BYTES})]


def read_scanned_regions(answer: bytes) -> list[Region]:
    """Of ScanRegions: the newer form if present, else parallel lists of regions and leaders."""
    check_header(answer)
    parts: dict[int, list[bytes]] = {2: [], 3: [], 4: []}
    for number, body in fields(answer, dict.fromkeys(parts, BYTES)):
        parts[number].append(body)
    if parts[4]:
        return [_pd_region(body) for body in parts[4]]
    if len(parts[2]) != len(parts[3]):
        raise CorruptObject("PD returned different numbers of regions and leaders", regions=len(parts[2]))
    return [_region(region, leader) for region, leader in zip(parts[2], parts[3], strict=True)]


def read_service_safe_point(answer: bytes) -> int:
    """min_safe_point: above the requested timestamp means that nothing is held."""
    check_header(answer)
    return int(merged(answer, {4: VARINT}).get(4, 0))


def read_barrier(answer: bytes) -> GcBarrier | None:
    """Of SetGCBarrier and DeleteGCBarrier; None when there was none to delete."""
    check_header(answer)
    body = merged(answer, {2: BYTES})
    return _barrier(body[2]) if 2 in body else None


def read_gc_state(answer: bytes) -> GcState:
    check_header(answer)
    state = merged(answer, {2: BYTES}).get(2, b"")
    scope, numbers, barriers = b"", dict[int, int](), []
    for number, value in fields(state, {1: BYTES, 3: VARINT, 4: VARINT, 5: BYTES}):
        if number == 1:
            scope += value
        elif number == 5:
            barriers.append(_barrier(value))
        else:
            numbers[number] = value
    return GcState(
        keyspace_id=merged(scope, {1: VARINT}).get(1, 0),
        txn_safe_point=numbers.get(3, 0),
        gc_safe_point=numbers.get(4, 0),
        barriers=tuple(barriers),
    )


def read_keyspace(answer: bytes) -> Keyspace:
    check_header(answer)
    meta = merged(merged(answer, {2: BYTES}).get(2, b""), {1: VARINT, 2: BYTES, 3: VARINT})
    return Keyspace(id=meta.get(1, 0), name=_text(meta.get(2, b"")), state=meta.get(3, 0))


def check_header(answer: bytes) -> int:
    """The cluster id of an answer. PdRefused, with `type`, when the header has an error."""
    head = merged(merged(answer, {1: BYTES}).get(1, b""), {1: VARINT, 2: BYTES})
    error = merged(head.get(2, b""), {1: VARINT, 2: BYTES})
    if error.get(1, 0):
        raise PdRefused(_text(error.get(2, b"")), type=error[1])
    return int(head.get(1, 0))


def _store(body: bytes) -> Store:
    store = merged(body, {1: VARINT, 2: BYTES, 3: VARINT, 5: BYTES})
    labels = (merged(label, {1: BYTES, 2: BYTES}) for _, label in fields(body, {4: BYTES}))
    if not store.get(1) or not store.get(2):
        raise CorruptObject("PD listed a store without an id or address")
    return Store(
        id=store[1],
        address=_text(store[2]),
        state=store.get(3, StoreState.UP),
        version=_text(store.get(5, b"")),
        columnar=any(label == _COLUMNAR for label in labels),
    )


def _pd_region(body: bytes) -> Region:
    parts = merged(body, {1: BYTES, 2: BYTES})
    return _region(parts.get(1, b""), parts.get(2, b""))


def _region(region: bytes, leader: bytes) -> Region:
    meta = merged(region, {1: VARINT, 2: BYTES, 3: BYTES, 4: BYTES})
    epoch = merged(meta.get(4, b""), {1: VARINT, 2: VARINT})
    peer = merged(leader, {1: VARINT, 2: VARINT})
    if not meta.get(1):
        raise CorruptObject("PD listed a region without an id")
    return Region(
        id=meta[1],
        conf_ver=epoch.get(1, 0),
        version=epoch.get(2, 0),
        start=meta.get(2, b""),
        end=meta.get(3, b""),
        leader_store_id=peer.get(2, 0),
        leader_peer_id=peer.get(1, 0),
    )


def _barrier(body: bytes) -> GcBarrier:
    barrier = merged(body, {1: BYTES, 2: VARINT, 3: VARINT})
    return GcBarrier(id=_text(barrier.get(1, b"")), ts=barrier.get(2, 0), ttl_s=signed(barrier.get(3, 0)))


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
