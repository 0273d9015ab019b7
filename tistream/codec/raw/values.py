"""Values of RawKV in stored form: API V2, API V1 with expiry (V1TTL), and how V1 data becomes V2.

    V1      user value
    V1TTL   user value, expiry (8 bytes big endian, Unix seconds; 0 = never)
    V2      user value, [expiry, if bit 0 is set], flags (1 byte): bit 0 = has an expiry, bit 1 = deleted

V2 has room for more fields: that of a higher bit stands before those of lower ones, and bit 7 announces a second byte
of flags. No TiKV writes them yet, and where an unknown field begins cannot be known, so any other bit is refused.

All functions work on whole columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tistream.codec.binary import Bounds, Bytes, Mask, array_of, flat, kept
from tistream.codec.raw.keys import KeyMode, keyspace_prefix
from tistream.errors import DecodeError

HAS_EXPIRY, DELETED, EXTENDED = 0x01, 0x02, 0x80
_EXPIRY_BYTES = 8
Seconds = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RawValues:
    """A column of values."""

    values: pa.BinaryArray  #: of users
    expires: Seconds  #: Unix time at which each ends; 0 = never
    deleted: Mask  #: the key was deleted; its value is empty

    def alive(self, now_s: int) -> Mask:
        """Which of them a read at this Unix time gives."""
        found: Mask = ~self.deleted & ((self.expires == 0) | (self.expires > np.uint64(now_s)))
        return found


def read_v2(stored: pa.BinaryArray) -> RawValues:
    """From API V2's stored form. DecodeError with `index` of the first value that is none."""
    bounds, data = flat(stored)
    sizes = np.diff(bounds)
    _refuse(sizes == 0, "has no flags")
    flags = data[bounds[1:] - 1]
    unknown = flags & ~np.uint8(HAS_EXPIRY | DELETED)
    if unknown.any():
        index = int(np.argmax(unknown != 0))
        what = "extended flags" if flags[index] & EXTENDED else "unknown flags"
        raise DecodeError(f"A stored value has {what}: {flags[index]:#04x}.", index=index, flags=int(flags[index]))
    timed = (flags & HAS_EXPIRY) != 0
    _refuse(timed & (sizes < _EXPIRY_BYTES + 1), "is too short for its expiry")
    expires = _expiries(data, bounds[1:] - 1, timed)
    _refuse(timed & (expires == 0), "has an expiry of zero")
    return RawValues(
        values=_without_tail(bounds, data, 1 + _EXPIRY_BYTES * timed),
        expires=expires,
        deleted=(flags & DELETED) != 0,
    )


def read_v1ttl(stored: pa.BinaryArray) -> RawValues:
    """From the stored form of API V1 with expiry. DecodeError with `index` of the first value that is too short."""
    bounds, data = flat(stored)
    _refuse(np.diff(bounds) < _EXPIRY_BYTES, "is too short for its expiry")
    every = np.ones(len(stored), np.bool_)
    return RawValues(
        values=_without_tail(bounds, data, np.full(len(stored), _EXPIRY_BYTES)),
        expires=_expiries(data, bounds[1:], every),
        deleted=~every,
    )


def read_v1(stored: pa.BinaryArray) -> RawValues:
    """From the stored form of API V1 without expiry, which is the user's value."""
    rows = len(stored)
    return RawValues(values=stored, expires=np.zeros(rows, np.uint64), deleted=np.zeros(rows, np.bool_))


def to_v2(found: RawValues) -> pa.BinaryArray:
    """API V2's stored form."""
    timed = found.expires != 0
    flags = (HAS_EXPIRY * timed + DELETED * found.deleted).astype(np.uint8)
    bounds, data = flat(found.values)
    sizes = np.diff(bounds)
    new = np.concatenate((np.zeros(1, np.int64), np.cumsum(sizes + 1 + _EXPIRY_BYTES * timed)))
    out = np.zeros(int(new[-1]), np.uint8)
    out[np.arange(len(data)) + np.repeat(new[:-1] - bounds[:-1], sizes)] = data
    places = (new[1:][timed] - 1 - _EXPIRY_BYTES)[:, None] + np.arange(_EXPIRY_BYTES)
    out[places.ravel()] = found.expires[timed].astype(">u8").view(np.uint8)
    out[new[1:] - 1] = flags
    return array_of(new, out)


def v2_keys(keys: pa.BinaryArray) -> pa.BinaryArray:
    """Keys of API V1 as keys of API V2 on the wire: in the default keyspace."""
    prefix = np.frombuffer(keyspace_prefix(KeyMode.RAW, 0), np.uint8)
    bounds, data = flat(keys)
    new = bounds + len(prefix) * np.arange(len(bounds))
    out = np.empty(int(new[-1]), np.uint8)
    out[(new[:-1, None] + np.arange(len(prefix))).ravel()] = np.tile(prefix, len(keys))
    sizes = np.diff(bounds)
    out[np.arange(len(data)) + np.repeat(new[:-1] + len(prefix) - bounds[:-1], sizes)] = data
    return array_of(new, out)


def _without_tail(bounds: Bounds, data: Bytes, cut: npt.NDArray[np.int64]) -> pa.BinaryArray:
    """Each row without its last `cut` bytes."""
    change = np.zeros(len(data) + 1, np.int64)
    np.add.at(change, bounds[1:] - cut, -1)
    np.add.at(change, bounds[1:], 1)
    return kept(bounds, data, np.cumsum(change)[:-1] == 0)


def _expiries(data: Bytes, ends: Bounds, timed: Mask) -> Seconds:
    """The eight bytes before each end as a number; 0 where there is none."""
    found = np.zeros(len(ends), np.uint64)
    places = (ends[timed] - _EXPIRY_BYTES)[:, None] + np.arange(_EXPIRY_BYTES)
    found[timed] = np.ascontiguousarray(data[places]).view(">u8").reshape(-1)
    return found


def _refuse(wrong: Mask, words: str) -> None:
    if wrong.any():
        raise DecodeError(f"A stored value {words}.", index=int(np.argmax(wrong)))
