"""Checksums of version 0. Expected bytes are spelled out from the rule, column by column."""

import struct
import time
import zlib
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.kit.row_encoder import encode_v2, record_key
from tistream.codec.row import encode as enc
from tistream.codec.row.decode import Decoded, decode
from tistream.codec.row.layout import ColumnSpec, RowLayout

KEY = record_key(104, 1)
DOCUMENTED = bytes.fromhex(
    "8002020000000203010002000a61004d5854e3"
)  # t(id INT PRIMARY KEY, k INT, c CHAR(1)): 1, 10, 'a'
DOCUMENTED_COLUMNS = (
    ColumnSpec(id=1, name="id", tp=3),
    ColumnSpec(id=2, name="k", tp=3),
    ColumnSpec(id=3, name="c", tp=254),
)


def spec(id_: int, tp: int, **more: Any) -> ColumnSpec:
    return ColumnSpec(id=id_, name=f"c{id_}", tp=tp, **more)


def run(columns: tuple[ColumnSpec, ...], *rows: bytes, key: bytes = KEY, **handle: Any) -> Decoded:
    layout = RowLayout(name="d.t", columns=columns, **handle)
    return decode(layout, pa.array([key] * len(rows), pa.binary()), pa.array(rows, pa.binary()))


def accepted(columns: tuple[ColumnSpec, ...], cells: Mapping[int, bytes | None], covered: bytes, **more: Any) -> bool:
    """Whether a row passes with the checksum of `covered` and fails with another."""
    right = zlib.crc32(covered)
    rows = [encode_v2(cells, 0, sums=(crc,)) for crc in (right, right ^ 1)]
    decoded = run(columns, *rows, **more)
    if not decoded.errors:
        raise AssertionError("not verified")
    return [(error.index, error.column, error.cause) for error in decoded.errors] == [
        (1, "", "the checksum does not match")
    ]


def u64(value: int) -> bytes:
    return struct.pack("<Q", value)


def sized(raw: str | bytes) -> bytes:
    data = raw.encode() if isinstance(raw, str) else raw
    return struct.pack("<I", len(data)) + data


def test_documented_row() -> None:
    assert zlib.crc32(bytes.fromhex("0100000000000000 0a00000000000000 01000000 61")) == 3813955661
    decoded = run(DOCUMENTED_COLUMNS, DOCUMENTED, int_handle=1)
    assert decoded.errors == ()
    assert decoded.batch.to_pylist() == [{"id": 1, "k": 10, "c": "a"}]


@pytest.mark.parametrize("at", [12, 13, 15, 16, 17, 18])
def test_documented_row_with_another_value_or_checksum_is_refused(at: int) -> None:
    changed = bytearray(DOCUMENTED)
    changed[at] ^= 1
    decoded = run(DOCUMENTED_COLUMNS, DOCUMENTED, bytes(changed), DOCUMENTED, int_handle=1)
    assert [(error.index, error.cause, error.offset) for error in decoded.errors] == [
        (1, "the checksum does not match", 14)
    ]
    good = {"id": 1, "k": 10, "c": "a"}
    assert decoded.batch.to_pylist() == [good, dict.fromkeys(good), good]


def test_order_of_the_layout_does_not_matter() -> None:
    assert run(DOCUMENTED_COLUMNS[::-1], DOCUMENTED, int_handle=1).errors == ()


@pytest.mark.parametrize(
    ("column", "value", "covered"),
    [
        (spec(2, 8), -1, u64(2**64 - 1)),
        (spec(2, 1), -128, u64(2**64 - 128)),
        (spec(2, 8, unsigned=True), 2**64 - 1, u64(2**64 - 1)),
        (spec(2, 13), 1999, u64(1999)),
        (spec(2, 16, flen=64), 2**64 - 1, u64(2**64 - 1)),
        (spec(2, 247, elems=("a", "b")), 2, u64(2)),
        (spec(2, 247, elems=("a", "b")), 0, u64(0)),
        (spec(2, 248, elems=("a", "b")), 3, u64(3)),
        (spec(2, 5), -1.8, struct.pack("<d", -1.8)),
        (spec(2, 5), -0.0, struct.pack("<d", -0.0)),
        (spec(2, 4), 0.5, struct.pack("<d", 0.5)),
        (spec(2, 5), float("nan"), bytes(8)),
        (spec(2, 5), float("-inf"), bytes(8)),
        (spec(2, 15), "é", sized("é")),
        (spec(2, 15), "", bytes(4)),
        (spec(2, 15), b"\xff\xfe", sized(b"\xff\xfe")),  # not UTF-8: what is stored counts, not what is shown
        (spec(2, 252, binary=True), b"\0\xff", sized(b"\0\xff")),
        (spec(2, 246, flen=12, decimal=4), Decimal("11.99"), sized("11.9900")),
        (spec(2, 246, flen=12, decimal=2), Decimal("-0.5"), sized("-0.50")),
        (spec(2, 246, flen=50, decimal=30), Decimal("1e-30"), sized("0." + "0" * 29 + "1")),
        (spec(2, 246, flen=5, decimal=0), Decimal(0), sized("0")),
        (spec(2, 10), enc.pack_time(2020, 2, 29), sized("2020-02-29")),
        (spec(2, 12, decimal=0), enc.pack_time(2020, 2, 29, 1, 2, 3), sized("2020-02-29 01:02:03")),
        (spec(2, 12, decimal=3), 0, sized("0000-00-00 00:00:00.000")),
        (spec(2, 7, decimal=6), 1840446893366133311, sized("2011-11-10 11:11:11.999999")),
        (spec(2, 11, decimal=1), -3020399 * 10**9, sized("-838:59:59.0")),
        (spec(2, 245), {"key": [1, 2.0, None]}, sized('{"key": [1, 2.0, null]}')),
        (spec(2, 245), "<é>", sized('"<é>"')),
        (spec(2, 225), [1.5, -2.0], struct.pack("<Iff", 2, 1.5, -2.0)),
        (spec(2, 225), [], bytes(4)),
    ],
)
def test_each_type(column: ColumnSpec, value: Any, covered: bytes) -> None:
    columns = (spec(1, 8), column, spec(3, 15))
    cells: dict[int, bytes | None] = {1: b"\x07", 2: enc.cell(column, value), 3: b"end"}
    assert accepted(columns, cells, u64(7) + covered + sized("end"))


def test_nulls_and_columns_that_the_row_lacks_take_no_part() -> None:
    columns = (spec(1, 8), spec(2, 8), spec(3, 8, origin_default="5"), spec(4, 15, not_null=True), spec(5, 225))
    assert accepted(columns, {1: b"\x07", 2: None, 5: None}, u64(7))
    columns = (*columns[:4], spec(5, 225, not_null=True, origin_default="[1]"))
    assert accepted(columns, {1: b"\x07", 2: None}, u64(7))
    assert accepted(columns, {2: None}, b"")


def test_integer_handle_takes_part_in_its_place() -> None:
    columns = (spec(5, 8), spec(3, 15), spec(9, 15))
    cells: dict[int, bytes | None] = {3: b"x", 9: b"y"}
    assert accepted(columns, cells, sized("x") + u64(2**64 - 2) + sized("y"), key=record_key(1, -2), int_handle=5)
    unsigned = (spec(5, 8, unsigned=True), *columns[1:])
    assert accepted(unsigned, cells, sized("x") + u64(2**64 - 2) + sized("y"), key=record_key(1, -2), int_handle=5)
    assert accepted(columns, cells | {5: b"\x04"}, sized("x") + u64(4) + sized("y"), int_handle=5)


def test_hidden_handle_takes_no_part() -> None:
    assert accepted((spec(1, 8),), {1: b"\x07"}, u64(7), key=record_key(1, 99))


def test_clustered_primary_key_takes_part() -> None:
    columns = (spec(1, 15), spec(2, 12), spec(3, 246, flen=5, decimal=2), spec(4, 15))
    packed = enc.pack_time(2020, 1, 1)
    values = ["a longer key", packed, Decimal("1.5")]
    key = record_key(1, b"".join(map(enc.key_datum, columns[:3], values)))
    of_key = sized("a longer key") + sized("2020-01-01 00:00:00") + sized("1.50")
    assert accepted(columns, {4: b"v"}, of_key + sized("v"), key=key, common_handle=(1, 2, 3))
    whole = sized("a longer key ") + of_key[16:]  # the value has the original of a collated string
    assert accepted(columns, {1: b"a longer key ", 4: b"v"}, whole + sized("v"), key=key, common_handle=(1, 2, 3))


def test_rows_with_columns_outside_the_layout_are_not_verified() -> None:
    columns = (spec(1, 8), spec(2, 8))
    wrong = encode_v2({1: b"\x07", 2: b"\x08", 3: b"dropped"}, 0, sums=(1,))
    empty = encode_v2({1: b"\x07", 2: b"\x08", 3: None}, 0, sums=(1,))  # NULL adds nothing, so it is no obstacle
    decoded = run(columns, wrong, empty)
    assert [error.index for error in decoded.errors] == [1]
    assert decoded.batch.to_pylist()[0] == {"c1": 7, "c2": 8}


def test_rows_whose_key_columns_are_outside_the_layout_are_not_verified() -> None:
    wrong = encode_v2({2: b"\x08"}, 0, sums=(1,))
    assert run((spec(2, 8),), wrong, int_handle=1).errors == ()
    assert run((spec(2, 8),), wrong, common_handle=(1, 2)).errors == ()
    assert len(run((spec(2, 8),), wrong).errors) == 1


def test_times_written_before_their_column_got_more_digits() -> None:
    columns = (spec(1, 12, decimal=6), spec(2, 11, decimal=3), spec(3, 7, decimal=2))
    values = [enc.pack_time(2020, 2, 29, 1, 2, 3, 120_000), 10 * 10**9, enc.pack_time(2020, 2, 29, 1, 2, 3)]
    cells = {column.id: enc.cell(column, value) for column, value in zip(columns, values, strict=True)}
    covered = sized("2020-02-29 01:02:03.12") + sized("00:00:10") + sized("2020-02-29 01:02:03.0")
    assert accepted(columns, dict(cells), covered)
    cut = sized("2020-02-29 01:02:03.1") + covered[26:]
    assert len(run(columns, encode_v2(cells, 0, sums=(zlib.crc32(cut),))).errors) == 1


#: a summer and a winter moment (milliseconds) as sessions of a zone saw them
SUMMER, WINTER = enc.pack_time(2023, 7, 1, 10), enc.pack_time(2023, 1, 1, 10, 0, 0, 250_000)
ZONED = {
    "UTC": ("2023-07-01 10:00:00", "2023-01-01 10:00:00.250"),
    "Asia/Kathmandu": ("2023-07-01 15:45:00", "2023-01-01 15:45:00.250"),
    "Asia/Kolkata": ("2023-07-01 15:30:00", "2023-01-01 15:30:00.250"),
    "Pacific/Kiritimati": ("2023-07-02 00:00:00", "2023-01-02 00:00:00.250"),
    "Europe/Berlin": ("2023-07-01 12:00:00", "2023-01-01 11:00:00.250"),
    "America/New_York": ("2023-07-01 06:00:00", "2023-01-01 05:00:00.250"),
    "Australia/Sydney": ("2023-07-01 20:00:00", "2023-01-01 21:00:00.250"),
    "Europe/London": ("2023-07-01 11:00:00", "2023-01-01 10:00:00.250"),
}
ZONED_COLUMNS = (spec(1, 7, decimal=0), spec(2, 7, decimal=3), spec(3, 12, decimal=0), spec(4, 8))


def zoned_row(zone: str, number: int = 7, summer: int = SUMMER) -> bytes:
    """A row of that zone whose checksum is of the number 7 and the summer moment."""
    covered = [sized(text) for text in ZONED[zone]] + [sized("2023-07-01 12:00:00"), u64(7)]
    values = [summer, WINTER, enc.pack_time(2023, 7, 1, 12), number]
    cells = {c.id: enc.cell(c, value) for c, value in zip(ZONED_COLUMNS, values, strict=True)}
    return encode_v2(cells, 0, sums=(zlib.crc32(b"".join(covered)),))


@pytest.mark.parametrize("zone", ZONED)
def test_a_timestamp_was_hashed_in_the_zone_of_its_session(zone: str) -> None:
    """Damage of such a row is found."""
    rows = [zoned_row(zone), zoned_row(zone, number=8), zoned_row("UTC"), zoned_row(zone)]
    rows.append(zoned_row(zone, summer=enc.pack_time(2023, 7, 1, 10, 7)))
    rows.append(zoned_row(zone, summer=enc.pack_time(2022, 7, 1, 10)))
    assert [error.index for error in run(ZONED_COLUMNS, *rows).errors] == [1, 4, 5]


@pytest.mark.parametrize("zone", ZONED)
def test_the_moment_of_the_other_half_of_the_year_may_come_first(zone: str) -> None:
    columns = (spec(1, 7, decimal=3), spec(2, 7, decimal=0))
    cells = {1: enc.cell(columns[0], WINTER), 2: enc.cell(columns[1], SUMMER)}
    assert accepted(columns, cells, sized(ZONED[zone][1]) + sized(ZONED[zone][0]))


def test_sessions_of_many_zones_in_one_batch() -> None:
    rows = [zoned_row(zone) for zone in ZONED] * 20
    assert run(ZONED_COLUMNS, *rows).errors == ()
    assert len(run(ZONED_COLUMNS, *rows, zoned_row("UTC", number=9)).errors) == 1


def test_a_zero_timestamp_is_zero_in_every_zone() -> None:
    columns = (spec(1, 7, decimal=0), spec(2, 7, decimal=0))
    cells = {1: b"\0", 2: enc.cell(columns[1], SUMMER)}
    covered = sized("0000-00-00 00:00:00") + sized("2023-07-01 18:00:00")
    assert accepted(columns, cells, covered)


def test_the_search_for_zones_is_bounded() -> None:
    """Many damaged rows cost a bounded time, and the rows of zones that are known by then are still accepted."""
    columns = (*ZONED_COLUMNS, spec(5, 252))
    covered = (
        b"".join(map(sized, ZONED["Asia/Kolkata"])) + sized("2023-07-01 12:00:00") + u64(7) + sized(bytes(100_000))
    )
    values = [SUMMER, WINTER, enc.pack_time(2023, 7, 1, 12), 7, bytes(100_000)]
    cells = {c.id: enc.cell(c, value) for c, value in zip(columns, values, strict=True)}
    good, bad = (encode_v2(cells, 0, sums=(zlib.crc32(covered) ^ wrong,)) for wrong in (0, 1))
    began = time.process_time()
    decoded = run(columns, good, *[bad] * 300, good)
    assert [error.index for error in decoded.errors] == list(range(1, 301))
    assert time.process_time() - began < 4


def test_many_times_without_fractions() -> None:
    columns = tuple(spec(id_, 11, decimal=6) for id_ in range(1, 201))
    assert accepted(columns, {column.id: b"\0" for column in columns}, sized("00:00:00.000000") * 200)


def test_either_checksum_may_match() -> None:
    right, wrong = zlib.crc32(u64(7)), 1
    rows = [encode_v2({1: b"\x07"}, 0, sums=sums) for sums in ((right, wrong), (wrong, right), (wrong, wrong))]
    assert [error.index for error in run((spec(1, 8),), *rows).errors] == [2]


def test_another_fault_of_the_row_is_reported_first() -> None:
    columns = (spec(1, 8), spec(2, 247, elems=("a",)))
    decoded = run(columns, encode_v2({1: b"\x07", 2: b"\x09"}, 0, sums=(1,)))
    assert [(error.column, error.cause) for error in decoded.errors] == [("c2", "not a label of the column")]


def test_rows_of_all_checksum_versions_in_one_batch() -> None:
    cells: dict[int, bytes | None] = {1: b"\x07"}
    rows = [encode_v2(cells, version, KEY, sums=(zlib.crc32(u64(7)),)) for version in (0, 1, 2, None)]
    rows += [row[:-1] + bytes([row[-1] ^ 1]) for row in rows[:3]]
    assert [error.index for error in run((spec(1, 8),), *rows).errors] == [4, 5, 6]
