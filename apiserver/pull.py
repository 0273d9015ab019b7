"""One pull: from position and format to a finite body that ends at the next cursor.

    position -> served watermark -> page of the log -> decoded changes -> lines

Every body holds all changes of the scope with commit_ts in (cursor, next cursor], once and in commit order. Has-More
false means that the next cursor stands at the served watermark (or at `end_ts`, where the pull names one).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from apiserver import body, cursor
from apiserver.cursor import Scope
from apiserver.decode import decode_rows, rows_of
from apiserver.deps import Services
from apiserver.formats import create_format, parse_options
from apiserver.position import check_start, parse_ts
from apiserver.split import order_messages
from schemas.history import History
from schemas.model import DdlEvent, Table
from tistream import change
from tistream import ts as tso

_POLL_S = 0.05

#: the Arrow form: undecoded rows with the names of their tables at that time
RAW_ARROW = pa.schema(
    [pa.field("database", pa.string(), False), pa.field("table", pa.string(), False), *change.COMMITTED]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """A pull as the route understood it."""

    scope: Scope
    start_ts: str | None
    cursor: str | None
    format: str
    options: Mapping[str, str]
    limit: int  #: rows, roughly: a page ends with a whole commit_ts
    wait_ms: int
    end_ts: str | None = None  #: serve nothing above it


@dataclass(frozen=True, slots=True, kw_only=True)
class PullAnswer:
    """A whole answer."""

    content: pa.Buffer
    next_cursor: str
    resolved_ts: int
    has_more: bool
    quarantined: int


def pull(services: Services, request: PullRequest) -> PullAnswer:
    """Serve one page. Blocks up to `wait_ms` while there is nothing above the position."""
    tenant = request.scope.tenant
    row, history, resolved = services.served(tenant)
    now_ms = services.clock.unix_ms()
    if request.cursor is not None:
        after = cursor.decode(request.cursor, request.scope) or row.start_ts  # 0: pulled before the snapshot came
    else:
        after = parse_ts(request.start_ts or "earliest", earliest=row.start_ts, latest=resolved, now_ms=now_ms)
    deadline = services.clock.monotonic() + request.wait_ms / 1000
    while resolved <= after and (left := deadline - services.clock.monotonic()) > 0:
        services.clock.wait(threading.Event(), min(_POLL_S, left))
        row, history, resolved = services.served(tenant)
    if history is None:
        return _empty(request, after, resolved)
    check_start(after, earliest=row.start_ts, resolved_ts=resolved, now_ms=services.clock.unix_ms())
    if request.end_ts is not None:
        resolved = min(resolved, parse_ts(request.end_ts, earliest=row.start_ts, latest=resolved, now_ms=now_ms))
    _known(history, request.scope, after, resolved)
    if resolved <= after:
        return _empty(request, after, resolved)
    return _page(services, request, history, after, resolved)


def _page(services: Services, request: PullRequest, history: History, after: int, resolved: int) -> PullAnswer:
    scope = request.scope
    table_ids = None
    if scope.database is not None:
        table_ids = history.physical_ids(scope.database, scope.table, after, resolved)
    page = services.reader.page(scope.tenant, after=after, upto=resolved, rows=request.limit, table_ids=table_ids)
    events = [e for e in history.events(after, page.upto) if _ddl_wanted(e, scope)]
    if request.format in ("arrow", "raw-arrow"):
        content, bad = _arrow(page.rows, history, scope), 0
    else:
        content, bad = _text(request, history, page.rows, events, None if page.has_more else resolved)
    next_cursor = cursor.encode(scope, page.upto)
    if request.format == "json":
        content = _wrap(content, next_cursor, page.has_more, resolved, services.clock.unix_ms())
    return PullAnswer(
        content=content,
        next_cursor=next_cursor,
        resolved_ts=resolved,
        has_more=page.has_more,
        quarantined=bad,
    )


def _text(
    request: PullRequest, history: History, rows: pa.Table, events: list[DdlEvent], watermark: int | None
) -> tuple[pa.Buffer, int]:
    """The body of a text format, and how many rows could not be decoded."""
    fmt = create_format("ndjson" if request.format == "json" else request.format, parse_options(request.options))
    decoded = decode_rows(history, rows, request.scope)
    changes = order_messages(decoded.changes, split=fmt.splits_updates)
    mark = None if request.format == "json" else watermark
    array = body.lines(fmt, changes, events, decoded.quarantined, mark)
    if request.format == "json":
        return body.join(array, b","), len(decoded.quarantined)
    joined = body.join(array, fmt.terminator)
    ended = pa.py_buffer(joined.to_pybytes() + fmt.terminator) if joined.size else joined
    return ended, len(decoded.quarantined)


def _arrow(rows: pa.Table, history: History | None, scope: Scope) -> pa.Buffer:
    """The undecoded rows of the scope with the names of their tables, as one Arrow IPC stream."""
    parts = (
        [_named(rows.take(pa.array(index)), table, index) for table, index in rows_of(history, rows, scope)]
        if history
        else []
    )
    out = pa.concat_tables([RAW_ARROW.empty_table(), *(p.drop_columns("at") for p in parts)])
    at = pa.concat_arrays([pa.array([], pa.int64()), *(p["at"].combine_chunks() for p in parts)])
    out = out.take(pc.sort_indices(at)).combine_chunks()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, RAW_ARROW) as writer:
        writer.write_table(out)
    return sink.getvalue()


def _named(rows: pa.Table, table: Table, at: npt.NDArray[np.int64]) -> pa.Table:
    names = [pa.repeat(pa.scalar(name, pa.string()), rows.num_rows) for name in (table.db, table.name)]
    return pa.table([*names, *rows.columns], schema=RAW_ARROW).append_column("at", pa.array(at))


def _known(history: History, scope: Scope, after: int, resolved: int) -> None:
    """Refuse a database or table that never existed in the interval of the pull."""
    if scope.database is None:
        return
    upto = max(after, resolved)
    if history.physical_ids(scope.database, scope.table, after, upto):
        return
    if scope.table is not None:
        history.find(scope.database, scope.table, upto)
    else:
        history.tables(scope.database, upto)


def _ddl_wanted(event: DdlEvent, scope: Scope) -> bool:
    """Whether the DDL concerns the scope; a rename concerns both names."""
    names = [(event.db.lower(), event.table.lower()), (event.old_db.lower(), event.old_table.lower())]
    if scope.database is None:
        return True
    database = scope.database.lower()
    if scope.table is None:
        return any(db == database for db, _ in names)
    return any(name == (database, scope.table.lower()) for name in names)


def _empty(request: PullRequest, after: int, resolved: int) -> PullAnswer:
    content = pa.py_buffer(b"")
    if request.format in ("arrow", "raw-arrow"):
        content = _arrow(change.COMMITTED.empty_table(), None, request.scope)
    next_cursor = cursor.encode(request.scope, after)
    if request.format == "json":
        content = _wrap(content, next_cursor, False, resolved, 0)
    return PullAnswer(content=content, next_cursor=next_cursor, resolved_ts=resolved, has_more=False, quarantined=0)


def _wrap(items: pa.Buffer, next_cursor: str, has_more: bool, resolved: int, now_ms: int) -> pa.Buffer:
    facts = orjson.dumps(
        {
            "next_cursor": next_cursor,
            "has_more": has_more,
            "resolved_ts": str(resolved),
            "resolved_time": tso.to_text(resolved),
            "lag_ms": max(0, now_ms - tso.physical_ms(resolved)),
        }
    )
    return pa.py_buffer(b'{"items":[' + items.to_pybytes() + b"]," + facts[1:])
