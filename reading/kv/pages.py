"""The pages of a pull of keys and values, see `reading.pages`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from reading.arrow import ipc
from reading.filters import Selected
from reading.formats.lines import Block, write
from reading.formats.pieces import LARGE, bare
from reading.kv.formats import ARROW, entries, lines_of
from reading.kv.selection import Selection
from reading.rendering import Rendered


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

    def page(self, found: Selected, after: int, upto: int, *, has_more: bool) -> Rendered:
        rows = found.rows
        if self.format == "arrow":
            content = ipc(entries(rows), self.buffers)
        else:
            content = self._lines(rows, None if has_more or not self.watermarks else upto)
        return Rendered(content=content, end=upto, has_more=has_more, holds_changes=rows.num_rows > 0)

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
