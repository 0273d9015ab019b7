"""Sorter process: runs one core for each task that the catalog assigns to it.

    heartbeat thread   registers this incarnation and renews its lease; when fenced, everything stops
    feeds thread       moves batches of all subscriptions into a bounded inbox per task
    loop thread        everything else, in rounds: tasks and stores from the catalog, batches into the cores, flushes,
                       snapshots. Only this thread touches the cores

Each step of a task, each flush of a tenant and each activity of the loop is contained (`tistream.runtime.containment`):
an error stops or delays only that one, and is shown until it is resolved. A task with an upstream contract violation or
an unreadable saved state stops in the catalog, so that no other sorter tries it. The process may die at any
instruction: catalog and bucket hold all durable state.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable, Set
from functools import partial

import structlog

from sorter.core.reporting import Reporter
from sorter.core.stall_detector import StallDetector
from sorter.core.task_core import CoreStats
from sorter.core.watermark import Stuck
from sorter.worker import measures
from sorter.worker.fair_schedule import FairSchedule
from sorter.worker.flushing import Flushing
from sorter.worker.memory import Memory
from sorter.worker.merging import Merging
from sorter.worker.owned import MANY_TASKS, Owned
from sorter.worker.periodic import Activity
from sorter.worker.publisher import Publisher
from sorter.worker.pump import Pump
from sorter.worker.runner import TaskRunner
from sorter.worker.spill import Spill
from sorter.worker.stored_core import StateUnreadable
from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.reports import WorkerReport
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.workers import WorkerKind
from tistream.catalog.work.heartbeat import Heartbeat
from tistream.catalog.work.quarantines import Decisions, decisions
from tistream.catalog.work.stores import stores_of_tenants
from tistream.catalog.work.tasks import count_tasks_of, stop_task
from tistream.clock import Clock
from tistream.errors import Fenced, TaskStopped, TiStreamError
from tistream.feed.protocol import Feed
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.limits import FEED_QUEUE_BATCHES_MAX
from tistream.model.problem import Problem
from tistream.model.task_state import TaskState
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime.containment import Containment
from tistream.runtime.service import Repeating

REFRESH_INTERVAL_S = 0.5
EVICTION_INTERVAL_S = 1.0
START_S = 1.0  #: of one reconcile for starting tasks; one task longer at most
CHECK_INTERVAL_S = 1.0
CHECK_PAUSES = 20  #: minimum pause between watermark checks, as a multiple of their duration
REPORT_PAUSES = 50  #: minimum pause between reports, as a multiple of their duration
DRAIN_SNAPSHOT_S = 1.0  #: between snapshots during a drain
SAVE_S = 0.2  #: of one round for snapshots; one snapshot longer at most
ROUND_INTERVAL_S = 0.05
TAKE_S = 0.2  #: of one round for the batches of a task; one batch longer at most

STEPS = ("start", "act", "follow", "take", "write", "save", "watermark")  #: of a task, contained separately

log = structlog.get_logger(__name__)


class SorterWorker:
    """The service. `start`, `wait_until_ready`, `stop` and `problems` as in tistream.runtime.service."""

    def __init__(
        self,
        catalog: Catalog,
        store: ObjectStore,
        feed: Feed,
        clock: Clock,
        *,
        worker_id: str,
        address: str = "",
        flush_interval_s: float = 0.2,
        snapshot_interval_s: float = 10.0,
        spill: Spill | None = None,
    ) -> None:
        """`spill` takes rows that exceed its budget; without it everything stays in memory."""
        self.name = worker_id
        self._catalog = catalog
        self._store = store
        self._clock = clock
        self._publisher: Publisher | None = None
        self._runners: dict[int, TaskRunner] = {}
        self._tenants: dict[Tenant, list[TaskRunner]] = {}  # the same runners; no empty lists
        self._owned = Owned(catalog, clock)
        self._steps: Containment[tuple[int, str]] = Containment(
            worker_id, clock, name=lambda at: f"task {at[0]} {at[1]}"
        )
        self._quarantines = Decisions()  # of the tenants here
        self._stopped: dict[int, str] = {}  # tasks stopped in the catalog, and why
        self._schedule = FairSchedule(clock)
        self._flushing = Flushing(worker_id, clock, self._schedule, self._tenants, self._may_write)
        self._dropped: set[tuple[int, int]] = set()  # (task, epoch) of tasks that were dropped and may come back
        self._stopping: list[TaskRunner] = []  # dropped; readers still stopping
        self._reconciled = threading.Event()
        self._state = threading.Lock()  # held during a round
        self._activities: Containment[str] = Containment(worker_id, clock)
        self._refresh = Activity(self._activities, "refresh", REFRESH_INTERVAL_S, clock)
        self._flush = Activity(self._activities, "flush", flush_interval_s, clock)
        self._save = Activity(self._activities, "snapshot", snapshot_interval_s, clock)
        self._to_save: deque[int] = deque()
        self._merging = Merging(worker_id, catalog, store, clock)
        self._merge = Activity(self._activities, "merge", ROUND_INTERVAL_S, clock)
        self._memory = None if spill is None else Memory(spill)
        self._eviction = Activity(self._activities, "memory", EVICTION_INTERVAL_S, clock)
        self._stalls = StallDetector()
        self.reports: tuple[TaskState, ...] = ()  #: of the tasks here; refreshed at most each CHECK_INTERVAL_S
        self._next_report_s = 0.0
        self._reporter = Reporter()
        self._report: WorkerReport | None = None  # made by the loop; immutable
        self._check = Activity(self._activities, "watermarks", CHECK_INTERVAL_S, clock, pauses=CHECK_PAUSES)
        self._heartbeat = Heartbeat(catalog, clock, worker_id, self.kind, address, step=self._beat)
        self._loop = Repeating(
            f"{worker_id}/loop", self._round, interval_s=min(ROUND_INTERVAL_S, flush_interval_s), clock=clock
        )
        self._pump = Pump(feed, self._loop.wake, clock)

    def start(self) -> None:
        """Register, then take up the assigned tasks."""
        self._pump.start()
        self._heartbeat.start()
        self._loop.start()

    @property
    def ready(self) -> bool:
        """Whether it is registered and has read its assignments."""
        return self._heartbeat.incarnation > 0 and self._reconciled.is_set() and not self._loop.crashed

    def wait_until_ready(self, timeout_s: float) -> bool:
        return self._heartbeat.wait_until_ready(timeout_s) and self._reconciled.wait(timeout_s) and self.ready

    def stop(self) -> None:
        """Flush and save as far as store and catalog allow, and end this incarnation."""
        self._loop.stop()
        self._heartbeat.stop()
        self._pump.stop()
        with self._state:
            for runner in [*self._runners.values(), *self._stopping]:
                runner.stop()
            self._stopping.clear()
            if not self._heartbeat.crashed and not self._loop.crashed and self._publisher is not None:
                self._finish()
            self._runners.clear()
            self._tenants.clear()

    def crash(self) -> None:
        """End as if killed, for drills: nothing more is written or saved, the catalog is not notified, and memory is
        lost. Its tasks move when its lease expires. A later `stop` does nothing."""
        self._loop.stop()
        self._heartbeat.stop()
        self._pump.stop()
        with self._state:
            for runner in [*self._runners.values(), *self._stopping]:
                runner.stop()
            self._stopping.clear()
            self._runners.clear()
            self._tenants.clear()
            self._publisher, self.reports = None, ()

    @property
    def kind(self) -> WorkerKind:
        return WorkerKind.SORTER

    def begin_drain(self) -> None:
        """Ask for the tasks to be moved off, a few at a time; until then they keep running. State is saved often, so
        that the next owner replays little."""
        self._heartbeat.drain()
        self._save.every(DRAIN_SNAPSHOT_S)

    def drained(self) -> bool:
        return count_tasks_of(self._catalog, self.name) == 0

    def problems(self) -> list[Problem]:
        problems = [*self._heartbeat.problems(), *self._loop.problems()]
        for contained in (self._activities, self._steps, self._flushing.tenants, self._merging.pairs):
            problems += contained.problems()
        problems += self._stalls.problems
        problems += [row.problem() for row in self._quarantines.open]
        problems += [
            Problem(source=f"task {task_id}", code=TaskStopped.code, message=why)
            for task_id, why in list(self._stopped.items())
            if task_id not in self._runners
        ]
        return problems + [p for runner in list(self._runners.values()) for p in runner.problems()]

    def lease_age_s(self) -> float | None:
        """Seconds since the last successful heartbeat; None before the first."""
        return self._heartbeat.succeeded_age_s

    def stats(self) -> dict[int, CoreStats]:
        with self._state:
            return {task_id: runner.core.stats() for task_id, runner in self._runners.items()}

    def explain(self, task_id: int, range_: KeyRange | None = None) -> list[Stuck]:
        """What the watermark of a task, or of a part of its range, waits for; empty when the task is not here."""
        with self._state:
            runner = self._runners.get(task_id)
            return [] if runner is None else runner.core.explain(range_)

    def _beat(self) -> None:
        if self._loop.crashed:
            raise TiStreamError("the loop has stopped; the lease will expire", worker_id=self.name)
        if self._heartbeat.beat(self._report):
            self._publisher = Publisher(self._catalog, self._store, self.name, self._heartbeat.incarnation)
            self._loop.wake()

    def _round(self) -> None:
        if self._heartbeat.crashed:
            with self._state:
                self._drop_all()
            raise self._heartbeat.ended()
        if self._publisher is None:
            return
        with self._state:
            self._refresh.run_if_due(self._reconcile)
            busy = self._take_batches()
            if self._flushing.is_busy(self._publisher):
                self._flush.run_soon()
            self._flush.run_if_due(self._write_out)
            busy = busy or self._flushing.is_busy(self._publisher)
            if self._memory is not None and self._memory.is_due():
                self._eviction.run_soon()
                self._eviction.run_if_due(self._evict)
            if self._memory is not None:
                self._memory.release()
            if self._merging.wanted:
                self._merge.run_if_due(self._merge_tasks)
            if self._to_save:
                self._save.run_soon()
            self._save.run_if_due(self._save_some)
            self._check.run_if_due(self._check_watermarks)
        if busy:
            self._loop.wake()

    def _check_watermarks(self) -> None:
        now_s = self._clock.monotonic()
        here = [runner for runner in self._runners.values() if runner.core_error is None]
        known = [runner for runner in here if self._step(runner.task_id, "watermark", runner.check_watermark)]
        self._stalls.look({r.task_id: r.core for r in known if r.broken is None}, now_s)
        shown = (problem.shown() for problem in self.problems())
        self._report = self._reporter.look(known, self._stalls.stalled_s(now_s), shown, now_s)
        self._refresh_reports(known)

    def _refresh_reports(self, runners: Collection[TaskRunner]) -> None:
        """Refresh the task reports, unless that takes more than a small share of the time."""
        began_s = self._clock.monotonic()
        if began_s >= self._next_report_s:
            self.reports = tuple(runner.report() for runner in runners)
            self._next_report_s = began_s + REPORT_PAUSES * (self._clock.monotonic() - began_s)

    def _reconcile(self) -> None:
        """Start and stop runners as the catalog says, each contained."""
        self._stopping = [runner for runner in self._stopping if runner.is_stopping]
        owned = self._owned.look(self.name, self._heartbeat.incarnation, is_here=self._is_here)
        for task_id, runner in list(self._runners.items()):
            row = owned.get(task_id)
            gone = row is None or row.epoch != runner.row.epoch or row.error is not None
            if gone or runner.core_error is not None:
                self._drop(task_id)
        self._dropped &= {(row.task_id, row.epoch) for row in owned.values()}
        self._stopped = {row.task_id: row.error for row in owned.values() if row.error is not None}
        if self._steps.problems():
            self._steps.keep_only({(id_, name) for id_ in owned if id_ not in self._stopped for name in STEPS})
        until = self._clock.monotonic() + START_S
        for row in _start_order(owned.values()):
            if row.error is None and row.task_id not in self._runners and self._may_start(row.task_id):
                self._step(row.task_id, "start", partial(self._start, row))
                if self._clock.monotonic() > until:  # running tasks must not wait for all new ones
                    break
        for task_id, runner in list(self._runners.items()):
            self._step(task_id, "act", runner.act)
            if runner.ended:  # an operator may retry it at any time
                self._stopped[task_id] = str(runner.broken)
                self._drop(task_id)
        self._follow_stores()
        self._merging.look(owned, self._runners)
        self._reconciled.set()

    def _is_here(self, task_id: int) -> bool:
        runner = self._runners.get(task_id)
        return runner is not None and runner.core_error is None

    def _start(self, row: TaskRow) -> None:
        try:
            runner = TaskRunner.load(row, self._catalog, self._store)
        except StateUnreadable as e:
            log.error("task stopped", task=row.task_id, error=str(e))
            if not stop_task(self._catalog, row.task_id, epoch=row.epoch, error=str(e)):
                raise Fenced(task=row.task_id, epoch=row.epoch) from e
            self._stopped[row.task_id] = str(e)
            return
        if (row.task_id, row.epoch) in self._dropped:
            runner.note_flush()  # its next save detects a late switch by the earlier load
        self._runners[row.task_id] = runner
        self._tenants.setdefault(row.tenant, []).append(runner)

    def _may_write(self, runner: TaskRunner) -> bool:
        return not runner.halted and self._steps.is_due((runner.task_id, "write"))

    def _may_start(self, task_id: int) -> bool:
        """Whether no step of a task that is not here waits after an error."""
        return all(self._steps.is_due((task_id, name)) for name in STEPS)

    def _follow_stores(self) -> None:
        """Subscribe every task to all stores of its tenant, except quarantined ones."""
        tenants = {runner.row.tenant for runner in self._runners.values()}
        store_ids = stores_of_tenants(self._catalog, tenants) if tenants else {}
        self._quarantines = decisions(self._catalog, tenants) if tenants else Decisions()
        for runner in list(self._runners.values()):
            if not runner.halted:
                of_tenant = store_ids.get(runner.row.tenant, frozenset[int]())
                self._step(runner.task_id, "follow", partial(self._follow, runner, of_tenant))

    def _follow(self, runner: TaskRunner, store_ids: Set[int]) -> None:
        tenant = runner.row.tenant
        held = self._quarantines.held.get(tenant, frozenset())
        runner.apply_quarantines(held, self._quarantines.rejected.get(tenant, frozenset()))
        runner.follow(store_ids - held, self._pump.read)

    def _take_batches(self) -> bool:
        """Let every task take batches, as far as memory allows; whether there is more to do at once."""
        tenants: dict[Tenant, None] = {}  # with batches taken
        more = False
        for runner in self._schedule.tasks(self._runners):
            if self._step(runner.task_id, "take", partial(self._take, runner, tenants)):
                more = more or runner.more
        if tenants and self._flushing.has_a_full_file(tenants):
            self._flush.run_soon()
        return more or self._schedule.waiting

    def _take(self, runner: TaskRunner, tenants: dict[Tenant, None]) -> None:
        bytes_max = sys.maxsize if self._memory is None else self._memory.allowance(runner.task_id)
        began = self._clock.monotonic()
        until = began + TAKE_S
        absorbed = runner.absorb(FEED_QUEUE_BATCHES_MAX, bytes_max, lambda: self._clock.monotonic() > until)
        tenants[runner.row.tenant] = None
        self._flushing.touch(runner.row.tenant)
        if absorbed.batches:
            measures.absorbed(
                absorbed, runner.cut_timestamps, seconds=self._clock.monotonic() - began, clock=self._clock
            )
        if self._memory is not None:
            self._memory.took(absorbed.nbytes, settling=runner.core.settling)
        if runner.contradicted:
            self._refresh.run_soon()  # it is recorded before anything else is served
        error = runner.core_error or absorbed.error
        if error is not None:
            raise error

    def _evict(self) -> None:
        assert self._memory is not None
        assert self._publisher is not None
        runners = self._runners.values()
        self._memory.evict([(r.task_id, r.held_bytes(), r.core) for r in runners], self._publisher.held_bytes())

    def _write_out(self) -> None:
        assert self._publisher is not None
        outcome = self._flushing.write(self._publisher)
        for task_id in outcome.gone:
            self._drop(task_id)
        for task_id, error in outcome.failed.items():
            self._failed(task_id, "write", error)
        for task_id in outcome.written:
            self._steps.forget((task_id, "write"))

    def _write_all(self) -> None:
        assert self._publisher is not None
        self._flushing.write_all(self._publisher)

    def _merge_tasks(self) -> None:
        """Advance the requested merges; the next reconcile loads a merged task."""
        assert self._publisher is not None
        gone = self._merging.step(self._runners, self._publisher)
        for task_id in gone:
            self._drop(task_id)
        if gone:
            self._refresh.run_soon()

    def _save_some(self) -> None:
        """Save tasks with a due snapshot for SAVE_S; the rest is saved in the next round."""
        if not self._to_save:
            many_tasks = len(self._runners) >= MANY_TASKS
            due = (id_ for id_, runner in self._runners.items() if runner.should_save(many_tasks=many_tasks))
            self._to_save.extend(due)
        until = self._clock.monotonic() + SAVE_S
        while self._to_save and self._clock.monotonic() < until:
            task_id = self._to_save.popleft()
            if task_id in self._runners:
                self._step(task_id, "save", self._runners[task_id].save)

    def _save_all(self) -> None:
        for task_id, runner in list(self._runners.items()):
            self._step(task_id, "save", runner.save)

    def _finish(self) -> None:
        """Last flush and snapshot of an orderly stop; retire even if they fail."""
        for step in (self._write_all, self._save_all, self._heartbeat.retire):
            try:
                step()
            except TiStreamError as e:
                log.warning("could not finish cleanly; the next owner replays", worker=self.name, error=str(e))

    def _step(self, task_id: int, name: str, step: Callable[[], None]) -> bool:
        """Run one step of a task, contained; whether it ran and succeeded. Fenced drops the task."""
        try:
            return self._steps.run((task_id, name), partial(self._run_or_stop, task_id, step))
        except Fenced as e:
            log.warning("task fenced", task=task_id, error=str(e))
            self._drop(task_id)
            return False

    def _run_or_stop(self, task_id: int, step: Callable[[], None]) -> None:
        """Run a step; an unreadable state stops the task for good."""
        try:
            step()
        except StateUnreadable as e:
            self._runners[task_id].stop_for(e)

    def _failed(self, task_id: int, name: str, error: Exception) -> None:
        """Record the error of a step that ran together with those of other tasks."""
        runner = self._runners.get(task_id)
        if isinstance(error, StateUnreadable) and runner is not None:
            runner.stop_for(error)
        else:
            self._steps.failed((task_id, name), error)

    def _drop(self, task_id: int) -> None:
        runner = self._runners.pop(task_id, None)
        if runner is not None:
            of_tenant = self._tenants[runner.row.tenant]
            of_tenant.remove(runner)
            if not of_tenant:
                del self._tenants[runner.row.tenant]
            runner.ask_to_stop()
            self._stopping.append(runner)
            self._dropped.add((task_id, runner.row.epoch))
            log.info("task dropped", task=task_id, epoch=runner.row.epoch)

    def _drop_all(self) -> None:
        for task_id in list(self._runners):
            self._drop(task_id)


def _start_order(rows: Collection[TaskRow]) -> Iterable[TaskRow]:
    """The order in which tasks are started. With many tasks, those written out last go first: their tenants write."""
    return rows if len(rows) < MANY_TASKS else sorted(rows, key=lambda row: -row.durable_ts)
