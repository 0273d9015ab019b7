"""Merges the tasks of this worker that are to be merged: brings two neighbours to one place and makes one of them.

    catch up   neither is written out above the larger `durable_ts` of the two; the one behind gets there
    meet       both read to the same file of each store (`meeting`), and no further
    join       the rows that no object holds yet are PUT, the two states put together (`joining`), the new state PUT,
               then one transaction: see tistream.catalog.work.reshape. Both are dropped, the new task is loaded as ever

Until the transaction nothing has happened: both tasks are what they were, and only what they may write and read next
is bounded. That ends when one of them is not here or has stopped, when the two have not come together for PATIENCE_S,
or with any error: both go on, it is shown, and tried again later. While it lasts neither `durable_ts` rises above the
place, so readers wait.

Whatever came of the transaction, if it is not known that it did not happen, both are dropped and loaded again: from the
catalog, which knows.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import structlog

from sorter.core.task_core import CoreSnapshot
from sorter.state.join_snapshots import joined
from sorter.state.merge_barrier import at_barrier, furthest, has_reached
from sorter.state.saving import Save
from sorter.state.snapshot import read_state_file
from sorter.worker.publisher import Publisher
from sorter.worker.runner import TaskRunner
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.snapshots import NewSnapshot
from tistream.catalog.work.reshape import Half, merge_tasks
from tistream.catalog.work.tasks import TaskRow
from tistream.clock import Clock
from tistream.errors import CatalogUnavailable, Fenced, MergeWaits, ObjectConflict, StoreUnavailable
from tistream.keyrange import KeyRange
from tistream.model.positions import Positions
from tistream.objectstore.layout import SnapshotKey
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime.containment import Containment
from tistream.runtime.service import Backoff

PATIENCE_S = 10.0  #: that two tasks take to come to one place, at most
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0  #: until the next try

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Try:
    """What two tasks have come to."""

    begun: float
    until: Positions | None = None


class _Pairs(Containment[tuple[int, int]]):
    """Pairs that wait after a try: longer than other things, because readers wait while a try lasts."""

    def _pauses(self, retry: bool) -> Backoff:
        return Backoff(first_s=FIRST_PAUSE_S, max_s=LONGEST_PAUSE_S) if retry else super()._pauses(retry)


class Merging:
    """The merges of one worker. Used from its loop thread."""

    def __init__(self, worker_id: str, catalog: Catalog, store: ObjectStore, clock: Clock) -> None:
        self._catalog, self._store, self._clock = catalog, store, clock
        self._tries: dict[tuple[int, int], _Try | None] = {}  # of each pair; None = not begun
        self.pairs = _Pairs(worker_id, clock, name=lambda ids: f"merge of tasks {ids[0]} and {ids[1]}")

    @property
    def wanted(self) -> bool:
        """Whether some tasks here are to be merged."""
        return bool(self._tries)

    def look(self, owned: Mapping[int, TaskRow], runners: Mapping[int, TaskRunner]) -> None:
        """Learn which tasks of this worker name each other."""
        wanted = set()
        for row in owned.values():
            other = owned.get(row.merge_with) if row.merge_with is not None else None
            if other is None or other.merge_with != row.task_id or row.error is not None or other.error is not None:
                continue
            if row.range.end and row.range.end == other.range.start:
                wanted.add((row.task_id, other.task_id))
        for ids in self._tries.keys() - wanted:
            _let_go(runners, ids)
        self._tries = {ids: self._tries.get(ids) for ids in sorted(wanted)}
        self.pairs.keep_only(wanted)

    def step(self, runners: Mapping[int, TaskRunner], publisher: Publisher) -> frozenset[int]:
        """Go on with each pair. The ids of tasks that are to be dropped."""
        gone: set[int] = set()
        for ids, begun in list(self._tries.items()):
            if not self.pairs.is_due(ids):
                continue
            try:
                gone |= self._go_on(ids, runners, publisher)
            except Exception as e:  # noqa: BLE001 - the containment decides
                if begun is not None or not isinstance(e, MergeWaits):
                    self.pairs.failed(ids, e)
                self._tries[ids] = None
                _let_go(runners, ids)
        return frozenset(gone)

    def _go_on(self, ids: tuple[int, int], runners: Mapping[int, TaskRunner], publisher: Publisher) -> frozenset[int]:
        left, right = (runners.get(task_id) for task_id in ids)
        if left is None or right is None or left.halted or right.halted:
            raise MergeWaits("a task that is to be merged is not here, or has stopped", tasks=ids)
        now = self._tries[ids] = self._tries[ids] or _Try(begun=self._clock.monotonic())
        if self._clock.monotonic() - now.begun > PATIENCE_S:
            raise MergeWaits(tasks=ids, durable_timestamps=(left.core.durable_ts, right.core.durable_ts))
        until = _place(now, left, right, publisher)
        if until is None:
            return frozenset()
        try:
            return self._join(left, right, until)
        except (ObjectConflict, Fenced) as e:  # an earlier life tried this number, or an orphan of it was collected
            raise StoreUnavailable("a snapshot key is used up", task=left.task_id, cause=str(e)) from e

    def _join(self, left: TaskRunner, right: TaskRunner, until: Positions) -> frozenset[int]:
        """Put the two together. Both are gone afterwards, one way or the other."""
        written: dict[str, int] = {}
        both = left, right
        states = [self._rows_saved(runner.core.snapshot(), left.next_key, written) for runner in both]
        whole = KeyRange(left.row.range.start, right.row.range.end)
        halves = [at_barrier(state, runner.row.range, until) for state, runner in zip(states, both, strict=True)]
        state = joined(whole, halves, self._store.get_range)
        save = Save(state, left.next_key, secrets.token_hex(16))
        for key, data in save.objects():
            self._store.put(key, data)
        snapshot = NewSnapshot(
            key=str(save.key),
            n=save.key.n,
            objects={**{key: size for key, size in written.items() if key in save.keeps}, **save.new},
            keeps=save.keeps - written.keys(),
            positions=until,
        )
        try:
            task_id = merge_tasks(self._catalog, _half(left), _half(right), snapshot)
        except CatalogUnavailable as e:
            if e.determinate:
                raise
            task_id = None
        log.info(
            "two tasks became one", left=left.task_id, right=right.task_id, task=task_id, durable_ts=state.durable_ts
        )
        return frozenset({left.task_id, right.task_id})

    def _rows_saved(
        self, state: CoreSnapshot, next_key: Callable[[], SnapshotKey], written: dict[str, int]
    ) -> CoreSnapshot:
        """The same state with all of its rows in objects. Those that are new come to `written`."""
        save = Save(state, next_key, secrets.token_hex(16))
        of_state = "", b""
        for key, data in save.objects():
            if of_state[0]:
                self._store.put(*of_state)
                written[of_state[0]] = len(of_state[1])
            of_state = key, data
        return read_state_file(*of_state, self._store.get_range).state  # the state is needed here only


def _place(now: _Try, left: TaskRunner, right: TaskRunner, publisher: Publisher) -> Positions | None:
    """Where the two are when they are at one place; None while they are not."""
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
    there = all(has_reached(runner.core.positions(), now.until) and not runner.core.settling for runner in both)
    return now.until if there else None


def _half(runner: TaskRunner) -> Half:
    return Half(
        task_id=runner.task_id, epoch=runner.row.epoch, durable_ts=runner.core.durable_ts, snapshot_n=runner.durable_n
    )


def _let_go(runners: Mapping[int, TaskRunner], task_ids: Collection[int]) -> None:
    for task_id in task_ids:
        if task_id in runners:
            runners[task_id].go_on()
