"""Connect schemas of debezium messages: the "schema" member of a message.

The fields of a row are all public columns and, where a table has virtual ones, those that are never delivered a second
time: TiCDC writes it so, and consumers look fields up by name.
"""

from __future__ import annotations

import base64
import re
from datetime import date

from reading.formats.options import FormatOptions
from reading.formats.rows import handle_names, json_float_of, public_columns
from schemas.model import Column, Table
from schemas.types import type_name
from tistream.codec.row import layout

Json = dict[str, object]

_MILLIS_FSP_MAX = 3
_NUMBERS = {
    layout.TINY: ("int16", "int16"),
    layout.SHORT: ("int16", "int32"),
    layout.INT24: ("int32", "int32"),
    layout.LONG: ("int32", "int64"),
    layout.LONGLONG: ("int64", "int64"),
    layout.DOUBLE: ("double", "double"),
    layout.DECIMAL: ("double", "double"),
}  #: signed, unsigned
_UNNAMED_SIGN = frozenset({layout.YEAR, layout.BIT, layout.VARCHAR, layout.STRING, layout.DECIMAL})
_MOMENT = re.compile(r"(\d{1,4})-(\d{1,2})-(\d{1,2})(?:[ T](\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?)?")
_DURATION = re.compile(r"(-?)(\d{1,3}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?")
_NOT_NAME = re.compile(r"[^A-Za-z0-9_]")
_NOT_TOPIC = re.compile(r"[^A-Za-z0-9_.]")
_EPOCH_DAY = date(1970, 1, 1).toordinal()


def _field(kind: str, name: str, *, optional: bool = False) -> Json:
    return {"type": kind, "optional": optional, "field": name}


_SOURCE: Json = {
    "type": "struct",
    "fields": [
        _field("string", "version"),
        _field("string", "connector"),
        _field("string", "name"),
        _field("int64", "ts_ms"),
        {
            "type": "string",
            "optional": True,
            "name": "io.debezium.data.Enum",
            "version": 1,
            "parameters": {"allowed": "true,last,false,incremental"},
            "default": "false",
            "field": "snapshot",
        },
        _field("string", "db"),
        _field("string", "sequence", optional=True),
        _field("string", "table", optional=True),
        _field("int64", "server_id"),
        _field("string", "gtid", optional=True),
        _field("string", "file"),
        _field("int64", "pos"),
        _field("int32", "row"),
        _field("int64", "thread", optional=True),
        _field("string", "query", optional=True),
    ],
    "optional": False,
    "name": "io.debezium.connector.mysql.Source",
    "field": "source",
}
_ENVELOPE_END: list[Json] = [
    _SOURCE,
    _field("string", "op"),
    _field("int64", "ts_ms", optional=True),
    {
        "type": "struct",
        "fields": [_field("string", "id"), _field("int64", "total_order"), _field("int64", "data_collection_order")],
        "optional": True,
        "name": "event.block",
        "version": 1,
        "field": "transaction",
    },
]
_TEXTS: Json = {"type": "string", "optional": False}
_COLUMN_FIELDS: list[Json] = [
    _field("string", "name"),
    _field("int32", "jdbcType"),
    _field("int32", "nativeType", optional=True),
    _field("string", "typeName"),
    _field("string", "typeExpression", optional=True),
    _field("string", "charsetName", optional=True),
    _field("int32", "length", optional=True),
    _field("int32", "scale", optional=True),
    _field("int32", "position"),
    _field("boolean", "optional", optional=True),
    _field("boolean", "autoIncremented", optional=True),
    _field("boolean", "generated", optional=True),
    _field("string", "comment", optional=True),
    _field("string", "defaultValueExpression", optional=True),
    _field("array", "enumValues", optional=True) | {"items": _TEXTS},
]


def _struct(name: str, fields: list[Json]) -> Json:
    return {"name": name, "optional": False, "type": "struct", "version": 1, "fields": fields}


_TABLE: Json = _struct(
    "io.debezium.connector.schema.Table",
    [
        _field("string", "defaultCharsetName", optional=True),
        _field("array", "primaryKeyColumnNames", optional=True) | {"items": _TEXTS},
        _field("array", "columns") | {"items": _struct("io.debezium.connector.schema.Column", _COLUMN_FIELDS)},
        _field("string", "comment", optional=True),
    ],
) | {"field": "table", "optional": True}
_CHANGE = _struct("io.debezium.connector.schema.Change", [_field("string", "type"), _field("string", "id"), _TABLE])

DDL_KEY_SCHEMA = _struct("io.debezium.connector.mysql.SchemaChangeKey", [_field("string", "databaseName")])
DDL_VALUE_SCHEMA = _struct(
    "io.debezium.connector.mysql.SchemaChangeValue",
    [
        _SOURCE,
        _field("int64", "ts_ms"),
        _field("string", "databaseName", optional=True),
        _field("string", "schemaName", optional=True),
        _field("string", "ddl", optional=True),
        _field("array", "tableChanges") | {"items": _CHANGE},
    ],
)


def key_schema(table: Table, options: FormatOptions) -> Json:
    """The schema of the key of a row message."""
    handles = handle_names(table)
    return {
        "type": "struct",
        "name": f"{_topic(table, options)}.Key",
        "optional": False,
        "fields": [column_schema(c, options) for c in public_columns(table) if c.name in handles],
    }


def row_schema(table: Table, options: FormatOptions) -> Json:
    """The schema of the value of a row message."""
    topic = _topic(table, options)
    public = public_columns(table)
    undelivered = [c for c in public if not c.visible]
    repeated = undelivered if any(c.generated and not c.generated_stored for c in public) else []
    fields = [column_schema(c, options) for c in (*public, *repeated)]
    images: list[Json] = [
        {"type": "struct", "optional": True, "name": f"{topic}.Value", "field": image, "fields": fields}
        for image in ("before", "after")
    ]
    return _envelope(topic, [*images, *_ENVELOPE_END])


def watermark_key_schema(options: FormatOptions) -> Json:
    """The schema of the key of a watermark message."""
    return {"type": "struct", "name": f"{_name(options.cluster_name)}.watermark.Key", "optional": False, "fields": []}


def watermark_schema(options: FormatOptions) -> Json:
    """The schema of the value of a watermark message."""
    return _envelope(f"{_name(options.cluster_name)}.watermark", _ENVELOPE_END)


def column_schema(column: Column, options: FormatOptions) -> Json:
    """The schema of one column, with its default."""
    kind, described = _kind(column)
    schema: Json = {"tidb_type": _tidb_type(column)} if options.enable_tidb_extension else {}
    schema |= {"type": kind, "optional": not column.not_null, **described, "field": column.name}
    default = _default(column)
    return schema if default is None else schema | {"default": default}


def _envelope(topic: str, fields: list[Json]) -> Json:
    return {"type": "struct", "optional": False, "name": f"{topic}.Envelope", "version": 1, "fields": fields}


def _kind(column: Column) -> tuple[str, Json]:
    """(type, name and parameters of the semantic type)."""
    tp = column.tp
    if tp in _NUMBERS:
        return _NUMBERS[tp][column.unsigned], {}
    if tp == layout.FLOAT:
        return ("float" if column.decimal == -1 else "double"), {}
    if tp == layout.BIT:
        bits: Json = {"parameters": {"length": str(column.flen)}}
        return ("boolean", {}) if column.flen == 1 else ("bytes", _semantic("data.Bits") | bits)
    if tp == layout.ENUM:
        allowed = ",".join(label.replace(",", "\\,").replace("\\'", "'").replace("''", "'") for label in column.elems)
        return "string", _semantic("data.Enum") | {"parameters": {"allowed": allowed}}
    if tp == layout.SET:
        return "string", _semantic("data.EnumSet") | {"parameters": {"allowed": ",".join(column.elems)}}
    if tp == layout.DATETIME:
        fine = column.decimal > _MILLIS_FSP_MAX
        return "int64", _semantic("time.MicroTimestamp" if fine else "time.Timestamp")
    if tp == layout.VECTOR:
        return "string", {"name": "io.debezium.data.TiDBVectorFloat32"}
    semantic = {
        layout.DATE: ("int32", "time.Date"),
        layout.NEWDATE: ("int32", "time.Date"),
        layout.TIMESTAMP: ("string", "time.ZonedTimestamp"),
        layout.TIME: ("int64", "time.MicroTime"),
        layout.YEAR: ("int32", "time.Year"),
        layout.JSON: ("string", "data.Json"),
    }.get(tp)
    return (semantic[0], _semantic(semantic[1])) if semantic else ("string", {})


def _semantic(name: str) -> Json:
    return {"name": f"io.debezium.{name}", "version": 1}


def _tidb_type(column: Column) -> str:
    unsigned = column.unsigned and column.tp not in _UNNAMED_SIGN
    return type_name(column) + " unsigned" * unsigned


def _default(column: Column) -> object:
    """The default in the form of the messages' values; None where there is none or it has no such form."""
    tp = column.tp
    if tp == layout.BIT and column.default_bit is not None:
        return _bit_default(column, int.from_bytes(column.default_bit, "big"))
    value = column.default
    if value is None:
        return None
    if tp in _NUMBERS or tp in (layout.FLOAT, layout.YEAR):
        return _number_default(str(value), short_year=tp == layout.YEAR)
    if tp in (layout.DATE, layout.NEWDATE, layout.DATETIME):
        return _moment_default(column, str(value))
    if tp == layout.TIMESTAMP:
        return _timestamp_default(column, str(value))
    if tp == layout.TIME:
        return _duration_default(str(value))
    return value


def _bit_default(column: Column, value: int) -> object:
    if column.flen == 1:
        return value != 0
    return base64.b64encode(value.to_bytes(8, "little")[: (column.flen + 7) // 8]).decode()


def _number_default(text: str, *, short_year: bool) -> object:
    try:
        number = float(text)
    except ValueError:
        return None
    if short_year and number < 100:
        number += 2000 if number < 70 else 1900
    return json_float_of(number)


def _moment_default(column: Column, text: str) -> object:
    zero = 0 if column.not_null else None
    match = _MOMENT.fullmatch(text)
    if match is None:
        return 0 if column.tp == layout.DATETIME else zero
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    if year < 100:
        year += 2000 if year < 70 else 1900
    try:
        days = date(year, month, day).toordinal() - _EPOCH_DAY
    except ValueError:
        return zero
    if column.tp != layout.DATETIME:
        return days
    micros = int((match.group(7) or "").ljust(6, "0"))
    whole = (days * 86400 + hour * 3600 + minute * 60 + second) * 1_000_000 + micros
    return whole if column.decimal > _MILLIS_FSP_MAX else whole // 1000


def _timestamp_default(column: Column, text: str) -> object:
    epoch = "1970-01-01T00:00:00Z" if column.not_null else None
    match = _MOMENT.fullmatch(text)
    if match is None:
        return epoch if text == "CURRENT_TIMESTAMP" else 0
    if text[:10] < "1970-01-01":
        return epoch
    fsp = max(column.decimal, 0)
    fraction = "." + (match.group(7) or "").ljust(6, "0")[:fsp] if fsp else ""
    clock = text[11:19] or "00:00:00"
    return f"{text[:10]}T{clock}{fraction}Z"


def _duration_default(text: str) -> object:
    match = _DURATION.fullmatch(text)
    if match is None:
        return None
    sign, hour, minute, second, fraction = match.groups()
    micros = (int(hour) * 3600 + int(minute) * 60 + int(second)) * 1_000_000 + int((fraction or "").ljust(6, "0"))
    return -micros if sign else micros


def _topic(table: Table, options: FormatOptions) -> str:
    return f"{_name(options.cluster_name)}.{_name(table.db)}.{_NOT_TOPIC.sub('_', table.name)}"


def _name(text: str) -> str:
    return ("_" if text[:1].isdigit() else "") + _NOT_NAME.sub("_", text)
