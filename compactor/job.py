"""One compaction of one tenant, from plan to swap.

    lowest durable watermark -> pieces behind the edge -> plan -> segments      three reads of the catalog, each one
    statement executor: one file for each row of the plan                     nothing is visible verify -> swap
    one transaction, all or nothing

The reads need not agree with each other: `durable_ts` only rises, so the edge is on the safe side; a piece that changes
after it was planned is no longer what the swap expects, and then nothing is swapped. For the same reason any number of
compactions may run at once: of two that want the same piece one loses its work.

A group that cannot be merged, because an input is damaged or the code fails, is left out and named; the others
are swapped. An error that may pass (store or catalog away) ends the job.

When the reply to the swap is lost, the outputs' rows say what became of it. If they are not there, the job does not
know: the transaction may still land, or never, and both are right. What never becomes visible is collected.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeVar

import structlog

from compactor.core.plan import Group, PlanRow, PlanSettings, plan, unfinished
from compactor.core.verify import verified
from compactor.task import RangeFailed, RangeResult
from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.lost_reply import commit_or_read_back
from tistream.catalog.log.compaction import Output, Piece, lowest_durable_ts, new_job, pieces, segments_of, swap
from tistream.catalog.log.objects import ObjectState, object_states
from tistream.clock import Clock
from tistream.errors import TiStreamError
from tistream.ids import Tenant

log = structlog.get_logger(__name__)

Executor = Callable[[Sequence[PlanRow]], Iterable[RangeResult | RangeFailed]]


class JobEnd(StrEnum):
    """How a job ended."""

    NOTHING_TO_DO = "nothing to do"
    SWAPPED = "swapped"
    FAILED = "failed"  #: of no group a file could be made
    LOST = "lost"  #: an input was replaced meanwhile: another compaction was faster


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """What a job takes."""

    lag_ms: int = 60_000  #: pieces younger than this, before the least `durable_ts`, are left alone
    pieces_max: int = 100_000  #: that a job looks at together; it goes on until some of them are worth it
    plan: PlanSettings = field(default_factory=PlanSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A group that cannot be merged now."""

    task_id: int
    first: str  #: object key of its first piece
    last: str
    code: str
    message: str
    object: str  #: that the error names; empty when it names none


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a job did."""

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
    seconds: float = 0.0
    failed: tuple[LeftOut, ...] = ()  #: the groups that were left out


def compact_tenant(
    catalog: Catalog,
    tenant: Tenant,
    executor: Executor,
    settings: JobSettings,
    clock: Clock,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Run one job. `progress` hears (ranges done, ranges planned).

    Groups that fail are in the report's `failed`. Errors of the executor and of verification end the job, and nothing
    has changed. CatalogUnavailable, not determinate, when the outcome of the swap is unknown.
    """
    begun = clock.monotonic()
    groups, rows = planned(catalog, tenant, settings)
    if not rows:
        return Report(tenant=tenant, end=JobEnd.NOTHING_TO_DO)
    job = rows[0].job
    made, failed = _sorted_out(rows, groups, collected(executor(rows), len(rows), progress))
    for each in failed:
        log.error("a group is left out of a compaction", tenant=str(tenant), job=job, **dataclasses.asdict(each))
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
        seconds=clock.monotonic() - begun,
    )
    log.info("compaction", tenant=str(tenant), job=report.job, end=report.end, files=report.files_before)
    return report


def planned(catalog: Catalog, tenant: Tenant, settings: JobSettings) -> tuple[list[Group], list[PlanRow]]:
    """What there is to do: the groups, and the plan row of each. Groups that changed while we looked are left out."""
    edge = lowest_durable_ts(catalog, tenant)
    upto = tso.earlier(edge, settings.lag_ms)
    found = _worthwhile(catalog, tenant, upto, settings)
    if not found:
        return [], []
    segments = segments_of(catalog, tenant, [piece for group in found for piece in group.pieces])
    job = new_job(catalog)
    groups: list[Group] = []
    rows: list[PlanRow] = []
    for group in found:
        mine = [segments.get((piece.object_key, piece.task_id), []) for piece in group.pieces]
        if [len(m) for m in mine] != [piece.segments for piece in group.pieces]:
            continue
        whole = tuple(segment for m in mine for segment in m)
        rows.append(PlanRow(tenant=tenant, job=job, range_id=len(rows), task_id=group.task_id, segments=whole))
        groups.append(group)
    return groups, rows


def _worthwhile(catalog: Catalog, tenant: Tenant, upto_ts: int, settings: JobSettings) -> list[Group]:
    """The oldest groups that are worth it, however many pieces lie before them that are not."""
    carried: list[Piece] = []
    after: Piece | None = None
    while True:
        some = pieces(catalog, tenant, upto_ts=upto_ts, limit=settings.pieces_max, after=after)
        found = plan([*carried, *some], settings.plan)
        if found or len(some) < settings.pieces_max:
            return found
        carried, after = unfinished([*carried, *some], settings.plan), some[-1]


def _sorted_out(
    rows: Sequence[PlanRow], groups: Sequence[Group], results: Sequence[RangeResult | RangeFailed]
) -> tuple[dict[int, RangeResult], tuple[LeftOut, ...]]:
    """(the file of each range that has one, the groups that failed). Of several files of one
    range, which are the same work done twice, the first by key. TiStreamError when a range has no result at all."""
    made: dict[int, RangeResult] = {}
    failed: dict[int, RangeFailed] = {}
    for result in results:
        if isinstance(result, RangeFailed):
            failed[result.range_id] = result
        elif result.range_id not in made or result.object_key < made[result.range_id].object_key:
            made[result.range_id] = result
    for row in rows:
        if row.range_id not in made and row.range_id not in failed:
            raise TiStreamError("a part of a compaction has no result", job=row.job, range=row.range_id)
    left_out = [_left_out(groups[at], failed[at]) for at in sorted(failed) if at not in made]
    return {at: made[at] for at in sorted(made)}, tuple(left_out)


def _left_out(group: Group, failed: RangeFailed) -> LeftOut:
    return LeftOut(
        task_id=group.task_id,
        first=group.pieces[0].object_key,
        last=group.pieces[-1].object_key,
        code=failed.code,
        message=failed.message,
        object=failed.object,
    )


class _OfRange(Protocol):
    @property
    def range_id(self) -> int: ...


ResultT = TypeVar("ResultT", bound=_OfRange)


def collected(results: Iterable[ResultT], planned: int, progress: Callable[[int, int], None]) -> list[ResultT]:
    """All results of an executor; `progress` hears how many of the planned ranges have one."""
    progress(0, planned)
    found: list[ResultT] = []
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
    )


def _are_visible(catalog: Catalog, outputs: Sequence[Output]) -> bool:
    """Whether the outputs became visible; all of them did if the first did."""
    found = object_states(catalog, [outputs[0].object_key])
    return found.get(outputs[0].object_key) in (ObjectState.LIVE, ObjectState.SUPERSEDED)
