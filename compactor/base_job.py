"""Builds the table snapshots (bases) of one tenant, from plan to transaction.

    served watermark - lag -> timestamp B of the bases
    tables at B, with their predecessors -> segments up to B -> plan      reads of the catalog
    executor: files of rows for each group                                nothing is visible
    verify -> add_bases                                                   one transaction, all or nothing
    obsolete bases -> retire_bases                                        one transaction

Nothing below the watermark changes, so the reads need not agree; the transaction checks the predecessors again, table
by table: the floor may have passed some of them. Two concurrent rounds may choose the same tables: the second one's
work is lost, or gives correct bases at another timestamp. A table older than the log without a seed has no rows to
start from, and gets no base.

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

from compactor.core.base_plan import BaseGroup, BasePlanRow, BasePlanSettings, BaseTable, apart, outlived, plan_bases
from compactor.core.results import BaseResult, verified_bases
from compactor.job import Building, Excluded, JobEnd, collected
from compactor.task import Failed
from schemas.bases import Base, choose, is_overtaken, of_range
from schemas.history import History
from schemas.registry.retention import Birth, births
from schemas.registry.schema_registry import SchemaRegistry
from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.lost_reply import commit_or_read_back
from tistream.catalog.log.bases import add_bases, base_segments_of, list_bases, retire_bases
from tistream.catalog.log.committed import find_segments
from tistream.catalog.log.seeds import list_seeds, seed_segments_of
from tistream.catalog.rows.bases import BaseRow, NewBase
from tistream.catalog.rows.seeds import SeedRow
from tistream.catalog.rows.segments import SegmentRow, segment_in
from tistream.catalog.rows.tenants import TenantRow
from tistream.catalog.tenancy.tenants import get_tenant
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
    watermark = served_watermark(catalog, tenant)
    history = None if row.kind.is_keyspace else registry.history(tenant)
    edge = watermark if history is None else min(watermark, history.resolved_ts)
    failed: list[ExcludedTable] = []
    bytes_read = 0
    with Building(catalog, tenant, clock) as build:
        while True:
            without = {f.table_id for f in failed}
            ts, rows, sources = planned_bases(catalog, row, history, edge, settings, build.number, without=without)
            made, excluded = _made(executor, rows, progress)
            failed += excluded
            bytes_read += sum(_stored_bytes(planned) for planned in rows)
            if made or not excluded:
                break  # else only failing tables were planned: plan the others
        for each in failed:
            log.error("table excluded from bases", tenant=str(tenant), table=each.table_id, error=each.message)
        rows, results = [row for row, _ in made], [result for _, result in made]
        new = _new_bases(rows, results, sources, {} if history is None else births(history, row.earliest_ts))
        added = _add(catalog, tenant, new, results) if new else frozenset[int]()
    retired = _retire(catalog, tenant, history, tso.earlier(edge, settings.window_ms))
    visible = [base for base in new if base.table_id in added]
    named = {segment.object_key for base in visible for segment in base.segments}
    report = BaseReport(
        end=_end(bool(made), bool(added), bool(failed)),
        ts=ts,
        tables=len(visible),
        rows=sum(base.rows for base in visible),
        bytes_read=bytes_read,
        bytes_written=sum(f.object_bytes for r in results for f in r.files if f.object_key in named),
        segments_before=sum(len(r.segments) + sum(len(t.rows) for t in r.tables) for r in rows),
        segments_after=sum(len(base.segments) for base in visible),
        retired=retired,
        seconds=clock.monotonic() - begun,
        failed=tuple(failed),
    )
    log.info("bases built", tenant=str(tenant), end=report.end, tables=report.tables, ts=ts, retired=retired)
    return report


def _stored_bytes(row: BasePlanRow) -> int:
    return sum(s.length for s in row.segments) + sum(t.stored_bytes for t in row.tables)


def _end(made: bool, added: bool, failed: bool) -> JobEnd:
    if made:
        return JobEnd.COMMITTED if added else JobEnd.LOST
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
    new_number: Callable[[], int],
    *,
    without: Collection[int] = (),
) -> tuple[int, list[BasePlanRow], dict[int, Base]]:
    """(B, the plan, predecessor of each planned table). `history` is None for a tenant without tables. `edge` is the
    served watermark; the tables in `without` get no base."""
    tenant, ts = row.tenant, tso.earlier(edge, settings.lag_ms)
    if ts <= max(row.earliest_ts, 0 if history is None else history.start_ts):
        return ts, [], {}
    sources_of_tables = _sources(catalog, row, history, ts)
    sources = {base.physical_id: base for base in sources_of_tables if base.physical_id not in without}
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
    job = new_number()
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
        segments = find_segments(catalog, tenant, after_ts=after, upto_ts=ts, limit=limit)
        end = ts if len(segments) < limit else min(ts, segments[-1].lo_ts - 1)
        if end > after or not segments:
            return end, [segment for segment in segments if segment.lo_ts <= end]
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


def _new_bases(
    rows: Sequence[BasePlanRow], results: Sequence[BaseResult], sources: Mapping[int, Base], born: Mapping[int, Birth]
) -> list[NewBase]:
    """`born`: the tables that were created after the log began: of one without a predecessor all rows lie above."""
    new: list[NewBase] = []
    for row, result in zip(rows, results, strict=True):
        of_table: dict[int, list[SegmentRow]] = {}
        for file in result.files:
            for info in file.segments:
                of_table.setdefault(info.table_lo, []).append(segment_in(file.object_key, info))
        for table in row.tables:
            source, birth = sources[table.table_id], born.get(table.table_id)
            new.append(
                NewBase(
                    table_id=table.table_id,
                    ts=row.ts,
                    previous=source.source,
                    after_ts=birth.from_ts if birth is not None and source.source is None else source.ts,
                    rows=result.rows.get(table.table_id, 0),
                    segments=tuple(of_table.get(table.table_id, ())),
                )
            )
    return new


def _add(catalog: Catalog, tenant: Tenant, new: Sequence[NewBase], results: Sequence[BaseResult]) -> frozenset[int]:
    """The tables whose base is visible now."""
    files = {file.object_key: file.object_bytes for result in results for file in result.files}
    return commit_or_read_back(
        lambda: add_bases(catalog, tenant, new, files), lambda: _visible(catalog, tenant, new) or None
    )


def _visible(catalog: Catalog, tenant: Tenant, new: Sequence[NewBase]) -> frozenset[int]:
    """The tables whose base is visible with these segments; of an empty one another round's is the same."""
    listed = list_bases(catalog, tenant, [base.table_id for base in new])
    there = {base.table_id: base for base in listed if base.ts == new[0].ts}
    visible: set[int] = set()
    for base in new:
        row = there.get(base.table_id)
        segments = None if row is None else base_segments_of(catalog, row)
        if segments is not None and [s.object_key for s in segments] == [s.object_key for s in base.segments]:
            visible.add(base.table_id)
    return frozenset(visible)


def _retire(catalog: Catalog, tenant: Tenant, history: History | None, window_start_ts: int) -> int:
    bases, seeds = list_bases(catalog, tenant), list_seeds(catalog, tenant)
    overtaken = set() if history is None else {base for base in bases if is_overtaken(base, history, seeds)}
    return retire_bases(catalog, tenant, outlived(bases, overtaken, window_start_ts))
