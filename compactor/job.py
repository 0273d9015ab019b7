"""One compaction of one tenant, from plan to swap.

    lowest upper -> pieces behind the edge -> plan -> segments      three reads of the catalog, each one statement
    executor: one file for each row of the plan                     nothing is visible
    verify -> swap                                                  one transaction, all or nothing

The reads need not agree with each other: `upper` only rises, so the edge is on the safe side; a piece that changes
after it was planned is no longer what the swap expects, and then nothing is swapped. For the same reason any number of
compactions may run at once: of two that want the same piece one loses its work.

When the reply to the swap is lost, the outputs' rows say what became of it. If they are not there, the job does not
know: the transaction may still land, or never, and both are right. What never becomes visible is collected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, TypeVar

import structlog

from compactor.plan import Group, PlanRow, PlanSettings, plan
from compactor.task import RangeResult
from compactor.verify import verified
from tistream import ts as tso
from tistream.catalog.compaction import Output, Piece, lowest_upper, new_job, pieces, segments_of, swap
from tistream.catalog.engine import Catalog
from tistream.catalog.objects import ObjectState, object_states
from tistream.clock import Clock
from tistream.errors import CatalogUnavailable
from tistream.ids import Tenant

log = structlog.get_logger(__name__)

Executor = Callable[[Sequence[PlanRow]], Iterable[RangeResult]]


class JobEnd(StrEnum):
    """How a job ended."""

    NOTHING_TO_DO = "nothing to do"
    SWAPPED = "swapped"
    LOST = "lost"  #: an input was replaced meanwhile: another compaction was faster


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """What a job takes."""

    lag_ms: int = 60_000  #: pieces younger than this, before the least `upper`, are left alone
    pieces_max: int = 100_000  #: that one job looks at
    plan: PlanSettings = field(default_factory=PlanSettings)


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


def compact_tenant(
    catalog: Catalog,
    tenant: Tenant,
    executor: Executor,
    settings: JobSettings,
    clock: Clock,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Run one job. `progress` hears (ranges done, ranges planned).

    Errors of the executor and of verification end the job, and nothing has changed. CatalogUnavailable, not
    determinate, when nobody knows yet whether the swap happened.
    """
    begun = clock.monotonic()
    groups, rows = planned(catalog, tenant, settings)
    if not rows:
        return Report(tenant=tenant, end=JobEnd.NOTHING_TO_DO)
    inputs = [piece for group in groups for piece in group.pieces]
    outputs = [_output(result) for result in verified(rows, collected(executor(rows), len(rows), progress))]
    swapped = _swap(catalog, tenant, inputs, outputs)
    report = Report(
        tenant=tenant,
        end=JobEnd.SWAPPED if swapped else JobEnd.LOST,
        job=rows[0].job,
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
    edge = lowest_upper(catalog, tenant)
    upto = tso.earlier(edge, settings.lag_ms)
    found = plan(pieces(catalog, tenant, upto_ts=upto, limit=settings.pieces_max), settings.plan)
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


def _swap(catalog: Catalog, tenant: Tenant, inputs: Sequence[Piece], outputs: Sequence[Output]) -> bool:
    try:
        return swap(catalog, tenant, inputs, outputs)
    except CatalogUnavailable as e:
        if e.determinate or not _is_there(catalog, outputs):
            raise
        return True


def _is_there(catalog: Catalog, outputs: Sequence[Output]) -> bool:
    """Whether the outputs became visible; all of them did if the first did."""
    found = object_states(catalog, [outputs[0].object_key])
    return found.get(outputs[0].object_key) in (ObjectState.LIVE, ObjectState.SUPERSEDED)
