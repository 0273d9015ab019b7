"""simple (JSON): one object per message, members of `data` and `old` sorted by name, every value a string.

TIMESTAMP is `{"location":"UTC","value":"..."}`, bytes are base64, BIT, ENUM and SET numbers. `schemaVersion` names the
table version; DDL messages carry the whole table version as `tableSchema`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from reading.core.changes import DELETE, INSERT, UPDATE, TableChanges
from reading.formats.canal_json import ddl_type
from reading.formats.pieces import JSON_HTML, Piece, Slot, bare, base64_text, quoted, slot
from reading.formats.protocol import Encoder
from reading.formats.rows import (
    Field,
    commit_ts,
    fields_of,
    handle_columns,
    image,
    json_bytes,
    plain_text,
    public_columns,
    public_indexes,
)
from schemas.actions import Action
from schemas.model import Column, DdlEvent, Index, Table
from schemas.queries import rename
from schemas.types import type_name
from tistream.codec.row import layout
from tistream.codec.row.layout import ValueKind

_TYPES = {INSERT: b"INSERT", UPDATE: b"UPDATE", DELETE: b"DELETE"}
_TEXTS = frozenset({ValueKind.TEXT, ValueKind.JSON})
_ZEROFILL = 64
_PASSING_ID = -1  # how TiCDC marks a table under an intermediate name


@dataclass(frozen=True, slots=True)
class Simple(Encoder):
    """TiCDC's simple protocol in its JSON form."""

    name: ClassVar[str] = "simple"
    media_type: ClassVar[str] = "application/vnd.tistream.simple+json"

    def pieces(self, changes: TableChanges, kind: int) -> list[Piece]:
        table = changes.table
        fields = sorted(fields_of(table), key=lambda f: f.column.name)
        pieces: list[Piece] = [
            b'{"version":1,"database":%b,"table":%b,"tableID":' % (json_bytes(table.db), json_bytes(table.name)),
            Slot(values=changes.physical_id),
            b',"type":"%b","commitTs":' % _TYPES[kind],
            commit_ts(changes),
            b',"buildTs":%d,"schemaVersion":%d' % (self.options.built_ms, table.update_ts),
        ]
        if kind != DELETE:
            pieces += [b',"data":', *image(fields, _values(fields, changes.after))]
        if kind != INSERT:
            pieces += [b',"old":', *image(fields, _values(fields, changes.before))]
        return [*pieces, b"}"]

    def ddl(self, event: DdlEvent) -> list[bytes]:
        """One message, with the table version that the DDL made (or removed)."""
        message: dict[str, object] = {
            "version": 1,
            # as canal-json, but EXCHANGE PARTITION is an ALTER
            "type": "ALTER" if event.type == Action.EXCHANGE_PARTITION else ddl_type(event.type),
            "sql": event.statement,
            "commitTs": event.commit_ts,
            "buildTs": self.options.built_ms,
        }
        if event.version is not None:
            schema = table_schema(event.version)
            message["tableSchema"] = schema | {"tableID": _PASSING_ID} if _renamed_again(event) else schema
        if event.exchanged is not None:
            message["preTableSchema"] = table_schema(event.exchanged)
        return [json_bytes(message)]

    def watermark(self, ts: int) -> bytes | None:
        """A WATERMARK message."""
        return json_bytes({"version": 1, "type": "WATERMARK", "commitTs": ts, "buildTs": self.options.built_ms})


def _renamed_again(event: DdlEvent) -> bool:
    """Whether a later clause of the same RENAME renames the table again: the event then shows its last name."""
    table = event.version
    if event.type != Action.RENAME_TABLES or table is None:
        return False
    return event.query.rstrip(";") != rename(event.old_db, event.old_table, table.db, table.name)


def table_schema(table: Table) -> dict[str, object]:
    """A table version as the protocol describes it: all public columns, hidden and virtual ones too."""
    columns = public_columns(table)
    by_offset = {c.offset: c for c in columns}
    indexes = [_index(i, by_offset) for i in public_indexes(table)]
    handle = [c.name for c in handle_columns(table)]
    if handle and not any(i.primary for i in public_indexes(table)):
        indexes.append({"name": "primary", "unique": True, "primary": True, "nullable": False, "columns": handle})
    return {
        "schema": table.db,
        "table": table.name,
        "tableID": table.id,
        "version": table.update_ts,
        "columns": [_column(c) for c in columns],
        "indexes": indexes,
    }


def _index(index: Index, by_offset: dict[int, Column]) -> dict[str, object]:
    return {
        "name": index.name,
        "unique": index.unique,
        "primary": index.primary,
        "nullable": any(not by_offset[c.offset].not_null for c in index.columns),
        "columns": [c.name for c in index.columns],
    }


def _column(column: Column) -> dict[str, object]:
    fraction = 0 if column.tp in (layout.FLOAT, layout.DOUBLE) else column.decimal
    optional = {
        "length": column.flen,
        "decimal": fraction,
        "elements": list(column.elems),
        "unsigned": column.unsigned,
        "zerofill": bool(column.flag & _ZEROFILL),
    }
    data_type: dict[str, object] = {
        "mysqlType": type_name(column) if column.tp else "unspecified",
        "charset": column.charset,
        "collate": column.collate,
        **{name: value for name, value in optional.items() if value},
    }
    default = column.default
    if column.tp == layout.BIT and column.default_bit is not None:
        default = int.from_bytes(column.default_bit, "big")
    return {"name": column.name, "dataType": data_type, "nullable": not column.not_null, "default": default}


def _values(fields: Sequence[Field], batch: pa.RecordBatch) -> list[Slot]:
    return [_value(f, batch.column(f.place)) for f in fields]


def _value(field: Field, values: pa.Array) -> Slot:
    if field.kind is ValueKind.BINARY:
        return bare(base64_text(values), quote=True)
    texts = plain_text(field, values)
    if field.column.tp == layout.TIMESTAMP:
        return slot(texts, JSON_HTML, before=b'{"location":"UTC","value":"', after=b'"}')
    return quoted(texts, JSON_HTML) if field.kind in _TEXTS else bare(texts, quote=True)
