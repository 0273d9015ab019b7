"""The saved form of a schema history: zstd over JSON, a start snapshot and the changes after it.

    {"format": 1, "resolved_ts", "job_table": Table, "start": {"ts", "schema_version", "databases", "tables"},
     "changes": [Change ...]}

Values are written as the dataclasses of `schemas.model` are; bytes are base64. The form is ours, versioned by `format`:
a file of another format, or with anything missing or unknown, raises CorruptObject.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import orjson
import zstandard

from schemas.ddl import Change
from schemas.model import Column, Database, DdlEvent, Index, IndexColumn, Table
from schemas.snapshot import SchemaSnapshot
from tistream.errors import CorruptObject
from tistream.limits import SEGMENT_BYTES_MAX

FORMAT = 1
_ZSTD_LEVEL = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedHistory:
    """What a history consists of."""

    start: SchemaSnapshot
    job_table: Table
    resolved_ts: int
    changes: tuple[Change, ...]


def dump(saved: SavedHistory) -> bytes:
    """The bytes of a saved history; equal histories give equal bytes."""
    document = {
        "format": FORMAT,
        "resolved_ts": saved.resolved_ts,
        "job_table": saved.job_table,
        "start": {
            "ts": saved.start.ts,
            "schema_version": saved.start.schema_version,
            "databases": list(saved.start.databases.values()),
            "tables": list(saved.start.tables.values()),
        },
        "changes": saved.changes,
    }
    return zstandard.compress(orjson.dumps(document, default=_bytes_json), _ZSTD_LEVEL)


def load(data: bytes) -> SavedHistory:
    """The history of these bytes. CorruptObject when they are none."""
    try:
        document = orjson.loads(decompress(data))
        if document["format"] != FORMAT:
            raise CorruptObject("a schema history of another format", format=document["format"], supported=FORMAT)
        start = document["start"]
        return SavedHistory(
            start=SchemaSnapshot(
                ts=start["ts"],
                schema_version=start["schema_version"],
                databases=MappingProxyType({d["id"]: Database(**d) for d in start["databases"]}),
                tables=MappingProxyType({t["id"]: _table(t) for t in start["tables"]}),
            ),
            job_table=_table(document["job_table"]),
            resolved_ts=document["resolved_ts"],
            changes=tuple(_change(c) for c in document["changes"]),
        )
    except (KeyError, IndexError, TypeError, ValueError, binascii.Error) as error:
        raise CorruptObject("a schema history cannot be read", reason=repr(error)) from error


def decompress(data: bytes) -> bytes:
    """Unpack a zstd object. CorruptObject when it is broken or larger than any schema may be."""
    parts, size = [], 0
    try:
        for part in zstandard.ZstdDecompressor().read_to_iter(data):
            size += len(part)
            if size > SEGMENT_BYTES_MAX:
                raise CorruptObject("a schema object is larger than allowed", limit=SEGMENT_BYTES_MAX)
            parts.append(part)
    except zstandard.ZstdError as error:
        raise CorruptObject("a schema object is not zstd", reason=str(error)) from error
    return b"".join(parts)


def _bytes_json(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _change(data: dict[str, Any]) -> Change:
    return Change(
        job_id=data["job_id"],
        commit_ts=data["commit_ts"],
        schema_version=data["schema_version"],
        drop_databases=tuple(data["drop_databases"]),
        drop_tables=tuple(data["drop_tables"]),
        put_databases=tuple(Database(**d) for d in data["put_databases"]),
        put_tables=tuple(_table(t) for t in data["put_tables"]),
        events=tuple(_event(e) for e in data["events"]),
    )


def _event(data: dict[str, Any]) -> DdlEvent:
    tables = {name: None if data[name] is None else _table(data[name]) for name in ("version", "exchanged")}
    return DdlEvent(**{**data, **tables})


def _table(data: Mapping[str, Any]) -> Table:
    return Table(
        **{
            **data,
            "columns": tuple(_column(c) for c in data["columns"]),
            "indexes": tuple(_index(i) for i in data["indexes"]),
            "partition_ids": tuple(data["partition_ids"]),
            "partition_names": tuple(data["partition_names"]),
        }
    )


def _column(data: Mapping[str, Any]) -> Column:
    return Column(
        **{
            **data,
            "elems": tuple(data["elems"]),
            "origin_default_bit": _bytes(data["origin_default_bit"]),
            "default_bit": _bytes(data["default_bit"]),
        }
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


def _index(data: Mapping[str, Any]) -> Index:
    return Index(**{**data, "columns": tuple(IndexColumn(**c) for c in data["columns"])})
