"""Reads the schema snapshot that a tenant pushed, in bounded memory.

    zstd -> text, a window of it at a time -> one table -> its line of a saved history, packed

The document (see `schemas.snapshot`) is never held as a whole: a real one of 100,000 tables is half a gigabyte of text,
and would be four as Python objects. A table's definition is parsed, reduced to what is needed, and packed.

What a definition takes is not known before it is parsed: a hostile document of some kilobytes unpacks to millions of
tables or columns. A document of more than SNAPSHOT_SMALL_BYTES is therefore parsed in a process with a bound
(`tistream.runtime.confined`), which answers with the saved form of the history (`schemas.saved`).
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import zstandard

from schemas import fields
from schemas.base_file import BaseHead, pack_base
from schemas.history import History
from schemas.ids import NamedIds
from schemas.model import Table
from schemas.saved import dumps, exact, frame
from schemas.snapshot import OfTable, ParsedSnapshot, SnapshotReader, pushed_schema
from schemas.start import Entry, block_ids
from tistream.errors import CorruptObject
from tistream.limits import (
    DEFINITION_BYTES_MAX,
    SCHEMA_WORKER_BYTES_MAX,
    SCHEMA_WORKER_S_MAX,
    SNAPSHOT_RAW_BYTES_MAX,
    SNAPSHOT_SMALL_BYTES,
)
from tistream.runtime.confined import confined

_PART_CHARS = 1 << 18
_WINDOW_BYTES_MAX = 32 << 20  #: of zstd: what its decoder keeps of the text
_SPACES = re.compile(r"[ \t\r\n]*")
_LISTS = frozenset({"dbs", "tables"})

_PACKER, _UNPACKER = zstandard.ZstdCompressor(level=1), zstandard.ZstdDecompressor()  # for one thread: see `saved`

T = TypeVar("T", bound=OfTable)


def history_of(data: bytes) -> History:
    """The history that begins with a pushed snapshot. CorruptObject with the place of the fault."""
    if is_small(data):
        pushed = pushed_schema(_read(data, SnapshotReader[Table](lambda table: table)))
        return History(pushed.snapshot, pushed.job_table)
    history = confined(
        "schemas.registry.pushed:saved", data, memory_bytes=SCHEMA_WORKER_BYTES_MAX, seconds=SCHEMA_WORKER_S_MAX
    )
    return History.load(history)


def is_small(data: bytes) -> bool:
    """Whether `history_of` parses it here, in little time and memory, or refuses it at once."""
    size = 0
    try:
        for part in _unpacked(data):
            size += len(part)
            if size > SNAPSHOT_SMALL_BYTES:
                return False
    except CorruptObject:
        return True
    return True


def saved(data: bytes) -> bytes:
    """The bytes of a base (`schemas.saved`) that begins with the snapshot. For the process that parses it."""
    read = _read(data, SnapshotReader(_Packed.of))
    known = (i for t in read.tables.values() for i in (t.id, t.db_id, *t.entry.partition_ids))
    named = NamedIds.at_start(read.named, known)
    begins = BaseHead(
        ts=read.ts,
        schema_version=read.schema_version,
        databases=read.databases,
        named=named,
        left_out=read.left_out,
        job_table=read.job_table,
    )
    entries = [read.tables[i].entry for i in sorted(read.tables)]
    blocks = ((len(ids), frame(b"".join(read.tables[i].line for i in ids))) for ids in block_ids(e.id for e in entries))
    return pack_base(begins, entries, blocks)


@dataclass(frozen=True, slots=True)
class _Packed:
    """A table's entry in the index, and its line, packed."""

    entry: Entry
    packed: bytes

    @classmethod
    def of(cls, table: Table) -> _Packed:
        return cls(Entry.of(table), exact(_PACKER.compress(dumps(table) + b"\n")))

    @property
    def line(self) -> bytes:
        unpacked: bytes = _UNPACKER.decompress(self.packed)
        return unpacked

    @property
    def id(self) -> int:
        return self.entry.id

    @property
    def db_id(self) -> int:
        return self.entry.db_id

    @property
    def physical_ids(self) -> tuple[int, ...]:
        return self.entry.partition_ids or (self.entry.id,)


def _read(data: bytes, reader: SnapshotReader[T]) -> ParsedSnapshot[T]:
    """What a zstd object says. CorruptObject with the place of the fault."""
    try:
        while not reader.complete:  # once more if the tables came before the databases that they name
            _Text(_unpacked(data)).members(reader.take)
            reader.end()
        return reader.found()
    except fields.WrongField as error:
        raise CorruptObject("the pushed schema snapshot is not of the agreed form", reason=str(error)) from error
    except ValueError as error:  # of JSON or UTF-8
        raise CorruptObject("the pushed schema snapshot is not JSON", reason=str(error)) from error
    except RecursionError as error:
        raise CorruptObject("the pushed schema snapshot is nested too deeply") from error


def _unpacked(data: bytes) -> Iterator[bytes]:
    """The contents of a zstd object. CorruptObject when it is broken or too large for a schema."""
    size = 0
    try:
        for part in zstandard.ZstdDecompressor(max_window_size=_WINDOW_BYTES_MAX).read_to_iter(data):
            size += len(part)
            if size > SNAPSHOT_RAW_BYTES_MAX:
                raise CorruptObject("a schema object is larger than allowed", limit=SNAPSHOT_RAW_BYTES_MAX)
            yield part
    except zstandard.ZstdError as error:
        raise CorruptObject("a schema object is not zstd", reason=str(error)) from error


def _refused(text: str) -> Any:
    raise ValueError(f"{text} is no JSON")


class _Text:
    """The text of a JSON object, read member by member; of a list in _LISTS, item by item."""

    def __init__(self, parts: Iterator[bytes]) -> None:
        self._parts, self._utf8 = parts, codecs.getincrementaldecoder("utf-8")()
        self._window, self._at, self._ended = "", 0, False
        self._scan = json.JSONDecoder(parse_constant=_refused).raw_decode
        self._halves = False  # the window may have halves of characters, which JSON can escape and UTF-8 has not

    def members(self, take: Callable[[str, int, Any], None]) -> None:
        """Pass on (name, number, value) of every member; of a list each item, numbered from 0."""
        self._expect("{")
        names: set[str] = set()
        if self._next() == "}":
            self._skip()
        else:
            while True:
                name = self._value()
                if not isinstance(name, str) or name in names:
                    raise ValueError("a member without a name, or twice the same")
                names.add(name)
                self._expect(":")
                self._member(name, take)
                if self._expect(",}") == "}":
                    break
        if self._next():
            raise ValueError("something after the document")

    def _member(self, name: str, take: Callable[[str, int, Any], None]) -> None:
        if name not in _LISTS or self._next() != "[":
            value = self._value()
            if name not in _LISTS or value is not None:
                take(name, 0, value)
            return
        self._skip()
        n = 0
        if self._next() == "]":
            self._skip()
            return
        while True:
            take(name, n, self._value())
            n += 1
            if self._expect(",]") == "]":
                return

    def _next(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            spaces = _SPACES.match(self._window, self._at)
            assert spaces is not None, "it may be empty"
            self._at = spaces.end()
            if self._at < len(self._window):
                return self._window[self._at]
            if not self._more():
                return ""

    def _skip(self) -> None:
        self._at += 1

    def _expect(self, allowed: str) -> str:
        token = self._next()
        if not token or token not in allowed:
            raise ValueError(f"{token or 'the end'} in place of {' or '.join(allowed)}")
        self._skip()
        return token

    def _value(self) -> Any:
        """The next value. One that the window cuts is parsed again when there is twice as much of it."""
        self._next()
        while True:
            try:
                value, end = self._scan(self._window, self._at)
                if end < len(self._window) or not self._more():
                    self._at = end
                    if self._halves:
                        json.dumps(value, ensure_ascii=False).encode()
                    return value
            except json.JSONDecodeError:
                if not self._more():
                    raise

    def _more(self) -> bool:
        """Read on, as much as is unread; False at the end of the text."""
        unread = self._window[self._at :]
        if len(unread) > DEFINITION_BYTES_MAX:
            raise ValueError(f"a value of more than {DEFINITION_BYTES_MAX} bytes, or one that does not end")
        wanted, parts = max(len(unread), _PART_CHARS), [unread]
        while wanted > 0 and not self._ended:
            part = next(self._parts, None)
            self._ended = part is None
            parts.append(self._utf8.decode(part or b"", final=self._ended))
            wanted -= len(parts[-1])
        grown = sum(map(len, parts)) > len(unread)
        self._window, self._at = "".join(parts), 0
        self._halves = "\\ud" in self._window or "\\uD" in self._window
        return grown
