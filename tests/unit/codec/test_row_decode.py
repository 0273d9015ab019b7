"""Row vectors of real servers and documentation, missing columns, handles and bad rows."""

import math
import struct
import zlib
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from tests.kit.row_encoder import encode_v2, record_key
from tistream.codec.row import encode as enc
from tistream.codec.row.decode import Decoded, decode
from tistream.codec.row.layout import ColumnSpec, RowLayout, ValueKind, kind_of
from tistream.errors import InvalidInput

INT_KEY = bytes.fromhex("7480000000000000685f728000000000000001")  # table 104, handle 1
ROW_B = (
    "80000b0001000103060708090c0d0e0f1021020003000b000e001000180019002100240041004500e803034003333333333332616263ff7f"
    "bffccccccccccccd020000008733e69e1901008101010000001c0000001300000003000c160000006b65790576616c756500ca9a3b"
)
ROW_A = (
    "80000f00030001030508090c0e1016181974757677020b6401000900110016001700190036003e003f00420044004c004d00510051"
    "0001c0000000000000003f420fcbb2948a1906048b26ac02cf0701010000001c00000013000000010009140000006102000000000000"
    "000080e2c2180d0000016162636162c0180000000000000130303100"
)
ROW_C = "8001040001000100000003000000080000000c0000004f01000002000000030000000500000006000000e80303ff7f02"
ROW_V1 = (
    "080208d00f08180804084200080e0206616263081205bffccccccccccccd081a09808080b8b8c6b9cf1908200880a8d6b907081c06010081"
)


Row = str | bytes | None


def spec(id_: int, tp: int, **more: Any) -> ColumnSpec:
    return ColumnSpec(id=id_, name=f"c{id_}", tp=tp, **more)


def run(columns: list[ColumnSpec], rows: list[Row], key: str | bytes = INT_KEY, **handle: Any) -> Decoded:
    values = [bytes.fromhex(row) if isinstance(row, str) else row for row in rows]
    one = bytes.fromhex(key) if isinstance(key, str) else key
    layout = RowLayout(name="d.t", columns=tuple(columns), **handle)
    decoded = decode(layout, pa.array([one] * len(rows), pa.binary()), pa.array(values, pa.binary()))
    decoded.batch.validate(full=True)
    return decoded


def one(columns: list[ColumnSpec], row: Row, key: str | bytes = INT_KEY, **handle: Any) -> dict[str, Any]:
    decoded = run(columns, [row], key, **handle)
    assert decoded.errors == ()
    (values,) = decoded.batch.to_pylist()
    assert isinstance(values, dict)
    return values


def stored(column: ColumnSpec, raw: bytes) -> Any:
    return one([column], encode_v2({column.id: raw}))[column.name]


def cause(decoded: Decoded, index: int = 0) -> str:
    errors = [error for error in decoded.errors if error.index == index]
    assert len(errors) == 1
    return errors[0].cause


def test_row_of_every_common_type_from_the_server() -> None:
    columns = [spec(1, 3), spec(3, 3, unsigned=True), spec(6, 5), spec(7, 15), spec(8, 2), spec(9, 5), spec(12, 3)]
    columns += [spec(13, 12), spec(14, 246, flen=10, decimal=0), spec(15, 245), spec(16, 11), spec(33, 3)]
    want = {"c1": 1000, "c3": 3, "c6": -1.8, "c7": "abc", "c8": 32767, "c9": 1.8, "c12": 2, "c13": 1846166006251126784}
    assert one(columns, ROW_B) == want | {"c14": Decimal(1), "c15": '{"key": "value"}', "c16": 10**9, "c33": None}


def test_row_of_rarer_types() -> None:
    columns = [spec(1, 8), spec(3, 5), spec(5, 7, decimal=6), spec(8, 246, flen=6, decimal=4)]
    columns += [spec(9, 247, elems=("y", "n"))]
    columns += [spec(12, 13), spec(14, 245), spec(16, 11), spec(22, 2, unsigned=True), spec(24, 252, binary=True)]
    columns += [spec(25, 253), spec(116, 4), spec(117, 248, elems=("n1", "n2")), spec(118, 16, flen=24), spec(119, 252)]
    columns += [spec(2, 8), spec(11, 8), spec(100, 8)]
    want = [1, 2.0, 1840446893366133311, Decimal("11.9900"), 2, 1999, '{"a": 2}', 14400 * 10**9, 1, b"abc", "ab", 6.0]
    assert list(one(columns, ROW_A).values()) == [*want, 1, 3223600, "", None, None, None]


def test_large_row() -> None:
    columns = [spec(1, 3), spec(3, 3, unsigned=True), spec(8, 2), spec(12, 1), spec(335, 3), spec(336, 3)]
    assert list(one(columns, ROW_C).values()) == [1000, 3, 32767, 2, None, None]


def test_old_row_format() -> None:
    columns = [spec(1, 3), spec(12, 1), spec(33, 3), spec(7, 15), spec(9, 5), spec(13, 12), spec(16, 11)]
    columns += [spec(14, 246, flen=5, decimal=2)]
    want = [1000, 2, None, "abc", 1.8, 1846166006251126784, 10**9, Decimal("1.00")]
    assert list(one(columns, ROW_V1).values()) == want


def test_empty_old_row_has_only_missing_columns() -> None:
    assert one([spec(1, 3, origin_default="5"), spec(2, 3)], "00") == {"c1": 5, "c2": None}


@pytest.mark.parametrize(
    ("row", "value"),
    [
        ("80000100000002" + "0200" + "7fff", -129),
        ("80000100000002" + "0100" + "80", -128),
        ("80000100000002" + "0100" + "ff", -1),
        ("80000100000002010000", 0),
        ("8000010000000201007f", 127),
        ("8000010000000202008000", 128),
        ("80000100000002040000800000", 32768),
        ("8000010000000208000000008000000000", 2**31),
    ],
)
def test_integer_widths(row: str, value: int) -> None:
    assert one([spec(2, 8)], row) == {"c2": value}


def test_documentation_rows() -> None:
    assert one([spec(2, 15)], "800001000000020500666f727479") == {"c2": "forty"}
    assert one([spec(2, 1), spec(3, 1)], "80000200000002030100020064f9") == {"c2": 100, "c3": -7}
    assert one([spec(5, 15)], "800001000000050000") == {"c5": ""}
    assert one([spec(5, 15)], "80000100000005050068656c6c6f") == {"c5": "hello"}


@pytest.mark.parametrize(
    ("raw", "flen", "decimal", "value"),
    [
        ("0e04810dfb38d204d2", 14, 4, "1234567890.1234"),
        ("010081", 1, 0, "1"),
        ("010080", 1, 0, "0"),
        ("01007e", 1, 0, "-1"),
        ("040275c8", 4, 2, "-10.55"),
        ("010181", 1, 1, "0.1"),
        ("04037ffffe", 4, 3, "-0.001"),
        ("0603807b007b", 6, 3, "123.123"),
        ("06048b26ac", 6, 4, "11.9900"),
        ("0500803039", 5, 0, "12345"),
        ("0a0285f5e0ff63", 10, 2, "99999999.99"),
        ("1e1980000000bc614e35b7bf870087fdd9", 30, 25, "0.0123456789012345678912345"),
        ("010181", 65, 30, "0.1" + "0" * 29),  # a shape smaller than the column's
        ("04037ffffe", 3, 2, "0.00"),  # a longer fraction is rounded half up
        ("0603807b007b", 5, 2, "123.12"),
        ("0403" + "80" + "0005", 5, 2, "0.01"),
        ("0403" + "7f" + "fffa", 5, 2, "-0.01"),
    ],
)
def test_decimals(raw: str, flen: int, decimal: int, value: str) -> None:
    assert str(stored(spec(1, 246, flen=flen, decimal=decimal), bytes.fromhex(raw))) == value


@pytest.mark.parametrize("value", ["9" * 35 + "." + "9" * 30, "-" + "9" * 35 + "." + "9" * 30, "-0." + "0" * 29 + "1"])
def test_the_longest_decimals(value: str) -> None:
    raw = enc.binary_decimal(Decimal(value), 65, 30)
    assert stored(spec(1, 246, flen=65, decimal=30), raw) == Decimal(value)


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("0400", "null"),
        ("0401", "true"),
        ("0402", "false"),
        ("09ffffffffffffffff", "-1"),
        ("0b000000000000f83f", "1.5"),
        ("0c03616263", '"abc"'),
        ("030000000008000000", "[]"),
        ("010000000008000000", "{}"),
        ("01010000001c0000001300000003000c160000006b65790576616c7565", '{"key": "value"}'),
        ("030400000026000000091c0000000c240000000400000000040100000001000000000000000161", '[1, "a", null, true]'),
        ("0e0000000000baa01f", '"2024-02-29"'),
        ("1100c29a645403000000000000", '"01:01:01.000000"'),
        ("0affffffffffffffff", "18446744073709551615"),
        ("0dfd03616263", '"base64:type253:YWJj"'),
    ],
)
def test_json_vectors(raw: str, shown: str) -> None:
    assert stored(spec(1, 245), bytes.fromhex(raw)) == shown


@pytest.mark.parametrize(
    ("number", "shown"),
    [
        (1.0, "1.0"),
        (-0.0, "-0.0"),
        (806.25, "806.25"),
        (1e14, "100000000000000.0"),
        (1e15, "1e15"),
        (1.5e20, "1.5e20"),
        (1e-15, "0.000000000000001"),
        (9e-16, "9e-16"),
        (5e-324, "5e-324"),
    ],
)
def test_json_floats(number: float, shown: str) -> None:
    assert stored(spec(1, 245), enc.binary_json(number)) == shown
    assert stored(spec(1, 245), enc.binary_json([number, number])) == f"[{shown}, {shown}]"


def test_json_strings_are_escaped_as_the_server_does() -> None:
    raw = enc.binary_json('<é>&"\\\b\f\n\r\t\x01\x7f\u2028\u2029\U0001f600\udcff')
    assert stored(spec(1, 245), raw) == '"<é>&\\"\\\\\\b\\f\\n\\r\\t\\u0001\x7f\\u2028\\u2029\U0001f600\\ufffd"'


def nested_arrays(depth: int) -> bytes:
    body = struct.pack("<II", 0, 8)
    for _ in range(depth - 1):
        body = struct.pack("<II", 1, 13 + len(body)) + bytes([3]) + struct.pack("<I", 13) + body
    return bytes([3]) + body


def test_deep_json_is_printed_up_to_the_bound_and_refused_beyond_it() -> None:
    column = spec(1, 245)
    assert stored(column, nested_arrays(1000)) == "[" * 1000 + "]" * 1000
    assert cause(run([column], [encode_v2({1: nested_arrays(1001)})])) == "a JSON document nested too deep"


def test_json_that_shares_its_parts_is_refused_in_linear_time() -> None:
    """An array that contains itself; and thirty levels of arrays, each with ten items that are all the same array:
    10**30 values in 2 kB."""
    body = struct.pack("<II", 0, 8)
    for _ in range(30):
        body = struct.pack("<II", 10, 58 + len(body)) + (bytes([3]) + struct.pack("<I", 58)) * 10 + body
    for each in (struct.pack("<II", 1, 2013) + bytes([3]) + struct.pack("<I", 0) + bytes(2000), body):
        why = cause(run([spec(1, 245)], [encode_v2({1: bytes([3]) + each})]))
        assert why == "a JSON document that refers to its parts more than once"


def test_infinite_json_number_is_refused() -> None:
    assert cause(run([spec(1, 245)], [encode_v2({1: enc.binary_json(math.inf)})])) == "a JSON number that is not finite"


def test_vector() -> None:
    assert stored(spec(1, 225), bytes.fromhex("02000000cdcc8c3fcdcc0c40")) == pytest.approx([1.1, 2.2])
    assert stored(spec(1, 225), bytes(4)) == []
    assert cause(run([spec(1, 225)], [encode_v2({1: bytes.fromhex("03000000cdcc8c3f")})])) == "a broken vector"


def test_text_that_is_not_utf8_gets_a_replacement_for_each_byte() -> None:
    rows = [encode_v2({1: raw}) for raw in (b"ok", b"\xe4\xb8", "中".encode() + b"\xff!", b"\xed\xa0\x80", b"")]
    texts = run([spec(1, 15)], list(rows)).batch.column(0).to_pylist()
    assert texts == ["ok", "\ufffd\ufffd", "中\ufffd!", "\ufffd\ufffd\ufffd", ""]


def test_integer_handle_fills_a_column_that_the_value_lacks() -> None:
    column = spec(1, 8, not_null=True)
    row = encode_v2({2: b"x"})
    assert one([column], row, record_key(114, -1), int_handle=1) == {"c1": -1}
    unsigned = spec(1, 8, unsigned=True, not_null=True)
    assert one([unsigned], row, record_key(114, -1), int_handle=1) == {"c1": 2**64 - 1}
    assert one([column], encode_v2({1: b"\x07"}), record_key(114, -1), int_handle=1) == {"c1": 7}


def test_clustered_primary_key_of_the_server() -> None:
    key = "74800000000000ffff5f7205bff199999999999a013131000000000000f9"
    columns = [spec(2, 15), spec(1, 5)]
    assert one(columns, "00", key, common_handle=(1, 2)) == {"c2": "11", "c1": 1.1}
    assert one(columns, encode_v2({2: b"11  "}), key, common_handle=(1, 2)) == {"c2": "11  ", "c1": 1.1}


def test_clustered_primary_key_that_needs_padding() -> None:
    key = bytes.fromhex("74800000000000ffff5f72") + bytes.fromhex("060201810100000000")
    assert one([spec(1, 246, flen=10, decimal=3)], "00", key, common_handle=(1,)) == {"c1": Decimal("1.100")}


def test_clustered_primary_key_of_every_type() -> None:
    columns = [spec(1, 3), spec(2, 8, unsigned=True), spec(3, 4), spec(4, 246, flen=40, decimal=9), spec(5, 11)]
    columns += [
        spec(6, 12),
        spec(7, 13),
        spec(8, 247, elems=("a", "b")),
        spec(9, 16, flen=9),
        spec(10, 15, binary=True),
    ]
    values = [-5, 2**63, 0.5, Decimal("-1.000000001"), -(10**9), enc.pack_time(2020, 2, 29), 1999, 2, 511, b"12345678"]
    key = record_key(7, b"".join(map(enc.key_datum, columns, values)))
    assert list(one(columns, "00", key, common_handle=tuple(range(1, 11))).values()) == values


def test_null_value_is_null_throughout() -> None:
    columns = [spec(1, 3, not_null=True, origin_default="5"), spec(2, 8)]
    assert one(columns, None, int_handle=2) == {"c1": None, "c2": None}


PACKED = enc.pack_time(2020, 1, 1, 23, 59, 58, 120_000)


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (spec(1, 3, origin_default="-7"), -7),
        (spec(1, 8, unsigned=True, origin_default="18446744073709551615"), 2**64 - 1),
        (spec(1, 1, origin_default=1), 1),
        (spec(1, 13, origin_default="2020"), 2020),
        (spec(1, 5, origin_default="1.5"), 1.5),
        (spec(1, 4, origin_default="0.1"), struct.unpack("f", struct.pack("f", 0.1))[0]),
        (spec(1, 246, flen=12, decimal=2, origin_default="-0.005"), Decimal("-0.01")),
        (spec(1, 246, flen=65, decimal=30, origin_default="1e-30"), Decimal("1e-30")),
        (spec(1, 10, origin_default="2020-01-31"), enc.pack_time(2020, 1, 31)),
        (
            spec(1, 12, decimal=2, origin_default="2020-01-01 23:59:58.12"),
            enc.pack_time(2020, 1, 1, 23, 59, 58, 120000),
        ),
        (spec(1, 7, version=2, origin_default="0000-00-00 00:00:00"), 0),
        (spec(1, 11, origin_default="-838:59:59"), -3020399 * 10**9),
        (spec(1, 11, decimal=3, origin_default="00:00:01.250"), 1_250_000_000),
        (spec(1, 15, origin_default="héllo"), "héllo"),
        (spec(1, 15, origin_default=""), ""),
        (spec(1, 254, binary=True, flen=4, origin_default="ab"), b"ab\0\0"),
        (spec(1, 254, binary=True, flen=4, origin_default="ab\0\0"), b"ab\0\0"),
        (spec(1, 15, binary=True, flen=4, origin_default="ab"), b"ab"),
        (spec(1, 16, flen=10, origin_default="\x01\x02", origin_default_bit=b"\x01\x02"), 0x102),
        (spec(1, 247, elems=("x", "Y"), origin_default="y"), 2),
        (spec(1, 248, elems=("x", "y", "z"), origin_default="x,z"), 5),
        (spec(1, 248, elems=("x", "y", "z"), origin_default=""), 0),
        (spec(1, 225, origin_default="[1, 2.5]"), [1.0, 2.5]),
        (spec(1, 3), None),
        (spec(1, 3, not_null=True), 0),
        (spec(1, 5, not_null=True), 0.0),
        (spec(1, 246, flen=6, decimal=2, not_null=True), Decimal("0.00")),
        (spec(1, 12, not_null=True), 0),
        (spec(1, 11, not_null=True), 0),
        (spec(1, 15, not_null=True), ""),
        (spec(1, 254, binary=True, flen=3, not_null=True), b"\0\0\0"),
        (spec(1, 252, binary=True, not_null=True), b""),
        (spec(1, 247, elems=("x", "y"), not_null=True), 1),
        (spec(1, 248, elems=("x", "y"), not_null=True), 0),
        (spec(1, 16, flen=1, not_null=True), 0),
        (spec(1, 245, not_null=True), "null"),
    ],
)
def test_missing_column_takes_its_origin_default(column: ColumnSpec, value: object) -> None:
    assert one([column], encode_v2({2: b"x"})) == {"c1": value}
    assert one([column], encode_v2({1: None})) == {"c1": None}


def test_default_of_another_type_fails_the_rows_that_lack_the_column() -> None:
    decoded = run([spec(1, 3, origin_default="abc")], ["00", encode_v2({1: b"\x05"}), encode_v2({1: None})])
    assert decoded.batch.column(0).to_pylist() == [None, 5, None]
    (error,) = decoded.errors
    assert (error.index, error.column, error.offset) == (0, "c1", -1)
    assert "origin default" in error.cause


COLUMNS_SUMMED = "8002020000000203010002000a61004d5854e3"  # CRC 3813955661, as in TiDB's documentation
ROW_SUMMED = encode_v2({2: b"\x0a", 3: b"a"}, 2, INT_KEY)
KEY_SUMMED = encode_v2({2: b"\x0a", 3: b"a"}, 1, INT_KEY)


def test_checksums_are_verified() -> None:
    assert KEY_SUMMED.hex() == "8002020000000203010002000a610162b76205"
    columns = [spec(1, 3), spec(2, 3), spec(3, 254)]
    interim = bytearray(ROW_SUMMED[:-5]) + b"\x01"
    interim += struct.pack("<I", zlib.crc32(bytes(interim) + INT_KEY[11:]))
    rows: list[Row] = [ROW_SUMMED, KEY_SUMMED, COLUMNS_SUMMED, bytes(interim)]
    good = run(columns, rows, int_handle=1)
    assert good.errors == ()
    assert good.batch.to_pylist() == [{"c1": 1, "c2": 10, "c3": "a"}] * 4
    other_key = run(columns, rows, record_key(104, 2), int_handle=1)
    assert [error.cause for error in other_key.errors] == ["the checksum does not match"] * 4


def test_second_checksum_is_allowed() -> None:
    row = encode_v2({2: b"\x0a"}, 2, INT_KEY, extra=True)
    assert one([spec(2, 3)], row) == {"c2": 10}


@pytest.mark.parametrize(
    ("row", "why", "offset"),
    [
        (b"", "the value is empty", 0),
        (b"\x80\0\1", "the header is longer than the value", 0),
        (b"\x80\0\xff\xff\0\0", "the header is longer than the value", 2),
        (b"\x80\x04\0\0\0\0", "unknown row flags", 1),
        ("80000200000003020100020064f9", "column ids are not ascending", 7),
        ("800001000000020600666f727479", "a column ends before it begins or beyond the value", 7),
        ("80000200000002030200010064f9", "a column ends before it begins or beyond the value", 10),
        ("800001000000020400666f727479", "bytes after the last column", 13),
        (ROW_SUMMED[:-1], "the checksum trailer has a wrong size", 14),
        (b"\x07\2\3", "a column id is not an integer datum", 0),
        (b"\x08\x04\x63\3", "an unknown datum flag", 2),
        (b"\x08" + b"\xff" * 10, "a broken variable-length integer", 0),
        (b"\x08\x04\x02\x0aab", "a datum is longer than the value", 3),
    ],
)
def test_broken_rows_are_reported_and_leave_the_others_alone(row: str | bytes, why: str, offset: int) -> None:
    decoded = run(
        [spec(2, 15), spec(9, 3, origin_default="3")], [encode_v2({2: b"before"}), row, b"\x08\x04\x02\x04ok"]
    )
    assert [(error.index, error.cause, error.offset) for error in decoded.errors] == [(1, why, offset)]
    want = [{"c2": "before", "c9": 3}, {"c2": None, "c9": None}, {"c2": "ok", "c9": 3}]
    assert decoded.batch.to_pylist() == want


@pytest.mark.parametrize(
    ("column", "raw", "why"),
    [
        (spec(2, 3), b"abc", "an integer of an impossible width"),
        (spec(2, 3), b"", "an integer of an impossible width"),
        (spec(2, 1), b"\x80\0", "out of the column's range"),
        (spec(2, 9), b"\0\0\x80\0", "out of the column's range"),
        (spec(2, 9, unsigned=True), b"\0\0\0\1", "out of the column's range"),
        (spec(2, 13), b"\xff\x7f", "out of the column's range"),
        (spec(2, 16, flen=3), b"\x08", "out of the column's range"),
        (spec(2, 5), b"\0" * 7, "a float of an impossible width"),
        (spec(2, 246, flen=3, decimal=0), bytes.fromhex("0500803039"), "out of the column's range"),
        (spec(2, 246, flen=9, decimal=0), b"\x42\0\x80", "a decimal of an impossible shape"),
        (spec(2, 246, flen=9, decimal=0), b"\x01\x00\x8a", "a decimal with impossible digits"),
        (spec(2, 12), enc.least_int(enc.pack_time(2020, 1, 1, 24), signed=False), "not a time"),
        (spec(2, 11), enc.least_int(839 * 3600 * 10**9, signed=True), "out of the column's range"),
        (spec(2, 247, elems=("a",)), b"\2", "not a label of the column"),
        (spec(2, 248, elems=("a",)), b"\2", "not a label of the column"),
        (spec(2, 245), b"\x0c\x05abc", "a broken JSON document"),
        (spec(2, 245), b"\x77", "a broken JSON document"),
    ],
)
def test_impossible_values_are_reported_with_their_column(column: ColumnSpec, raw: bytes, why: str) -> None:
    decoded = run([spec(1, 3), column], [encode_v2({1: b"\1", 2: raw}), encode_v2({1: b"\1"})])
    (error,) = decoded.errors
    assert (error.index, error.column, error.cause) == (0, "c2", why)
    assert error.offset == 12 + 1  # ten bytes of header and ends, one of c1
    assert decoded.batch.to_pylist() == [{"c1": None, "c2": None}, {"c1": 1, "c2": None}]


def test_keys_that_lack_the_column_are_reported() -> None:
    column = spec(1, 8, not_null=True)
    assert cause(run([column], ["00"], b"t" + bytes(9), int_handle=1)) == "not a record key with an integer handle"
    assert cause(run([column], ["00"], INT_KEY, common_handle=(1,))) == "not a record key with a clustered primary key"
    short = record_key(7, enc.key_datum(spec(1, 8), 1))
    two = [spec(1, 8), spec(2, 8)]
    assert cause(run(two, ["00"], short, common_handle=(1, 2))) == "the key ends before the column"
    wrong = record_key(7, enc.key_datum(spec(1, 15), b"x"))
    assert cause(run([column], ["00"], wrong, common_handle=(1,))) == "the datum does not fit the column's type"


def test_slices_and_empty_batches() -> None:
    layout = RowLayout(name="d.t", columns=(spec(2, 15), spec(1, 8)), int_handle=1)
    keys = pa.array([record_key(7, n) for n in range(5)], pa.binary())
    values = pa.array([encode_v2({2: b"v%d" % n}) if n % 2 else None for n in range(5)], pa.binary())
    assert decode(layout, keys[1:4], values[1:4]).batch.to_pylist() == [
        {"c2": "v1", "c1": 1},
        {"c2": None, "c1": None},
        {"c2": "v3", "c1": 3},
    ]
    empty = decode(layout, keys[:0], values[:0])
    assert (empty.batch.num_rows, empty.errors) == (0, ())


def test_a_layout_without_columns_keeps_the_number_of_rows() -> None:
    assert run([], ["00", "00"]).batch.num_rows == 2


def test_refusals() -> None:
    layout = RowLayout(name="d.t", columns=(spec(1, 3),))
    with pytest.raises(InvalidInput):
        decode(layout, pa.array([b"k"], pa.binary()), pa.array([], pa.binary()))
    with pytest.raises(InvalidInput):
        decode(layout, pa.array(["k"]), pa.array([b""], pa.binary()))


def test_a_definition_that_cannot_be_used_fails_rows_and_raises_nothing() -> None:
    assert kind_of(spec(1, 255)) is ValueKind.UNKNOWN
    decoded = run([spec(1, 255), spec(2, 3)], [encode_v2({1: b"x", 2: b"\x05"}), encode_v2({2: b"\x05"})])
    assert ([e.index for e in decoded.errors], decoded.batch.column(1).to_pylist()) == ([0], [None, 5])
    assert [e.index for e in run([spec(1, 3), spec(1, 3)], ["00", "00"]).errors] == [0, 1]
