"""csv: `op,table,schema[,commit-ts][,is-update],columns...`, one record per message.

Texts are quoted (or escaped with backslashes when there is no quote character), numbers and BIT are not; DECIMAL,
dates, times, JSON and VECTOR are texts, ENUM and SET their labels. The error value 0 of an ENUM is an empty text. There
are no DDL and no watermark records.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from reading.core.changes import DELETE, INSERT, UPDATE, TableChanges
from reading.formats.lines import as_array
from reading.formats.pieces import HEX, ByteMap, Piece, Slot, bare, base64_text, byte_map, slot, styled_floats
from reading.formats.protocol import Encoder
from reading.formats.rows import Field, commit_ts, fields_of, main_image, plain_text
from schemas.model import DdlEvent, Table
from tistream.codec.row.layout import ValueKind
from tistream.codec.row.text import enum_labels, set_labels

_OPS = {INSERT: "I", UPDATE: "U", DELETE: "D"}
_UNQUOTED = frozenset({ValueKind.SIGNED, ValueKind.UNSIGNED, ValueKind.YEAR, ValueKind.BIT})
_FLOATS = frozenset({ValueKind.FLOAT, ValueKind.DOUBLE})


@dataclass(frozen=True, slots=True)
class Csv(Encoder):
    """TiCDC's csv protocol."""

    name: ClassVar[str] = "csv"
    media_type: ClassVar[str] = "text/csv"

    @property
    def terminator(self) -> bytes:
        return self.options.terminator.encode()

    def ddl(self, event: DdlEvent) -> list[bytes]:
        """Nothing."""
        return []

    def watermark(self, ts: int) -> bytes | None:
        """Nothing."""
        return None

    def pieces(self, changes: TableChanges, kind: int) -> list[Piece]:
        """One record per change; with output-old-value two for an update, with the terminator between them."""
        pieces: list[Piece] = []
        if kind == UPDATE and self.options.output_old_value:
            pieces += [*self._record(changes, "D", changes.before, is_update=True), self.terminator]
            pieces += self._record(changes, "I", changes.after, is_update=True)
        else:
            pieces += self._record(changes, _OPS[kind], main_image(changes, kind), is_update=kind == UPDATE)
        return pieces

    def _record(self, changes: TableChanges, op: str, batch: pa.RecordBatch, *, is_update: bool) -> list[Piece]:
        options = self.options
        comma = options.delimiter.encode()
        pieces: list[Piece] = [comma.join(self._texts(op, changes.table))]
        if options.include_commit_ts:
            pieces += [comma, commit_ts(changes)]
        if options.output_old_value:
            pieces += [comma, b"true" if is_update else b"false"]
        for field in fields_of(changes.table):
            pieces += [comma, self.value(field, batch.column(field.place))]
        return pieces

    def _texts(self, op: str, table: Table) -> list[bytes]:
        texts: list[bytes] = as_array(self._text(pa.array([op, table.name, table.db]))).to_pylist()
        return texts

    def _text(self, values: pa.Array) -> Slot:
        quote = self.options.quote.encode()
        escapes = _escapes(quote, self.options.delimiter.encode())
        return slot(values, escapes, before=quote, after=quote, null=self.options.null.encode())

    def value(self, field: Field, values: pa.Array) -> Slot:
        """A column's values as written in a record."""
        null = self.options.null.encode()
        if field.kind in _UNQUOTED:
            return bare(plain_text(field, values), null=null)
        if field.kind in _FLOATS:
            plain = plain_text(field, values)
            # Go's default form: the fewest digits, with an exponent below 1e-4 and from 1e6 on
            return bare(styled_floats(plain, low=-4, high=6), null=null)
        return self._text(self._string(field, values))

    def _string(self, field: Field, values: pa.Array) -> pa.Array:
        if field.kind is ValueKind.ENUM:
            return enum_labels(field.spec, values)
        if field.kind is ValueKind.SET:
            return set_labels(field.spec, values)
        if field.kind is not ValueKind.BINARY:
            return plain_text(field, values)
        if self.options.binary_encoding_method == "base64":
            return base64_text(values)
        return pc.if_else(values.is_valid(), as_array(slot(values, HEX)), None)


@functools.lru_cache(maxsize=16)
def _escapes(quote: bytes, delimiter: bytes) -> ByteMap:
    if quote:
        return byte_map({quote[0]: quote * 2})
    return byte_map({10: b"\\n", 13: b"\\r", 92: b"\\\\", delimiter[0]: b"\\" + delimiter})
