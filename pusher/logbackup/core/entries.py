"""Reads the entries of a log backup slice: records of TiKV's `write` and `default` column families.

    stored bytes -> unpacked, checked -> entries: u32 key size, key, u32 value size, value (little endian)
    key   = memcomparable(user key) + ~timestamp       commit_ts in `write`, start_ts in `default`
    value = in `default` the row; in `write` a record:
            type  start_ts(uvarint)  tags
            P put, D delete         tags v short value, S txn_source, R overlapped rollback, F gc fence, l last change
            L lock, R rollback: nothing changed

- Sizes, checksum, number of entries and timestamps must match the metadata. The upstream's crc64 is not checked: sha256
  covers the same bytes;
- a record's tags end at the first unknown one, as in TiKV;
- the value of a put without a short value is in the default column family (`needs_value`), in any slice;
- an overlapped rollback and its gc fence concern another transaction: the put is unaffected.

Compiled code over whole slices: no Python object per entry. Pure: any bytes give a table, or CorruptObject with
`object`, `offset` (within the unpacked slice, where there is one) and `cause`.
"""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import zstandard

from pusher.core.cdcpb_rows import gathered, wire_uvarint
from pusher.logbackup.core.metadata import Compression, LogSlice
from tistream.codec.compiled import kernel
from tistream.errors import CorruptObject
from tistream.model.arrays import I32, I64, U8, U64
from tistream.model.change import Op

#: versions of a slice of the write column family: puts and deletes, in the slice's order
VERSIONS = pa.schema(
    [
        ("key", pa.binary()),
        ("start_ts", pa.uint64()),
        ("commit_ts", pa.uint64()),
        ("op", pa.uint8()),
        ("value", pa.binary()),  # null for deletes, and if it is in the default column family
        ("needs_value", pa.bool_()),
        ("txn_source", pa.uint64()),
    ]
)
#: rows of a slice of the default column family
VALUES = pa.schema([("key", pa.binary()), ("start_ts", pa.uint64()), ("value", pa.binary())])

_TS_BYTES = 8
_GROUP = 9
_PUT, _DELETE, _LOCK, _ROLLBACK = 80, 68, 76, 82  # P D L R
_SHORT, _SOURCE, _OVERLAPPED, _FENCE, _LAST = 118, 83, 82, 70, 108  # v S R F l
#: rows of `places`
_KEY, _KEY_SIZE, _VALUE, _VALUE_SIZE = range(4)
#: rows of `numbers`
_TYPE, _START_TS, _TXN_SOURCE, _HAS_SHORT = range(4)


def unpack(piece: LogSlice, stored: bytes | memoryview) -> bytes:
    """The entries of a slice, verified by its checksum."""
    if len(stored) != piece.stored_bytes:
        raise _damage(piece, 0, f"{len(stored)} bytes where {piece.stored_bytes} should be")
    data = bytes(stored)
    if piece.compression == Compression.ZSTD:
        try:
            reader = zstandard.ZstdDecompressor().stream_reader(data)
            data = reader.read(piece.entry_bytes + 1)
        except zstandard.ZstdError as e:
            raise _damage(piece, 0, str(e)) from e
    if len(data) != piece.entry_bytes:
        raise _damage(piece, 0, f"{len(data)} unpacked bytes where {piece.entry_bytes} should be")
    if hashlib.sha256(data).digest() != piece.sha256:
        raise _damage(piece, 0, "the checksum does not match")
    return data


def read_versions(piece: LogSlice, entries: bytes, after_ts: int, upto_ts: int) -> pa.RecordBatch:
    """The puts and deletes with commit_ts in (after_ts, upto_ts] of a slice of the write column family."""
    data, places, keys, ts = _entries(piece, entries)
    numbers, short = np.zeros((4, len(ts)), np.uint64), np.zeros((2, len(ts)), np.int64)
    if (bad := int(_records(data, places, numbers, short))) >= 0:
        raise _damage(piece, int(places[_VALUE, bad]), "a write record is damaged")
    put, delete = numbers[_TYPE] == _PUT, numbers[_TYPE] == _DELETE
    at = np.flatnonzero((put | delete) & (ts > np.uint64(after_ts)) & (ts <= np.uint64(upto_ts)))
    put, has_short = put[at], numbers[_HAS_SHORT, at] > 0
    if (swapped := np.flatnonzero(numbers[_START_TS, at] > ts[at])).size:
        raise _damage(piece, int(places[_VALUE, at[swapped[0]]]), "a transaction that commits before it starts")
    columns = {
        "key": keys.take(pa.array(at)),
        "start_ts": pa.array(numbers[_START_TS, at]),
        "commit_ts": pa.array(ts[at]),
        "op": pa.array(np.where(put, np.uint8(Op.PUT), np.uint8(Op.DELETE)), pa.uint8()),
        "value": gathered(data, short[0, at], short[1, at], ~(put & has_short)),
        "needs_value": pa.array(put & ~has_short),
        "txn_source": pa.array(numbers[_TXN_SOURCE, at]),
    }
    return pa.record_batch([columns[name] for name in VERSIONS.names], schema=VERSIONS)


def read_values(piece: LogSlice, entries: bytes) -> pa.RecordBatch:
    """The rows of a slice of the default column family."""
    data, places, keys, ts = _entries(piece, entries)
    values = gathered(data, places[_VALUE], places[_VALUE_SIZE], None)
    return pa.record_batch([keys, pa.array(ts), values], schema=VALUES)


def _entries(piece: LogSlice, entries: bytes) -> tuple[U8, I64, pa.BinaryArray, U64]:
    """The bytes, the offsets of keys and values, the user keys and their timestamps."""
    data = np.frombuffer(entries, np.uint8)
    places = np.zeros((4, piece.entries), np.int64)
    if (bad := int(_scan(data, places))) >= 0:
        raise _damage(piece, bad, "the number of entries differs from the metadata, or one is cut off")
    offsets, ts = np.zeros(piece.entries + 1, np.int32), np.zeros(piece.entries, np.uint64)
    out = np.empty(int(places[_KEY_SIZE].sum()), np.uint8)
    if (bad := int(_keys(data, places, offsets, out, ts))) >= 0:
        raise _damage(piece, int(places[_KEY, bad]), "an invalid key encoding")
    if int(ts.min()) < piece.min_ts or int(ts.max()) > piece.max_ts:
        raise _damage(piece, 0, "a timestamp outside the bounds in the metadata")
    keys = pa.Array.from_buffers(
        pa.binary(), piece.entries, [None, pa.py_buffer(offsets), pa.py_buffer(out[: offsets[-1]])]
    )
    return data, places, keys, ts


def _damage(piece: LogSlice, offset: int, cause: str) -> CorruptObject:
    return CorruptObject(
        f"a slice of the log backup is damaged: {cause}",
        object=piece.object,
        slice_offset=piece.offset,
        offset=offset,
        cause=cause,
    )


@kernel
def _u32(data: U8, at: int) -> int:
    """Little endian; -1 when it is cut off."""
    if at + 4 > len(data):
        return -1
    size = 0
    for i in range(4):
        size |= int(np.int64(data[at + i])) << (8 * i)
    return size


@kernel
def _scan(data: U8, places: I64) -> int:
    """Fill the offset of each key and value. -1, or the offset of the fault: the entries must fill the data exactly."""
    at = 0
    for i in range(places.shape[1]):
        for part in range(2):
            size = _u32(data, at)
            if size < 0 or at + 4 + size > len(data):
                return at
            places[2 * part, i], places[2 * part + 1, i] = at + 4, size
            at += 4 + size
    return -1 if at == len(data) else at


@kernel
def _keys(data: U8, places: I64, offsets: I32, out: U8, ts: U64) -> int:
    """Decode user keys and timestamps. -1, or the index of a damaged entry."""
    end = 0
    for i in range(len(ts)):
        at, size = places[_KEY, i], places[_KEY_SIZE, i]
        body = size - _TS_BYTES
        if body < _GROUP or body % _GROUP:
            return i
        last = at + body - _GROUP
        while at <= last:
            pad = 0xFF - np.int64(data[at + 8])
            if pad > 8 or (pad > 0) != (at == last):
                return i
            for j in range(8):
                if j < 8 - pad:
                    out[end] = data[at + j]
                    end += 1
                elif data[at + j] != 0:
                    return i
            at += _GROUP
        value = np.uint64(0)
        for j in range(_TS_BYTES):
            value = value << np.uint64(8) | np.uint64(data[at + j])
        ts[i] = ~value
        offsets[i + 1] = end
    return -1


@kernel
def _records(data: U8, places: I64, numbers: U64, short: I64) -> int:
    """Parse the write records. -1, or the index of a damaged entry."""
    for i in range(places.shape[1]):
        at, end = places[_VALUE, i], places[_VALUE, i] + places[_VALUE_SIZE, i]
        if at >= end:
            return i
        kind = data[at]
        if kind != _PUT and kind != _DELETE and kind != _LOCK and kind != _ROLLBACK:
            return i
        numbers[_TYPE, i] = kind
        value, at = wire_uvarint(data, at + 1, end)
        if at < 0:
            return i
        numbers[_START_TS, i] = value
        while at < end:
            tag = data[at]
            at += 1
            if tag == _SHORT:
                if at >= end or at + 1 + np.int64(data[at]) > end:
                    return i
                short[0, i], short[1, i] = at + 1, data[at]
                numbers[_HAS_SHORT, i] = 1
                at += 1 + np.int64(data[at])
            elif tag == _SOURCE:
                value, at = wire_uvarint(data, at, end)
                if at < 0:
                    return i
                numbers[_TXN_SOURCE, i] = value
            elif tag in (_FENCE, _LAST):
                at += 8
                if at > end:
                    return i
                if tag == _LAST:
                    value, at = wire_uvarint(data, at, end)
                    if at < 0:
                        return i
            elif tag != _OVERLAPPED:
                break  # of a newer version: skip the rest
    return -1
