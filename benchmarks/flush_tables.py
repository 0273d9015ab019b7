"""A flush of 1,000 tables, and reading one of them back.

Writing: the committed file as the sorter builds it against one Parquet row group per table with the same compression,
at the sizes that a sorter writes: 8 MiB, a file before its time; 16 MiB, as in a flood; 24 MiB, when catching up. The
cost of a row group is the same in each; the cost of a row is mostly zstd(1) on both sides (70 % of our time with 24
MiB), so the larger the flush, the smaller the gain. For the ratios "uncompressed" a null compressor replaces that of
the segment writer, to measure everything else, against Parquet without compression and against memcpy of the rows.

Reading: one range GET of the segment that the catalog names, checks and cut to the table, against opening the Parquet
file and reading its row group from memory. Requests are counted.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from unittest.mock import patch

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import zstandard

from benchmarks.harness import Result, compare
from benchmarks.rows import change_rows
from tistream.codec.committed_file import build_committed_file, decode_committed_segment
from tistream.codec.segment_file import SegmentInfo
from tistream.ids import Tenant
from tistream.model.change import COMMITTED
from tistream.objectstore.layout import CommittedKey
from tistream.objectstore.memory import MemoryStore
from tistream.objectstore.protocol import Admit

SIZES = {8: (20_000, 8.0), 16: (40_000, 8.0), 24: (60_000, 6.0)}  # MiB of a flush, about: its rows, and the target
TABLES = 1000
KEY = CommittedKey(tenant=Tenant(1, 1), sorter="benchmark", incarnation=1, seq=1)

_File = tuple[bytes, list[SegmentInfo]]


class CountingStore(MemoryStore):
    """Counts requests."""

    requests = 0

    def get(self, key: str, admit: Admit | None = None) -> bytes:
        self.requests += 1
        return super().get(key, admit)

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
    """Eight ratios."""
    for mib, (count, target) in SIZES.items():
        flush = _Flush(committed_rows(count))
        name = f"flush-tables/1000-tables-{mib}-mib"
        yield compare(
            f"{name}-zstd-vs-parquet", flush.ours, partial(flush.parquet, "zstd"), proof=flush.same, target=target
        )
        yield compare(
            f"{name}-uncompressed-vs-parquet",
            flush.uncompressed,
            partial(flush.parquet, "none"),
            proof=flush.same_raw,
            target=8,
        )
        if mib == min(SIZES):
            yield compare(
                f"{name}-uncompressed-vs-memcpy", flush.uncompressed, flush.memcpy, proof=flush.same_raw, target=0.1
            )
    yield _reading(flush.rows, flush.ours(), flush.parquet("zstd"))


class _Flush:
    """The sides of the comparison, for these rows."""

    def __init__(self, rows: pa.Table) -> None:
        self.rows = rows
        self._source = np.frombuffer(rows.combine_chunks().to_batches()[0].serialize(), np.uint8)
        self._target = np.empty_like(self._source)
        self._edges = np.searchsorted(rows["table_id"].to_numpy(), np.arange(TABLES + 1)).tolist()

    def memcpy(self) -> npt.NDArray[np.uint8]:
        np.copyto(self._target, self._source)
        return self._target

    def ours(self) -> _File:
        data, segments = build_committed_file(KEY, [(1, self.rows)], "w")
        return data, segments[1]

    def uncompressed(self) -> _File:
        with patch.object(zstandard, "ZstdCompressor", _Through):
            return self.ours()

    def parquet(self, compression: str) -> bytes:
        sink = pa.BufferOutputStream()
        level = 1 if compression == "zstd" else None
        with pq.ParquetWriter(sink, self.rows.schema, compression=compression, compression_level=level) as writer:
            for first, last in pairwise(self._edges):
                writer.write_table(self.rows.slice(first, last - first))
        data: bytes = sink.getvalue().to_pybytes()
        return data

    def same(self, file: _File, other: bytes) -> bool:
        return _rows_of(file, packed=True).equals(self.rows) and self._holds(other)

    def same_raw(self, file: _File, other: object) -> bool:
        return _rows_of(file, packed=False).equals(self.rows) and (not isinstance(other, bytes) or self._holds(other))

    def _holds(self, parquet: bytes) -> bool:
        return bool(pq.read_table(io.BytesIO(parquet)).cast(COMMITTED).equals(self.rows))


def committed_rows(count: int) -> pa.Table:
    """Rows of all tables in the order of a flush."""
    changes = change_rows(count)
    tables = np.sort(np.random.default_rng(2).integers(0, TABLES, count))
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
        committed_segment = decode_committed_segment(str(KEY), segment.number, data, crc=segment.crc, rows=segment.rows)
        ids = committed_segment["table_id"].to_numpy()
        first, last = np.searchsorted(ids, [table, table + 1]).tolist()
        if store.requests != before + 1:
            raise ValueError(f"{store.requests - before} requests for one table")
        return committed_segment.slice(first, last - first)

    def row_group() -> pa.Table:
        return pq.ParquetFile(pa.BufferReader(parquet)).read_row_group(table)

    def same(a: pa.Table, b: pa.Table) -> bool:
        want = rows.filter(pc.equal(rows["table_id"], table))
        return bool(a.equals(want) and b.cast(COMMITTED).equals(want))

    return compare("flush-tables/read-1-of-1000-vs-parquet", ours, row_group, proof=same, target=8)
