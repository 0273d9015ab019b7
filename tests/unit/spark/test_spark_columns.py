"""Pages of other times in the schema of a query: nothing is changed, lost or invented."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as st

from tistream.client.frames import joined, plain_decimals
from tistream.errors import InvalidInput
from tistream.model.change import COLUMN_ID, NEWER, OWN_COLUMN
from tistream.spark.columns import Conform, arrow_schema, like, spark_schema

OWN = [
    pa.field(name, type_, False, {OWN_COLUMN: name})
    for name, type_ in (
        ("_op", pa.dictionary(pa.int8(), pa.string())),
        ("_commit_ts", pa.uint64()),
        ("_start_ts", pa.uint64()),
        ("_key", pa.binary()),
        ("_table_id", pa.int64()),
    )
]
T = 470613530891255808


def schema_of(*columns: tuple[str, pa.DataType]) -> pa.Schema:
    fields = [pa.field(name, type_) for name, type_ in columns]
    return pa.schema([*OWN, *fields, pa.field("_old", pa.struct(fields), metadata={OWN_COLUMN: "_old"})])


def page(commit_ts: int, **columns: pa.Array) -> pa.Table:
    """A page of one insert."""
    schema = schema_of(*((name, array.type) for name, array in columns.items()))
    ts = pa.array([commit_ts], pa.uint64())
    own = [pa.array(["insert"]).dictionary_encode().cast(OWN[0].type), ts, ts]
    own += [pa.array([b"k"], pa.binary()), pa.array([7], pa.int64())]
    return pa.Table.from_arrays([*own, *columns.values(), pa.nulls(1, schema.field("_old").type)], schema=schema)


def conform(query: pa.Schema, table: pa.Table, schema_ts: int | None = T) -> pa.RecordBatch:
    schema = spark_schema(query)
    (batch,) = Conform(schema, schema_ts).batches(table)
    assert batch.schema.equals(arrow_schema(schema)), "as Spark compares it"
    return batch


def test_every_native_type_has_one_in_spark() -> None:
    columns = {
        "i8": (pa.int8(), st.ByteType()), "u8": (pa.uint8(), st.ShortType()), "u16": (pa.uint16(), st.IntegerType()),
        "u32": (pa.uint32(), st.LongType()), "u64": (pa.uint64(), st.DecimalType(20, 0)),
        "f": (pa.float32(), st.FloatType()), "dec": (pa.decimal128(12, 3), st.DecimalType(12, 3)),
        "big": (pa.decimal256(65, 30), st.StringType()), "day": (pa.date32(), st.DateType()),
        "dt": (pa.timestamp("us"), st.TimestampNTZType()), "ts": (pa.timestamp("us", "UTC"), st.TimestampType()),
        "ti": (pa.duration("us"), st.DayTimeIntervalType()), "raw": (pa.binary(), st.BinaryType()),
        "enm": (pa.dictionary(pa.int32(), pa.string()), st.StringType()),
        "st": (pa.list_(pa.string()), st.ArrayType(st.StringType())),
        "vec": (pa.list_(pa.float32()), st.ArrayType(st.FloatType())),
    }  # fmt: skip
    schema = spark_schema(schema_of(*((name, arrow) for name, (arrow, _) in columns.items())))
    assert {name: schema[name].dataType for name in columns} == {name: spark for name, (_, spark) in columns.items()}
    assert [field.simpleString().split(":")[1] for field in schema.fields[:5]] == [
        "string", "bigint", "bigint", "binary", "bigint",
    ]  # fmt: skip
    old = schema["_old"].dataType
    assert isinstance(old, st.StructType)
    assert old.fieldNames() == list(columns)


def test_values_keep_what_they_are() -> None:
    wide = decimal.Decimal("12345678901234567890123456789012345.123456789012345678901234567890")
    columns = {
        "u64": pa.array([(1 << 64) - 1], pa.uint64()),
        "big": pa.array([wide], pa.decimal256(65, 30)),
        "ti": pa.array([-3_020_399_000_000], pa.duration("us")),
        "enm": pa.array(["b"], pa.string()).dictionary_encode(),
        "st": pa.array([["x", "y"]], pa.list_(pa.string())),
    }
    batch = conform(schema_of(*((name, array.type) for name, array in columns.items())), page(T, **columns))
    row = batch.to_pylist()[0]
    assert (row["_op"], row["_commit_ts"], row["_key"]) == ("insert", T, b"k")
    assert row["u64"] == (1 << 64) - 1
    assert decimal.Decimal(row["big"]) == wide
    assert row["ti"].total_seconds() == -3_020_399
    assert (row["enm"], row["st"], row["_old"]) == ("b", ["x", "y"], None)


def test_columns_that_a_query_does_not_have_are_left_out_and_none_is_invented() -> None:
    query = schema_of(("id", pa.int64()), ("late", pa.string()))
    batch = conform(schema_of(("id", pa.int64())), page(T - 5, id=pa.array([1]), dropped=pa.array([2])))
    assert batch.to_pylist()[0]["id"] == 1
    assert "dropped" not in batch.schema.names
    with pytest.raises(InvalidInput, match="no column late"):
        conform(query, page(T - 5, id=pa.array([1])))


def test_a_column_of_the_same_name_is_another_one_by_its_id() -> None:
    """DROP and ADD of one name, or a column that was rewritten: the server says what is whose value."""

    def schema(id_: int) -> pa.Schema:
        return pa.schema([*OWN[:2], pa.field("note", pa.string(), metadata={COLUMN_ID: str(id_)})])

    own = [pa.array(["insert"]).dictionary_encode().cast(OWN[0].type), pa.array([T], pa.uint64())]
    dropped = pa.Table.from_arrays([*own, pa.array(["was dropped"])], schema=schema(2))
    with pytest.raises(InvalidInput, match="another one of that name"):
        conform(schema(7), dropped)
    assert conform(schema(2), dropped).column(2).to_pylist() == ["was dropped"]


def test_a_column_that_was_added_later_ends_the_query() -> None:
    query, table = schema_of(("id", pa.int64())), page(T + 1, id=pa.array([1]))
    table = table.replace_schema_metadata({NEWER: b'["new"]'})
    with pytest.raises(InvalidInput, match="got the column new since this query began"):
        conform(query, table)
    assert conform(query, table, schema_ts=None).num_rows == 1, "given by the user"


D = decimal.Decimal
NOON = datetime.datetime(2020, 1, 1, 12, 30, tzinfo=datetime.UTC)
NUMBERS: dict[pa.DataType, list[Any]] = {
    pa.int8(): [-128, 127],
    pa.int32(): [5, -70_000],
    pa.int64(): [2**53 + 1, -(2**63)],
    pa.uint64(): [2**64 - 1, 2],
    pa.float32(): [0.5, 16777216.0],
    pa.float64(): [0.1, 16777217.0, 1e300],
    pa.decimal128(5, 1): [D("5.5"), D("-0.1")],
    pa.decimal128(20, 2): [D("123456789012345678.91")],
    pa.decimal256(65, 30): [D("0"), D("1e-30")],
}
OTHERS: dict[pa.DataType, list[Any]] = {
    pa.string(): ["5", "2020-01-01", "0x10"],
    pa.binary(): [b"ab"],
    pa.date32(): [datetime.date(2020, 1, 1)],
    pa.timestamp("us"): [NOON.replace(tzinfo=None)],
    pa.timestamp("us", "UTC"): [NOON],
    pa.duration("us"): [datetime.timedelta(hours=12)],
    pa.dictionary(pa.int32(), pa.string()): ["5", "7"],
    pa.list_(pa.string()): [["a", "b"]],
}
ASKED: list[st.DataType] = [
    st.ByteType(), st.ShortType(), st.IntegerType(), st.LongType(), st.FloatType(), st.DoubleType(), st.BooleanType(),
    st.DecimalType(5, 1), st.DecimalType(20, 2), st.DecimalType(38, 18), st.StringType(), st.BinaryType(),
    st.DateType(), st.TimestampType(), st.TimestampNTZType(), st.DayTimeIntervalType(), st.ArrayType(st.StringType()),
]  # fmt: skip


@pytest.mark.parametrize("chosen", ASKED, ids=[each.simpleString() for each in ASKED])
def test_a_type_that_the_user_chose_shows_the_value_or_is_refused(chosen: st.DataType) -> None:
    for type_, values in {**NUMBERS, **OTHERS}.items():
        for value in values:
            table = page(T, c=pa.array([value], type_))
            try:
                schema = like(st.StructType([st.StructField("C", chosen)]), table.schema)
                (shown,) = next(Conform(schema, None).batches(table)).column(0).to_pylist()
            except InvalidInput:
                assert arrow_schema(st.StructType([st.StructField("c", chosen)])).field(0).type != type_
                continue
            if isinstance(shown, str) and type_ in NUMBERS:
                assert "E" not in shown
                assert D(shown) == value
            elif isinstance(value, datetime.date):
                assert shown in (value, datetime.datetime.combine(value, datetime.time()))
            else:
                exact = (
                    D(str(value)) == D(str(shown)) if isinstance(shown, D) or isinstance(value, D) else shown == value
                )
                assert exact, (type_, value, shown)


def test_names_of_a_users_schema_are_found_without_case_and_unknown_ones_refused() -> None:
    table = page(T, Id=pa.array([1]), name=pa.array(["x"]))
    user_schema = st.StructType(
        [
            st.StructField("_COMMIT_TS", st.LongType()),
            st.StructField("ID", st.LongType()),
            st.StructField("_OLD", st.StructType([st.StructField("NAME", st.StringType())])),
        ]
    )
    (batch,) = Conform(like(user_schema, table.schema), None).batches(table)
    assert batch.to_pylist() == [{"_COMMIT_TS": T, "ID": 1, "_OLD": None}]
    for fields in (
        [st.StructField("nme", st.StringType())],
        [st.StructField("_old", st.StructType([st.StructField("x", st.StringType())]))],
    ):
        with pytest.raises(InvalidInput, match="There is no column"):
            like(st.StructType(fields), table.schema)


def test_an_expiry_that_never_comes_is_a_number() -> None:
    """TiKV adds a TTL to the clock and stops at 2**64 - 1."""
    schema = pa.schema([pa.field("key", pa.binary()), pa.field("ts", pa.uint64()), pa.field("expire_ts", pa.uint64())])
    table = pa.Table.from_arrays(
        [pa.array([b"k"]), pa.array([T], pa.uint64()), pa.array([2**64 - 1], pa.uint64())], schema=schema
    )
    assert conform(schema, table).to_pylist() == [{"key": b"k", "ts": T, "expire_ts": 2**64 - 1}]


def test_our_own_columns_are_never_invented() -> None:
    odd = page(T, id=pa.array([1]))
    fields = [f.remove_metadata() if f.name == "_op" else f for f in odd.schema]
    theirs = pa.Table.from_arrays(odd.columns, schema=pa.schema(fields))
    with pytest.raises(InvalidInput, match="no column _op"):
        conform(schema_of(("id", pa.int64())), theirs, schema_ts=None)


def test_wide_decimals_are_written_without_an_exponent() -> None:
    values = [decimal.Decimal(text) for text in ("0", "-0.000000000000000000000000000001", "1.5", "1e34")]
    array = pa.array([*values, None], pa.decimal256(65, 30))
    texts = plain_decimals(array).to_pylist()
    assert texts == ["0." + "0" * 30, "-0." + "0" * 29 + "1", "1.5" + "0" * 29, "1" + "0" * 34 + "." + "0" * 30, None]
    was = pa.table({"x": pa.array([D("0"), D("0.00000012")], pa.decimal128(10, 8))})
    assert joined([was, pa.table({"x": ["new"]})])["x"].to_pylist() == ["0.00000000", "0.00000012", "new"]
