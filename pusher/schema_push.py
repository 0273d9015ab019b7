"""The schema snapshot that a tenant starts with: how it is put into the bucket, and the snapshot of an empty cluster.

    {"ts": S, "schema_version": ..., "dbs": [DBInfo], "tables": [{"db_id": ..., "info": TableInfo}]}     as JSON, zstd

The key has the timestamp, so putting the same snapshot again succeeds and a different one at the same time fails. A
snapshot that the service refuses is replaced by one with a later timestamp.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import zstandard

from pusher.control import PushBundle
from tistream.errors import InvalidInput, ObjectConflict, TiStreamError
from tistream.objectstore.layout import SchemaSnapKey, parse
from tistream.objectstore.protocol import ObjectInfo, ObjectStore


def put_schema_snapshot(store: ObjectStore, key: SchemaSnapKey, text: bytes) -> bool:
    """Put the snapshot; True. An object with the same content in other bytes (another compressor) is accepted;
    ObjectConflict when the content differs."""
    data = zstandard.ZstdCompressor(level=3, write_checksum=True).compress(text)
    try:
        store.put(str(key), data)
    except ObjectConflict:
        try:
            same = orjson.loads(unpacked(str(key), store.get(str(key)))) == orjson.loads(text)
        except orjson.JSONDecodeError as e:
            raise TiStreamError("the schema snapshot in the bucket is damaged", object=str(key)) from e
        if not same:
            raise
    return True


def unpacked(name: str, data: bytes) -> bytes:
    """The text of a stored snapshot. TiStreamError when it is damaged."""
    try:
        text: bytes = zstandard.ZstdDecompressor().stream_reader(data).read()
    except zstandard.ZstdError as e:
        raise TiStreamError("the schema snapshot in the bucket is damaged", object=name) from e
    return text


class _SomeSnapshots:
    """The bucket with all but one, or all, of its schema snapshots hidden from listings."""

    def __init__(self, store: ObjectStore, shown_ts: int | None) -> None:
        self._store, self._shown_ts = store, shown_ts
        self.put, self.get, self.get_range = store.put, store.get, store.get_range
        self.size, self.delete = store.size, store.delete

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        for info in self._store.list(prefix, after):
            key = parse(info.key)
            if not isinstance(key, SchemaSnapKey) or key.ts == self._shown_ts:
                yield info


def usable_snapshots(store: ObjectStore, bundle: PushBundle) -> ObjectStore:
    """The bucket without the schema snapshots that the service refused or does not use."""
    if bundle.start_ts:
        return _SomeSnapshots(store, bundle.start_ts)
    return _SomeSnapshots(store, None) if bundle.snapshot_refused else store


def snapshot_ts(text: bytes) -> int:
    """The timestamp of a schema snapshot. InvalidInput when the text is not one."""
    try:
        return int(orjson.loads(text)["ts"])
    except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as e:
        raise InvalidInput("not a schema snapshot: JSON with ts, dbs and tables is needed", cause=repr(e)) from e


def empty_snapshot(ts: int) -> bytes:
    """The schema snapshot of a cluster without user tables: only the DDL job table."""
    known: dict[str, Any] = orjson.loads(Path(__file__).with_name("no_tables.json").read_bytes())
    return orjson.dumps({"ts": str(ts), **known})
