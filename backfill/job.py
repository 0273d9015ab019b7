"""Replays the backlog of one tenant, and hands the result over to the live sorters.

    take the tasks -> snapshots, positions -> backlog -> survey            only the epochs have changed
    per batch:  plan -> executor: a log and a state of each partition     nothing is visible
                join the states of a task -> one transaction per task     durable watermark, log, snapshot, positions
    release the tasks

A batch is a stretch of the backlog of limited size: what was handed over stays when the driver dies, and its objects
are named before a collector takes them for orphans. Each task is handed over separately; readers see the lowest
`durable_ts` of all. A driver that dies leaves orphan objects, and tasks that sorters take over when its lease expires;
a repeat takes the tasks again and continues.

A commit that cannot be decided may hold a partition below the end of the batch. Then the partitions of that task run
again, up to where the lowest ended: the same files give the same rows, so all of them reach it.

A lost reply to a hand-over is read back: my epoch and my snapshot mean that it took effect (`lost_reply`).

A replay holds the tenant's tasks as a worker with an incarnation and a lease. While it is alive the meta server leaves
its tasks alone; the sorters that had them drop them, and their later writes are refused. When it retires, or its lease
expires, the tasks are assigned to sorters. Of two replays of one tenant the later one wins: it registers under the same
name, which fences the earlier one. So does the next lease of a maintenance job.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Self

import structlog

from backfill.core.plan import ReplayPlanRow, plan
from backfill.replay import Executor, PartitionResult
from backfill.survey import Batch, Survey, find_backlog
from compactor.worker import JobDone, Progress
from sorter.core.watermark import RangeWatermarkMap
from sorter.state.join_snapshots import joined
from sorter.state.saving import Save
from sorter.state.snapshot import read_state_file
from sorter.worker.stored_core import loaded
from tistream.admin.core.units import duration_text
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.lost_reply import Attempt, attempting, settle
from tistream.catalog.database.service_time import service_time
from tistream.catalog.log.committed import TaskAdvance, find_segments
from tistream.catalog.log.snapshots import NewSnapshot
from tistream.catalog.log.snapshots import positions as read_positions
from tistream.catalog.rows.jobs import JobCounts, JobRow
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.rows.workers import WorkerKind
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.catalog.work.handover import hand_over, take_tasks
from tistream.catalog.work.heartbeat import Heartbeat
from tistream.catalog.work.tasks import get_task
from tistream.clock import Clock
from tistream.errors import CatalogUnavailable, Fenced, InvalidInput, invariant
from tistream.ids import Tenant
from tistream.limits import CLOCK_SKEW_MAX_MS
from tistream.model.positions import Positions
from tistream.objectstore.layout import SnapshotKey
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime.service import Backoff

log = structlog.get_logger(__name__)

SURVEY_THREADS = 8
HAND_OVER_TRIES = 5
_LISTED_MAX = 100_000  # segments in which one partition looks for repeated rows


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaySettings:
    """Limits of a replay."""

    until: int | None = None  #: hand over at this timestamp at the latest
    partitions: int = 2  #: about how many work at once
    batch_bytes: int = 1 << 30  #: batch files that are handed over together
    memory_bytes: int = 0  #: rows that one partition holds; 0 = a share of the machine's
    skew_max_ms: int = CLOCK_SKEW_MAX_MS  #: how far files may be ahead of the service's time


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """Result of a replay."""

    tenant: Tenant
    tasks: int
    batches: int = 0
    files: int = 0  #: batch files, each once
    bytes: int = 0  #: of these files
    rows: int = 0  #: of the log
    log_files: int = 0
    log_bytes: int = 0
    repeated: int = 0  #: rows that the log held already, below what their store had promised
    resolved_ts: int = 0  #: the least `durable_ts` of the tasks
    seconds: float = 0.0


@dataclass(slots=True)
class _Held:
    """A task that this replay owns."""

    row: TaskRow
    positions: Positions


class Replay:
    """One run."""

    def __init__(
        self,
        catalog: Catalog,
        store: ObjectStore,
        clock: Clock,
        tenant: Tenant,
        executor: Executor,
        settings: ReplaySettings,
    ) -> None:
        self._catalog, self._store, self._tenant = catalog, store, tenant
        self._executor, self._settings = executor, settings
        self._clock = clock
        self._tasks: dict[int, _Held] = {}

    def run(self, progress: Callable[[int, int, str], None] = lambda done, total, note: None) -> ReplayReport:
        """Run the replay. `progress` is called with (files done, files, note).

        Errors of the executor end it; what was handed over stays. InvalidInput when the tenant has no tasks; Fenced
        when they were reassigned; StateForbids when the tenant is paused, or was paused meanwhile."""
        clock, begun = self._clock, self._clock.monotonic()
        if get_tenant(self._catalog, self._tenant).state is TenantState.AWAITING_SNAPSHOT:
            raise InvalidInput(
                "the tenant has no tasks yet: start a meta server to read its schema snapshot", tenant=self._tenant
            )
        with Ownership(self._catalog, self._tenant, clock) as ownership, ThreadPoolExecutor(SURVEY_THREADS) as pool:
            self._tasks = {
                row.task_id: _Held(row, read_positions(self._catalog, row.task_id)) for row in ownership.take()
            }
            report = ReplayReport(tenant=self._tenant, tasks=len(self._tasks))
            held = {task_id: task.positions for task_id, task in self._tasks.items()}
            backlog = find_backlog(self._catalog, self._store, self._tenant, held)
            time = service_time(self._catalog, clock, self._settings.skew_max_ms)
            survey = Survey(self._store, self._tenant, backlog, pool, time)
            for task_id, task in self._tasks.items():
                survey.add(task_id, self._watermarks(task.row), task.positions)
            total = sum(len(stream.sizes) for streams in backlog.values() for stream in streams)
            progress(0, total, "")
            while (batch := survey.take(self._settings.batch_bytes, self._settings.until)) is not None:
                shown = _Progress(progress, report, batch, total, begun, clock)
                results = self._run_batch(batch, shown.in_batch)
                ownership.check()
                for task_id, of_task in results.items():
                    self._hand_over(self._tasks[task_id], of_task)
                report = _plus(report, batch, results)
                progress(report.files, total, _note(report.files, total, report.bytes, clock.monotonic() - begun))
        resolved_ts = min((task.row.durable_ts for task in self._tasks.values()), default=0)
        report = replace(report, resolved_ts=resolved_ts, seconds=clock.monotonic() - begun)
        log.info(
            "replay done",
            tenant=str(self._tenant),
            files=report.files,
            rows=report.rows,
            repeated=report.repeated,
            resolved_ts=resolved_ts,
        )
        return report

    def _watermarks(self, row: TaskRow) -> RangeWatermarkMap:
        """The watermark map of a task's snapshot."""
        watermarks = RangeWatermarkMap(row.range, row.start_ts, durable_ts=row.durable_ts)
        if row.snapshot_key is not None:
            state = read_state_file(row.snapshot_key, self._store.get(row.snapshot_key)).state
            watermarks.restore(state.slices, state.waiting)
        return watermarks

    def _run_batch(
        self, batch: Batch, progress: Callable[[int, int], None]
    ) -> dict[int, list[tuple[ReplayPlanRow, PartitionResult]]]:
        """task -> its partitions with their results, all up to the same timestamp."""
        rows = plan(
            [task.row for task in self._tasks.values()],
            {task_id: task.positions for task_id, task in self._tasks.items()},
            batch.steps,
            {task_id: max(w, self._tasks[task_id].row.durable_ts) for task_id, w in batch.upto.items()},
            batch.weights,
            partitions=self._settings.partitions,
            memory_bytes=self._settings.memory_bytes,
        )
        done: dict[int, PartitionResult] = {}
        remaining = rows
        while remaining:
            done |= self._results(remaining, progress)
            rows = _lowered(rows, done)
            remaining = [row for row in rows if done[row.partition].reached != row.upto]
        results: dict[int, list[tuple[ReplayPlanRow, PartitionResult]]] = {}
        for row in rows:
            results.setdefault(row.task_id, []).append((row, done[row.partition]))
        return results

    def _results(
        self, rows: Sequence[ReplayPlanRow], progress: Callable[[int, int], None]
    ) -> dict[int, PartitionResult]:
        """partition -> its result. One that asks for the log is run again with it."""
        done: dict[int, PartitionResult] = {}
        while rows:
            done |= {result.partition: result for result in self._executor(rows, progress)}
            invariant(all(row.partition in done for row in rows), "each partition has a result")
            asked = ((row, done[row.partition].asks_above) for row in rows)
            rows = [self._with_log(row, above) for row, above in asked if above is not None]
        return done

    def _with_log(self, row: ReplayPlanRow, above: int) -> ReplayPlanRow:
        """The same work with the log of its range: above the timestamp that it asks for, and all of it when it asks
        again."""
        above = above if row.logged_above is None else 0
        segments = find_segments(
            self._catalog,
            row.tenant,
            after_ts=above,
            upto_ts=row.durable_ts,
            kind=self._tasks[row.task_id].row.kind,
            limit=_LISTED_MAX,
        )
        mine = [
            s for s in segments if s.end_key >= row.range.start and (not row.range.end or s.start_key < row.range.end)
        ]
        return replace(row, logged_above=above, logged=tuple(mine))

    def _hand_over(self, task: _Held, partitions: Sequence[tuple[ReplayPlanRow, PartitionResult]]) -> None:
        """Commit the results of a task's partitions in one transaction."""
        row, results = task.row, [result for _, result in partitions]
        reached = partitions[0][0].upto
        states = [read_state_file(r.state_key, self._store.get(r.state_key)) for r in results]
        state = joined(row.range, [read.state for read in states])
        key = SnapshotKey(tenant=row.tenant, task_id=row.task_id, epoch=row.epoch, n=row.snapshot_no + 1)
        save = loaded(partial(Save, state, _one_after_another(key), secrets.token_hex(16)), self._store.get_range)
        for name, data in save.objects():
            self._store.put(name, data)
        written = {name: size for r in results for name, size in r.state_objects.items()}
        snapshot = NewSnapshot(
            key=str(save.key),
            n=save.key.n,
            objects={**{name: size for name, size in written.items() if name in save.keeps}, **save.new},
            keeps=save.keeps - written.keys(),
            positions=state.positions,
            seen_n=row.snapshot_no,
        )
        advance = TaskAdvance(
            task_id=row.task_id,
            epoch=row.epoch,
            seen_durable_ts=row.durable_ts,
            new_durable_ts=reached,
            segments=tuple(segment for r in results for segment in r.segments),
        )
        objects = {name: size for r in results for name, size in r.log_objects.items()}
        self._commit(row, objects, advance, snapshot)
        task.row = replace(row, durable_ts=reached, snapshot_key=snapshot.key, snapshot_no=snapshot.n)
        task.positions = state.positions

    def _commit(self, row: TaskRow, objects: Mapping[str, int], advance: TaskAdvance, snapshot: NewSnapshot) -> None:
        """Retry until the outcome is known."""
        pauses, never, attempt = Backoff(first_s=0.2, max_s=5.0), threading.Event(), Attempt()
        for tries_left in reversed(range(HAND_OVER_TRIES)):
            try:
                if settle([attempt], lambda _: self._took_effect(row, snapshot), False):
                    return
                with attempting([attempt]):
                    if hand_over(self._catalog, row.tenant, objects=objects, advance=advance, snapshot=snapshot):
                        return
                raise Fenced("the task was reassigned during the replay", task=row.task_id, epoch=row.epoch)
            except CatalogUnavailable as e:
                log.warning("hand-over failed, retrying", task=row.task_id, tries_left=tries_left, error=str(e))
                if not tries_left:
                    raise
                self._clock.wait(never, pauses.next_s())

    def _took_effect(self, row: TaskRow, snapshot: NewSnapshot) -> bool:
        task = get_task(self._catalog, row.task_id)
        return (task.epoch, task.snapshot_key) == (row.epoch, snapshot.key)


def _lowered(rows: Sequence[ReplayPlanRow], done: Mapping[int, PartitionResult]) -> list[ReplayPlanRow]:
    """The same plan, each task up to the timestamp that all of its partitions reached."""
    reached: dict[int, int] = {}
    for row in rows:
        reached[row.task_id] = min(done[row.partition].reached, reached.get(row.task_id, row.upto))
    return [replace(row, upto=reached[row.task_id]) for row in rows]


def _one_after_another(first: SnapshotKey) -> Callable[[], SnapshotKey]:
    numbers = iter(range(first.n, first.n + (1 << 32)))
    return lambda: replace(first, n=next(numbers))


def _plus(
    report: ReplayReport, batch: Batch, results: Mapping[int, Sequence[tuple[ReplayPlanRow, PartitionResult]]]
) -> ReplayReport:
    done = [result for of_task in results.values() for _, result in of_task]
    return replace(
        report,
        batches=report.batches + 1,
        files=report.files + batch.files,
        bytes=report.bytes + batch.nbytes,
        rows=report.rows + sum(result.rows for result in done),
        log_files=report.log_files + sum(len(result.log_objects) for result in done),
        repeated=report.repeated + sum(result.repeated for result in done),
        log_bytes=report.log_bytes + sum(sum(result.log_objects.values()) for result in done),
    )


def _note(done: int, total: int, nbytes: int, seconds: float) -> str:
    """Rate and remaining time; empty before the first file is done."""
    if not done:
        return ""
    left_ms = seconds * (total - done) / done * 1000
    return f"{nbytes / 1e6 / max(seconds, 1e-9):.1f} MB/s, about {duration_text(left_ms)} left"


@dataclass(frozen=True, slots=True)
class _Progress:
    """Progress during a batch: a finished partition counts as its share of the batch's files."""

    progress: Callable[[int, int, str], None]
    before: ReplayReport
    batch: Batch
    total: int
    begun: float
    clock: Clock

    def in_batch(self, done: int, partitions: int) -> None:
        files = self.before.files + self.batch.files * done // max(partitions, 1)
        nbytes = self.before.bytes + self.batch.nbytes * done // max(partitions, 1)
        self.progress(files, self.total, _note(files, self.total, nbytes, self.clock.monotonic() - self.begun))


class Ownership:
    """Context manager: registered on entry, retired on exit."""

    def __init__(self, catalog: Catalog, tenant: Tenant, clock: Clock) -> None:
        self.worker_id = f"replay-{tenant.cluster_id}-{tenant.tenant_id}"
        self._catalog, self._tenant = catalog, tenant
        self._heartbeat = Heartbeat(catalog, clock, self.worker_id, WorkerKind.REPLAY)

    def __enter__(self) -> Self:
        self._heartbeat.register()
        self._heartbeat.start()
        return self

    def take(self) -> list[TaskRow]:
        """Take the tenant's tasks that are not stopped, under new epochs."""
        return take_tasks(self._catalog, self._tenant, self.worker_id, self._heartbeat.incarnation)

    def check(self) -> None:
        """Fenced when another replay has started. Only saves work: epochs guard the hand-over."""
        if self._heartbeat.crashed:
            raise Fenced("another replay of this tenant has started", worker_id=self.worker_id)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._heartbeat.retire()


class ReplayWork:
    """A Work."""

    def __init__(self, catalog: Catalog, store: ObjectStore, clock: Clock, executor: Executor, partitions: int) -> None:
        self._catalog, self._store, self._clock = catalog, store, clock
        self._executor, self._partitions = executor, partitions

    def __call__(self, job: JobRow, progress: Progress) -> JobDone:
        """Replay the tenant's backlog to its end."""
        settings = ReplaySettings(partitions=self._partitions)
        run = Replay(self._catalog, self._store, self._clock, job.tenant, self._executor, settings)
        report = run.run(lambda done, total, note: progress(done, total))
        counts = JobCounts(
            bytes_read=report.bytes,
            bytes_written=report.log_bytes,
            objects_before=report.files,
            objects_after=report.log_files,
        )
        return JobDone(outcome="replayed" if report.files else "nothing to do", counts=counts)
