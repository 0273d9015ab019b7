"""Row checksums of version 0: over the values of all columns, as TiDB wrote them before it hashed the row's bytes.

The CRC-32 covers the columns in order of their ids, without those that are NULL: integers, YEAR, ENUM, SET, BIT as 8
bytes, floats as the bits of a double (0 for those that are not finite), strings as length and bytes, times, decimals
and JSON as length and text, vectors as they are stored. Columns of the row key take part, those that the row lacks do
not. TiDB adds fraction digits to a time column without rewriting rows, so a time may have been hashed with fewer.

Only a row whose columns are all known can be checked. One that holds a value of a column outside the layout (dropped
since, not yet public, or not asked for), or whose key columns are outside it, is not checked. A row written while
its table was changed has a second checksum, that of the row under the next schema: either may match.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tistream.codec.row import kernel as k
from tistream.codec.row.columns import Cells
from tistream.codec.row.convert import floats
from tistream.codec.row.kernel import Bytes, Int32s, Int64s
from tistream.codec.row.layout import ColumnSpec, Kind, kind_of
from tistream.codec.row.text import text

_GUESSES_MAX = 4096  # checksums that are tried for one row; TIME(6) 00:00:00 alone can have been written in 7 ways
_EXTRA = 8  # bit of the trailer's first byte: a second checksum follows


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The rows that have a checksum of version 0 and can be checked."""

    rows: Int64s  #: ascending
    held: npt.NDArray[np.bool_]  #: (columns, rows here): the row or its key holds the column; else it has its default


def claims_of(data: Bytes, offsets: Int32s, trailer: Int32s, length: Int32s, handles: Sequence[int]) -> Claims:
    """Call after the rows are located and before missing cells are filled.

    `handles` are the indexes of the columns in the row key, ABSENT for those outside the layout.
    """
    rows = np.flatnonzero(trailer >= 0) if k.ABSENT not in handles else np.empty(0, np.int64)
    rows = rows[data[trailer[rows]] & 7 == 0]
    start = offsets[rows].astype(np.int64)
    filled = data[start + 2] + data[start + 3].astype(np.int64) * 256
    rows = rows[(length[:, rows] >= 0).sum(axis=0) == filled]  # ids are unique, so none is unknown
    held = length[:, rows] != k.MISSING
    held[[c for c in handles if c >= 0]] = True
    return Claims(rows=rows, held=held)


def verify_columns(
    columns: Sequence[ColumnSpec], arrays: Sequence[pa.Array], cells: Cells, claims: Claims, trailer: Int32s
) -> None:
    """Fail the rows whose checksums (at `trailer` in the buffer) do not match. `arrays` are the decoded columns.

    A Python object per cell is affordable: only old clusters with checksums enabled write this version.
    """
    good = cells.fault[0, claims.rows] == 0
    rows, held = claims.rows[good], claims.held[:, good]
    sums = [{0} for _ in rows]
    for c in sorted(range(len(columns)), key=lambda c: columns[c].id):
        part = np.flatnonzero(held[c] & (cells.length[c, rows] >= 0))
        shorter = kind_of(columns[c]) in (Kind.TIME, Kind.DURATION)
        for i, piece in zip(part.tolist(), _pieces(columns[c], arrays[c], cells, c, rows[part]), strict=True):
            forms = _with_fewer_digits(piece) if shorter else [piece]
            if len(sums[i]) * len(forms) > _GUESSES_MAX:
                forms = forms[:1]
            sums[i] = {zlib.crc32(form, crc) for form in forms for crc in sums[i]}
    for row, at, found in zip(rows.tolist(), trailer[rows].tolist(), sums, strict=True):
        stored = cells.data[at + 1 : at + (9 if cells.data[at] & _EXTRA else 5)].tobytes()
        if not found.intersection(np.frombuffer(stored, "<u4").tolist()):
            cells.fault[:, row] = k.CHECKSUM, -1, at


def _pieces(column: ColumnSpec, array: pa.Array, cells: Cells, c: int, rows: Int64s) -> Iterable[bytes]:
    """The bytes that a column adds to the checksums of the rows, all of them not NULL there."""
    match kind_of(column):
        case Kind.SIGNED | Kind.UNSIGNED | Kind.YEAR | Kind.BIT | Kind.ENUM | Kind.SET as kind:
            numbers = array.take(pa.array(rows)).cast(pa.int64() if kind is Kind.SIGNED else pa.uint64())
            return _eights(numbers.to_numpy())
        case Kind.FLOAT | Kind.DOUBLE:
            bits = np.empty(cells.length.shape[1], np.uint64)  # again from the cells: a FLOAT is stored as a double
            floats(cells.data, cells.position, cells.length, c, cells.fault, bits)
            kept = bits[rows]
            return _eights(np.where(np.isfinite(kept.view(np.float64)), kept, np.uint64(0)))
        case Kind.TEXT | Kind.BINARY | Kind.UNKNOWN:
            return map(_with_length, _stored(cells, c, rows, 0))
        case Kind.VECTOR:
            return _stored(cells, c, rows, 4)  # converting moved the cells behind the count
        case Kind.TIME | Kind.DURATION | Kind.DECIMAL | Kind.JSON:
            shown = text(column, array.take(pa.array(rows))).cast(pa.binary())
            return map(_with_length, shown.to_pylist())


def _with_fewer_digits(piece: bytes) -> list[bytes]:
    """A time (length and text) and its shorter forms of the same value: 1.20 is 1.2, too."""
    shown = [piece[4:]]
    while b"." in shown[-1] and shown[-1].endswith(b"0"):
        shown.append(shown[-1][:-1].removesuffix(b"."))
    return [_with_length(form) for form in shown]


def _eights(numbers: npt.NDArray[np.generic]) -> list[bytes]:
    raw = numbers.astype(numbers.dtype.newbyteorder("<")).tobytes()
    return [raw[at : at + 8] for at in range(0, len(raw), 8)]


def _stored(cells: Cells, c: int, rows: Int64s, before: int) -> list[bytes]:
    """Bytes of the cells, and those `before` each."""
    starts, sizes = cells.position[c, rows].tolist(), cells.length[c, rows].tolist()
    return [cells.data[at - before : at + size].tobytes() for at, size in zip(starts, sizes, strict=True)]


def _with_length(raw: bytes) -> bytes:
    return len(raw).to_bytes(4, "little") + raw
