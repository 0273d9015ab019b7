"""Vectors of the upstream's encodings, both ways, and what a decoder must refuse."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest

from tistream.codec import memcomparable as mc
from tistream.codec.memcomparable import Datum, decode_common_handle, decode_datums
from tistream.errors import CorruptObject, DecodeError


def inverted(data: bytes) -> bytes:
    return bytes(b ^ 0xFF for b in data)


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
FLOATS = [
    (0.0, "8000000000000000"),
    (-0.0, "7fffffffffffffff"),
    (1.0, "bff0000000000000"),
    (-1.0, "400fffffffffffff"),
    (1.1, "bff199999999999a"),
    (1.8, "bffccccccccccccd"),
    (-1.8, "4003333333333332"),
]
VARINTS = [
    (0, "00"),
    (1, "02"),
    (-1, "01"),
    (63, "7e"),
    (64, "8001"),
    (-64, "7f"),
    (-65, "8101"),
    (300, "d804"),
    (-300, "d704"),
    (2**63 - 1, "feffffffffffffffff01"),
    (-(2**63), "ffffffffffffffffff01"),
]
UVARINTS = [(0, "00"), (127, "7f"), (128, "8001"), (300, "ac02"), (2**64 - 1, "ffffffffffffffffff01")]
DECIMALS = [
    ("1234567890.1234", 14, 4, "0e04810dfb38d204d2"),
    ("1", 1, 0, "010081"),
    ("0", 1, 0, "010080"),
    ("-1", 1, 0, "01007e"),
    ("-10.55", 4, 2, "040275c8"),
    ("0.1", 1, 1, "010181"),
    ("-0.001", 4, 3, "04037ffffe"),
    ("123.123", 6, 3, "0603807b007b"),
    ("11.9900", 6, 4, "06048b26ac"),
    ("12345", 5, 0, "0500803039"),
    ("99999999.99", 10, 2, "0a0285f5e0ff63"),
    ("0.0123456789012345678912345", 30, 25, "1e1980000000bc614e35b7bf870087fdd9"),
]


@pytest.mark.parametrize(("plain", "encoded"), BYTES)
def test_bytes(plain: str, encoded: str) -> None:
    assert mc.encode_bytes(bytes.fromhex(plain)).hex() == encoded
    assert mc.decode_bytes(b"xx" + bytes.fromhex(encoded) + b"yy", 2) == (bytes.fromhex(plain), 2 + len(encoded) // 2)


@pytest.mark.parametrize(("plain", "encoded"), [("", "ffffffffffffffff08"), ("010203", "fefdfcffffffffff05")])
def test_descending_bytes_are_the_inverted_encoding(plain: str, encoded: str) -> None:
    assert inverted(mc.encode_bytes(bytes.fromhex(plain))).hex() == encoded


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
    assert 0 <= e.value.facts["offset"] <= len(encoded) // 2
    assert isinstance(e.value, CorruptObject)


@pytest.mark.parametrize(("value", "encoded"), INTS)
def test_int(value: int, encoded: str) -> None:
    assert mc.encode_int(value).hex() == encoded
    assert mc.decode_int(bytes.fromhex("ff" + encoded), 1) == (value, 9)


@pytest.mark.parametrize(("value", "encoded"), UINTS)
def test_uint(value: int, encoded: str) -> None:
    assert mc.encode_uint(value).hex() == encoded
    assert mc.decode_uint(bytes.fromhex(encoded)) == (value, 8)


@pytest.mark.parametrize(("value", "encoded"), FLOATS)
def test_float(value: float, encoded: str) -> None:
    assert mc.encode_float(value).hex() == encoded
    found, end = mc.decode_float(bytes.fromhex(encoded))
    assert (found, math.copysign(1, found), end) == (value, math.copysign(1, value), 8)


def test_encodings_sort_as_their_values() -> None:
    floats = [-math.inf, -1.8, -1.0, -5e-324, 0.0, 5e-324, 1.0, 1.1, 1.8, math.inf]
    assert sorted(set(floats), key=mc.encode_float) == floats
    assert [math.copysign(1, f) for f in sorted([0.0, -0.0], key=mc.encode_float)] == [-1.0, 1.0]
    ints = [-(2**63), -300, -1, 0, 1, 300, 2**63 - 1]
    assert sorted(set(ints), key=mc.encode_int) == ints
    texts = [b"", b"\0", b"\0" * 8, b"\0" * 9, b"a", b"a\0", b"abcdefgh", b"abcdefgh\0", b"abcdefghi", b"b"]
    assert sorted(set(texts), key=mc.encode_bytes) == texts


@pytest.mark.parametrize("value", [2**63, -(2**63) - 1])
def test_numbers_beyond_64_bits_are_refused(value: int) -> None:
    for encode in (mc.encode_int, mc.encode_varint):
        with pytest.raises(ValueError):
            encode(value)
    for encode in (mc.encode_uint, mc.encode_uvarint):
        with pytest.raises((ValueError, OverflowError)):
            encode(value << 1)


@pytest.mark.parametrize("decode", [mc.decode_int, mc.decode_uint, mc.decode_float])
def test_cut_off_numbers_are_refused(decode) -> None:  # type: ignore[no-untyped-def]
    for size in range(8):
        with pytest.raises(DecodeError):
            decode(bytes(size))


@pytest.mark.parametrize(("value", "encoded"), VARINTS)
def test_varint(value: int, encoded: str) -> None:
    assert mc.encode_varint(value).hex() == encoded
    assert mc.decode_varint(bytes.fromhex(encoded + "ff")) == (value, len(encoded) // 2)


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


def test_compact_bytes() -> None:
    assert mc.encode_compact_bytes(b"abc").hex() == "06616263"
    assert mc.encode_compact_bytes(bytes(70)).hex()[:4] == "8c01"
    assert mc.decode_compact_bytes(bytes.fromhex("0661626364")) == (b"abc", 4)
    assert mc.decode_compact_bytes(b"\0") == (b"", 1)


@pytest.mark.parametrize("encoded", ["01", "066162", "", "feffffffffffffffff01"])
def test_malformed_compact_bytes_are_refused(encoded: str) -> None:
    with pytest.raises(DecodeError):
        mc.decode_compact_bytes(bytes.fromhex(encoded))


@pytest.mark.parametrize(("text", "precision", "fraction", "encoded"), DECIMALS)
def test_decimal(text: str, precision: int, fraction: int, encoded: str) -> None:
    assert mc.encode_decimal(Decimal(text), precision, fraction).hex() == encoded
    value, end = mc.decode_decimal(bytes.fromhex(encoded + "00"))
    assert (value, end) == (Decimal(text), len(encoded) // 2)
    assert -value.as_tuple().exponent == fraction


def test_decimals_of_the_largest_shape_and_negative_zero() -> None:
    widest = Decimal("-" + "9" * 35 + "." + "9" * 30)
    assert mc.decode_decimal(mc.encode_decimal(widest, 65, 30))[0] == widest
    assert mc.encode_decimal(Decimal("-0"), 1, 0).hex() == "010080"
    assert mc.encode_decimal(Decimal("1.10"), 3, 1) == mc.encode_decimal(Decimal("1.1"), 3, 1)


@pytest.mark.parametrize(("text", "precision", "fraction"), [("111111111.11", 10, 2), ("1000", 3, 0), ("0.12", 3, 1)])
def test_decimals_that_do_not_fit_are_refused(text: str, precision: int, fraction: int) -> None:
    with pytest.raises(ValueError):
        mc.encode_decimal(Decimal(text), precision, fraction)


@pytest.mark.parametrize(
    "encoded",
    [
        "",
        "01",
        "0100",
        "000080",
        "5201" + "80" * 40,  # (82, 1)
        "421f" + "80" * 40,
        "0102" + "80" * 4,  # more fraction than precision
        "0e04810dfb38d204",  # cut off
        "01008a",  # ten in one digit
        "0900ffffffff",  # ten digits in a word of nine
    ],
)
def test_malformed_decimals_are_refused(encoded: str) -> None:
    with pytest.raises(DecodeError):
        mc.decode_decimal(bytes.fromhex(encoded))


def test_datums_of_an_index_key() -> None:
    # non-unique index 1 of table 180, value 2, handle 1
    assert decode_datums(bytes.fromhex("038000000000000002038000000000000001")) == [
        Datum(3, 2, 0, 9),
        Datum(3, 1, 9, 18),
    ]
    assert decode_datums(bytes.fromhex("0166696674792d666fff7572000000000000f9")) == [Datum(1, b"fifty-four", 0, 19)]
    assert decode_datums(b"") == []
    assert decode_datums(b"\0\0") == [Datum(0, None, 0, 1), Datum(0, None, 1, 2)]


def test_datums_of_every_flag() -> None:
    data = bytes.fromhex(
        "00" + "0161000000000000" + "00f8" + "0206616263" + "04ffffffffffffffff" + "05bffccccccccccccd" + "06010081"
        "07800000003b9aca00" + "08d704" + "09ac02"
    )
    found = decode_datums(data)
    assert [(d.flag, d.value) for d in found] == [
        (0, None),
        (1, b"a"),
        (2, b"abc"),
        (4, 2**64 - 1),
        (5, 1.8),
        (6, Decimal(1)),
        (7, 10**9),
        (8, -300),
        (9, 300),
    ]
    assert [d.start for d in found] == [0, *(d.end for d in found[:-1])]
    assert found[-1].end == len(data)


@pytest.mark.parametrize(("data", "offset"), [("fa", 0), ("0a01", 0), ("1400000000", 0), ("0380000000000000028000", 9)])
def test_unknown_flags_are_refused(data: str, offset: int) -> None:
    with pytest.raises(DecodeError) as e:
        decode_datums(bytes.fromhex(data))
    assert e.value.facts["offset"] == offset


def test_common_handles() -> None:
    both = decode_common_handle(bytes.fromhex("05bff199999999999a013131000000000000f9"))
    assert [d.value for d in both] == [1.1, b"11"]
    assert decode_common_handle(bytes.fromhex("016100000000000000f8")) == [Datum(1, b"a", 0, 10)]
    uuid = bytes.fromhex(
        "040000000000000006016334303338646232ff2d643531632d3131ff65622d386337352dff3830653635303138ff6139626500000000fb"
    )
    assert [d.value for d in decode_common_handle(uuid)] == [6, b"c4038db2-d51c-11eb-8c75-80e65018a9be"]


def test_a_short_handle_is_padded_to_nine_bytes() -> None:
    padded = decode_common_handle(bytes.fromhex("060201810100000000"))
    assert padded == [Datum(6, Decimal("1.1"), 0, 5)]


@pytest.mark.parametrize(
    "handle",
    [
        "",
        "0602018101",  # not padded
        "06020181010000",
        "060201810100000001",  # padded with something else
        "06020181010000000000",  # padded to ten
        "000000000000000000",
        "03800000000000000200",  # a NULL behind nine bytes
        "8000000011ffe1a3000000000000",  # the tail of a key whose table id is not eight bytes
    ],
)
def test_malformed_handles_are_refused(handle: str) -> None:
    with pytest.raises(DecodeError):
        decode_common_handle(bytes.fromhex(handle))
