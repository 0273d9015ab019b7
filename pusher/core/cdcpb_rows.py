"""Decodes the entries of a change feed event (`cdcpb.Event.Entries`) into columns of change.ROWS.

- A row of kind UNKNOWN is not a change and is skipped (TiKV sends an empty one for each lock-only record);
- INITIALIZED is not a row but is reported separately;
- an impossible kind, op, commit_ts or key is damage: an unknown change is never skipped. Unknown fields are;
- `value` is null for a DELETE, a ROLLBACK (TiKV sends a mark with protected ones) and a COMMIT without one; a PUT
  without a value has the empty value. An empty old value means that the key did not exist.

Compiled code passes over the bytes twice, to count rows and then to fill number columns and byte offsets; then the
binary columns are gathered. No Python object per row. Pure.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tistream.codec.compiled import kernel
from tistream.errors import CorruptObject
from tistream.model.arrays import I64, U8, U64
from tistream.model.change import ROWS, Op, RowKind

_INITIALIZED = 5

#: rows of the scan's `numbers`, and the columns that they become
_NUMBERS = ("kind", "op", "start_ts", "commit_ts", "generation", "expire_ts")
_KIND, _OP, _START_TS, _COMMIT_TS, _GENERATION, _EXPIRE_TS = range(len(_NUMBERS))
#: rows of the scan's `places`, and the columns that they become
_BINARY = ("key", "value", "old_value")
_KEY, _VALUE, _OLD_VALUE = range(len(_BINARY))

#: cdcpb.Event.Row: the row of `numbers` or `places` that each field number fills; -1 = none
_NUMBER_OF = np.array([-1, _START_TS, _COMMIT_TS, _KIND, _OP, -1, -1, -1, _EXPIRE_TS, -1, _GENERATION], np.int64)
_PLACE_OF = np.array([-1, -1, -1, -1, -1, _KEY, _VALUE, _OLD_VALUE, -1, -1, -1], np.int64)


def read_entries(entries: bytes) -> tuple[pa.RecordBatch, bool]:
    """The changes in their order, and whether INITIALIZED was among them. CorruptObject when the bytes are damaged."""
    data = np.frombuffer(entries, np.uint8)
    count = int(_scan(data, np.zeros((len(_NUMBERS), 0), np.uint64), np.zeros((len(_BINARY), 2, 0), np.int64)))
    numbers, places = np.zeros((len(_NUMBERS), max(count, 0)), np.uint64), np.zeros((3, 2, max(count, 0)), np.int64)
    count_of = count if count <= 0 else int(_scan(data, numbers, places))
    if count_of < 0:
        raise CorruptObject("the entries of a change feed event are damaged", offset=-count_of - 1)
    changes = np.flatnonzero((numbers[_KIND] != 0) & (numbers[_KIND] != _INITIALIZED))
    initialized = bool((numbers[_KIND] == _INITIALIZED).any())
    numbers, places = np.ascontiguousarray(numbers[:, changes]), np.ascontiguousarray(places[:, :, changes])
    _check(numbers, places)
    op, commit = numbers[_OP], numbers[_KIND] == RowKind.COMMIT
    sizes = places[:, 1]
    absent = {_VALUE: (op != np.uint64(Op.PUT)) | (commit & (sizes[_VALUE] == 0)), _OLD_VALUE: sizes[_OLD_VALUE] == 0}
    columns = {name: _narrow(numbers[i], ROWS.field(name).type) for i, name in enumerate(_NUMBERS)}
    columns |= {name: gathered(data, places[i, 0], sizes[i], absent.get(i)) for i, name in enumerate(_BINARY)}
    columns["flags"] = pa.array(np.zeros(len(changes), np.uint8))
    return pa.record_batch([columns[name] for name in ROWS.names], schema=ROWS), initialized


def _check(numbers: U64, places: I64) -> None:
    """Reject impossible values."""
    kind, op = numbers[_KIND], numbers[_OP]
    decided = (kind == RowKind.COMMIT) | (kind == RowKind.COMMITTED)
    faults = {
        "an unknown kind": kind > max(RowKind),
        "an unknown op": np.where(kind == RowKind.ROLLBACK, op != 0, (op != Op.PUT) & (op != Op.DELETE)),
        "a commit_ts that does not fit its kind": decided != (numbers[_COMMIT_TS] > 0),
        "no key": places[_KEY, 1] == 0,
    }
    if not np.logical_or.reduce(list(faults.values())).any():
        return
    what, bad = next((what, bad) for what, bad in faults.items() if bad.any())
    at = int(bad.argmax())
    values = {name: int(numbers[i, at]) for i, name in enumerate(_NUMBERS)}
    raise CorruptObject(f"a row of the change feed has {what}", row=at, **values)


def _narrow(numbers: U64, kind: pa.DataType) -> pa.Array:
    return pa.array(numbers.astype(kind.to_pandas_dtype()), kind)


def gathered(data: U8, starts: I64, sizes: I64, absent: npt.NDArray[np.bool_] | None) -> pa.Array:
    """Slices of the data as a binary column; null where `absent`."""
    if absent is not None:
        sizes = np.where(absent, 0, sizes)
    offsets = np.zeros(len(sizes) + 1, np.int32)
    np.cumsum(sizes, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    _copy(data, np.ascontiguousarray(starts), offsets, out)
    valid = None if absent is None else pa.py_buffer(np.packbits(~absent, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(sizes), [valid, pa.py_buffer(offsets), pa.py_buffer(out)])


@kernel
def _copy(data: U8, starts: I64, offsets: npt.NDArray[np.int32], out: U8) -> None:
    for i in range(len(starts)):
        size = offsets[i + 1] - offsets[i]
        out[offsets[i] : offsets[i + 1]] = data[starts[i] : starts[i] + size]


@kernel
def wire_uvarint(data: U8, at: int, end: int) -> tuple[np.uint64, int]:
    """The number at `at` and the offset after it; offset -1 when it is cut off or overflows."""
    value = np.uint64(0)
    for i in range(10):
        if at + i >= end:
            break
        octet = data[at + i]
        if i == 9 and octet > 1:
            break
        value |= np.uint64(octet & 0x7F) << np.uint64(7 * i)
        if octet < 0x80:
            return value, at + i + 1
    return value, -1


@kernel
def wire_field(data: U8, at: int, end: int) -> tuple[int, int, np.uint64, int]:
    """(number, wire type, value or size, offset of the body, or after a number); offset -1 = damage.

    The body of a sized field lies within [at, end)."""
    tag, body = wire_uvarint(data, at, end)
    number, wire, value = int(tag >> np.uint64(3)), int(tag & np.uint64(7)), np.uint64(0)
    if number == 0 or number >= 1 << 29:
        body = -1
    if body >= 0:
        if wire == 0 or wire == 2:
            value, body = wire_uvarint(data, body, end)
            if wire == 2 and value > np.uint64(max(0, end - body)):
                body = -1
        elif wire == 1 or wire == 5:
            body += 8 if wire == 1 else 4
            if body > end:
                body = -1
        else:
            body = -1
    return number, wire, value, body


@kernel
def _scan(data: U8, numbers: U64, places: I64) -> int:
    """Fill a column per row and return the number of rows; only count when the arrays are empty. -1 - offset:
    damage."""
    at = 0
    row = 0
    end = len(data)
    fill = numbers.shape[1] > 0
    while at < end:
        number, wire, size, body = wire_field(data, at, end)
        if body < 0 or (number == 1 and wire != 2):
            return -1 - at
        after = body + int(size) if wire == 2 else body
        if number == 1:
            if fill:
                bad = _scan_row(data, body, after, row, numbers, places)
                if bad >= 0:
                    return -1 - bad
            row += 1
        at = after
    return row


@kernel
def _scan_row(data: U8, start: int, end: int, row: int, numbers: U64, places: I64) -> int:
    """Fill one column from the row at [start, end). -1, or the offset of the damage."""
    at = start
    while at < end:
        number, wire, value, body = wire_field(data, at, end)
        if body < 0:
            return at
        if number < len(_NUMBER_OF):
            if _NUMBER_OF[number] >= 0:
                if wire != 0:
                    return at
                numbers[_NUMBER_OF[number], row] = value
            elif _PLACE_OF[number] >= 0:
                if wire != 2:
                    return at
                places[_PLACE_OF[number], 0, row] = body
                places[_PLACE_OF[number], 1, row] = int(value)
        at = body + int(value) if wire == 2 else body
    return -1
