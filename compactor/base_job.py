"""One round of bases of one tenant, from plan to transaction.

    served watermark, less the lag -> the bases' timestamp B
    tables at B, what each starts from -> segments up to B -> plan        reads of the catalog
    executor: files of rows for each group                                nothing is visible
    verify -> add_bases                                                   one transaction, all or nothing
    outlived bases -> retire_bases                                        one transaction

Nothing below the watermark changes, so the reads need not agree with each other; what a base starts from is looked at
again in the transaction. Two rounds at once may choose the same tables: the second one's work is lost, or gives bases
of its own at another timestamp, which are right as well. A table without a seed that is older than the log has no rows
to start from and gets no base.

A table whose base cannot be built, because an object that it needs is missing or damaged or the code fails, is left
out and named; the others get theirs. Its group is tried again table by table to find it. An error that may pass (store
or catalog away) ends the round.

A job that dies leaves files without a row, which are collected, or bases that are not retired yet, which the next round
sees to.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import structlog

from compactor.base_task import BaseFailed, BaseResult
from compactor.core.base_plan import BaseGroup, BasePlanRow, BasePlanSettings, BaseTable, apart, outlived, plan_bases
from compactor.core.verify import verified_bases
from compactor.job import JobEnd, collected
from schemas.bases import Base, choose, is_overtaken
from schemas.history import History
from schemas.registry.schema_registry import SchemaRegistry
from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.lost_reply import commit_or_read_back
from tistream.catalog.log.bases import BaseRow, NewBase, add_bases, base_segments_of, list_bases, retire_bases
from tistream.catalog.log.committed import find_segments
from tistream.catalog.log.compaction import new_job
from tistream.catalog.log.seeds import SeedRow, list_seeds, seed_segments_of
from tistream.catalog.log.segments import SegmentRow, segment_in
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.catalog.work.tasks import served_watermark
from tistream.clock import Clock
from tistream.errors import SeedNeeded, TsExpired
from tistream.ids import Tenant

log = structlog.get_logger(__name__)

BaseExecutor = Callable[[Sequence[BasePlanRow]], Iterable[BaseResult | BaseFailed]]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSettings:
    """What a round takes."""

    lag_ms: int = 60_000  #: bases lie so far below the served watermark
    window_ms: int = 7 * 24 * 3_600_000  #: below the watermark, in which moments keep the base that they have at hand
    due_ms: int = 0  #: below the watermark: a table whose base is older gets a new one in any case; 0 = none does
    segments_max: int = 100_000  #: that one round looks at; with more it goes up to a lower timestamp
    plan: BasePlanSettings = field(default_factory=BasePlanSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """A table that cannot have a base now."""

    table_id: int
    code: str
    message: str
    object: str  #: that the error names; empty when it names none


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseReport:
    """What a round did."""

    end: JobEnd
    ts: int = 0
    tables: int = 0
    rows: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    retired: int = 0
    seconds: float = 0.0
    failed: tuple[LeftOut, ...] = ()  #: the tables that were left out


def build_tenant_bases(
    catalog: Catalog,
    registry: SchemaRegistry,
    tenant: Tenant,
    executor: BaseExecutor,
    settings: BaseSettings,
    clock: Clock,
    progress: Progress = lambda done, total: None,
) -> BaseReport:
    """Run one round. `progress` hears (groups done, groups planned).

    Tables that cannot have a base are in the report's `failed`. Other errors of the executor and of verification end
    it, and nothing has changed. CatalogUnavailable, not determinate, when it is unknown whether the bases were
    added.
    """
    begun = clock.monotonic()
    row = get_tenant(catalog, tenant)
    if not row.start_ts:
        return BaseReport(end=JobEnd.NOTHING_TO_DO)
    watermark = served_watermark(catalog, tenant)
    history = registry.history(tenant)
    edge = min(watermark, history.resolved_ts)
    failed: list[LeftOut] = []
    while True:
        ts, rows, sources = planned_bases(
            catalog, tenant, history, row.earliest_ts, edge, settings, without={f.table_id for f in failed}
        )
        made, left_out = _made(executor, rows, progress)
        failed += left_out
        if made or not left_out:
            break  # else the tables that failed took all there was to do: see to the others
    for each in failed:
        log.error("a table is left out of the bases", tenant=str(tenant), table=each.table_id, error=each.message)
    rows, results = [row for row, _ in made], [result for _, result in made]
    added = not made or _add(catalog, tenant, rows, results, sources, row.earliest_ts)
    retired = _retire(catalog, tenant, history, tso.earlier(edge, settings.window_ms))
    report = BaseReport(
        end=_end(bool(made), added, bool(failed)),
        ts=ts,
        tables=sum(len(r.tables) for r in rows),
        rows=sum(count for r in results for count in r.rows.values()),
        bytes_read=sum(s.length for r in rows for s in r.segments)
        + sum(t.stored_bytes for r in rows for t in r.tables),
        bytes_written=sum(file.object_bytes for r in results for file in r.files),
        retired=retired,
        seconds=clock.monotonic() - begun,
        failed=tuple(failed),
    )
    log.info("bases", tenant=str(tenant), end=report.end, tables=report.tables, ts=ts, retired=retired)
    return report


def _end(made: bool, added: bool, failed: bool) -> JobEnd:
    if made:
        return JobEnd.SWAPPED if added else JobEnd.LOST
    return JobEnd.FAILED if failed else JobEnd.NOTHING_TO_DO


def _made(
    executor: BaseExecutor, rows: Sequence[BasePlanRow], progress: Progress
) -> tuple[list[tuple[BasePlanRow, BaseResult]], list[LeftOut]]:
    """(the rows that have bases, with their results, the tables that cannot have one). A group that fails is tried
    table by table."""
    if not rows:
        return [], []
    made, failed = _sorted_out(rows, collected(executor(rows), len(rows), progress))
    alone: list[BasePlanRow] = []
    for row, _ in failed:
        if len(row.tables) > 1:
            alone += apart(row, len(rows) + len(alone))
    if alone:
        failed = [(row, error) for row, error in failed if len(row.tables) == 1]
        more, still = _sorted_out(alone, collected(executor(alone), len(alone), progress))
        made, failed = made + more, failed + still
    return made, [
        LeftOut(table_id=row.tables[0].table_id, code=error.code, message=error.message, object=error.object)
        for row, error in failed
    ]


def _sorted_out(
    rows: Sequence[BasePlanRow], results: Sequence[BaseResult | BaseFailed]
) -> tuple[list[tuple[BasePlanRow, BaseResult]], list[tuple[BasePlanRow, BaseFailed]]]:
    """(the rows with a result, the rows that failed). TiStreamError when a row has neither."""
    of_row = {r.range_id: r for r in results if isinstance(r, BaseFailed)}
    built = [r for r in results if isinstance(r, BaseResult)]
    whole = {r.range_id for r in built}
    good = [row for row in rows if row.range_id in whole or row.range_id not in of_row]
    made = list(zip(good, verified_bases(good, built), strict=True))
    return made, [(row, of_row[row.range_id]) for row in rows if row.range_id not in whole and row.range_id in of_row]


def planned_bases(
    catalog: Catalog,
    tenant: Tenant,
    history: History,
    start_ts: int,
    edge: int,
    settings: BaseSettings,
    *,
    without: Collection[int] = (),
) -> tuple[int, list[BasePlanRow], dict[int, Base]]:
    """(B, the plan, what each planned table starts from). `edge` is what is served; the tables of `without` get no
    base."""
    ts = tso.earlier(edge, settings.lag_ms)
    if ts <= max(start_ts, history.start_ts):
        return ts, [], {}
    found = _sources(catalog, tenant, history, start_ts, ts)
    sources = {base.physical_id: base for base in found if base.physical_id not in without}
    if not sources:
        return ts, [], {}
    after = min(base.ts for base in sources.values())
    wanted, limit = ts, settings.segments_max
    while True:  # a table that gets no new base holds `after` back for ever: then more is looked at, until one gets one
        ts, segments = _segments(catalog, tenant, after, wanted, limit)
        groups = _worthy(catalog, tenant, sources, segments, ts, edge, settings)
        if groups:
            break
        if ts == wanted:
            return ts, [], {}
        limit *= 2
    job = new_job(catalog)
    rows = [
        BasePlanRow(tenant=tenant, job=job, range_id=n, ts=ts, tables=group.tables, segments=group.segments)
        for n, group in enumerate(groups)
    ]
    return ts, rows, sources


def _worthy(
    catalog: Catalog,
    tenant: Tenant,
    sources: Mapping[int, Base],
    segments: Sequence[SegmentRow],
    ts: int,
    edge: int,
    settings: BaseSettings,
) -> list[BaseGroup]:
    """The groups of tables that get a base at `ts`."""
    taken = {base.table_id for base in list_bases(catalog, tenant, list(sources)) if base.ts == ts}
    tables = [_table(catalog, b) for b in sources.values() if b.ts < ts and b.physical_id not in taken]
    due_ts = min(ts, tso.earlier(edge, settings.due_ms)) if settings.due_ms else 0
    return plan_bases([table for table in tables if table is not None], segments, ts, settings.plan, due_ts=due_ts)


def _sources(catalog: Catalog, tenant: Tenant, history: History, start_ts: int, ts: int) -> Iterator[Base]:
    """What each table starts from that exists at `ts` and has something to start from."""
    seeds, bases = list_seeds(catalog, tenant), list_bases(catalog, tenant)
    of_table: dict[int, list[BaseRow]] = {}
    for base in bases:
        of_table.setdefault(base.table_id, []).append(base)
    for database in history.databases(ts):
        for table in history.tables(database.name, ts):
            if table.kind != "table":
                continue
            mine = [base for physical_id in table.physical_ids for base in of_table.get(physical_id, [])]
            try:
                yield from choose(history, table, ts, seeds=seeds, bases=mine, log_start_ts=start_ts)
            except (SeedNeeded, TsExpired):
                continue


def _segments(catalog: Catalog, tenant: Tenant, after: int, ts: int, limit: int) -> tuple[int, list[SegmentRow]]:
    """(B, all segments that may hold something of (after, B]); B is `ts`, or lower when there are too many."""
    while True:
        found = find_segments(catalog, tenant, after_ts=after, upto_ts=ts, limit=limit)
        end = ts if len(found) < limit else min(ts, found[-1].lo_ts - 1)
        if end > after or not found:
            return end, [segment for segment in found if segment.lo_ts <= end]
        limit *= 2  # all of them begin at one commit_ts: see more of them


def _table(catalog: Catalog, base: Base) -> BaseTable | None:
    rows: Sequence[SegmentRow] | None = ()
    match base.source:
        case SeedRow() as seed:
            rows = seed_segments_of(catalog, seed, base.physical_id)
        case BaseRow() as built:
            rows = base_segments_of(catalog, built)
    if rows is None:  # retired since it was listed: another time
        return None
    return BaseTable(table_id=base.physical_id, after_ts=base.ts, rows=tuple(rows))


def _add(
    catalog: Catalog,
    tenant: Tenant,
    rows: Sequence[BasePlanRow],
    results: Sequence[BaseResult],
    sources: dict[int, Base],
    start_ts: int,
) -> bool:
    new: list[NewBase] = []
    for row, result in zip(rows, results, strict=True):
        of_table: dict[int, list[SegmentRow]] = {}
        for file in result.files:
            for info in file.segments:
                of_table.setdefault(info.table_lo, []).append(segment_in(file.object_key, info))
        new += [
            NewBase(
                table_id=table.table_id,
                ts=row.ts,
                previous=sources[table.table_id].source,
                rows=result.rows.get(table.table_id, 0),
                segments=tuple(of_table.get(table.table_id, ())),
            )
            for table in row.tables
        ]
    files = {file.object_key: file.object_bytes for result in results for file in result.files}
    return commit_or_read_back(
        lambda: add_bases(catalog, tenant, new, files, log_start_ts=start_ts),
        lambda: _is_visible(catalog, tenant, new[0]) or None,
    )


def _is_visible(catalog: Catalog, tenant: Tenant, base: NewBase) -> bool:
    """Whether this base is visible, with these segments; all of them are if one is."""
    row = next((b for b in list_bases(catalog, tenant, [base.table_id]) if b.ts == base.ts), None)
    found = None if row is None else base_segments_of(catalog, row)
    return found is not None and [s.object_key for s in found] == [s.object_key for s in base.segments]


def _retire(catalog: Catalog, tenant: Tenant, history: History, window_start_ts: int) -> int:
    bases, seeds = list_bases(catalog, tenant), list_seeds(catalog, tenant)
    overtaken = {base for base in bases if is_overtaken(base, history, seeds)}
    return retire_bases(catalog, tenant, outlived(bases, overtaken, window_start_ts))
