"""Converts Arrow pages to the schema of a Spark query.

The server gives every page of a query the columns that the table has at one timestamp, and converts older rows by the
rules of reads AS OF (`schema_ts` of a pull). Here only Arrow's types become Spark's, and those of a schema that the
user gave. A value is never changed: one that does not fit is an error.

Spark has no unsigned integers: they become the next larger signed ones, 64 bits decimal(20, 0). DECIMAL of more than 38
digits becomes text. Commit timestamps fit a signed long.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import orjson
import pyarrow as pa
from pyspark.sql import types as st
from pyspark.sql.pandas.types import to_arrow_schema

from tistream.client.frames import plain_decimals
from tistream.errors import InvalidInput, did_you_mean
from tistream.model import change

# of a field of a Spark schema: our own name of a column, TiDB's id, its name in a page where the user wrote another
_OWN, _COLUMN, _NAME = "tistream.own", "tistream.column_id", "tistream.name"
BEGIN_AGAIN = "To read with the new columns, start the query again, from its checkpoint."
_TSO = frozenset({"ts", "scanned_from_ts", "commit_ts", "start_ts"})
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
    return st.StructType([_spark_field(field, raw=raw) for field in schema])


def _spark_field(field: pa.Field, *, raw: bool = False) -> st.StructField:
    own = _own(field)
    is_tso = (field.name if raw else own or "").lstrip("_") in _TSO
    type_ = st.LongType() if is_tso else _spark_type(field)
    if own is not None:
        return st.StructField(field.name, type_, field.nullable, {_OWN: own})
    column = (field.metadata or {}).get(change.COLUMN_ID)
    return st.StructField(field.name, type_, field.nullable, None if column is None else {_COLUMN: int(column)})


def like(schema: st.StructType, there: pa.Schema) -> st.StructType:
    """A schema from the user, with the metadata of a table whose pages have the schema `there`. Names are compared
    without case, as in Spark. InvalidInput for a column that the pages do not have, or a type that cannot hold its
    values."""
    return _like(schema, spark_schema(there), list(there))


def _like(schema: st.StructType, known: st.StructType, there: Sequence[pa.Field]) -> st.StructType:
    places = {field.name.lower(): n for n, field in enumerate(known)}
    made = []
    for field in schema:
        place = places.get(field.name.lower())
        if place is None:
            hint = did_you_mean(field.name, [each.name for each in known])
            raise InvalidInput(f"There is no column {field.name!r} to read{hint}", column=field.name)
        ours, type_ = known[place], field.dataType
        if isinstance(type_, st.StructType) and isinstance(ours.dataType, st.StructType):
            type_ = _like(type_, ours.dataType, list(there[place].type))
        elif not _takes(there[place].type, ours.dataType, type_):
            raise InvalidInput(
                f"The schema reads column {ours.name} as {type_.simpleString()}, which cannot hold its values as they "
                f"are: it is {ours.dataType.simpleString()}. Read it as that, and cast it in the query.",
                column=ours.name,
                type=ours.dataType.simpleString(),
            )
        made.append(st.StructField(field.name, type_, field.nullable, {**ours.metadata, _NAME: ours.name}))
    return st.StructType(made)


def _takes(arrow: pa.DataType, ours: st.DataType, theirs: st.DataType) -> bool:
    """Whether a column of a page may be read as another type than `ours`. Each value is checked, too."""
    of = [arrow_schema(st.StructType([st.StructField("c", each)])).field(0).type for each in (ours, theirs)]
    return of[0] == of[1] or _converts(arrow, of[1])


def own_name(schema: st.StructType, own: str) -> str:
    """The name of one of TiStream's own columns in this schema."""
    return next((field.name for field in schema if field.metadata.get(_OWN) == own), own)


def names_of(schema: st.StructType) -> list[str]:
    """The names that the table's columns of this schema have in a page, those of the old row included."""
    names: dict[str, None] = {}
    for field in schema:
        if field.metadata.get(_OWN) is None:
            names[field.metadata.get(_NAME, field.name)] = None
        elif isinstance(field.dataType, st.StructType):
            names |= dict.fromkeys(names_of(field.dataType))
    return list(names)


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
        return st.StructType([_spark_field(f) for f in type_])
    raise InvalidInput(f"Spark has no type for the column {field.name} ({type_}).", column=field.name)


def arrow_schema(schema: st.StructType) -> pa.Schema:
    """The schema of the batches that Spark expects for this one."""
    return to_arrow_schema(schema, timezone="UTC")


class Conform:
    """Converts pages to one schema. `schema_ts`: the schema is of this timestamp; None when the user gave it."""

    def __init__(self, schema: st.StructType, schema_ts: str | int | None) -> None:
        self._spark, self._schema, self._schema_ts = schema, arrow_schema(schema), schema_ts

    def batches(self, page: pa.Table) -> Iterator[pa.RecordBatch]:
        """The rows of a page."""
        rows = page.combine_chunks()
        if not rows.num_rows:
            return
        self._refuse_newer(rows.schema)
        arrays = [column.combine_chunks() for column in rows.columns]
        columns = _columns(arrays, list(rows.schema), self._spark, list(self._schema))
        for array, field in zip(columns, self._schema, strict=True):
            if array.null_count and not field.nullable:
                raise InvalidInput(f"The column {field.name} may not be null by its schema.", column=field.name)
        yield pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _refuse_newer(self, schema: pa.Schema) -> None:
        newer = (schema.metadata or {}).get(change.NEWER)
        if newer is None or self._schema_ts is None:
            return
        name = orjson.loads(newer)[0]
        raise InvalidInput(
            f"The table has got the column {name} since this query began. {BEGIN_AGAIN}",
            column=name,
            schema_ts=str(self._schema_ts),
        )


def _own(field: pa.Field) -> str | None:
    """The name of TiStream's own column; None for a column of the table."""
    own = (field.metadata or {}).get(change.OWN_COLUMN)
    return None if own is None else own.decode()


def _columns(
    arrays: Sequence[pa.Array], there: Sequence[pa.Field], wanted: st.StructType, fields: Sequence[pa.Field]
) -> list[pa.Array]:
    """The wanted columns from those of a page."""
    of_own = {own: n for n, field in enumerate(there) if (own := _own(field)) is not None}
    of_name = {field.name: n for n, field in enumerate(there) if _own(field) is None}
    made = []
    for shape, field in zip(wanted, fields, strict=True):
        own = shape.metadata.get(_OWN)
        place = of_name.get(shape.metadata.get(_NAME, shape.name)) if own is None else of_own.get(own)
        if place is None or not _is_same(there[place], shape):
            raise InvalidInput(
                f"The pages have no column {shape.name} of this query, or another one of that name.", column=shape.name
            )
        made.append(_column(arrays[place], field, shape))
    return made


def _is_same(field: pa.Field, column: st.StructField) -> bool:
    """Whether a column of a page is the wanted one by TiDB's id, as far as both are known."""
    ours, id_ = column.metadata.get(_COLUMN), (field.metadata or {}).get(change.COLUMN_ID)
    return ours is None or id_ is None or int(id_) == ours


def _column(array: pa.Array, field: pa.Field, shape: st.StructField) -> pa.Array:
    if pa.types.is_struct(array.type) and isinstance(shape.dataType, st.StructType):
        children = [array.field(n) for n in range(array.type.num_fields)]
        inner = _columns(children, list(array.type), shape.dataType, list(field.type))
        return pa.StructArray.from_arrays(inner, fields=list(field.type), mask=array.is_null())
    try:
        made = _converted(array, field.type)
    except pa.ArrowException as e:
        raise _refused(array, field, str(e)) from e
    if made is None:
        raise _refused(array, field, "there is no conversion that keeps every value")
    return made


def _refused(array: pa.Array, field: pa.Field, cause: str) -> InvalidInput:
    return InvalidInput(
        f"The column {field.name} was {array.type} and does not fit {field.type}: give the query a schema with a type "
        "that takes its values.",
        column=field.name,
        cause=cause,
    )


def _converts(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether there is a conversion that keeps the values that fit."""
    if _is_number(old):
        in_digits, in_bits = pa.types.is_decimal, pa.types.is_floating
        if (in_bits(old) and in_digits(new)) or (in_digits(old) and new == pa.float32()):
            return False  # a number in binary has more digits than it shows
        return _is_number(new) or pa.types.is_boolean(new) or (not in_bits(old) and pa.types.is_string(new))
    if pa.types.is_dictionary(old):
        return bool(pa.types.is_string(new))
    return bool(pa.types.is_date32(old) and new == pa.timestamp("us"))


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))


def _converted(array: pa.Array, type_: pa.DataType) -> pa.Array | None:
    """The same values in another type; None without a conversion, ArrowException for a value that would change."""
    if array.type == type_ or (pa.types.is_list(type_) and array.type.equals(type_)):
        return array
    if not _converts(array.type, type_):
        return None
    if pa.types.is_decimal(array.type) and pa.types.is_string(type_):
        return plain_decimals(array)
    made = array.cast(type_)
    if _is_number(array.type) and not pa.types.is_string(type_) and not made.cast(array.type).equals(array):
        raise pa.ArrowInvalid(f"a number that {type_} does not hold")
    return made
