"""Cores of two tasks fed by a small TiKV (`sorter_world`), and the promises checked after every step.

- what is written out in (durable_ts, W] is exactly what was committed there: nothing missing, nothing twice, in order;
- no W that was written ever falls, and nothing appears below it later;
- the invariants of the cores hold after every batch;
- until its first restart a core has the watermark of the dict-based oracle and writes the same rows;
- when everything has been delivered and the upstream is quiet, the watermark catches up and nothing is left behind.

Each step is a method; `random_step` chooses one. A restart throws the cores away and continues from the last snapshot
and the positions that were saved with it, as a new owner would. A file that was read before may be unreadable by then.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from functools import partial

from sorter.core.prewrite_buffer import Undecided
from sorter.core.task_core import CoreSnapshot, NeedResubscribe, TaskCore
from sorter.state.saving import Save
from sorter.state.snapshot import objects_named_by, read_state_file
from sorter.worker.stored_core import loaded
from tests.kit.routed import routed
from tests.kit.sorter_oracle import PUT, OracleSorter, P, Row
from tests.kit.sorter_states import Bucket, SnapshotFiles
from tests.kit.sorter_world import File, World, feed_batch, served
from tistream.feed.protocol import FeedBatch
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.model.positions import position_of
from tistream.objectstore.layout import SnapshotKey

KEYS = [b"a", b"b", b"m", b"x"]
EDGES = [b"b", b"c", b"m", b"n", b"x"]
RANGES = {1: KeyRange(b"", b"m"), 2: KeyRange(b"m", b"")}
START_TS = 10
STORES = 2


@dataclass
class Durable:
    """What survives a restart of a task."""

    durable_ts: int
    snapshot: CoreSnapshot | None = None  #: as it is read back from the bucket


class SorterRun:
    """A run in progress."""

    def __init__(self) -> None:
        self.bucket = Bucket()
        self.files = {task: SnapshotFiles(task, self.bucket) for task in RANGES}
        self.ranges = dict(RANGES)
        self.durable = {task: Durable(START_TS) for task in RANGES}
        self.world = World(KEYS, STORES, START_TS, lambda: min(d.durable_ts for d in self.durable.values()))
        self.cores = {task: self._new_core(task) for task in RANGES}
        self.oracles = {task: OracleSorter(r.start, r.end, START_TS) for task, r in RANGES.items()}  # until a restart
        self.rows = 0  #: written out so far
        self.resubscribed = 0
        self.slices = 0  #: of decisions that took several
        self._n = 1 << 40  # of the last snapshot that is not the task's
        self.lost: dict[tuple[int, int], int] = {}  # (store, ended life) -> its first file that is unreadable by now

    # -- the upstream

    def prewrite(self, key: bytes, value: bytes | None, *, old: bool) -> None:
        """A transaction locks the key, or the one that holds the lock writes it again. An old one began long ago."""
        txn = self.world.locked(key) or next(
            (t for t in self.world.txns if old and t.key == key and t.value == b""), None
        )
        self.world.prewrite(txn or self.world.begin(key), value)

    def begin(self, key: bytes) -> None:
        """A transaction starts and does nothing yet."""
        self.world.begin(key)

    def decide(self, key: bytes, *, how: str) -> None:
        """What becomes of the transaction that holds the key's lock."""
        txn = self.world.locked(key)
        if txn is None:
            return
        match how:
            case "fetch":  # asynchronous commit: the timestamp is there long before the row
                txn.commit_ts = txn.commit_ts or self.world.next_ts()
            case "commit":
                self.world.commit(txn)
            case "commit with value":
                self.world.commit(txn, with_value=True)
            case "refresh":
                self.world.repeat_without_value(txn)
            case _:
                if not txn.commit_ts:
                    self.world.roll_back(txn)

    def commit_at_once(self, key: bytes, value: bytes) -> None:
        if self.world.locked(key) is None:
            self.world.commit_at_once(self.world.begin(key), value)

    def overlapped_rollback(self, key: bytes) -> None:
        for txn in self.world.committed(key)[-1:]:
            self.world.overlapped_rollback(key, txn.commit_ts)

    def move(self, region: int, store: int, *, from_its_end: bool) -> None:
        self.world.move(self._region(region), store, from_its_end=from_its_end)

    def split(self, region: int, at: bytes, store: int) -> None:
        self.world.split(self._region(region), at, store)

    def merge(self, left: int, right: int) -> None:
        self.world.merge(self._region(left), self._region(right))

    # -- pushers and the way to the sorter

    def cut(self, store: int, scanned: int) -> None:
        self.world.scan(store, scanned)
        self.world.cut(store)

    def crash_pusher(self, store: int) -> None:
        self.world.crash(store)

    def lose_file(self, task: int, store: int) -> None:
        """The pusher is replaced, and the first file of the old one that the task's snapshot does not cover becomes
        unreadable, read or not: who has not read it sees the life end before it."""
        at = store, self.world.stores[store].incarnation
        self.crash_pusher(store)
        snapshot = self.durable[task].snapshot
        lives = snapshot.positions.get(store, {}) if snapshot is not None else {}
        first = position_of(lives, at[1]).seq + 1
        self.lost[at] = min(first, self.lost.get(at, first))

    def deliver(self, task: int, store: int) -> bool:
        """The next file of the store's oldest unfinished incarnation reaches the task; False when there is none."""
        core = self.cores[task]
        file = self._next_file(core, store)
        if file is None:
            return False
        before = core.watermark()
        batch = self._cut(task, file)
        effects = core.handle(batch)
        while core.settling:
            self._between_slices(task, core)
            effects += core.settle()
        positions = core.positions()
        first = next(f for f in self.world.files[store] if f.incarnation == file.incarnation)
        for again in (file, first if first.seq <= positions[store][file.incarnation].seq else file):
            assert core.handle(self._cut(task, again)) == [], "a repeated file does something"
        assert core.positions() == positions, "a repeated file moves the position"
        core.check()
        after = core.watermark()
        oracle = self.oracles.get(task)
        if oracle is not None and not file.closes:
            oracle.file(file.store_id, file.incarnation, file.cut_ts, file.rows, file.marks)
            assert oracle.watermark() == after, f"W {after}, the oracle says {oracle.watermark()}"
        assert before is None or (after is not None and after >= min(before, core.durable_ts)), "W fell"
        for effect in effects:
            assert isinstance(effect, NeedResubscribe)
            self._is_in_doubt(effect.undecided)
            self._resubscribe(effect.undecided.key)
        return True

    # -- the task

    def flush(self, task: int, *, lands: bool = True, at_most: int | None = None) -> None:
        """Write out what can be, or of that only what lies at or below a timestamp. Without `lands` the outcome stays
        unknown and is tried again later."""
        core = self.cores[task]
        w = core.pending()
        if w is None:
            return
        w = w if at_most is None else min(w, at_most)
        rows = served(core.take(w).table())
        range_ = self.ranges[task]
        truth = [row for row in self.world.truth(core.durable_ts, w) if row.key in range_]
        assert rows == truth, f"task {task} in ({core.durable_ts}, {w}]: served {rows}, committed {truth}"
        if lands:
            self.rows += len(rows)
            self.landed(task, core.durable_ts, w)
            if task in self.oracles and w == core.watermark():
                assert self.oracles[task].flush() == rows, "the oracle writes other rows"
            self.durable[task].durable_ts = w
            core.flushed(w)
            core.check()

    def _between_slices(self, task: int, core: TaskCore) -> None:
        """What could be written now is whole; every third time a snapshot is taken here."""
        w = core.pending()
        if w is not None:
            truth = [row for row in self.world.truth(core.durable_ts, w) if row.key in self.ranges[task]]
            assert served(core.take(w).table()) == truth, f"task {task}: a part of what is committed up to {w}"
        self.slices += 1
        if self.slices % 3 == 0:
            self.snapshot(task)

    def landed(self, task: int, after: int, upto: int) -> None:
        """A flush of (after, upto] is durable. For subclasses."""

    def snapshot(self, task: int, *, lands: bool = True) -> None:
        """Save it. Unless it lands, nobody will hear of it."""
        self.files[task].save(self.cores[task], lands=lands)
        if lands:
            self.durable[task].snapshot = self.files[task].load()

    def restart(self, task: int) -> None:
        self.oracles.pop(task, None)
        self.cores[task] = self._new_core(task)
        self.cores[task].check()

    def finish(self) -> None:
        """Quiet upstream, everything delivered: all is served."""
        for key in KEYS:
            self.decide(key, how="commit")
        for _ in range(4):
            for region, (store, _subscription) in list(self.world.leader.items()):
                self.world.move(region, store)
            self._drain()
        for task, core in self.cores.items():
            stats = core.stats()
            last = max((t.commit_ts for t in self.world.txns if t.key in self.ranges[task]), default=START_TS)
            assert core.durable_ts >= last, f"stuck at {core.durable_ts}: {[str(s) for s in core.explain()]}"
            waiting = (stats.open_prewrites, stats.waiting_commits, stats.ready_rows)
            assert waiting == (0, 0, 0), f"left behind: {stats}"

    def random_step(self, rand: random.Random) -> None:
        """One step of any kind, the common ones more often."""
        key, store, task = rand.choice(KEYS), rand.randint(1, STORES), rand.choice(list(self.ranges))
        steps = (
            (6, lambda: self.prewrite(key, rand.choice([b"v", b"w", None]), old=rand.random() < 0.5)),
            (1, lambda: self.begin(key)),
            (6, lambda: self.decide(key, how=rand.choice(["commit", "commit", "commit with value", "fetch", "no"]))),
            (1, lambda: self.decide(key, how="refresh")),
            (1, lambda: self.commit_at_once(key, b"1pc")),
            (1, lambda: self.overlapped_rollback(key)),
            (2, lambda: self.move(rand.randrange(9), store, from_its_end=rand.random() < 0.5)),
            (1, lambda: self.split(rand.randrange(9), rand.choice(EDGES), store)),
            (1, lambda: self.merge(rand.randrange(9), rand.randrange(9))),
            (8, lambda: self.cut(store, rand.choice([0, 1, 9, 9]))),
            (1, lambda: self.crash_pusher(store)),
            (12, lambda: self.deliver(task, store)),
            (6, lambda: self.flush(task, lands=rand.random() < 0.8)),
            (2, lambda: self.snapshot(task, lands=self.files[task].saves % 5 != 4)),
            (1, lambda: self.restart(task)),
        )
        rand.choices([step for _, step in steps], [weight for weight, _ in steps])[0]()

    def _drain(self) -> None:
        for _ in range(3):
            for store in self.world.stores:
                self.cut(store, 99)
            for task in self.cores:
                for store in self.world.stores:
                    while self.deliver(task, store):
                        self.flush(task)
                self.flush(task)

    def _new_core(self, task: int) -> TaskCore:
        durable = self.durable[task]
        core = self.bucket.core(task, self.ranges[task], START_TS, durable.durable_ts)
        if durable.snapshot is not None:
            core.restore(durable.snapshot, durable.snapshot.positions)
        return core

    def _saved(self, task: int, core: TaskCore) -> CoreSnapshot:
        """The core's state as it is read back. What it refers to counts as the task's until the next snapshot."""
        save = loaded(partial(Save, core.snapshot(), self._next_key, "w"), self.bucket.read)
        self.bucket.objects |= dict(save.objects())
        key = str(save.key)
        named = objects_named_by(key, self.bucket.objects[key])
        self.bucket.refers[task] = self.bucket.refers.get(task, frozenset()) | named
        return read_state_file(key, self.bucket.objects.pop(key)).state

    def _next_key(self) -> SnapshotKey:
        self._n += 1
        return SnapshotKey(tenant=Tenant(1, 1), task_id=1, epoch=1, n=self._n)

    def _cut(self, task: int, file: File) -> FeedBatch:
        """What a dispatcher sends the task of a file."""
        return routed(feed_batch(file), self.ranges[task])

    def _next_file(self, core: TaskCore, store: int) -> File | None:
        positions = core.positions().get(store, {})
        for file in self.world.files[store]:
            at = position_of(positions, file.incarnation)
            if not at.closed and (file.closes or file.seq > at.seq):
                lost = self.lost.get((store, file.incarnation))
                if lost is not None and at.seq < lost <= file.seq:
                    return replace(file, seq=at.seq, cut_ts=0, rows=(), marks=(), closes=True)
                return file
        return None

    def _is_in_doubt(self, commit: Undecided) -> None:
        """A new subscription is asked for only where the files disagree about the transaction, or say nothing of it."""
        files = (file for files in self.world.files.values() for file in files)
        rows = [row for file in files for row in file.rows if (row.key, row.start_ts) == (commit.key, commit.start_ts)]
        said = {(row.op, row.value, row.old_value) for row in rows if row.kind == P and not _is_fake(row)}
        assert len(said) != 1, f"asks for a new subscription of {commit}, of which all prewrites say {said}"

    def _resubscribe(self, key: bytes) -> None:
        self.resubscribed += 1
        for region, (store, subscription) in list(self.world.leader.items()):
            if key >= subscription.start and (not subscription.end or key < subscription.end):
                self.world.move(region, store)

    def _region(self, number: int) -> int:
        regions = sorted(self.world.leader)
        return regions[number % len(regions)]


def _is_fake(row: Row) -> bool:
    """A lock that was refreshed, sent without its value."""
    return row.op == PUT and row.value == b""
