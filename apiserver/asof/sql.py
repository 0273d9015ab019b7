"""Rows as INSERT statements, for a MySQL-compatible server.

    INSERT INTO `db`.`table` (`a`,`b`) VALUES
    (1,'x'),
    (2,NULL);

Numbers are written as they are (a FLOAT with the digits of a DOUBLE: servers refuse the largest one with fewer),
bytes and BIT in hexadecimal, everything else as MySQL's text in quotes. A statement has so many rows that it stays
far below the smallest usual `max_allowed_packet`. What must be set for it to be read as it was meant stands before
the first one. The error value of an ENUM is refused in strict mode, so statements that hold one are wrapped in a mode
without it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from apiserver.formats.lines import Block, as_array, write
from apiserver.formats.pieces import HEX, Piece, Slot, bare, byte_map, choice, slot
from apiserver.formats.rows import Field, fields_of, plain_text
from schemas.model import Table
from schemas.queries import quoted
from tistream.codec.row.layout import DOUBLE, Kind
from tistream.codec.row.text import bit_bytes, enum_labels, set_labels, text

_STRICT = b"SET sql_mode = 'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES';\n"
_LAX = b"SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES';\n"
SETTINGS = b"SET NAMES utf8mb4;\nSET time_zone = '+00:00';\n" + _STRICT + b"SET foreign_key_checks = 0;\n"
_STATEMENT_BYTES = 1 << 20
_NUMBERS = frozenset({Kind.SIGNED, Kind.UNSIGNED, Kind.YEAR, Kind.DECIMAL})
_QUOTED = byte_map({0: b"\\0", 10: b"\\n", 13: b"\\r", 26: b"\\Z", 39: b"''", 92: b"\\\\"})


def inserts(table: Table, batch: pa.RecordBatch) -> bytes:
    """The statements for these rows (delivered columns in storage form)."""
    rows = max(1, batch.num_rows * _STATEMENT_BYTES // max(4 * batch.nbytes, 1))
    return b"".join(_insert(table, batch.slice(at, rows)) for at in range(0, batch.num_rows, rows))


def _insert(table: Table, batch: pa.RecordBatch) -> bytes:
    names = ",".join(quoted(column.name) for column in table.visible_columns)
    head = f"INSERT INTO {quoted(table.db, table.name)} ({names}) VALUES\n".encode()
    pieces: list[Piece] = [b"("]
    fields = fields_of(table)
    for n, field in enumerate(fields):
        pieces += [b"," * (n > 0), _value(field, batch.column(field.place))]
    last = np.zeros(batch.num_rows, np.bool_)
    last[-1:] = True
    pieces += [b")", choice(last, b";", b",")]
    _, data = write([Block(at=np.arange(batch.num_rows), pieces=pieces)], end=b"\n")
    statement = head + data.tobytes()
    lax = any(f.kind is Kind.ENUM and pc.any(pc.equal(batch.column(f.place), 0)).as_py() for f in fields)
    return _LAX + statement + _STRICT if lax else statement


def _value(field: Field, values: pa.Array) -> Slot:
    kind = field.kind
    if kind in (Kind.FLOAT, Kind.DOUBLE):
        return bare(text(replace(field.spec, tp=DOUBLE), values.cast(pa.float64())), null=b"NULL")
    if kind in _NUMBERS:
        return bare(plain_text(field, values), null=b"NULL")
    if kind in (Kind.BINARY, Kind.BIT):
        raw = values if kind is Kind.BINARY else bit_bytes(field.spec, values)
        hexed = pc.if_else(raw.is_valid(), as_array(slot(raw, HEX)), None)
        return slot(hexed, before=b"X'", after=b"'", null=b"NULL")
    if kind is Kind.ENUM:
        shown = enum_labels(field.spec, values)
    elif kind is Kind.SET:
        shown = set_labels(field.spec, values)
    else:
        shown = plain_text(field, values)
    return slot(shown, _QUOTED, before=b"'", after=b"'", null=b"NULL")
