"""Reads one table as of a timestamp: from names, time and format to a stream of bytes.

    as_of -> served watermark -> table version -> snapshots -> rows by key -> columns -> those that pass -> bytes

Errors come before the first byte where possible: names, times, a missing table snapshot, and rows whose conversion is
not certain (tables with such a change since their snapshot are read twice for that). A later fault, such as a damaged
segment, breaks the stream off, so that no reader takes a part for the whole.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import pyarrow as pa

from reading.asof.core.columns import Reading, decoded, readings
from reading.asof.core.projection import LeftOut, left_out, projected
from reading.asof.output import writer_of
from reading.asof.source import TableSource, while_bases_go
from reading.filters import NO_FILTER, Filter
from reading.filters.core.regexes import Allowance, allowed
from reading.filters.select import passing_rows
from reading.formats import FormatOptions
from reading.formats.estimate import estimated
from reading.rows.scope import Scope
from reading.served.position import Served, parse_ts
from reading.served.services import Services
from schemas.bases import Base, choose, seeded_after
from schemas.history import History
from schemas.layout import row_layout
from schemas.limited import whole_of
from schemas.model import Table
from tistream.catalog.log.bases import list_bases
from tistream.catalog.log.retention import expired
from tistream.catalog.log.seeds import list_seeds
from tistream.catalog.rows.bases import BaseRow
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.errors import AheadOfWatermark
from tistream.ids import Tenant

_IDS_NAMED_MAX = 1000  # in one question to the catalog
_PATTERNS_S_MAX = 30.0  # processor time of LIKE for all rows of a table
_PART_BYTES = 4 << 20  # of a body, estimated: rows that are written at once
_LINES = {"ndjson": "ndjson", "csv": "csv", "sql": "ndjson"}  # format -> the one whose estimate holds for it
_HELD_BYTES = 8 << 20  # a body up to this size is complete before its first byte is sent


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsRequest:
    """A parsed read."""

    tenant: Tenant
    database: str
    table: str
    as_of: str
    format: str  #: a name in `output.FORMATS`
    columns: tuple[str, ...] | None = None  #: names; None = all that have values
    filter: Filter = NO_FILTER  #: only its expression over rows is asked
    within: tuple[str, ...] | None = None  #: rules of the tables that the key may read; None = all
    continued: bool = False  #: the schema with which changes above the timestamp begin

    @property
    def scope(self) -> Scope:
        """The table."""
        return Scope(tenant=self.tenant, database=self.database, table=self.table, within=self.within)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsAnswer:
    """The body and its timestamps."""

    content: Iterator[bytes]
    as_of: int
    base_ts: int  #: changes between this and `as_of` come from the log
    resolved_ts: int
    left_out: tuple[LeftOut, ...]  #: columns of the table that are not in the body, though not asked to be omitted


@dataclass(frozen=True, slots=True, kw_only=True)
class TableAsOf:
    """A table at a timestamp: its definition, and its rows in key order, readable repeatedly."""

    table: Table
    as_of: int
    bases: tuple[Base, ...]
    source: TableSource
    tenant: Tenant
    readings: dict[int, Reading]

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The delivered columns in storage form (see `tistream.codec.row`)."""
        for rows in self.source.rows(self.tenant, self.bases, self.as_of):
            yield decoded(self.readings, rows)

    def check(self) -> None:
        """Raise what reading the rows would raise, if some conversions may be refused."""
        if any(reading.converts for reading in self.readings.values()):
            for _ in self.batches():
                pass


def read_rows(services: Services, request: RowsRequest) -> RowsAnswer:
    """Start the read. AheadOfWatermark when the timestamp is not served yet; see the module for other errors."""
    history, as_of, resolved, _ = moment(
        services, request.tenant, request.as_of, request.within, continued=request.continued
    )
    whole = history.find_base_table(request.database, request.table, as_of)
    request.filter.check_names(history, request.scope, as_of, as_of)
    shown, missing = projected(whole, request.columns), left_out(whole) if request.columns is None else ()
    table = projected(whole, request.columns and (*request.columns, *request.filter.named()))

    def read() -> RowsAnswer:
        state = table_as_of(services, request.tenant, history, table, as_of)
        state.check()
        content = _read_ahead(_body(state, shown, request, missing))
        base_ts = min(base.ts for base in state.bases)
        return RowsAnswer(content=content, as_of=as_of, base_ts=base_ts, resolved_ts=resolved, left_out=missing)

    return while_bases_go(read)


def table_as_of(services: Services, tenant: Tenant, history: History, table: Table, as_of: int) -> TableAsOf:
    """The table at a served timestamp, from its newest bases. TsExpired below the start of the log, SeedNeeded. How its
    rows were written before, under whatever name, does not depend on who reads."""
    history = whole_of(history)
    log_start = get_tenant(services.catalog, tenant).earliest_ts  # advances, and retires bases below it
    if as_of < log_start:
        raise expired(as_of, log_start)
    seeds = list_seeds(services.catalog, tenant)
    bases = choose(
        history,
        table,
        as_of,
        seeds=seeds,
        bases=list_bases(services.catalog, tenant, table.physical_ids),
        log_start_ts=log_start,
    )
    return TableAsOf(
        table=table,
        as_of=as_of,
        bases=bases,
        source=TableSource(catalog=services.catalog, store=services.store, reader=services.reader),
        tenant=tenant,
        readings=readings(
            history,
            table,
            as_of,
            log_start_ts=max(log_start, history.start_ts),
            seeded_ts=seeded_after(history, table, as_of, seeds),
        ),
    )


def check_tables(services: Services, tenant: Tenant, history: History, tables: Sequence[Table], as_of: int) -> None:
    """Raise what `table_as_of` would raise for any of these tables. The catalog is asked for all of them at once."""
    history, log_start = whole_of(history), get_tenant(services.catalog, tenant).earliest_ts
    if as_of < log_start:
        raise expired(as_of, log_start)
    seeds, built = list_seeds(services.catalog, tenant), defaultdict[int, list[BaseRow]](list)
    ids = {id_ for table in tables for id_ in table.physical_ids}
    for base in list_bases(services.catalog, tenant, ids if len(ids) <= _IDS_NAMED_MAX else None):
        built[base.table_id].append(base)
    for table in tables:
        bases = [base for id_ in table.physical_ids for base in built.get(id_, ())]
        choose(history, table, as_of, seeds=seeds, bases=bases, log_start_ts=log_start)


def moment(
    services: Services, tenant: Tenant, text: str, within: tuple[str, ...] | None, *, continued: bool = False
) -> tuple[History, int, int, int]:
    """(history as far as the key sees it, TSO of `text`, served watermark, start of the log). `continued`: as in
    `RowsRequest`."""
    served = services.served(tenant).within(within)
    history, resolved = served.schema_as_of(continued=continued), served.resolved
    earliest = max(served.row.earliest_ts, history.start_ts)
    as_of = served_moment(served, text, earliest, services.clock.unix_ms())
    return history, as_of, resolved, served.row.earliest_ts


def served_moment(served: Served, text: str, earliest: int, now_ms: int) -> int:
    """The TSO of `text`. TsExpired below `earliest`, AheadOfWatermark above what is served."""
    resolved = served.resolved
    as_of = parse_ts(text, earliest=earliest, latest=resolved, now_ms=now_ms)
    if as_of < earliest:
        raise expired(as_of, earliest)
    if as_of > resolved:
        served.check_good(as_of)
        raise AheadOfWatermark(
            f"{as_of} is not served yet: the watermark is at {resolved}.", as_of=str(as_of), resolved_ts=str(resolved)
        )
    return as_of


def _body(state: TableAsOf, shown: Table, request: RowsRequest, missing: tuple[LeftOut, ...]) -> Iterator[bytes]:
    writer = writer_of(request.format, shown, missing)
    place = {spec.id: n for n, spec in enumerate(row_layout(state.table).columns)}
    columns = [place[spec.id] for spec in row_layout(shown).columns]
    allowance = Allowance(time.thread_time, _PATTERNS_S_MAX)
    yield writer.begin()
    for batch in state.batches():
        with allowed(allowance):
            passing = passing_rows(request.filter, state.table, batch)
        rows = batch if passing.all() else batch.filter(pa.array(passing))
        rows = rows if len(columns) == rows.num_columns else rows.select(columns)
        yield from map(writer.rows, _parts(request.format, shown, rows))
    yield writer.end()


def _parts(format: str, shown: Table, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The rows, a part of the body at a time: names make lines of wide tables many times as large as stored rows.
    Parquet keeps its row groups, and Arrow grows little."""
    count = rows.num_rows
    per_part = max(1, count)
    if count and format in _LINES:
        a_row = estimated(_LINES[format], FormatOptions(), shown).of(np.array([rows.nbytes // count]))
        per_part = max(1, _PART_BYTES // int(a_row[0]))
    for at in range(0, count, per_part):
        yield rows.slice(at, per_part)


def _read_ahead(body: Iterator[bytes]) -> Iterator[bytes]:
    """The same bytes, the first `_HELD_BYTES` of them read ahead."""
    held: list[bytes] = []
    size = 0
    for part in body:
        held.append(part)
        size += len(part)
        if size >= _HELD_BYTES:
            break
    return chain(filter(None, held), filter(None, body))
