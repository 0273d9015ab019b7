"""The maintenance jobs that compaction does: merges, bases, and the bases that let retention retire seeds.

`MaintenanceWork` does a leased job of the catalog; `tistream compact` calls `merge_tenant` and `build_bases_of` itself.
Both run on any executor of plan rows, threads or Spark, and record what was left out as stops of the tenant.

A seed is retired when the floor of the log passes it, and the floor waits for tables whose newest base or seed is
older. So a job of kind `retire_seeds` builds bases of exactly the tables whose newest base, seed or creation is older
than `due_ms`; retention then raises the floor and retires what is below.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from compactor.base_job import BaseReport, BaseSettings, build_tenant_bases
from compactor.core.base_plan import BasePlanRow, BasePlanSettings
from compactor.core.plan import PlanRow, PlanSettings
from compactor.core.results import BaseResult, RangeResult
from compactor.job import Excluded, JobEnd, JobReport, JobRole, JobSettings, compact_tenant, record_excluded
from compactor.task import Failed
from compactor.worker import JobDone, Progress
from schemas.registry.schema_registry import SchemaRegistry
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.exclusions import excluded
from tistream.catalog.rows.jobs import JobCounts, JobKind, JobLimits, JobRow
from tistream.clock import Clock
from tistream.errors import InvalidInput
from tistream.ids import Tenant
from tistream.objectstore.protocol import ObjectStore

_NEVER = 1 << 62  #: bytes that no tail has: only tables that are due get a base


class Executors(Protocol):
    """What runs plan rows: threads or Spark."""

    def __call__(self, rows: Sequence[PlanRow]) -> Iterable[RangeResult | Failed]: ...

    def bases(self, rows: Sequence[BasePlanRow]) -> Iterable[BaseResult | Failed]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Plans:
    """Sizes of plan rows, for the memory of an executor's workers."""

    merge: PlanSettings = field(default_factory=PlanSettings)
    bases: BasePlanSettings = field(default_factory=BasePlanSettings)


#: of a process that also does other things: a file of the log is at most 64 MiB unpacked
SMALL_PLANS = Plans(
    merge=PlanSettings(raw_bytes_max=64 << 20, rows_max=1 << 20), bases=BasePlanSettings(group_bytes=16 << 20)
)


class MaintenanceWork:
    """The Work of merges, bases and retirements. `executors` is called for each job, with its progress."""

    def __init__(
        self,
        catalog: Catalog,
        store: ObjectStore,
        clock: Clock,
        executors: Callable[[Progress], Executors],
        plans: Plans | None = None,
    ) -> None:
        self._catalog, self._store, self._clock = catalog, store, clock
        self._executors, self._plans = executors, plans or Plans()

    def __call__(self, job: JobRow, progress: Progress) -> JobDone:
        """Do the job. InvalidInput for a kind that is not compaction's."""
        executor, limits = self._executors(progress), job.limits
        match job.kind:
            case JobKind.MERGE:
                settings = merge_settings(limits, self._plans.merge)
                return merged(merge_tenant(self._catalog, job.tenant, executor, settings, self._clock, progress))
            case JobKind.BASES | JobKind.RETIRE_SEEDS:
                wanted = base_settings(limits, self._plans.bases, only_due=job.kind is JobKind.RETIRE_SEEDS)
                return based(
                    build_bases_of(self._catalog, self._store, job.tenant, executor, wanted, self._clock, progress)
                )
        raise InvalidInput(f"A job of kind {job.kind} is not done by this executor.", job_id=job.job_id)


def merge_tenant(
    catalog: Catalog, tenant: Tenant, executor: Executors, settings: JobSettings, clock: Clock, progress: Progress
) -> JobReport:
    """One merge job; its exclusions become stops of the tenant."""
    report = compact_tenant(catalog, tenant, executor, settings, clock, progress=progress)
    record_excluded(catalog, tenant, JobRole.COMPACTION, report.failed, left_out=len(excluded(catalog, tenant)))
    return report


def build_bases_of(
    catalog: Catalog,
    store: ObjectStore,
    tenant: Tenant,
    executor: Executors,
    settings: BaseSettings,
    clock: Clock,
    progress: Progress,
) -> BaseReport:
    """One round of bases; its exclusions become stops of the tenant."""
    registry = SchemaRegistry(catalog, store, clock=clock)
    report = build_tenant_bases(catalog, registry, tenant, executor.bases, settings, clock, progress=progress)
    record_excluded(catalog, tenant, JobRole.BASES, report.failed)
    return report


def merge_settings(limits: JobLimits, plan: PlanSettings) -> JobSettings:
    """The settings of a merge job."""
    budget = limits.budget_bytes or plan.budget_bytes
    return JobSettings(lag_ms=limits.lag_ms, task_ids=limits.task_ids, plan=replace(plan, budget_bytes=budget))


def base_settings(limits: JobLimits, plan: BasePlanSettings, *, only_due: bool) -> BaseSettings:
    """The settings of a job that builds bases."""
    plan = replace(plan, budget_bytes=limits.budget_bytes or plan.budget_bytes)
    if only_due:
        plan = replace(plan, tail_bytes_min=_NEVER)
    known = BaseSettings()
    return replace(
        known, lag_ms=limits.lag_ms, window_ms=limits.window_ms or known.window_ms, due_ms=limits.due_ms, plan=plan
    )


def merged(report: JobReport) -> JobDone:
    """The end of a merge job. A reader of the whole stretch fetches each segment, and the footer of each new file."""
    counts = JobCounts(
        bytes_read=report.bytes_read,
        bytes_written=report.bytes_after,
        objects_before=report.files_before,
        objects_after=report.files_after,
        requests_saved=max(0, report.segments_before - report.segments_after - report.files_after),
    )
    return _done(report.end, _of(report.end, counts), report.failed)


def based(report: BaseReport) -> JobDone:
    """The end of a round of bases. A reader of the tables fetches their bases instead of older ones and tails."""
    counts = JobCounts(
        bytes_read=report.bytes_read,
        bytes_written=report.bytes_written,
        objects_before=report.segments_before,
        objects_after=report.segments_after,
        requests_saved=max(0, report.segments_before - report.segments_after),
    )
    return _done(report.end, _of(report.end, counts), report.failed)


def _of(end: JobEnd, counts: JobCounts) -> JobCounts:
    """What was read counts against the budget, whatever came of it."""
    return counts if end is JobEnd.COMMITTED else JobCounts(bytes_read=counts.bytes_read)


def _done(end: JobEnd, counts: JobCounts, excluded: Sequence[Excluded]) -> JobDone:
    first, more = (excluded[0] if excluded else None), len(excluded) - 1
    return JobDone(
        outcome=end,
        counts=counts,
        failed=end is JobEnd.FAILED,
        code=first.code if first is not None else "",
        error="" if first is None else f"{first.message} ({more} more are excluded)" if more else first.message,
    )
