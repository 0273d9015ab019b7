"""PD's answers for the cluster that a subclass describes: members, stores, regions, timestamps, holds, keyspaces.

A subclass provides the cluster's id, its stores, its regions, the next timestamp, and from when history is kept.
Holds on history are kept in memory, without their time to live.

Pure; its owner holds its lock around every call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, pairwise

from simulator.loopback.core.feed_wire import plain_range
from tistream import ts
from tistream.codec.protobuf import parse
from tistream.errors import InvalidInput
from tistream.keyrange import KeyRange
from tistream.tikv.core import wire
from tistream.tikv.core.pd_messages import NULL_KEYSPACE

TSO = "/pdpb.PD/Tso"
_PD = "/pdpb.PD/"
_KEYSPACE = "/keyspacepb.Keyspace/"
_NEWER = ("BatchScanRegions", "SetGCBarrier", "DeleteGCBarrier", "GetGCState")
NEWER_METHODS = frozenset({_KEYSPACE + "GetAllKeyspaces", *(_PD + name for name in _NEWER)})
_TIMESTAMPS_MAX = 1 << 12  #: at once
_REGIONS_MAX = 1 << 20  #: at once
_REQUEST_REFUSED, _ENTRY_NOT_FOUND, _NOT_ALL_KEYS = 1, 9, 12  #: pdpb.ErrorType
_GC_WORKER, _TTL_FOREVER = b"gc_worker", (1 << 63) - 1


class PdAnswers(ABC):
    """The unary methods by their full names, and the stream of timestamps."""

    def __init__(self, address: str, keyspaces: Mapping[str, int] | None = None) -> None:
        self._address, self._keyspaces = address, {"DEFAULT": 0, **(keyspaces or {})}
        self.disabled: set[str] = set()  #: names of keyspaces
        self.holds: dict[bytes, int] = {}  #: who keeps history, and from which timestamp on
        self._methods: dict[str, Callable[[bytes], bytes]] = {
            _PD + "GetMembers": lambda _: self._members(),
            _PD + "GetAllStores": lambda _: self._stores(),
            _PD + "GetRegion": self._region,
            _PD + "ScanRegions": self._scan_regions,
            _PD + "BatchScanRegions": self._batch_scan_regions,
            _PD + "UpdateServiceGCSafePoint": self._update_safe_point,
            _PD + "SetGCBarrier": self._set_barrier,
            _PD + "DeleteGCBarrier": self._delete_barrier,
            _PD + "GetGCState": lambda _: self._gc_state(),
            _KEYSPACE + "LoadKeyspace": self._load_keyspace,
            _KEYSPACE + "GetAllKeyspaces": self._all_keyspaces,
        }

    # -- the cluster -----------------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def cluster_id(self) -> int: ...

    @property
    @abstractmethod
    def kept_from_ts(self) -> int:
        """History at and above it is kept."""

    @abstractmethod
    def stores(self) -> Sequence[wire.MetaStore]: ...

    @abstractmethod
    def regions(self, wanted: KeyRange) -> Iterator[wire.PdRegion]:
        """The regions that touch a range of plain keys, in key order; without a leader when there is none."""

    @abstractmethod
    def tso(self, count: int) -> int:
        """The last of `count` new timestamps."""

    def range_of(self, start: bytes, end: bytes) -> KeyRange:
        """The plain keys between boundaries as PD writes them."""
        return plain_range(start, end)

    # -- requests --------------------------------------------------------------------------------------------------

    @property
    def methods(self) -> Sequence[str]:
        """The unary ones."""
        return tuple(self._methods)

    def answer(self, method: str, request: bytes) -> bytes:
        """InvalidInput for another cluster's requests, CorruptObject for bytes that are none."""
        if method != _PD + "GetMembers":
            self.check_cluster(request)
        return self._methods[method](request)

    def timestamps(self, request: bytes) -> bytes:
        """The answer to one TsoRequest."""
        self.check_cluster(request)
        count = parse(wire.TsoRequest, request).count
        if not 0 < count <= _TIMESTAMPS_MAX:
            raise InvalidInput("tso count should be positive, and not beyond what is kept free")
        last = self.tso(count)
        stamp = wire.Timestamp(physical=ts.physical_ms(last), logical=ts.logical(last))
        return wire.TsoResponse(header=self._head, count=count, timestamp=stamp).SerializeToString()

    def check_cluster(self, request: bytes) -> None:
        """InvalidInput when a request is for another cluster."""
        asked = parse(wire.Request, request).header.cluster_id
        if asked != self.cluster_id:
            raise InvalidInput(f"mismatch cluster id, need {self.cluster_id} but got {asked}")

    # -- the answers -----------------------------------------------------------------------------------------------

    @property
    def _head(self) -> wire.ResponseHeader:
        return wire.ResponseHeader(cluster_id=self.cluster_id)

    def _refused(self, text: str, kind: int = _REQUEST_REFUSED) -> bytes:
        error = wire.PdError(type=kind, message=text.encode())
        return wire.Response(header=wire.ResponseHeader(cluster_id=self.cluster_id, error=error)).SerializeToString()

    def _members(self) -> bytes:
        urls = [f"http://{self._address}"]
        member = wire.Member(name="pd", member_id=1, peer_urls=urls, client_urls=urls)
        return wire.GetMembersResponse(header=self._head, members=[member], leader=member).SerializeToString()

    def _stores(self) -> bytes:
        return wire.GetAllStoresResponse(header=self._head, stores=self.stores()).SerializeToString()

    def _region(self, request: bytes) -> bytes:
        answer = wire.GetRegionResponse(header=self._head)
        for region in self._found(parse(wire.GetRegionRequest, request).region_key, b"", 1):
            answer.region.CopyFrom(region.region)
            if region.HasField("leader"):
                answer.leader.CopyFrom(region.leader)
        return answer.SerializeToString()

    def _scan_regions(self, request: bytes) -> bytes:
        asked = parse(wire.ScanRegionsRequest, request)
        regions = self._found(asked.start_key, asked.end_key, asked.limit)
        return wire.ScanRegionsResponse(header=self._head, regions=regions).SerializeToString()

    def _batch_scan_regions(self, request: bytes) -> bytes:
        asked = parse(wire.BatchScanRegionsRequest, request)
        answer = wire.BatchScanRegionsResponse(header=self._head)
        for part in asked.ranges:
            regions = self._found(part.start_key, part.end_key, asked.limit)
            if asked.contain_all_key_range and any(
                a.region.end_key != b.region.start_key for a, b in pairwise(regions)
            ):
                return self._refused("found regions have gaps", _NOT_ALL_KEYS)
            answer.regions.extend(regions)
        return answer.SerializeToString()

    def _found(self, start: bytes, end: bytes, limit: int) -> list[wire.PdRegion]:
        return list(islice(self.regions(self.range_of(start, end)), min(limit, _REGIONS_MAX) or None))

    def _load_keyspace(self, request: bytes) -> bytes:
        name = parse(wire.LoadKeyspaceRequest, request).name
        if (id_ := self._keyspaces.get(name)) is None:
            return self._refused("keyspace does not exist", _ENTRY_NOT_FOUND)
        keyspace = self._keyspace(name, id_)
        return wire.LoadKeyspaceResponse(header=self._head, keyspace=keyspace).SerializeToString()

    def _keyspace(self, name: str, id_: int) -> wire.Keyspace:
        return wire.Keyspace(id=id_, name=name, state=int(name in self.disabled))

    def _all_keyspaces(self, request: bytes) -> bytes:
        asked = parse(wire.GetAllKeyspacesRequest, request)
        rising = sorted((id_, name) for name, id_ in self._keyspaces.items() if id_ >= asked.start_id)
        keyspaces = [self._keyspace(name, id_) for id_, name in rising[: asked.limit or None]]
        return wire.GetAllKeyspacesResponse(header=self._head, keyspaces=keyspaces).SerializeToString()

    # -- history ---------------------------------------------------------------------------------------------------

    def _update_safe_point(self, request: bytes) -> bytes:
        asked = parse(wire.UpdateServiceGcSafePointRequest, request)
        self._hold(asked.service_id, asked.safe_point, asked.ttl)
        return wire.UpdateServiceGcSafePointResponse(
            header=self._head, service_id=_GC_WORKER, ttl=_TTL_FOREVER, min_safe_point=self.kept_from_ts
        ).SerializeToString()

    def _set_barrier(self, request: bytes) -> bytes:
        asked = parse(wire.GcBarrierRequest, request)
        if asked.barrier_ts < self.kept_from_ts:
            return self._refused("[PD:gc:ErrGCBarrierTSBehindTxnSafePoint]history does not go back that far")
        self._hold(asked.barrier_id.encode(), asked.barrier_ts, asked.ttl_seconds)
        barrier = wire.GcBarrier(id=asked.barrier_id, ts=asked.barrier_ts, ttl_s=asked.ttl_seconds)
        return wire.GcBarrierResponse(header=self._head, barrier=barrier).SerializeToString()

    def _delete_barrier(self, request: bytes) -> bytes:
        self._hold(parse(wire.GcBarrierRequest, request).barrier_id.encode(), 0, 0)
        return wire.GcBarrierResponse(header=self._head).SerializeToString()

    def _gc_state(self) -> bytes:
        start = self.kept_from_ts
        state = wire.GcState(
            keyspace_scope=wire.KeyspaceScope(keyspace_id=NULL_KEYSPACE),
            txn_safe_point=start,
            gc_safe_point=start,
            barriers=[wire.GcBarrier(id=name.decode(), ts=stamp) for name, stamp in self.holds.items()],
        )
        return wire.GetGcStateResponse(header=self._head, state=state).SerializeToString()

    def _hold(self, name: bytes, stamp: int, ttl_s: int) -> None:
        if ttl_s > 0 and stamp >= self.kept_from_ts:
            self.holds[name] = stamp
        else:
            self.holds.pop(name, None)
