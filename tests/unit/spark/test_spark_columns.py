"""Pages of other times in the schema of a query: nothing is changed, lost or invented."""

from __future__ import annotations

import decimal

import pyarrow as pa
import pytest
from pyspark.sql import types as st

from tistream.errors import InvalidInput
from tistream.model.change import OWN_COLUMN
from tistream.spark.columns import Conform, _plain_decimals, arrow_schema, spark_schema

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


def conform(query: pa.Schema, found: pa.Table, schema_ts: int | None = T) -> pa.RecordBatch:
    schema = spark_schema(query)
    (batch,) = Conform(schema, schema_ts).batches(found)
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
    found = spark_schema(schema_of(*((name, arrow) for name, (arrow, _) in columns.items())))
    assert {name: found[name].dataType for name in columns} == {name: spark for name, (_, spark) in columns.items()}
    assert [field.simpleString().split(":")[1] for field in found.fields[:5]] == [
        "string", "bigint", "bigint", "binary", "bigint",
    ]  # fmt: skip
    assert found["_old"].dataType.fieldNames() == list(columns)


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


def test_columns_of_other_times() -> None:
    query = schema_of(("id", pa.int64()), ("late", pa.string()))
    batch = conform(query, page(T - 5, id=pa.array([1], pa.int32()), dropped=pa.array([2])))
    assert batch.to_pylist()[0]["id"] == 1
    assert batch.to_pylist()[0]["late"] is None, "not there yet"
    assert "dropped" not in batch.schema.names


def test_a_column_that_was_added_later_ends_the_query() -> None:
    query = schema_of(("id", pa.int64()))
    with pytest.raises(InvalidInput, match="the column new since this query began"):
        conform(query, page(T + 1, id=pa.array([1]), new=pa.array([2])))
    given_by_the_user = conform(query, page(T + 1, id=pa.array([1]), new=pa.array([2])), schema_ts=None)
    assert given_by_the_user.num_rows == 1


@pytest.mark.parametrize(
    ("was", "type_"),
    [
        (pa.array(["12x"]), pa.int64()),
        (pa.array([300], pa.int32()), pa.int8()),
        (pa.array([decimal.Decimal("1.25")]), pa.decimal128(9, 1)),
    ],
)
def test_a_value_that_does_not_fit_is_an_error(was: pa.Array, type_: pa.DataType) -> None:
    with pytest.raises(InvalidInput, match="column id was"):
        conform(schema_of(("id", type_)), page(T, id=was))


def test_our_own_columns_are_never_invented() -> None:
    odd = page(T, id=pa.array([1]))
    fields = [f.remove_metadata() if f.name == "_op" else f for f in odd.schema]
    theirs = pa.Table.from_arrays(odd.columns, schema=pa.schema(fields))
    with pytest.raises(InvalidInput, match="no column _op"):
        conform(schema_of(("id", pa.int64())), theirs, schema_ts=None)


def test_wide_decimals_are_written_without_an_exponent() -> None:
    values = [decimal.Decimal(text) for text in ("0", "-0.000000000000000000000000000001", "1.5", "1e34")]
    array = pa.array([*values, None], pa.decimal256(65, 30))
    made = _plain_decimals(array).to_pylist()
    assert made == ["0." + "0" * 30, "-0." + "0" * 29 + "1", "1.5" + "0" * 29, "1" + "0" * 34 + "." + "0" * 30, None]
