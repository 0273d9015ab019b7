"""A flush of 1,000 tables, and reading one of them back.

The target of the packed flush is what zstd leaves: zstd(1) alone takes 70 % of its time, so even a flush that cost
nothing else would be 7 times as fast as the Parquet file. The product never writes unpacked segments; there each row is
copied twice (into its stream, into the file), both times into memory that is touched for the first time.

Writing: the committed file as the sorter builds it against one Parquet row group per table with the same compression,
and against memcpy of the rows. The product always compresses; for the two ratios "uncompressed" the compressor of the
segment writer is replaced by one that hands its input through, so they measure everything else that a file costs.

Reading: what the catalog says of the one segment that holds the table, one range GET, checks and cut to the table,
against opening the Parquet file and reading its row group from memory. The requests are counted.
"""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.harness import Result, compare
from benchmarks.rows import change_rows
from tistream.change import COMMITTED
from tistream.codec import segment_file
from tistream.codec.committed_file import build_committed_file, decode_committed_segment
from tistream.codec.segment_file import SegmentInfo
from tistream.ids import Tenant
from tistream.layout import CommittedKey
from tistream.objectstore.memory import MemoryStore

ROWS = 60_000  # about 24 MB
TABLES = 1000
KEY = CommittedKey(tenant=Tenant(1, 1), sorter="benchmark", incarnation=1, seq=1)

_File = tuple[bytes, list[SegmentInfo]]


class CountingStore(MemoryStore):
    """Counts what is asked of it."""

    requests = 0

    def get(self, key: str) -> bytes:
        self.requests += 1
        return super().get(key)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        self.requests += 1
        return super().get_range(key, offset, length)


class _Through:
    """A compressor that does nothing."""

    def __init__(self, **_: object) -> None:
        pass

    def compress(self, raw: pa.Buffer) -> pa.Buffer:
        return raw


def run() -> Iterator[Result]:
    """Four ratios."""
    rows = committed_rows()
    batch = rows.combine_chunks().to_batches()[0]
    source = np.frombuffer(batch.serialize(), np.uint8)
    target = np.empty_like(source)
    edges = np.searchsorted(rows["table_id"].to_numpy(), np.arange(TABLES + 1))

    def memcpy() -> npt.NDArray[np.uint8]:
        np.copyto(target, source)
        return target

    def ours() -> _File:
        data, segments = build_committed_file(KEY, [(1, rows)], "w")
        return data, segments[1]

    def uncompressed() -> _File:
        compressor = segment_file.zstandard.ZstdCompressor
        segment_file.zstandard.ZstdCompressor = _Through
        try:
            return ours()
        finally:
            segment_file.zstandard.ZstdCompressor = compressor

    def parquet(compression: str) -> bytes:
        sink = pa.BufferOutputStream()
        level = 1 if compression == "zstd" else None
        with pq.ParquetWriter(sink, rows.schema, compression=compression, compression_level=level) as writer:
            for first, last in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
                writer.write_table(rows.slice(first, last - first))
        data: bytes = sink.getvalue().to_pybytes()
        return data

    def same_rows(file: _File, other: bytes) -> bool:
        return _rows_of(file, packed=True).equals(rows) and pq.read_table(io.BytesIO(other)).cast(COMMITTED).equals(
            rows
        )

    def same_raw(file: _File, other: object) -> bool:
        equal = not isinstance(other, bytes) or pq.read_table(io.BytesIO(other)).cast(COMMITTED).equals(rows)
        return _rows_of(file, packed=False).equals(rows) and equal

    name = "flush-tables/1000-tables"
    yield compare(f"{name}-zstd-vs-parquet", ours, lambda: parquet("zstd"), proof=same_rows, target=4.5)
    yield compare(f"{name}-uncompressed-vs-parquet", uncompressed, lambda: parquet("none"), proof=same_raw, target=8)
    yield compare(f"{name}-uncompressed-vs-memcpy", uncompressed, memcpy, proof=same_raw, target=0.1)
    yield _reading(rows, ours(), parquet("zstd"))


def committed_rows() -> pa.Table:
    """Rows of all tables in the order of a flush."""
    changes = change_rows(ROWS)
    tables = np.sort(np.random.default_rng(2).integers(0, TABLES, ROWS))
    given = {"table_id": pa.array(tables, pa.int64())}
    columns = [given.get(name) or changes.column(name) for name in COMMITTED.names]
    rows = pa.table(columns, schema=COMMITTED)
    order = [(name, "ascending") for name in ("table_id", "commit_ts", "start_ts", "key")]
    return rows.take(pc.sort_indices(rows, sort_keys=order)).combine_chunks()


def _rows_of(file: _File, *, packed: bool) -> pa.Table:
    """All rows of the file; with `packed` false the segments are the Arrow streams themselves."""
    data, segments = file
    parts = []
    for s in segments:
        stored = data[s.offset : s.offset + s.length]
        if packed:
            parts.append(decode_committed_segment(str(KEY), s.number, stored, crc=s.crc, rows=s.rows))
        else:
            parts.append(pa.ipc.open_stream(stored).read_all())
    return pa.concat_tables(parts).combine_chunks()


def _reading(rows: pa.Table, file: _File, parquet: bytes) -> Result:
    store = CountingStore()
    store.put(str(KEY), file[0])
    table = TABLES // 2
    (segment,) = [s for s in file[1] if s.table_lo <= table <= s.table_hi]

    def ours() -> pa.Table:
        before = store.requests
        data = store.get_range(str(KEY), segment.offset, segment.length)
        found = decode_committed_segment(str(KEY), segment.number, data, crc=segment.crc, rows=segment.rows)
        ids = found["table_id"].to_numpy()
        first, last = np.searchsorted(ids, [table, table + 1]).tolist()
        if store.requests != before + 1:
            raise ValueError(f"{store.requests - before} requests for one table")
        return found.slice(first, last - first)

    def row_group() -> pa.Table:
        return pq.ParquetFile(pa.BufferReader(parquet)).read_row_group(table)

    def same(a: pa.Table, b: pa.Table) -> bool:
        want = rows.filter(pc.equal(rows["table_id"], table))
        return a.equals(want) and b.cast(COMMITTED).equals(want)

    return compare("flush-tables/read-1-of-1000-vs-parquet", ours, row_group, proof=same, target=8)
