"""What PD answers for the modelled cluster. Pure; its owner holds the model's lock around every call."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from tistream.keyrange import KeyRange
from tistream.simulator.cluster import Cluster
from tistream.simulator.loopback.pd import PdAnswers, PdRegion, PdStore
from tistream.simulator.serve.regions import listed

STORE_VERSION = b"8.5.4"


class ServedPd(PdAnswers):
    """The answers. `tso`: gives so many timestamps, the last of which comes back."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        cluster_id: int,
        address: str,
        store_addresses: Mapping[int, str],
        tso: Callable[[int], int],
        keyspaces: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(address, keyspaces)
        self._cluster, self._cluster_id, self._store_addresses, self._tso = cluster, cluster_id, store_addresses, tso
        self._kept_from_ts = cluster.floor_ts

    @property
    def cluster_id(self) -> int:
        return self._cluster_id

    @property
    def kept_from_ts(self) -> int:
        return self._kept_from_ts

    def collect_garbage(self, upto_ts: int) -> int:
        """Move the safe point up, not beyond what is held; where it is then. Nothing is taken from the model."""
        self._kept_from_ts = max(self._kept_from_ts, min([upto_ts, *self.holds.values()]))
        return self._kept_from_ts

    def stores(self) -> Sequence[PdStore]:
        return [PdStore(store_id=s, address=a, version=STORE_VERSION) for s, a in self._store_addresses.items()]

    def regions(self, wanted: KeyRange) -> Iterator[PdRegion]:
        stores = tuple(self._store_addresses)
        return (listed(region, stores) for region in self._cluster.regions_touching(wanted))

    def tso(self, count: int) -> int:
        return self._tso(count)
