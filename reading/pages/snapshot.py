"""A snapshot before changes: the rows of a scope as of one timestamp, page by page, each page from its cursor alone.

    start      S = the watermark, or the asked timestamp: every table of the scope must be readable at S
    page       tables by (id, key) from the cursor's place on -> rows as of S (`asof`) -> filter -> rendering
    cursor     scope, S, the place: any server continues from it; after the last row an ordinary cursor at S

Every row is an insert with commit_ts S, with the columns that its table has at S. Nothing is held between two pages:
each reads the table's log above its base again, so large pages are cheaper. S stays readable as long as the log holds
it (the tenant's retention); below that, and when rows at or below S were accepted into the log meanwhile, SnapshotLost.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from reading.asof.core.columns import decoded
from reading.asof.core.projection import LeftOut, left_out
from reading.asof.read import TableAsOf, check_tables, table_as_of
from reading.asof.source import CHOICES_MAX, BaseGone
from reading.core.changes import INSERT, TableChanges
from reading.core.split import pick
from reading.filters import Filter
from reading.filters.select import passing_rows
from reading.log.memory import Held
from reading.pages.rendering import Rendered, Rendering
from reading.rows.scope import Scope, check_names, wanted
from reading.served.position import Served, SnapshotPosition
from reading.served.services import Services
from schemas.history import History
from schemas.layout import row_layout
from schemas.model import Table
from tistream import ts as tso
from tistream.codec.table_key import table_ids
from tistream.errors import AheadOfWatermark, InvalidInput, SnapshotLost
from tistream.limits import PULL_ROWS_MAX

_TABLES_MAX = 100  # of one page
_HELD_BYTES = 32 << 20  # of a page's body, estimated
_COPIES = 3  # of the rows of a page: as read, decoded, as a body
_LOOKED_AT_MAX = 5 * PULL_ROWS_MAX  # rows for one page with a filter


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRows:
    """Rows of one table as of the snapshot's timestamp."""

    stored: pa.Table  #: schema newest.STATE
    changes: TableChanges


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPage:
    """A rendered page."""

    rendered: Rendered
    place: SnapshotPosition | None  #: what comes next; None after the last row
    left_out: tuple[tuple[str, LeftOut], ...]  #: (database.table, column) of the tables of the page


def start_place(
    services: Services, scope: Scope, filter: Filter, served: Served, as_of: str | None
) -> SnapshotPosition:
    """The first place of a new snapshot. Errors of any of its tables come here, before the first row."""
    history, now_ms = served.known_history, services.clock.unix_ms()
    ts = served.resolved if as_of is None else served.parse_ts(as_of, now_ms)
    served.check_start(ts, now_ms)
    if ts > served.resolved:
        raise AheadOfWatermark(
            f"{ts} is not served yet: the watermark is at {served.resolved}.",
            as_of=str(ts),
            resolved_ts=str(served.resolved),
        )
    check_names(history, scope, ts, ts)
    if scope.database is not None and scope.table is not None:
        history.find_base_table(scope.database, scope.table, ts)
    filter.check_names(history, scope, ts, ts)
    check_tables(services, scope.tenant, history, [filter.asked(t) for t in _tables(history, scope, filter, ts)], ts)
    return SnapshotPosition(ts=ts, table_id=0, key=b"")


def check_place(served: Served, place: SnapshotPosition) -> None:
    """SnapshotLost when the rest of the snapshot cannot be read as its beginning was."""
    ts, earliest = place.ts, served.row.earliest_ts
    if served.history is not None:
        earliest = max(earliest, served.history.start_ts)
    if ts < earliest:
        raise SnapshotLost(
            f"The snapshot is as of {tso.described(ts)}, and the log now begins at {tso.described(earliest)}.",
            as_of=str(ts),
            earliest_ts=str(earliest),
        )
    served.check_good(ts)
    if ts > served.resolved:
        raise InvalidInput(f"The snapshot is as of {ts}, above the watermark {served.resolved}.", as_of=str(ts))


def snapshot_page(
    services: Services,
    scope: Scope,
    filter: Filter,
    rendering: Rendering,
    place: SnapshotPosition,
    *,
    history: History,
    upto: int,
    limit: int,
    held: Held,
) -> SnapshotPage:
    """The rows from `place` on, at most `limit`. Changes follow if the pull continues to `upto` above the snapshot.
    `held`: of the memory for reads, until the page is done."""
    ts = place.ts
    parts: list[SnapshotRows] = []
    missing: list[tuple[str, LeftOut]] = []
    tables = [table for table in _tables(history, scope, filter, ts) if table.id >= place.table_id]
    count = size = looked_at = 0
    following: SnapshotPosition | None = None
    for n, table in enumerate(tables):
        after = place.key if table.id == place.table_id else b""
        if n == _TABLES_MAX or count >= limit or looked_at >= _LOOKED_AT_MAX or size >= _HELD_BYTES:
            following = SnapshotPosition(ts=ts, table_id=table.id, key=after)
            break
        if filter.columns is None:
            missing += [(f"{table.db}.{table.name}", column) for column in left_out(table)]
        with closing(_rows(services, scope, history, filter, table, ts, after, held)) as blocks:
            for block, seen, last in blocks:
                reached = np.cumsum(rendering.state_sizes(block.changes.table, block.stored))
                room = min(limit - count, int(np.searchsorted(reached, _HELD_BYTES - size, side="right")))
                room = max(room, not parts)  # one row always fits
                is_full = len(block.changes) > room
                if is_full and not room:
                    following = SnapshotPosition(ts=ts, table_id=table.id, key=after)
                    break
                if is_full:
                    block, last = _head(block, room)
                parts.append(block)
                more = int(reached[len(block.changes) - 1 :][:1].sum())
                held.add(_COPIES * more)
                count, size = count + len(block.changes), size + more
                looked_at, after = looked_at + seen, last
                if is_full or count >= limit or looked_at >= _LOOKED_AT_MAX or size >= _HELD_BYTES:
                    following = SnapshotPosition(ts=ts, table_id=table.id, key=last)
                    break
        if following is not None:
            break
    changes = _ordered([part.changes for part in parts])
    stored = [part.stored for part in parts]
    rendered = rendering.snapshot(
        history, changes, stored, ts, has_more=following is not None or ts < upto, complete=following is None
    )
    return SnapshotPage(rendered=rendered, place=following, left_out=tuple(missing))


def _tables(history: History, scope: Scope, filter: Filter, ts: int) -> list[Table]:
    """The tables of the snapshot by id."""
    tables = [
        table
        for database in history.databases(ts)
        for table in history.tables(database.name, ts)
        if wanted(table, scope) and filter.means(table)
    ]
    return sorted(tables, key=lambda table: table.id)


def _rows(
    services: Services,
    scope: Scope,
    history: History,
    filter: Filter,
    table: Table,
    ts: int,
    after: bytes,
    held: Held,
) -> Generator[tuple[SnapshotRows, int, bytes]]:
    """(rows that pass, number of rows looked at, last key looked at), above the key `after`."""
    read, tries = filter.asked(table), 0
    while True:
        try:
            state = table_as_of(services, scope.tenant, history, read, ts)
            for rows in state.source.rows(scope.tenant, state.bases, ts, after=after, held=held):
                last: bytes = rows["key"][rows.num_rows - 1].as_py()
                yield _selected(state, filter, filter.shown(table), rows, ts), rows.num_rows, last
                after = last
            return
        except BaseGone:
            tries += 1
            if tries == CHOICES_MAX:
                raise


def _selected(state: TableAsOf, filter: Filter, shown: Table, rows: pa.Table, ts: int) -> SnapshotRows:
    rows = rows.combine_chunks()
    batch = decoded(state.readings, rows)
    passing = passing_rows(filter, state.table, batch)
    if not passing.all():
        mask = pa.array(passing)
        rows, batch = rows.filter(mask).combine_chunks(), batch.filter(mask)
    place = {spec.id: n for n, spec in enumerate(row_layout(state.table).columns)}
    wanted_columns = [place[spec.id] for spec in row_layout(shown).columns]
    image = batch if len(wanted_columns) == batch.num_columns else batch.select(wanted_columns)
    count = rows.num_rows
    stamps = np.full(count, ts, np.uint64)
    key = rows["key"].chunk(0) if rows["key"].num_chunks else pa.array([], pa.binary())
    changes = TableChanges(
        table=shown,
        kind=np.full(count, INSERT, np.uint8),
        order=np.arange(count, dtype=np.int64),
        physical_id=table_ids(rows["key"]).astype(np.int64),
        start_ts=stamps,
        commit_ts=stamps,
        key=key,
        after=image,
        before=image,
        split=np.zeros(count, np.bool_),
    )
    return SnapshotRows(stored=rows, changes=changes)


def _head(block: SnapshotRows, count: int) -> tuple[SnapshotRows, bytes]:
    """(the first rows, the key of the last of them)."""
    head = SnapshotRows(stored=block.stored.slice(0, count), changes=pick(block.changes, np.arange(count)))
    last: bytes = block.stored["key"][count - 1].as_py()
    return head, last


def _ordered(parts: list[TableChanges]) -> list[TableChanges]:
    """The parts with their places in the page."""
    begun, table_changes = 0, []
    for part in parts:
        table_changes.append(replace(part, order=part.order + begun))
        begun += len(part)
    return table_changes
