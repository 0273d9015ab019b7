"""Changes of one table as Arrow: page by page, or joined into a frame.

    connect().table(1, 1, "shop.customers").to_polars()

A DDL that changes columns ends a page, so pages may differ in columns. A joined column has the widest of its types,
text if they have none in common; columns that a page lacks are null in its rows.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tistream.client.core.requests import Page
from tistream.errors import InvalidInput, TiStreamError
from tistream.model.change import OWN_COLUMN


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrowPage:
    """The rows of one page, with the columns of docs/formats/messages.md, and its end."""

    rows: pa.Table
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


class _Walk:
    """State of a pull of a table."""

    def __init__(
        self,
        name: str,
        *,
        since: str | int | None = None,
        until: str | int | None = None,
        cursor: str | None = None,
        limit: int | None = None,
        progress: Callable[[Progress], None] | None = None,
        columns: str | Sequence[str] | None = None,
        ops: str | Sequence[str] | None = None,
        where: str | None = None,
        changed: str | Sequence[str] | None = None,
    ) -> None:
        database, dot, table = name.partition(".")
        if not (database and dot and table):
            raise InvalidInput(f"{name!r} is not a table: write database.table.", table=name)
        self._asked: dict[str, Any] = {
            "database": database, "table": table, "start_ts": since, "end_ts": until, "cursor": cursor,
            "limit": limit, "format": "arrow", "columns": columns, "ops": ops, "where": where, "changed": changed,
        }  # fmt: skip
        self._progress = progress
        self._pages = self._rows = self._bytes = 0
        self.done = False

    def asked(self) -> dict[str, Any]:
        """The arguments of `Client.page`."""
        return dict(self._asked)

    def took(self, page: Page) -> ArrowPage:
        """Take a page. TiStreamError when the server could not decode some rows."""
        rows = page.arrow()
        if page.quarantined:
            raise TiStreamError(f"{page.quarantined} rows cannot be decoded.", rows=rows.schema.metadata)
        self._asked["cursor"] = page.next_cursor
        if page.end_ts is not None:
            self._asked["end_ts"] = page.end_ts  # resolves spans such as -5m
        self.done = page.is_last(follow=False)
        self._pages, self._rows, self._bytes = (
            self._pages + 1,
            self._rows + rows.num_rows,
            self._bytes + len(page.content),
        )
        if self._progress is not None:
            self._progress(
                Progress(
                    pages=self._pages, rows=self._rows, bytes=self._bytes, next_cursor=page.next_cursor,
                    resolved_ts=page.resolved_ts,
                )
            )  # fmt: skip
        return ArrowPage(rows=rows, next_cursor=page.next_cursor, resolved_ts=page.resolved_ts, has_more=page.has_more)


class TablePull:
    """The changes of a table from `since` (or `cursor`) to `until`, or to what is served now.

    Requests are made when it is read; each reading starts again. `since` and `until` have the forms of `start_ts`,
    `limit` is the rows of a page, `progress` is called after each page. `columns`, `ops`, `where` and `changed` are
    filters.
    """

    def __init__(self, page: Callable[..., Page], cluster_id: int, tenant_id: int, name: str, **more: Any) -> None:
        self._page, self._tenant, self._name, self._more = page, (cluster_id, tenant_id), name, more
        _Walk(name, **more)  # validates the arguments

    def batches(self, **more: Any) -> Iterator[ArrowPage]:
        """Page by page; `more` overrides the arguments of the pull."""
        walk = _Walk(self._name, **{**self._more, **more})
        while not walk.done:
            yield walk.took(self._page(*self._tenant, **walk.asked()))

    def to_arrow(self) -> pa.Table:
        """All rows."""
        return bare(joined([page.rows for page in self.batches()]))

    def to_pandas(self, **options: Any) -> Any:
        """All rows as a pandas frame; `options` are those of pyarrow's `to_pandas`."""
        _needs("pandas", "pandas")
        return self.to_arrow().to_pandas(**options)

    def to_polars(self) -> Any:
        """All rows as a polars frame."""
        return _needs("polars", "polars").from_arrow(narrow(self.to_arrow()))

    def to_duckdb(self, connection: Any = None) -> Any:
        """All rows as a DuckDB relation, of `connection` or of a new one in memory."""
        made = connection or _needs("duckdb", "duckdb").connect()
        return made.from_arrow(narrow(self.to_arrow()))


class AsyncTablePull:
    """TablePull for `AsyncClient`."""

    def __init__(
        self, page: Callable[..., Awaitable[Page]], cluster_id: int, tenant_id: int, name: str, **more: Any
    ) -> None:
        self._page, self._tenant, self._name, self._more = page, (cluster_id, tenant_id), name, more
        _Walk(name, **more)

    async def batches(self, **more: Any) -> AsyncIterator[ArrowPage]:
        """Page by page; `more` overrides the arguments of the pull."""
        walk = _Walk(self._name, **{**self._more, **more})
        while not walk.done:
            yield walk.took(await self._page(*self._tenant, **walk.asked()))

    async def to_arrow(self) -> pa.Table:
        """All rows; `.to_pandas()` and `polars.from_arrow` take it from there."""
        return bare(joined([page.rows async for page in self.batches()]))


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
        known = fields.get(field.name)
        fields[field.name] = field if known is None else field.with_type(_wider(known, field))
    made = [_kept_metadata(field.with_nullable(True)) for field in fields.values()]
    return pa.schema(made) if isinstance(a, pa.Schema) else pa.struct(made)


def _kept_metadata(field: pa.Field) -> pa.Field:
    own = _own(field)
    return field.remove_metadata() if own is None else field.with_metadata({OWN_COLUMN: own})


def _wider(known: pa.Field, field: pa.Field) -> pa.DataType:
    a, b = known.type, field.type
    if pa.types.is_struct(a) and pa.types.is_struct(b):
        return _union(a, b)
    if a == b:
        return a
    if {_bytes_or_text(a), _bytes_or_text(b)} == {True, False}:
        raise InvalidInput(
            f"Column {field.name} was both text and bytes in this span: read the times before and after apart, with "
            "since and until, or take the pages one by one.",
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
    if pa.types.is_string(type_) and pa.types.is_list(values.type):
        import pyarrow.compute as pc

        return pc.binary_join(values.cast(pa.list_(pa.string())), ",")
    return values.cast(type_)


def _needs(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as e:
        raise InvalidInput(f"{module} is not installed: pip install {package}.", missing=module) from e
