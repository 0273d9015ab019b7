"""The watermark map and the prewrite buffer, each alone, against a dict; a restart from its snapshot may come any time.

The map's model is one number per elementary piece of the key space, and a list of all rows that ever came. The buffer's
model is a dict of what one subscription said of each transaction, under a watermark that the test moves.
"""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pyarrow as pa
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sorter.core.admission import Limits
from sorter.core.prewrite_buffer import PrewriteBuffer
from sorter.core.sort_buffer import SortBuffer
from sorter.core.watermark import RangeWatermarkMap
from sorter.rows.batch_rows import IncomingRows
from tests.kit.sorter_states import table_of
from tistream.feed.protocol import FeedBatch
from tistream.keyrange import KeyRange
from tistream.model.change import REGIONS, ROWS, Op, RowKind

START_TS = 10
EDGES = [b"", b"a", b"b", b"b\x00", b"c", b"\xff"]  # each piece begins with one of these and is named by it
spans = st.tuples(st.integers(0, len(EDGES) - 1), st.integers(1, len(EDGES))).filter(lambda s: s[0] < s[1])


def end_of(piece: int) -> bytes:
    return EDGES[piece] if piece < len(EDGES) else b""


def regions_of(rows: list[dict[str, Any]]) -> pa.RecordBatch:
    """Watermark rows, with what they leave out."""
    rest = {"version": 1, "subscription_open_ts": 1, "subscription_ready_ts": 2, "row_offset": 0, "row_count": 0}
    return pa.RecordBatch.from_pylist([rest | row for row in rows], schema=REGIONS)


class WatermarkMachine(RuleBasedStateMachine):
    """One map; several stores speak of arbitrary ranges with arbitrary checkpoints."""

    @initialize(span=spans)
    def begin(self, span: tuple[int, int]) -> None:
        self.first, self.last = span
        self.where = KeyRange(EDGES[self.first], end_of(self.last))
        self.map = RangeWatermarkMap(self.where, START_TS)
        self.w: dict[int, int | None] = dict.fromkeys(range(self.first, self.last))
        self.heard: list[tuple[int, int, int, int]] = []  # first and last piece, checkpoint_ts, resolved_ts
        self.seq = 0

    @rule(
        store=st.integers(1, 2),
        rows=st.lists(st.tuples(spans, st.integers(8, 24), st.integers(0, 8), st.booleans()), max_size=3),
    )
    def file(self, store: int, rows: list[tuple[tuple[int, int], int, int, bool]]) -> None:
        self.seq += 1
        marks = [
            {
                "region_id": i,
                "start_key": EDGES[lo],
                "end_key": end_of(hi),
                "checkpoint_ts": checkpoint,
                "resolved_ts": checkpoint + gain,
                "subscription_ready_ts": 2 if ready else 0,
            }
            for i, ((lo, hi), checkpoint, gain, ready) in enumerate(rows)
        ]
        self.heard += [(*span, checkpoint, checkpoint + gain) for span, checkpoint, gain, ready in rows if ready]
        before = dict(self.w)
        moved = self.map.apply(regions_of(marks), store, 1, self.seq)
        while any(self._lift(*row) for row in self.heard):
            pass
        assert moved == (self.w != before)

    def _lift(self, lo: int, hi: int, checkpoint: int, resolved: int) -> bool:
        moved = False
        for piece in range(max(lo, self.first), min(hi, self.last)):
            w = self.w[piece]
            if checkpoint <= (START_TS if w is None else w) and (w is None or resolved > w):
                self.w[piece] = max(resolved, START_TS)
                moved = moved or self.w[piece] != w
        return moved

    @rule()
    def restart(self) -> None:
        saved = self.map.snapshot()
        self.map = RangeWatermarkMap(self.where, START_TS)
        self.map.restore(*saved)

    @rule(store=st.integers(1, 2))
    def forget(self, store: int) -> None:
        """An incarnation ends; what it promised stays."""
        self.map.forget(store, 1)

    @invariant()
    def the_map_is_the_model(self) -> None:
        if not hasattr(self, "map"):
            return
        self.map.check()
        keys = [EDGES[piece] for piece in self.w]
        assert self.map.w_of(pa.array(keys, pa.binary())).tolist() == [w or START_TS for w in self.w.values()]
        watermark_gaps = [w for w in self.w.values() if w is None]
        assert self.map.watermark() == (None if watermark_gaps else min(w for w in self.w.values() if w is not None))
        assert bool(self.map.watermark_gaps()) == bool(watermark_gaps)


TestWatermarkMachine = WatermarkMachine.TestCase
TestWatermarkMachine.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


class PrewriteMachine(RuleBasedStateMachine):
    """One subscription of one store over everything, which keeps its promise; W is what the last file said.

    The model: `locks` are what is prewritten and not decided, `due` what is committed above the last flush."""

    def __init__(self) -> None:
        super().__init__()
        self.ts = START_TS
        self.buffer, self.ready = PrewriteBuffer(), SortBuffer()
        self.map = RangeWatermarkMap(KeyRange(), START_TS)
        self.durable_ts, self.resolved = START_TS, 0
        self.locks: dict[tuple[bytes, int], tuple[int, bytes | None]] = {}
        self.begun: list[int] = []  # start_ts of transactions that have not written yet
        self.buried: list[tuple[bytes, int]] = []  # rolled back, and the feed does not say so
        self.due: dict[tuple[bytes, int], tuple[int, int, bytes | None]] = {}
        self.sent: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any]] = []  # of the file that is being written
        self.row_no = self.seq = 0

    def _next_ts(self) -> int:
        self.ts += 1
        return self.ts

    def _say(self, kind: RowKind, key: bytes, start_ts: int, **rest: Any) -> None:
        nothing = {"commit_ts": 0, "op": 0, "generation": 0, "value": None, "old_value": None}
        row = nothing | {"kind": int(kind), "key": key, "start_ts": start_ts, "expire_ts": 0, "flags": 0} | rest
        self.rows.append(row)
        self.sent.append(row)

    @rule()
    def begin(self) -> None:
        """A transaction starts, and writes when W has long passed it."""
        self.begun.append(self._next_ts())

    @rule(key=st.sampled_from([b"a", b"b"]), value=st.sampled_from([b"v", b"w", None]))
    def prewrite(self, key: bytes, value: bytes | None) -> None:
        """Of a new transaction, or again of the one that holds the key's lock: its newest content counts."""
        lock = next((txn for txn in self.locks if txn[0] == key), None)
        txn = lock or (key, self.begun.pop(0) if self.begun else self._next_ts())
        op = int(Op.DELETE if value is None else Op.PUT)
        self.locks[txn] = (op, value)
        self._say(RowKind.PREWRITE, *txn, op=op, value=value)

    @precondition(lambda self: self.locks)
    @rule(how=st.sampled_from(["commit", "commit", "roll back", "silently", "whole"]), which=st.integers(0, 1))
    def decide(self, how: str, which: int) -> None:
        txn = list(self.locks)[which % len(self.locks)]
        op, value = self.locks.pop(txn)
        if how == "roll back":
            self._say(RowKind.ROLLBACK, *txn)
        elif how == "silently":
            self.buried.append(txn)
        else:
            commit_ts = self._next_ts()
            self.due[txn[0], commit_ts] = (txn[1], op, value)
            if how == "whole":
                self._say(RowKind.COMMITTED, *txn, commit_ts=commit_ts, op=op, value=value)
            else:
                self._say(RowKind.COMMIT, *txn, commit_ts=commit_ts, op=op)

    @precondition(lambda self: self.sent)
    @rule(which=st.integers(0, 50))
    def repeat(self, which: int) -> None:
        """An outcome comes again, as after a change of the leader: self-contained or not."""
        row = self.sent[which % len(self.sent)]
        if row["kind"] in (RowKind.COMMIT, RowKind.COMMITTED):
            self.rows.append(row)

    @rule()
    def overlapped_rollback(self) -> None:
        """A rollback whose start_ts is the commit_ts of a commit takes nothing away."""
        for key, commit_ts in list(self.due)[-1:]:
            self._say(RowKind.ROLLBACK, key, commit_ts)

    @rule(promise=st.booleans())
    def file(self, promise: bool) -> None:
        """The rows so far arrive; with a promise W becomes what the locks allow."""
        self.seq += 1
        cut_ts = self._next_ts()
        if promise:
            self.resolved = max(self.resolved, min([self._next_ts(), *(start_ts for _, start_ts in self.locks)]))
        mark = {
            "region_id": 1,
            "start_key": b"",
            "end_key": b"",
            "checkpoint_ts": START_TS,
            "resolved_ts": self.resolved,
        }
        regions = regions_of([mark | {"row_count": len(self.rows)}])
        rows = pa.RecordBatch.from_pylist(self.rows, schema=ROWS)
        batch = FeedBatch(store_id=1, incarnation=1, seq=self.seq, cut_ts=cut_ts, rows=rows, regions=regions)
        arrived = IncomingRows(batch, KeyRange(), self.row_no)
        self.row_no += len(self.rows)
        self.rows = []
        self.buffer.take_in(arrived, self.map, self._limits(), self.ready)
        self.buffer.note_ready(regions, 1, 1)
        self.map.apply(regions, 1, 1, self.seq)
        assert self.buffer.settle(self.map, self.ready) == []
        self.buffer.check(self._limits(), self.ready)
        self._compare()

    def _limits(self) -> Limits:
        return Limits(durable_ts=self.durable_ts, attempted_ts=self.durable_ts)

    def _compare(self) -> None:
        """What was said is known: undecided locks are kept, reached commits are ready, whatever is later waits."""
        w = int(self.map.w_of(pa.array([b"a"], pa.binary()))[0])
        rows = table_of(self.ready.snapshot(), "ready").to_pylist()
        ready = {(r["key"], r["commit_ts"]): (r["start_ts"], r["op"], r["value"]) for r in rows}
        of_kinds = zip(self.buffer.snapshot(), ("open", "commits"), strict=True)
        open_, commits = (table_of(states, kind).to_pylist() for states, kind in of_kinds)
        waiting = {(r["key"], r["commit_ts"]) for r in commits}
        assert set(ready) | waiting == set(self.due)
        assert ready == {v: row for v, row in self.due.items() if v in ready}
        assert all(commit_ts > w for _, commit_ts in waiting)
        open_rows = {(r["key"], r["start_ts"]): (r["op"], r["value"]) for r in open_}
        committing = {(key, self.due[key, commit_ts][0]) for key, commit_ts in waiting}
        assert set(self.locks) | committing <= set(open_rows) <= set(self.locks) | committing | set(self.buried)
        assert {txn: open_rows[txn] for txn in self.locks} == self.locks

    @rule()
    def flush(self) -> None:
        w = self.map.watermark()
        if w is None or w <= self.durable_ts:
            return
        rows = self.ready.take(w).table().to_pylist()
        flushed = {(r["key"], r["commit_ts"]): (r["start_ts"], r["op"], r["value"]) for r in rows}
        assert flushed == {v: row for v, row in self.due.items() if v[1] <= w}
        assert [(r["commit_ts"], r["key"]) for r in rows] == sorted((commit_ts, key) for key, commit_ts in flushed)
        self.durable_ts = w
        self.ready.flushed(w)
        self.due = {v: row for v, row in self.due.items() if v[1] > w}

    @rule(flushed=st.booleans())
    def restart(self, flushed: bool) -> None:
        """What a snapshot holds is all there is. Something may have been written out since."""
        rows, (open_, commits), slices = self.ready.snapshot(), self.buffer.snapshot(), self.map.snapshot()
        if flushed:
            self.flush()
        self.buffer, self.ready = PrewriteBuffer(), SortBuffer()
        self.map = RangeWatermarkMap(KeyRange(), START_TS)
        self.map.restore(*slices)
        for runs, states in ((self.buffer.open, open_), (self.buffer.commits, commits), (self.ready.runs, rows)):
            runs.runs = [state.revive() for state in states]
        self.buffer.restrict(KeyRange(), self.durable_ts)
        self.ready.restrict(KeyRange(), self.durable_ts)

    def teardown(self) -> None:
        """In the end nothing that was decided is left."""
        self.locks, left = {}, list(self.locks)
        self.buried += left
        for _ in range(2):
            self.file(promise=True)
        self.flush()
        assert not self.due
        assert not self.buffer.open_count
        assert not self.buffer.waiting_count


TestPrewriteMachine = PrewriteMachine.TestCase
TestPrewriteMachine.settings = settings(max_examples=30, stateful_step_count=40, deadline=None)
