"""Keys of API V2: a mode, a keyspace and the user's key; stored, in a form that sorts, with the timestamp of the write.

    on the wire    mode byte, keyspace id (3 bytes big endian), user key      r{000001}k1
    stored         memcomparable(key on the wire), then ~timestamp (8 bytes big endian): the newest version is first

Only the stored form has a timestamp. Keys of TiDB without a keyspace begin with `m` or `t` and have none of both.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tistream.codec.binary import Mask, array_of, flat, kept
from tistream.errors import DecodeError, InvalidInput
from tistream.keyrange import KeyRange, prefix_range

KEYSPACE_ID_MAX = 0xFF_FFFF
PREFIX_BYTES = 4  # mode and keyspace id
_GROUP = 8
_TS_BYTES = 8
Timestamps = npt.NDArray[np.uint64]


class KeyMode(Enum):
    """Whose data a key belongs to; the value is its first byte."""

    RAW = b"r"
    TXN = b"x"


def keyspace_prefix(mode: KeyMode, keyspace_id: int) -> bytes:
    """The first four bytes of each key of the keyspace on the wire. InvalidInput when there is no such id."""
    if not 0 <= keyspace_id <= KEYSPACE_ID_MAX:
        raise InvalidInput(
            f"{keyspace_id} is not the id of a keyspace: 0 to {KEYSPACE_ID_MAX}", keyspace_id=keyspace_id
        )
    return mode.value + keyspace_id.to_bytes(PREFIX_BYTES - 1, "big")


def keyspace_range(mode: KeyMode, keyspace_id: int) -> KeyRange:
    """All keys of the keyspace on the wire."""
    return prefix_range(keyspace_prefix(mode, keyspace_id))


def user_keys(keys: pa.BinaryArray) -> pa.BinaryArray:
    """Keys on the wire without mode and keyspace. DecodeError with `index` of the first that has none."""
    bounds, data = flat(keys)
    short = np.diff(bounds) < PREFIX_BYTES
    if short.any():
        raise DecodeError("A key has no mode and keyspace.", index=int(np.argmax(short)))
    keep = np.ones(len(data), np.bool_)
    keep[(bounds[:-1, None] + np.arange(PREFIX_BYTES)).ravel()] = False
    return array_of(bounds - PREFIX_BYTES * np.arange(len(bounds)), data[keep])


def stored_keys(keys: pa.BinaryArray, ts: Timestamps) -> pa.BinaryArray:
    """Stored form of keys on the wire, written at `ts`."""
    bounds, data = flat(keys)
    sizes = np.diff(bounds)
    groups = sizes // _GROUP + 1
    new = np.concatenate((np.zeros(1, np.int64), np.cumsum(groups * (_GROUP + 1) + _TS_BYTES)))
    out = np.zeros(int(new[-1]), np.uint8)
    place = np.arange(len(data)) - np.repeat(bounds[:-1], sizes)  # of each byte in its key
    out[np.repeat(new[:-1], sizes) + place + place // _GROUP] = data
    marker, last = _markers(new[:-1], groups)
    out[marker] = 0xFF
    out[last] = (0xFF - _GROUP + sizes % _GROUP).astype(np.uint8)
    inverted = (~ts).astype(">u8").view(np.uint8).reshape(-1, _TS_BYTES)
    out[(new[1:, None] - _TS_BYTES + np.arange(_TS_BYTES)).ravel()] = inverted.ravel()
    return array_of(new, out)


def wire_keys(stored: pa.BinaryArray) -> tuple[pa.BinaryArray, Timestamps]:
    """(keys on the wire, their timestamps). DecodeError with `index` of the first row that is not a stored key."""
    bounds, data = flat(stored)
    sizes = np.diff(bounds) - _TS_BYTES
    _refuse((sizes < _GROUP + 1) | (sizes % (_GROUP + 1) != 0), "is not groups of nine bytes and a timestamp")
    groups = sizes // (_GROUP + 1)
    marker, last = _markers(bounds[:-1], groups)
    pads = 0xFF - data[last].astype(np.int64)
    _refuse((pads < 1) | (pads > _GROUP), "has a last group with an impossible marker")
    inner = np.ones(len(marker), np.bool_)
    inner[np.cumsum(groups) - 1] = False
    _refuse(_any_of_row(inner & (data[marker] != 0xFF), groups), "ends before its last group")
    keep = np.ones(len(data), np.bool_)
    keep[marker] = False
    ts_at = bounds[1:, None] - _TS_BYTES + np.arange(_TS_BYTES)
    keep[ts_at.ravel()] = False
    padding = np.repeat(last, pads) - 1 - _ramp(pads)
    _refuse(_any_of_row(data[padding] != 0, pads), "has padding other than zeros")
    keep[padding] = False
    ts = ~np.ascontiguousarray(data[ts_at]).view(">u8").astype(np.uint64).reshape(-1)
    return kept(bounds, data, keep), ts


def _markers(starts: npt.NDArray[np.int64], groups: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], ...]:
    """(places of the markers of all groups, of the last group of each row)."""
    marker = np.repeat(starts, groups) + _ramp(groups) * (_GROUP + 1) + _GROUP
    return marker, starts + groups * (_GROUP + 1) - 1


def _ramp(counts: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """0, 1, ... of each row, one row after the other."""
    ends = np.cumsum(counts)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total) - np.repeat(ends - counts, counts)


def _any_of_row(flags: Mask, counts: npt.NDArray[np.int64]) -> Mask:
    """Whether any of a row's flags is set; each row has `counts` of them, one row after the other."""
    sums = np.concatenate((np.zeros(1, np.int64), np.cumsum(flags)))
    ends = np.cumsum(counts)
    found: Mask = sums[ends] > sums[ends - counts]
    return found


def _refuse(wrong: Mask, words: str) -> None:
    if wrong.any():
        index = int(np.argmax(wrong))
        raise DecodeError(f"A stored key {words}.", index=index)
