"""open-protocol: a key and a value per message, columns with their type number and flags.

TEXT is base64 like BLOB, BINARY and VARBINARY are Go's quoted text, BIT, ENUM and SET are numbers.
A line is `{"key":...,"value":...}`; the value of a watermark is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from reading.core.changes import DELETE, UPDATE, TableChanges
from reading.formats.pieces import JSON, Piece, Slot, bare, base64_text, go_quoted, quoted
from reading.formats.protocol import Encoder
from reading.formats.rows import (
    Field,
    changed_image,
    commit_ts,
    fields_of,
    handle_names,
    image,
    json_bytes,
    json_float,
    main_image,
    plain_text,
    public_indexes,
    single_action,
)
from schemas.model import DdlEvent, Table
from tistream.codec.row import layout
from tistream.codec.row.layout import ValueKind

_ROW, _DDL, _WATERMARK = 1, 2, 3
_BLOBS = frozenset({layout.TINYBLOB, layout.MEDIUMBLOB, layout.LONGBLOB, layout.BLOB})
_INTEGERS = frozenset(
    {ValueKind.SIGNED, ValueKind.UNSIGNED, ValueKind.YEAR, ValueKind.BIT, ValueKind.ENUM, ValueKind.SET}
)
_FLAG_UNIQUE, _FLAG_MULTIPLE = 4, 8  # of a column in TiDB


@dataclass(frozen=True, slots=True)
class OpenProtocol(Encoder):
    """TiCDC's open protocol, one message a line."""

    name: ClassVar[str] = "open-protocol"
    media_type: ClassVar[str] = "application/vnd.tistream.open-protocol+json"

    def pieces(self, changes: TableChanges, kind: int) -> list[Piece]:
        table = changes.table
        fields = fields_of(table)
        names = b',"scm":%b,"tbl":%b,"t":%d' % (json_bytes(table.db), json_bytes(table.name), _ROW)
        pieces: list[Piece] = [b'{"key":{"ts":', commit_ts(changes), names]
        if table.partition_ids:
            pieces += [b',"ptn":', Slot(values=changes.physical_id)]
        pieces += [b'},"value":{"d":' if kind == DELETE else b'},"value":{"u":']
        pieces += image(fields, _values(table, fields, main_image(changes, kind)))
        if kind == UPDATE:
            pieces += [b',"p":', *self._old(changes, fields)]
        return [*pieces, b"}}"]

    def _old(self, changes: TableChanges, fields: Sequence[Field]) -> list[Piece]:
        values = _values(changes.table, fields, changes.before)
        changed_only = self.options.only_output_updated_columns
        return changed_image(changes, fields, values) if changed_only else image(fields, values)

    def ddl(self, event: DdlEvent) -> list[bytes]:
        """One line."""
        key = {"ts": event.commit_ts, "scm": event.db, "tbl": event.table, "t": _DDL}
        return [json_bytes({"key": key, "value": {"q": event.statement, "t": single_action(event.type)}})]

    def watermark(self, ts: int) -> bytes | None:
        """A key alone."""
        return json_bytes({"key": {"ts": ts, "t": _WATERMARK}, "value": None})


def column_flags(table: Table) -> dict[str, int]:
    """The protocol's own flags of each column, by name. Every column of an index counts, not only the first."""
    handles = handle_names(table)
    names = {c.offset: c.name for c in table.columns}
    unique = {names[c.offset] for i in public_indexes(table) if i.unique and not i.primary for c in i.columns}
    multiple = {names[c.offset] for i in public_indexes(table) if len(i.columns) > 1 for c in i.columns}
    return {
        c.name: (1 if c.binary else 0)
        | (2 if c.name in handles else 0)
        | (4 if c.generated else 0)
        | (8 if c.primary else 0)
        | (16 if c.flag & _FLAG_UNIQUE or c.name in unique else 0)
        | (32 if c.flag & _FLAG_MULTIPLE or c.name in multiple else 0)
        | (0 if c.not_null else 64)
        | (128 if c.unsigned else 0)
        for c in table.visible_columns
    }


def _values(table: Table, fields: Sequence[Field], batch: pa.RecordBatch) -> list[Slot]:
    handles = handle_names(table)
    flags = column_flags(table)
    members: list[Slot] = []
    for field in fields:
        column = field.column
        handle = b'"h":true,' if column.name in handles else b""
        head = b'{"t":%d,%b"f":%d,"v":' % (column.tp, handle, flags[column.name])
        members.append(_value(field, batch.column(field.place)).within(head, b"}"))
    return members


def _value(field: Field, values: pa.Array) -> Slot:
    if field.kind in (ValueKind.TEXT, ValueKind.BINARY) and field.column.tp in _BLOBS:
        return bare(base64_text(values), quote=True)
    if field.kind is ValueKind.BINARY:
        return quoted(go_quoted(values), JSON)
    texts = plain_text(field, values)
    if field.kind in (ValueKind.FLOAT, ValueKind.DOUBLE):
        return json_float(texts)
    if field.kind in _INTEGERS:
        return bare(texts)
    return quoted(texts, JSON)
