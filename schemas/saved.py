"""The stored form of a schema history: the layout of an object, and values as JSON.

An object is a prefix and zstd frames, so `zstd -d` shows all of it as lines of JSON:

    prefix      a skippable frame of 20 bytes: format, and the length of the opening
    opening     one frame with the head, one frame with the changes, a line each
    blocks      frames of up to 128 table versions, a line each (only in a base)

A *base* holds the start snapshot and changes; its head has the ids, names and databases of all tables and where their
blocks are, so that opening parses no table. An *increment* holds only the changes in (after_ts, resolved_ts] and names
the base and the increments before it. Both hold the drafts of jobs that run at their end, because what those wrote to
the log lies before it. The form is versioned by `format`: anything else raises CorruptObject.

Every frame carries a checksum of its contents. Equal histories give equal bytes: tables with the same `id >> 7` share
a block, however the history was built.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, TypeVar

import orjson
import zstandard

from schemas.ddl import Change
from schemas.merge import Drafts
from schemas.meta import Definition
from schemas.model import Column, Database, DdlEvent, Index, IndexColumn, Table
from tistream.errors import CorruptObject
from tistream.limits import SEGMENT_BYTES_MAX

FORMAT = 4
BLOCK_BITS = 7  #: tables whose ids agree above these bits share a block
_ZSTD_LEVEL = 3
_PREFIX = struct.Struct("<IIIQ")
_SKIPPABLE = 0x184D2A50
_DELIVERED = ("version", "exchanged")

#: (offset, length) -> that part of an object, or an error that names it
Fetch = Callable[[int, int], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """The front of an object, without its blocks."""

    name: str  #: of the object, for errors
    head: Mapping[str, Any]
    changes: tuple[Change, ...]
    drafts: Mapping[int, Drafts]  #: by job, at the end
    blocks_at: int  #: offset of the first block


@dataclass(frozen=True, slots=True, kw_only=True)
class Chain:
    """The objects before an increment, by the timestamps of their keys, with their sizes."""

    base: int
    increments: tuple[int, ...] = ()
    base_bytes: int
    increment_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Increment:
    """The changes in (after_ts, resolved_ts], and the objects that they build on."""

    name: str
    chain: Chain
    after_ts: int
    resolved_ts: int
    changes: tuple[Change, ...]
    drafts: Mapping[int, Drafts]  #: by job, at `resolved_ts`


def pack(head: Mapping[str, Any], changes: Iterable[Change], blocks: Iterable[bytes] = ()) -> bytes:
    """The bytes of an object; `blocks` are packed already."""
    opening = frame(dumps(head) + b"\n") + frame(b"".join(dumps(change_json(c)) + b"\n" for c in changes))
    prefix = _PREFIX.pack(_SKIPPABLE, _PREFIX.size - 8, FORMAT, len(opening))
    return b"".join((prefix, opening, *blocks))


def pack_increment(
    chain: Chain, after_ts: int, resolved_ts: int, changes: Iterable[Change], drafts: Mapping[int, Drafts]
) -> bytes:
    """The bytes of an increment at the end of `chain`."""
    head = {"kind": "increment", "chain": chain, "after_ts": after_ts, "resolved_ts": resolved_ts}
    return pack({**head, "drafts": drafts_json(drafts)}, changes)


def drafts_json(drafts: Mapping[int, Drafts]) -> dict[str, list[Definition]]:
    """The drafts in a head, independent of the order in which they were written."""
    return {str(job_id): sorted(drafts[job_id], key=lambda d: (d.db_id, d.table_id)) for job_id in sorted(drafts)}


def open_object(name: str, fetch: Fetch) -> Opening:
    """Read the front of an object with two requests. CorruptObject when it is not a schema history."""
    magic, size, version, length = _PREFIX.unpack(_part(name, fetch, 0, _PREFIX.size))
    if magic != _SKIPPABLE or size != _PREFIX.size - 8:
        raise CorruptObject("this is no schema history", object_key=name)
    if version != FORMAT:
        raise CorruptObject("a schema history of another format", object_key=name, format=version, supported=FORMAT)
    if length > SEGMENT_BYTES_MAX:
        raise CorruptObject("a schema object is larger than allowed", object_key=name, limit=SEGMENT_BYTES_MAX)
    data = _part(name, fetch, _PREFIX.size, length)
    try:
        head, rest = _first_frame(data)
        changes, rest = _first_frame(rest)
        if rest:
            raise CorruptObject("a schema history has bytes that belong to nothing", object_key=name)
        parsed = orjson.loads(head)
        if not isinstance(parsed, dict):
            raise TypeError("its head is not an object")
        return Opening(
            name=name,
            head=parsed,
            drafts={
                int(job_id): tuple(map(_definition, definitions)) for job_id, definitions in parsed["drafts"].items()
            },
            changes=tuple(change_of(orjson.loads(line)) for line in changes.splitlines()),
            blocks_at=_PREFIX.size + length,
        )
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, zstandard.ZstdError) as error:
        raise CorruptObject("a schema history cannot be read", object_key=name, reason=repr(error)) from error


def increment_of(opening: Opening) -> Increment | None:
    """The opening as an increment; None when the object is a base."""
    head = opening.head
    if head.get("kind") != "increment":
        return None
    try:
        chain = _made(Chain, {**head["chain"], "increments": ints_of(head["chain"]["increments"])})
        after_ts, resolved_ts = _of(int, head["after_ts"]), _of(int, head["resolved_ts"])
    except (KeyError, TypeError) as error:
        raise CorruptObject("a schema history cannot be read", object_key=opening.name, reason=repr(error)) from error
    return Increment(
        name=opening.name,
        chain=chain,
        after_ts=after_ts,
        resolved_ts=resolved_ts,
        changes=opening.changes,
        drafts=opening.drafts,
    )


def frame(data: bytes) -> bytes:
    """One zstd frame with checksum and size."""
    return exact(
        zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True, write_content_size=True).compress(data)
    )


def exact(packed: bytes) -> bytes:
    """The same bytes in as much memory: a compressor's answer keeps what its input could have needed."""
    return bytes(memoryview(packed))


def unframe(name: str, data: bytes, **facts: object) -> bytes:
    """The contents of exactly one frame. CorruptObject with `facts`."""
    try:
        contents, rest = _first_frame(data)
    except (ValueError, zstandard.ZstdError) as error:
        raise CorruptObject("a block of a schema history is damaged", object_key=name, **facts) from error
    if rest:
        raise CorruptObject("a block of a schema history is damaged", object_key=name, **facts)
    return contents


def _part(name: str, fetch: Fetch, offset: int, length: int) -> bytes:
    data = fetch(offset, length)
    if len(data) != length:
        raise CorruptObject("a schema history is cut short", object_key=name, offset=offset, length=length)
    return data


def _first_frame(data: bytes) -> tuple[bytes, bytes]:
    """(contents of the first frame, what follows it). ValueError when it does not end or is too large."""
    size = zstandard.frame_content_size(data)
    if not 0 <= size <= SEGMENT_BYTES_MAX:
        raise ValueError(f"a frame of {size} bytes")
    reader = zstandard.ZstdDecompressor().decompressobj()
    contents = reader.decompress(data)
    if not reader.eof or len(contents) != size:
        raise ValueError("a frame that does not end")
    return contents, reader.unused_data


# ---- values

V = TypeVar("V")
_NONE = type(None)
#: types of a field by its annotation; other fields have a function
_ALLOWED: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "bool": (bool,),
    "object": (str, int, float, _NONE),
    "bytes | None": (bytes, _NONE),
}


@cache
def _typed_fields(cls: type) -> tuple[tuple[str, tuple[type, ...]], ...]:
    """The fields whose values are checked, with the types that they may have."""
    return tuple((f.name, _ALLOWED[str(f.type)]) for f in fields(cls) if str(f.type) in _ALLOWED)


def _made(cls: Callable[..., V], values: Mapping[str, Any]) -> V:
    """A value of this dataclass. TypeError naming the field that is missing, unknown or of another type."""
    value = cls(**values)
    kind: Any = type(value)
    for name, types in _typed_fields(kind):
        if type(getattr(value, name)) not in types:
            raise TypeError(f"{kind.__name__}.{name} is {getattr(value, name)!r:.60}")
    return value


def texts_of(values: Any) -> tuple[str, ...]:
    """A list of texts. TypeError when it is none."""
    return tuple(_of(str, value) for value in values)


def ints_of(values: Any) -> tuple[int, ...]:
    """A list of whole numbers. TypeError when it is none."""
    return tuple(_of(int, value) for value in values)


def _of(kind: type[V], value: Any) -> V:
    if type(value) is not kind:
        raise TypeError(f"{value!r:.60} is no {kind.__name__}")
    return value


def dumps(value: object) -> bytes:
    """A value as JSON: dataclasses as objects, bytes as base64."""
    return orjson.dumps(value, default=_bytes_json)


def _bytes_json(value: object) -> str:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    raise TypeError(f"{type(value).__name__} has no JSON form")


def change_json(change: Change) -> dict[str, Any]:
    """A change as JSON. Tables of events that the change also puts are given by their index."""
    places = {id(table): place for place, table in enumerate(change.put_tables)}
    events = []
    for event in change.events:
        fields = {name: getattr(event, name) for name in DdlEvent.__slots__}
        for name in _DELIVERED:
            fields[name] = places.get(id(fields[name]), fields[name])
        events.append(fields)
    return {**{name: getattr(change, name) for name in Change.__slots__}, "events": events}


def change_of(data: Mapping[str, Any]) -> Change:
    puts = tuple(table_of(t) for t in data["put_tables"])
    return Change(
        job_id=_of(int, data["job_id"]),
        commit_ts=_of(int, data["commit_ts"]),
        schema_version=_of(int, data["schema_version"]),
        drop_databases=ints_of(data["drop_databases"]),
        drop_tables=ints_of(data["drop_tables"]),
        put_databases=tuple(database_of(d) for d in data["put_databases"]),
        put_tables=puts,
        created_ts=_of(int, data.get("created_ts") or 0),
        names=tuple((_of(int, physical_id), _of(int, table_id)) for physical_id, table_id in data["names"]),
        older=ints_of(data.get("older") or ()),
        unlogged=_of(str, data.get("unlogged") or ""),
        early=_of(bool, data.get("early") or False),
        events=tuple(_event(e, puts) for e in data["events"]),
    )


def database_of(data: Mapping[str, Any]) -> Database:
    return _made(Database, data)


def _definition(data: dict[str, Any]) -> Definition:
    return _made(Definition, {**data, "info": _bytes(data["info"])})


def _event(data: dict[str, Any], puts: tuple[Table, ...]) -> DdlEvent:
    shown = {name: data[name] for name in _DELIVERED}
    tables = {name: puts[t] if isinstance(t, int) else t and table_of(t) for name, t in shown.items()}
    return _made(DdlEvent, {**data, **tables})


def table_of(data: Mapping[str, Any]) -> Table:
    return _made(
        Table,
        {
            **data,
            "columns": tuple(_column(c) for c in data["columns"]),
            "indexes": tuple(_index(i) for i in data["indexes"]),
            "partition_ids": ints_of(data["partition_ids"]),
            "partition_names": texts_of(data["partition_names"]),
        },
    )


def _column(data: Mapping[str, Any]) -> Column:
    return _made(
        Column,
        {
            **data,
            "elems": texts_of(data["elems"]),
            "origin_default_bit": _bytes(data["origin_default_bit"]),
            "default_bit": _bytes(data["default_bit"]),
        },
    )


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


def _index(data: Mapping[str, Any]) -> Index:
    return _made(Index, {**data, "columns": tuple(_made(IndexColumn, c) for c in data["columns"])})
