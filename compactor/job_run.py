"""One leased maintenance job: its lease is renewed while its work runs, and its end is recorded.

    thread of the caller    the work, which calls `progress`; that raises when the work must stop
    renewal thread          every JOB_RENEW_MS: renew the lease, with the progress

The work stops when its lease is lost (another executor has the job, or an operator cancelled it), when the lease could
not be renewed for as long as it holds, and when the process ends (`stop`: the job is given back). Work that is stopped
too late harms nothing: what it publishes is guarded by its own transaction.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from tistream.catalog.database.engine import Catalog
from tistream.catalog.work import jobs
from tistream.catalog.work.job_rows import JobCounts, JobRow, JobState
from tistream.clock import Clock
from tistream.errors import CatalogUnavailable, ErrorKind, Fenced, TiStreamError
from tistream.limits import JOB_LEASE_MS, JOB_RENEW_MS
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
