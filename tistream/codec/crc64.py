"""CRC-64/ECMA-182 in its reflected form (CRC-64/XZ), and checksums of keys and values as TiKV's backups have them.

    checksum of many pairs    XOR of the CRCs of each pair (key, then value), their number, and their bytes

XOR has no order, so checksums of parts combine to that of the whole. Two equal pairs would cancel out; the keys of a
range are distinct.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tistream.codec.binary import Bounds, Bytes, flat
from tistream.codec.compiled import kernel

U64 = npt.NDArray[np.uint64]
_POLYNOMIAL = 0xC96C5795D7870F42  # 0x42F0E1EBA9EA3693 with its bits reversed
_ALL_ONES = (1 << 64) - 1


def _table() -> U64:
    found = np.arange(256, dtype=np.uint64)
    one = np.uint64(1)
    for _ in range(8):
        found = np.where(found & one, (found >> one) ^ np.uint64(_POLYNOMIAL), found >> one)
    return found


_TABLE = _table()


@dataclass(frozen=True, slots=True)
class Checksum:
    """Of any number of pairs."""

    crc64_xor: int = 0
    pairs: int = 0
    bytes: int = 0  #: of keys and values

    def __add__(self, other: Checksum) -> Checksum:
        return Checksum(self.crc64_xor ^ other.crc64_xor, self.pairs + other.pairs, self.bytes + other.bytes)

    def __str__(self) -> str:
        return f"{self.crc64_xor:#018x}, {self.pairs:,} pairs, {self.bytes:,} bytes"


def crc64s(keys: pa.BinaryArray, values: pa.BinaryArray) -> U64:
    """The CRC of each key and the value after it; a null counts as empty."""
    out = np.zeros(len(keys), np.uint64)
    key_bounds, key_data = flat(keys)
    bounds, data = flat(values)
    _crc64s(key_bounds, _readonly(key_data), bounds, _readonly(data), _TABLE, out)
    return out


def checksum_of(keys: pa.BinaryArray, values: pa.BinaryArray) -> Checksum:
    """Of these pairs."""
    sizes = int(flat(keys)[0][-1]) + int(flat(values)[0][-1])
    return Checksum(int(np.bitwise_xor.reduce(crc64s(keys, values), initial=np.uint64(0))), len(keys), sizes)


def _readonly(data: Bytes) -> Bytes:
    found = data.view()
    found.flags.writeable = False  # writeable arrays would compile the kernel a second time
    return found


@kernel
def _crc64s(key_bounds: Bounds, keys: Bytes, bounds: Bounds, data: Bytes, table: U64, out: U64) -> None:
    for row in range(len(out)):
        crc = np.uint64(_ALL_ONES)
        for at in range(key_bounds[row], key_bounds[row + 1]):
            crc = table[(crc ^ np.uint64(keys[at])) & np.uint64(0xFF)] ^ (crc >> np.uint64(8))
        for at in range(bounds[row], bounds[row + 1]):
            crc = table[(crc ^ np.uint64(data[at])) & np.uint64(0xFF)] ^ (crc >> np.uint64(8))
        out[row] = ~crc
