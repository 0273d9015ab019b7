"""Serves one pull: one finite body that ends at the next cursor.

    what is served   `Services.served`, or the caller's
    position         `position.locate`: cursor or start_ts, end_ts -> (after, upto], checked
    ids              `Pages.table_ids`: the tables of the scope by its schema history
    page             `LogReader.page`: the rows of the log
    selection        `Pages.select`: those that pass the filter
    rendering        `Pages.page`: decoded changes, or keys and values -> lines or Arrow

A body holds all changes of the scope with commit_ts in (cursor, next cursor], once and in commit order. Without
`has_more` the next cursor is at the served watermark, or at the request's `end_ts`.

A filter changes what a body holds, never what a cursor means: a pull may go on with another filter. A body without a
change still advances the cursor. It ends after _LOOKED_AT_MAX rows of the log; then `has_more` is true.

A tenant that awaits its first schema snapshot gives empty bodies and a cursor at 0, which later means the beginning of
its log. Keys and values of a raw or txn tenant (`PullRequest.keys`) need no schema; all else is the same for them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import pyarrow as pa

from reading.asof.core.projection import LeftOut
from reading.core import merge
from reading.deps import Services
from reading.filters import NO_FILTER, Filter, Selected
from reading.formats import parse_options
from reading.kv.pages import EntryPages
from reading.kv.selection import Selection
from reading.pages import Pages, TablePages
from reading.position import Interval, Place, Served, encode_cursor, encode_place, locate, read_place
from reading.rendering import Rendered, Rendering, json_document
from reading.scope import Scope
from reading.snapshot import check_place, snapshot_page, start_place
from tistream.errors import InvalidInput
from tistream.limits import PULL_ROWS_MAX
from tistream.runtime import metrics

_SERVED, _BYTES_OUT = metrics.STAGE.labels("serve"), metrics.BYTES.labels("api", "out")
_STREAM_PAGE_BYTES = 2 << 20  # of keys and values: what a stream holds while its consumer is slow
_SELECTED_BYTES = 32 << 20  # of rows that passed a filter, after which no more is read for a page
_LOOKED_AT_MAX = 5 * PULL_ROWS_MAX  # rows for one body with a filter, which may then be empty


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
    filter: Filter = NO_FILTER
    snapshot: bool = False  #: begin with the rows as of `as_of`, or of the watermark
    as_of: str | None = None
    keys: Selection | None = None  #: of a raw or txn tenant: its keys and values, not tables

    @property
    def place(self) -> Place | None:
        """Where the cursor lies inside a snapshot."""
        return None if self.cursor is None else read_place(self.cursor, self.scope)

    @property
    def is_snapshot(self) -> bool:
        """Whether the page holds rows of a snapshot."""
        if self.follows or self.keys is not None:
            return False  # only changes: `locate` refuses a cursor inside a snapshot
        return self.snapshot if self.cursor is None else self.place is not None


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
    gap: tuple[int, int] | None = None  #: (after, upto) of the page: rows of rejected stores may be missing here
    amended: tuple[int, int] | None = None  #: (after, upto) of the page: has rows that were accepted later
    seen: int = 0  #: number of the newest amendment, as in the cursor
    snapshot_ts: int | None = None  #: the page holds rows as of this timestamp
    in_snapshot: bool = False  #: more rows of the snapshot follow
    left_out: Sequence[tuple[str, LeftOut]] = ()  #: columns without values, of tables of a snapshot


def pull(services: Services, request: PullRequest, served: Served | None = None) -> PullAnswer:
    """Serve one page, from `served` or from the newest state."""
    began = services.clock.monotonic()
    served = (served or services.served(request.scope.tenant)).within(request.scope.within)
    if request.keys is None:
        served.row.check_tables()
    else:
        served.row.check_keys()
    now_ms = services.clock.unix_ms()
    if request.is_snapshot:
        return _snapshot(services, request, _rendering(request, now_ms), served, now_ms)
    pages = _pages(services, request, served, now_ms)
    asked = locate(request, served, now_ms)
    if request.cursor is None:
        pages.check_names(min(asked.after, served.resolved), served.resolved)
    if not served.row.has_log or asked.upto <= asked.after:
        page = Rendered(content=pages.empty(min(asked.after, served.resolved)), end=asked.after)
    else:
        page = _next_page(services, request, pages, asked)
    next_cursor = encode_cursor(request.scope, page.end, served.amended)
    if asked.upto > asked.after:  # else it was a poll at the watermark
        _SERVED.observe(services.clock.monotonic() - began)
        _BYTES_OUT.inc(page.content.size)
    in_json = request.format == "json"
    return PullAnswer(
        content=json_document(page, next_cursor, served.resolved, now_ms) if in_json else page.content,
        next_cursor=next_cursor,
        resolved_ts=served.resolved,
        has_more=page.has_more,
        quarantined=page.quarantined,
        waits=served.resolved <= asked.after and asked.upto == served.resolved,
        after=asked.after,
        end=page.end,
        end_ts=asked.end_ts,
        gap=served.gap_in(asked.after, page.end),
        amended=served.amended_in(asked.after, page.end),
        seen=served.amended,
    )


def _rendering(request: PullRequest, now_ms: int) -> Rendering:
    return Rendering(
        scope=request.scope,
        format=request.format,
        options=parse_options(request.options, built_ms=now_ms),
        buffers=request.buffers,
        watermarks=not request.follows,
        filter=request.filter,
    )


def _pages(services: Services, request: PullRequest, served: Served, now_ms: int) -> Pages:
    if request.keys is not None:
        return EntryPages(
            selection=request.keys, format=request.format, buffers=request.buffers, watermarks=not request.follows
        )
    exclude = partial(services.excluded.add, request.scope.tenant)
    return TablePages(rendering=_rendering(request, now_ms), history=served.history, exclude=exclude)


def _snapshot(
    services: Services, request: PullRequest, rendering: Rendering, served: Served, now_ms: int
) -> PullAnswer:
    """A page of a snapshot. Its last cursor is one between changes, at the snapshot's timestamp."""
    place = request.place
    if place is None:
        if request.start_ts is not None:
            raise InvalidInput("A snapshot begins at as_of, not at start_ts: leave start_ts out.")
        place = start_place(services, request.scope, request.filter, served, request.as_of)
    check_place(served, place)
    end = None if request.end_ts is None else served.parse_ts(request.end_ts, now_ms)
    if end is not None and end < place.ts:
        raise InvalidInput(f"The pull ends ({end}) before its snapshot ({place.ts}).", as_of=place.ts, end_ts=end)
    upto = served.resolved if end is None else min(end, served.resolved)
    page = snapshot_page(
        services,
        request.scope,
        request.filter,
        rendering,
        place,
        history=served.known_history,
        upto=upto,
        limit=request.limit,
    )
    after = page.place
    next_cursor = (
        encode_cursor(request.scope, place.ts, place.seen) if after is None else encode_place(request.scope, after)
    )
    found = page.rendered
    _BYTES_OUT.inc(found.content.size)
    content = json_document(found, next_cursor, served.resolved, now_ms) if request.format == "json" else found.content
    return PullAnswer(
        content=content,
        next_cursor=next_cursor,
        resolved_ts=served.resolved,
        has_more=found.has_more,
        quarantined=0,
        waits=False,
        after=place.ts,
        end=place.ts,
        end_ts=end,
        seen=place.seen,
        snapshot_ts=place.ts,
        in_snapshot=after is not None,
        left_out=page.left_out,
    )


def _next_page(services: Services, request: PullRequest, pages: Pages, asked: Interval) -> Rendered:
    """The next page of the scope. Stretches that deliver nothing, such as rows of system tables, are skipped in growing
    steps: only the last page may be empty, or one that looked at many rows."""
    after, rows, looked_at = asked.after, request.limit, 0
    ids = pages.table_ids(after, asked.upto)
    while True:
        stretch = _Stretch(after=after, upto=asked.upto, table_ids=ids, rows=rows)
        found = _select(services, request, pages, stretch)
        page = pages.page(found.selected, after, found.upto, has_more=found.has_more)
        looked_at += found.looked_at
        if page.holds_changes or not page.has_more or (looked_at >= _LOOKED_AT_MAX and pages.is_filtered):
            return page
        after, rows = page.end, min(2 * rows, PULL_ROWS_MAX)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    """The part (after, upto] of the log, the table ids that are read, and the rows of a first step."""

    after: int
    upto: int
    table_ids: Collection[int] | None
    rows: int


@dataclass(frozen=True, slots=True)
class _Found:
    """The selected rows up to `upto`."""

    selected: Selected
    upto: int
    has_more: bool
    looked_at: int  #: rows of the log


def _select(services: Services, request: PullRequest, pages: Pages, stretch: _Stretch) -> _Found:
    """Rows that pass the filter, at most about as many as the request's limit. Where few pass, several pages of the
    log are read, in growing steps."""
    at, rows, looked_at, passed = stretch.after, stretch.rows, 0, 0
    page_bytes = _STREAM_PAGE_BYTES if request.follows else None
    parts: list[Selected] = []
    while True:
        found = services.reader.page(
            request.scope.tenant,
            after=at,
            upto=stretch.upto,
            rows=rows,
            table_ids=stretch.table_ids,
            page_bytes=page_bytes,
        )
        parts.append(pages.select(found.rows))
        looked_at, passed = looked_at + found.rows.num_rows, passed + parts[-1].rows.num_rows
        held = sum(part.rows.nbytes for part in parts)
        enough = 2 * passed >= request.limit or looked_at >= _LOOKED_AT_MAX or held >= (page_bytes or _SELECTED_BYTES)
        if not pages.is_filtered:
            return _Found(parts[0], found.upto, found.has_more, looked_at)
        if not found.has_more or enough:
            break
        at, rows = found.upto, min(4 * rows, PULL_ROWS_MAX)
    whole = pa.concat_tables([part.rows for part in parts])
    bad = tuple(q for part in parts for q in part.quarantined)
    n, end = merge.cut(whole["commit_ts"].to_numpy(), upto=found.upto, rows=max(request.limit, stretch.rows))
    if end == found.upto:
        return _Found(Selected(rows=whole, quarantined=bad), found.upto, found.has_more, looked_at)
    selected = Selected(rows=whole.slice(0, n), quarantined=tuple(q for q in bad if q.commit_ts <= end))
    return _Found(selected, end, True, looked_at)
