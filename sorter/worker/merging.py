"""Merges pairs of neighbouring tasks that this worker owns.

    catch up   neither task writes above the larger `durable_ts` of the two; the one behind gets there
    align      both read to the same file of each store (`merge_barrier`), and no further
    join       PUT the rows that no object holds yet, join the two states (`join_snapshots`), PUT the new state, then
               one transaction: see tistream.catalog.work.reshape. Both tasks are dropped, the new one is loaded

Before the transaction nothing durable has changed; only what the two tasks may write and read is bounded. The merge is
aborted when a task leaves or stops, when the two are not aligned after PATIENCE_S, or on any error: both continue, the
problem is shown, and the merge is retried later. Meanwhile neither `durable_ts` rises above the barrier, so readers
wait.

Unless the transaction is known to have failed, both tasks are dropped and reloaded from the catalog.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial

import structlog

from sorter.core.task_core import CoreSnapshot
from sorter.state.join_snapshots import joined
from sorter.state.merge_barrier import at_barrier, furthest, has_reached
from sorter.state.saving import Save
from sorter.state.snapshot import read_state_file
from sorter.worker.publisher import Publisher
from sorter.worker.runner import TaskRunner
from sorter.worker.stored_core import loaded
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.lost_reply import commit_or_read_back
from tistream.catalog.log.snapshots import NewSnapshot
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.work.reshape import Half, merge_tasks
from tistream.clock import Clock
from tistream.errors import Fenced, MergeWaits, ObjectConflict, StoreUnavailable
from tistream.keyrange import KeyRange
from tistream.model.positions import Positions
from tistream.objectstore.layout import SnapshotKey
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime.containment import Containment
from tistream.runtime.service import Backoff

PATIENCE_S = 10.0  #: for two tasks to align
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0  #: until the next attempt

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Attempt:
    begun: float
    until: Positions | None = None


class _Pairs(Containment[tuple[int, int]]):
    """Retries after longer pauses than usual, because readers wait during an attempt."""

    def _pauses(self, retry: bool) -> Backoff:
        return Backoff(first_s=FIRST_PAUSE_S, max_s=LONGEST_PAUSE_S) if retry else super()._pauses(retry)


class Merging:
    """The merges of one worker. Used from its loop thread."""

    def __init__(self, worker_id: str, catalog: Catalog, store: ObjectStore, clock: Clock) -> None:
        self._catalog, self._store, self._clock = catalog, store, clock
        self._attempts: dict[tuple[int, int], _Attempt | None] = {}  # per pair; None = not begun
        self.pairs = _Pairs(worker_id, clock, name=lambda ids: f"merge of tasks {ids[0]} and {ids[1]}")

    @property
    def wanted(self) -> bool:
        return bool(self._attempts)

    def look(self, owned: Mapping[int, TaskRow], runners: Mapping[int, TaskRunner]) -> None:
        """Update the set of task pairs that name each other."""
        wanted = set()
        for row in owned.values():
            other = owned.get(row.merge_with) if row.merge_with is not None else None
            if other is None or other.merge_with != row.task_id or row.error is not None or other.error is not None:
                continue
            if row.range.end and row.range.end == other.range.start:
                wanted.add((row.task_id, other.task_id))
        for ids in self._attempts.keys() - wanted:
            _abort(runners, ids)
        self._attempts = {ids: self._attempts.get(ids) for ids in sorted(wanted)}
        self.pairs.keep_only(wanted)

    def step(self, runners: Mapping[int, TaskRunner], publisher: Publisher) -> frozenset[int]:
        """Advance each pair. Returns the ids of tasks to drop."""
        gone: set[int] = set()
        for ids, begun in list(self._attempts.items()):
            if not self.pairs.is_due(ids):
                continue
            try:
                gone |= self._advance(ids, runners, publisher)
            except Exception as e:  # noqa: BLE001 - the containment decides
                if begun is not None or not isinstance(e, MergeWaits):
                    self.pairs.failed(ids, e)
                self._attempts[ids] = None
                _abort(runners, ids)
        return frozenset(gone)

    def _advance(self, ids: tuple[int, int], runners: Mapping[int, TaskRunner], publisher: Publisher) -> frozenset[int]:
        left, right = (runners.get(task_id) for task_id in ids)
        if left is None or right is None or left.halted or right.halted:
            raise MergeWaits("a task to be merged is not here or has stopped", tasks=ids)
        now = self._attempts[ids] = self._attempts[ids] or _Attempt(begun=self._clock.monotonic())
        if self._clock.monotonic() - now.begun > PATIENCE_S:
            raise MergeWaits(tasks=ids, durable_timestamps=(left.core.durable_ts, right.core.durable_ts))
        until = _place(now, left, right, publisher)
        if until is None:
            return frozenset()
        try:
            return self._join(left, right, until)
        except (ObjectConflict, Fenced) as e:  # used by an earlier incarnation, or its orphan was collected
            raise StoreUnavailable("snapshot key already used", task=left.task_id, cause=str(e)) from e

    def _join(self, left: TaskRunner, right: TaskRunner, until: Positions) -> frozenset[int]:
        """Join the two tasks. Both are gone afterwards, whatever the outcome."""
        written: dict[str, int] = {}
        both = left, right
        states = [self._rows_saved(runner.core.snapshot(), left.next_key, written) for runner in both]
        both_ranges = KeyRange(left.row.range.start, right.row.range.end)
        halves = [at_barrier(state, runner.row.range, until) for state, runner in zip(states, both, strict=True)]
        state = joined(both_ranges, halves)
        save = loaded(partial(Save, state, left.next_key, secrets.token_hex(16)), self._store.get_range)
        for key, data in save.objects():
            self._store.put(key, data)
        snapshot = NewSnapshot(
            key=str(save.key),
            n=save.key.n,
            objects={**{key: size for key, size in written.items() if key in save.keeps}, **save.new},
            keeps=save.keeps - written.keys(),
            positions=until,
        )
        # 0 = lost, or not known: both are dropped anyway, and what the catalog has is loaded again
        task_id = commit_or_read_back(
            lambda: merge_tasks(self._catalog, _half(left), _half(right), snapshot) or 0, lambda: 0
        )
        log.info(
            "tasks merged", left=left.task_id, right=right.task_id, task=task_id or None, durable_ts=state.durable_ts
        )
        return frozenset({left.task_id, right.task_id})

    def _rows_saved(
        self, state: CoreSnapshot, next_key: Callable[[], SnapshotKey], written: dict[str, int]
    ) -> CoreSnapshot:
        """The same state with all of its rows in objects; adds the new objects to `written`."""
        save = loaded(partial(Save, state, next_key, secrets.token_hex(16)), self._store.get_range)
        last = "", b""
        for key, data in save.objects():
            if last[0]:
                self._store.put(*last)
                written[last[0]] = len(last[1])
            last = key, data
        return read_state_file(*last).state  # the state is only needed here


def _place(now: _Attempt, left: TaskRunner, right: TaskRunner, publisher: Publisher) -> Positions | None:
    """The barrier when both tasks have reached it, else None."""
    both = (left, right)
    durable_ts = max(runner.core.durable_ts for runner in both)
    for runner in both:
        runner.publication.upto = durable_ts
    if any(runner.publication.unsure or publisher.writes(runner.publication) for runner in both):
        return None
    if left.core.durable_ts != right.core.durable_ts:
        return None
    if now.until is None:
        now.until = furthest(left.core.positions(), right.core.positions())
    for runner in both:
        runner.stop_at(now.until)
    aligned = all(has_reached(runner.core.positions(), now.until) and not runner.core.settling for runner in both)
    return now.until if aligned else None


def _half(runner: TaskRunner) -> Half:
    return Half(
        task_id=runner.task_id, epoch=runner.row.epoch, durable_ts=runner.core.durable_ts, snapshot_no=runner.durable_n
    )


def _abort(runners: Mapping[int, TaskRunner], task_ids: Collection[int]) -> None:
    for task_id in task_ids:
        if task_id in runners:
            runners[task_id].abort_merge()
