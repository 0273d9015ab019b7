"""CRCs of columns: CRC-64/ECMA-182 in its reflected form (CRC-64/XZ), CRC-32, and checksums of keys and values as
TiKV's backups have them.

    checksum of many pairs    XOR of the CRCs of each pair (key, then value), their number, and their bytes

XOR has no order, so checksums of parts combine to that of the whole. Two equal pairs would cancel out; the keys of a
range are distinct.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from tistream.codec.binary import Bounds, flat
from tistream.codec.compiled import kernel
from tistream.model.arrays import U8, U64

_ONE = np.uint64(1)


def _table(polynomial: int) -> U64:
    """Of a reflected CRC, whose bits are reversed."""
    table = np.arange(256, dtype=np.uint64)
    for _ in range(8):
        table = np.where(table & _ONE, (table >> _ONE) ^ np.uint64(polynomial), table >> _ONE)
    return table


_CRC64 = _table(0xC96C5795D7870F42), np.uint64((1 << 64) - 1)
_CRC32 = _table(0xEDB88320), np.uint64((1 << 32) - 1)


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
    """The CRC-64 of each key and the value after it; a null counts as empty."""
    out = np.zeros(len(keys), np.uint64)
    key_bounds, key_data = flat(keys)
    bounds, data = flat(values)
    _crcs(key_bounds, _readonly(key_data), bounds, _readonly(data), *_CRC64, out)
    return out


def crc32s(values: pa.BinaryArray) -> U64:
    """The CRC-32 of each value, as SQL's CRC32() computes it; a null counts as empty."""
    out = np.zeros(len(values), np.uint64)
    bounds, data = flat(values)
    _crcs(bounds, _readonly(data), np.zeros(len(values) + 1, np.int64), _readonly(data[:0]), *_CRC32, out)
    return out


def checksum_of(keys: pa.BinaryArray, values: pa.BinaryArray) -> Checksum:
    """Of these pairs."""
    sizes = int(flat(keys)[0][-1]) + int(flat(values)[0][-1])
    return Checksum(int(np.bitwise_xor.reduce(crc64s(keys, values), initial=np.uint64(0))), len(keys), sizes)


def _readonly(data: U8) -> U8:
    view = data.view()
    view.flags.writeable = False  # writeable arrays would compile the kernel a second time
    return view


@kernel
def _crcs(key_bounds: Bounds, keys: U8, bounds: Bounds, data: U8, table: U64, ones: np.uint64, out: U64) -> None:
    for row in range(len(out)):
        crc = ones
        for at in range(key_bounds[row], key_bounds[row + 1]):
            crc = table[(crc ^ np.uint64(keys[at])) & np.uint64(0xFF)] ^ (crc >> np.uint64(8))
        for at in range(bounds[row], bounds[row + 1]):
            crc = table[(crc ^ np.uint64(data[at])) & np.uint64(0xFF)] ^ (crc >> np.uint64(8))
        out[row] = crc ^ ones
