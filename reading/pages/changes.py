"""The next page of changes: rows of the log that pass the filter, as many as fit a body.

Where few rows pass, several pages of the log are read for one body; where a body becomes larger than was estimated, its
rows are read again, fewer of them; a commit that is too large for one body is read in several (`reading.log.inside`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reading.core import merge
from reading.core.inside import Inside
from reading.filters import Selected
from reading.formats.lines import BodyTooLarge
from reading.log.inside import Room
from reading.log.memory import Held, TransactionTooLarge
from reading.pages.rendering import Rendered
from reading.pages.request import PullRequest
from reading.pages.tables import Pages
from reading.served.position import Interval
from reading.served.services import Services
from tistream import ts as tso
from tistream.errors import CursorInvalid
from tistream.limits import COMMIT_BYTES_MAX, PULL_ROWS_MAX

_STREAM_PAGE_BYTES = 2 << 20  # of keys and values: what a stream holds while its consumer is slow
_BODY_BYTES = 32 << 20  # of a page, estimated; of a stream _STREAM_PAGE_BYTES
BODY_BYTES_MAX = 2 * COMMIT_BYTES_MAX  # of a page with several messages, measured
_SELECTED_BYTES = 32 << 20  # of rows that passed a filter, after which no more is read for a page
_LOOKED_AT_MAX = 5 * PULL_ROWS_MAX  # rows for one body with a filter, which may then be empty


def page_of_changes(services: Services, request: PullRequest, pages: Pages, interval: Interval) -> Rendered:
    """The next page. Rows that are larger as a body than was estimated are read again, fewer of them."""
    factor = 1
    while True:
        with services.reader.memory.held(request.scope.tenant) as held:
            read = _Read(services, request, pages, held, factor)
            try:
                return _next_page(read, interval)
            except BodyTooLarge as e:
                factor *= 1 + 2 * e.size // BODY_BYTES_MAX


@dataclass(frozen=True, slots=True)
class _Read:
    """One page in the making."""

    services: Services
    request: PullRequest
    pages: Pages
    held: Held
    factor: int  #: how much larger bodies are than estimated

    @property
    def body_bytes(self) -> int:
        """Of a page, estimated."""
        return _STREAM_PAGE_BYTES if self.request.follows else _BODY_BYTES

    def sizes(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        """Bytes of the body that each row becomes."""
        return self.factor * self.pages.sizes(rows)


def _next_page(read: _Read, interval: Interval) -> Rendered:
    """The next page of the scope. Parts that deliver nothing, such as rows of system tables, are skipped in growing
    steps: only the last page may be empty, one that looked at many rows, or one inside a commit."""
    pages = read.pages
    if interval.inside is not None:
        return _inside(read, interval.inside, interval.upto)
    after, rows, looked_at = interval.after, read.request.limit, 0
    ids = pages.table_ids(after, interval.upto)
    while True:
        part_of_log = _Part(after=after, upto=interval.upto, table_ids=ids, rows=rows)
        try:
            selected = _select(read, part_of_log)
        except TransactionTooLarge as e:
            commit_ts = int(str(e.facts["commit_ts"]))
            return _inside(read, Inside(commit_ts=commit_ts, mode=pages.manner().mode), interval.upto)
        page = pages.page(selected.selected, after, selected.upto, has_more=selected.has_more)
        looked_at += selected.looked_at
        if page.holds_changes or not page.has_more or (looked_at >= _LOOKED_AT_MAX and pages.is_filtered):
            return page
        after, rows = page.end, min(2 * rows, PULL_ROWS_MAX)


def _inside(read: _Read, at: Inside, upto: int) -> Rendered:
    """The next page inside a commit."""
    manner = read.pages.manner()
    if at.mode != manner.mode:
        raise CursorInvalid(
            f"The cursor lies inside the changes at {tso.described(at.commit_ts)}: only a reader with the same filter "
            "and the same form continues from it (formats that split updates, others, undecoded rows). Another one "
            f"starts with start_ts={at.commit_ts - 1}.",
            commit_ts=str(at.commit_ts),
            start_ts=str(at.commit_ts - 1),
        )
    page = read.services.reader.inside(
        read.request.scope.tenant,
        at,
        replace(manner, sizes=read.sizes),
        Room(rows=read.request.limit, bytes=read.body_bytes),
        table_ids=read.pages.table_ids(at.commit_ts - 1, at.commit_ts),
        held=read.held,
    )
    return read.pages.inside(page, at, upto=upto)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
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


def _select(read: _Read, part_of_log: _Part) -> _Found:
    """Rows that pass the filter, at most about as many as the request's limit and as fit a body. Where few pass,
    several pages of the log are read, in growing steps. TransactionTooLarge when the first commit does not fit."""
    request, pages = read.request, read.pages
    at, rows, looked_at, passed = part_of_log.after, part_of_log.rows, 0, 0
    page_bytes = _STREAM_PAGE_BYTES if request.follows else None
    parts: list[Selected] = []
    while True:
        try:
            page = read.services.reader.page(
                request.scope.tenant,
                after=at,
                upto=part_of_log.upto,
                rows=rows,
                table_ids=part_of_log.table_ids,
                page_bytes=page_bytes,
                held=read.held,
            )
        except TransactionTooLarge:
            if not parts:
                raise
            break
        at, more = page.upto, page.has_more
        parts.append(pages.select(page.rows))
        looked_at, passed = looked_at + page.rows.num_rows, passed + parts[-1].rows.num_rows
        held = sum(part.rows.nbytes for part in parts)
        enough = 2 * passed >= request.limit or looked_at >= _LOOKED_AT_MAX or held >= (page_bytes or _SELECTED_BYTES)
        if not pages.is_filtered or not more or enough:
            break
        rows = min(4 * rows, PULL_ROWS_MAX)
    whole = pa.concat_tables([part.rows for part in parts])
    bad = tuple(q for part in parts for q in part.quarantined)
    most = max(request.limit, part_of_log.rows) if pages.is_filtered else whole.num_rows
    n, end = _fitting(read, whole, rows_most=most, after=part_of_log.after, upto=at)
    if end == at:
        return _Found(Selected(rows=whole, quarantined=bad), at, more, looked_at)
    selected = Selected(rows=whole.slice(0, n), quarantined=tuple(q for q in bad if q.commit_ts <= end))
    return _Found(selected, end, True, looked_at)


def _fitting(read: _Read, rows: pa.Table, *, rows_most: int, after: int, upto: int) -> tuple[int, int]:
    """(how many of the rows make a page, the commit_ts at which it ends). A page without rows ends below a first commit
    that is too large a body: DDL may lie before it. TransactionTooLarge when nothing can."""
    commit_ts = rows["commit_ts"].to_numpy()
    n, end = merge.cut(commit_ts, upto=upto, rows=rows_most)
    reached = np.cumsum(read.sizes(rows)[:n])
    if n and reached[-1] > read.body_bytes:
        over = int(np.searchsorted(reached, read.body_bytes, side="right"))
        first = int(np.searchsorted(commit_ts, commit_ts[over]))
        if first:
            n, end = first, int(commit_ts[over]) - 1
        else:
            n, end = int(np.searchsorted(commit_ts, commit_ts[0], side="right")), int(commit_ts[0])
            if reached[n - 1] > COMMIT_BYTES_MAX and n > 1:
                if end - 1 == after:
                    raise TransactionTooLarge("The changes of a commit are too large a body.", commit_ts=str(end))
                n, end = 0, end - 1
    if n:
        read.held.take(read.held.bytes + int(reached[n - 1]))
    return n, end
