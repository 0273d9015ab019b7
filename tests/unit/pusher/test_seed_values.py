"""Values and rows of decoded files: accepted exactly, or refused with file, row and column."""

from __future__ import annotations

import datetime
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pusher.core.seed_values import stored
from schemas.shape import Shape, of_json, to_json
from tistream.cli.seed import is_raw, read_decoded
from tistream.codec.row.layout import ColumnSpec
from tistream.codec.table_key import record_key
from tistream.errors import DecodeError, InvalidInput


def spec(tp: int, **more: Any) -> ColumnSpec:
    return ColumnSpec(id=2, name="v", tp=tp, **more)


DAY = ((2020 * 13 + 2) * 32 + 29) << 41


@pytest.mark.parametrize(
    ("column", "value", "want"),
    [
        (spec(3), 5, 5),
        (spec(8, unsigned=True), "18446744073709551615", 18446744073709551615),
        (spec(1), True, 1),
        (spec(16, flen=10), 513, 513),
        (spec(16, flen=10), "AgE=", 513),
        (spec(247, elems=("a", "b")), "b", 2),
        (spec(247, elems=("a", "b")), "", 0),
        (spec(248, elems=("a", "b", "c")), "a,c", 5),
        (spec(248, elems=("a", "b", "c")), ["c"], 4),
        (spec(248, elems=("a", "b", "c")), "", 0),
        (spec(5), Decimal("1.5"), 1.5),
        (spec(246, flen=5, decimal=2), "-123.40", Decimal("-123.40")),
        (spec(10), "2020-02-29", DAY),
        (spec(10), datetime.date(2020, 2, 29), DAY),
        (spec(12, decimal=6), "2020-02-29 01:02:03.5", DAY | ((1 << 12 | 2 << 6 | 3) << 24) | 500_000),
        (spec(12), "0000-00-00 00:00:00", 0),
        (spec(7), datetime.datetime(2020, 2, 29, 2, tzinfo=datetime.timezone(datetime.timedelta(hours=2))), DAY),
        (spec(11, decimal=1), "-838:59:58.5", -(838 * 3600 + 59 * 60 + 58) * 10**9 - 5 * 10**8),
        (spec(11), datetime.timedelta(seconds=-1), -(10**9)),
        (spec(11), 2_000_000, 2 * 10**9),
        (spec(253), "é ", "é "),
        (spec(253, binary=True), "AP8=", b"\x00\xff"),
        (spec(245), '{"a": [1, 18446744073709551616, null]}', {"a": [1, 18446744073709551616.0, None]}),
        (spec(225), [1, 2.5], [1.0, 2.5]),
    ],
)
def test_values_are_stored_as_they_are(column: ColumnSpec, value: object, want: object) -> None:
    bytes_stored = stored(column, value, in_text=True)
    assert (bytes_stored, type(bytes_stored)) == (want, type(want))


@pytest.mark.parametrize(
    ("column", "value"),
    [
        (spec(1), 128),
        (spec(9), 1 << 23),
        (spec(3, unsigned=True), -1),
        (spec(3), 1.5),
        (spec(3), "x"),
        (spec(13), 2156),
        (spec(16, flen=9), 512),
        (spec(247, elems=("a",)), "A"),
        (spec(248, elems=("a",)), "a,b"),
        (spec(5), "1.5"),
        (spec(5), True),
        (spec(246, flen=5, decimal=2), "1.005"),
        (spec(246, flen=5, decimal=2), "1000"),
        (spec(246, flen=5, decimal=2), "NaN"),
        (spec(246, flen=5, decimal=2), "one"),
        (spec(10), "2020-02-29 01:00:00"),
        (spec(12), "2020-02-29 01:02:03.5"),
        (spec(12), "2020-13-01"),
        (spec(12), "yesterday"),
        (spec(11), "00:00:00.5"),
        (spec(11), "900:00:00"),
        (spec(11), "noon"),
        (spec(253), b"bytes"),
        (spec(253, binary=True), "no base64!"),
        (spec(245), "{"),
        (spec(245), "NaN"),
        (spec(225), ["1"]),
    ],
)
def test_a_value_that_the_column_cannot_hold_is_refused(column: ColumnSpec, value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        stored(column, value, in_text=True)


def shape(**given: Any) -> Shape:
    columns = (ColumnSpec(id=1, name="Id", tp=8, not_null=True), ColumnSpec(id=2, name="name", tp=253))
    usual = {"int_handle": 1, "common_handle": (), "key_is_whole": True}
    return Shape(**{"table_id": 7, "physical_ids": (7,), "columns": columns, **usual, **given})


def as_ndjson(folder: Path, *rows: object) -> Path:
    path = folder / "a.ndjson"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


def as_parquet(folder: Path, **columns: list[Any]) -> Path:
    path = folder / "a.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def keys(rows: pa.Table) -> list[bytes]:
    row_keys: list[bytes] = rows["key"].to_pylist()
    return row_keys


def test_lines_may_be_flat_or_those_of_a_snapshot_and_rows_come_by_key(tmp_path: Path) -> None:
    flat = as_ndjson(tmp_path, {"id": 2, "name": "b"}, {"name": None, "id": -1})
    rows = read_decoded(flat, 9, shape())
    assert keys(rows) == [record_key(7, -1), record_key(7, 2)]
    assert set(rows["commit_ts"].to_pylist()) == {9}
    lines = [{"database": "d", "table": "t", "columns": {"Id": i, "name": n}} for i, n in ((2, "b"), (-1, None))]
    assert read_decoded(as_ndjson(tmp_path, *lines), 9, shape()).equals(rows)
    assert read_decoded(as_parquet(tmp_path, Id=[2, -1], name=["b", None]), 9, shape()).equals(rows)


def test_the_key_is_in_the_file_where_columns_do_not_determine_it(tmp_path: Path) -> None:
    nameless = shape(int_handle=None)
    path = as_ndjson(tmp_path, {"id": 1, "name": "a"})
    with pytest.raises(InvalidInput, match="_tidb_rowid"):
        read_decoded(path, 9, nameless)
    with pytest.raises(InvalidInput, match="_tistream_key"):
        read_decoded(path, 9, shape(key_is_whole=False, physical_ids=(8, 9)))
    path = as_ndjson(tmp_path, {"id": 1, "name": "a", "_tidb_rowid": 5})
    assert keys(read_decoded(path, 9, nameless)) == [record_key(7, 5)]
    with pytest.raises(InvalidInput, match="_tistream_key"):
        read_decoded(path, 9, shape(int_handle=None, key_is_whole=False, physical_ids=(8, 9)))
    key = record_key(9, b"\x01abcdefgh\xff")
    path = as_ndjson(tmp_path, {"id": 1, "name": "a", "_tistream_key": key.hex()})
    assert keys(read_decoded(path, 9, shape(key_is_whole=False, physical_ids=(8, 9)))) == [key]
    path = as_parquet(tmp_path, id=[1], name=["a"], _tistream_key=[key])
    assert keys(read_decoded(path, 9, nameless)) == [key]


def test_a_text_key_that_ends_with_a_space_is_ambiguous(tmp_path: Path) -> None:
    path = as_ndjson(tmp_path, {"id": 1, "name": "a"}, {"id": 2, "name": "b "})
    with pytest.raises(InvalidInput, match=r"row 2, column name: .*space"):
        read_decoded(path, 9, shape(int_handle=None, common_handle=(2, 1)))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([{"id": 1}], "lacks columns of the table: name"),
        ([{"id": 1, "name": "a", "more": 1}], "lacks: more"),
        ([{"id": 1, "name": "a"}, {"id": 1, "name": "b"}], "rows 1 and 2: both have the same key"),
        ([{"id": 1, "name": "a"}, {"id": 2, "name": 3}], "row 2, column name: 3 is not text"),
        ([{"id": 1, "name": "a"}, {"id": None, "name": "a"}], "row 2, column Id: NULL"),
        ([{"id": 1, "name": "a"}, {"id": 2}], "row 2 has other columns than row 1"),
        ([[1]], "row 1"),
    ],
)
def test_errors_name_file_row_and_column(tmp_path: Path, rows: list[object], said: str) -> None:
    path = as_ndjson(tmp_path, *rows)
    with pytest.raises(InvalidInput, match=said) as e:
        read_decoded(path, 9, shape())
    assert str(path) in e.value.message


def test_an_invalid_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1")
    with pytest.raises(InvalidInput, match="cannot be read"):
        is_raw(path)
    (tmp_path / "a.ndjson").write_text("{")
    with pytest.raises(InvalidInput, match="cannot be read"):
        is_raw(tmp_path / "a.ndjson")


def test_undecoded_rows_are_recognised(tmp_path: Path) -> None:
    assert is_raw(as_ndjson(tmp_path, {"key": "", "value": "", "commit_ts": 1}))
    assert not is_raw(as_ndjson(tmp_path, {"key": "", "value": "", "id": 1}))
    assert is_raw(as_parquet(tmp_path, key=[b""], value=[b""]))
    assert not is_raw(as_parquet(tmp_path, key=[b""]))


def test_a_shape_survives_as_json() -> None:
    given = shape(common_handle=(2,), columns=(spec(247, elems=("a",)),))
    assert of_json(json.loads(json.dumps(to_json(given)))) == given
    with pytest.raises(DecodeError):
        of_json({"columns": []})
