"""Random changes of the regions and stores of the modelled cluster. Each method does one; "" when none is possible.

Region ids are never used twice; one store stays alive; a merge first brings both regions to one store, as PD
does.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from itertools import pairwise

from simulator.core.cluster import Cluster
from simulator.core.raw_writes import RawWrites


class Topology:
    """Changes `cluster`, which has the stores 1 .. `stores`; `changes` carries it out where RawKV is written."""

    def __init__(self, cluster: Cluster, rand: random.Random, *, stores: int, changes: RawWrites | None = None) -> None:
        self._cluster = cluster
        self._changes = changes or cluster
        self._rand = rand
        self._stores = list(range(1, stores + 1))
        self._next_id = max(r.region_id for r in cluster.regions())

    def add_store(self, store_id: int) -> None:
        """A new store may lead regions, die and come back from now on."""
        self._stores.append(store_id)

    def split(self, keys: Sequence[bytes]) -> str:
        """Cut a region at one of the keys, or at two."""
        key = self._rand.choice(keys)
        region = self._cluster.region_of(key)
        inside = sorted(k for k in keys if k in region.range and k > region.range.start)
        if not inside:
            return ""
        at = sorted(self._rand.sample(inside, min(len(inside), self._rand.choice((1, 1, 2)))))
        ids = list(range(self._next_id + 1, self._next_id + 1 + len(at)))
        self._next_id = ids[-1]
        self._changes.split(region.region_id, at, ids)
        return f"region {region.region_id} on store {region.store_id} splits into {len(at) + 1}"

    def merge(self) -> str:
        """Two neighbours become one."""
        regions = self._cluster.regions()
        if len(regions) < 3:
            return ""
        left, right = self._rand.choice(list(pairwise(regions)))
        if left.store_id != right.store_id and self._changes is self._cluster:  # RawWrites brings them together itself
            self._cluster.move_leader(left.region_id, right.store_id)
        self._changes.merge(left.region_id, right.region_id)
        return f"region {left.region_id} merges into region {right.region_id} on store {right.store_id}"

    def move_leader(self) -> str:
        region = self._rand.choice(self._cluster.regions())
        others = [s for s in self._alive() if s != region.store_id]
        if not others:
            return ""
        to = self._rand.choice(others)
        self._changes.move_leader(region.region_id, to)
        return f"the leader of region {region.region_id} moves from store {region.store_id} to store {to}"

    def kill_store(self) -> str:
        alive = self._alive()
        if len(alive) < 2:
            return ""
        store_id = self._rand.choice(alive)
        others = [s for s in alive if s != store_id]
        heirs = {r.region_id: self._rand.choice(others) for r in self._cluster.regions(store_id)}
        self._changes.kill_store(store_id, heirs)
        return f"store {store_id} dies, {len(heirs)} regions get new leaders"

    def start_store(self) -> str:
        dead = sorted(self._cluster.dead_stores - self._cluster.removed_stores)
        if not dead:
            return ""
        store_id = self._rand.choice(dead)
        self._cluster.start_store(store_id)
        return f"store {store_id} comes back"

    def _alive(self) -> list[int]:
        return [s for s in self._stores if s not in self._cluster.dead_stores]
