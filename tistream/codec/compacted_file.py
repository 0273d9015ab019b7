"""The compacted file: a part of one task's committed log as Parquet, rows in (table_id, commit_ts, start_ts, key)
order, zstd, row groups aligned to tables.

- A table with more than `SEGMENT_OWN_BYTES_MIN` has its own row groups, cut at `COMPACTED_GROUP_BYTES_TARGET`; the
  neighbouring smaller ones share row groups, which end between two tables at `SEGMENT_SHARED_BYTES_TARGET`. A row group
  is one segment of the catalog: chosen there by table and commit_ts, fetched with one range GET, checked by its crc32c.
- The Parquet footer is fetched once per object; the catalog says where it lies and its crc32c.
- Statistics are kept of table_id, commit_ts and key, and a Bloom filter of key, so any Parquet reader can skip row
  groups, too. The filters lie between the row groups and the footer; our own reads do not fetch them.

`build_compacted_file` and `decode_row_group` check that rows ascend strictly in the order above. Bytes are decoded only
if they match the catalog's checksum; sizes and schema are checked as well.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass

import crc32c
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tistream.codec.arrow_stream import single_batch
from tistream.codec.committed_file import bounds_of, cut, order_fault, raw_bytes_before
from tistream.codec.segment_file import SegmentInfo
from tistream.errors import CorruptObject, InvalidInput
from tistream.limits import (
    COMPACTED_GROUP_BYTES_TARGET,
    SEGMENT_BYTES_MAX,
    SEGMENT_OWN_BYTES_MIN,
    SEGMENT_SHARED_BYTES_TARGET,
)
from tistream.model import change

KIND = "compacted"
ZSTD_LEVEL = 1
BLOOM_FALSE_POSITIVES = 0.02
_STATISTICS = ["table_id", "commit_ts", "key"]
_DICTIONARY = ["table_id", "op", "flags", "expire_ts"]
_DELTA = {"start_ts": "DELTA_BINARY_PACKED", "commit_ts": "DELTA_BINARY_PACKED"}
_ORDER = [pq.SortingColumn(change.COMMITTED.get_field_index(n)) for n in ("table_id", "commit_ts", "start_ts", "key")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Footer:
    """Where the Parquet footer of an object lies: from `offset` to the end."""

    offset: int
    length: int  #: bytes, the closing magic included
    crc: int  #: crc32c


NO_FOOTER = Footer(offset=0, length=0, crc=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactedFile:
    data: pa.Buffer
    groups: tuple[SegmentInfo, ...]  #: the row groups in file order
    footer: Footer


def build_compacted_file(rows: pa.Table, *, task_id: int = 0) -> CompactedFile:
    """The file of these rows (schema change.COMMITTED, at least one). InvalidInput when they are not in order."""
    try:
        batch = single_batch(rows)
    except ValueError as e:
        raise InvalidInput("the data does not fit a compacted file", cause=e) from e
    if not batch.schema.equals(change.COMMITTED) or not batch.num_rows:
        raise InvalidInput("a compacted file has rows of the committed log")
    if fault := order_fault(batch):
        raise InvalidInput(f"the rows of a compacted file are not in order: {fault}")
    parts = list(_parts(batch))
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        change.COMMITTED,
        version="2.6",
        compression="zstd",
        compression_level=ZSTD_LEVEL,
        use_dictionary=_DICTIONARY,
        column_encoding=_DELTA,
        write_statistics=_STATISTICS,
        sorting_columns=_ORDER,
        bloom_filter_options={"key": {"ndv": max(p.num_rows for p in parts), "fpp": BLOOM_FALSE_POSITIVES}},
        write_batch_size=8192,
    ) as writer:
        for part in parts:
            writer.write_batch(part, row_group_size=part.num_rows)
    data = sink.getvalue()
    return _described(data, parts, task_id)


def read_footer(name: str, data: bytes | memoryview, footer: Footer) -> pq.FileMetaData:
    """The footer from its bytes. CorruptObject when they do not match the catalog."""
    where = {"object": name, "segment": "footer", "offset": footer.offset}
    actual = crc32c.crc32c(data)
    if actual != footer.crc:
        raise CorruptObject("the checksum of the footer is wrong", **where, expected=footer.crc, found=actual)
    try:
        metadata = pq.read_metadata(pa.BufferReader(pa.py_buffer(data)))
    except (pa.ArrowException, OSError) as e:
        raise CorruptObject("the footer is malformed", **where, cause=e) from e
    if metadata.schema.to_arrow_schema() != change.COMMITTED:
        raise CorruptObject("the file has other columns", **where)
    return metadata


def decode_row_group(
    name: str, number: int, data: bytes | memoryview, metadata: pq.FileMetaData, *, crc: int, rows: int, offset: int
) -> pa.Table:
    """The rows of one row group from its bytes, as one chunk. CorruptObject when damaged."""
    where = {"object": name, "segment": number, "offset": offset}
    actual = crc32c.crc32c(data)
    if actual != crc:
        raise CorruptObject("the checksum of a segment is wrong", **where, expected=crc, found=actual)
    if number >= metadata.num_row_groups:
        raise CorruptObject("the file has no such row group", **where, found=metadata.num_row_groups)
    group = metadata.row_group(number)
    if group.num_rows != rows or group.total_byte_size > SEGMENT_BYTES_MAX:
        raise CorruptObject("the row group has another size", **where, rows=group.num_rows, raw=group.total_byte_size)
    try:
        with pq.ParquetFile(_Window(data, offset), metadata=metadata, pre_buffer=False) as file:
            table = file.read_row_group(number, use_threads=False)
        batch = single_batch(table.cast(change.COMMITTED))
    except (pa.ArrowException, OSError, ValueError) as e:
        raise CorruptObject("a row group is malformed", **where, cause=e) from e
    if fault := order_fault(batch):
        raise CorruptObject(f"the rows are not in order: {fault}", **where)
    return pa.Table.from_batches([batch])


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The row groups: cuts of each large table, and runs of small ones, in the order of the rows."""
    ids = batch.column("table_id").to_numpy()
    bounds = np.concatenate([[0], np.flatnonzero(ids[1:] != ids[:-1]) + 1, [len(ids)]])
    before = raw_bytes_before(batch)
    large = np.diff(before[bounds]) > SEGMENT_OWN_BYTES_MIN
    first = 0
    while first < len(large):
        if large[first]:
            rows = np.arange(bounds[first], bounds[first + 1] + 1)
            yield from cut(batch, before, rows, COMPACTED_GROUP_BYTES_TARGET)
            first += 1
            continue
        last = first
        while last < len(large) and not large[last]:
            last += 1
        yield from cut(batch, before, bounds[first : last + 1], SEGMENT_SHARED_BYTES_TARGET)
        first = last


def _described(data: pa.Buffer, parts: list[pa.RecordBatch], task_id: int) -> CompactedFile:
    metadata = pq.read_metadata(pa.BufferReader(data))
    groups, at = [], len(b"PAR1")
    for number, part in enumerate(parts):
        group = metadata.row_group(number)
        columns = [group.column(i) for i in range(group.num_columns)]
        length = sum(c.total_compressed_size for c in columns)
        stored = data.slice(at, length)
        groups.append(
            SegmentInfo(
                number=number,
                kind=KIND,
                task_id=task_id,
                **bounds_of(part),
                rows=part.num_rows,
                offset=at,
                length=length,
                raw_length=group.total_byte_size,
                crc=crc32c.crc32c(memoryview(stored)),
            )
        )
        at += length
    size = int.from_bytes(data.slice(data.size - 8, 4), "little") + 8
    at = data.size - size  # after the Bloom filters
    footer = data.slice(at)
    described = Footer(offset=at, length=footer.size, crc=crc32c.crc32c(memoryview(footer)))
    return CompactedFile(data=data, groups=tuple(groups), footer=described)


class _Window(io.RawIOBase):
    """A file object that holds only the bytes of one row group."""

    def __init__(self, data: bytes | memoryview, offset: int) -> None:
        self._data, self._offset, self._at = memoryview(data), offset, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        end = self._offset + len(self._data)
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: end}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        begin = self._at - self._offset
        if begin < 0:
            raise OSError(f"byte {self._at} lies before the row group")
        content = bytes(self._data[begin:] if size < 0 else self._data[begin : begin + size])
        self._at += len(content)
        return content
