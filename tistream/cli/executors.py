"""Builds what decides about maintenance jobs, what does them, and what writes changefeeds, from settings.

Which process does a job: threads of `tistream up` when that is the whole service; `tistream maintain` where the roles
are separate processes; `tistream spark` also takes what is too large for threads. A meta server does none: it must
answer a takeover at any time, and is one process for all tenants.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tistream.errors import ConfigError, InvalidInput

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from backfill.replay import Executor as ReplayExecutor
    from compactor.maintenance import Executors, Plans
    from compactor.session import SessionWatch
    from compactor.worker import MaintenanceWorker, Progress, Work
    from destinations.protocol import DeadLetters, Destination
    from metaserver.core.maintenance import MaintenanceRules
    from replicator.worker import ReplicationWorker
    from tistream.catalog.work.lanes import LaneJob
    from tistream.cli.running import Parts
    from tistream.clock import Clock
    from tistream.config import Settings
    from tistream.outbound.policy import Policy, Terms

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
    from backfill.job import ReplayWork
    from compactor.maintenance import MaintenanceWork
    from tistream.catalog.rows.jobs import JobKind

    compaction = MaintenanceWork(parts.catalog, parts.store, parts.clock, executors, plans)
    replay = ReplayWork(parts.catalog, parts.store, parts.clock, replays, width)
    return lambda job, progress: (replay if job.kind is JobKind.REPLAY else compaction)(job, progress)


def threads_worker(parts: Parts, name: str, *, slots: int, nice: int = 0) -> MaintenanceWorker:
    """An executor with threads: a job at a time in each slot, in files that fit into memory with a service."""
    from backfill.replay import ThreadsExecutor
    from compactor.local import LocalExecutor
    from compactor.maintenance import SMALL_PLANS
    from compactor.worker import ALL_KINDS, MaintenanceWorker

    def local(progress: Progress) -> LocalExecutor:
        return LocalExecutor(parts.store, threads=1, nice=nice, progress=progress, clock=parts.clock)

    replays = ThreadsExecutor(parts.store, threads=_REPLAY_THREADS)
    work = job_work(parts, local, replays, _REPLAY_THREADS, SMALL_PLANS)
    return MaintenanceWorker(parts.catalog, parts.clock, name, work, kinds=ALL_KINDS, slots=slots)


def spark_worker(parts: Parts, name: str, session: SparkSession, watch: SessionWatch) -> MaintenanceWorker:
    """An executor with a Spark session: it also takes what is too large for threads."""
    from backfill.replay import SparkReplayExecutor
    from compactor.maintenance import Plans
    from compactor.spark import SparkExecutor
    from compactor.worker import ALL_KINDS, MaintenanceWorker
    from tistream.catalog.rows.jobs import JobExecutor
    from tistream.catalog.rows.workers import WorkerKind

    settings, store_url = parts.settings.spark, parts.settings.object_store.url
    replays, width = SparkReplayExecutor(session, store_url, parts.clock), session.sparkContext.defaultParallelism
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


def replication_worker(parts: Parts, name: str) -> ReplicationWorker:
    """A worker under this name."""
    from destinations.letters.place import open_letters
    from destinations.opening import open_destination, operated_of
    from reading.log.memory import ReadMemory
    from reading.served.services import Services
    from replicator.worker import ReplicationWorker
    from tistream.catalog.tenancy.targets import policy_of
    from tistream.catalog.tenancy.tenants import get_tenant

    terms = outbound_terms(parts.settings)

    def allowed(job: LaneJob, option: str) -> Policy:
        is_operated = option in operated_of(job.options)
        return policy_of(parts.catalog, terms, job.lane.tenant, is_operated=is_operated)

    def opened(job: LaneJob) -> Destination:
        lane = job.lane
        row = get_tenant(parts.catalog, lane.tenant)
        policy = allowed(job, "sink-uri")
        where = lane.tenant, lane.changefeed_id, lane.number, job.lanes
        return open_destination(job.sink_uri, row, *where, parts.clock, policy, job.options)

    def letters(job: LaneJob, uri: str, clock: Clock) -> DeadLetters:
        return open_letters(uri, clock, allowed(job, "dead-letter"))

    memory = ReadMemory(parts.settings.replication.memory_mib << 20, in_turn=True)
    services = Services.create(parts.catalog, parts.store, parts.clock, read_memory=memory)
    slots = max(1, parts.settings.replication.threads)
    return ReplicationWorker(services, name, opened, letters, slots=slots, look_first=parts.watch.require)


def outbound_terms(settings: Settings) -> Terms:
    """What the deployment allows for all tenants, and what is its own. ConfigError for a setting that is wrong."""
    from tistream.outbound.policy import Terms

    outbound, where = settings.outbound, (settings.object_store.url, settings.catalog.url)
    try:
        return Terms.of(outbound.allow, outbound.networks, store_url=where[0], catalog_url=where[1])
    except InvalidInput as error:
        raise ConfigError(f"Setting 'outbound': {error.message}") from error
