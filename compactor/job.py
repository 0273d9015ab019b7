"""Runs one compaction of one tenant, from plan to commit.

    lowest durable watermark -> pieces behind it -> plan -> segments     four reads of the catalog, a statement each
    executor: one file per plan row                                      nothing is visible
    verify -> commit                                                     some groups in a transaction, all or nothing

The reads need not agree: `durable_ts` only rises, and the commit refuses a piece that has changed since it was planned.
For the same reason any number of compactions may run at once: of two that want the same piece, one loses its work.

The safe point of garbage collection, in the log of a tenant without tables, is the floor as it was read: it only rises.

A group that cannot be merged, because an input is damaged or the code fails, is reported; the others are committed.
What cannot be read is excluded for a day, so that later jobs reach the other pieces
(`tistream.catalog.log.exclusions`). A retryable error (store or catalog unavailable) ends the job.

After a lost reply the outputs' rows tell whether the commit took effect. If they do not exist, its outcome is unknown;
both outcomes are right, and objects that never become visible are collected.

A tenant has at most one stop for compaction and one for bases: the first error, and the number of excluded items. The
next job that excludes nothing clears it, unless objects are left out still that an earlier merge could not read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

import structlog

from compactor.core.plan import Group, PlanRow, PlanSettings, plan, unfinished
from compactor.core.results import RangeResult, verified
from compactor.task import Failed, HasRange
from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.lost_reply import commit_or_read_back
from tistream.catalog.log.builds import begin_build, end_build, renew_build
from tistream.catalog.log.compaction import commit_compaction, lowest_durable_ts, pieces, segments_of
from tistream.catalog.log.exclusions import exclude, excluded
from tistream.catalog.log.objects import ObjectState, object_states
from tistream.catalog.rows.compaction import Output, Piece
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.catalog.work.stopped_items import (
    Scope,
    StoppedItem,
    clear_stopped_item,
    record_stopped_item,
    stopped_items_of_role,
)
from tistream.clock import Clock
from tistream.errors import CatalogUnavailable, TiStreamError
from tistream.ids import Tenant
from tistream.limits import BUILD_RENEW_MS
from tistream.runtime.service import Repeating

log = structlog.get_logger(__name__)

COMMIT_PIECES_MAX = 1000  #: replaced in one transaction

Executor = Callable[[Sequence[PlanRow]], Iterable[RangeResult | Failed]]


class JobEnd(StrEnum):
    """How a job ended."""

    NOTHING_TO_DO = "nothing to do"
    COMMITTED = "committed"
    FAILED = "failed"  #: no group could be merged
    LOST = "lost"  #: another job was first with all of it


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """Limits of a job."""

    lag_ms: int = 60_000  #: pieces within this time of the lowest `durable_ts` are left alone
    pieces_max: int = 100_000  #: read at once; the job reads on until some are worth merging
    task_ids: tuple[int, ...] = ()  #: only pieces of these tasks; empty = of all
    plan: PlanSettings = field(default_factory=PlanSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """Input of a job that it could not process: a group of files or a table."""

    code: str
    message: str
    object: str  #: that the error names; empty when it names none


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedGroup(Excluded):
    """Neighbouring pieces that were not merged."""

    task_id: int
    first: str  #: object key of its first piece
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """Result of a job."""

    tenant: Tenant
    end: JobEnd
    job: int = 0
    files_before: int = 0  #: pieces that were read
    segments_before: int = 0
    bytes_before: int = 0
    bytes_read: int = 0  #: also of what was not merged
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
) -> JobReport:
    """Run one job. `progress` is called with (ranges done, ranges planned).

    Groups that fail are in the report's `failed`. Errors of the executor and of verification end the job without
    effect. CatalogUnavailable, not determinate, when the outcome of the commit is unknown.
    """
    begun = clock.monotonic()
    report = JobReport(tenant=tenant, end=JobEnd.NOTHING_TO_DO)
    with Building(catalog, tenant, clock) as build:
        while True:
            groups, rows = planned(catalog, tenant, settings, build.number)
            if not rows:
                break
            made, failed = _separated(rows, groups, collected(executor(rows), len(rows), progress))
            exclude(catalog, tenant, {key for at, each in failed.items() for key in _guilty(groups[at], each)})
            report = _noted(report, rows, groups, failed)
            if made:
                report = _published(catalog, report, rows, groups, made)
                break  # else the budget was spent on what cannot be merged: plan the others
    report = replace(report, seconds=clock.monotonic() - begun)
    log.info("compaction done", tenant=str(tenant), job=report.job, end=report.end, files=report.files_before)
    return report


def _noted(
    report: JobReport, rows: Sequence[PlanRow], groups: Sequence[Group], failed: Mapping[int, Failed]
) -> JobReport:
    """With what was read, and the groups that failed."""
    more = tuple(_excluded(groups[at], failed[at]) for at in sorted(failed))
    for each in more:
        log.error("group excluded from compaction", tenant=str(report.tenant), **dataclasses.asdict(each))
    read = report.bytes_read + sum(group.stored_bytes for group in groups)
    return replace(report, end=JobEnd.FAILED, job=rows[0].job, failed=report.failed + more, bytes_read=read)


def _published(
    catalog: Catalog,
    report: JobReport,
    rows: Sequence[PlanRow],
    groups: Sequence[Group],
    made: Mapping[int, RangeResult],
) -> JobReport:
    """Commit the groups, some at a time: a commit holds a counter that all tenants share."""
    outputs = {
        at: _output(result)
        for at, result in zip(made, verified([rows[at] for at in made], list(made.values())), strict=True)
    }
    report = replace(report, end=JobEnd.LOST)
    for some in _parts({at: len(groups[at].pieces) for at in made}):
        inputs = [piece for at in some for piece in groups[at].pieces]
        new = [outputs[at] for at in some]
        if not commit_or_read_back(
            partial(commit_compaction, catalog, report.tenant, inputs, new),
            lambda new=new: _are_visible(catalog, new) or None,  # type: ignore[misc]
        ):
            continue  # another compaction was first
        report = replace(
            report,
            end=JobEnd.COMMITTED,
            files_before=report.files_before + len(inputs),
            segments_before=report.segments_before + sum(p.segments for p in inputs),
            bytes_before=report.bytes_before + sum(p.stored_bytes for p in inputs),
            files_after=report.files_after + len(new),
            segments_after=report.segments_after + sum(len(o.groups) for o in new),
            bytes_after=report.bytes_after + sum(o.object_bytes for o in new),
            rows=report.rows + sum(p.rows for p in inputs),
            collected=report.collected + sum(o.collected for o in new),
        )
    return report


def _parts(pieces_of: Mapping[int, int]) -> Iterator[list[int]]:
    """Groups, as many as one commit takes: at least one, with at most COMMIT_PIECES_MAX pieces together."""
    some: list[int] = []
    held = 0
    for at, count in pieces_of.items():
        if some and held + count > COMMIT_PIECES_MAX:
            yield some
            some, held = [], 0
        some.append(at)
        held += count
    if some:
        yield some


def planned(
    catalog: Catalog, tenant: Tenant, settings: JobSettings, new_number: Callable[[], int]
) -> tuple[list[Group], list[PlanRow]]:
    """The groups to merge, and the plan row of each, without groups that changed meanwhile."""
    edge = lowest_durable_ts(catalog, tenant)
    upto = tso.earlier(edge, settings.lag_ms)
    worthwhile = _worthwhile(catalog, tenant, upto, settings)
    if not worthwhile:
        return [], []
    of = get_tenant(catalog, tenant)
    safe_ts = of.floor_ts if of.kind.is_keyspace else 0
    segments = segments_of(catalog, tenant, [piece for group in worthwhile for piece in group.pieces])
    job = new_number()
    groups: list[Group] = []
    rows: list[PlanRow] = []
    for group in worthwhile:
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
    left_out = excluded(catalog, tenant)
    while True:
        some = pieces(
            catalog, tenant, upto_ts=upto_ts, limit=settings.pieces_max, after=after, task_ids=settings.task_ids
        )
        groups = plan([*carried, *some], settings.plan, left_out)
        if groups or len(some) < settings.pieces_max:
            return groups
        carried, after = unfinished([*carried, *some], settings.plan, left_out), some[-1]


def _separated(
    rows: Sequence[PlanRow], groups: Sequence[Group], results: Sequence[RangeResult | Failed]
) -> tuple[dict[int, RangeResult], dict[int, Failed]]:
    """(range -> its file, range -> why it has none). Of several files of one range, from repeated work, the first by
    key. TiStreamError when a range has no result."""
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
    return {at: made[at] for at in sorted(made)}, {at: why for at, why in failed.items() if at not in made}


def _guilty(group: Group, failed: Failed) -> Sequence[str]:
    """The objects that later jobs leave alone: those that cannot be read, else all of the group."""
    return failed.unreadable or [piece.object_key for piece in group.pieces]


def _excluded(group: Group, failed: Failed) -> ExcludedGroup:
    first, last = group.pieces[0].object_key, group.pieces[-1].object_key
    error = {"code": failed.code, "message": failed.message, "object": failed.object}
    return ExcludedGroup(task_id=group.task_id, first=first, last=last, **error)


RangeT = TypeVar("RangeT", bound=HasRange)


def collected(results: Iterable[RangeT], planned: int, progress: Callable[[int, int], None]) -> list[RangeT]:
    """All results of an executor; `progress` is called with (ranges with a result, planned)."""
    done: list[RangeT] = []
    try:
        progress(0, planned)
        for result in results:
            done.append(result)
            progress(len({r.range_id for r in done}), planned)
    finally:
        if isinstance(results, Generator):
            results.close()  # work that still runs stops now, not when the error is forgotten
    return done


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
    states = object_states(catalog, [outputs[0].object_key])
    return states.get(outputs[0].object_key) in (ObjectState.LIVE, ObjectState.SUPERSEDED)


class Building:
    """Context manager of one driver. The build begins when `number` is asked for, and ends with the context."""

    def __init__(self, catalog: Catalog, tenant: Tenant, clock: Clock) -> None:
        self._catalog, self._tenant, self._clock = catalog, tenant, clock
        self._number: int | None = None
        self._renewal: Repeating | None = None

    def __enter__(self) -> Self:
        return self

    def number(self) -> int:
        """The build's number, the same each time. Its lease is renewed from now on."""
        if self._number is None:
            self._number = begin_build(self._catalog, self._tenant)
            self._renewal = Repeating(
                f"build {self._number}", self._renew, interval_s=BUILD_RENEW_MS / 1000, clock=self._clock, lasting=True
            )
            self._renewal.start()
        return self._number

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._number is None or self._renewal is None:
            return
        self._renewal.stop()
        try:
            end_build(self._catalog, self._number)
        except CatalogUnavailable as e:
            log.warning("build not ended, its lease will expire", build=self._number, error=str(e))

    def _renew(self) -> None:
        if self._number is not None and not renew_build(self._catalog, self._number):
            log.warning("the lease of a build has expired, its files may be collected", build=self._number)


class JobRole(StrEnum):
    """The kinds of job."""

    COMPACTION = "compaction"
    BASES = "bases"


def record_excluded(
    catalog: Catalog, tenant: Tenant, role: JobRole, excluded: Sequence[Excluded], *, left_out: int = 0
) -> None:
    """Record what a job excluded; clears the tenant's stop of this role when nothing was. `left_out`: objects that
    earlier jobs excluded."""
    item = str(tenant)
    if not excluded and not left_out:
        clear_stopped_item(catalog, role, item)
        return
    known = next((row.stopped for row in stopped_items_of_role(catalog, role) if row.stopped.item == item), None)
    if not excluded:
        if known is not None:
            record_stopped_item(catalog, known)  # else it would be deleted as a stale one
        return
    first, more, tries = excluded[0], len(excluded) - 1, 0 if known is None else known.tries
    stopped = StoppedItem(
        role=role,
        item=item,
        scope=Scope.TENANT,
        tenant=tenant,
        code=first.code,
        message=f"{first.message} ({more} more are excluded)" if more else first.message,
        object=first.object,
        tries=tries + 1,
    )
    record_stopped_item(catalog, stopped)
