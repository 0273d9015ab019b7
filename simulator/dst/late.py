"""Late rows: a store commits below its own promise, and the rows are true. An operator accepts them.

The upstream has committed such a row, and only the file that brings it has it. Its key is of no other transaction. What
readers must get depends on what the operator has decided about the file, and on what the reader's cursor knows:

    undecided, not in a file        nothing
    accepted, known to the cursor   the row, at its place
    accepted later, or rejected     the row or not: its reader is refused (accepted), or it is lost (rejected)

A follower reads from the beginning and resumes with its cursor. When it is refused, it drops what lies above the named
place and reads again from there. After each page it has exactly the rows up to its cursor, and at the end the same rows
as a reader that begins then.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from simulator.dst.catalog_rules import POSITIONS_OF
from simulator.transactions import CommittedRow
from tistream.catalog.tenancy.served import QuarantineState
from tistream.feed.protocol import FeedBatch
from tistream.keyrange import KeyRange
from tistream.model.change import Op
from tistream.model.contradiction import BatchFile

_HANDLES_FROM = (1 << 63) + 40_000  # far above those of the workload
_TRUE_STORES = 0.75  # of the stores; the others contradict themselves
_DECIDED = (QuarantineState.ACCEPTING, QuarantineState.ACCEPTED, QuarantineState.REJECTED)


@dataclass(slots=True)
class LateRow:
    """A row that came late."""

    row: CommittedRow
    file: BatchFile | None = None  #: that brought it; None until a task has seen it


@dataclass(slots=True)
class Late:
    """The late rows of a run, and what has become of them."""

    rand: random.Random
    committed: Sequence[CommittedRow]
    rows: dict[bytes, LateRow] = field(default_factory=dict)  #: by key
    _true: dict[int, bool] = field(default_factory=dict)  # store -> whether its late rows are true
    _states: dict[BatchFile, str] = field(default_factory=dict)
    _known_from: dict[BatchFile, int] = field(default_factory=dict)  # accepted -> newest amendment then

    def is_true(self, store_id: int) -> bool:
        """Whether the late rows of this store have happened."""
        return self._true.setdefault(store_id, self.rand.random() < _TRUE_STORES)

    def make(self, where: KeyRange, promised: int) -> CommittedRow | None:
        """The next row, in this range and at or below `promised`; None when there is no place."""
        old = [r for r in self.committed if r.commit_ts <= promised and r.op is Op.PUT and r.key[9:11] == b"_r"]
        if not old:
            return None
        like = self.rand.choice(old)
        key = like.key[:11] + (_HANDLES_FROM + len(self.rows)).to_bytes(8, "big")
        if key not in where:
            return None
        taken = {r.commit_ts for r in self.committed} | {late.row.commit_ts for late in self.rows.values()}
        commit_ts = next(ts for ts in range(like.commit_ts - 1, 0, -1) if ts not in taken)
        row = CommittedRow(commit_ts, commit_ts - 1, key, Op.PUT, like.value, None)
        self.rows[key] = LateRow(row)
        return row

    def seen_in(self, batch: FeedBatch) -> None:
        """A task looks at a file: its late rows are those of the file."""
        for key in self.rows.keys() & set(batch.rows.column("key").to_pylist()):
            self.rows[key].file = BatchFile(batch.store_id, batch.incarnation, batch.seq)

    def look(self, query: Callable[..., list[Any]], violated: Callable[[str], None]) -> None:
        """After a COMMIT: what has been decided. A file is only accepted when every task has taken it."""
        if not self.rows:
            return
        ((newest,),) = query("SELECT coalesce(max(number), 0) FROM amendments WHERE tenant_id = 1")
        found = query("SELECT store_id, incarnation, seq, state, error FROM quarantines WHERE tenant_id = 1")
        for store_id, incarnation, seq, state, error in found:
            file = BatchFile(store_id, incarnation, seq)
            if error is not None and self.is_true(store_id):
                violated(f"late: {file} could not be accepted: {error}")
            if state == QuarantineState.ACCEPTED and file not in self._known_from:
                self._known_from[file] = newest
                taken = {task: (at, closed) for task, at, closed in query(POSITIONS_OF, store_id, incarnation)}
                for (task,) in query("SELECT task_id FROM tasks WHERE tenant_id = 1"):
                    at, closed = taken.get(task, (0, False))
                    if at < seq and not closed:
                        violated(f"late: {file} counts as accepted, and task {task} has taken {at} only")
            self._states[file] = state

    def truth(self, after: int, upto: int, seen: int) -> tuple[list[CommittedRow], list[CommittedRow]]:
        """(the rows in (after, upto] that a reader must have whose cursor knows the amendments up to `seen`, those that
        it may have)."""
        must, may = [], []
        for late in self.rows.values():
            if late.file is None or not after < late.row.commit_ts <= upto:
                continue
            if self._known_from.get(late.file, seen + 1) <= seen:
                must.append(late.row)
            elif self._states.get(late.file) in _DECIDED:
                may.append(late.row)
        return must, may

    def refuses_rightly(self, from_ts: int, at: int) -> bool:
        """Whether a cursor at `at` that is sent back to `from_ts` may lack a row."""
        decided = [r.row for r in self.rows.values() if r.file and self._states.get(r.file) in _DECIDED]
        return any(from_ts < row.commit_ts <= at for row in decided)


@dataclass(slots=True)
class Follower:
    """A reader that keeps what it got: it outlives its processes."""

    start_ts: int = 0  #: where its rows begin
    cursor: str | None = None
    at: int = 0  #: it has everything up to here
    amended: int = 0  #: number of the newest amendment that its cursor knows
    pages: list[pa.Table] = field(default_factory=list)

    def rewind(self, from_ts: int) -> None:
        """Drop what lies above, to read again from there."""
        self.cursor, self.at = None, from_ts
        if self.pages:
            rows = pa.concat_tables(self.pages)
            self.pages = [rows.filter(pc.less_equal(rows["commit_ts"], from_ts))]

    def differs(self, rows: pa.Table, upto: int) -> str:
        """How its rows differ from those up to `upto` of a reader that began at the end; "" if they do not."""
        kept = pa.concat_tables(self.pages)
        mine = Counter(zip(*_shown(kept.filter(pc.less_equal(kept["commit_ts"], upto))), strict=True))
        others = Counter(zip(*_shown(rows), strict=True))
        if mine == others:
            return ""
        return f"missing {sorted((others - mine).elements())}, more {sorted((mine - others).elements())}"


def _shown(rows: pa.Table) -> list[list[Any]]:
    return [rows.column(name).to_pylist() for name in ("commit_ts", "start_ts", "key")]
