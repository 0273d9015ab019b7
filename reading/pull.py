"""Serves one pull: one finite body that ends at the next cursor.

    position -> served watermark -> page of the log -> decoded changes -> lines

A body holds all changes of the scope with commit_ts in (cursor, next cursor], once and in commit order. Without
`has_more` the next cursor is at the served watermark, or at the request's `end_ts`.

A tenant that awaits its first schema snapshot gives empty bodies and a cursor at 0, which later means the beginning of
its log. Names are checked where a pull starts, not where it resumes: a reader of a dropped table continues to get empty
bodies, and the table's rows if it is recovered.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson
import pyarrow as pa

from reading import arrow, body
from reading.core.split import order_messages
from reading.decode import decode_rows
from reading.deps import Services
from reading.excluded_rows import excluded_rows
from reading.formats import FormatOptions, create_format, parse_options
from reading.position import Scope, check_names, check_start, encode_cursor, end_ts, interval
from reading.served import Served
from schemas.actions import Action
from schemas.history import History
from schemas.model import DdlEvent
from schemas.names import folded
from tistream import ts as tso
from tistream.limits import PULL_ROWS_MAX
from tistream.runtime import metrics

_SERVED, _BYTES_OUT = metrics.STAGE.labels("serve"), metrics.BYTES.labels("api", "out")
ARROW_FORMS = ("arrow", "raw-arrow")
_STREAM_PAGE_BYTES = 2 << 20  # of keys and values: what a stream holds while its consumer is slow


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest:
    """A parsed pull. `cursor` wins over `start_ts`."""

    scope: Scope
    start_ts: str | None
    cursor: str | None
    format: str
    options: Mapping[str, str]
    limit: int  #: rows, roughly: a page ends between two commit timestamps
    end_ts: str | None = None  #: serve nothing above it
    buffers: str | None = None  #: compression of Arrow buffers: zstd or lz4
    follows: bool = False  #: for a stream: small pages without a watermark line, which the stream writes


@dataclass(frozen=True, slots=True, kw_only=True)
class PullAnswer:
    """The body of a pull and its position."""

    content: pa.Buffer
    next_cursor: str
    resolved_ts: int  #: the served watermark, also above `end_ts`
    has_more: bool
    quarantined: int
    waits: bool  #: the position is at or above the watermark: a later pull may have more
    after: int  #: the start position
    end: int  #: the end position: everything of the scope up to here has been delivered
    end_ts: int | None = None  #: the request's `end_ts` as a TSO


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """The body between a position and `end`."""

    content: pa.Buffer
    end: int
    has_more: bool = False
    quarantined: int = 0


def pull(services: Services, request: PullRequest, served: Served | None = None) -> PullAnswer:
    """Serve one page, from `served` or from the newest state."""
    began = services.clock.monotonic()
    if served is None:
        row, history, resolved = services.served(request.scope.tenant)
    else:
        row, history, resolved = served.row, served.history, served.resolved
    now_ms = services.clock.unix_ms()
    options = parse_options(request.options, built_ms=now_ms)
    after, upto = interval(request, row, resolved, now_ms)
    if history is not None:
        check_start(after, earliest=row.earliest_ts, resolved_ts=resolved, now_ms=now_ms)
        if request.cursor is None:
            check_names(history, request.scope, min(after, resolved), resolved)
    if history is None or upto <= after:
        page = _Page(content=_empty(request, history, min(after, resolved)), end=after)
    else:
        page = _page(services, request, options, history, after, upto)
    next_cursor = encode_cursor(request.scope, page.end)
    if upto > after:  # else it was a poll at the watermark
        _SERVED.observe(services.clock.monotonic() - began)
        _BYTES_OUT.inc(page.content.size)
    return PullAnswer(
        content=_wrap(page, next_cursor, resolved, now_ms) if request.format == "json" else page.content,
        next_cursor=next_cursor,
        resolved_ts=resolved,
        has_more=page.has_more,
        quarantined=page.quarantined,
        waits=resolved <= after and upto == resolved,
        after=after,
        end=page.end,
        end_ts=end_ts(request, row, resolved, now_ms),
    )


def _page(
    services: Services, request: PullRequest, options: FormatOptions, history: History, after: int, upto: int
) -> _Page:
    """The next page of the scope. Stretches that deliver nothing, such as rows of system tables, are skipped in growing
    steps: only the last page may be empty."""
    scope, rows, reader = request.scope, request.limit, services.reader
    table_ids = None
    if scope.database is not None:
        table_ids = history.physical_ids(scope.database, scope.table, after, upto)
    page_bytes = _STREAM_PAGE_BYTES if request.follows else None
    while True:
        found = reader.page(scope.tenant, after=after, upto=upto, rows=rows, table_ids=table_ids, page_bytes=page_bytes)
        end, has_more = found.upto, found.has_more
        services.excluded.add(scope.tenant, excluded_rows(history, found.rows))
        if request.format in ARROW_FORMS:
            page = _arrow(request, history, found.rows, found.upto)
            content, delivers, quarantined = page.content, page.rows + page.quarantined > 0, page.quarantined
            end, has_more = page.end, has_more or page.end < end
        else:
            events = [e for e in history.events(after, end) if concerns(e, scope)]
            watermark = None if has_more or request.follows else end
            content, quarantined = _text(request, options, history, found.rows, events, watermark)
            delivers = content.size > 0 or quarantined > 0
        if delivers or not has_more:
            return _Page(content=content, end=end, has_more=has_more, quarantined=quarantined)
        after, rows = end, min(2 * rows, PULL_ROWS_MAX)


def _arrow(request: PullRequest, history: History, rows: pa.Table, end: int) -> arrow.NativePage:
    """Decoded for one table; undecoded for several tables or on demand."""
    if _decodes(request):
        return arrow.native_page(history, rows, request.scope, end, request.buffers)
    raw = arrow.raw_page(history, rows, request.scope)
    return arrow.NativePage(content=arrow.ipc(raw, request.buffers), rows=raw.num_rows, quarantined=0, end=end)


def _decodes(request: PullRequest) -> bool:
    return request.format == "arrow" and request.scope.table is not None


def _empty(request: PullRequest, history: History | None, ts: int) -> pa.Buffer:
    """The body of a pull without changes."""
    if request.format not in ARROW_FORMS:
        return pa.py_buffer(b"")
    table = arrow.empty(history, request.scope, ts) if _decodes(request) else arrow.RAW.empty_table()
    return arrow.ipc(table, request.buffers)


def _text(
    request: PullRequest,
    options: FormatOptions,
    history: History,
    rows: pa.Table,
    events: list[DdlEvent],
    watermark: int | None,
) -> tuple[pa.Buffer, int]:
    """(lines, number of rows that could not be decoded)."""
    in_json = request.format == "json"
    fmt = create_format("ndjson" if in_json else request.format, options)
    decoded = decode_rows(history, rows, request.scope, bare_deletes=fmt.bare_deletes)
    changes = order_messages(decoded.changes, split=fmt.splits_updates)
    mark, separator = (None, b",") if in_json else (watermark, None)
    content = body.render(fmt, changes, events, decoded.quarantined, mark, separator=separator)
    return content, len(decoded.quarantined)


def concerns(event: DdlEvent, scope: Scope) -> bool:
    """Whether the DDL belongs to the scope: a rename concerns both names, an exchange both tables, a dropped
    database all its tables."""
    if scope.database is None:
        return True
    names = {(folded(event.db), folded(event.table)), (folded(event.old_db), folded(event.old_table))}
    names |= {(folded(t.db), folded(t.name)) for t in (event.version, event.exchanged) if t is not None}
    database = folded(scope.database)
    if scope.table is None or event.type == Action.DROP_SCHEMA:
        return any(db == database for db, _ in names)
    return (database, folded(scope.table)) in names


def _wrap(page: _Page, next_cursor: str, resolved: int, now_ms: int) -> pa.Buffer:
    meta = orjson.dumps(
        {
            "next_cursor": next_cursor,
            "has_more": page.has_more,
            "resolved_ts": str(resolved),
            "resolved_time": tso.to_text(resolved) if resolved else None,
            "lag_ms": max(0, now_ms - tso.physical_ms(resolved)) if resolved else None,
            "quarantined": page.quarantined,
        }
    )
    return pa.py_buffer(b"".join((b'{"items":[', page.content, b"],", meta[1:])))
