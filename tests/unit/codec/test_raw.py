"""Keys and values of API V2 against vectors of TiKV's own tests, and against codecs of one value at a time."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tistream.codec.memcomparable import encode_bytes
from tistream.codec.raw.keys import KeyMode, keyspace_prefix, keyspace_range, stored_keys, wire_keys
from tistream.codec.raw.values import RawValues, read_v1, read_v1ttl, read_v2, to_v2, v2_keys
from tistream.errors import DecodeError, InvalidInput

KEYS = st.lists(st.tuples(st.binary(max_size=30), st.integers(0, 2**64 - 1)), max_size=12)
VALUES = st.lists(
    st.one_of(
        st.tuples(st.binary(max_size=30), st.integers(0, 2**64 - 1), st.just(False)),
        st.tuples(st.just(b""), st.integers(0, 2**64 - 1), st.just(True)),
    ),
    max_size=12,
)


def binary(*rows: bytes) -> pa.BinaryArray:
    """The rows, as a slice of a longer array."""
    return pa.array([b"before", *rows, b"after"], pa.binary())[1:-1]


def column(found: RawValues) -> list[tuple[bytes, int, bool]]:
    return list(zip(found.values.to_pylist(), found.expires.tolist(), found.deleted.tolist(), strict=True))


# ---- keys


def test_prefixes_and_ranges_of_keyspaces() -> None:
    assert keyspace_prefix(KeyMode.RAW, 4242) == bytes.fromhex("72001092")
    assert keyspace_range(KeyMode.RAW, 4242).end == bytes.fromhex("72001093")
    assert keyspace_range(KeyMode.RAW, 0xFFFFFF).end == bytes.fromhex("73000000").rstrip(b"\0")
    assert keyspace_range(KeyMode.TXN, 255).end == bytes.fromhex("78000100").rstrip(b"\0")
    for id_ in (-1, 1 << 24):
        with pytest.raises(InvalidInput, match=str(id_)):
            keyspace_prefix(KeyMode.RAW, id_)


@pytest.mark.parametrize(
    ("wire", "ts", "stored"),
    [
        (b"r", 2, "7200000000000000f8fffffffffffffffd"),
        (b"r\0\0\0foo", 1, "72000000666f6f00fefffffffffffffffe"),
    ],
)
def test_stored_keys_of_tikv(wire: bytes, ts: int, stored: str) -> None:
    assert stored_keys(binary(wire), np.array([ts], np.uint64)).to_pylist() == [bytes.fromhex(stored)]
    found, times = wire_keys(binary(bytes.fromhex(stored)))
    assert (found.to_pylist(), times.tolist()) == ([wire], [ts])


@given(KEYS)
def test_keys_of_a_column_are_those_of_each(rows: list[tuple[bytes, int]]) -> None:
    keys, times = [key for key, _ in rows], np.array([ts for _, ts in rows], np.uint64)
    stored = stored_keys(binary(*keys), times)
    assert stored.to_pylist() == [encode_bytes(key) + (~ts % 2**64).to_bytes(8, "big") for key, ts in rows]
    found, again = wire_keys(stored)
    assert (found.to_pylist(), again.tolist()) == (keys, times.tolist())


def test_the_newest_version_of_a_key_is_first() -> None:
    rand = random.Random(1)
    rows = [(rand.randbytes(rand.randrange(3)), rand.randrange(2**64)) for _ in range(300)]
    stored = stored_keys(pa.array([k for k, _ in rows], pa.binary()), np.array([t for _, t in rows], np.uint64))
    ordered = sorted(zip(stored.to_pylist(), rows, strict=True))
    assert [row for _, row in ordered] == sorted(rows, key=lambda row: (row[0], -row[1]))


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("", "groups of nine"),
        ("00000000000000f7ffffffffffffffff", "groups of nine"),
        ("0000000000000000f7", "groups of nine"),
        ("720000000000000000fffffffffffffffd", "impossible marker"),
        ("7261626364656667fffffffffffffffffd", "impossible marker"),
        ("7200000000000001f8fffffffffffffffd", "padding"),
        ("7261626364656667fe0000000000000000f7fffffffffffffffd", "before its last group"),
    ],
)
def test_what_is_no_stored_key_is_named(wrong: str, words: str) -> None:
    sound = bytes.fromhex("7200000000000000f8fffffffffffffffd")
    with pytest.raises(DecodeError, match=words) as caught:
        wire_keys(binary(sound, bytes.fromhex(wrong), sound))
    assert caught.value.facts["index"] == 1


# ---- values

TIKV_V2 = [
    ("00", (b"", 0, False)),
    ("6100", (b"a", 0, False)),
    ("61000000000000000201", (b"a", 2, False)),
    ("02", (b"", 0, True)),
    ("000000000000000203", (b"", 2, True)),
]


def test_values_of_tikv() -> None:
    stored = [bytes.fromhex(text) for text, _ in TIKV_V2]
    found = read_v2(binary(*stored))
    assert column(found) == [value for _, value in TIKV_V2]
    assert to_v2(found).to_pylist() == stored
    assert column(read_v1ttl(binary(bytes.fromhex("666f6f000000006553f100"), bytes.fromhex("610000000000000000")))) == [
        (b"foo", 1_700_000_000, False),
        (b"a", 0, False),
    ]


@given(VALUES)
def test_values_of_a_column_are_those_of_each(rows: list[tuple[bytes, int, bool]]) -> None:
    found = RawValues(
        values=binary(*(value for value, _, _ in rows)),
        expires=np.array([at for _, at, _ in rows], np.uint64),
        deleted=np.array([gone for _, _, gone in rows], np.bool_),
    )
    stored = to_v2(found)
    assert stored.to_pylist() == [
        value + (at.to_bytes(8, "big") if at else b"") + bytes([(at != 0) + 2 * gone]) for value, at, gone in rows
    ]
    assert column(read_v2(stored)) == rows


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("", "no flags"),
        ("01", "too short"),
        ("0000000000000001", "too short"),
        ("000000000000000001", "expiry of zero"),
        ("6104", "unknown flags: 0x04"),
        ("6180", "extended flags: 0x80"),
    ],
)
def test_what_is_no_value_of_v2_is_named(wrong: str, words: str) -> None:
    with pytest.raises(DecodeError, match=words) as caught:
        read_v2(binary(b"a\0", b"b\0", bytes.fromhex(wrong), b"c\0"))
    assert caught.value.facts["index"] == 2


def test_a_value_of_v1ttl_without_expiry_is_named() -> None:
    with pytest.raises(DecodeError, match="too short") as caught:
        read_v1ttl(binary(bytes(8), bytes(7)))
    assert caught.value.facts["index"] == 1


def test_a_value_is_alive_until_its_expiry() -> None:
    found = read_v2(binary(*(bytes.fromhex(text) for text, _ in TIKV_V2)))
    assert found.alive(1).tolist() == [True, True, True, False, False]
    assert found.alive(2).tolist() == [True, True, False, False, False]


def test_data_of_v1_becomes_that_of_v2() -> None:
    assert v2_keys(binary(b"foo", b"")).to_pylist() == [b"r\0\0\0foo", b"r\0\0\0"]
    assert to_v2(read_v1(binary(b"foo", b""))).to_pylist() == [b"foo\0", b"\0"]
    timed = binary(bytes.fromhex("666f6f000000006553f100"), bytes.fromhex("610000000000000000"))
    assert to_v2(read_v1ttl(timed)).to_pylist() == [bytes.fromhex("666f6f000000006553f10001"), b"a\0"]
