"""A store that contradicts its own promise: rows that it adds to its files, and what must become of them.

Between two ticks a store may send, on a subscription, a COMMITTED row at or below what an earlier file promised:

    added      a version that never was
    changed    a version of the upstream with another value
    repeated   a version as it is: ordinary
    late       a version of the upstream that no other file brings (`simulator.dst.late`), from some stores

A task breaks the rule if it accepts a file with an added or changed row, or refuses a file without one. An
operator decides about a quarantined store a while after it was recorded (`simulator.dst.operator`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from simulator.dst.late import Late
from simulator.transactions import CommittedRow
from sorter.core.acceptance import Accepted
from sorter.core.task_core import TaskCore
from tistream.errors import PromiseContradicted
from tistream.feed.protocol import FeedBatch
from tistream.keyrange import KeyRange
from tistream.model.change import ROWS, Op, RowKind
from tistream.model.positions import position_of

_CHANCE = 0.15  # of a row, each time a store is asked for events
_REPEATED = 0.5  # of them that are only repeated


@dataclass(slots=True)
class Lies:
    """The lies of a run."""

    rand: random.Random
    committed: Sequence[CommittedRow]
    most: int  #: rows added or changed; 0: no store lies
    late: Late | None = None  #: of a scenario with true rows
    told: set[tuple[bytes, int, int]] = field(default_factory=set)  #: key, start_ts, commit_ts

    def row(self, store_id: int, where: KeyRange, promised: int) -> pa.RecordBatch | None:
        """A row of the range at or below `promised`, or none."""
        if not self.most or not promised or self.rand.random() > _CHANCE:
            return None
        old = [r for r in self.committed if r.commit_ts <= promised and r.key in where and r.op is Op.PUT]
        if not old:
            return None
        row = self.rand.choice(old)
        if self.rand.random() < _REPEATED:
            return _batch(row)
        if len(self.told) >= self.most:
            return None
        if self.late is not None and self.late.is_true(store_id):
            return self._late_row(self.late, where, promised)
        if self.rand.random() < 0.5:
            row = CommittedRow(row.commit_ts, row.start_ts, row.key, row.op, (row.value or b"") + b"!", row.old_value)
        else:
            taken = {r.commit_ts for r in self.committed if r.key == row.key}
            ts = next(ts for ts in range(row.commit_ts - 1, 0, -1) if ts not in taken)
            row = CommittedRow(ts, ts - 1, row.key, row.op, row.value, row.old_value)
        self.told.add((row.key, row.start_ts, row.commit_ts))
        return _batch(row)

    def _late_row(self, late: Late, where: KeyRange, promised: int) -> pa.RecordBatch | None:
        """A true row, whole or as a prewrite and its commit."""
        row = late.make(where, promised)
        if row is None:
            return None
        self.told.add((row.key, row.start_ts, row.commit_ts))
        if self.rand.random() < 0.5:
            return _batch(row)
        parts = [_batch(row, RowKind.PREWRITE, commit_ts=0), _batch(row, RowKind.COMMIT, value=None)]
        return pa.Table.from_batches(parts).combine_chunks().to_batches()[0]

    @contextmanager
    def watching(self, violated: Callable[[str], None]) -> Iterator[None]:
        """Compare what tasks take and refuse with what was added and changed."""
        handle = TaskCore.handle

        def handled(
            self_: TaskCore, batch: FeedBatch, logged: pa.Table | None = None, accepted: Accepted | None = None
        ) -> Any:
            if self.late is not None and batch.rows.num_rows:
                self.late.seen_in(batch)
            lies = self._in(batch, self_.range)
            at = batch.store_id, batch.incarnation
            before = position_of(self_.positions().get(at[0], {}), at[1])
            try:
                effects = handle(self_, batch, logged, accepted)
            except PromiseContradicted as e:
                if not lies:
                    violated(f"promise: task {self_.task_id} refuses {at}/{batch.seq} without a reason: {e}")
                raise
            if lies and accepted is None and not batch.closes and not before.closed and before.seq == batch.seq - 1:
                violated(f"promise: task {self_.task_id} takes {at}/{batch.seq} with {lies} and names no contradiction")
            return effects

        TaskCore.handle = handled  # type: ignore[assignment, method-assign]
        try:
            yield
        finally:
            TaskCore.handle = handle  # type: ignore[method-assign]

    def _in(self, batch: FeedBatch, range_: KeyRange) -> list[str]:
        if not self.told or not batch.rows.num_rows:
            return []
        names = ("key", "start_ts", "commit_ts", "value", "kind")
        rows = zip(*(batch.rows.column(name).to_pylist() for name in names), strict=True)
        late = {} if self.late is None else self.late.rows
        true = {(r.key, r.start_ts, r.commit_ts): r.value for r in self.committed}
        return [
            f"{key.hex()}@{start} -> {commit}"
            for key, start, commit, value, kind in rows
            if key in range_ and (key, start, commit) in self.told
            and (key in late or (kind == RowKind.COMMITTED and true.get((key, start, commit)) != value))
        ]  # fmt: skip


def _batch(row: CommittedRow, kind: RowKind = RowKind.COMMITTED, **other: int | None) -> pa.RecordBatch:
    facts = {"key": row.key, "start_ts": row.start_ts, "commit_ts": row.commit_ts, "value": row.value}
    others = {"kind": kind, "op": row.op, "generation": 0, "expire_ts": 0, "flags": 0}
    return pa.RecordBatch.from_pylist([{**facts, **others, "old_value": row.old_value, **other}], schema=ROWS)
