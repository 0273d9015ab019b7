"""Runs one compaction of one tenant, from plan to commit.

    lowest durable watermark -> pieces behind it -> plan -> segments     four reads of the catalog, a statement each
    executor: one file per plan row                                      nothing is visible
    verify -> swap                                                       one transaction, all or nothing

The reads need not agree: `durable_ts` only rises, and the swap refuses a piece that has changed since it was planned.
For the same reason any number of compactions may run at once: of two that want the same piece, one loses its work.

The safe point of garbage collection, in the log of a tenant without tables, is the floor as it was read: it only rises.

A group that cannot be merged, because an input is damaged or the code fails, is excluded and reported; the others are
committed. A retryable error (store or catalog unavailable) ends the job.

After a lost reply the outputs' rows tell whether the swap took effect. If they do not exist, its outcome is unknown;
both outcomes are right, and objects that never become visible are collected.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

import structlog

from compactor.core.plan import Group, PlanRow, PlanSettings, plan, unfinished
from compactor.core.verify import verified
from compactor.stops import Excluded
from compactor.task import Failed, HasRange, RangeResult
from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.lost_reply import commit_or_read_back
from tistream.catalog.log.compaction import Output, Piece, lowest_durable_ts, new_job, pieces, segments_of, swap
from tistream.catalog.log.objects import ObjectState, object_states
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.clock import Clock
from tistream.errors import TiStreamError
from tistream.ids import Tenant

log = structlog.get_logger(__name__)

Executor = Callable[[Sequence[PlanRow]], Iterable[RangeResult | Failed]]


class JobEnd(StrEnum):
    """How a job ended."""

    NOTHING_TO_DO = "nothing to do"
    SWAPPED = "swapped"
    FAILED = "failed"  #: no group could be merged
    LOST = "lost"  #: another compaction replaced an input first


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """Limits of a job."""

    lag_ms: int = 60_000  #: pieces within this time of the lowest `durable_ts` are left alone
    pieces_max: int = 100_000  #: read at once; the job reads on until some are worth merging
    task_ids: tuple[int, ...] = ()  #: only pieces of these tasks; empty = of all
    plan: PlanSettings = field(default_factory=PlanSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedGroup(Excluded):
    """Neighbouring pieces that were not merged."""

    task_id: int
    first: str  #: object key of its first piece
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Result of a job."""

    tenant: Tenant
    end: JobEnd
    job: int = 0
    files_before: int = 0  #: pieces that were read
    segments_before: int = 0
    bytes_before: int = 0
    files_after: int = 0
    segments_after: int = 0
    bytes_after: int = 0
    rows: int = 0
    collected: int = 0  #: those of them that garbage collection removed
    seconds: float = 0.0
    failed: tuple[ExcludedGroup, ...] = ()  #: the excluded groups


def compact_tenant(
    catalog: Catalog,
    tenant: Tenant,
    executor: Executor,
    settings: JobSettings,
    clock: Clock,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Run one job. `progress` is called with (ranges done, ranges planned).

    Groups that fail are in the report's `failed`. Errors of the executor and of verification end the job without
    effect. CatalogUnavailable, not determinate, when the outcome of the swap is unknown.
    """
    begun = clock.monotonic()
    groups, rows = planned(catalog, tenant, settings)
    if not rows:
        return Report(tenant=tenant, end=JobEnd.NOTHING_TO_DO)
    job = rows[0].job
    made, failed = _separated(rows, groups, collected(executor(rows), len(rows), progress))
    for each in failed:
        log.error("group excluded from compaction", tenant=str(tenant), job=job, **dataclasses.asdict(each))
    if not made:
        seconds = clock.monotonic() - begun
        return Report(tenant=tenant, end=JobEnd.FAILED, job=job, failed=failed, seconds=seconds)
    inputs = [piece for at in made for piece in groups[at].pieces]
    outputs = [_output(result) for result in verified([rows[at] for at in made], list(made.values()))]
    swapped = commit_or_read_back(
        lambda: swap(catalog, tenant, inputs, outputs), lambda: _are_visible(catalog, outputs) or None
    )
    report = Report(
        tenant=tenant,
        end=JobEnd.SWAPPED if swapped else JobEnd.LOST,
        job=job,
        failed=failed,
        files_before=len(inputs),
        segments_before=sum(p.segments for p in inputs),
        bytes_before=sum(p.stored_bytes for p in inputs),
        files_after=len(outputs),
        segments_after=sum(len(o.groups) for o in outputs),
        bytes_after=sum(o.object_bytes for o in outputs),
        rows=sum(p.rows for p in inputs),
        collected=sum(o.collected for o in outputs),
        seconds=clock.monotonic() - begun,
    )
    log.info("compaction done", tenant=str(tenant), job=report.job, end=report.end, files=report.files_before)
    return report


def planned(catalog: Catalog, tenant: Tenant, settings: JobSettings) -> tuple[list[Group], list[PlanRow]]:
    """The groups to merge, and the plan row of each, without groups that changed meanwhile."""
    edge = lowest_durable_ts(catalog, tenant)
    upto = tso.earlier(edge, settings.lag_ms)
    found = _worthwhile(catalog, tenant, upto, settings)
    if not found:
        return [], []
    of = get_tenant(catalog, tenant)
    safe_ts = of.floor_ts if of.kind.is_keyspace else 0
    segments = segments_of(catalog, tenant, [piece for group in found for piece in group.pieces])
    job = new_job(catalog)
    groups: list[Group] = []
    rows: list[PlanRow] = []
    for group in found:
        mine = [segments.get((piece.object_key, piece.task_id), []) for piece in group.pieces]
        if [len(m) for m in mine] != [piece.segments for piece in group.pieces]:
            continue
        whole = tuple(segment for m in mine for segment in m)
        place = {"range_id": len(rows), "task_id": group.task_id, "safe_ts": safe_ts}
        rows.append(PlanRow(tenant=tenant, job=job, segments=whole, **place))
        groups.append(group)
    return groups, rows


def _worthwhile(catalog: Catalog, tenant: Tenant, upto_ts: int, settings: JobSettings) -> list[Group]:
    """The oldest groups worth merging, however many pieces lie before them."""
    carried: list[Piece] = []
    after: Piece | None = None
    while True:
        some = pieces(
            catalog, tenant, upto_ts=upto_ts, limit=settings.pieces_max, after=after, task_ids=settings.task_ids
        )
        found = plan([*carried, *some], settings.plan)
        if found or len(some) < settings.pieces_max:
            return found
        carried, after = unfinished([*carried, *some], settings.plan), some[-1]


def _separated(
    rows: Sequence[PlanRow], groups: Sequence[Group], results: Sequence[RangeResult | Failed]
) -> tuple[dict[int, RangeResult], tuple[ExcludedGroup, ...]]:
    """(range -> its file, the groups that failed). Of several files of one range, from repeated work, the first by key.
    TiStreamError when a range has no result."""
    made: dict[int, RangeResult] = {}
    failed: dict[int, Failed] = {}
    for result in results:
        if isinstance(result, Failed):
            failed[result.range_id] = result
        elif result.range_id not in made or result.object_key < made[result.range_id].object_key:
            made[result.range_id] = result
    for row in rows:
        if row.range_id not in made and row.range_id not in failed:
            raise TiStreamError("a compaction range has no result", job=row.job, range=row.range_id)
    excluded = [_excluded(groups[at], failed[at]) for at in sorted(failed) if at not in made]
    return {at: made[at] for at in sorted(made)}, tuple(excluded)


def _excluded(group: Group, failed: Failed) -> ExcludedGroup:
    first, last = group.pieces[0].object_key, group.pieces[-1].object_key
    error = {"code": failed.code, "message": failed.message, "object": failed.object}
    return ExcludedGroup(task_id=group.task_id, first=first, last=last, **error)


RangeT = TypeVar("RangeT", bound=HasRange)


def collected(results: Iterable[RangeT], planned: int, progress: Callable[[int, int], None]) -> list[RangeT]:
    """All results of an executor; `progress` is called with (ranges with a result, planned)."""
    progress(0, planned)
    found: list[RangeT] = []
    for result in results:
        found.append(result)
        progress(len({r.range_id for r in found}), planned)
    return found


def _output(result: RangeResult) -> Output:
    return Output(
        object_key=result.object_key,
        object_bytes=result.object_bytes,
        task_id=result.task_id,
        groups=result.groups,
        footer=result.footer,
        collected=result.collected,
    )


def _are_visible(catalog: Catalog, outputs: Sequence[Output]) -> bool:
    """Whether the outputs became visible: all do together."""
    found = object_states(catalog, [outputs[0].object_key])
    return found.get(outputs[0].object_key) in (ObjectState.LIVE, ObjectState.SUPERSEDED)
