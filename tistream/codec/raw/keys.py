"""Keys of API V2 on the wire: a mode, a keyspace and the user's key.

    mode byte, keyspace id (3 bytes big endian), user key      r{000001}k1

Keys of TiDB without a keyspace begin with `m` or `t` and have none of both.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
import pyarrow as pa

from tistream.codec.binary import array_of, flat
from tistream.errors import DecodeError, InvalidInput
from tistream.keyrange import KeyRange, prefix_range

KEYSPACE_ID_MAX = 0xFF_FFFF
PREFIX_BYTES = 4  # mode and keyspace id


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
