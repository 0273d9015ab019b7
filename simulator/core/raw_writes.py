"""RawKV writes of a modelled cluster: a store stamps, replicates and applies them, and resolves its regions.

    propose    the leader takes a timestamp from its store; the write is in flight
    apply      it becomes a version, in the order of proposals in its region; `Cluster` sends it to subscribers
    resolved   below the smallest timestamp in flight, else a fresh timestamp of the store

Writes of one key must have rising timestamps whatever regions and leaders do, and nothing at or below a resolved ts of
its region may be applied after it. So:

- Region-Max-TS, the largest timestamp applied in a region, is known to all its peers: a split copies it to the new
  regions, a merge takes the larger one, and a store learns it before it leads the region;
- a region that changed its leader, or took over another region's keys, is not written and not resolved before its store
  has got a timestamp from PD, if its clock needs one;
- a resolved ts raises Region-Max-TS too. The RFC of the hybrid clock does not say so: without it the next leader, whose
  clock may be behind, stamps writes below what was resolved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from simulator.core.causal import NotSynced, Timestamps
from simulator.core.cluster import Cluster, Region
from simulator.core.mvcc import Version
from tistream.keyrange import KeyRange
from tistream.model.change import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """A write in flight."""

    key: bytes
    ts: int
    value: bytes | None  #: None: a delete
    expire_ts: int = 0  #: Unix seconds; 0 = never


class RawWrites:
    """The stores' part of RawKV over a cluster; all changes of regions go through it."""

    def __init__(
        self,
        cluster: Cluster,
        clock: Callable[[], Timestamps],
        applied: Callable[[Write], None] = lambda write: None,
    ) -> None:
        """`clock` makes the timestamps of a store. `applied` is called with each write that has become a version."""
        self.cluster, self._applied = cluster, applied
        self._clock = clock
        self._clocks: dict[int, Timestamps] = {}
        self._flights: dict[int, list[Write]] = {}  # region id -> in flight, in the order of proposals
        self._max_ts: dict[int, int] = {}  # region id -> Region-Max-TS
        cluster.raw_resolved = self.resolved

    def clock(self, store_id: int) -> Timestamps:
        """The timestamps of a store."""
        return self._clocks.setdefault(store_id, self._clock())

    def in_flight(self, region_id: int) -> Sequence[Write]:
        """The writes of a region that are not applied."""
        return tuple(self._flights.get(region_id, ()))

    # -- writes ----------------------------------------------------------------------------------------------------

    def propose(self, key: bytes, value: bytes | None, expire_ts: int = 0) -> Write:
        """Begin a write; None deletes. NotSynced when the store has no timestamp."""
        region = self.cluster.region_of(key)
        write = Write(key=key, ts=self.clock(region.store_id).take(), value=value, expire_ts=expire_ts)
        self._flights.setdefault(region.region_id, []).append(write)
        return write

    def apply(self, region_id: int) -> Write | None:
        """Apply the oldest write in flight; None when there is none."""
        flights = self._flights.get(region_id)
        if not flights:
            return None
        write = flights.pop(0)
        op = Op.DELETE if write.value is None else Op.PUT
        version = Version(write.ts, write.ts, op, write.value, None, expire_ts=write.expire_ts)
        self.cluster.commit_one_phase(write.key, version)
        self._raise(region_id, write.ts)
        self._applied(write)
        return write

    def scan(self, wanted: KeyRange) -> Iterator[tuple[bytes, bytes, int]]:
        """What RawScan gives, with the expiry: (key, value, Unix seconds or 0), expired entries too."""
        for key, value in self.cluster.snapshot(wanted, self.cluster.now_ts):
            assert isinstance(value, bytes)  # RawKV has no locks
            yield key, value, self.cluster.versions(key)[-1].expire_ts

    def resolved(self, region_id: int) -> int | None:
        """A resolved ts of the region; None while its store has no timestamp."""
        flights = self._flights.get(region_id)
        try:
            now_ts = self.clock(self.cluster.region(region_id).store_id).take()
        except NotSynced:
            return None
        resolved_ts = min([now_ts, *(write.ts - 1 for write in flights or ())])
        self._raise(region_id, resolved_ts)
        return resolved_ts

    # -- regions ---------------------------------------------------------------------------------------------------

    def move_leader(self, region_id: int, to_store: int) -> Region:
        """Another store leads the region, once it has applied what was in flight."""
        self._settle(region_id)
        moved = self.cluster.move_leader(region_id, to_store)
        self.clock(to_store).led_elsewhere(self._max_ts.get(region_id, 0))
        return moved

    def kill_store(self, store_id: int, heirs: Mapping[int, int]) -> None:
        """A store dies, with its clock and what its regions had in flight. `heirs`: region -> store that leads it."""
        for region_id in heirs:
            self._flights.pop(region_id, None)
        self.cluster.kill_store(store_id, heirs)
        self._clocks.pop(store_id, None)
        for region_id, heir in heirs.items():
            self.clock(heir).led_elsewhere(self._max_ts.get(region_id, 0))

    def split(self, region_id: int, keys: Sequence[bytes], new_ids: Sequence[int]) -> list[Region]:
        """Cut a region at keys, once it has applied what was in flight."""
        self._settle(region_id)
        parts = self.cluster.split(region_id, keys, new_ids)
        for part in parts:
            self._raise(part.region_id, self._max_ts.get(region_id, 0))
        return parts

    def merge(self, source_id: int, target_id: int) -> Region:
        """The right neighbour takes over the left one's keys, which another store may have written."""
        self._settle(source_id)
        self._settle(target_id)
        target = self.cluster.region(target_id)
        if self.cluster.region(source_id).store_id != target.store_id:
            self.cluster.move_leader(source_id, target.store_id)
        merged = self.cluster.merge(source_id, target_id)
        self._raise(target_id, self._max_ts.pop(source_id, 0))
        self.clock(merged.store_id).led_elsewhere(self._max_ts.get(target_id, 0))
        return merged

    def _settle(self, region_id: int) -> None:
        while self.apply(region_id):
            pass

    def _raise(self, region_id: int, ts: int) -> None:
        self._max_ts[region_id] = max(ts, self._max_ts.get(region_id, 0))
