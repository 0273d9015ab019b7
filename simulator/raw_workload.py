"""A random RawKV workload on the modelled cluster, with the truth about what it wrote.

    workload = RawWorkload(seed, raw_cluster(profile, floor_ts=S), profile)
    workload.step()          writes, or something that happens to regions, stores and PD; a sentence about it
    workload.tick()          a fresh timestamp of PD, to be given to `Cluster.tick` at once
    workload.versions        key -> its writes, in the order in which they were applied
    workload.drain()         nothing is in flight, PD is there

It has the interface of `simulator.workload.Workload` and, like it, owns the timestamp oracle of the cluster: stores get
timestamps from it every RENEW_MS of its time, unless PD is away. Deterministic.
"""

from __future__ import annotations

import random
from bisect import insort
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from simulator.core.causal import HYBRID_RENEW_MS, RENEW_MS, Hlc, NotSynced, Timestamps, TsoCache
from simulator.core.cluster import Cluster, Region
from simulator.core.raw_writes import RawWrites, Write
from simulator.profiles import Weights, weights
from simulator.topology import Topology
from simulator.transactions import Tso
from tistream import ts as tso
from tistream.codec.raw.keys import KeyMode, keyspace_prefix, keyspace_range
from tistream.errors import InvalidInput
from tistream.keyrange import KeyRange
from tistream.model.change import Op

_STORM = weights("put 60, apply 12, split 6, merge 5, move_leader 8, kill_store 1, start_store 3, pd_away 1")
_TRIES = 30  # of an action that turns out to be possible
_PD_AWAY_MS = 4000  # at most: longer than a cache of timestamps lasts


@dataclass(frozen=True, slots=True, kw_only=True)
class RawProfile:
    """A kind of workload. Weights are relative, probabilities between 0 and 1."""

    name: str = "raw"
    stores: int = 3
    keyspaces: tuple[int, ...] = (1, 2)
    keys: int = 12  #: of a keyspace
    puts: int = 1  #: writes of a step
    value_bytes: int = 8
    deletes: float = 0.2
    expiries: float = 0.3
    expiry_max_s: int = 100
    hot: float = 0.3  #: writes that go to the first key of a keyspace
    delayed: float = 0.3  #: writes that stay in flight
    hybrid: bool = False  #: stores have hybrid logical clocks, not caches of timestamps
    actions: Weights = _STORM


STEADY = RawProfile(name="raw_steady", actions=weights("put 1"), delayed=0.0)


@dataclass(frozen=True, slots=True, order=True)
class RawRow:
    """A write that was applied."""

    commit_ts: int
    key: bytes  #: with mode and keyspace
    op: Op
    value: bytes | None
    expire_ts: int  #: Unix seconds; 0 = never


def raw_cluster(profile: RawProfile, *, floor_ts: int, regions: int = 1) -> Cluster:
    """An empty cluster: all keyspaces of the profile lie in one region, or in about `regions` of them each."""
    bounds = [KeyMode.RAW.value, b"s"]
    for keyspace in profile.keyspaces if regions > 1 else ():
        bounds += [_key(keyspace, profile.keys * i // regions) for i in range(regions)]
    bounds.sort()
    return Cluster(
        [
            Region(region_id=i + 1, version=1, store_id=i % profile.stores + 1, range=KeyRange(start, end))
            for i, (start, end) in enumerate(zip([b"", *bounds], [*bounds, b""], strict=True))
        ],
        floor_ts=floor_ts,
    )


def _key(keyspace: int, number: int) -> bytes:
    return keyspace_prefix(KeyMode.RAW, keyspace) + b"k%08d" % number


class RawWorkload:
    """See the module. `cluster` is new; the workload is the only one that changes it."""

    def __init__(self, seed: int, cluster: Cluster, profile: RawProfile) -> None:
        rand = self._rand = random.Random(seed)
        self._profile, self._cluster = profile, cluster
        clock: Callable[[], Timestamps] = Hlc if profile.hybrid else TsoCache
        self.writes = RawWrites(cluster, clock, self._note)
        self.versions: dict[bytes, list[RawRow]] = {}
        self.committed: list[RawRow] = []  #: writes of the first keyspace, by timestamp
        self.disorder = ""  #: a write that a store would have put below an older one: its clock is wrong
        self.refused = 0  #: writes for which a store had no timestamp
        self._tso = Tso(cluster, rand)
        self._topology = Topology(cluster, rand, stores=profile.stores, changes=self.writes)
        self._pd_back_ms = 0
        self._renew_ms = HYBRID_RENEW_MS if profile.hybrid else RENEW_MS
        self._due_ms = dict.fromkeys(range(1, profile.stores + 1), 0)  # when a store asks PD again
        self._followed = keyspace_range(KeyMode.RAW, profile.keyspaces[0])
        self._number = 0
        self._names, self._weights = zip(*profile.actions, strict=True)
        self._actions: dict[str, Callable[[], str]] = {
            "put": self._put,
            "apply": self._apply_some,
            "split": lambda: self._topology.split([_key(rand.choice(profile.keyspaces), n) for n in self._numbers()]),
            "merge": self._topology.merge,
            "move_leader": self._topology.move_leader,
            "kill_store": self._topology.kill_store,
            "start_store": self._topology.start_store,
            "pd_away": self._pd_away,
        }
        self._renew(0)

    def step(self) -> str:
        """One random thing happens; a sentence about it."""
        try:
            for _ in range(_TRIES):
                if sentence := self._actions[self._rand.choices(self._names, self._weights)[0]]():
                    return sentence
        except InvalidInput as e:
            self.disorder = self.disorder or str(e)
        return "nothing"

    def tick(self) -> int:
        """A fresh timestamp, below everything committed later. Give it to `Cluster.tick` before a step."""
        return self._tso.tick()

    @property
    def last_ts(self) -> int:
        """The largest timestamp that the oracle has given."""
        return self._tso.last

    def advance_to(self, ts: int) -> None:
        """Time passes: the oracle gives nothing at or below `ts` any more, and stores renew their timestamps."""
        self._tso.last = max(self._tso.last, ts)
        now_ms = tso.physical_ms(self._tso.last)
        if now_ms >= self._pd_back_ms and now_ms >= min(self._due_ms.values()):
            self._renew(now_ms)

    def add_store(self, store_id: int) -> None:
        """A new store, which leads nothing yet."""
        self._topology.add_store(store_id)
        self._due_ms[store_id] = 0

    def drain(self) -> None:
        """Apply what is in flight; PD is there."""
        self._pd_back_ms = 0
        self._renew(max(self._due_ms.values()))
        for region in self._cluster.regions():
            self._apply(region.region_id)

    def schema_snapshot(self) -> Mapping[str, object]:
        """A keyspace has no schema."""
        return {}

    def shows(self, row: object) -> bool:
        """Every row is a change."""
        return True

    # -- inside ----------------------------------------------------------------------------------------------------

    def _numbers(self) -> range:
        return range(1, self._profile.keys)

    def _renew(self, now_ms: int) -> None:
        """PD gives timestamps to the living stores that are due."""
        for store_id, due_ms in self._due_ms.items():
            if due_ms > now_ms or store_id in self._cluster.dead_stores:
                continue
            self._due_ms[store_id] = now_ms + self._rand.randrange(self._renew_ms // 2, self._renew_ms + 1)
            clock = self.writes.clock(store_id)
            count = clock.wanted() if isinstance(clock, TsoCache) else 1
            first = self._tso.next()
            self._tso.last = first + count - 1
            clock.renewed(first, count)

    def _put(self) -> str:
        profile, rand = self._profile, self._rand
        done = ""
        for _ in range(profile.puts):
            number = 0 if rand.random() < profile.hot else rand.randrange(profile.keys)
            key = _key(rand.choice(profile.keyspaces), number)
            self._number += 1
            value = None if rand.random() < profile.deletes else b"%0*d" % (profile.value_bytes, self._number)
            expire_ts = 0
            if value is not None and rand.random() < profile.expiries:
                expire_ts = tso.physical_ms(self._tso.last) // 1000 + rand.randrange(1, self._profile.expiry_max_s)
            try:
                write = self.writes.propose(key, value, expire_ts)
            except NotSynced:
                self.refused += 1
                done = f"a write of {key!r} is refused: its store has no timestamp"
                continue
            done = f"{key!r} is written at {write.ts}"
            if rand.random() >= profile.delayed:
                self._apply(self._cluster.region_of(key).region_id)
        return done

    def _apply_some(self) -> str:
        busy = [r.region_id for r in self._cluster.regions() if self.writes.in_flight(r.region_id)]
        return self._apply(self._rand.choice(busy)) if busy else ""

    def _apply(self, region_id: int) -> str:
        while self.writes.apply(region_id):
            pass
        return f"region {region_id} applies its writes"

    def _note(self, write: Write) -> None:
        """A store has applied a write."""
        op = Op.DELETE if write.value is None else Op.PUT
        row = RawRow(write.ts, write.key, op, write.value, write.expire_ts)
        self.versions.setdefault(write.key, []).append(row)
        if row.key in self._followed:
            insort(self.committed, row)

    def _pd_away(self) -> str:
        self._pd_back_ms = tso.physical_ms(self._tso.last) + self._rand.randrange(_PD_AWAY_MS)
        return "PD is away"
