"""The pages of a pull of keys and values, see `reading.pages.tables`."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from reading.core import page_rows
from reading.core.inside import Inside
from reading.filters import Selected
from reading.formats.lines import Block, write
from reading.formats.pieces import LARGE, bare
from reading.kv.formats import ARROW, entries, lines_of
from reading.kv.selection import Selection
from reading.log.inside import InsidePage, Manner
from reading.pages.arrow import ipc
from reading.pages.rendering import Rendered
from tistream.codec.key_format import KeyFormat

_LINE_BYTES = 200  # of an entry's line without key and value


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryPages:
    """Pages of entries, which need no schema."""

    selection: Selection
    format: str
    buffers: str | None  #: compression of Arrow buffers
    watermarks: bool  #: lines: end a last page with a watermark

    @property
    def is_filtered(self) -> bool:
        return not self.selection.is_everything

    def check_names(self, after: int, upto: int) -> None:
        """Keys have no names."""

    def table_ids(self, after: int, upto: int) -> Collection[int] | None:
        return None

    def select(self, rows: pa.Table) -> Selected:
        return Selected(rows=self.selection.of(rows), quarantined=())

    def page(self, selected: Selected, after: int, upto: int, *, has_more: bool) -> Rendered:
        rows = selected.rows
        if self.format == "arrow":
            content = ipc(entries(rows), self.buffers)
        else:
            content = self._lines(rows, None if has_more or not self.watermarks else upto)
        return Rendered(content=content, end=upto, has_more=has_more, holds_changes=rows.num_rows > 0)

    def manner(self) -> Manner:
        digest = zlib.crc32(repr(replace(self.selection, form=KeyFormat.HEX)).encode())
        return Manner(mode=f"raw-{digest:x}", ranked=False, splits=False, select=self.select, sizes=self.sizes)

    def sizes(self, rows: pa.Table) -> npt.NDArray[np.int64]:
        return _LINE_BYTES + 2 * page_rows.bytes_of(rows)

    def inside(self, inside_page: InsidePage, at: Inside, *, upto: int) -> Rendered:
        end = at.commit_ts - (inside_page.next is not None)
        selected = Selected(rows=inside_page.rows, quarantined=())
        page = self.page(selected, at.commit_ts - 1, end, has_more=inside_page.next is not None or end < upto)
        return replace(page, inside=inside_page.next)

    def empty(self, ts: int) -> pa.Buffer:
        return ipc(ARROW.empty_table(), self.buffers) if self.format == "arrow" else pa.py_buffer(b"")

    def _lines(self, rows: pa.Table, watermark: int | None) -> pa.Buffer:
        in_json = self.format == "json"
        form = lines_of("ndjson" if in_json else self.format, self.selection.form)
        blocks = []
        for batch in rows.combine_chunks().to_batches():
            blocks.append(Block(at=np.arange(batch.num_rows), pieces=form.pieces(batch)))
        if watermark is not None and not in_json:
            mark = pa.array([form.watermark(watermark)], LARGE)
            blocks.append(Block(at=np.array([rows.num_rows]), pieces=[bare(mark)]))
        end = b"," if in_json else form.terminator
        _, data = write(blocks, end=end)
        return pa.py_buffer(data[: len(data) - len(end)] if in_json else data)
