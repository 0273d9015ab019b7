"""Messages exchanged with PD (`pdpb`, `metapb`, `keyspacepb`): encoded requests, parsed answers.

- An answer's header is checked first: `PdRefused` when it has an error;
- region keys stay in memcomparable form; an empty key is minus or plus infinity;
- a region without a leader has leader_store_id 0.

Pure: any bytes give a value, PdRefused or CorruptObject.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

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


def encoded(request: Any, cluster_id: int) -> bytes:
    """A request of `wire`, with its header."""
    request.header.cluster_id = cluster_id
    data: bytes = request.SerializeToString()
    return data


# -- answers -----------------------------------------------------------------------------------------------------------


def read_members(answer: bytes) -> Members:
    body = read(wire.GetMembersResponse, answer)
    leader = tuple(body.leader.client_urls)
    urls = dict.fromkeys(url for member in (*body.members, body.leader) for url in member.client_urls)
    return Members(cluster_id=body.header.cluster_id, urls=tuple(urls), leader_urls=leader)


def read_tso(answer: bytes, count: int) -> int:
    """The last of `count` timestamps."""
    body = read(wire.TsoResponse, answer)
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
    return [_store(store) for store in read(wire.GetAllStoresResponse, answer).stores]


def read_store_stats(answer: bytes) -> StoreStats:
    stats = read(wire.GetStoreResponse, answer).stats
    return StoreStats(
        regions=stats.region_count,
        used_bytes=stats.used_size,
        written_bytes=stats.bytes_written,
        interval_s=max(stats.interval.end_timestamp - stats.interval.start_timestamp, 0),
    )


def read_region(answer: bytes) -> Region | None:
    """Of GetRegion; None when PD knows none there."""
    body = read(wire.GetRegionResponse, answer)
    return _region(body.region, body.leader) if body.HasField("region") else None


def read_batch_regions(answer: bytes) -> list[Region]:
    return [_region(region.region, region.leader) for region in read(wire.BatchScanRegionsResponse, answer).regions]


def read_scanned_regions(answer: bytes) -> list[Region]:
    """Of ScanRegions: the newer form if present, else parallel lists of regions and leaders."""
    body = read(wire.ScanRegionsResponse, answer)
    if body.regions:
        return [_region(each.region, each.leader) for each in body.regions]
    if len(body.region_metas) != len(body.leaders):
        raise CorruptObject("PD returned different numbers of regions and leaders", regions=len(body.region_metas))
    return [_region(region, leader) for region, leader in zip(body.region_metas, body.leaders, strict=True)]


def read_barrier(answer: bytes) -> wire.GcBarrier | None:
    """Of SetGCBarrier and DeleteGCBarrier; None when there was none to delete."""
    body = read(wire.GcBarrierResponse, answer)
    return body.barrier if body.HasField("barrier") else None


def check_header(answer: bytes) -> int:
    """The cluster id of an answer. PdRefused, with `type`, when the header has an error."""
    header = parse(wire.Response, answer).header
    if header.error.type:
        raise PdRefused(header.error.message.decode(errors="replace"), type=header.error.type)
    return header.cluster_id


def read(kind: type[M], answer: bytes) -> M:
    """An answer of `wire`, whose header has no error."""
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
