"""Key ranges in words: tables where the schema names them, hexadecimal where it does not."""

from __future__ import annotations

import pytest

from tistream.admin.core.formatting import key_span, key_text, range_label
from tistream.admin.core.units import bytes_text, duration_text
from tistream.codec.table_key import DDL_JOB_RANGE, META_RANGE, index_key, record_key, table_prefix
from tistream.keyrange import KeyRange

NAMES = {100: "shop.orders", 101: "shop.lines", 104: "shop.tags"}


def t(table_id: int) -> bytes:
    return table_prefix(table_id)


@pytest.mark.parametrize(
    ("range", "words"),
    [
        (KeyRange(t(100), t(101)), "shop.orders"),
        (KeyRange(t(102), t(103)), "table 102"),
        (KeyRange(t(100), t(103)), "tables 100 to 102 (shop.orders, shop.lines)"),
        (KeyRange(t(105), t(200)), "tables 105 to 199"),
        (KeyRange(b"t", t(100)), "tables below 100"),
        (KeyRange(t(100), DDL_JOB_RANGE.start), "tables from 100"),
        (KeyRange(b"t", DDL_JOB_RANGE.start), "all tables"),
        (KeyRange(), "all tables"),
        (KeyRange(t(100), record_key(100, 500)), "shop.orders, its beginning to row 500"),
        (KeyRange(record_key(100, -5), record_key(100, 500)), "shop.orders, row -5 to row 500"),
        (KeyRange(record_key(100, 500), t(101)), "shop.orders, row 500 to its end"),
        (KeyRange(t(100) + b"_r", t(100) + b"_s"), "shop.orders, its first row to its last row"),
        (KeyRange(record_key(100, 9), record_key(104, 3)), "shop.orders, row 9 to shop.tags, row 3"),
        (KeyRange(record_key(100, 9), t(104)), "shop.orders, row 9 to the beginning of shop.tags"),
        (KeyRange(t(100), record_key(104, 3)), "the beginning of shop.orders to shop.tags, row 3"),
        (KeyRange(b"r\0\0\1", b"r\0\0\2"), "all keys of keyspace 1"),
        (KeyRange(b"x\0\0\1a", b"x\0\0\1n"), "keyspace 1, key a to key n"),
        (KeyRange(b"r\0\0\1n", b"r\0\0\2"), "keyspace 1, key n to its end"),
    ],
)
def test_a_range_of_data(range: KeyRange, words: str) -> None:
    assert range_label(range, "data", NAMES.get) == words


def test_ranges_of_ddl() -> None:
    assert range_label(META_RANGE, "ddl", NAMES.get) == "schema changes"
    assert range_label(DDL_JOB_RANGE, "ddl", NAMES.get) == "DDL jobs"


def test_many_names_are_cut_short() -> None:
    names = {n: f"d.t{n}" for n in range(1, 90)}
    assert range_label(KeyRange(t(1), t(90)), "data", names.get) == "tables 1 to 89 (d.t1, d.t2, d.t3, …)"


@pytest.mark.parametrize(
    ("key", "words"),
    [
        (b"", ""),
        (b"t", "the first table"),
        (t(100), "the beginning of shop.orders"),
        (record_key(100, 7), "shop.orders, row 7"),
        (record_key(100, b"\x01abc\x00\x00\x00\x00\x00\xfa"), "shop.orders, row 0161626300000000…"),
        (index_key(101, 3, b"\x01"), "shop.lines, index 3"),
        (t(101) + b"_i", "shop.lines, its indexes"),
        (t(101) + b"_q", "shop.lines, key 5f71"),
        (t(999), "the beginning of table 999"),
        (b"\xff\xfe", "fffe"),
        (b"w" * 20, "7777777777777777…"),
        (b"r\0\0\1user:7", "key user:7"),
        (b"x\0\0\1\xff", "key 0xff"),
        (b"r\0\0\1", "the beginning of the keyspace"),
    ],
)
def test_a_key(key: bytes, words: str) -> None:
    assert key_text(key, NAMES.get) == words


def test_a_span_over_everything() -> None:
    assert key_span(KeyRange(), NAMES.get) == "the beginning to the end"


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "–"),
        (0, "0 ms"),
        (340.4, "340 ms"),
        (999.6, "1.0 s"),
        (59_949, "59.9 s"),
        (59_999, "1 min"),
        (243_000, "4 min 3 s"),
        (3_599_700, "1 h"),
        (5_400_000, "1 h 30 min"),
        (3 * 3_600_000, "3 h"),
        (63 * 3_600_000 + 59 * 60_000, "2 d 15 h"),
        (400 * 86_400_000, "400 d"),
    ],
)
def test_a_duration(ms: float | None, text: str) -> None:
    assert duration_text(ms) == text


def test_amounts() -> None:
    assert [bytes_text(n) for n in (0, 1023, 1536, 5 << 20, 3 << 30, 2 << 40)] == [
        "0 B", "1023 B", "1.5 KiB", "5.0 MiB", "3.0 GiB", "2.0 TiB",
    ]  # fmt: skip
