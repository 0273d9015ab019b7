"""Builds the table snapshots (bases) of one tenant, from plan to transaction.

    served watermark - lag -> timestamp B of the bases
    tables at B, with their predecessors -> segments up to B -> plan      reads of the catalog
    executor: files of rows for each group                                nothing is visible
    verify -> add_bases                                                   one transaction, all or nothing
    obsolete bases -> retire_bases                                        one transaction

Nothing below the watermark changes, so the reads need not agree; the transaction checks the predecessors again. Two
concurrent rounds may choose the same tables: the second one's work is lost, or gives correct bases at another
timestamp. A table older than the log without a seed has no rows to start from, and gets no base.

A table whose base cannot be built, because an object is missing or damaged or the code fails, is excluded and reported.
Its group is run again table by table to find it. A retryable error (store or catalog unavailable) ends the round.

A tenant without tables (RawKV, TxnKV) has one base, of all its keys; what is said of tables holds for it.

A job that dies leaves files without a row, which are collected, or bases that the next round retires.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from compactor.base_task import BaseResult
from compactor.core.base_plan import BaseGroup, BasePlanRow, BasePlanSettings, BaseTable, apart, outlived, plan_bases
from compactor.core.verify import verified_bases
from compactor.job import JobEnd, collected
from compactor.stops import Excluded
from compactor.task import Failed
from schemas.bases import Base, choose, is_overtaken, of_range
from schemas.history import History
from schemas.registry.schema_registry import SchemaRegistry
from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.lost_reply import commit_or_read_back
from tistream.catalog.log.amendments import newest_amendment
from tistream.catalog.log.bases import BaseRow, NewBase, add_bases, base_segments_of, list_bases, retire_bases
from tistream.catalog.log.committed import find_segments
from tistream.catalog.log.compaction import new_job
from tistream.catalog.log.seeds import SeedRow, list_seeds, seed_segments_of
from tistream.catalog.log.segments import SegmentRow, segment_in
from tistream.catalog.tenancy.tenants import TenantRow, get_tenant
from tistream.catalog.work.tasks import served_watermark
from tistream.clock import Clock
from tistream.errors import SeedNeeded, TsExpired
from tistream.ids import Tenant

log = structlog.get_logger(__name__)

BaseExecutor = Callable[[Sequence[BasePlanRow]], Iterable[BaseResult | Failed]]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSettings:
    """Limits of a round."""

    lag_ms: int = 60_000  #: distance of the bases from the served watermark
    window_ms: int = 7 * 24 * 3_600_000  #: bases within this time of the watermark are kept
    due_ms: int = 0  #: a table whose base is older gets a new one in any case; 0 = never
    segments_max: int = 100_000  #: read in one round; with more, it builds at a lower timestamp
    plan: BasePlanSettings = field(default_factory=BasePlanSettings)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedTable(Excluded):
    """A table without a new base."""

    table_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseReport:
    """Result of a round."""

    end: JobEnd
    ts: int = 0
    tables: int = 0
    rows: int = 0
    bytes_read: int = 0
    bytes_written: int = 0
    segments_before: int = 0  #: of predecessors and log that were read
    segments_after: int = 0  #: of the bases
    retired: int = 0
    seconds: float = 0.0
    failed: tuple[ExcludedTable, ...] = ()  #: the excluded tables


def build_tenant_bases(
    catalog: Catalog,
    registry: SchemaRegistry,
    tenant: Tenant,
    executor: BaseExecutor,
    settings: BaseSettings,
    clock: Clock,
    progress: Progress = lambda done, total: None,
) -> BaseReport:
    """Run one round. `progress` is called with (groups done, groups planned).

    Excluded tables are in the report's `failed`. Other errors of the executor and of verification end it without
    effect. CatalogUnavailable, not determinate, when it is unknown whether the bases were added.
    """
    begun = clock.monotonic()
    row = get_tenant(catalog, tenant)
    if not row.has_log:
        return BaseReport(end=JobEnd.NOTHING_TO_DO)
    amended = newest_amendment(catalog, tenant)
    watermark = served_watermark(catalog, tenant)
    history = None if row.kind.is_keyspace else registry.history(tenant)
    edge = watermark if history is None else min(watermark, history.resolved_ts)
    failed: list[ExcludedTable] = []
    while True:
        ts, rows, sources = planned_bases(catalog, row, history, edge, settings, without={f.table_id for f in failed})
        made, excluded = _made(executor, rows, progress)
        failed += excluded
        if made or not excluded:
            break  # else only failing tables were planned: plan the others
    for each in failed:
        log.error("table excluded from bases", tenant=str(tenant), table=each.table_id, error=each.message)
    rows, results = [row for row, _ in made], [result for _, result in made]
    added = not made or _add(catalog, tenant, rows, results, sources, row.earliest_ts, amended)
    retired = _retire(catalog, tenant, history, tso.earlier(edge, settings.window_ms))
    report = BaseReport(
        end=_end(bool(made), added, bool(failed)),
        ts=ts,
        tables=sum(len(r.tables) for r in rows),
        rows=sum(count for r in results for count in r.rows.values()),
        bytes_read=sum(s.length for r in rows for s in r.segments)
        + sum(t.stored_bytes for r in rows for t in r.tables),
        bytes_written=sum(file.object_bytes for r in results for file in r.files),
        segments_before=sum(len(r.segments) + sum(len(t.rows) for t in r.tables) for r in rows),
        segments_after=sum(len(file.segments) for r in results for file in r.files),
        retired=retired,
        seconds=clock.monotonic() - begun,
        failed=tuple(failed),
    )
    log.info("bases built", tenant=str(tenant), end=report.end, tables=report.tables, ts=ts, retired=retired)
    return report


def _end(made: bool, added: bool, failed: bool) -> JobEnd:
    if made:
        return JobEnd.SWAPPED if added else JobEnd.LOST
    return JobEnd.FAILED if failed else JobEnd.NOTHING_TO_DO


def _made(
    executor: BaseExecutor, rows: Sequence[BasePlanRow], progress: Progress
) -> tuple[list[tuple[BasePlanRow, BaseResult]], list[ExcludedTable]]:
    """(rows with their results, excluded tables). A group that fails is run again table by table."""
    if not rows:
        return [], []
    made, failed = _separated(rows, collected(executor(rows), len(rows), progress))
    alone: list[BasePlanRow] = []
    for row, _ in failed:
        if len(row.tables) > 1:
            alone += apart(row, len(rows) + len(alone))
    if alone:
        failed = [(row, error) for row, error in failed if len(row.tables) == 1]
        more, still = _separated(alone, collected(executor(alone), len(alone), progress))
        made, failed = made + more, failed + still
    return made, [
        ExcludedTable(table_id=row.tables[0].table_id, code=error.code, message=error.message, object=error.object)
        for row, error in failed
    ]


def _separated(
    rows: Sequence[BasePlanRow], results: Sequence[BaseResult | Failed]
) -> tuple[list[tuple[BasePlanRow, BaseResult]], list[tuple[BasePlanRow, Failed]]]:
    """(the rows with a result, the rows that failed). TiStreamError when a row has neither."""
    of_row = {r.range_id: r for r in results if isinstance(r, Failed)}
    built = [r for r in results if isinstance(r, BaseResult)]
    done = {r.range_id for r in built}
    good = [row for row in rows if row.range_id in done or row.range_id not in of_row]
    made = list(zip(good, verified_bases(good, built), strict=True))
    return made, [(row, of_row[row.range_id]) for row in rows if row.range_id not in done and row.range_id in of_row]


def planned_bases(
    catalog: Catalog,
    row: TenantRow,
    history: History | None,
    edge: int,
    settings: BaseSettings,
    *,
    without: Collection[int] = (),
) -> tuple[int, list[BasePlanRow], dict[int, Base]]:
    """(B, the plan, predecessor of each planned table). `history` is None for a tenant without tables. `edge` is the
    served watermark; the tables in `without` get no base."""
    tenant, ts = row.tenant, tso.earlier(edge, settings.lag_ms)
    if ts <= max(row.earliest_ts, 0 if history is None else history.start_ts):
        return ts, [], {}
    found = _sources(catalog, row, history, ts)
    sources = {base.physical_id: base for base in found if base.physical_id not in without}
    if not sources:
        return ts, [], {}
    after = min(base.ts for base in sources.values())
    if after >= ts:
        return ts, [], {}
    wanted, limit = ts, settings.segments_max
    while True:  # tables that need no new base hold `after` back: read more segments until one does
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


def _sources(catalog: Catalog, row: TenantRow, history: History | None, ts: int) -> Iterator[Base]:
    """The predecessors of the tables that exist at `ts` and have one."""
    seeds, bases = list_seeds(catalog, row.tenant), list_bases(catalog, row.tenant)
    if history is None:
        with suppress(TsExpired):  # the floor has risen meanwhile
            yield of_range(bases, ts, start_ts=row.start_ts, floor_ts=row.floor_ts)
        return
    of_table: dict[int, list[BaseRow]] = {}
    for base in bases:
        of_table.setdefault(base.table_id, []).append(base)
    for database in history.databases(ts):
        for table in history.tables(database.name, ts):
            if table.kind != "table":
                continue
            mine = [base for physical_id in table.physical_ids for base in of_table.get(physical_id, [])]
            try:
                yield from choose(history, table, ts, seeds=seeds, bases=mine, log_start_ts=row.earliest_ts)
            except (SeedNeeded, TsExpired):
                continue


def _segments(catalog: Catalog, tenant: Tenant, after: int, ts: int, limit: int) -> tuple[int, list[SegmentRow]]:
    """(B, all segments that may hold changes in (after, B]); B is `ts`, or lower when there are too many."""
    while True:
        found = find_segments(catalog, tenant, after_ts=after, upto_ts=ts, limit=limit)
        end = ts if len(found) < limit else min(ts, found[-1].lo_ts - 1)
        if end > after or not found:
            return end, [segment for segment in found if segment.lo_ts <= end]
        limit *= 2  # all begin at one commit_ts: read more


def _table(catalog: Catalog, base: Base) -> BaseTable | None:
    rows: Sequence[SegmentRow] | None = ()
    match base.source:
        case SeedRow() as seed:
            rows = seed_segments_of(catalog, seed, base.physical_id)
        case BaseRow() as built:
            rows = base_segments_of(catalog, built)
    if rows is None:  # retired since it was listed
        return None
    return BaseTable(table_id=base.physical_id, after_ts=base.ts, rows=tuple(rows))


def _add(
    catalog: Catalog,
    tenant: Tenant,
    rows: Sequence[BasePlanRow],
    results: Sequence[BaseResult],
    sources: dict[int, Base],
    start_ts: int,
    amended: int,
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
        lambda: add_bases(catalog, tenant, new, files, log_start_ts=start_ts, amended=amended),
        lambda: _is_visible(catalog, tenant, new[0]) or None,
    )


def _is_visible(catalog: Catalog, tenant: Tenant, base: NewBase) -> bool:
    """Whether this base is visible with these segments: all become visible together."""
    row = next((b for b in list_bases(catalog, tenant, [base.table_id]) if b.ts == base.ts), None)
    found = None if row is None else base_segments_of(catalog, row)
    return found is not None and [s.object_key for s in found] == [s.object_key for s in base.segments]


def _retire(catalog: Catalog, tenant: Tenant, history: History | None, window_start_ts: int) -> int:
    bases, seeds = list_bases(catalog, tenant), list_seeds(catalog, tenant)
    overtaken = set() if history is None else {base for base in bases if is_overtaken(base, history, seeds)}
    return retire_bases(catalog, tenant, outlived(bases, overtaken, window_start_ts))
