"""Pages of one table as Arrow, joined, and as frames of pandas, polars and DuckDB.

A joined column has the widest of its types, text if they have none in common; columns that a page lacks are null in its
rows. The packages of frames are imported when one is asked for.
"""

from __future__ import annotations

import dataclasses
import decimal
import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tistream.client.core.requests import ChangeOptions, Page
from tistream.errors import InvalidInput, TiStreamError
from tistream.model.change import OWN_COLUMN

if TYPE_CHECKING:
    import duckdb
    import pandas as pd
    import polars as pl


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowPage:
    """The rows of one page, with the columns of docs/formats/messages.md, and its end."""

    rows: pa.Table = dataclasses.field(repr=False)
    next_cursor: str
    resolved_ts: int
    has_more: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Progress of a pull."""

    pages: int
    rows: int
    bytes: int
    next_cursor: str
    resolved_ts: int  #: the served watermark


class Counted:
    """The pages of a pull, and its progress."""

    def __init__(self, progress: Callable[[Progress], None] | None) -> None:
        self._progress = progress
        self._pages = self._rows = self._bytes = 0

    def took(self, page: Page) -> ArrowPage:
        """Take a page. TiStreamError when the server could not decode some rows."""
        rows = page.arrow()
        if page.quarantined:
            raise TiStreamError(f"{page.quarantined} rows cannot be decoded.", rows=rows.schema.metadata)
        self._pages, self._rows = self._pages + 1, self._rows + rows.num_rows
        self._bytes += len(page.content)
        if self._progress is not None:
            self._progress(
                Progress(
                    pages=self._pages, rows=self._rows, bytes=self._bytes, next_cursor=page.next_cursor,
                    resolved_ts=page.resolved_ts,
                )
            )  # fmt: skip
        return ArrowPage(rows=rows, next_cursor=page.next_cursor, resolved_ts=page.resolved_ts, has_more=page.has_more)


def check_ends(options: ChangeOptions, *, follow: bool) -> None:
    """InvalidInput for a frame of changes that never end."""
    if follow and options.get("end") is None:
        raise InvalidInput("Following has no last change: give an end, use changes(), or take the batches.")


def read(content: bytes) -> pa.Table:
    """The rows of an Arrow stream."""
    return bare(pa.ipc.open_stream(content).read_all())


def to_pandas(table: pa.Table) -> pd.DataFrame:
    """The rows as a pandas frame."""
    needs("pandas")
    return table.to_pandas()


def to_polars(table: pa.Table) -> pl.DataFrame:
    """The rows as a polars frame."""
    frame: pl.DataFrame = needs("polars").from_arrow(narrow(table))
    return frame


def to_duckdb(table: pa.Table, connection: duckdb.DuckDBPyConnection | None) -> duckdb.DuckDBPyRelation:
    """The rows as a DuckDB relation, of `connection` or of a new one in memory."""
    made = needs("duckdb").connect() if connection is None else connection
    return made.from_arrow(narrow(table))


def needs(package: str) -> ModuleType:
    """The package. InvalidInput when it is not installed."""
    try:
        return importlib.import_module(package)
    except ImportError as e:
        raise InvalidInput(f"{package} is not installed: pip install {package}.", missing=package) from e


def joined(tables: Sequence[pa.Table]) -> pa.Table:
    """One table of tables whose columns may differ."""
    union = Union([table.schema for table in tables])
    return pa.concat_tables([union.conform(table) for table in tables])


class Union:
    """The schema that holds tables whose columns may differ. InvalidInput when a column was both text and bytes."""

    def __init__(self, schemas: Sequence[pa.Schema]) -> None:
        self._theirs = {field.name.lower() for schema in schemas for field in schema if _own(field) is None}
        self.schema = self._renamed(schemas[0])
        for schema in schemas[1:]:
            self.schema = _union(self.schema, self._renamed(schema))

    def conform(self, table: pa.Table) -> pa.Table:
        """The rows of one of the tables in this schema."""
        return _as(table.rename_columns(self._renamed(table.schema).names), self.schema)

    def _renamed(self, schema: pa.Schema) -> pa.Schema:
        """Give each of our own columns one name in all schemas that no column of theirs has."""
        fields = []
        for field in schema:
            name = _own(field) or field.name
            while _own(field) is not None and name in self._theirs:
                name = "_" + name
            fields.append(field.with_name(name))
        return pa.schema(fields)


def _own(field: pa.Field) -> str | None:
    own = (field.metadata or {}).get(OWN_COLUMN)
    return None if own is None else own.decode()


def bare(table: pa.Table) -> pa.Table:
    """Without the metadata that matches pages: some tools take it for a difference."""
    return table.cast(pa.schema([_bare(field) for field in table.schema]))


def _bare(field: pa.Field) -> pa.Field:
    if pa.types.is_struct(field.type):
        field = field.with_type(pa.struct([_bare(child) for child in field.type]))
    return field.remove_metadata()


def plain_decimals(values: pa.Array) -> pa.Array:
    """Decimals as text without exponents, as TiDB shows them: Arrow's cast turns a zero into 0E-30."""
    texts = values.cast(pa.string()).dictionary_encode()
    words = [text if "E" not in text else f"{decimal.Decimal(text):f}" for text in texts.dictionary.to_pylist()]
    return pa.array(words, pa.string()).take(texts.indices)


def narrow(table: pa.Table) -> pa.Table:
    """With decimals of more than 38 digits as text: few tools read them."""
    return _as(table, pa.schema([field.with_type(_narrow(field.type)) for field in table.schema]))


def _narrow(type_: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(type_):
        return pa.struct([field.with_type(_narrow(field.type)) for field in type_])
    return pa.string() if pa.types.is_decimal256(type_) else type_


def _union(a: Any, b: Any) -> Any:
    """The fields of two schemas or structs by name, each with the wider type."""
    fields = {field.name: field for field in a}
    for field in b:
        other = fields.get(field.name)
        fields[field.name] = field if other is None else field.with_type(_wider(other, field))
    made = [_kept_metadata(field.with_nullable(True)) for field in fields.values()]
    return pa.schema(made) if isinstance(a, pa.Schema) else pa.struct(made)


def _kept_metadata(field: pa.Field) -> pa.Field:
    own = _own(field)
    return field.remove_metadata() if own is None else field.with_metadata({OWN_COLUMN: own})


def _wider(other: pa.Field, field: pa.Field) -> pa.DataType:
    a, b = other.type, field.type
    if pa.types.is_struct(a) and pa.types.is_struct(b):
        return _union(a, b)
    if a == b:
        return a
    if {_bytes_or_text(a), _bytes_or_text(b)} == {True, False}:
        raise InvalidInput(
            f"Column {field.name} was both text and bytes in this span: read the times before and after apart, or take "
            "the pages one by one.",
            column=field.name,
        )
    try:
        pair = [pa.schema([pa.field("c", type_)]) for type_ in (a, b)]
        return pa.unify_schemas(pair, promote_options="permissive").field("c").type
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return pa.string()


def _bytes_or_text(type_: pa.DataType) -> bool | None:
    """True for bytes, False for what may only become text beside them, None for nulls."""
    return None if pa.types.is_null(type_) else bool(pa.types.is_binary(type_))


def _as(table: pa.Table, schema: pa.Schema) -> pa.Table:
    columns = [
        _cast(table[field.name].combine_chunks(), field.type) if field.name in table.schema.names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]  # fmt: skip
    return pa.table(columns, schema=schema)


def _cast(values: Any, type_: pa.DataType) -> Any:
    if isinstance(values, pa.ChunkedArray):
        values = pa.chunked_array([], values.type).combine_chunks() if not values.num_chunks else values.chunk(0)
    if values.type == type_:
        return values
    if pa.types.is_struct(type_):
        names = {field.name for field in values.type}
        parts = [
            _cast(values.field(field.name), field.type) if field.name in names
            else pa.nulls(len(values), field.type)
            for field in type_
        ]  # fmt: skip
        return pa.StructArray.from_arrays(parts, fields=list(type_), mask=values.is_null())
    if pa.types.is_string(type_) and pa.types.is_decimal(values.type):
        return plain_decimals(values)
    if pa.types.is_string(type_) and pa.types.is_list(values.type):
        import pyarrow.compute as pc

        return pc.binary_join(values.cast(pa.list_(pa.string())), ",")
    return values.cast(type_)
