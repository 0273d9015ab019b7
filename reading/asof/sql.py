"""Renders rows as INSERT statements for a MySQL-compatible server.

    INSERT INTO `db`.`table` (`a`,`b`) VALUES
    (1,'x'),
    (2,NULL);

Numbers are unquoted (a FLOAT has the digits of a DOUBLE: servers refuse the largest one with fewer), bytes and BIT are
hexadecimal, everything else is MySQL's quoted text. A statement has at most 1 MiB, below the smallest usual
`max_allowed_packet`, unless one row is larger. The required session settings come first. Strict mode refuses the error
value of an ENUM, so statements with one are wrapped in a mode without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reading.formats.lines import Block, as_array, write
from reading.formats.pieces import HEX, Piece, Slot, bare, byte_map, slot
from reading.formats.rows import Field, fields_of, plain_text
from schemas.model import Table
from schemas.queries import quoted
from tistream.codec.row.layout import DOUBLE, ValueKind
from tistream.codec.row.text import bit_bytes, enum_labels, set_labels, text

_STRICT = b"SET sql_mode = 'STRICT_ALL_TABLES,NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES';\n"
_LAX = b"SET sql_mode = 'NO_AUTO_VALUE_ON_ZERO,ALLOW_INVALID_DATES';\n"
SETTINGS = b"SET NAMES utf8mb4;\nSET time_zone = '+00:00';\n" + _STRICT + b"SET foreign_key_checks = 0;\n"
_STATEMENT_BYTES = 1 << 20
_ROW_END = b",\n"
_NUMBERS = frozenset({ValueKind.SIGNED, ValueKind.UNSIGNED, ValueKind.YEAR, ValueKind.DECIMAL})
_QUOTED = byte_map({0: b"\\0", 10: b"\\n", 13: b"\\r", 26: b"\\Z", 39: b"''", 92: b"\\\\"})


def inserts(table: Table, batch: pa.RecordBatch) -> bytes:
    """The statements for these rows (delivered columns in storage form)."""
    names = ",".join(quoted(column.name) for column in table.visible_columns)
    head = f"INSERT INTO {quoted(table.db, table.name)} ({names}) VALUES\n".encode()
    fields = fields_of(table)
    pieces: list[Piece] = [b"("]
    for n, field in enumerate(fields):
        pieces += [b"," * (n > 0), _value(field, batch.column(field.place))]
    ends, data = write([Block(at=np.arange(batch.num_rows), pieces=[*pieces, b")"])], end=_ROW_END)
    rows, lax = data.data, _with_error_value(fields, batch)
    lines: list[bytes | memoryview] = []
    at = 0
    while at < batch.num_rows:
        limit = int(ends[at]) + _STATEMENT_BYTES - len(head)
        upto = max(at + 1, int(np.searchsorted(ends, np.uint64(max(limit, 0)), side="right")) - 1)
        body = rows[int(ends[at]) : int(ends[upto]) - len(_ROW_END)]
        wrapped = lax[at:upto].any()
        lines += [_LAX * bool(wrapped), head, body, b";\n", _STRICT * bool(wrapped)]
        at = upto
    return b"".join(lines)


def _with_error_value(fields: Sequence[Field], batch: pa.RecordBatch) -> npt.NDArray[np.bool_]:
    """The rows that hold the error value of an ENUM."""
    mask = np.zeros(batch.num_rows, np.bool_)
    for field in fields:
        if field.kind is ValueKind.ENUM:
            mask |= pc.fill_null(pc.equal(batch.column(field.place), 0), False).to_numpy(zero_copy_only=False)
    return mask


def _value(field: Field, values: pa.Array) -> Slot:
    kind = field.kind
    if kind in (ValueKind.FLOAT, ValueKind.DOUBLE):
        return bare(text(replace(field.spec, tp=DOUBLE), values.cast(pa.float64())), null=b"NULL")
    if kind in _NUMBERS:
        return bare(plain_text(field, values), null=b"NULL")
    if kind in (ValueKind.BINARY, ValueKind.BIT):
        raw = values if kind is ValueKind.BINARY else bit_bytes(field.spec, values)
        hexed = pc.if_else(raw.is_valid(), as_array(slot(raw, HEX)), None)
        return slot(hexed, before=b"X'", after=b"'", null=b"NULL")
    if kind is ValueKind.ENUM:
        shown = enum_labels(field.spec, values)
    elif kind is ValueKind.SET:
        shown = set_labels(field.spec, values)
    else:
        shown = plain_text(field, values)
    return slot(shown, _QUOTED, before=b"'", after=b"'", null=b"NULL")
