"""Storage columns as text, labels and bytes, and as native Arrow types."""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tistream.codec.row.encode import pack_time
from tistream.codec.row.layout import ColumnSpec, storage_type
from tistream.codec.row.native import native, native_type
from tistream.codec.row.text import bit_bytes, enum_labels, float_plain, set_labels, text
from tistream.errors import InvalidInput


def spec(tp: int, **more: Any) -> ColumnSpec:
    return ColumnSpec(id=1, name="c", tp=tp, **more)


def shown(column: ColumnSpec, *values: Any) -> list[str | None]:
    array = pa.array([*values, None], storage_type(column))
    printed = text(column, array)
    printed.validate(full=True)
    assert printed.type == pa.string()
    out: list[str | None] = printed.to_pylist()
    assert out.pop() is None
    assert text(column, array[1:]).to_pylist() == [*out[1:], None]
    return out


@pytest.mark.parametrize(
    ("column", "value", "want"),
    [
        (spec(1), -128, "-128"),
        (spec(8, unsigned=True), 2**64 - 1, "18446744073709551615"),
        (spec(13), 0, "0000"),
        (spec(13), 1999, "1999"),
        (spec(16, flen=64), 2**64 - 1, "18446744073709551615"),
        (spec(246, flen=10, decimal=2), Decimal("0.00"), "0.00"),
        (spec(246, flen=10, decimal=2), Decimal("-0.05"), "-0.05"),
        (spec(246, flen=10, decimal=0), Decimal("-4681882190"), "-4681882190"),
        (spec(246, flen=5, decimal=5), Decimal("-0.00001"), "-0.00001"),
        (spec(246, flen=38, decimal=18), Decimal("-" + "9" * 20 + "." + "9" * 18), "-" + "9" * 20 + "." + "9" * 18),
        (spec(246, flen=65, decimal=30), Decimal("9" * 35 + "." + "9" * 30), "9" * 35 + "." + "9" * 30),
        (spec(246, flen=65, decimal=30), Decimal("-1e-30"), "-0." + "0" * 29 + "1"),
        (spec(246, flen=65, decimal=0), Decimal("-" + "1234567890" * 6), "-" + "1234567890" * 6),
        (spec(246, flen=20, decimal=9), Decimal("1000000000.000000001"), "1000000000.000000001"),
        (spec(10), pack_time(1000, 1, 1), "1000-01-01"),
        (spec(10), 0, "0000-00-00"),
        (spec(10), pack_time(2016, 0, 0), "2016-00-00"),
        (spec(12, decimal=0), pack_time(2018, 1, 19, 3, 14, 7), "2018-01-19 03:14:07"),
        (spec(12, decimal=1), pack_time(2018, 1, 19, 3, 14, 7, 500_000), "2018-01-19 03:14:07.5"),
        (spec(12, decimal=3), pack_time(9959, 9, 6, 4, 35, 49, 950_000), "9959-09-06 04:35:49.950"),
        (spec(7, decimal=6), 1840446893366133311, "2011-11-10 11:11:11.999999"),
        (spec(7, decimal=-1), 0, "0000-00-00 00:00:00"),
        (spec(11, decimal=0), -3020399 * 10**9, "-838:59:59"),
        (spec(11, decimal=6), -1000, "-00:00:00.000001"),
        (spec(11, decimal=1), 1597157500 * 10**6, "443:39:17.5"),
        (spec(247, elems=("a", "b,c")), 2, "b,c"),
        (spec(247, elems=("a",)), 0, ""),
        (spec(248, elems=("r", "g", "b", "x y")), 14, "g,b,x y"),
        (spec(248, elems=("r",)), 0, ""),
        (spec(245), '{"a": 1}', '{"a": 1}'),
        (spec(15), "text", "text"),
        (spec(15, binary=True), b"bytes\xff", "bytes\ufffd"),
        (spec(225), [1.0, 2.5, -0.42695963], "[1,2.5,-0.42695963]"),
        (spec(225), [], "[]"),
        (spec(225), [1e20, 1e-7], "[100000000000000000000,0.0000001]"),
        (spec(4), 0.1, "0.1"),
        (spec(4), 16777216, "16777216"),
        (spec(4), struct.unpack("f", struct.pack("f", 3.4028235e38))[0], "3.4028235e38"),
        (spec(4), 1160.4523, "1160.4523"),
        (spec(5), 0.0, "0"),
        (spec(5), -0.0, "-0"),
        (spec(5), 1e15, "1e15"),
        (spec(5), 999999999999999.0, "999999999999999"),
        (spec(5), 1.2345678901234568e17, "1.2345678901234568e17"),
        (spec(5), 1e-15, "0.000000000000001"),
        (spec(5), 9e-16, "9e-16"),
        (spec(5), 0.0000000000000011705872257494264, "0.0000000000000011705872257494264"),
        (spec(5), 1.7976931348623157e308, "1.7976931348623157e308"),
        (spec(5), -100.5, "-100.5"),
    ],
)
def test_text(column: ColumnSpec, value: object, want: str) -> None:
    assert shown(column, value, value) == [want, want]


@pytest.mark.parametrize(
    ("value", "single", "want"),
    [
        (1.1754944e-38, True, "0." + "0" * 37 + "11754944"),
        (0.1, True, "0.1"),
        (0.1, False, "0.1"),
        (16777217.0, True, "16777216"),
        (5e-324, False, "0." + "0" * 323 + "5"),
        (1e300, False, "1" + "0" * 300),
        (-1.5e20, False, "-150000000000000000000"),
        (100.0, False, "100"),
        (0.0, False, "0"),
    ],
)
def test_float_plain_never_has_an_exponent(value: float, single: bool, want: str) -> None:
    texts = float_plain(pa.array([value, None], pa.float64()), single)
    assert texts.to_pylist() == [want, None]
    assert float_plain(pa.array([], pa.float32()), single).to_pylist() == []
    plain = float_plain(pa.array([1e300, value, None, 0.5], pa.float64()).slice(1), single)  # others have an exponent
    assert plain.to_pylist() == [want, None, "0.5"]
    alone = float_plain(pa.array([2.25, value, None, 0.5], pa.float64()).slice(1), single)
    assert alone.to_pylist() == [want, None, "0.5"]


def test_labels() -> None:
    enum = spec(247, elems=("a", "b"))
    assert enum_labels(enum, pa.array([0, 1, 2, None], pa.uint64())).to_pylist() == ["", "a", "b", None]
    many = spec(248, elems=tuple(f"m{n}" for n in range(64)))
    labels = set_labels(many, pa.array([0, 1 << 63 | 1, None, 2], pa.uint64())).to_pylist()
    assert labels == ["", "m0,m63", None, "m1"]
    with pytest.raises(InvalidInput):
        enum_labels(enum, pa.array([3], pa.uint64()))
    with pytest.raises(InvalidInput):
        set_labels(spec(248, elems=("a",)), pa.array([2], pa.uint64()))


def test_labels_ignore_values_under_a_null() -> None:
    dirty = pa.Array.from_buffers(pa.uint64(), 2, [pa.py_buffer(b"\1"), pa.py_buffer(struct.pack("<QQ", 1, 2**64 - 1))])
    assert enum_labels(spec(247, elems=("a",)), dirty).to_pylist() == ["a", None]
    assert set_labels(spec(248, elems=("a",)), dirty).to_pylist() == ["a", None]


@pytest.mark.parametrize(
    ("flen", "value", "want"),
    [(1, 1, "01"), (8, 78, "4e"), (17, 119958, "01d496"), (64, 2**64 - 1, "ff" * 8), (9, 256, "0100")],
)
def test_bit_bytes(flen: int, value: int, want: str) -> None:
    values = bit_bytes(spec(16, flen=flen), pa.array([value, None], pa.uint64()))
    assert values.to_pylist() == [bytes.fromhex(want), None]


def test_text_takes_only_the_storage_form() -> None:
    with pytest.raises(InvalidInput, match="storage form"):
        text(spec(3), pa.array([1], pa.int64()))


def converted(column: ColumnSpec, *values: Any) -> list[Any]:
    array = native(column, pa.array([*values, None], storage_type(column)))
    array.validate(full=True)
    assert array.type == native_type(column)
    out: list[Any] = array.to_pylist()
    assert out.pop() is None
    return out


@pytest.mark.parametrize(
    "day", [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(1970, 1, 1), dt.date(2000, 2, 29), dt.date(9999, 12, 31)]
)
def test_dates(day: dt.date) -> None:
    assert converted(spec(10), pack_time(day.year, day.month, day.day)) == [day]


def test_every_day_of_four_centuries() -> None:
    days = [dt.date.fromordinal(n) for n in range(dt.date(1700, 1, 1).toordinal(), dt.date(2101, 1, 1).toordinal())]
    assert converted(spec(10), *(pack_time(day.year, day.month, day.day) for day in days)) == days


@pytest.mark.parametrize(
    "packed",
    [
        0,
        pack_time(2016, 0, 0),
        pack_time(2016, 1, 0),
        pack_time(2016, 0, 1),
        pack_time(2021, 2, 29),
        pack_time(1900, 2, 29),
        pack_time(2021, 4, 31),
        pack_time(0, 1, 1),
    ],
)
def test_dates_that_do_not_exist_become_null(packed: int) -> None:
    for tp in (7, 10, 12):
        assert converted(spec(tp), packed, pack_time(2020, 2, 29))[0] is None


def test_datetimes_and_timestamps() -> None:
    packed = pack_time(2011, 11, 10, 11, 11, 11, 999_999)
    moment = dt.datetime(2011, 11, 10, 11, 11, 11, 999_999, dt.UTC)
    assert converted(spec(7, decimal=6), packed) == [moment]
    assert converted(spec(12, decimal=6), packed) == [moment.replace(tzinfo=None)]
    before = dt.datetime(1969, 12, 31, 23, 59, 59, tzinfo=dt.UTC)
    assert converted(spec(12), pack_time(1969, 12, 31, 23, 59, 59)) == [before.replace(tzinfo=None)]


def test_durations() -> None:
    want = [dt.timedelta(hours=-838, minutes=-59, seconds=-59), dt.timedelta(microseconds=-1)]
    assert converted(spec(11), -3020399 * 10**9, -1000) == want


def test_native_labels() -> None:
    assert converted(spec(247, elems=("a", "b")), 2, 0, 1) == ["b", "", "a"]
    assert converted(spec(248, elems=("a", "b", "c")), 5, 0) == [["a", "c"], []]
    with pytest.raises(InvalidInput):
        native(spec(247, elems=("a",)), pa.array([2], pa.uint64()))


def test_other_types_stay_as_they_are() -> None:
    for column, value in [
        (spec(3), 5),
        (spec(15), "x"),
        (spec(225), [1.0]),
        (spec(245), "{}"),
        (spec(16, flen=9), 300),
    ]:
        assert converted(column, value) == [value]


def test_native_takes_only_the_storage_form() -> None:
    with pytest.raises(InvalidInput, match="storage form"):
        native(spec(10), pa.array([1], pa.int64()))
