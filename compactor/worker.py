"""Executor process of maintenance jobs: takes leased jobs from the catalog, several at once.

    heartbeat thread   registers this incarnation and renews its lease; operators and the scheduler see it
    slot threads       each: lease a job -> run it -> the next; without one, wait

It may be killed at any instruction: a job's lease runs out and another executor takes it, and a job is published once
or not at all, by its own transaction. `stop` gives jobs back that do not end in time.

A job's lease is renewed while its work runs, and its end is recorded. The work stops when its lease is lost (another
executor has the job, or an operator cancelled it), when the lease could not be renewed for as long as it holds, and
when the process ends. Work that is stopped too late harms nothing: what it publishes is guarded by its own transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog

from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.jobs import JobCounts, JobExecutor, JobKind, JobRow, JobState
from tistream.catalog.rows.workers import WorkerKind
from tistream.catalog.work import jobs
from tistream.catalog.work.heartbeat import Heartbeat
from tistream.catalog.work.jobs import lease
from tistream.clock import Clock
from tistream.errors import CatalogUnavailable, ErrorKind, Fenced, TiStreamError
from tistream.limits import JOB_LEASE_MS, JOB_RENEW_MS
from tistream.model.problem import Problem
from tistream.runtime.service import Backoff, Repeating

log = structlog.get_logger(__name__)

_LASTING = (ErrorKind.CORRUPT, ErrorKind.NOT_FOUND, ErrorKind.INVALID)  # a retry cannot help


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDone:
    """What a job did."""

    outcome: str  #: in the words of its kind
    counts: JobCounts = field(default_factory=JobCounts)
    failed: bool = False  #: all of its work was left out
    code: str = ""  #: the first error of what was left out; empty without one
    error: str = ""


Progress = Callable[[int, int], None]
Work = Callable[[JobRow, Progress], JobDone]


class _GivenBack(Exception):
    """The process ends."""


class JobRun:
    """A job that this process has leased. `run` is for one thread; `stop` and `give_back` for any."""

    def __init__(self, catalog: Catalog, clock: Clock, job: JobRow, *, renew_s: float = JOB_RENEW_MS / 1000) -> None:
        self.job = job
        self._catalog, self._clock = catalog, clock
        self._leased_s = clock.monotonic()
        self._parts = (0, 0)
        self._lost = self._stopped = False
        self._settled = threading.Event()
        self._renewal = Repeating(f"job {job.job_id}", self._renew, interval_s=renew_s, clock=clock, lasting=True)

    def run(self, work: Work) -> JobState | None:
        """Do the work and record its end; the state of the job then, None when it is no longer this lease's."""
        self._renewal.start()
        try:
            end = self._worked(work)
        finally:
            self._renewal.stop()
        if end is None:
            self._settled.set()
            log.warning("lease of a job lost", job=self.job.job_id, tenant=str(self.job.tenant), kind=self.job.kind)
            return None
        return self._recorded(end)

    def progress(self, done: int, total: int) -> None:
        """Note how far the work is. Raises when it must stop."""
        self._parts = done, total
        if self._stopped:
            raise _GivenBack
        if self._is_lost():
            raise self._fenced()

    def stop(self) -> None:
        """Let the work end at its next call of `progress`, and give the job back."""
        self._stopped = True

    def give_back(self) -> None:
        """After `stop`, when the work has not ended in time: another executor may take the job now."""
        if not self._settled.is_set():
            self._lost = True
            jobs.release(self._catalog, self.job)

    def _worked(self, work: Work) -> Callable[[], JobState] | None:
        """How to record the end; None when the lease is lost."""
        job, catalog = self.job, self._catalog
        try:
            done = work(job, self.progress)
        except _GivenBack:
            return self._released
        except Exception as e:  # noqa: BLE001 - recorded with the job
            if self._is_lost():
                return None
            return self._failing(e)
        if self._is_lost():
            return None
        if done.failed:
            return lambda: jobs.fail(catalog, job, code=done.code, error=done.error, retryable=False)

        def finish() -> JobState:
            jobs.finish(catalog, job, done.counts, outcome=done.outcome, code=done.code, error=done.error)
            return JobState.DONE

        return finish

    def _failing(self, error: Exception) -> Callable[[], JobState]:
        """A retry cannot help an object that is damaged or missing; a defect may be one of this executor."""
        job, code, text, kind = self.job, TiStreamError.code, f"{type(error).__name__}: {error}", ErrorKind.INTERNAL
        if isinstance(error, TiStreamError):
            code, text, kind = error.code, str(error), error.kind
        if kind is not ErrorKind.RETRY:
            log.error("job failed", job=job.job_id, tenant=str(job.tenant), kind=job.kind, exc_info=error)
        return lambda: jobs.fail(self._catalog, job, code=code, error=text, retryable=kind not in _LASTING)

    def _released(self) -> JobState:
        jobs.release(self._catalog, self.job)
        return JobState.QUEUED

    def _recorded(self, end: Callable[[], JobState]) -> JobState | None:
        """Record the end, again while the catalog is unavailable, as long as the lease holds."""
        backoff = Backoff(first_s=0.2, max_s=5.0)
        try:
            while True:
                try:
                    return end()
                except Fenced:
                    return None
                except CatalogUnavailable:
                    if self._is_lost():
                        return None
                    self._clock.wait(threading.Event(), backoff.next_s())
        finally:
            self._settled.set()

    def _renew(self) -> None:
        done, total = self._parts
        begun_s = self._clock.monotonic()
        try:
            jobs.renew(self._catalog, self.job, done=done, total=total)
        except Fenced:
            self._lost = True
            return
        self._leased_s = begun_s

    def _is_lost(self) -> bool:
        return self._lost or (self._clock.monotonic() - self._leased_s) * 1000 >= JOB_LEASE_MS

    def _fenced(self) -> Fenced:
        return Fenced("the lease of this job is lost", job_id=self.job.job_id, epoch=self.job.epoch)


POLL_S = 1.0
STOP_S = 5.0  #: for running jobs, before they are given back
COMPACTION = (JobKind.MERGE, JobKind.BASES, JobKind.RETIRE_SEEDS)
ALL_KINDS = (*COMPACTION, JobKind.REPLAY)


class MaintenanceWorker:
    """The service. `start`, `wait_until_ready`, `stop` and `problems` as in tistream.runtime.service."""

    def __init__(
        self,
        catalog: Catalog,
        clock: Clock,
        name: str,
        work: Work,
        *,
        kind: WorkerKind = WorkerKind.MAINTAIN,
        executors: Sequence[JobExecutor] = (JobExecutor.THREADS,),
        kinds: Collection[JobKind] = COMPACTION,
        slots: int = 1,
        poll_s: float = POLL_S,
        stop_s: float = STOP_S,
    ) -> None:
        """`executors`: the jobs that it takes, by the least executor that they need. `slots`: jobs at once."""
        self.name = name
        self._catalog, self._clock, self._work = catalog, clock, work
        self._executors, self._kinds, self._stop_s = executors, kinds, stop_s
        self._stopping = threading.Event()
        self._runs: dict[int, JobRun] = {}  # by slot
        self._heartbeat = Heartbeat(catalog, clock, name, kind, step=self._beat)
        self._slots = [
            Repeating(f"{name}/slot {n}", partial(self._round, n), interval_s=poll_s, clock=clock, lasting=True)
            for n in range(slots)
        ]

    def start(self) -> None:
        """Register, then take jobs."""
        self._heartbeat.start()
        for slot in self._slots:
            slot.start()

    def wait_until_ready(self, timeout_s: float) -> bool:
        return self._heartbeat.wait_until_ready(timeout_s)

    def stop(self) -> None:
        """Stop taking jobs; running ones are given back, at the latest after `stop_s`."""
        self._stopping.set()
        for run in list(self._runs.values()):
            run.stop()
        deadline_s = self._clock.monotonic() + self._stop_s
        for slot in self._slots:
            slot.stop(max(0.0, deadline_s - self._clock.monotonic()))
        for run in list(self._runs.values()):
            self._give_back(run)
        self._heartbeat.retire()

    def problems(self) -> list[Problem]:
        return [problem for part in (self._heartbeat, *self._slots) for problem in part.problems()]

    def lease_age_s(self) -> float | None:
        """Seconds since the last successful heartbeat; None before the first."""
        return self._heartbeat.succeeded_age_s

    @property
    def running(self) -> list[JobRow]:
        """The jobs that run here now."""
        return [run.job for run in list(self._runs.values())]

    def _beat(self) -> None:
        if self._heartbeat.beat():
            for slot in self._slots:
                slot.wake()

    def _round(self, slot: int) -> None:
        """Run the jobs that are due, one after the other."""
        if self._heartbeat.crashed:
            self._stopping.set()
            raise self._heartbeat.ended()
        incarnation = self._heartbeat.incarnation
        while incarnation and not self._stopping.is_set():
            job = lease(self._catalog, f"{self.name}/{incarnation} {slot}", self._executors, kinds=self._kinds)
            if job is None:
                return
            run = self._runs[slot] = JobRun(self._catalog, self._clock, job)
            try:
                if self._stopping.is_set():  # `stop` has not seen this run
                    run.stop()
                state = run.run(self._work)
                log.info("job ended", job=job.job_id, tenant=str(job.tenant), kind=job.kind, state=state)
            finally:
                del self._runs[slot]

    def _give_back(self, run: JobRun) -> None:
        try:
            run.give_back()
        except TiStreamError as e:
            log.warning("could not give a job back, its lease will expire", job=run.job.job_id, error=str(e))
