"""Serves one pull: one finite body that ends at the next cursor.

    what is served   `Services.served`, or the caller's
    position         `position.locate`: cursor or start_ts, end_ts -> (after, upto], checked
    ids              `Pages.table_ids`: the tables of the scope by its schema history
    page             `LogReader.page`: the rows of the log
    selection        `Pages.select`: those that pass the filter
    rendering        `Pages.page`: decoded changes, or keys and values -> lines or Arrow

A body holds all changes of the scope with commit_ts in (cursor, next cursor], once and in commit order. Without
`has_more` the next cursor is at the served watermark, or at the request's `end_ts`.

A commit_ts with more than COMMIT_BYTES_MAX, in the log or as a body, is delivered in several pages
(`reading.log.inside`). Its pages but the last end below it: their cursors lie inside, and `resolved_ts` is below it,
too.

A filter changes what a body holds, never what a cursor means: a pull may continue with another filter, but not inside a
commit. A body without a change still advances the cursor. A pull reads a bounded number of rows of the log
(`reading.pages.changes`); when it stops there, `has_more` is true.

A tenant that awaits its first schema snapshot gives empty bodies and a cursor at 0, which later means the beginning of
its log. Keys and values of a raw or txn tenant (`PullRequest.keys`) need no schema; all else is the same for them.
"""

from __future__ import annotations

import time
from functools import partial

from reading.filters.core.regexes import Allowance, allowed
from reading.formats import parse_options
from reading.pages import changes
from reading.pages.entries import EntryPages
from reading.pages.rendering import Rendered, Rendering, json_document
from reading.pages.request import PullAnswer, PullRequest
from reading.pages.snapshot import check_place, snapshot_page, start_place
from reading.pages.tables import Pages, TablePages
from reading.served.position import Served, encode_cursor, encode_inside, encode_snapshot_position, locate
from reading.served.services import Services
from tistream.errors import InvalidInput
from tistream.limits import PATTERNS_S_MAX
from tistream.runtime import metrics

_SERVED, _BYTES_OUT = metrics.STAGE.labels("serve"), metrics.BYTES.labels("api", "out")


def pull(services: Services, request: PullRequest, served: Served | None = None) -> PullAnswer:
    """Serve one page, from `served` or from the newest state. FilterInvalid when its expressions take too long."""
    with allowed(Allowance(time.thread_time, PATTERNS_S_MAX)):
        return _pull(services, request, served)


def _pull(services: Services, request: PullRequest, served: Served | None) -> PullAnswer:
    began = services.clock.monotonic()
    served = (served or services.served(request.scope.tenant)).within(request.scope.within)
    if request.keys is None:
        served.row.check_tables()
    else:
        served.row.check_keys()
    now_ms = services.clock.unix_ms()
    if request.is_snapshot:
        if request.schema_ts is not None:
            raise InvalidInput("A snapshot has the columns of its own timestamp: leave schema_ts out.")
        return _snapshot(services, request, _rendering(request, served, now_ms), served, now_ms)
    if request.as_of is not None and not request.snapshot and request.cursor is None:
        raise InvalidInput("as_of is the timestamp of a snapshot: add snapshot=true, or begin at start_ts.")
    pages = _pages(services, request, served, now_ms)
    interval = locate(request, served, now_ms)
    if request.cursor is None:
        pages.check_names(min(interval.after, served.resolved), served.resolved)
    if not served.row.has_log or interval.upto <= interval.after:
        empty = pages.empty(min(interval.after, served.resolved))
        page = Rendered(content=empty, end=interval.after, inside=interval.inside)
    else:
        page = changes.page_of_changes(services, request, pages, interval)
    scope, at = request.scope, page.inside
    next_cursor = encode_cursor(scope, page.end)
    if at is not None:
        next_cursor = encode_inside(scope, at)
    if interval.upto > interval.after:  # else it was a poll at the watermark
        _SERVED.observe(services.clock.monotonic() - began)
        _BYTES_OUT.inc(page.content.size)
    in_json = request.format == "json"
    resolved, reached = (served.resolved, page.end) if at is None else (min(page.end, served.resolved), at.commit_ts)
    return PullAnswer(
        content=json_document(page, next_cursor, resolved, now_ms) if in_json else page.content,
        next_cursor=next_cursor,
        resolved_ts=resolved,
        has_more=page.has_more,
        quarantined=page.quarantined,
        waits=served.resolved <= interval.after and interval.upto == served.resolved,
        after=interval.after,
        end=page.end,
        end_ts=interval.end_ts,
        gap=served.gap_in(interval.after, reached),
        inside=at,
    )


def _rendering(request: PullRequest, served: Served, now_ms: int) -> Rendering:
    return Rendering(
        scope=request.scope,
        format=request.format,
        options=parse_options(request.options, built_ms=now_ms),
        buffers=request.buffers,
        watermarks=not request.follows,
        filter=request.filter,
        schema_ts=None if request.schema_ts is None else served.parse_ts(request.schema_ts, now_ms),
        body_bytes=changes.BODY_BYTES_MAX,
    )


def _pages(services: Services, request: PullRequest, served: Served, now_ms: int) -> Pages:
    if request.keys is not None:
        return EntryPages(
            selection=request.keys, format=request.format, buffers=request.buffers, watermarks=not request.follows
        )
    exclude = partial(services.excluded.add, request.scope.tenant)
    return TablePages(rendering=_rendering(request, served, now_ms), history=served.history, exclude=exclude)


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
    with services.reader.memory.held(request.scope.tenant) as held:
        page = snapshot_page(
            services,
            request.scope,
            request.filter,
            rendering,
            place,
            history=served.known_history,
            upto=upto,
            limit=request.limit,
            held=held,
        )
    after = page.place
    next_cursor = (
        encode_cursor(request.scope, place.ts) if after is None else encode_snapshot_position(request.scope, after)
    )
    rendered = page.rendered
    _BYTES_OUT.inc(rendered.content.size)
    content = (
        json_document(rendered, next_cursor, served.resolved, now_ms) if request.format == "json" else rendered.content
    )
    return PullAnswer(
        content=content,
        next_cursor=next_cursor,
        resolved_ts=served.resolved,
        has_more=rendered.has_more,
        quarantined=0,
        waits=False,
        after=place.ts,
        end=place.ts,
        end_ts=end,
        snapshot_ts=place.ts,
        in_snapshot=after is not None,
        left_out=page.left_out,
    )
