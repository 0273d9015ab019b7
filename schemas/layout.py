"""The row codec's layout of a table version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar, TypeVarTuple

from schemas.model import Column, Table
from tistream.codec.row.layout import YEAR, ColumnSpec, RowLayout, ValueKind, kind_of
from tistream.runtime.kept import kept

_ENCODED = ("gbk", "gb18030")  # charsets whose texts have their own encoding in keys
_ZEROFILL = 64
_KEPT_MAX = 4096
_KEPT_COLUMNS_MAX = 100_000  # readers choose columns of wide tables in any number of ways

Ts = TypeVarTuple("Ts")
T = TypeVar("T")


class ByIdentity:
    """A cache key by identity: a version is one shared object, so its columns need no comparison."""

    __slots__ = ("table",)

    def __init__(self, table: Table) -> None:
        self.table = table

    def __hash__(self) -> int:
        return id(self.table)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.table is self.table


def kept_by_version(build: Callable[[*Ts], T], columns_max: int = _KEPT_COLUMNS_MAX) -> Callable[[*Ts], T]:
    """Keeps the results that were asked for last, for table versions with a bounded number of columns in all. The last
    argument is the version."""
    return kept(build, weigh=_columns_of, count_max=_KEPT_MAX, weight_max=columns_max)


def _columns_of(args: tuple[object, ...]) -> int:
    of = args[-1]
    assert isinstance(of, ByIdentity)
    return len(of.table.columns)


def row_layout(table: Table) -> RowLayout:
    """The layout of the table's visible columns; the same object for the same version."""
    return _build(ByIdentity(table))


@kept_by_version
def _build(key: ByIdentity) -> RowLayout:
    table = key.table
    return RowLayout(
        name=f"{table.db}.{table.name}",
        columns=tuple(column_spec(c) for c in table.visible_columns),
        int_handle=next((c.id for c in table.columns if c.primary), None) if table.pk_is_handle else None,
        common_handle=_common_handle(table) if table.is_common_handle else (),
    )


def key_layout(table: Table) -> RowLayout:
    """The layout of the clustered primary key's columns whose values a record key holds completely.

    Keys hold the sort form of texts. With a binary collation that is the text (except trailing spaces in most of them);
    other texts and prefixes are not included."""
    return _build_of_key(ByIdentity(table))


@kept_by_version
def _build_of_key(key: ByIdentity) -> RowLayout:
    table, layout = key.table, row_layout(key.table)
    primary = next((i for i in table.indexes if i.primary), None)
    parts = {c.offset: c.length for c in primary.columns} if primary and table.is_common_handle else {}
    whole = {c.id for c in table.columns if parts.get(c.offset) == -1 and _sorts_as_it_is(c)}
    ids = whole | ({layout.int_handle} if layout.int_handle is not None else set())
    return replace(layout, columns=tuple(c for c in layout.columns if c.id in ids))


def _sorts_as_it_is(column: Column) -> bool:
    kind = kind_of(column_spec(column))
    if kind is ValueKind.TEXT:
        return column.charset not in _ENCODED and column.collate.endswith("_bin")
    return kind not in (
        ValueKind.ENUM,
        ValueKind.SET,
        ValueKind.BIT,
        ValueKind.JSON,
        ValueKind.VECTOR,
        ValueKind.UNKNOWN,
    )


def _common_handle(table: Table) -> tuple[int, ...]:
    primary = next((i for i in table.indexes if i.primary), None)
    by_offset = {c.offset: c.id for c in table.columns}
    return tuple(by_offset[c.offset] for c in primary.columns) if primary else ()


def column_spec(column: Column) -> ColumnSpec:
    return ColumnSpec(
        id=column.id,
        name=column.name,
        tp=column.tp,
        unsigned=column.unsigned,
        not_null=column.not_null,
        flen=column.flen,
        decimal=column.decimal,
        binary=column.binary,
        elems=column.elems,
        origin_default=column.origin_default,
        origin_default_bit=column.origin_default_bit,
        zerofill=bool(column.flag & _ZEROFILL) and column.tp != YEAR,
        charset=column.charset,
        version=column.version,
    )
