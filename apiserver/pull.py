"""One pull: from position and format to a finite body that ends at the next cursor.

    position -> served watermark -> page of the log -> decoded changes -> lines

Every body holds all changes of the scope with commit_ts in (cursor, next cursor], once and in commit order. Has-more
false means that the next cursor stands at the served watermark (or at `end_ts`, where the pull names one).

A tenant that awaits its first schema snapshot gives empty bodies and a cursor at 0, which later means the beginning of
its log, wherever that turns out to be. The names of a scope are checked where a pull starts, not where it resumes: a
reader of a table that was dropped goes on to get empty bodies, and the table's rows if it comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson
import pyarrow as pa

from apiserver import body, cursor
from apiserver.cursor import Scope
from apiserver.decode import decode_rows, rows_of
from apiserver.deps import Services
from apiserver.formats import FormatOptions, create_format, parse_options
from apiserver.position import check_start, parse_ts
from apiserver.split import order_messages
from schemas.actions import Action
from schemas.history import History
from schemas.model import DdlEvent, Table
from tistream import change
from tistream import ts as tso
from tistream.catalog.tenants import TenantRow
from tistream.errors import InvalidInput, NotFound

#: the Arrow form: undecoded rows with the names of their tables at that time
RAW_ARROW = pa.schema(
    [pa.field("database", pa.string(), False), pa.field("table", pa.string(), False), *change.COMMITTED]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """A pull as the route understood it. `cursor` wins over `start_ts`."""

    scope: Scope
    start_ts: str | None
    cursor: str | None
    format: str
    options: Mapping[str, str]
    limit: int  #: rows, roughly: a page ends with a whole commit_ts
    end_ts: str | None = None  #: serve nothing above it


@dataclass(frozen=True, slots=True, kw_only=True)
class PullAnswer:
    """A whole answer."""

    content: pa.Buffer
    next_cursor: str
    resolved_ts: int  #: the served watermark, whatever `end_ts` says
    has_more: bool
    quarantined: int
    waits: bool  #: the position is at or above the watermark: a later pull may have more


def pull(services: Services, request: PullRequest) -> PullAnswer:
    """Serve one page as of now."""
    row, history, resolved = services.served(request.scope.tenant)
    now_ms = services.clock.unix_ms()
    options = parse_options(request.options, built_ms=now_ms)
    after, upto = _interval(request, row, resolved, now_ms)
    if history is not None:
        check_start(after, earliest=row.start_ts, resolved_ts=resolved, now_ms=now_ms)
        if request.cursor is None:
            _check_names(history, request.scope, min(after, resolved), resolved)
    if history is None or upto <= after:
        rows, events, end, has_more = change.COMMITTED.empty_table(), list[DdlEvent](), after, False
    else:
        page = services.reader.page(
            request.scope.tenant,
            after=after,
            upto=upto,
            rows=request.limit,
            table_ids=_table_ids(history, request.scope, after, upto),
        )
        rows, end, has_more = page.rows, page.upto, page.has_more
        events = [e for e in history.events(after, end) if concerns(e, request.scope)]
    next_cursor = cursor.encode(request.scope, end)
    watermark = end if end > after and not has_more else None
    content, quarantined = _content(request, options, history, rows, events, watermark)
    if request.format == "json":
        content = _wrap(content, next_cursor, has_more, resolved, quarantined, now_ms)
    return PullAnswer(
        content=content,
        next_cursor=next_cursor,
        resolved_ts=resolved,
        has_more=has_more,
        quarantined=quarantined,
        waits=resolved <= after and upto == resolved,
    )


def _interval(request: PullRequest, row: TenantRow, resolved: int, now_ms: int) -> tuple[int, int]:
    """(after, upto): what the pull asks for of what is served."""
    if request.cursor is not None:
        after = cursor.decode(request.cursor, request.scope) or row.start_ts  # 0: pulled before the snapshot came
    else:
        text = "earliest" if request.start_ts is None else request.start_ts
        after = parse_ts(text, earliest=row.start_ts, latest=resolved, now_ms=now_ms)
    if request.end_ts is None:
        return after, resolved
    end = parse_ts(request.end_ts, earliest=row.start_ts, latest=resolved, now_ms=now_ms)
    if end < after and request.cursor is None:
        raise InvalidInput(f"The pull ends ({end}) before it starts ({after}).", start_ts=after, end_ts=end)
    return after, min(end, resolved)


def _table_ids(history: History, scope: Scope, after: int, upto: int) -> set[int] | None:
    """The physical ids that rows of the scope may have; None = any."""
    if scope.database is None:
        return None
    return history.physical_ids(scope.database, scope.table, after, upto)


def _content(
    request: PullRequest,
    options: FormatOptions,
    history: History | None,
    rows: pa.Table,
    events: list[DdlEvent],
    watermark: int | None,
) -> tuple[pa.Buffer, int]:
    """The body, and how many rows could not be decoded."""
    if request.format == "arrow":
        return _arrow(rows, history, request.scope), 0
    in_json = request.format == "json"
    fmt = create_format("ndjson" if in_json else request.format, options)
    if history is None:
        return body.render(fmt, [], []), 0
    decoded = decode_rows(history, rows, request.scope)
    changes = order_messages(decoded.changes, split=fmt.splits_updates)
    mark, separator = (None, b",") if in_json else (watermark, None)
    content = body.render(fmt, changes, events, decoded.quarantined, mark, separator=separator)
    return content, len(decoded.quarantined)


def _arrow(rows: pa.Table, history: History | None, scope: Scope) -> pa.Buffer:
    """The undecoded rows of the scope with the names of their tables, by (commit_ts, start_ts, key), as one Arrow IPC
    stream."""
    found = rows_of(history, rows, scope) if history is not None else ()
    parts = [_named(rows.take(pa.array(index)), table) for table, index in found]
    by = [(name, "ascending") for name in ("commit_ts", "start_ts", "key")]
    out = pa.concat_tables([RAW_ARROW.empty_table(), *parts]).sort_by(by).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, RAW_ARROW) as writer:
        writer.write_table(out)
    return sink.getvalue()


def _named(rows: pa.Table, table: Table) -> pa.Table:
    names = [pa.repeat(pa.scalar(name, pa.string()), rows.num_rows) for name in (table.db, table.name)]
    return pa.table([*names, *rows.columns], schema=RAW_ARROW)


def _check_names(history: History, scope: Scope, after: int, upto: int) -> None:
    """Refuse a database or table that did not exist at any time of the interval. NotFound with a suggestion."""
    if scope.database is None or history.physical_ids(scope.database, scope.table, after, upto):
        return
    try:
        _find(history, scope, after)
    except NotFound:
        _find(history, scope, upto)


def _find(history: History, scope: Scope, ts: int) -> None:
    assert scope.database is not None
    if scope.table is None:
        history.database(scope.database, ts)
    else:
        history.find(scope.database, scope.table, ts)


def concerns(event: DdlEvent, scope: Scope) -> bool:
    """Whether a reader of the scope wants to know of the DDL: a rename concerns both names, an exchange both tables, a
    dropped database all its tables."""
    if scope.database is None:
        return True
    names = {(event.db.lower(), event.table.lower()), (event.old_db.lower(), event.old_table.lower())}
    names |= {(t.db.lower(), t.name.lower()) for t in (event.version, event.exchanged) if t is not None}
    database = scope.database.lower()
    if scope.table is None or event.type == Action.DROP_SCHEMA:
        return any(db == database for db, _ in names)
    return (database, scope.table.lower()) in names


def _wrap(
    items: pa.Buffer, next_cursor: str, has_more: bool, resolved: int, quarantined: int, now_ms: int
) -> pa.Buffer:
    facts = orjson.dumps(
        {
            "next_cursor": next_cursor,
            "has_more": has_more,
            "resolved_ts": str(resolved),
            "resolved_time": tso.to_text(resolved) if resolved else None,
            "lag_ms": max(0, now_ms - tso.physical_ms(resolved)) if resolved else None,
            "quarantined": quarantined,
        }
    )
    return pa.py_buffer(b"".join((b'{"items":[', items, b"],", facts[1:])))
