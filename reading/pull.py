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
from typing import Protocol

import orjson
import pyarrow as pa

from reading import arrow, body, cursor
from reading.core.split import order_messages
from reading.cursor import Scope
from reading.decode import decode_rows
from reading.deps import Services
from reading.excluded_rows import left_out
from reading.formats import FormatOptions, create_format, parse_options
from reading.moments import Moment
from reading.position import check_start, parse_ts
from schemas.actions import Action
from schemas.history import History
from schemas.model import DdlEvent
from schemas.names import folded
from tistream import ts as tso
from tistream.catalog.tenancy.tenants import TenantRow
from tistream.errors import InvalidInput, NotFound
from tistream.limits import PULL_ROWS_MAX
from tistream.runtime import metrics

_SERVED, _BYTES_OUT = metrics.STAGE.labels("serve"), metrics.BYTES.labels("api", "out")
ARROW_FORMS = ("arrow", "raw-arrow")
_STREAM_PAGE_BYTES = 2 << 20  # of keys and values: what a stream holds while its consumer is slow


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
    buffers: str | None = None  #: how the buffers of an Arrow answer are compressed
    follows: bool = False  #: for a stream: small pages without a watermark line, which a stream writes itself


class Position(Protocol):
    """What a request says of where it starts and ends."""

    @property
    def scope(self) -> Scope: ...

    @property
    def start_ts(self) -> str | None: ...

    @property
    def cursor(self) -> str | None: ...

    @property
    def end_ts(self) -> str | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PullAnswer:
    """A whole answer."""

    content: pa.Buffer
    next_cursor: str
    resolved_ts: int  #: the served watermark, whatever `end_ts` says
    has_more: bool
    quarantined: int
    waits: bool  #: the position is at or above the watermark: a later pull may have more
    after: int  #: the position that it starts from
    end: int  #: everything of the scope up to here has been delivered
    end_ts: int | None = None  #: what the request's `end_ts` means


@dataclass(frozen=True, slots=True, kw_only=True)
class _Page:
    """What there is to deliver between a position and `end`."""

    content: pa.Buffer
    end: int
    has_more: bool = False
    quarantined: int = 0


def pull(services: Services, request: PullRequest, moment: Moment | None = None) -> PullAnswer:
    """Serve one page as of now, or as of a moment."""
    began = services.clock.monotonic()
    if moment is None:
        row, history, resolved = services.served(request.scope.tenant)
    else:
        row, history, resolved = moment.row, moment.history, moment.resolved
    now_ms = services.clock.unix_ms()
    options = parse_options(request.options, built_ms=now_ms)
    after, upto = interval(request, row, resolved, now_ms)
    if history is not None:
        check_start(after, earliest=row.earliest_ts, resolved_ts=resolved, now_ms=now_ms)
        if request.cursor is None:
            check_names(history, request.scope, min(after, resolved), resolved)
    if history is None or upto <= after:
        page = _Page(content=_nothing(request, history, min(after, resolved)), end=after)
    else:
        page = _page(services, request, options, history, after, upto)
    next_cursor = cursor.encode(request.scope, page.end)
    if upto > after:  # else it only looked whether there is news
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
        end_ts=_end_ts(request, row, resolved, now_ms),
    )


def interval(request: Position, row: TenantRow, resolved: int, now_ms: int) -> tuple[int, int]:
    """(after, upto): what the pull asks for of what is served."""
    if request.cursor is not None:
        after = cursor.decode(request.cursor, request.scope) or row.start_ts  # 0: pulled before the snapshot came
    else:
        text = "earliest" if request.start_ts is None else request.start_ts
        after = parse_ts(text, earliest=row.earliest_ts, latest=resolved, now_ms=now_ms)
    end = _end_ts(request, row, resolved, now_ms)
    if end is None:
        return after, resolved
    if end < after and request.cursor is None:
        raise InvalidInput(f"The pull ends ({end}) before it starts ({after}).", start_ts=after, end_ts=end)
    return after, min(end, resolved)


def _end_ts(request: Position, row: TenantRow, resolved: int, now_ms: int) -> int | None:
    if request.end_ts is None:
        return None
    return parse_ts(request.end_ts, earliest=row.earliest_ts, latest=resolved, now_ms=now_ms)


def _page(
    services: Services, request: PullRequest, options: FormatOptions, history: History, after: int, upto: int
) -> _Page:
    """The next page of the scope. Stretches of the log that deliver nothing, such as rows of system tables, are walked
    through in growing steps: only the last page may be empty."""
    scope, rows, reader = request.scope, request.limit, services.reader
    table_ids = None
    if scope.database is not None:
        table_ids = history.physical_ids(scope.database, scope.table, after, upto)
    page_bytes = _STREAM_PAGE_BYTES if request.follows else None
    while True:
        found = reader.page(scope.tenant, after=after, upto=upto, rows=rows, table_ids=table_ids, page_bytes=page_bytes)
        end, has_more = found.upto, found.has_more
        services.left_out.add(scope.tenant, left_out(history, found.rows))
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
    """Decoded for one table, undecoded for several tables or on demand."""
    if _decodes(request):
        return arrow.native_page(history, rows, request.scope, end, request.buffers)
    raw = arrow.raw_page(history, rows, request.scope)
    return arrow.NativePage(content=arrow.ipc(raw, request.buffers), rows=raw.num_rows, quarantined=0, end=end)


def _decodes(request: PullRequest) -> bool:
    return request.format == "arrow" and request.scope.table is not None


def _nothing(request: PullRequest, history: History | None, ts: int) -> pa.Buffer:
    """The body of a pull that is at the end."""
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
    """The lines, and how many rows could not be decoded."""
    in_json = request.format == "json"
    fmt = create_format("ndjson" if in_json else request.format, options)
    decoded = decode_rows(history, rows, request.scope, bare_deletes=fmt.bare_deletes)
    changes = order_messages(decoded.changes, split=fmt.splits_updates)
    mark, separator = (None, b",") if in_json else (watermark, None)
    content = body.render(fmt, changes, events, decoded.quarantined, mark, separator=separator)
    return content, len(decoded.quarantined)


def check_names(history: History, scope: Scope, after: int, upto: int) -> None:
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
    names = {(folded(event.db), folded(event.table)), (folded(event.old_db), folded(event.old_table))}
    names |= {(folded(t.db), folded(t.name)) for t in (event.version, event.exchanged) if t is not None}
    database = folded(scope.database)
    if scope.table is None or event.type == Action.DROP_SCHEMA:
        return any(db == database for db, _ in names)
    return (database, folded(scope.table)) in names


def _wrap(page: _Page, next_cursor: str, resolved: int, now_ms: int) -> pa.Buffer:
    facts = orjson.dumps(
        {
            "next_cursor": next_cursor,
            "has_more": page.has_more,
            "resolved_ts": str(resolved),
            "resolved_time": tso.to_text(resolved) if resolved else None,
            "lag_ms": max(0, now_ms - tso.physical_ms(resolved)) if resolved else None,
            "quarantined": page.quarantined,
        }
    )
    return pa.py_buffer(b"".join((b'{"items":[', page.content, b"],", facts[1:])))
