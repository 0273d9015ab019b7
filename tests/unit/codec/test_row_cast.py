"""What MODIFY COLUMN makes of values: the results that MySQL's manual and TiDB's conversions give, and refusals."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tistream.codec.row.cast import cast
from tistream.codec.row.layout import (
    BIT,
    BLOB,
    DATE,
    DATETIME,
    DECIMAL,
    DOUBLE,
    ENUM,
    FLOAT,
    INT24,
    JSON,
    LONG,
    LONGLONG,
    SET,
    SHORT,
    STRING,
    TIME,
    TIMESTAMP,
    TINY,
    VARCHAR,
    YEAR,
    ColumnSpec,
    storage_type,
)

REFUSED = object()


def spec(tp: int, **more: Any) -> ColumnSpec:
    if tp in (VARCHAR, STRING, ENUM, SET) or (tp == BLOB and not more.get("binary")):
        more.setdefault("charset", "utf8mb4")
    return ColumnSpec(id=1, name="c", tp=tp, **more)


def packed(year: int, month: int, day: int, hour: int = 0, minute: int = 0, second: int = 0, micro: int = 0) -> int:
    ymd = (year * 13 + month) << 5 | day
    return (ymd << 17 | hour << 12 | minute << 6 | second) << 24 | micro


def ints(tp: int = LONG, **more: Any) -> ColumnSpec:
    return spec(tp, **more)


def dec(digits: int, scale: int, **more: Any) -> ColumnSpec:
    return spec(DECIMAL, flen=digits, decimal=scale, **more)


def var(length: int, **more: Any) -> ColumnSpec:
    return spec(VARCHAR, flen=length, **more)


D = Decimal
CASES: list[tuple[str, ColumnSpec, ColumnSpec, list[Any], list[Any]]] = [
    ("int to bigint", ints(), ints(LONGLONG), [-5, 7, None], [-5, 7, None]),
    ("int to bigint unsigned", ints(), ints(LONGLONG, unsigned=True), [7, -1], [7, REFUSED]),
    (
        "bigint unsigned to bigint",
        ints(LONGLONG, unsigned=True),
        ints(LONGLONG),
        [2**63 - 1, 2**63],
        [2**63 - 1, REFUSED],
    ),
    ("int to tinyint", ints(), ints(TINY), [127, 128, -128, -129], [127, REFUSED, -128, REFUSED]),
    ("int to mediumint", ints(), ints(INT24), [8388607, 8388608], [8388607, REFUSED]),
    ("int to mediumint unsigned", ints(), ints(INT24, unsigned=True), [16777215, 16777216], [16777215, REFUSED]),
    ("not null", ints(), ints(LONGLONG, not_null=True), [1, None], [1, REFUSED]),
    ("int to decimal", ints(), dec(5, 2), [999, 1000, -999], [D("999.00"), REFUSED, D("-999.00")]),
    ("int to decimal(65,30)", ints(LONGLONG), dec(65, 30), [2**63 - 1], [D(2**63 - 1)]),
    ("int to decimal unsigned", ints(), dec(5, 0, unsigned=True), [-1, 0, 1], [REFUSED, D(0), D(1)]),
    ("int to double", ints(LONGLONG), spec(DOUBLE), [2**53, 2**53 + 1], [float(2**53), REFUSED]),
    ("int to float", ints(), spec(FLOAT), [2**24, 2**24 + 1], [float(2**24), REFUSED]),
    ("int to double(10,2)", ints(), spec(DOUBLE, flen=10, decimal=2), [1], [REFUSED]),
    ("int to varchar", ints(), var(3), [-12, 1234, 0], ["-12", REFUSED, "0"]),
    ("int to varbinary", ints(), spec(VARCHAR, flen=3, binary=True), [-12, 1234], [b"-12", REFUSED]),
    ("int to binary", ints(), spec(STRING, flen=3, binary=True), [1], [REFUSED]),
    ("zerofill to varchar", ints(unsigned=True, zerofill=True), var(9), [7], [REFUSED]),
    ("bigint unsigned to varchar", ints(LONGLONG, unsigned=True), var(30), [2**64 - 1], ["18446744073709551615"]),
    ("decimal, more digits", dec(5, 2), dec(7, 3), [D("-1.25")], [D("-1.250")]),
    (
        "decimal, half away from zero",
        dec(5, 2),
        dec(5, 1),
        [D("1.25"), D("-1.25"), D("1.24")],
        [D("1.3"), D("-1.3"), D("1.2")],
    ),
    ("decimal, rounded up out of range", dec(3, 2), dec(1, 0), [D("9.49"), D("9.50")], [D(9), REFUSED]),
    ("decimal too large", dec(6, 0), dec(5, 2), [D(999), D(1000)], [D("999.00"), REFUSED]),
    ("decimal unsigned", dec(3, 1), dec(3, 1, unsigned=True), [D("-0.1"), D("0.1")], [REFUSED, D("0.1")]),
    ("decimal, 65 digits", dec(65, 0), dec(65, 0, not_null=True), [D("9" * 65)], [D("9" * 65)]),
    ("decimal to int", dec(5, 2), ints(), [D("12.00"), D("12.50"), D("-3.00")], [12, REFUSED, -3]),
    (
        "decimal to varchar",
        dec(12, 2),
        var(8),
        [D("-85.30"), D("-85608.32"), D("1234567.89")],
        ["-85.30", REFUSED, REFUSED],
    ),
    ("tiny decimal to varchar", dec(20, 12), var(30), [D("0.000000000001")], ["0.000000000001"]),
    ("decimal to double", dec(15, 5), spec(DOUBLE), [D("0.1")], [0.1]),
    ("long decimal to double", dec(16, 5), spec(DOUBLE), [D("0.1")], [REFUSED]),
    ("float to double", spec(FLOAT), spec(DOUBLE), [0.5], [0.5]),
    ("double to float", spec(DOUBLE), spec(FLOAT), [0.5], [REFUSED]),
    ("double to varchar", spec(DOUBLE), var(20), [0.1, 1e15, 1e14, -2.5], ["0.1", REFUSED, "100000000000000", "-2.5"]),
    ("varchar to int", var(20), ints(), ["12", "-7", "012", "1.0", "", " 1", "2147483648"], [12, -7, *[REFUSED] * 5]),
    (
        "varchar to bigint unsigned",
        var(30),
        ints(LONGLONG, unsigned=True),
        ["18446744073709551615", "-1"],
        [2**64 - 1, REFUSED],
    ),
    (
        "varchar to decimal",
        var(20),
        dec(4, 1),
        ["12.3", "12.34", "-0.5", "1e2", "1000"],
        [D("12.3"), REFUSED, D("-0.5"), REFUSED, REFUSED],
    ),
    ("varchar to longer varchar", var(3), var(5, charset="utf8mb4"), ["aé文"], ["aé文"]),
    ("varchar to shorter varchar", var(9), var(2), ["文é", "abc"], ["文é", REFUSED]),
    ("varchar to char", var(9), spec(STRING, flen=9), ["a", "a "], ["a", REFUSED]),
    ("varchar to latin1", var(9), var(9, charset="latin1"), ["a", "é"], ["a", REFUSED]),
    ("bytes that were no text", var(9), var(10), ["a\ufffd"], [REFUSED]),
    ("varchar to text", var(300), spec(249, flen=255, charset="utf8mb4"), ["é" * 127, "é" * 128], ["é" * 127, REFUSED]),
    ("text to varbinary", var(9), spec(VARCHAR, flen=2, binary=True), ["ab", "abc", "é"], [b"ab", REFUSED, REFUSED]),
    (
        "blob to varbinary",
        spec(BLOB, flen=65535, binary=True),
        spec(VARCHAR, flen=2, binary=True),
        [b"\xff\0", b"abc"],
        [b"\xff\0", REFUSED],
    ),
    ("blob to text", spec(BLOB, flen=65535, binary=True), var(9), [b"a"], [REFUSED]),
    ("json to text", spec(JSON), spec(BLOB, flen=65535), ["1"], [REFUSED]),
    ("year to int", spec(YEAR), ints(SHORT), [1999, 0], [1999, 0]),
    ("year to varchar", spec(YEAR), var(4), [1999, 0], ["1999", REFUSED]),
    ("bit to int", spec(BIT, flen=8), ints(TINY), [5, 200], [5, REFUSED]),
    (
        "time to varchar",
        spec(TIME, decimal=4),
        var(20),
        [-1_500_000_000, 3_600_000_000_000],
        ["-00:00:01.5000", "01:00:00.0000"],
    ),
    (
        "time to fewer digits",
        spec(TIME, decimal=3),
        spec(TIME, decimal=1),
        [1_500_000_000, 1_550_000_000],
        [1_500_000_000, REFUSED],
    ),
    ("date to datetime", spec(DATE), spec(DATETIME, decimal=0), [packed(2020, 2, 29), 0], [packed(2020, 2, 29), 0]),
    (
        "datetime to date",
        spec(DATETIME, decimal=0),
        spec(DATE),
        [packed(2020, 2, 29), packed(2020, 2, 29, 1)],
        [packed(2020, 2, 29), REFUSED],
    ),
    (
        "datetime(3) to datetime",
        spec(DATETIME, decimal=3),
        spec(DATETIME, decimal=0),
        [packed(2020, 1, 1), packed(2020, 1, 1, micro=1000)],
        [packed(2020, 1, 1), REFUSED],
    ),
    (
        "datetime to varchar",
        spec(DATETIME, decimal=1),
        var(30),
        [packed(2020, 1, 2, 3, 4, 5, 600000)],
        ["2020-01-02 03:04:05.6"],
    ),
    ("timestamp to varchar", spec(TIMESTAMP, decimal=0), var(30), [packed(2020, 1, 2)], [REFUSED]),
    ("timestamp to datetime", spec(TIMESTAMP, decimal=0), spec(DATETIME, decimal=0), [packed(2020, 1, 2)], [REFUSED]),
    (
        "timestamp to timestamp(3)",
        spec(TIMESTAMP, decimal=0),
        spec(TIMESTAMP, decimal=3),
        [packed(2020, 1, 2)],
        [packed(2020, 1, 2)],
    ),
    ("enum to enum", spec(ENUM, elems=("a", "b")), spec(ENUM, elems=("b", "c", "A")), [2, 1, 0], [1, REFUSED, REFUSED]),
    ("enum to set", spec(ENUM, elems=("x", "y")), spec(SET, elems=("zz", "x", "y")), [1, 2], [2, 4]),
    ("enum to int", spec(ENUM, elems=("x", "y")), ints(), [1, 2], [1, 2]),
    ("enum to varchar", spec(ENUM, elems=("x", "y,z")), var(3), [2, 0], ["y,z", ""]),
    ("set to set", spec(SET, elems=("a", "b", "c")), spec(SET, elems=("c", "a")), [5, 2, 0], [3, REFUSED, 0]),
    ("set to text", spec(SET, elems=("p", "q", "r")), spec(BLOB, flen=65535), [5, 0], ["p,r", ""]),
    ("varchar to enum", var(9), spec(ENUM, elems=("a", "b")), ["b", "B", ""], [2, REFUSED, REFUSED]),
]


@pytest.mark.parametrize(("old", "new", "values", "expected"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_value_is_converted_or_refused(
    old: ColumnSpec, new: ColumnSpec, values: list[Any], expected: list[Any]
) -> None:
    result, sure = cast(old, new, pa.array(values, storage_type(old)))
    assert result.type == storage_type(new)
    assert sure.tolist() == [w is not REFUSED for w in expected]
    assert result.to_pylist() == [None if w is REFUSED else w for w in expected]


def test_a_slice_of_a_column_is_converted_like_the_column() -> None:
    old, new = spec(SET, elems=("a", "b")), var(9)
    values = pa.array([1, 2, 3, None, 0], pa.uint64())
    whole, sure = cast(old, new, values)
    part, part_sure = cast(old, new, values.slice(1, 3))
    assert part.to_pylist() == whole.to_pylist()[1:4] == ["b", "a,b", None]
    assert part_sure.tolist() == sure.tolist()[1:4]


def test_every_pair_of_kinds_gives_an_answer_for_nothing() -> None:
    types = [
        ints(), ints(LONGLONG, unsigned=True), spec(YEAR), spec(BIT, flen=9), spec(FLOAT), spec(DOUBLE), dec(9, 2),
        spec(DATETIME, decimal=2), spec(DATE), spec(TIME, decimal=0), spec(ENUM, elems=("a",)), spec(SET, elems=("a",)),
        var(9), spec(VARCHAR, flen=9, binary=True), spec(JSON), spec(225),
    ]  # fmt: skip
    for old in types:
        for new in types:
            result, sure = cast(old, new, pa.nulls(2, storage_type(old)))
            assert (result.type, result.null_count, bool(sure.all())) == (storage_type(new), 2, True)
            empty, none = cast(old, new, pa.array([], storage_type(old)))
            assert (len(empty), len(none)) == (0, 0)
