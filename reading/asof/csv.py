"""Renders rows as CSV that LOAD DATA of MySQL and MariaDB reads back unchanged.

    "id","name"                     names, then one record per row, each ended by CR LF
    1,"say ""no"" twice"            texts in quotes, quotes doubled; a backslash is itself
    2,NULL                          NULL is the bare word, "NULL" a text

Numbers have no quotes (a FLOAT has the digits of a DOUBLE, a BIT is decimal), bytes are quoted hexadecimal, everything
else is MySQL's text. LOAD DATA reads a BIT and hexadecimal digits as text, so its statement converts them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reading.formats.lines import Block, as_array, write
from reading.formats.pieces import HEX, Piece, Slot, bare, byte_map, slot
from reading.formats.rows import Field, fields_of, plain_text
from schemas.model import Table
from schemas.queries import quoted
from tistream.codec.row.layout import DOUBLE, ValueKind
from tistream.codec.row.text import enum_labels, set_labels, text

_END = b"\r\n"
_NULL = b"NULL"
_NUMBERS = frozenset({ValueKind.SIGNED, ValueKind.UNSIGNED, ValueKind.DECIMAL, ValueKind.BIT})
_QUOTES = byte_map({34: b'""'})
_FORM = (
    "CHARACTER SET utf8mb4 FIELDS TERMINATED BY ',' ENCLOSED BY '\"' ESCAPED BY '' "
    "LINES TERMINATED BY '\\r\\n' IGNORE 1 LINES"
)
_CONVERTED = {ValueKind.BINARY: "UNHEX({})", ValueKind.BIT: "CAST({} AS UNSIGNED)"}


def header(table: Table) -> bytes:
    """The line of names."""
    names = (column.name.replace('"', '""') for column in table.visible_columns)
    return ",".join(f'"{name}"' for name in names).encode() + _END


def records(table: Table, batch: pa.RecordBatch) -> bytes:
    """The records of these rows (delivered columns in storage form)."""
    pieces: list[Piece] = []
    for field in fields_of(table):
        pieces += [b"," * bool(pieces), _value(field, batch.column(field.place))]
    _, data = write([Block(at=np.arange(batch.num_rows), pieces=pieces)], end=_END)
    return data.tobytes()


def load_statement(table: Table) -> str:
    """The rest of `LOAD DATA LOCAL INFILE 'file'`, without the semicolon."""
    places, sets = [], []
    for field in fields_of(table):
        name = quoted(field.column.name)
        convert = _CONVERTED.get(field.kind)
        places.append(name if convert is None else f"@c{field.place}")
        if convert is not None:
            sets.append(f"{name} = {convert.format(places[-1])}")
    converted = f" SET {', '.join(sets)}" if sets else ""
    return f"INTO TABLE {quoted(table.db, table.name)} {_FORM} ({', '.join(places)}){converted}"


def _value(field: Field, values: pa.Array) -> Slot:
    if field.kind in (ValueKind.FLOAT, ValueKind.DOUBLE):
        return bare(text(replace(field.spec, tp=DOUBLE), values.cast(pa.float64())), null=_NULL)
    if field.kind in _NUMBERS:
        return bare(plain_text(field, values), null=_NULL)
    if field.kind is ValueKind.YEAR:
        return bare(text(field.spec, values), null=_NULL)  # four digits: the text 0 is 2000
    if field.kind is ValueKind.BINARY:
        shown = pc.if_else(values.is_valid(), as_array(slot(values, HEX)), None)
    elif field.kind is ValueKind.ENUM:
        shown = enum_labels(field.spec, values)
    elif field.kind is ValueKind.SET:
        shown = set_labels(field.spec, values)
    else:
        shown = plain_text(field, values)
    return slot(shown, _QUOTES, before=b'"', after=b'"', null=_NULL)
