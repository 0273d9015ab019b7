"""Row checksums: the trailer that TiDB writes when row level checksums are on.

Version 2 covers the row bytes, the trailer's header byte and the handle; version 1 the record key in place of the
handle, though some writers of version 1 hashed the handle too, so either is accepted.

The trailer has room for a second checksum. It belongs to version 0, where it is that of the columns of another schema;
TiDB clears its bit when it writes versions 1 and 2, whose checksum is of bytes and needs no schema. A row that has one
must still match the first, which covers the trailer's header byte with that bit; the second cannot be checked.

Version 0 is over the values of all columns, as TiDB wrote them before it hashed the row's bytes.

The CRC-32 covers the columns in order of their ids, without those that are NULL: integers, YEAR, ENUM, SET, BIT as 8
bytes, floats as the bits of a double (0 for those that are not finite), strings as length and bytes, times, decimals
and JSON as length and text, vectors as they are stored. Columns of the row key take part, those that the row lacks do
not. TiDB adds fraction digits to a time column without rewriting rows, so a time may have been hashed with fewer.

A TIMESTAMP was hashed as the text of the session's time zone, which no row tells. A row that does not match in UTC is
tried in all offsets of whole quarters of an hour, first in those that others of the batch were written in. With summer
time its TIMESTAMPs may differ by an hour. So damage that moves a TIMESTAMP by whole quarters is not found.

Only a row whose columns are all known can be checked. One that holds a value of a column outside the layout (dropped
since, not yet public, or not asked for), or whose key columns are outside it, is not checked. A row written while
its table was changed has a second checksum, that of the row under the next schema: either may match.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tistream.codec.compiled import kernel
from tistream.codec.row import kernel as k
from tistream.codec.row.columns import Cells
from tistream.codec.row.convert import floats
from tistream.codec.row.handle import PREFIX_SIZE
from tistream.codec.row.kernel import Number
from tistream.codec.row.layout import TIMESTAMP, ColumnSpec, ValueKind, kind_of
from tistream.codec.row.text import text
from tistream.model.arrays import I32, I64, U8


def _table() -> U8:
    """The CRC-32 of each byte, without the inversions that zlib adds."""
    return np.array([zlib.crc32(bytes([byte]), 0xFFFFFFFF) ^ 0xFFFFFFFF for byte in range(256)], np.uint32)


_TABLE = _table()


@kernel
def _update(crc: Number, data: U8, start: Number, end: Number) -> Number:
    state = np.uint32(crc)
    for at in range(start, end):
        state = _TABLE[(state ^ np.uint32(data[at])) & np.uint32(0xFF)] ^ (state >> np.uint32(8))
    return state


@kernel
def verify(data: U8, offsets: I32, keys: U8, key_offsets: I32, trailer: I32, length: I32, fault: I32) -> None:
    """Fail the rows whose checksum (at `trailer`, else -1) does not match."""
    full = np.uint32(0xFFFFFFFF)
    for row in range(len(trailer)):
        at = np.int64(trailer[row])
        if at < 0 or data[at] & 7 == 0:
            continue
        start, end = np.int64(key_offsets[row]), np.int64(key_offsets[row + 1])
        stored = np.uint32(k.little_endian(data, at + 1, 4))
        body = _update(full, data, np.int64(offsets[row]), at + 1)
        matches = _update(body, keys, min(start + PREFIX_SIZE, end), end) ^ full == stored
        if not matches and data[at] & 7 == 1:
            matches = _update(body, keys, start, end) ^ full == stored
        if not matches:
            k.fail(fault, length, row, k.CHECKSUM, -1, at)


_GUESSES_MAX = 4096  # checksums that are tried for one row; TIME(6) 00:00:00 alone can have been written in 7 ways
_OFFSET_GUESSES_MAX = 81  # of one row in one offset
_EFFORT_MAX = 1 << 28  # bytes hashed to find offsets in a batch; each guess counts as some bytes more
_GUESS_EFFORT = 1024
_EXTRA = 8  # bit of the trailer's first byte: a second checksum follows


_Piece = tuple[bytes, ColumnSpec]  # what a column adds to the checksum of a row


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """The rows that have a checksum of version 0 and can be checked."""

    rows: I64  #: ascending
    held: npt.NDArray[np.bool_]  #: (columns, rows here): the row or its key holds the column; else it has its default


def claims_of(data: U8, offsets: I32, trailer: I32, length: I32, handles: Sequence[int]) -> Claims:
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
    columns: Sequence[ColumnSpec], arrays: Sequence[pa.Array], cells: Cells, claims: Claims, trailer: I32
) -> None:
    """Fail the rows whose checksums (at `trailer` in the buffer) do not match. `arrays` are the decoded columns.

    A Python object per cell is affordable: only old clusters with checksums enabled write this version.
    """
    good = cells.fault[0, claims.rows] == 0
    rows, held = claims.rows[good], claims.held[:, good]
    sums = [{0} for _ in rows]
    for c in sorted(range(len(columns)), key=lambda c: columns[c].id):
        part = np.flatnonzero(held[c] & (cells.length[c, rows] >= 0))
        shorter = kind_of(columns[c]) in (ValueKind.TIME, ValueKind.DURATION)
        for i, piece in zip(part.tolist(), _pieces(columns[c], arrays[c], cells, c, rows[part]), strict=True):
            forms = _with_fewer_digits(piece) if shorter else [piece]
            if len(sums[i]) * len(forms) > _GUESSES_MAX:
                forms = forms[:1]
            sums[i] = {zlib.crc32(form, crc) for form in forms for crc in sums[i]}
    failed, wanted = list[int](), list[list[int]]()
    for i, (at, actual) in enumerate(zip(trailer[rows].tolist(), sums, strict=True)):
        stored = cells.data[at + 1 : at + (9 if cells.data[at] & _EXTRA else 5)].tobytes()
        if actual.isdisjoint(made := np.frombuffer(stored, "<u4").tolist()):
            failed.append(i)
            wanted.append(made)
    if not failed:
        return
    offsets, parts = _Offsets(), _of_rows(columns, arrays, cells, rows[failed], held[:, failed])
    for i, pieces, made in zip(failed, parts, wanted, strict=True):
        if not offsets.fit(pieces, made):
            cells.fault[:, rows[i]] = k.CHECKSUM, -1, trailer[rows[i]]


def _of_rows(
    columns: Sequence[ColumnSpec], arrays: Sequence[pa.Array], cells: Cells, rows: I64, held: npt.NDArray[np.bool_]
) -> list[list[_Piece]]:
    """The pieces of each row, in the order of the columns' ids."""
    pieces: list[list[_Piece]] = [[] for _ in rows]
    for c in sorted(range(len(columns)), key=lambda c: columns[c].id):
        part = np.flatnonzero(held[c] & (cells.length[c, rows] >= 0))
        for i, piece in zip(part.tolist(), _pieces(columns[c], arrays[c], cells, c, rows[part]), strict=True):
            pieces[i].append((piece, columns[c]))
    return pieces


class _Offsets:
    """The offsets from UTC in which rows of a batch were written."""

    def __init__(self) -> None:
        self._order = sorted(range(-14 * 60, 14 * 60 + 1, 15), key=abs)  # minutes; those that were found are first
        self._found = 0
        self._effort = 0

    def fit(self, pieces: Sequence[_Piece], wanted: Sequence[int]) -> bool:
        """Whether the row has one of these checksums in some offset."""
        if all(column.tp != TIMESTAMP for _, column in pieces):
            return False
        size = _GUESS_EFFORT + sum(len(piece) for piece, _ in pieces)
        for n, minutes in enumerate(self._order):
            if n >= self._found and self._effort > _EFFORT_MAX:
                return False
            sums = _sums(pieces, minutes)
            self._effort += size * len(sums)
            if not sums.isdisjoint(wanted):
                self._order.insert(0, self._order.pop(n))
                self._found += n >= self._found
                return True
        return False


def _sums(pieces: Sequence[_Piece], minutes: int) -> set[int]:
    """The checksums of a row that was written at this offset."""
    possible, shifts = {0}, [minutes]
    for piece, column in pieces:
        forms = [piece]
        if column.tp == TIMESTAMP:
            forms = [_moved(piece, each) for each in shifts]
            shifts = [minutes, minutes - 60, minutes + 60]  # the others may be in the other half of the year
        if kind_of(column) in (ValueKind.TIME, ValueKind.DURATION):
            forms = [shorter for form in forms for shorter in _with_fewer_digits(form)]
        if len(possible) * len(forms) > _OFFSET_GUESSES_MAX:
            forms = forms[:1]
        possible = {zlib.crc32(form, crc) for form in forms for crc in possible}
    return possible


def _moved(piece: bytes, minutes: int) -> bytes:
    """Shift an encoded time (length and text) by minutes. Zero dates and other invalid dates stay as they are."""
    try:
        moved = datetime.fromisoformat(piece[4:23].decode()) + timedelta(minutes=minutes)
    except (ValueError, OverflowError):
        return piece
    return _with_length(moved.isoformat(sep=" ").encode() + piece[23:])


def _pieces(column: ColumnSpec, array: pa.Array, cells: Cells, c: int, rows: I64) -> Iterable[bytes]:
    """The bytes that a column adds to the checksums of the rows, all of them not NULL there."""
    match kind_of(column):
        case (
            ValueKind.SIGNED
            | ValueKind.UNSIGNED
            | ValueKind.YEAR
            | ValueKind.BIT
            | ValueKind.ENUM
            | ValueKind.SET as kind
        ):
            numbers = array.take(pa.array(rows)).cast(pa.int64() if kind is ValueKind.SIGNED else pa.uint64())
            return _eights(numbers.to_numpy())
        case ValueKind.FLOAT | ValueKind.DOUBLE:
            bits = np.empty(cells.length.shape[1], np.uint64)  # again from the cells: a FLOAT is stored as a double
            floats(cells.data, cells.position, cells.length, c, cells.fault, bits)
            kept = bits[rows]
            return _eights(np.where(np.isfinite(kept.view(np.float64)), kept, np.uint64(0)))
        case ValueKind.TEXT | ValueKind.BINARY | ValueKind.UNKNOWN:
            return map(_with_length, _stored(cells, c, rows, 0))
        case ValueKind.VECTOR:
            return _stored(cells, c, rows, 4)  # converting moved the cells behind the count
        case ValueKind.TIME | ValueKind.DURATION | ValueKind.DECIMAL | ValueKind.JSON:
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


def _stored(cells: Cells, c: int, rows: I64, before: int) -> list[bytes]:
    """Bytes of the cells, and those `before` each."""
    starts, sizes = cells.position[c, rows].tolist(), cells.length[c, rows].tolist()
    return [cells.data[at - before : at + size].tobytes() for at, size in zip(starts, sizes, strict=True)]


def _with_length(raw: bytes) -> bytes:
    return len(raw).to_bytes(4, "little") + raw
