"""Arrow pages in the one schema that a Spark query has.

A page has the columns that the table had when its rows were committed; the query has those of one timestamp. Columns
are matched by name. One that a row's time did not have is null; one that was dropped before the schema's time is left
out; one that came after it ends the query, because leaving it out would lose what nobody has seen yet. A value that
does not fit the query's type is an error as well, never changed on the way.

Spark has no unsigned integers: they become the next larger signed ones, 64 bits decimal(20, 0). DECIMAL of more than 38
digits becomes text. Timestamps of commits fit a signed long.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema

from tistream.errors import InvalidInput
from tistream.spark.access import LogPage

_TSO = frozenset({"commit_ts", "start_ts", "expire_ts"})
_SIMPLE: tuple[tuple[pa.DataType, st.DataType], ...] = (
    (pa.int8(), st.ByteType()),
    (pa.int16(), st.ShortType()),
    (pa.int32(), st.IntegerType()),
    (pa.int64(), st.LongType()),
    (pa.uint8(), st.ShortType()),
    (pa.uint16(), st.IntegerType()),
    (pa.uint32(), st.LongType()),
    (pa.uint64(), st.DecimalType(20, 0)),
    (pa.float32(), st.FloatType()),
    (pa.float64(), st.DoubleType()),
    (pa.string(), st.StringType()),
    (pa.binary(), st.BinaryType()),
    (pa.date32(), st.DateType()),
    (pa.timestamp("us"), st.TimestampNTZType()),
    (pa.timestamp("us", "UTC"), st.TimestampType()),
    (pa.duration("us"), st.DayTimeIntervalType()),
)


def spark_schema(schema: pa.Schema, *, own: int) -> st.StructType:
    """The schema of a frame over pages with this one, of which the first `own` columns are ours rather than the
    table's."""
    return st.StructType(
        [
            st.StructField(
                field.name,
                st.LongType() if n < own and field.name.lstrip("_") in _TSO else _spark_type(field),
                field.nullable,
            )
            for n, field in enumerate(schema)
        ]
    )


def _spark_type(field: pa.Field) -> st.DataType:
    type_ = field.type
    for arrow, spark in _SIMPLE:
        if type_ == arrow:
            return spark
    if pa.types.is_decimal128(type_):
        return st.DecimalType(type_.precision, type_.scale)
    if pa.types.is_decimal256(type_) or pa.types.is_dictionary(type_):
        return st.StringType()
    if pa.types.is_list(type_):
        return st.ArrayType(_spark_type(type_.value_field))
    if pa.types.is_struct(type_):
        return st.StructType([st.StructField(f.name, _spark_type(f), f.nullable) for f in type_])
    raise InvalidInput(f"Spark has no type for the column {field.name} ({type_}).", column=field.name)


def arrow_schema(schema: st.StructType) -> pa.Schema:
    """The schema of the batches that Spark takes for this one."""
    return to_arrow_schema(schema, timezone="UTC")


class Conform:
    """Brings pages to one schema. `schema_ts`: up to when the schema knows the table; None when the user gave it."""

    def __init__(self, schema: pa.Schema, schema_ts: int | None) -> None:
        self._schema, self._schema_ts = schema, schema_ts

    def batches(self, page: LogPage) -> Iterator[pa.RecordBatch]:
        """The rows of a page."""
        rows = page.rows.combine_chunks()
        if not rows.num_rows:
            return
        self._refuse_new(rows)
        columns = [
            _column(rows[f.name].combine_chunks() if f.name in rows.schema.names else None, f, rows.num_rows)
            for f in self._schema
        ]
        for array, field in zip(columns, self._schema, strict=True):
            if array.null_count and not field.nullable:
                raise InvalidInput(f"The pages have no column {field.name}.", column=field.name)
        yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _refuse_new(self, rows: pa.Table) -> None:
        new = [name for name in rows.schema.names if name not in self._schema.names]
        if not new or self._schema_ts is None:
            return
        newest = pc.max(rows.column(_place_of_commit_ts(rows.schema))).as_py()
        if newest > self._schema_ts:
            raise InvalidInput(
                f"The table has got the column {new[0]} since this query began: start the query again, from its "
                "checkpoint, to read with the new columns.",
                column=new[0],
                commit_ts=str(newest),
                schema_ts=str(self._schema_ts),
            )


def _place_of_commit_ts(schema: pa.Schema) -> int:
    """Of our own columns, which come first."""
    return next(n for n, name in enumerate(schema.names) if name.lstrip("_") == "commit_ts")


def _column(array: pa.Array | None, field: pa.Field, rows: int) -> pa.Array:
    if array is None:
        return pa.nulls(rows, field.type)
    try:
        return _cast(array, field.type)
    except pa.ArrowException as e:
        raise InvalidInput(
            f"The column {field.name} was {array.type} and does not fit {field.type}: read the time before and after "
            "the change apart, or give the query a schema with a type that takes both.",
            column=field.name,
            cause=str(e),
        ) from e


def _cast(array: pa.Array, type_: pa.DataType) -> pa.Array:
    if array.type == type_:
        return array
    if pa.types.is_struct(type_):
        there = {f.name: n for n, f in enumerate(array.type)}
        children = [_column(array.field(there[f.name]) if f.name in there else None, f, len(array)) for f in type_]
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=array.is_null())
    return array.cast(type_)
