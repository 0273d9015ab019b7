"""A store that contradicts its own promise: rows that it adds to its files, and what must become of them.

Between two ticks a store may send, on a subscription, a COMMITTED row at or below what an earlier file promised:

    added      a version that never was
    changed    a version of the upstream with another value
    repeated   a version as it is: ordinary

A task breaks the rule if it accepts a file with an added or changed row, or refuses a file without one. Every now and
then an operator looks at quarantined stores, and rejects them: their rows never were commits.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from simulator.dst.aspect import Aspect
from simulator.dst.database import SimCatalog
from simulator.dst.mutants import replaced
from simulator.dst.running import TENANT
from simulator.transactions import CommittedRow
from sorter.core.task_core import TaskCore
from tistream.catalog.work.quarantines import open_quarantines, reject_store
from tistream.errors import CatalogUnavailable, NotFound, PromiseContradicted
from tistream.feed.protocol import FeedBatch
from tistream.keyrange import KeyRange
from tistream.model.change import ROWS, Op, RowKind
from tistream.model.positions import position_of

if TYPE_CHECKING:
    from simulator.dst.world import World

_CHANCE = 0.15  # of a row, each time a store is asked for events
_DECIDE_EVERY_S = 2.5  # an operator
_REPEATED = 0.5  # of them that are only repeated


class Contradictions(Aspect):
    """Those of a run."""

    def __init__(self, world: World) -> None:
        self._world, self._committed = world, world.workload.committed
        self._rand = random.Random(f"{world.seed}/lies")
        self._sent: set[tuple[bytes, int, int]] = set()  # key, start_ts, commit_ts of rows added or changed

    def row(self, where: KeyRange, promised: int) -> pa.RecordBatch | None:
        """A row of the range at or below `promised`, or none."""
        if self._world.resting or not promised or self._rand.random() > _CHANCE:
            return None
        old = [r for r in self._committed if r.commit_ts <= promised and r.key in where and r.op is Op.PUT]
        if not old:
            return None
        row = self._rand.choice(old)
        if self._rand.random() < _REPEATED:
            return _batch(row)
        if len(self._sent) >= self._world.profile.contradictions:
            return None
        if self._rand.random() < 0.5:
            row = CommittedRow(row.commit_ts, row.start_ts, row.key, row.op, (row.value or b"") + b"!", row.old_value)
        else:
            taken = {r.commit_ts for r in self._committed if r.key == row.key}
            ts = next(ts for ts in range(row.commit_ts - 1, 0, -1) if ts not in taken)
            row = CommittedRow(ts, ts - 1, row.key, row.op, row.value, row.old_value)
        self._sent.add((row.key, row.start_ts, row.commit_ts))
        return _batch(row)

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Compare what tasks take and refuse with what was added and changed."""
        handle, violated = TaskCore.handle, self._world.oracle.violated

        def handled(self_: TaskCore, batch: FeedBatch, logged: pa.Table | None = None) -> Any:
            false = self._in(batch, self_.range)
            at = batch.store_id, batch.incarnation
            before = position_of(self_.positions().get(at[0], {}), at[1])
            try:
                effects = handle(self_, batch, logged)
            except PromiseContradicted as e:
                if not false:
                    violated(f"promise: task {self_.task_id} refuses {at}/{batch.seq} without a reason: {e}")
                raise
            if false and not batch.closes and not before.closed and before.seq == batch.seq - 1:
                violated(
                    f"promise: task {self_.task_id} takes {at}/{batch.seq} with {false} and names no contradiction"
                )
            return effects

        with replaced(TaskCore, "handle", handled):
            yield

    def start(self) -> None:
        s = self._world.scheduler

        def again() -> None:
            self._world.spawn(self._decide, "an operator")
            s.call_at(s.now + _DECIDE_EVERY_S, again)

        s.call_at(s.now + _DECIDE_EVERY_S, again)

    def _decide(self) -> None:
        catalog = SimCatalog(self._world.database)
        with suppress(CatalogUnavailable):
            for store_id in sorted({row.store_id for row in open_quarantines(catalog, TENANT)}):
                self._world.tell(f"an operator rejects store {store_id}")
                with suppress(CatalogUnavailable, NotFound):
                    reject_store(catalog, TENANT, store_id)

    def _in(self, batch: FeedBatch, range_: KeyRange) -> list[str]:
        if not self._sent or not batch.rows.num_rows:
            return []
        names = ("key", "start_ts", "commit_ts", "value", "kind")
        rows = zip(*(batch.rows.column(name).to_pylist() for name in names), strict=True)
        true = {(r.key, r.start_ts, r.commit_ts): r.value for r in self._committed}
        return [
            f"{key.hex()}@{start} -> {commit}"
            for key, start, commit, value, kind in rows
            if key in range_ and (key, start, commit) in self._sent
            and kind == RowKind.COMMITTED and true.get((key, start, commit)) != value
        ]  # fmt: skip


def _batch(row: CommittedRow) -> pa.RecordBatch:
    facts = {"key": row.key, "start_ts": row.start_ts, "commit_ts": row.commit_ts, "value": row.value}
    others = {"kind": RowKind.COMMITTED, "op": row.op, "generation": 0, "expire_ts": 0, "flags": 0}
    return pa.RecordBatch.from_pylist([{**facts, **others, "old_value": row.old_value}], schema=ROWS)
