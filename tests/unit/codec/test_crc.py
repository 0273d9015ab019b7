"""CRCs against published check values and zlib, and the checksum of pairs."""

from __future__ import annotations

import zlib

import pyarrow as pa
import pytest

from tistream.codec.crc import Checksum, checksum_of, crc32s, crc64s


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # the check value of the catalogue of parametrised CRC algorithms, CRC-64/XZ
        (b"123456789", 0x995DC9BBDF1939FA),
        # from Go's hash/crc64 tests, ECMA table
        (b"", 0x0),
        (b"a", 0x330284772E652B05),
        (b"ab", 0xBC6573200E84B046),
        (b"abc", 0x2CD8094A1A277627),
        (b"abcd", 0x3C9D28596E5960BA),
    ],
)
def test_published_values(text: bytes, expected: int) -> None:
    for cut in {0, len(text) // 2, len(text)}:
        checksums = crc64s(pa.array([b"other", text[:cut]]).slice(1), pa.array([b"x", text[cut:]]).slice(1))
        assert hex(checksums[0]) == hex(expected)


def test_a_checksum_has_no_order_and_adds_up() -> None:
    keys, values = pa.array([b"k1", b"k2", b"k3"]), pa.array([b"a", None, b"ccc"])
    whole = checksum_of(keys, values)
    parts = [checksum_of(keys.slice(at, n), values.slice(at, n)) for at, n in ((2, 1), (0, 2))]
    assert sum(parts, Checksum()) == whole
    assert (whole.pairs, whole.bytes) == (3, 10)
    assert whole.crc64_xor == int(crc64s(keys, values)[0] ^ crc64s(keys, values)[1] ^ crc64s(keys, values)[2])


def test_crc32_is_that_of_zlib() -> None:
    texts = [b"", b"123456789", bytes(range(256)), b"x" * 1000]
    assert crc32s(pa.array([b"", *texts]).slice(1)).tolist() == [zlib.crc32(text) for text in texts]
