"""PD's answers for the cluster that a subclass describes: members, stores, regions, timestamps, holds, keyspaces.

A subclass provides the cluster's id, its stores, its regions, the next timestamp, and from when history is kept.
Holds on history are kept in memory, without their time to live.

Pure; its owner holds its lock around every call.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise

from simulator.loopback.core.feed_wire import plain_range, region_form
from tistream import ts
from tistream.codec.protobuf import BYTES, VARINT, fields, merged, message, octets, uint
from tistream.errors import InvalidInput
from tistream.keyrange import KeyRange

TSO = "/pdpb.PD/Tso"
_PD = "/pdpb.PD/"
_KEYSPACE = "/keyspacepb.Keyspace/LoadKeyspace"
NEWER_METHODS = frozenset(_PD + name for name in ("BatchScanRegions", "SetGCBarrier", "DeleteGCBarrier", "GetGCState"))
_TIMESTAMPS_MAX = 1 << 12  #: at once
_REGIONS_MAX = 1 << 20  #: at once
_NULL_KEYSPACE = 0xFFFFFFFF
_REQUEST_REFUSED, _ENTRY_NOT_FOUND, _NOT_ALL_KEYS = 1, 9, 12  #: pdpb.ErrorType
_GC_WORKER, _TTL_FOREVER = b"gc_worker", (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PdStore:
    """A store as PD lists it."""

    store_id: int
    address: str
    state: int = 0
    version: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class PdRegion:
    """A region as PD lists it; peers as messages, `leader` empty when it has none."""

    region_id: int
    conf_ver: int
    version: int
    range: KeyRange  #: plain keys
    peers: tuple[bytes, ...]
    leader: bytes

    def as_message(self) -> bytes:
        """The body of a metapb.Region."""
        epoch = message(4, uint(1, self.conf_ver) + uint(2, self.version))
        keys = octets(2, region_form(self.range.start)) + octets(3, region_form(self.range.end))
        return uint(1, self.region_id) + keys + epoch + b"".join(message(5, peer) for peer in self.peers)


class PdAnswers(ABC):
    """The unary methods by their full names, and the stream of timestamps."""

    def __init__(self, address: str, keyspaces: Mapping[str, int] | None = None) -> None:
        self._address, self._keyspaces = address, keyspaces or {}
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
            _KEYSPACE: self._load_keyspace,
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
    def stores(self) -> Sequence[PdStore]: ...

    @abstractmethod
    def regions(self, wanted: KeyRange) -> Iterator[PdRegion]:
        """The regions that touch a range, in key order."""

    @abstractmethod
    def tso(self, count: int) -> int:
        """The last of `count` new timestamps."""

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
        count = merged(request, {2: VARINT}).get(2, 0)
        if not 0 < count <= _TIMESTAMPS_MAX:
            raise InvalidInput("tso count should be positive, and not beyond what is kept free")
        last = self.tso(count)
        stamp = uint(1, ts.physical_ms(last)) + uint(2, ts.logical(last))
        return self._head() + uint(2, count) + message(3, stamp)

    def check_cluster(self, request: bytes) -> None:
        """InvalidInput when a request is for another cluster."""
        asked = merged(merged(request, {1: BYTES}).get(1, b""), {1: VARINT}).get(1, 0)
        if asked != self.cluster_id:
            raise InvalidInput(f"mismatch cluster id, need {self.cluster_id} but got {asked}")

    # -- the answers -----------------------------------------------------------------------------------------------

    def _head(self, error: str = "", kind: int = _REQUEST_REFUSED) -> bytes:
        text = message(2, uint(1, kind) + octets(2, error.encode())) if error else b""
        return message(1, uint(1, self.cluster_id) + text)

    def _members(self) -> bytes:
        url = f"http://{self._address}".encode()
        member = octets(1, b"pd") + uint(2, 1) + octets(3, url) + octets(4, url)
        return self._head() + message(2, member) + message(3, member)

    def _stores(self) -> bytes:
        return self._head() + b"".join(
            message(2, uint(1, s.store_id) + octets(2, s.address.encode()) + uint(3, s.state) + octets(5, s.version))
            for s in self.stores()
        )

    def _region(self, request: bytes) -> bytes:
        key = merged(request, {2: BYTES}).get(2, b"")
        found = self._found(key, b"", 1)
        return self._head() + b"".join(message(2, r.as_message()) + octets(3, r.leader) for r in found)

    def _scan_regions(self, request: bytes) -> bytes:
        said = merged(request, {2: BYTES, 3: VARINT, 4: BYTES})
        found = self._found(said.get(2, b""), said.get(4, b""), said.get(3, 0))
        return self._head() + b"".join(message(4, message(1, r.as_message()) + octets(2, r.leader)) for r in found)

    def _batch_scan_regions(self, request: bytes) -> bytes:
        said = merged(request, {4: VARINT, 5: VARINT})
        out = self._head()
        for _, body in fields(request, {3: BYTES}):
            key_range = merged(body, {1: BYTES, 2: BYTES})
            found = self._found(key_range.get(1, b""), key_range.get(2, b""), said.get(4, 0))
            if said.get(5) and any(a.range.end != b.range.start for a, b in pairwise(found)):
                return self._head("found regions have gaps", _NOT_ALL_KEYS)
            out += b"".join(message(2, message(1, r.as_message()) + octets(2, r.leader)) for r in found)
        return out

    def _found(self, start: bytes, end: bytes, limit: int) -> list[PdRegion]:
        return list(islice(self.regions(plain_range(start, end)), min(limit, _REGIONS_MAX) or None))

    def _load_keyspace(self, request: bytes) -> bytes:
        name = merged(request, {2: BYTES}).get(2, b"")
        if (found := self._keyspaces.get(name.decode(errors="replace"))) is None:
            return self._head("keyspace does not exist", _ENTRY_NOT_FOUND)
        return self._head() + message(2, uint(1, found) + octets(2, name))

    # -- history ---------------------------------------------------------------------------------------------------

    def _update_safe_point(self, request: bytes) -> bytes:
        said = merged(request, {2: BYTES, 3: VARINT, 4: VARINT})
        self._hold(said.get(2, b""), said.get(4, 0), said.get(3, 0))
        lowest = octets(2, _GC_WORKER) + uint(3, _TTL_FOREVER) + uint(4, self.kept_from_ts)
        return self._head() + lowest

    def _set_barrier(self, request: bytes) -> bytes:
        said = merged(request, {3: BYTES, 4: VARINT, 5: VARINT})
        name, stamp, ttl_s = said.get(3, b""), said.get(4, 0), said.get(5, 0)
        if stamp < self.kept_from_ts:
            return self._head("[PD:gc:ErrGCBarrierTSBehindTxnSafePoint]history does not go back that far")
        self._hold(name, stamp, ttl_s)
        return self._head() + message(2, octets(1, name) + uint(2, stamp) + uint(3, ttl_s))

    def _delete_barrier(self, request: bytes) -> bytes:
        self._hold(merged(request, {3: BYTES}).get(3, b""), 0, 0)
        return self._head()

    def _gc_state(self) -> bytes:
        start = self.kept_from_ts
        barriers = b"".join(message(5, octets(1, name) + uint(2, stamp)) for name, stamp in self.holds.items())
        scope = message(1, uint(1, _NULL_KEYSPACE))
        return self._head() + message(2, scope + uint(3, start) + uint(4, start) + barriers)

    def _hold(self, name: bytes, stamp: int, ttl_s: int) -> None:
        if 0 < ttl_s < 1 << 63 and stamp >= self.kept_from_ts:
            self.holds[name] = stamp
        else:
            self.holds.pop(name, None)
