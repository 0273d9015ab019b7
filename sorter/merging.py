"""Merges the tasks of this worker that are to be merged: brings two neighbours to one place and makes one of them.

    catch up   neither is written out above the larger `upper` of the two; the one behind gets there
    meet       both read to the same file of each store (`meeting`), and no further
    join       the rows that no object holds yet are PUT, the two states put together (`joining`), the new state PUT,
               then one transaction: see tistream.catalog.reshape. Both are dropped, the new task is loaded as ever

Until the transaction nothing has happened: both tasks are what they were, and only what they may write and read next is
bounded. That ends when the two have not come together for PATIENCE_S, and is tried again later: while it lasts neither
`upper` rises above the place, so readers wait.

Whatever came of the transaction, if it is not known that it did not happen, both are dropped and loaded again: from the
catalog, which knows.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field

import structlog

from sorter.core import CoreSnapshot, Positions
from sorter.joining import joined
from sorter.meeting import at_one_place, furthest, has_come
from sorter.publisher import Publisher
from sorter.runner import TaskRunner
from sorter.saving import Save
from sorter.snapshot import read_state_file
from tistream.catalog.engine import Catalog
from tistream.catalog.reshape import Half, merge_tasks
from tistream.catalog.snapshots import NewSnapshot
from tistream.catalog.tasks import TaskRow
from tistream.clock import Clock
from tistream.errors import CatalogUnavailable, Fenced, ObjectConflict, StoreUnavailable
from tistream.keyrange import KeyRange
from tistream.layout import SnapshotKey
from tistream.objectstore.protocol import ObjectStore
from tistream.service import Backoff

PATIENCE_S = 10.0  #: that two tasks take to come to one place, at most
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0  #: until the next try

log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Try:
    """What two tasks have come to."""

    begun: float
    until: Positions | None = None


@dataclass(slots=True)
class _Pair:
    """Two neighbours that are to be merged."""

    now: _Try | None = None
    due_s: float = 0.0
    pauses: Backoff = field(default_factory=lambda: Backoff(first_s=FIRST_PAUSE_S, max_s=LONGEST_PAUSE_S))


class Merging:
    """The merges of one worker. Used from its loop thread."""

    def __init__(self, catalog: Catalog, store: ObjectStore, clock: Clock) -> None:
        self._catalog, self._store, self._clock = catalog, store, clock
        self._pairs: dict[tuple[int, int], _Pair] = {}

    @property
    def wanted(self) -> bool:
        """Whether some tasks here are to be merged."""
        return bool(self._pairs)

    def look(self, owned: Mapping[int, TaskRow], runners: Mapping[int, TaskRunner]) -> None:
        """Learn which tasks of this worker name each other."""
        wanted = set()
        for row in owned.values():
            other = owned.get(row.merge_with) if row.merge_with is not None else None
            if other is None or other.merge_with != row.task_id:
                continue
            if row.range.end and row.range.end == other.range.start:
                wanted.add((row.task_id, other.task_id))
        for ids in self._pairs.keys() - wanted:
            _let_go(runners, ids)
        self._pairs = {ids: self._pairs.get(ids) or _Pair() for ids in sorted(wanted)}

    def step(self, runners: Mapping[int, TaskRunner], publisher: Publisher) -> frozenset[int]:
        """Go on with each pair. The ids of tasks that are to be dropped. Errors of store and catalog pass through."""
        gone: frozenset[int] = frozenset()
        for ids, pair in self._pairs.items():
            left, right = (runners.get(task_id) for task_id in ids)
            if left is None or right is None or left.halted or right.halted or self._clock.monotonic() < pair.due_s:
                continue
            gone |= self._go_on(pair, left, right, publisher)
        return gone

    def _go_on(self, pair: _Pair, left: TaskRunner, right: TaskRunner, publisher: Publisher) -> frozenset[int]:
        now = self._clock.monotonic()
        pair.now = pair.now or _Try(begun=now)
        if now - pair.now.begun > PATIENCE_S:
            log.warning("two tasks did not come to one place", left=left.task_id, right=right.task_id)
            self._later(pair, left, right)
            return frozenset()
        until = _place(pair.now, left, right, publisher)
        if until is None:
            return frozenset()
        try:
            return self._join(left, right, until)
        except (ObjectConflict, Fenced) as e:  # an earlier life tried this number, or an orphan of it was collected
            self._later(pair, left, right)
            raise StoreUnavailable("a snapshot key is used up", task=left.task_id, cause=str(e)) from e

    def _later(self, pair: _Pair, left: TaskRunner, right: TaskRunner) -> None:
        pair.now, pair.due_s = None, self._clock.monotonic() + pair.pauses.next_s()
        for runner in (left, right):
            runner.go_on()

    def _join(self, left: TaskRunner, right: TaskRunner, until: Positions) -> frozenset[int]:
        """Put the two together. Both are gone afterwards, one way or the other."""
        written: dict[str, int] = {}
        both = left, right
        states = [self._rows_saved(runner.core.snapshot(), left.next_key, written) for runner in both]
        whole = KeyRange(left.row.range.start, right.row.range.end)
        halves = [at_one_place(state, runner.row.range, until) for state, runner in zip(states, both, strict=True)]
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
        log.info("two tasks became one", left=left.task_id, right=right.task_id, task=task_id, upper=state.upper)
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
    upper = max(runner.core.upper for runner in both)
    for runner in both:
        runner.publication.upto = upper
    if any(runner.publication.unsure or publisher.writes(runner.publication) for runner in both):
        return None
    if left.core.upper != right.core.upper:
        return None
    if now.until is None:
        now.until = furthest(left.core.positions(), right.core.positions())
    for runner in both:
        runner.stop_at(now.until)
    there = all(has_come(runner.core.positions(), now.until) and not runner.core.settling for runner in both)
    return now.until if there else None


def _half(runner: TaskRunner) -> Half:
    return Half(task_id=runner.task_id, epoch=runner.row.epoch, upper=runner.core.upper, snapshot_n=runner.durable_n)


def _let_go(runners: Mapping[int, TaskRunner], task_ids: Collection[int]) -> None:
    for task_id in task_ids:
        if task_id in runners:
            runners[task_id].go_on()
