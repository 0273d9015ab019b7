"""Converts Arrow pages to the one schema of a Spark query.

A page has the columns that the table had when its rows were committed; the query has those of one timestamp. A column
of the table is matched by TiDB's column id, so RENAME COLUMN changes nothing, and by name where the ids differ (a
rewritten column, a table that was created again). A column that a row's time did not have is null; one that was dropped
before the schema's time is left out; one that was added after it ends the query, because leaving it out would lose
data. A value that does not fit the query's type is an error too, never changed. TiStream's own columns are matched by
metadata: a table may have a column of the same name.

Spark has no unsigned integers: they become the next larger signed ones, 64 bits decimal(20, 0). DECIMAL of more than 38
digits becomes text. Commit timestamps fit a signed long.
"""

from __future__ import annotations

import decimal
from collections.abc import Collection, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema

from tistream.errors import InvalidInput
from tistream.model import change

_OWN, _COLUMN, _TABLES = "tistream.own", "tistream.column_id", "tistream.table_ids"  # of a field of a Spark schema
_TSO = frozenset({"ts", "scanned_from_ts", "commit_ts", "start_ts", "expire_ts"})
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


def spark_schema(schema: pa.Schema) -> st.StructType:
    """Spark's schema for pages of this one. The metadata of its fields says which column of a page each is."""
    raw = not any(change.OWN_COLUMN in (field.metadata or {}) for field in schema)
    ids = (schema.metadata or {}).get(change.TABLE_IDS, b"").decode()
    return st.StructType([_spark_field(field, ids, raw=raw) for field in schema])


def _spark_field(field: pa.Field, ids: str, *, raw: bool) -> st.StructField:
    own = _own(field)
    is_tso = (field.name if raw else own or "").lstrip("_") in _TSO
    type_ = st.LongType() if is_tso else _spark_type(field, ids)
    if own is not None:
        return st.StructField(field.name, type_, field.nullable, {_OWN: own})
    column = (field.metadata or {}).get(change.COLUMN_ID)
    known = None if column is None else {_COLUMN: int(column), _TABLES: ids}
    return st.StructField(field.name, type_, field.nullable, known)


def like(schema: st.StructType, found: pa.Schema) -> st.StructType:
    """A schema from the user, with the metadata of a table whose pages have the schema `found`."""
    known = {field.name: field.metadata for field in spark_schema(found)}
    return st.StructType(
        [st.StructField(f.name, f.dataType, f.nullable, {**known.get(f.name, {}), **f.metadata}) for f in schema]
    )


def own_name(schema: st.StructType, own: str) -> str:
    """The name of one of TiStream's own columns in this schema."""
    return next((field.name for field in schema if field.metadata.get(_OWN) == own), own)


def _spark_type(field: pa.Field, ids: str = "") -> st.DataType:
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
        return st.StructType([_spark_field(f, ids, raw=False) for f in type_])
    raise InvalidInput(f"Spark has no type for the column {field.name} ({type_}).", column=field.name)


def arrow_schema(schema: st.StructType) -> pa.Schema:
    """The schema of the batches that Spark expects for this one."""
    return to_arrow_schema(schema, timezone="UTC")


class Conform:
    """Converts pages to one schema. `schema_ts`: the schema is of this timestamp; None when the user gave it."""

    def __init__(self, schema: st.StructType, schema_ts: int | None) -> None:
        self._spark, self._schema, self._schema_ts = schema, arrow_schema(schema), schema_ts

    def batches(self, page: pa.Table) -> Iterator[pa.RecordBatch]:
        """The rows of a page."""
        rows = page.combine_chunks()
        if not rows.num_rows:
            return
        ids = _numbers((rows.schema.metadata or {}).get(change.TABLE_IDS, b"").decode())
        places = _places(self._spark, list(rows.schema), ids)
        self._refuse_new(rows, {place for place in places if place is not None})
        columns = [
            _column(None if place is None else rows.column(place).combine_chunks(), field, shape, ids, rows.num_rows)
            for place, field, shape in zip(places, self._schema, self._spark, strict=True)
        ]
        for array, field in zip(columns, self._schema, strict=True):
            if array.null_count and not field.nullable:
                raise InvalidInput(f"The pages have no column {field.name}.", column=field.name)
        yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _refuse_new(self, rows: pa.Table, known: Collection[int]) -> None:
        new = [f.name for n, f in enumerate(rows.schema) if n not in known and _own(f) is None]
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


def _own(field: pa.Field) -> str | None:
    """The name of TiStream's own column; None for a column of the table."""
    own = (field.metadata or {}).get(change.OWN_COLUMN)
    return None if own is None else own.decode()


def _numbers(text: str) -> frozenset[int]:
    return frozenset(int(number) for number in text.split(",") if number)


def _places(wanted: st.StructType, there: Sequence[pa.Field], ids: Collection[int]) -> list[int | None]:
    """For each field of the query the index of its column in a page of a table with these ids; None: it has none."""
    of_own = {own: n for n, field in enumerate(there) if (own := _own(field)) is not None}
    of_table = [(n, field) for n, field in enumerate(there) if _own(field) is None]
    of_id = {int(f.metadata[change.COLUMN_ID]): n for n, f in of_table if change.COLUMN_ID in (f.metadata or {})}
    places: list[int | None] = []
    for field in wanted:
        same_table = not _numbers(field.metadata.get(_TABLES, "")).isdisjoint(ids)
        own = field.metadata.get(_OWN)
        column = field.metadata.get(_COLUMN, -1) if same_table else -1
        places.append(of_id.get(column) if own is None else of_own.get(own))
    taken = set(places)
    of_name = {field.name: n for n, field in of_table if n not in taken}
    return [
        of_name.get(field.name) if place is None and _OWN not in field.metadata else place
        for place, field in zip(places, wanted, strict=True)
    ]


def _place_of_commit_ts(schema: pa.Schema) -> int:
    return next(n for n, field in enumerate(schema) if (_own(field) or field.name).lstrip("_") == "commit_ts")


def _column(
    array: pa.Array | None, field: pa.Field, shape: st.StructField, ids: Collection[int], rows: int
) -> pa.Array:
    if array is None:
        return pa.nulls(rows, field.type)
    try:
        return _cast(array, field.type, shape.dataType, ids)
    except pa.ArrowException as e:
        raise InvalidInput(
            f"The column {field.name} was {array.type} and does not fit {field.type}: read the time before and after "
            "the change separately, or give the query a schema with a type that fits both.",
            column=field.name,
            cause=str(e),
        ) from e


def _cast(array: pa.Array, type_: pa.DataType, shape: st.DataType, ids: Collection[int]) -> pa.Array:
    if pa.types.is_struct(type_) and pa.types.is_struct(array.type) and isinstance(shape, st.StructType):
        places = _places(shape, list(array.type), ids)
        children = [
            _column(None if place is None else array.field(place), field, inner, ids, len(array))
            for place, field, inner in zip(places, type_, shape, strict=True)
        ]
        return pa.StructArray.from_arrays(children, fields=list(type_), mask=array.is_null())
    if pa.types.is_decimal(array.type) and pa.types.is_string(type_):
        return _plain_decimals(array)
    return array if array.type == type_ else array.cast(type_)


def _plain_decimals(array: pa.Array) -> pa.Array:
    """Decimals as text without exponents, as TiDB shows them: Arrow's cast turns a zero into 0E-30."""
    texts = array.cast(pa.string()).dictionary_encode()
    words = [text if "E" not in text else f"{decimal.Decimal(text):f}" for text in texts.dictionary.to_pylist()]
    return pa.array(words, pa.string()).take(texts.indices)
