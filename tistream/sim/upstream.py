"""The upstream of a run: a model of TiKV with a random workload, and the feed of one of its stores.

`SimSource` is `ModelSource` with time in it: it waits for its next tick, and between asking for a frontier (which may
take long) and registering it looks again whether the region is still as it was.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from tistream.change import Op
from tistream.keyrange import KeyRange
from tistream.pusher.model_source import ModelSource, _batch
from tistream.pusher.source import CheckpointOf, Rows, SourceEvent, TenureOpened, TenureReady
from tistream.sim.scheduler import Scheduler
from tistream.simulator.cluster import Cluster, Region, Subscription
from tistream.simulator.mvcc import Lock, Version


@dataclass(frozen=True, slots=True, order=True)
class Committed:
    """A row of the truth."""

    commit_ts: int
    start_ts: int
    key: bytes
    op: int
    value: bytes | None
    old_value: bytes | None


@dataclass(slots=True)
class _Txn:
    start_ts: int
    keys: list[bytes]
    flushes: int = 0
    locked: bool = False


class Workload:
    """Random transactions and region changes. `committed` is the truth, in the order in which it happened."""

    def __init__(
        self, rand: random.Random, cluster: Cluster, keys: Sequence[bytes], stores: int, tso: Callable[[], int]
    ) -> None:
        self._rand, self.cluster, self._keys, self._stores, self._tso = rand, cluster, keys, stores, tso
        self._open: list[_Txn] = []
        self._ids = iter(range(100, 1 << 30))
        self._n = 0
        self.committed: list[Committed] = []

    def step(self) -> str:
        """Do one thing; what it was."""
        steps: tuple[tuple[int, Callable[[], str]], ...] = (
            (5, self._begin),
            (8, self._prewrite),
            (8, self._commit),
            (2, self._rollback),
            (3, self._one_phase),
            (2, self._move),
            (1, self._split),
            (1, self._merge),
        )
        return self._rand.choices([s for _, s in steps], [w for w, _ in steps])[0]()

    def settle(self) -> None:
        """Decide everything that is open."""
        while self._open:
            txn = self._open.pop()
            if txn.locked:
                self._finish(txn)

    def _begin(self) -> str:
        if len(self._open) > 4:
            return self._commit()
        keys = self._rand.sample(self._keys, self._rand.randint(1, 3))
        self._open.append(_Txn(start_ts=self._tso(), keys=sorted(keys)))
        return f"begin {self._open[-1].start_ts}"

    def _prewrite(self) -> str:
        if not self._open:
            return self._begin()
        txn = self._rand.choice(self._open)
        if txn.locked and self._rand.random() < 0.7:
            return self._commit()
        held = [self.cluster.lock(key) for key in txn.keys]
        newest = [v[-1].commit_ts for key in txn.keys if (v := self.cluster.versions(key))]
        blocked = any(lock is not None and lock.start_ts != txn.start_ts for lock in held)
        if blocked or any(ts > txn.start_ts for ts in newest):
            return self._undo(txn, txn.locked)
        txn.flushes += 1
        for key in txn.keys:
            self._n += 1
            old = self.cluster.read(key, txn.start_ts)
            delete = old is not None and self._rand.random() < 0.2
            lock = Lock(
                start_ts=txn.start_ts,
                op=Op.DELETE if delete else Op.PUT,
                value=None if delete else f"v{self._n}".encode(),
                old_value=old,
                generation=txn.flushes if txn.flushes > 1 else 0,
            )
            self.cluster.prewrite(key, lock)
        txn.locked = True
        return f"prewrite {txn.start_ts} {_names(txn.keys)}"

    def _commit(self) -> str:
        ready = [t for t in self._open if t.locked]
        if not ready:
            return "nothing"
        txn = self._rand.choice(ready)
        self._open.remove(txn)
        return self._finish(txn)

    def _finish(self, txn: _Txn) -> str:
        commit_ts = self._tso()
        for key in txn.keys:
            lock = self.cluster.lock(key)
            assert lock is not None
            self.cluster.commit(key, start_ts=txn.start_ts, commit_ts=commit_ts)
            self.committed.append(Committed(commit_ts, txn.start_ts, key, lock.op, lock.value, lock.old_value))
        return f"commit {txn.start_ts} at {commit_ts} {_names(txn.keys)}"

    def _rollback(self) -> str:
        if not self._open:
            return "nothing"
        txn = self._rand.choice(self._open)
        return self._undo(txn, txn.locked or self._rand.random() < 0.3)

    def _undo(self, txn: _Txn, send: bool) -> str:
        self._open.remove(txn)
        if send:
            for key in txn.keys:
                self.cluster.rollback(key, start_ts=txn.start_ts)
        return f"rollback {txn.start_ts}"

    def _one_phase(self) -> str:
        key = self._rand.choice(self._keys)
        if self.cluster.lock(key) is not None:
            return "nothing"
        self._n += 1
        start_ts, old = self._tso(), self.cluster.read(key, 1 << 62)
        version = Version(start_ts, self._tso(), Op.PUT, f"v{self._n}".encode(), old)
        self.cluster.commit_one_phase(key, version)
        self.committed.append(Committed(version.commit_ts, start_ts, key, version.op, version.value, old))
        return f"1pc at {version.commit_ts} {_names([key])}"

    def _move(self) -> str:
        region = self._rand.choice(self.cluster.regions())
        to = self._rand.randint(1, self._stores)
        self.cluster.move_leader(region.region_id, to)
        return f"leader of region {region.region_id} moves from store {region.store_id} to {to}"

    def _split(self) -> str:
        key = self._rand.choice(self._keys)
        region = self.cluster.region_of(key)
        if key == region.range.start or len(self.cluster.regions()) > 9:
            return "nothing"
        self.cluster.split(region.region_id, [key], [next(self._ids)])
        return f"region {region.region_id} splits at {_names([key])}"

    def _merge(self) -> str:
        regions = self.cluster.regions()
        at = self._rand.randrange(len(regions))
        if at + 1 == len(regions):
            return "nothing"
        left, right = regions[at], regions[at + 1]
        if left.store_id != right.store_id:
            self.cluster.move_leader(left.region_id, right.store_id)
        self.cluster.merge(left.region_id, right.region_id)
        return f"region {left.region_id} merges into {right.region_id} on store {right.store_id}"


class SimSource(ModelSource):
    """The change feed of one store for one pusher process."""

    def __init__(
        self, cluster: Cluster, store_id: int, scheduler: Scheduler, tso: Callable[[], int], tick_s: float
    ) -> None:
        super().__init__(cluster, store_id)
        self._scheduler, self._tso, self._tick_s = scheduler, tso, tick_s
        self._due = scheduler.now + tick_s * 0.5

    def poll(self, timeout_s: float, checkpoint_of: CheckpointOf) -> Sequence[SourceEvent]:
        s = self._scheduler
        s.sleep(max(0.001, min(timeout_s, self._due - s.now)))
        if s.now >= self._due and not self._dropped:
            self._due = s.now + self._tick_s
            cut_ts = self._tso()
            self._cluster.tick(cut_ts)
            self.tick(cut_ts)
        return super().poll(0.0, checkpoint_of)

    def _registered(self, checkpoint_of: CheckpointOf) -> Iterator[SourceEvent]:
        taken = {s.region.region_id for s in self._tenures.values()}
        for region in self._cluster.regions(self._store_id):
            if region.region_id in taken:
                continue
            checkpoint_ts = checkpoint_of(region.range)
            now = self._cluster.region_of(region.range.start)
            if checkpoint_ts is None or now != region or self._dropped:
                continue  # the region changed while the frontier was asked for
            yield from self._register(region, checkpoint_ts)

    def _register(self, region: Region, checkpoint_ts: int) -> Iterator[SourceEvent]:
        tenure = next(self._ids)
        made: Subscription = self._cluster.register(region.region_id, region.version, checkpoint_ts)
        self._tenures[tenure] = made
        yield TenureOpened(
            tenure=tenure,
            region_id=region.region_id,
            version=region.version,
            range=region.range,
            checkpoint_ts=checkpoint_ts,
            open_ts=made.open_ts,
        )
        if len(made.rows):
            yield Rows(tenure=tenure, rows=_batch(made.take_rows()))
        yield TenureReady(tenure=tenure, ready_ts=self._cluster.now_ts)


def regions(bounds: Sequence[bytes], stores: int) -> list[Region]:
    """Regions that tile the key space at these bounds, their leaders spread over the stores."""
    edges = [b"", *bounds, b""]
    return [
        Region(region_id=i + 1, version=1, store_id=i % stores + 1, range=KeyRange(edges[i], edges[i + 1]))
        for i in range(len(edges) - 1)
    ]


def _names(keys: Sequence[bytes]) -> str:
    return " ".join(f"t{int.from_bytes(k[1:9], 'big') & 0xFFFF}/r{int.from_bytes(k[11:19], 'big') & 0xFFFF}" for k in keys)
