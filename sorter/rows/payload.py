"""Bytes of buffered rows: keys, values and old values, which stay where they arrived until they are written.

A `Segment` is an immutable block of them (a feed batch, or merged rows); `RowRefs` name rows in one or more segments.
Only `RowRefs.column` copies: it lays out the named rows, in order, as one Arrow column.

A segment is validated once, when it is made: every offset lies inside its bytes. From then on compiled loops may read
it by address, for as long as the segment is alive.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from sorter.rows.kernels import (
    Addresses,
    add_sizes,
    copy_rows,
    hash_keys,
    mix,
    offsets_are_sound,
    rows_are_inside,
    sizes_of,
)
from sorter.rows.key_kernels import tables_of_keys
from tistream.errors import CorruptObject, invariant
from tistream.model.arrays import I64, U8, U32, U64, Mask

COLUMN_BYTES_MAX = (1 << 31) - 1  #: of one binary array: Arrow's offsets are 32 bits
HASH_MASK = (1 << 64) - 1  #: tests shorten hashes to get collisions

Name = Literal["key", "value", "old_value"]


class _Column:
    """One Arrow binary column: its addresses, and the objects that keep them valid."""

    __slots__ = ("array", "data", "offsets", "present", "valid")

    def __init__(self, array: pa.BinaryArray) -> None:
        if not len(array):
            array = pa.array([b""], pa.binary())
        self.array = array
        _, offsets, data = array.buffers()
        self.present: U8 | None = None
        if array.null_count:
            self.present = np.ascontiguousarray(array.is_valid().to_numpy(zero_copy_only=False)).view(np.uint8)
        bounds = np.frombuffer(offsets, np.int32)[array.offset : array.offset + len(array) + 1]
        bounds.flags.writeable = False
        if not offsets_are_sound(bounds, 0 if data is None else data.size):
            raise CorruptObject("an offset of a binary column points outside its bytes")
        self.offsets = offsets.address + 4 * array.offset
        self.data = 0 if data is None else data.address
        self.valid = 0 if self.present is None else self.present.ctypes.data


class Segment:
    """A block of rows' bytes. The three columns have the same length; a column of nulls may be left out."""

    __slots__ = ("__weakref__", "columns", "nbytes", "on_disk", "rows")

    def __init__(
        self,
        key: pa.Array,
        value: pa.Array | None = None,
        old_value: pa.Array | None = None,
        *,
        on_disk: bool = False,
    ) -> None:
        self.rows = len(key)
        self.on_disk = on_disk  #: its bytes are mapped, so the system can reclaim them
        arrays = {"key": key, "value": value, "old_value": old_value}
        self.columns = {
            name: _Column(array)
            for name, array in arrays.items()
            if array is not None and (name == "key" or array.null_count < len(array))
        }
        self.nbytes = sum(int(array.nbytes) for array in arrays.values() if array is not None)

    @property
    def memory_bytes(self) -> int:
        return 0 if self.on_disk else self.nbytes

    @property
    def disk_bytes(self) -> int:
        return self.nbytes if self.on_disk else 0

    def in_memory(self) -> list[pa.RecordBatch]:
        if self.on_disk or not self.rows:
            return []
        return [pa.RecordBatch.from_pydict({name: column.array for name, column in self.columns.items()})]

    def spilled(self, written: Sequence[pa.RecordBatch]) -> Segment:
        """The same rows, with the columns of `in_memory` replaced by the written ones."""
        (batch,) = written
        return Segment(**{name: batch.column(name) for name in batch.schema.names}, on_disk=True)


def columns_of(batch: pa.RecordBatch) -> dict[str, _Column]:
    return {name: _Column(batch.column(name)) for name in batch.schema.names}


@dataclass(frozen=True, slots=True)
class _Pointers:
    offsets: U64
    data: U64
    valid: U64


class RowRefs:
    """Where rows lie: for each its segment (an index into `segments`) and its number there."""

    __slots__ = ("_found", "row", "segment", "segments")

    def __init__(self, segments: Sequence[Segment], segment: U32 | None, row: U32) -> None:
        self.segments = tuple(segments)
        self.segment = np.zeros(len(row), np.uint32) if segment is None else segment
        self.row = row
        self._found: dict[Name, _Pointers] = {}  # of the segments; shared by those with the same segments
        counts = np.array([s.rows for s in self.segments], np.int64)
        invariant(rows_are_inside(self.segment, self.row, counts), "a row lies outside its segment")

    @classmethod
    def whole(cls, segment: Segment) -> RowRefs:
        return cls((segment,), None, np.arange(segment.rows, dtype=np.uint32))

    def __len__(self) -> int:
        return len(self.row)

    def take(self, at: npt.NDArray[np.integer] | Mask) -> RowRefs:
        """Some of the rows, in the given order."""
        made = object.__new__(RowRefs)
        made.segments, made._found = self.segments, self._found
        made.row = self.row[at]
        made.segment = self.segment[at] if len(self.segments) > 1 else np.zeros(len(made.row), np.uint32)
        return made

    @property
    def addresses(self) -> Addresses:
        pointers = self._pointers("key")
        return pointers.offsets, pointers.data, self.segment, self.row

    def hashes(self) -> U64:
        offsets, data, segment, row = self.addresses
        out: U64 = hash_keys(offsets, data, segment, row)
        return out

    def sizes(self, op_puts: Mask) -> I64:
        """Bytes of key, value and old value of each row; the value counts for PUTs only."""
        out, none = np.zeros(len(self), np.int64), np.zeros(len(self), np.bool_)
        columns: tuple[tuple[Name, Mask], ...] = (("key", none), ("value", ~op_puts), ("old_value", none))
        for name, nulls in columns:
            p = self._pointers(name)
            if p.offsets.any():
                add_sizes(p.offsets, p.data, p.valid, self.segment, self.row, nulls, out)
        return out

    def tables(self) -> I64:
        """The physical table of each key, 0 if none."""
        out: I64 = tables_of_keys(self.addresses)
        return out

    def column(self, name: Name, nulls: Mask | None = None, *, empty_for_null: bool = False) -> pa.BinaryArray:
        """The rows' bytes as one column, up to COLUMN_BYTES_MAX. Rows in `nulls` are null; other nulls stay null
        or, with `empty_for_null`, become empty."""
        ends, present = self.layout(name, nulls)
        invariant(int(ends[-1]) <= COLUMN_BYTES_MAX, "a column grows beyond its offsets", bytes=int(ends[-1]))
        return self._laid_out(name, ends, present, nulls, empty_for_null=empty_for_null)

    def series(self, name: Name, nulls: Mask | None = None, *, empty_for_null: bool = False) -> pl.Series:
        """As `column`, for polars and of any size: the rows of many runs together exceed one Arrow array."""
        ends, present = self.layout(name, nulls)
        if int(ends[-1]) <= COLUMN_BYTES_MAX:
            series = [self._laid_out(name, ends, present, nulls, empty_for_null=empty_for_null)]
        else:
            parts = [np.arange(low, high) for low, high in _fitting_one_array(ends)]
            series = [
                self.take(at).column(name, None if nulls is None else nulls[at], empty_for_null=empty_for_null)
                for at in parts
            ]
        return pl.Series(name, pl.from_arrow(pa.chunked_array(series, pa.binary())), dtype=pl.Binary)

    def layout(self, name: Name, nulls: Mask | None = None) -> tuple[I64, U8]:
        """(bounds of the concatenated rows, a byte per row: 1 if it has a value)."""
        pointers = self._pointers(name)
        if not pointers.offsets.all():  # a segment without this column: all of its rows are null
            without = (pointers.offsets == 0)[self.segment]
            nulls = without if nulls is None else nulls | without
        none = np.zeros(len(self), np.bool_) if nulls is None else nulls
        sizes: tuple[I64, U8] = sizes_of(pointers.offsets, pointers.data, pointers.valid, self.segment, self.row, none)
        return sizes

    def _laid_out(
        self, name: Name, ends: I64, present: U8, nulls: Mask | None, *, empty_for_null: bool
    ) -> pa.BinaryArray:
        out = pa.allocate_buffer(int(ends[-1]))  # from Arrow's pool, which gives large pieces back
        pointers = self._pointers(name)
        copy_rows(pointers.offsets, pointers.data, self.segment, self.row, ends, np.frombuffer(out, np.uint8))
        if empty_for_null:
            present = np.ones(len(self), np.uint8) if nulls is None else (~nulls).view(np.uint8)
        valid = None
        if not present.all():
            valid = pa.py_buffer(np.packbits(present, bitorder="little"))
        buffers = [valid, pa.py_buffer(ends.astype(np.int32)), out]
        return pa.BinaryArray.from_buffers(pa.binary(), len(self), buffers)

    def _pointers(self, name: Name) -> _Pointers:
        pointers = self._found.get(name)
        if pointers is None:
            columns = [s.columns.get(name) for s in self.segments]
            of = [(c.offsets, c.data, c.valid) if c is not None else (0, 0, 0) for c in columns]
            offsets, data, valid = np.ascontiguousarray(np.array(of, np.uint64).reshape(-1, 3).T)
            pointers = self._found[name] = _Pointers(offsets, data, valid)
        return pointers


def _fitting_one_array(ends: I64) -> Iterator[tuple[int, int]]:
    """Where rows are cut so that each part fits one Arrow array; `ends` are the bounds of their bytes. A single row
    always fits: it came in one."""
    low, last = 0, len(ends) - 1
    while low < last:
        high = int(np.searchsorted(ends, ends[low] + COLUMN_BYTES_MAX, side="right")) - 1
        high = max(high, low + 1)
        yield low, high
        low = high


def stacked(parts: Sequence[RowRefs]) -> RowRefs:
    if len(parts) == 1:
        return parts[0]
    number: dict[int, int] = {}
    segments: list[Segment] = []
    for segment in (s for refs in parts for s in refs.segments):
        if id(segment) not in number:
            number[id(segment)] = len(segments)
            segments.append(segment)
    renumbered = []
    for refs in parts:
        new = np.array([number[id(s)] for s in refs.segments], np.uint32)
        renumbered.append(new[refs.segment] if len(refs) else refs.segment)
    none = np.empty(0, np.uint32)
    return RowRefs(segments, np.concatenate([none, *renumbered]), np.concatenate([none, *(p.row for p in parts)]))


def used_segments(refs: RowRefs) -> RowRefs:
    if len(refs.segments) < 2:
        return refs
    used, segment = np.unique(refs.segment, return_inverse=True)
    if len(used) == len(refs.segments):
        return refs
    return RowRefs([refs.segments[i] for i in used], segment.astype(np.uint32), refs.row)


def segment_of(frame: pl.DataFrame) -> Segment:
    """The bytes of a frame's rows, which together fit one Arrow column each."""
    named = [name for name in ("key", "value", "old_value") if name in frame.columns]
    return Segment(**{name: as_binary(frame[name]) for name in named})


def as_binary(series: pl.Series) -> pa.BinaryArray:
    """A polars column of bytes as one Arrow array, up to COLUMN_BYTES_MAX."""
    size = int(series.bin.size().cast(pl.UInt64).sum())
    invariant(size <= COLUMN_BYTES_MAX, "a column grows beyond its offsets", bytes=size)
    column = series.to_frame().to_arrow().column(0).cast(pa.binary()).combine_chunks()
    if not isinstance(column, pa.ChunkedArray):
        return column
    return column.chunk(0) if column.num_chunks else pa.array([], pa.binary())


def mixed(hashes: U64, ts: U64) -> U64:
    out: U64 = mix(hashes, ts, np.uint64(HASH_MASK))
    return out
