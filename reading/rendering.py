"""Renders a page of the log in the format of a request: text lines, one JSON document, or Arrow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import orjson
import pyarrow as pa

from reading import arrow, body
from reading.core.changes import TableChanges
from reading.core.split import order_messages
from reading.decode import decode_rows
from reading.filters import NO_FILTER, Filter, Selected, refused, select_rows
from reading.formats import FormatOptions, create_format
from reading.scope import Scope, concerns
from schemas.history import History
from tistream import ts as tso

ARROW_FORMS = ("arrow", "raw-arrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """The body of a page."""

    content: pa.Buffer
    end: int  #: everything of the scope up to here is in the content
    has_more: bool = False
    quarantined: int = 0  #: rows that could not be decoded
    holds_changes: bool = False  #: or quarantined rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendering:
    """How a request wants its pages. `arrow` of one table is decoded; several tables and `raw-arrow` are not, so their
    columns cannot be left out."""

    scope: Scope
    format: str
    options: FormatOptions
    buffers: str | None  #: compression of Arrow buffers
    watermarks: bool  #: text: end a last page with a watermark line
    filter: Filter = NO_FILTER

    def __post_init__(self) -> None:
        if self.filter.columns is not None and self.format in ARROW_FORMS and not self._decodes:
            raise refused("columns", self.filter.columns.text, 0, "undecoded rows keep all columns: ask for one table")

    def select(self, history: History, rows: pa.Table) -> Selected:
        """The rows that pass the filter."""
        if self.filter == NO_FILTER:
            return Selected(rows=rows, quarantined=())
        return select_rows(self.filter, history, rows, self.scope)

    def page(self, history: History, found: Selected, after: int, upto: int, *, has_more: bool) -> Rendered:
        """The selected rows and the DDL in (after, upto]. An Arrow page ends early where the table's columns change."""
        if self.format not in ARROW_FORMS:
            return self._text(history, found, after, upto, has_more)
        if self._decodes:
            native = arrow.native_page(
                history,
                found.rows,
                self.scope,
                upto,
                self.buffers,
                shown=self.filter.shown,
                quarantined=found.quarantined,
            )
            return Rendered(
                content=native.content,
                end=native.end,
                has_more=has_more or native.end < upto,
                quarantined=native.quarantined,
                holds_changes=native.rows + native.quarantined > 0,
            )
        raw = arrow.raw_page(history, found.rows, self.scope)
        content = arrow.ipc(raw, self.buffers)
        bad = len(found.quarantined)
        return Rendered(
            content=content, end=upto, has_more=has_more, quarantined=bad, holds_changes=raw.num_rows + bad > 0
        )

    def snapshot(
        self,
        history: History,
        changes: Sequence[TableChanges],
        stored: Sequence[pa.Table],
        ts: int,
        *,
        has_more: bool,
        complete: bool,
    ) -> Rendered:
        """Rows of a snapshot as of `ts`, in the order of their pages; `stored` are the same rows undecoded."""
        holds = any(len(part) for part in changes)
        if self.format in ARROW_FORMS:
            if not holds:
                content = self.empty(history, ts)
            elif self._decodes:
                content = arrow.ipc(arrow.decoded_rows(history, changes), self.buffers)
            else:
                content = arrow.ipc(arrow.raw_rows(changes, stored), self.buffers)
        else:
            in_json = self.format == "json"
            fmt = create_format("ndjson" if in_json else self.format, replace(self.options, snapshot=True))
            watermark = ts if complete and self.watermarks and not (has_more or in_json) else None
            content = body.render(fmt, changes, (), (), watermark, separator=b"," if in_json else None)
        return Rendered(content=content, end=ts, has_more=has_more, holds_changes=holds)

    def empty(self, history: History | None, ts: int) -> pa.Buffer:
        """The body without changes; Arrow has the columns that the table has at `ts`."""
        if self.format not in ARROW_FORMS:
            return pa.py_buffer(b"")
        table = arrow.empty(history, self.scope, ts, self.filter.shown) if self._decodes else arrow.RAW.empty_table()
        return arrow.ipc(table, self.buffers)

    @property
    def _decodes(self) -> bool:
        return self.format == "arrow" and self.scope.table is not None

    def _text(self, history: History, found: Selected, after: int, upto: int, has_more: bool) -> Rendered:
        in_json = self.format == "json"
        fmt = create_format("ndjson" if in_json else self.format, self.options)
        decoded = decode_rows(history, found.rows, self.scope, self.filter.shown)
        changes = order_messages(decoded.changes, split=fmt.splits_updates)
        events = [e for e in history.events(after, upto) if concerns(e, self.scope) and self.filter.keeps_ddl(e)]
        watermark = upto if self.watermarks and not (has_more or in_json) else None
        separator = b"," if in_json else None
        bad = [*found.quarantined, *decoded.quarantined]
        content = body.render(fmt, changes, events, bad, watermark, separator=separator)
        return Rendered(
            content=content,
            end=upto,
            has_more=has_more,
            quarantined=len(bad),
            holds_changes=content.size > 0 or bool(bad),
        )


def json_document(page: Rendered, next_cursor: str, resolved: int, now_ms: int) -> pa.Buffer:
    """The items of a page and its position as one JSON object."""
    meta = orjson.dumps(
        {
            "next_cursor": next_cursor,
            "has_more": page.has_more,
            "resolved_ts": str(resolved),
            "resolved_time": tso.to_text(resolved) if resolved else None,
            "lag_s": max(0, now_ms - tso.physical_ms(resolved)) / 1000 if resolved else None,
            "quarantined": page.quarantined,
        }
    )
    return pa.py_buffer(b"".join((b'{"items":[', page.content, b"],", meta[1:])))
