"""What the replayed PD answers at the line that the stage has come to.

Regions follow the plan, stores the recorded answers, timestamps the stage's clock; addresses are the replay's own.
Holds on history are kept in memory, without their time to live, and nothing below the recording's first checkpoint can
be held: it is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tistream import ts
from tistream.codec.protobuf import BYTES, VARINT, fields, merged, message, octets, uint
from tistream.errors import InvalidInput
from tistream.simulator.replay.plan import Tile
from tistream.simulator.replay.recording import Recording
from tistream.simulator.replay.stage import Stage
from tistream.simulator.replay.wire import plain_range, region_form

_TIMESTAMPS_MAX = 1 << 12  #: at once
_NULL_KEYSPACE = 0xFFFFFFFF
_REQUEST_REFUSED = 1  #: pdpb.ErrorType UNKNOWN
_GC_WORKER, _TTL_FOREVER = b"gc_worker", (1 << 63) - 1


class ReplayPd:
    """The answers. Its owner holds the stage's lock around every call."""

    def __init__(self, recording: Recording, stage: Stage, address: str, store_addresses: Mapping[int, str]) -> None:
        self._recording, self._stage = recording, stage
        self._address, self._store_addresses = address, store_addresses
        self._holds: dict[bytes, int] = {}
        self._methods: dict[str, Callable[[bytes], bytes]] = {
            "GetMembers": lambda _: self._members(),
            "GetAllStores": lambda _: self._stores(),
            "GetRegion": self._region,
            "ScanRegions": self._scan_regions,
            "BatchScanRegions": self._batch_scan_regions,
            "UpdateServiceGCSafePoint": self._update_safe_point,
            "SetGCBarrier": self._set_barrier,
            "DeleteGCBarrier": self._delete_barrier,
            "GetGCState": lambda _: self._gc_state(),
        }

    def knows(self, method: str) -> bool:
        """Whether this is a unary method that it answers."""
        return method in self._methods

    def answer(self, method: str, request: bytes) -> bytes:
        """InvalidInput for another cluster's requests, CorruptObject for bytes that are none."""
        if method != "GetMembers":
            self.check_cluster(request)
        return self._methods[method](request)

    def timestamps(self, request: bytes) -> bytes:
        """The answer to one TsoRequest."""
        self.check_cluster(request)
        count = merged(request, {2: VARINT}).get(2, 0)
        if not 0 < count <= _TIMESTAMPS_MAX:
            raise InvalidInput("tso count should be positive, and not beyond what is kept free")
        last = self._stage.tso(count)
        stamp = uint(1, ts.physical_ms(last)) + uint(2, ts.logical(last))
        return self._head() + uint(2, count) + message(3, stamp)

    def check_cluster(self, request: bytes) -> None:
        """InvalidInput when a request is for another cluster."""
        asked = merged(merged(request, {1: BYTES}).get(1, b""), {1: VARINT}).get(1, 0)
        if asked != self._recording.cluster_id:
            raise InvalidInput(f"mismatch cluster id, need {self._recording.cluster_id} but got {asked}")

    # -- the answers -----------------------------------------------------------------------------------------------

    def _head(self, error: str = "") -> bytes:
        text = message(2, uint(1, _REQUEST_REFUSED) + octets(2, error.encode())) if error else b""
        return message(1, uint(1, self._recording.cluster_id) + text)

    def _members(self) -> bytes:
        url = f"http://{self._address}".encode()
        member = octets(1, b"replay") + uint(2, 1) + octets(3, url) + octets(4, url)
        return self._head() + message(2, member) + message(3, member)

    def _stores(self) -> bytes:
        recorded = self._recording.stores[0][1]
        for line, answer in self._recording.stores:
            if line < self._stage.line:
                recorded = answer
        out = self._head()
        for _, store in fields(recorded, {2: BYTES}):
            said = merged(store, {1: VARINT, 3: VARINT, 5: BYTES})
            address = octets(2, self._store_addresses[said[1]].encode())
            out += message(2, uint(1, said[1]) + address + uint(3, said.get(3, 0)) + octets(5, said.get(5, b"")))
        return out

    def _region(self, request: bytes) -> bytes:
        key = merged(request, {2: BYTES}).get(2, b"")
        tile = self._tiles(key, b"", 1)[0]
        return self._head() + message(2, _region(tile)) + message(3, _leader(tile))

    def _scan_regions(self, request: bytes) -> bytes:
        said = merged(request, {2: BYTES, 3: VARINT, 4: BYTES})
        return self._head() + b"".join(
            message(4, message(1, _region(tile)) + message(2, _leader(tile)))
            for tile in self._tiles(said.get(2, b""), said.get(4, b""), said.get(3, 0))
        )

    def _batch_scan_regions(self, request: bytes) -> bytes:
        limit = merged(request, {4: VARINT}).get(4, 0)
        out = self._head()
        for _, body in fields(request, {3: BYTES}):
            key_range = merged(body, {1: BYTES, 2: BYTES})
            for tile in self._tiles(key_range.get(1, b""), key_range.get(2, b""), limit):
                out += message(2, message(1, _region(tile)) + message(2, _leader(tile)))
        return out

    def _tiles(self, start: bytes, end: bytes, limit: int) -> list[Tile]:
        wanted = plain_range(start, end)
        out: list[Tile] = []
        for tile in self._stage.plan.tiles(self._stage.line, wanted.start, wanted.end):
            out.append(tile)
            if len(out) == limit:
                break
        return out

    # -- history ---------------------------------------------------------------------------------------------------

    def _update_safe_point(self, request: bytes) -> bytes:
        said = merged(request, {2: BYTES, 3: VARINT, 4: VARINT})
        self._hold(said.get(2, b""), said.get(4, 0), said.get(3, 0))
        lowest = octets(2, _GC_WORKER) + uint(3, _TTL_FOREVER) + uint(4, self._recording.start_ts)
        return self._head() + lowest

    def _set_barrier(self, request: bytes) -> bytes:
        said = merged(request, {3: BYTES, 4: VARINT, 5: VARINT})
        name, stamp, ttl_s = said.get(3, b""), said.get(4, 0), said.get(5, 0)
        if stamp < self._recording.start_ts:
            return self._head("[PD:gc:ErrGCBarrierTSBehindTxnSafePoint]the recording does not go back that far")
        self._hold(name, stamp, ttl_s)
        return self._head() + message(2, octets(1, name) + uint(2, stamp) + uint(3, ttl_s))

    def _delete_barrier(self, request: bytes) -> bytes:
        self._hold(merged(request, {3: BYTES}).get(3, b""), 0, 0)
        return self._head()

    def _gc_state(self) -> bytes:
        start = self._recording.start_ts
        barriers = b"".join(message(5, octets(1, name) + uint(2, stamp)) for name, stamp in self._holds.items())
        scope = message(1, uint(1, _NULL_KEYSPACE))
        return self._head() + message(2, scope + uint(3, start) + uint(4, start) + barriers)

    def _hold(self, name: bytes, stamp: int, ttl_s: int) -> None:
        if 0 < ttl_s < 1 << 63 and stamp >= self._recording.start_ts:
            self._holds[name] = stamp
        else:
            self._holds.pop(name, None)


def _region(tile: Tile) -> bytes:
    region = tile.region
    epoch = message(4, uint(1, region.conf_ver) + uint(2, region.version))
    keys = octets(2, region_form(tile.range.start)) + octets(3, region_form(tile.range.end))
    return uint(1, region.region_id) + keys + epoch + b"".join(message(5, peer) for peer in region.peers)


def _leader(tile: Tile) -> bytes:
    return tile.region.peer_on(tile.store_id)
