"""Helpers of the encoders: images as JSON objects, texts of storage columns, the columns that identify a row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from reading.core.changes import DELETE, TableChanges
from reading.core.split import differs
from reading.formats.pieces import Piece, Slot, bare, choice, only, styled_floats
from schemas.actions import Action
from schemas.layout import row_layout
from schemas.model import STATE_PUBLIC, Column, Index, Table
from tistream.codec.row.layout import ColumnSpec, ValueKind, kind_of
from tistream.codec.row.text import float_plain, text
from tistream.ts import LOGICAL_BITS

_NUMBERS = frozenset(
    {ValueKind.SIGNED, ValueKind.UNSIGNED, ValueKind.YEAR, ValueKind.BIT, ValueKind.ENUM, ValueKind.SET}
)
_FLOATS = frozenset({ValueKind.FLOAT, ValueKind.DOUBLE})
_SINGLE_ACTIONS: dict[int, int] = {Action.RENAME_TABLES: Action.RENAME_TABLE, Action.CREATE_TABLES: Action.CREATE_TABLE}


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """A delivered column: its place, its storage, and its name as JSON."""

    place: int  #: in visible_columns
    column: Column
    spec: ColumnSpec
    kind: ValueKind
    name_json: bytes  #: with quotes


def fields_of(table: Table) -> tuple[Field, ...]:
    """The delivered columns of a table version, in table order."""
    specs = row_layout(table).columns
    return tuple(
        Field(place, column, spec, kind_of(spec), json_bytes(column.name))
        for place, (column, spec) in enumerate(zip(table.visible_columns, specs, strict=True))
    )


def public_columns(table: Table) -> tuple[Column, ...]:
    """All public columns in table order: hidden and virtual ones too."""
    return tuple(c for c in table.columns if c.state == STATE_PUBLIC)


def handle_columns(table: Table) -> tuple[Column, ...]:
    """The columns that identify a row for consumers, in the order of their index.

    The primary key; else of the unique indexes over NOT NULL columns the one with the fewest columns, then the smallest
    id; empty when there is neither.
    """
    public = {c.offset: c for c in public_columns(table)}
    if table.pk_is_handle:
        return tuple(c for c in public.values() if c.primary)
    usable = [
        index
        for index in public_indexes(table)
        if index.unique
        and all(c.offset in public and public[c.offset].not_null and _stored(public[c.offset]) for c in index.columns)
    ]
    best = min(usable, key=lambda index: (not index.primary, len(index.columns), index.id), default=None)
    return tuple(public[c.offset] for c in best.columns) if best else ()


def handle_names(table: Table) -> frozenset[str]:
    """Names of the handle columns."""
    return frozenset(c.name for c in handle_columns(table))


def public_indexes(table: Table) -> tuple[Index, ...]:
    """The indexes that are in use."""
    return tuple(i for i in table.indexes if i.state == STATE_PUBLIC)


def _stored(column: Column) -> bool:
    return not column.generated or column.generated_stored


def single_action(action: int) -> int:
    """The action on one table of a job over several: such a job is announced table by table."""
    return _SINGLE_ACTIONS.get(action, action)


def json_bytes(value: object) -> bytes:
    """A constant as JSON on one line, without U+2028 and U+2029."""
    data = orjson.dumps(value)
    return data.replace(b"\xe2\x80\xa8", b"\\u2028").replace(b"\xe2\x80\xa9", b"\\u2029")


def image(fields: Sequence[Field], values: Sequence[Piece]) -> list[Piece]:
    """Pieces of the object `{"name":value,...}`."""
    pieces: list[Piece] = [b"{"]
    for n, (field, value) in enumerate(zip(fields, values, strict=True)):
        pieces += [b"," * (n > 0) + field.name_json + b":", value]
    return [*pieces, b"}"]


def changed_image(changes: TableChanges, fields: Sequence[Field], values: Sequence[Slot]) -> list[Piece]:
    """The object of the columns that an update changed; `values` are the old ones."""
    pieces: list[Piece] = [b"{"]
    has_member = np.zeros(len(changes), np.bool_)
    for field, value in zip(fields, values, strict=True):
        mask = differs(changes.after.column(field.place), changes.before.column(field.place))
        pieces += [choice(has_member & mask, b",", b""), only(mask, value.within(field.name_json + b":"))]
        has_member |= mask
    return [*pieces, b"}"]


def main_image(changes: TableChanges, kind: int) -> pa.RecordBatch:
    """The image that describes the row: the new one, of a delete the old one."""
    return changes.before if kind == DELETE else changes.after


def plain_text(field: Field, values: pa.Array) -> pa.Array:
    """MySQL's text, but floats without exponents; integers, BIT, ENUM, SET and YEAR stay integers."""
    if field.kind in _NUMBERS:
        return values
    if field.kind in _FLOATS:
        return float_plain(values, field.kind is ValueKind.FLOAT)
    return text(field.spec, values)


def json_float(plain: pa.Array) -> Slot:
    """Plain decimal texts as JSON numbers in Go's style: exponents below 1e-6 and from 1e21 on; null for nulls."""
    return bare(styled_floats(plain, low=-6, high=21))


def json_float_of(value: float) -> object:
    """One number as `json_float` writes it: whole numbers below 1e21 without a fraction."""
    whole = math.isfinite(value) and value.is_integer() and abs(value) < 1e21
    return orjson.Fragment(str(int(Decimal(repr(value))))) if whole else value  # orjson refuses more than 64 bits


def commit_ms(changes: TableChanges) -> Slot:
    """Unix milliseconds of the commits."""
    return Slot(values=changes.commit_ts >> np.uint64(LOGICAL_BITS))


def commit_ts(changes: TableChanges) -> Slot:
    """The commit timestamps."""
    return Slot(values=changes.commit_ts)


def as_float(texts: pa.Array) -> pa.Array:
    """Decimal texts as the nearest doubles; nulls stay."""
    return pc.cast(texts, pa.float64())
