"""canal-json: every value a string, `data` and `old` arrays of one row, with their types.

Bytes are ISO-8859-1 text; BIT, ENUM and SET as numbers. `sqlType` of an unsigned integer depends on its value.
With the TiDB extension, messages carry their commit_ts and watermark messages are sent.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reading.core.changes import DELETE, INSERT, UPDATE, TableChanges
from reading.formats.pieces import JSON_HTML, JSON_LATIN1_HTML, Piece, Slot, bare, choice, quoted
from reading.formats.protocol import Encoder
from reading.formats.rows import (
    Field,
    changed_image,
    commit_ms,
    commit_ts,
    fields_of,
    image,
    json_bytes,
    main_image,
    plain_text,
    single_action,
)
from schemas.model import DdlEvent, Table
from schemas.types import base_type, full_type
from tistream.codec.row import layout
from tistream.codec.row.layout import ValueKind
from tistream.ts import physical_ms

_TYPES = {INSERT: b"INSERT", UPDATE: b"UPDATE", DELETE: b"DELETE"}
_TEXTS = frozenset({ValueKind.TEXT, ValueKind.JSON})
_TEXT_BLOBS = frozenset({layout.TINYBLOB, layout.MEDIUMBLOB, layout.LONGBLOB, layout.BLOB})
_SQL_TYPES = {
    layout.TINY: -6,
    layout.SHORT: 5,
    layout.INT24: 4,
    layout.LONG: 4,
    layout.LONGLONG: -5,
    layout.FLOAT: 7,
    layout.DOUBLE: 8,
    layout.DECIMAL: 3,
    layout.BIT: -7,
    layout.SET: -7,
    layout.ENUM: 4,
    layout.DATE: 91,
    layout.NEWDATE: 91,
    layout.DATETIME: 93,
    layout.TIMESTAMP: 93,
    layout.TIME: 92,
    layout.YEAR: 12,
    layout.JSON: 12,
    layout.VECTOR: 12,
    layout.STRING: 1,
    layout.VARCHAR: 12,
    layout.VARSTRING: 12,
}
_SQL_OTHER = 1111  # unknown types
#: unsigned integers: largest value of the base type, and the type of larger values
_WIDER = {
    layout.TINY: (127, 5),
    layout.SHORT: (32767, 4),
    layout.LONG: (2**31 - 1, -5),
    layout.LONGLONG: (2**63 - 1, 3),
}

_DDL_TYPES = {
    "CREATE": (3,),
    "RENAME": (14,),
    "CINDEX": (7, 9, 32),
    "DINDEX": (8, 10, 33),
    "ERASE": (4,),
    "TRUNCATE": (11,),
    "ALTER": (5, 6, 12, 13, 15, 17, 18, 19, 20, 22, 23, 41, 61, 64, 71, 72),
}
_DDL_TYPE_OF = {action: type_ for type_, actions in _DDL_TYPES.items() for action in actions}


@dataclass(frozen=True, slots=True)
class CanalJson(Encoder):
    """TiCDC's canal-json protocol."""

    name: ClassVar[str] = "canal-json"
    media_type: ClassVar[str] = "application/vnd.tistream.canal+json"

    @property
    def _changed_only(self) -> bool:
        return self.options.content_compatible or self.options.only_output_updated_columns

    def pieces(self, changes: TableChanges, kind: int) -> list[Piece]:
        table = changes.table
        fields = fields_of(table)
        main = main_image(changes, kind)
        head = b'{"id":0,"database":%b,"table":%b,"pkNames":%b,"isDdl":false,"type":"%b","es":' % (
            json_bytes(table.db),
            json_bytes(table.name),
            json_bytes([c.name for c in table.visible_columns if c.primary]),
            _TYPES[kind],
        )
        built: Piece = commit_ms(changes) if self.options.built_at_commit else b"%d" % self.options.built_ms
        pieces: list[Piece] = [head, commit_ms(changes), b',"ts":', built, b',"sql":"","sqlType":']
        pieces += image(fields, [_sql_type(f, main.column(f.place)) for f in fields])
        pieces += [b',"mysqlType":', self._mysql_types(table), b',"old":']
        pieces += self._old(changes, fields) if kind == UPDATE else [b"null"]
        pieces += [b',"data":[', *image(fields, _values(fields, main)), b"]"]
        if self.options.enable_tidb_extension:
            pieces += [b',"_tidb":{"commitTs":', commit_ts(changes), b"}"]
        return [*pieces, b"}"]

    def _mysql_types(self, table: Table) -> bytes:
        write = full_type if self.options.content_compatible else base_type
        return json_bytes({c.name: write(c) for c in table.visible_columns})

    def _old(self, changes: TableChanges, fields: Sequence[Field]) -> list[Piece]:
        values = _values(fields, changes.before)
        old = changed_image(changes, fields, values) if self._changed_only else image(fields, values)
        return [b"[", *old, b"]"]

    def ddl(self, event: DdlEvent) -> list[bytes]:
        """One message. With the extension, a DDL that took effect before its job finished carries `finishedTs`."""
        done = {"finishedTs": event.finished_ts} if event.finished_ts > event.commit_ts else {}
        extension = {"_tidb": {"commitTs": event.commit_ts, **done}}
        return [
            self._bare(event.db, event.table, True, ddl_type(event.type), event.commit_ts, event.statement, extension)
        ]

    def watermark(self, ts: int) -> bytes | None:
        """A TIDB_WATERMARK message, with the extension only."""
        if not self.options.enable_tidb_extension:
            return None
        return self._bare("", "", False, "TIDB_WATERMARK", ts, "", {"_tidb": {"watermarkTs": ts}})

    def _bare(
        self, db: str, table: str, is_ddl: bool, type_: str, ts: int, sql: str, extension: Mapping[str, object]
    ) -> bytes:
        message: dict[str, object] = {
            "id": 0,
            "database": db,
            "table": table,
            "pkNames": None,
            "isDdl": is_ddl,
            "type": type_,
            "es": physical_ms(ts),
            "ts": self.options.built_ms,
            "sql": sql,
            "sqlType": None,
            "mysqlType": None,
            "data": None,
            "old": None,
        }
        if self.options.enable_tidb_extension:
            message |= extension
        return json_bytes(message)


def ddl_type(action: int) -> str:
    """The message type of a DDL by TiDB's action number; QUERY when it has none."""
    return _DDL_TYPE_OF.get(single_action(action), "QUERY")


def _values(fields: Sequence[Field], batch: pa.RecordBatch) -> list[Slot]:
    return [_value(f, batch.column(f.place)) for f in fields]


def _value(field: Field, values: pa.Array) -> Slot:
    if field.kind is ValueKind.BINARY:
        return quoted(values, JSON_LATIN1_HTML)
    texts = plain_text(field, values)
    return quoted(texts, JSON_HTML) if field.kind in _TEXTS else bare(texts, quote=True)


def _sql_type(field: Field, values: pa.Array) -> Piece:
    column = field.column
    if field.kind is ValueKind.BINARY:
        return b"2004"
    if field.kind is ValueKind.TEXT and column.tp in _TEXT_BLOBS:
        return b"2005"
    base = b"%d" % _SQL_TYPES.get(column.tp, _SQL_OTHER)
    if field.kind is not ValueKind.UNSIGNED or column.tp not in _WIDER:
        return base
    top, wider = _WIDER[column.tp]
    above = pc.fill_null(pc.greater(values, pa.scalar(top, values.type)), False)
    return choice(np.asarray(above.to_numpy(zero_copy_only=False), np.bool_), b"%d" % wider, base)
