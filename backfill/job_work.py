"""The work of a maintenance job of kind `replay`: a backlog, replayed on the executor's threads or Spark session.

A replay that dies leaves what it has handed over, and its tasks go back to sorters when its worker lease runs out. The
next lease of the job registers under the same worker name, which fences a replay that still runs, and continues.
"""

from __future__ import annotations

from backfill.executors import Executor
from backfill.job import Replay, ReplaySettings
from compactor.job_run import JobDone, Progress
from tistream.catalog.database.engine import Catalog
from tistream.catalog.work.job_rows import JobCounts, JobRow
from tistream.clock import Clock
from tistream.objectstore.protocol import ObjectStore


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
