"""Reads segments of the committed log in either file format.

A segment takes one range GET; the first row group of a compacted file one more for the Parquet footer, which is cached.
The result is the same for both formats: the rows in schema change.COMMITTED, one chunk, in (table_id, commit_ts,
start_ts, key) order, checked against the catalog's row.

ObjectNotFound is raised to the caller, who must list again: the object may have been replaced and collected since.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

import pyarrow as pa
from pyarrow.parquet import FileMetaData

from tistream.catalog.rows.segments import SegmentFormat, SegmentRow
from tistream.codec.committed_file import decode_committed_segment
from tistream.codec.compacted_file import decode_row_group, read_footer
from tistream.errors import CorruptObject, ObjectNotFound
from tistream.objectstore.protocol import ObjectStore

_FOOTERS_KEPT = 512


class SegmentSource:
    """Fetches and decodes segments. Thread-safe."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._footers: OrderedDict[str, FileMetaData] = OrderedDict()
        self._lock = threading.Lock()

    def rows(self, segment: SegmentRow) -> pa.Table:
        """The rows of one segment. CorruptObject when its bytes do not match the catalog."""
        name, number, at = segment.object_key, segment.number, segment.offset
        if segment.format is SegmentFormat.SEGMENT:
            data = self._get(name, number, at, segment.length)
            return decode_committed_segment(name, number, data, crc=segment.crc, rows=segment.rows, offset=at)
        metadata = self._footer(segment)
        data = self._get(name, number, at, segment.length)
        return decode_row_group(name, number, data, metadata, crc=segment.crc, rows=segment.rows, offset=at)

    def _footer(self, segment: SegmentRow) -> FileMetaData:
        name, footer = segment.object_key, segment.footer
        with self._lock:
            if (known := self._footers.get(name)) is not None:
                self._footers.move_to_end(name)
                return known
        metadata = read_footer(name, self._get(name, "footer", footer.offset, footer.length), footer)
        with self._lock:
            self._footers[name] = metadata
            while len(self._footers) > _FOOTERS_KEPT:
                self._footers.popitem(last=False)
        return metadata

    def _get(self, name: str, number: int | str, offset: int, length: int) -> bytes:
        try:
            return self._store.get_range(name, offset, length)
        except (ObjectNotFound, CorruptObject) as e:
            facts = {"object": name, "segment": number, "offset": offset}
            raise type(e)(f"segment of the committed log missing: {e.message}", **facts) from e
