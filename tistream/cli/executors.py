"""Builds what decides about maintenance jobs and what does them, from settings: for `tistream up`, `maintain`, `spark`.

Which process does a job: threads of `tistream up` when that is the whole service; `tistream maintain` where the roles
are processes of their own; `tistream spark` also takes what is too large for threads. A meta server does none: it must
answer a takeover at any time, and is one process for all tenants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backfill.executors import Executor as ReplayExecutor
    from compactor.job_run import Progress, Work
    from compactor.maintenance import Executors, Plans
    from compactor.session import SessionWatch
    from compactor.worker import MaintenanceWorker
    from metaserver.core.maintenance import MaintenanceRules
    from tistream.cli.running import Parts
    from tistream.config import Settings

_MIB = 1 << 20
_REPLAY_THREADS = 2


def maintenance_rules(settings: Settings) -> MaintenanceRules | None:
    """The rules of the scheduler; None when it is switched off."""
    from metaserver.core.maintenance import MaintenanceRules, ReplayMode

    given = settings.maintenance
    if not given.enabled:
        return None
    return MaintenanceRules(
        lag_ms=int(given.lag_s * 1000),
        pause_ms=int(given.pause_s * 1000),
        jobs_max=given.jobs_max,
        bytes_per_s=max(1, int(given.mb_per_s * _MIB)),
        threads_job_bytes=given.threads_job_mb * _MIB,
        spark_job_bytes=given.spark_job_mb * _MIB,
        merge_pieces_min=given.merge_files_min,
        saved_per_mib_min=given.saved_per_mb_min,
        tail_bytes_min=int(given.base_tail_mb * _MIB),
        tail_ratio=given.base_tail_ratio,
        base_window_ms=int(given.base_window_hours * 3_600_000),
        replay=ReplayMode(given.replay),
        replay_lag_ms=int(given.replay_lag_s * 1000),
        replay_bytes_min=int(given.replay_backlog_mb * _MIB),
    )


def job_work(
    parts: Parts, executors: Callable[[Progress], Executors], replays: ReplayExecutor, width: int, plans: Plans
) -> Work:
    """Does jobs of every kind. `width`: key ranges of a replay in parallel."""
    from backfill.job_work import ReplayWork
    from compactor.maintenance import Maintenance
    from tistream.catalog.work.job_rows import JobKind

    compaction = Maintenance(parts.catalog, parts.store, parts.clock, executors, plans)
    replay = ReplayWork(parts.catalog, parts.store, parts.clock, replays, width)
    return lambda job, progress: (replay if job.kind is JobKind.REPLAY else compaction)(job, progress)


def threads_worker(parts: Parts, name: str, *, slots: int, nice: int = 0) -> MaintenanceWorker:
    """An executor with threads: a job at a time in each slot, in files that it can hold beside a service."""
    from backfill.executors import ThreadsExecutor
    from compactor.local import LocalExecutor
    from compactor.maintenance import SMALL_PLANS
    from compactor.worker import ALL_KINDS, MaintenanceWorker

    local = LocalExecutor(parts.store, threads=1, nice=nice)
    replays = ThreadsExecutor(parts.store, threads=_REPLAY_THREADS)
    work = job_work(parts, lambda progress: local, replays, _REPLAY_THREADS, SMALL_PLANS)
    return MaintenanceWorker(parts.catalog, parts.clock, name, work, kinds=ALL_KINDS, slots=slots)


def spark_worker(parts: Parts, name: str, session: SparkSession, watch: SessionWatch) -> MaintenanceWorker:
    """An executor with a Spark session: it also takes what is too large for threads."""
    from backfill.executors import SparkExecutor as ReplayOnSpark
    from compactor.maintenance import Plans
    from compactor.spark import SparkExecutor
    from compactor.worker import ALL_KINDS, MaintenanceWorker
    from tistream.catalog.work.job_rows import JobExecutor
    from tistream.catalog.work.workers import WorkerKind

    settings, store_url = parts.settings.spark, parts.settings.object_store.url
    replays, width = ReplayOnSpark(session, store_url, parts.clock), session.sparkContext.defaultParallelism
    work = job_work(
        parts, lambda progress: SparkExecutor(session, store_url, parts.clock, progress), replays, width, Plans()
    )
    return MaintenanceWorker(
        parts.catalog,
        parts.clock,
        name,
        watch.guarding(work),
        kind=WorkerKind.SPARK,
        executors=(JobExecutor.SPARK, JobExecutor.THREADS),
        kinds=ALL_KINDS,
        slots=settings.jobs,
        stop_s=settings.stop_timeout_s,
    )
