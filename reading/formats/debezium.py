"""debezium (JSON): row messages with `before` and `after`, key and value on one line.

A line is `{"key":...,"value":...}`. Numbers are numbers (DECIMAL as the nearest double, BIGINT UNSIGNED as its
signed bits), BIT(1) is a boolean, other BIT little-endian bytes, bytes are base64, dates and times counts since the
epoch, TIMESTAMP is text in UTC. Years below 100 are read as 19xx or 20xx; a date that does not exist is null, or 0
where null is not allowed.

A row of a snapshot has op "r" and `source.snapshot` "true".

NULL is null, also in a column with a default. Without `debezium-disable-schema` each message carries its schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from reading.core.changes import DELETE, INSERT, UPDATE, TableChanges
from reading.formats import debezium_ddl, debezium_schema
from reading.formats.debezium_values import value_json
from reading.formats.encoder import Encoder
from reading.formats.pieces import Piece, Slot
from reading.formats.rows import Field, commit_ms, commit_ts, fields_of, handle_names, image, json_bytes, main_image
from schemas.model import DdlEvent
from tistream.ts import physical_ms

_OPS = {INSERT: b"c", UPDATE: b"u", DELETE: b"d"}


@dataclass(frozen=True, slots=True)
class Debezium(Encoder):
    """TiCDC's debezium protocol in its JSON form."""

    name: ClassVar[str] = "debezium"
    media_type: ClassVar[str] = "application/vnd.tistream.debezium+json"

    @property
    def _with_schema(self) -> bool:
        return not self.options.debezium_disable_schema

    def pieces(self, changes: TableChanges, kind: int) -> list[Piece]:
        table = changes.table
        fields = fields_of(table)
        main = main_image(changes, kind)
        main_values = _values(fields, main)
        handles = [n for n, f in enumerate(fields) if f.column.name in handle_names(table)]
        options = self.options
        pieces: list[Piece] = [b'{"key":{"payload":']
        pieces += image([fields[n] for n in handles], [main_values[n] for n in handles])
        if self._with_schema:
            pieces += [b',"schema":', json_bytes(debezium_schema.key_schema(table, options))]
        pieces += [b'},"value":{"payload":{"source":', *self._row_source(changes)]
        pieces.append(
            b',"ts_ms":%d,"transaction":null,"op":"%b"' % (options.built_ms, b"r" if options.snapshot else _OPS[kind])
        )
        before: list[Piece] = [
            b',"before":',
            *image(fields, _values(fields, changes.before) if kind == UPDATE else main_values),
        ]
        after: list[Piece] = [b',"after":', *image(fields, main_values)]
        if kind == INSERT:
            pieces += [b',"before":null', *after]
        elif kind == DELETE:
            pieces += [b',"after":null', *before]
        else:
            pieces += [*before, *after]
        pieces.append(b"}")
        if self._with_schema:
            pieces += [b',"schema":', json_bytes(debezium_schema.row_schema(table, options))]
        return [*pieces, b"}}"]

    def _row_source(self, changes: TableChanges) -> list[Piece]:
        table = changes.table
        # quotes inside names are escaped, so each of these occurs once
        begin, rest = json_bytes(self._source(table.db, table.name, 0)).split(b'"ts_ms":0')
        middle, end = rest.split(b'"commit_ts":0')
        return [begin, b'"ts_ms":', commit_ms(changes), middle, b'"commit_ts":', commit_ts(changes), end]

    def _source(self, db: str, table: str, ts: int) -> dict[str, object]:
        return {
            "version": "2.4.0.Final",
            "connector": "TiCDC",
            "name": self.options.cluster_name,
            "ts_ms": physical_ms(ts),
            "snapshot": "true" if self.options.snapshot else "false",
            "db": db,
            "table": table,
            "server_id": 0,
            "gtid": None,
            "file": "",
            "pos": 0,
            "row": 0,
            "thread": 0,
            "query": None,
            "commit_ts": ts,
            "cluster_id": self.options.cluster_name,
        }

    def ddl(self, event: DdlEvent) -> list[bytes]:
        """One line; none for the few kinds of DDL without a message type."""
        type_ = debezium_ddl.ddl_type(event.type)
        if type_ is None:
            return []
        key: dict[str, object] = {"payload": {"databaseName": event.db}}
        value: dict[str, object] = {
            "payload": {
                "source": self._source(event.db, event.table, event.commit_ts),
                "ts_ms": self.options.built_ms,
                "databaseName": event.db,
                "schemaName": None,
                "ddl": event.statement,
                "tableChanges": debezium_ddl.table_changes(event, type_),
            }
        }
        if self._with_schema:
            key["schema"] = debezium_schema.DDL_KEY_SCHEMA
            value["schema"] = debezium_schema.DDL_VALUE_SCHEMA
        return [json_bytes({"key": key, "value": value})]

    def watermark(self, ts: int) -> bytes | None:
        """A message with op "m", with the extension only."""
        if not self.options.enable_tidb_extension:
            return None
        payload = {"source": self._source("", "", ts), "ts_ms": self.options.built_ms, "transaction": None, "op": "m"}
        key: dict[str, object] = {"payload": {}}
        value: dict[str, object] = {"payload": payload}
        if self._with_schema:
            key["schema"] = debezium_schema.watermark_key_schema(self.options)
            value["schema"] = debezium_schema.watermark_schema(self.options)
        return json_bytes({"key": key, "value": value})


def _values(fields: Sequence[Field], batch: pa.RecordBatch) -> list[Slot]:
    return [value_json(f, batch.column(f.place)) for f in fields]
