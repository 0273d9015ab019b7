"""Executor process of maintenance jobs: takes leased jobs from the catalog, several at once.

    heartbeat thread   registers this incarnation and renews its lease; operators and the scheduler see it
    slot threads       each: lease a job -> run it (`compactor.job_run`) -> the next; without one, wait

It may be killed at any instruction: a job's lease runs out and another executor takes it, and a job is published once
or not at all, by its own transaction. `stop` gives jobs back that do not end in time.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from functools import partial

import structlog

from compactor.job_run import JobRun, Work
from tistream.catalog.database.engine import Catalog
from tistream.catalog.work.job_rows import JobExecutor, JobKind, JobRow
from tistream.catalog.work.jobs import lease
from tistream.catalog.work.workers import WorkerKind, heartbeat, register_worker, retire_worker
from tistream.clock import Clock
from tistream.errors import Fenced, TiStreamError
from tistream.limits import HEARTBEAT_MS
from tistream.runtime.service import Problem, Repeating

log = structlog.get_logger(__name__)

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
        self._catalog, self._clock, self._work, self._kind = catalog, clock, work, kind
        self._executors, self._kinds, self._stop_s = executors, kinds, stop_s
        self._incarnation = 0
        self._registered, self._stopping = threading.Event(), threading.Event()
        self._runs: dict[int, JobRun] = {}  # by slot
        self._heartbeat = Repeating(f"{name}/heartbeat", self._beat, interval_s=HEARTBEAT_MS / 1000, clock=clock)
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
        self._heartbeat.stop()
        if self._incarnation and not self._heartbeat.crashed:
            try:
                retire_worker(self._catalog, self.name, self._incarnation)
            except TiStreamError as e:
                log.warning("could not retire, the lease will expire", worker=self.name, error=str(e))

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
        if self._incarnation:
            heartbeat(self._catalog, self.name, self._incarnation)
            return
        self._incarnation = register_worker(self._catalog, self.name, self._kind, "")
        self._registered.set()
        for slot in self._slots:
            slot.wake()

    def _round(self, slot: int) -> None:
        """Run the jobs that are due, one after the other."""
        if self._heartbeat.crashed:
            self._stopping.set()
            raise Fenced("a newer process runs under this worker's name", worker_id=self.name)
        while self._registered.is_set() and not self._stopping.is_set():
            job = lease(self._catalog, f"{self.name}/{self._incarnation} {slot}", self._executors, kinds=self._kinds)
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
