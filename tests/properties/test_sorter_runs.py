"""The buffers in runs against the plain ones, batch by batch: the same rows held, written, asked for and refused.

Histories are drawn row by row and keep no promise, so that every rule meets every other one; keys and timestamps are
few. Hashes are cut to four bits, runs are tidied as early as possible, their bytes are moved to the disk, ranges are
split, and cores are restarted from snapshots, also from each other's. Snapshots are written as objects, now and then,
some in vain; the parts of a split task share those of their parent, and what nobody refers to is gone. A task's history
ends where a promise is broken: both sides must say so of the same row.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, example, given, settings

from sorter.core import decision_queue, eviction, prewrite_buffer, sort_buffer
from sorter.core.contradictions import found_by
from sorter.core.task_core import CoreSnapshot, NeedResubscribe, Positions, TaskCore
from sorter.rows import output, payload, run
from sorter.rows.output import Output
from sorter.worker.spill import Spill
from sorter.worker.stored_core import Read
from tests.kit import sorter_run, sorter_states
from tests.kit.plain_sorter import PlainTaskCore
from tests.kit.routed import routed
from tests.kit.sorter_oracle import C, D, Mark, P, R, Row
from tests.kit.sorter_run import SorterRun
from tests.kit.sorter_states import Bucket, LoadingCore, SnapshotFiles, tables_of, whole
from tests.kit.sorter_world import File, feed_batch
from tistream.errors import PromiseContradicted, UpstreamContractViolated
from tistream.feed.protocol import FeedBatch
from tistream.keyrange import KeyRange
from tistream.model.change import COMMITTED
from tistream.model.contradiction import Contradiction

KEYS = [b"a", b"m", b"m" * 9]
SPILL = Spill(0)
TABLES = ("open", "commits", "ready", "slices", "waiting", "promised")


@st.composite
def rows(draw: st.DrawFn, found: tuple[Mark, ...]) -> Row:
    key = draw(st.sampled_from(KEYS))
    subscriptions = [at for at, mark in enumerate(found) if key in KeyRange(mark.start, mark.end)]
    kind = draw(st.sampled_from([P, P, P, C, C, D, R]))
    start_ts = draw(st.integers(11, 13))
    op = 0 if kind == R else draw(st.sampled_from([1, 1, 1, 2, 0] if kind == C else [1, 1, 1, 2]))
    # most transactions have one commit_ts, some contradict themselves
    commit_ts = draw(st.sampled_from([start_ts + 5] * 8 + [start_ts + 6, start_ts + 12]))
    return Row(
        kind=kind,
        key=key,
        start_ts=start_ts,
        commit_ts=commit_ts if kind in (C, D) else 0,
        op=op,
        value=draw(st.sampled_from([None, b"", b"v", b"w"])) if kind != R else None,
        old_value=draw(st.sampled_from([None, b"", b"o"])) if kind in (P, D) else None,
        generation=draw(st.sampled_from([0, 0, 0, 1])) if kind == P else 0,
        subscription=draw(st.sampled_from(subscriptions)),
    )


@st.composite
def marks(draw: st.DrawFn) -> tuple[Mark, ...]:
    whole, parts = [(b"", b"")], [(b"", b"b"), (b"b", b"m"), (b"m", b"")]
    ranges = draw(st.sampled_from([whole, whole * 2, parts, parts + whole]))
    return tuple(
        Mark(
            region_id=number,
            start=start,
            end=end,
            checkpoint_ts=10,
            resolved_ts=draw(st.sampled_from([0, 10, 10, 10, 12, 16, 17, 18, 30])),
            version=draw(st.integers(1, 2)),
            open_ts=draw(st.sampled_from([1, 9])),
            ready_ts=draw(st.sampled_from([2, 2, 12, 0])),
        )
        for number, (start, end) in enumerate(ranges, 1)
    )


@st.composite
def files(draw: st.DrawFn) -> File:
    found = draw(marks())
    taken = draw(st.lists(rows(found), max_size=10))
    cut_ts = draw(st.integers(11, 34))
    return File(store_id=draw(st.integers(1, 2)), incarnation=1, seq=0, cut_ts=cut_ts, rows=tuple(taken), marks=found)


STEPS = ["flush", "lost", "save", "save", "save in vain", "restart", "change places", "split"]
step = st.one_of(files(), files(), files(), st.sampled_from(STEPS))
steps = st.lists(
    step,
    min_size=5,
    max_size=25,
)


WHOLE = Mark(region_id=1, start=b"", end=b"", checkpoint_ts=10, resolved_ts=30)
#: a transaction with two outcomes, of which the second is undecided for ever, is met first after a restart
CONTRADICTION: list[File | str] = [
    File(
        store_id=1,
        incarnation=1,
        seq=0,
        cut_ts=15,
        rows=(
            Row(kind=P, key=b"m", start_ts=11, value=b"v"),
            Row(kind=C, key=b"m", start_ts=11, commit_ts=16),
            Row(kind=C, key=b"m", start_ts=11, commit_ts=17, op=2),
        ),
        marks=(WHOLE,),
    ),
    "restart",
    File(
        store_id=1,
        incarnation=1,
        seq=0,
        cut_ts=15,
        rows=(Row(kind=C, key=b"a", start_ts=11, commit_ts=16),),
        marks=(WHOLE,),
    ),
]

#: two commits without a prewrite, one of them saved: both are in the error
SAVED_AND_NEW: list[File | str] = [
    File(
        store_id=1,
        incarnation=1,
        seq=0,
        cut_ts=11,
        rows=(Row(kind=P, key=b"a", start_ts=11), Row(kind=C, key=b"m", start_ts=11, commit_ts=16)),
        marks=(replace(WHOLE, resolved_ts=0),),
    ),
    "restart",
    File(
        store_id=1,
        incarnation=1,
        seq=0,
        cut_ts=11,
        rows=(Row(kind=C, key=b"m" * 9, start_ts=11, commit_ts=16),),
        marks=(replace(WHOLE, resolved_ts=16),),
    ),
]


class Pair:
    """Two cores of one range that must not differ."""

    def __init__(self, range_: KeyRange, files: SnapshotFiles) -> None:
        self.range, self.files = range_, files
        self.durable_ts = 10
        self.cores: list[TaskCore] = [files.bucket.core(1, range_, 10, 10), PlainTaskCore(1, range_, 10, 10)]
        self.goes_on = True
        self.log: list[pa.Table] = []  #: what has been written

    def both(self, call: Any) -> Any:
        """What both give; a broken promise is given, not raised."""
        given = []
        for core in self.cores:
            try:
                given.append(call(core))
            except UpstreamContractViolated as e:
                # a slice tells of its own rows only
                told = ("commit_ts", "rows", "w") if decision_queue.DECIDE_ROWS > 10 else ()
                given.append(("broken", {k: v for k, v in e.facts.items() if k in told}))
            except PromiseContradicted as e:
                given.append(replace(found_by(e), sample=sorted(found_by(e).sample, key=repr)))
        assert given[0] == given[1]
        return given[0]

    def take_in(self, batch: FeedBatch) -> None:
        early: list[tuple[int, Any]] = []  # what could be written before all was decided
        halfway: list[TaskCore] = []

        def handled(core: TaskCore) -> list[Any]:
            effects = core.handle(batch, pa.concat_tables([COMMITTED.empty_table(), *self.log]))
            while core.settling:
                if (w := core.pending()) is not None:
                    early.append((w, core.take(w).table().to_pylist()))
                halfway.append(self.copy(core))
                effects += core.settle()
            return sorted(effects, key=repr)

        effects = self.both(handled)
        self.goes_on = not isinstance(effects, tuple | Contradiction)  # a task whose store is quarantined ends here
        if self.goes_on:
            for w, rows in early:
                assert rows == self.cores[1].take(w).table().to_pylist(), "a part of a commit_ts could be written"
            for core in halfway:
                self.agrees(core)

    def copy(self, core: TaskCore) -> TaskCore:
        """The task as it would start again from a snapshot that is taken now."""
        state = core.snapshot()
        made = self.files.bucket.core(1, self.range, 10, core.durable_ts)
        made.restore(state, state.positions)
        assert made.watermark() == core.watermark() or made.settling
        return made

    def agrees(self, core: TaskCore) -> None:
        """A core that was restored halfway decides as the other did. The prewrites of what had been decided stay with
        it until they are dead."""
        while core.settling:
            core.settle()
        new, plain = (tables_of(c.snapshot(), self.files.bucket.read) for c in (core, self.cores[1]))
        assert [table(new, name) for name in ("commits", "ready")] == [table(plain, n) for n in ("commits", "ready")]
        assert core.watermark() == self.cores[1].watermark()

    def flush(self, *, lost: bool) -> None:
        self.both(lambda core: core.flushable_bytes())
        w = self.both(lambda core: core.pending())
        if w is not None:
            self.both(lambda core: core.take(w).table().to_pylist())
        if w is not None and not lost:
            self.log.append(self.cores[0].take(w).table())
            self.both(lambda core: core.flushed(w))
            self.durable_ts = w

    def save(self, *, lands: bool) -> None:
        self.files.save(self.cores[0], lands=lands)

    def restarted(self, range_: KeyRange, files: SnapshotFiles, *, crosswise: bool) -> Pair:
        """Two new cores of a part of the range, each with its own snapshot or with the other's. Ours goes through
        objects."""
        states = [self.files.load(), self.cores[1].snapshot()]
        new = Pair(range_, files)
        new.durable_ts, new.log = self.durable_ts, list(self.log)
        new.cores = [kind(1, range_, 10, self.durable_ts) for kind in (files.bucket.core, PlainTaskCore)]
        for core, state in zip(new.cores, states[::-1] if crosswise else states, strict=True):
            assert state is not None
            if isinstance(core, PlainTaskCore):
                state = whole(state, files.bucket.read)
            core.restore(state, state.positions)
        return new

    def compare(self) -> None:
        self.cores[0].evict(SPILL, 4000)
        new, plain = (tables_of(core.snapshot(), self.files.bucket.read) for core in self.cores)
        for name in TABLES:
            assert table(new, name) == table(plain, name), name
        a, b = (replace(core.stats(), bytes_held=0, bytes_on_disk=0) for core in self.cores)
        assert a == b


class Tasks:
    """The tasks of a tenant: all take the same files."""

    def __init__(self) -> None:
        self.bucket = Bucket()
        self.count = 0
        self.pairs = [Pair(KeyRange(), self._files(frozenset()))]
        self.seqs = {1: 0, 2: 0}

    def _files(self, shared: frozenset[str]) -> SnapshotFiles:
        """Of a new task, which takes over a state that lies in these objects."""
        self.count += 1
        self.bucket.refers[self.count] = shared
        return SnapshotFiles(self.count, self.bucket)

    def _restarted(self, pair: Pair, parts: list[KeyRange], *, crosswise: bool) -> list[Pair]:
        pair.save(lands=True)
        shared = self.bucket.refers[pair.files.task_id]
        new = [pair.restarted(part, self._files(shared), crosswise=crosswise) for part in parts]
        del self.bucket.refers[pair.files.task_id]
        return new

    def play(self, step: File | str) -> bool:
        """One step; False when no task goes on."""
        if isinstance(step, File):
            self.seqs[step.store_id] += 1
            batch = feed_batch(replace(step, seq=self.seqs[step.store_id]))
            for pair in self.pairs:
                pair.take_in(routed(batch, pair.range))
            self.pairs = [pair for pair in self.pairs if pair.goes_on]
        elif step in ("flush", "lost"):
            for pair in self.pairs:
                pair.flush(lost=step == "lost")
        elif step == "split":
            parts = [KeyRange(b"", b"m"), KeyRange(b"m")]
            self.pairs = [
                new
                for pair in self.pairs
                for new in self._restarted(pair, parts if pair.range == KeyRange() else [pair.range], crosswise=False)
            ]
        elif step in ("save", "save in vain"):
            for pair in self.pairs:
                pair.save(lands=step == "save")
        else:
            crosswise = step != "restart"
            self.pairs = [p for pair in self.pairs for p in self._restarted(pair, [pair.range], crosswise=crosswise)]
        for pair in self.pairs:
            pair.compare()
        return bool(self.pairs)


def table(tables: dict[str, pa.Table], name: str) -> list[dict[str, Any]]:
    """Its rows; `row_no` orders them, of equal ones either may stand first."""
    return sorted(tables[name].to_pylist(), key=repr)


@pytest.fixture(
    params=[(4, 0, 2, 0, 1), (64, 1 << 30, 8, 1 << 40, 2), (64, 0, 2, 0, 1000)],
    ids=["4 bits, one by one", "64 bits, by two", "at once"],
)
def small(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    bits, young_bytes, fan_in, spill_bytes_min, decide_rows = request.param
    monkeypatch.setattr(decision_queue, "DECIDE_ROWS", decide_rows)
    monkeypatch.setattr(prewrite_buffer, "COPY_BYTES_MAX", 20)
    monkeypatch.setattr(output, "PIECE_ROWS", 2)
    monkeypatch.setattr(sort_buffer, "FLUSH_BYTES_MAX", 30)
    monkeypatch.setattr(run, "ARRAY_BYTES_MIN", 100)
    monkeypatch.setattr(payload, "HASH_MASK", (1 << bits) - 1)
    monkeypatch.setattr(run, "YOUNG_BYTES", young_bytes)
    monkeypatch.setattr(run, "FAN_IN", fan_in)
    monkeypatch.setattr(eviction, "SPILL_BYTES_MIN", spill_bytes_min)


@given(steps)
@example(CONTRADICTION)
@example(SAVED_AND_NEW)
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_runs_and_plain_frames_agree(small: None, history: list[File | str]) -> None:
    tasks = Tasks()
    for step in history:
        if not tasks.play(step):
            break


class Twins(LoadingCore):
    """A core that has its plain twin beside it."""

    def __init__(self, task_id: int, range_: KeyRange, start_ts: int, durable_ts: int, read: Read) -> None:
        super().__init__(task_id, range_, start_ts, durable_ts, read)
        self.plain = PlainTaskCore(task_id, range_, start_ts, durable_ts)

    def handle(self, batch: FeedBatch, logged: pa.Table | None = None) -> list[NeedResubscribe]:
        effects = super().handle(batch, logged)
        while self.settling:
            effects += self.settle()
        assert sorted(self.plain.handle(batch, logged), key=repr) == sorted(effects, key=repr)
        assert replace(self.stats(), bytes_held=0) == replace(self.plain.stats(), bytes_held=0)
        ours, plain = (tables_of(core.snapshot(), self._read) for core in (self, self.plain))
        for name in TABLES:
            assert table(ours, name) == table(plain, name), name
        return effects

    def take(self, w: int) -> Output:
        rows = super().take(w)
        assert rows.table().to_pylist() == self.plain.take(w).table().to_pylist()
        return rows

    def flushed(self, w: int) -> None:
        super().flushed(w)
        self.plain.flushed(w)

    def restore(self, snapshot: CoreSnapshot, positions: Positions) -> None:
        super().restore(snapshot, positions)
        self.plain.restore(whole(snapshot, self._read), positions)


@pytest.mark.parametrize("seed", range(3))
def test_runs_and_plain_frames_agree_on_what_a_cluster_does(
    small: None, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorter_states, "LoadingCore", Twins)
    rand, history = random.Random(seed), SorterRun()
    for _ in range(60):
        history.random_step(rand)
    history.finish()
    assert history.rows


@pytest.mark.parametrize("seed", [0, 1, 3, 4, 5])
def test_what_is_decided_in_slices_is_never_written_in_part(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decision_queue, "DECIDE_ROWS", 1)
    monkeypatch.setattr(output, "PIECE_ROWS", 1)
    monkeypatch.setattr(sorter_run, "KEYS", [bytes([letter]) for letter in b"abcdefghmnopqrst"])
    rand, history = random.Random(seed), SorterRun()
    for _ in range(8):
        for key in sorter_run.KEYS:  # many commit before anybody hears of it
            history.prewrite(key, b"v", old=False)
            history.decide(key, how="commit")
        for _ in range(20):
            history.random_step(rand)
    history.finish()
    assert history.slices > 10
