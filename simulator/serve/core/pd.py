"""PD's answers for the modelled cluster: the current state, or, once `refresh` was called, the state at that time.

Pure; its owner holds the model's lock around every call.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import takewhile

from simulator.core.cluster import Cluster, Region
from simulator.loopback.core.feed_wire import region_form
from simulator.loopback.core.pd import PdAnswers
from simulator.serve.core.regions import meta, peer
from simulator.serve.faults import CALM
from tistream.keyrange import KeyRange
from tistream.tikv.core import wire

STORE_VERSION = "8.5.4"


class ServedPd(PdAnswers):
    """The answers. `tso`: issues that many timestamps and returns the last. `boundary`: how PD writes a key."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        cluster_id: int,
        address: str,
        store_addresses: Mapping[int, str],
        tso: Callable[[int], int],
        keyspaces: Mapping[str, int] | None = None,
        dice: Callable[[], float] = lambda: 1.0,
        boundary: Callable[[bytes], bytes] = region_form,
    ) -> None:
        super().__init__(address, keyspaces)
        self._boundary = boundary
        self._dice = dice
        self._seen: list[Region] | None = None
        self._starts: list[bytes] = []
        self.faults = CALM
        self._cluster, self._cluster_id, self._store_addresses, self._tso = cluster, cluster_id, store_addresses, tso
        self._kept_from_ts = cluster.floor_ts

    @property
    def cluster_id(self) -> int:
        return self._cluster_id

    @property
    def kept_from_ts(self) -> int:
        return self._kept_from_ts

    def collect_garbage(self, upto_ts: int) -> int:
        """Advance the safe point, not beyond a hold; returns it. Nothing is removed from the model."""
        self._kept_from_ts = max(self._kept_from_ts, min([upto_ts, *self.holds.values()]))
        return self._kept_from_ts

    def stores(self) -> Sequence[wire.MetaStore]:
        return [wire.MetaStore(id=s, address=a, version=STORE_VERSION) for s, a in self._listed().items()]

    def refresh(self, *, late: bool) -> None:
        """The stores have reported their regions to PD. `late`: PD answers with these until the next report."""
        self._seen = self._cluster.regions() if late else None
        self._starts = [r.range.start for r in self._seen or ()]

    def regions(self, wanted: KeyRange) -> Iterator[wire.PdRegion]:
        stores = tuple(self._listed())
        for region in self._known(wanted):
            dice = self._dice()
            if dice >= self.faults.pd_missing + self.faults.pd_leaderless:
                yield wire.PdRegion(
                    region=meta(region, stores, self._boundary), leader=peer(region.region_id, region.store_id)
                )
            elif dice >= self.faults.pd_missing:
                yield wire.PdRegion(region=meta(region, stores, self._boundary))

    def _listed(self) -> Mapping[int, str]:
        """The addresses of the stores. A removed one is a tombstone, which PD leaves out."""
        return {s: a for s, a in self._store_addresses.items() if s not in self._cluster.removed_stores}

    def _known(self, wanted: KeyRange) -> Iterator[Region]:
        if self._seen is None:
            return self._cluster.regions_touching(wanted)
        first = bisect_right(self._starts, wanted.start) - 1
        return takewhile(lambda r: r.range.intersect(wanted) is not None, self._seen[first:])

    def tso(self, count: int) -> int:
        return self._tso(count)

    def range_of(self, start: bytes, end: bytes) -> KeyRange:
        return super().range_of(start, end) if self._boundary is region_form else KeyRange(start, end)
