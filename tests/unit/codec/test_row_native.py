"""Storage columns as native Arrow types."""

import datetime as dt
from typing import Any

import pyarrow as pa
import pytest

from tistream.codec.row.encode import pack_time
from tistream.codec.row.layout import ColumnSpec, storage_type
from tistream.codec.row.native import native, native_type
from tistream.errors import InvalidInput


def spec(tp: int, **more: Any) -> ColumnSpec:
    return ColumnSpec(id=1, name="c", tp=tp, **more)


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


def test_labels() -> None:
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
