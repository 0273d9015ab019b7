"""Vectors of the upstream's encodings, both ways, and what a decoder must refuse."""

from __future__ import annotations

import pytest

from tistream.codec import memcomparable as mc
from tistream.errors import CorruptObject, DecodeError

BYTES = [
    ("", "0000000000000000f7"),
    ("00", "0000000000000000f8"),
    ("010203", "0102030000000000fa"),
    ("01020300", "0102030000000000fb"),
    ("00" * 8, "0000000000000000ff0000000000000000f7"),
    ("0102030405060708", "0102030405060708ff0000000000000000f7"),
    ("720010926b31", "720010926b310000fd"),
    ("7480000000000000725f72800000000000000a", "7480000000000000ff725f728000000000ff00000a0000000000fa"),
    ("748000000000000047", "7480000000000000ff4700000000000000f8"),
    ("7480000000000021a85f72", "7480000000000021ffa85f720000000000fa"),
]
INTS = [
    (0, "8000000000000000"),
    (1, "8000000000000001"),
    (-1, "7fffffffffffffff"),
    (-(2**63), "0000000000000000"),
    (2**63 - 1, "ffffffffffffffff"),
    (666, "800000000000029a"),
]
UINTS = [(0, "0000000000000000"), (1, "0000000000000001"), (2**63, "8000000000000000"), (2**64 - 1, "ff" * 8)]
UVARINTS = [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**64 - 1, "ffffffffffffffffff01")]


@pytest.mark.parametrize(("plain", "encoded"), BYTES)
def test_bytes(plain: str, encoded: str) -> None:
    assert mc.encode_bytes(bytes.fromhex(plain)).hex() == encoded
    assert mc.decode_bytes(b"xx" + bytes.fromhex(encoded) + b"yy", 2) == (bytes.fromhex(plain), 2 + len(encoded) // 2)


@pytest.mark.parametrize(
    "encoded",
    [
        "",
        "00000000000000f7",
        "0000000000000000f6",
        "000000000000000000",
        "0102030405060701f7",
        "0000000000000001f8",
        "0102030405060708ff",
        "0102030405060708ff00000000000000",
        "7480000000000000ff2e5f728000000011ffe1a3000000000000",
    ],
)
def test_malformed_bytes_are_refused(encoded: str) -> None:
    with pytest.raises(DecodeError) as e:
        mc.decode_bytes(bytes.fromhex(encoded))
    offset = e.value.facts["offset"]
    assert isinstance(offset, int)
    assert 0 <= offset <= len(encoded) // 2
    assert isinstance(e.value, CorruptObject)


@pytest.mark.parametrize(("value", "encoded"), INTS)
def test_int(value: int, encoded: str) -> None:
    assert mc.encode_int(value).hex() == encoded
    assert mc.decode_int(bytes.fromhex("ff" + encoded), 1) == (value, 9)


@pytest.mark.parametrize(("value", "encoded"), UINTS)
def test_uint(value: int, encoded: str) -> None:
    assert mc.decode_uint(bytes.fromhex(encoded)) == (value, 8)


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_numbers_beyond_64_bits_are_refused(value: int) -> None:
    with pytest.raises(ValueError):
        mc.encode_int(value)
    with pytest.raises(ValueError):
        mc.encode_uvarint(value << 1)


@pytest.mark.parametrize("decode", [mc.decode_int, mc.decode_uint])
def test_cut_off_numbers_are_refused(decode) -> None:  # type: ignore[no-untyped-def]
    for size in range(8):
        with pytest.raises(DecodeError):
            decode(bytes(size))


@pytest.mark.parametrize(("value", "encoded"), UVARINTS)
def test_uvarint(value: int, encoded: str) -> None:
    assert mc.encode_uvarint(value).hex() == encoded
    assert mc.decode_uvarint(bytes.fromhex(encoded + "ff")) == (value, len(encoded) // 2)


@pytest.mark.parametrize(
    ("encoded", "cause"),
    [
        ("", "cut off"),
        ("80", "cut off"),
        ("ffffffffffffffffff", "cut off"),
        ("ffffffffffffffffff02", "overflows"),
        ("ffffffffffffffffffff01", "overflows"),
        ("8080808080808080808000", "overflows"),
    ],
)
def test_malformed_varints_are_refused(encoded: str, cause: str) -> None:
    with pytest.raises(DecodeError, match=cause):
        mc.decode_uvarint(bytes.fromhex(encoded))
