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

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reading.core.changes import DELETE, INSERT, UPDATE, TableChanges
from reading.formats import debezium_ddl, debezium_schema
from reading.formats.pieces import JSON, Piece, Slot, bare, base64_text, large_binary, quoted, slot
from reading.formats.protocol import Encoder
from reading.formats.rows import (
    Field,
    as_float,
    commit_ms,
    commit_ts,
    fields_of,
    handle_names,
    image,
    json_bytes,
    json_float,
    main_image,
    plain_text,
)
from schemas.model import DdlEvent
from tistream.codec.row import layout
from tistream.codec.row.layout import ValueKind
from tistream.codec.row.text import enum_labels, float_plain, set_labels
from tistream.ts import physical_ms

_MILLIS_FSP_MAX = 3  # DATETIME with more fraction digits is in microseconds, else in milliseconds
_EPOCH_TEXT = "1970-01-01T00:00:00"
_TIMESTAMP_MIN = ((1970 * 13 + 1) << 5 | 1) << 17 | 1  # 1970-01-01 00:00:01, without microseconds


def value_json(field: Field, values: pa.Array) -> Slot:
    """JSON values of one storage column; null for nulls."""
    kind = field.kind
    if kind is ValueKind.TIME:
        return _date_or_time(field, values)
    if kind is ValueKind.DURATION:
        return bare(pc.divide(values, 1000))
    if kind is ValueKind.UNSIGNED and values.type.bit_width == 64:
        return bare(values.view(pa.int64()))
    if kind in (ValueKind.SIGNED, ValueKind.UNSIGNED, ValueKind.YEAR):
        return bare(values)
    if kind is ValueKind.DECIMAL:
        return json_float(float_plain(as_float(plain_text(field, values)), single=False))
    if kind in (ValueKind.FLOAT, ValueKind.DOUBLE):
        return json_float(plain_text(field, values))
    if kind is ValueKind.BIT:
        return _bits(field, values)
    if kind is ValueKind.BINARY:
        return bare(base64_text(values), quote=True)
    if kind is ValueKind.ENUM:
        return quoted(enum_labels(field.spec, values), JSON)
    if kind is ValueKind.SET:
        return quoted(set_labels(field.spec, values), JSON)
    return quoted(plain_text(field, values), JSON)


def little_endian(values: pa.Array, bits: int) -> pa.Array:
    """uint64 values as the bytes that hold `bits` bits, least significant first; nulls stay."""
    width = (bits + 7) // 8
    numbers = np.ascontiguousarray(values.fill_null(0).to_numpy(zero_copy_only=False).astype("<u8"))
    data = np.ascontiguousarray(numbers.view(np.uint8).reshape(-1, 8)[:, :width])
    offsets = np.arange(len(values) + 1, dtype=np.int64) * width
    return large_binary(offsets, data.reshape(-1), np.asarray(values.is_valid().to_numpy(zero_copy_only=False)))


def _bits(field: Field, values: pa.Array) -> Slot:
    if field.column.flen == 1:
        return bare(pc.if_else(pc.not_equal(values, pa.scalar(0, pa.uint64())), "true", "false"))
    return bare(base64_text(little_endian(values, field.column.flen)), quote=True)


def _date_or_time(field: Field, values: pa.Array) -> Slot:
    if field.column.tp == layout.TIMESTAMP:
        return _zoned(field, values)
    packed = values.fill_null(0).to_numpy(zero_copy_only=False).astype(np.uint64)
    days, exists = _days(packed >> np.uint64(41))
    if field.column.tp != layout.DATETIME:
        count = days
    else:
        micros = (packed & np.uint64(0xFFFFFF)).astype(np.int64)
        seconds = days * 86400 + _clock(packed >> np.uint64(24))
        fine = field.column.decimal > _MILLIS_FSP_MAX
        count = seconds * 1_000_000 + micros if fine else seconds * 1000 + micros // 1000
    invalid = pa.scalar(0 if field.column.not_null else None, pa.int64())
    numbers = pc.if_else(pa.array(exists), pa.array(count), invalid)
    return bare(pc.if_else(values.is_valid(), numbers, pa.scalar(None, pa.int64())))


def _zoned(field: Field, values: pa.Array) -> Slot:
    """`2020-01-01T00:00:00.12Z`; the epoch for zero and everything before the first timestamp."""
    texts = pc.utf8_replace_slice(plain_text(field, values), start=10, stop=11, replacement="T")
    early = pc.less(pc.shift_right(values, pa.scalar(24, pa.uint64())), pa.scalar(_TIMESTAMP_MIN, pa.uint64()))
    return slot(pc.if_else(early, _EPOCH_TEXT, texts), before=b'"', after=b'Z"')


def _days(ymd: npt.NDArray[np.uint64]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """(days since the epoch, whether the date exists) of packed year * 13 + month and day. Moves years below 100."""
    numbers = ymd.astype(np.int64)
    year, month, day = (numbers >> 5) // 13, (numbers >> 5) % 13, numbers & 31
    year = year + np.where(year < 70, 2000, np.where(year < 100, 1900, 0))
    exists = (month >= 1) & (day >= 1)
    months = ((year - 1970) * 12 + np.maximum(month, 1) - 1).astype("datetime64[M]")
    first = months.astype("datetime64[D]").astype(np.int64)
    length = (months + 1).astype("datetime64[D]").astype(np.int64) - first
    return first + day - 1, exists & (day <= length)


def _clock(ymdhms: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Seconds of the day of a packed time of day."""
    hms: npt.NDArray[np.int64] = (ymdhms & np.uint64(0x1FFFF)).astype(np.int64)
    seconds: npt.NDArray[np.int64] = (hms >> 12) * 3600 + ((hms >> 6) & 63) * 60 + (hms & 63)
    return seconds


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
        names = handle_names(table)
        handles = [n for n, f in enumerate(fields) if f.column.name in names]
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
