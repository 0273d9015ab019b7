"""Plumbing shared by the encoders: one kind of change at a time, images as JSON objects, texts of storage columns."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa
import pyarrow.compute as pc

from apiserver.changes import DELETE, INSERT, UPDATE, TableChanges
from apiserver.formats.pieces import LARGE, Piece, bare, constant, integer_text, join, select, styled_floats
from apiserver.split import pick
from schemas.layout import row_layout
from schemas.model import STATE_PUBLIC, Column, Index, Table
from tistream.codec.row.layout import ColumnSpec, Kind, kind_of
from tistream.codec.row.text import float_plain, text
from tistream.ts import LOGICAL_BITS

_NUMBERS = frozenset({Kind.SIGNED, Kind.UNSIGNED, Kind.YEAR, Kind.BIT, Kind.ENUM, Kind.SET})
_FLOATS = frozenset({Kind.FLOAT, Kind.DOUBLE})


@dataclass(frozen=True, slots=True, eq=False)
class Field:
    """A delivered column: where it stands, how it is stored, and its name as JSON."""

    place: int  #: in visible_columns
    column: Column
    spec: ColumnSpec
    kind: Kind
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


def json_bytes(value: object) -> bytes:
    """A constant as JSON."""
    return orjson.dumps(value)


def by_kind(changes: TableChanges, encode: Callable[[TableChanges, int], pa.LargeBinaryArray]) -> pa.LargeBinaryArray:
    """`encode(part, kind)` for the changes of each kind, put back into the order of `changes`."""
    places = [np.flatnonzero(changes.kind == kind) for kind in (INSERT, UPDATE, DELETE)]
    present = [(kind, at) for kind, at in zip((INSERT, UPDATE, DELETE), places, strict=True) if len(at)]
    if not present:
        return pa.array([], LARGE)
    if len(present) == 1:
        return encode(changes, present[0][0])
    lines = pa.concat_arrays([encode(_of_kind(changes, at, kind), kind) for kind, at in present])
    back = np.argsort(np.concatenate([at for _, at in present]), kind="stable")
    return lines.take(pa.array(back))


def _of_kind(changes: TableChanges, at: npt.NDArray[np.int64], kind: int) -> TableChanges:
    """The changes at these places, all of one kind; an image that the kind does not have is not copied."""
    if kind == INSERT:
        return pick(replace(changes, before=changes.after), at)
    return pick(replace(changes, after=changes.before) if kind == DELETE else changes, at)


def image(
    fields: Sequence[Field], values: Sequence[Piece], masks: Sequence[npt.NDArray[np.bool_]] | None = None
) -> list[Piece]:
    """Pieces of the object `{"name":value,...}`; with masks, a member is there only in the rows of its mask."""
    pieces: list[Piece] = [b"{"]
    if masks is None:
        for n, (field, value) in enumerate(zip(fields, values, strict=True)):
            pieces += [b"," * (n > 0) + field.name_json + b":", value]
        return [*pieces, b"}"]
    begun = np.zeros(len(masks[0]) if masks else 0, np.bool_)
    for field, value, mask in zip(fields, values, masks, strict=True):
        comma = select(begun, b",", b"")
        member = join([comma, field.name_json + b":", value], len(mask))
        pieces.append(select(mask, member, b""))
        begun = begun | mask
    return [*pieces, b"}"]


def kept(changes: TableChanges, kind: int) -> pa.RecordBatch:
    """The image that says what the row is: the new one, of a delete the old one."""
    return changes.before if kind == DELETE else changes.after


def plain_text(field: Field, values: pa.Array) -> pa.Array:
    """MySQL's text, but numbers for BIT, ENUM, SET and YEAR and floats without exponents; nulls stay."""
    if field.kind in _NUMBERS:
        return integer_text(values)
    if field.kind in _FLOATS:
        return float_plain(values, field.kind is Kind.FLOAT)
    return text(field.spec, values)


def json_float(plain: pa.Array) -> pa.LargeBinaryArray:
    """Plain decimal texts as JSON numbers in Go's style: exponents below 1e-6 and from 1e21 on; null for nulls."""
    return bare(styled_floats(plain, low=-6, high=21))


def json_float_of(value: float) -> object:
    """One number as `json_float` writes it: whole numbers below 1e21 without a fraction."""
    whole = math.isfinite(value) and value.is_integer() and abs(value) < 1e21
    return orjson.Fragment(str(int(Decimal(repr(value))))) if whole else value  # orjson refuses more than 64 bits


def number_text(values: npt.NDArray[np.generic]) -> pa.LargeBinaryArray:
    """Integers as text."""
    return pa.array(values).cast(pa.large_string()).cast(LARGE)


def commit_ms(changes: TableChanges) -> pa.LargeBinaryArray:
    """Unix milliseconds of the commits."""
    return number_text(changes.commit_ts >> np.uint64(LOGICAL_BITS))


def commit_ts(changes: TableChanges) -> pa.LargeBinaryArray:
    """The commit timestamps."""
    return number_text(changes.commit_ts)


def nothing(rows: int) -> pa.LargeBinaryArray:
    """`null` in each row."""
    return constant(b"null", rows)


def as_float(texts: pa.Array) -> pa.Array:
    """Decimal texts as the nearest doubles; nulls stay."""
    return pc.cast(texts, pa.float64())
