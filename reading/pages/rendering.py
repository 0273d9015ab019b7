"""Renders a page of the log in the format of a request: text lines, one JSON document, or Arrow."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from reading.core.changes import TableChanges
from reading.core.conform import DeliveredColumns
from reading.core.inside import Inside
from reading.core.page_rows import bytes_of, only
from reading.core.split import order_inside, order_messages
from reading.filters import NO_FILTER, Filter, Selected, refused, select_rows
from reading.formats import Format, FormatOptions, create_format
from reading.formats.estimate import Estimate, estimated
from reading.log.inside import InsidePage, Manner
from reading.pages import arrow, body
from reading.rows.decode import decode_rows, rows_of
from reading.rows.scope import Scope, concerns
from schemas.history import History
from schemas.model import Table
from tistream import ts as tso
from tistream.codec.table_key import is_record
from tistream.errors import InvalidInput

ARROW_FORMS = ("arrow", "raw-arrow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """The body of a page."""

    content: pa.Buffer
    end: int  #: everything of the scope up to here has been delivered with the content
    has_more: bool = False
    quarantined: int = 0  #: rows that could not be decoded
    holds_changes: bool = False  #: or quarantined rows
    inside: Inside | None = None  #: the page ends here, inside the commit that follows `end`


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
    schema_ts: int | None = None  #: `arrow` of one table: its columns as of here, for all pages
    body_bytes: int | None = None  #: a page of several messages is no larger (BodyTooLarge)

    def __post_init__(self) -> None:
        if self.schema_ts is not None and not self._decodes:
            raise InvalidInput("schema_ts is for format=arrow of one table, whose columns it chooses.")
        if self.filter.columns is not None and self.format in ARROW_FORMS and not self._decodes:
            raise refused("columns", self.filter.columns.text, 0, "undecoded rows keep all columns: ask for one table")

    def select(self, history: History, rows: pa.Table) -> Selected:
        """The rows that pass the filter."""
        if self.filter == NO_FILTER:
            return Selected(rows=rows, quarantined=())
        return select_rows(self.filter, history, rows, self.scope)

    def manner(self, history: History) -> Manner:
        """How pages inside a commit are read."""
        text = self.format not in ARROW_FORMS
        splits = text and self._format().splits_updates
        ranked = text or self._decodes
        order = ("split" if splits else "whole") if ranked else "raw"
        within = zlib.crc32(repr(self.scope.within).encode("utf-8", "surrogatepass"))
        return Manner(
            mode=f"{order}-{self.filter.digest:x}-{within:x}",
            ranked=ranked,
            splits=splits,
            select=lambda rows: self.select(history, only(rows, is_record(rows["key"]))),
            sizes=lambda rows: self.sizes(history, rows),
        )

    def sizes(self, history: History, rows: pa.Table) -> npt.NDArray[np.int64]:
        """Bytes of the body that each row (schema change.COMMITTED) becomes, estimated."""
        sizes = bytes_of(rows)
        if self.format in ARROW_FORMS and not self._decodes:
            return sizes
        for table, index in rows_of(history, rows, self.scope):
            sizes[index] = self._estimate(self.filter.shown(table)).of(sizes[index])
        return sizes

    def state_sizes(self, table: Table, rows: pa.Table) -> npt.NDArray[np.int64]:
        """The same of rows of a snapshot (schema newest.STATE) of one table version."""
        sizes = np.zeros(rows.num_rows, np.int64)
        for name in ("key", "value"):
            sizes += pc.fill_null(pc.binary_length(rows[name]), 0).to_numpy()
        return sizes if self.format in ARROW_FORMS and not self._decodes else self._estimate(table).of(sizes)

    def inside(self, history: History, inside_page: InsidePage, at: Inside, *, upto: int) -> Rendered:
        """A page inside a commit. Its DDL and its watermark come with the last one."""
        is_last, commit_ts = inside_page.next is None, at.commit_ts
        after = commit_ts - 1
        has_more = not is_last or commit_ts < upto
        selected = Selected(rows=inside_page.rows, quarantined=inside_page.quarantined)
        end = commit_ts if is_last else after
        if self.format in ARROW_FORMS:
            page = self.page(history, selected, after, commit_ts, has_more=has_more)
        else:
            page = self._text(history, selected, after, end, has_more, second=inside_page.second)
        return replace(page, end=end, has_more=has_more, inside=inside_page.next)

    def page(self, history: History, selected: Selected, after: int, upto: int, *, has_more: bool) -> Rendered:
        """The selected rows and the DDL in (after, upto]. An Arrow page ends early where the table's columns change."""
        if self.format not in ARROW_FORMS:
            return self._text(history, selected, after, upto, has_more)
        if self._decodes:
            native = arrow.native_page(
                history,
                selected.rows,
                self.scope,
                upto,
                self.buffers,
                shown=self.filter.shown,
                quarantined=selected.quarantined,
                target=self._target(history),
                body_bytes=self.body_bytes,
            )
            return Rendered(
                content=native.content,
                end=native.end,
                has_more=has_more or native.end < upto,
                quarantined=native.quarantined,
                holds_changes=native.rows + native.quarantined > 0,
            )
        raw = arrow.raw_page(history, selected.rows, self.scope)
        content = arrow.ipc(raw, self.buffers)
        bad = len(selected.quarantined)
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
        if not self._decodes:
            return arrow.ipc(arrow.RAW.empty_table(), self.buffers)
        target = None if history is None else self._target(history)
        empty = arrow.empty(history, self.scope, ts, self.filter.shown) if target is None else arrow.no_rows(target)
        return arrow.ipc(empty, self.buffers)

    def _target(self, history: History) -> DeliveredColumns | None:
        if self.schema_ts is None:
            return None
        return arrow.target_of(history, self.scope, self.schema_ts, self.filter.shown)

    @property
    def _decodes(self) -> bool:
        return self.format == "arrow" and self.scope.table is not None

    def _format(self) -> Format:
        return create_format("ndjson" if self.format == "json" else self.format, self.options)

    def _estimate(self, table: Table) -> Estimate:
        return estimated("arrow" if self._decodes else self.format, self.options, table)

    def _text(
        self,
        history: History,
        selected: Selected,
        after: int,
        upto: int,
        has_more: bool,
        *,
        second: pa.Table | None = None,
    ) -> Rendered:
        """`second`: inside a commit, updates that a format splits. Only their inserts are rendered."""
        in_json, fmt = self.format == "json", self._format()
        decoded = decode_rows(history, selected.rows, self.scope, self.filter.shown)
        if second is None:
            changes = order_messages(decoded.changes, split=fmt.splits_updates)
        else:
            later = decode_rows(history, second, self.scope, self.filter.shown).changes
            changes = order_inside(decoded.changes, later, split=fmt.splits_updates)
        events = self.filter.keeps_ddl(e for e in history.events(after, upto) if concerns(e, self.scope))
        watermark = upto if self.watermarks and not (has_more or in_json) else None
        separator = b"," if in_json else None
        bad = [*selected.quarantined, *decoded.quarantined]
        rows = selected.rows.num_rows + (0 if second is None else second.num_rows)
        most = self.body_bytes if rows > 1 else None
        content = body.render(fmt, changes, events, bad, watermark, separator=separator, most=most)
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
            "open_transaction_ts": str(page.inside.commit_ts) if page.inside is not None else None,
            "resolved_ts": str(resolved),
            "resolved_time": tso.to_text(resolved) if resolved else None,
            "lag_s": max(0, now_ms - tso.physical_ms(resolved)) / 1000 if resolved else None,
            "quarantined": page.quarantined,
        }
    )
    return pa.py_buffer(b"".join((b'{"items":[', page.content, b"],", meta[1:])))
