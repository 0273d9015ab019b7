"""The recording of DDL of partitions under load, and a consumer that applies changes and DDL in order."""

from __future__ import annotations

import io
import random
import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc
import zstandard

from metaserver.initial_ranges import lay_out
from schemas.history import History
from schemas.snapshot import parse_pushed
from tests.kit.core_run import Trouble, prepare, run_tasks
from tests.kit.recording import objects
from tistream.codec.batch_file import BatchFile, decode_batch_file
from tistream.codec.table_key import META_RANGE
from tistream.model import change
from tistream.model.change import RowKind
from tistream.objectstore.layout import BatchKey, SchemaSnapKey, parse

FOLDER = Path(__file__).parents[2] / "tests" / "data" / "partition_ddl"
DATABASE = "rec"

_UNTROUBLED = Trouble(lag=0.9, again=0, snapshot=0, restart=0, unknown=0)
_DATA_TASKS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What TiDB answered to SELECT * as of a timestamp."""

    ts: int
    table: str
    rows: list[tuple[str | None, ...]]  #: sorted


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRecording:
    """The recording as sorters leave it, and what TiDB said."""

    start_ts: int
    end_ts: int  #: every task is whole up to here
    schema: bytes  #: the pushed snapshot, as JSON
    rows: pa.Table  #: schema change.COMMITTED, all but the meta range
    meta: pa.Table  #: the meta range
    committed: set[tuple[bytes, int]]  #: (key, commit_ts) of every commit in the batch files, whatever became of it
    readings: list[Reading]


@cache
def recorded() -> PartitionRecording:
    """The recording of this project."""
    return read_recording(FOLDER)


def read_recording(folder: Path) -> PartitionRecording:
    """Any recording of this form, through the real router and core."""
    schema, files = b"", list[BatchFile]()
    for name, data in _members(folder / "batch_files.tar.zst"):
        key = parse(name)
        if isinstance(key, SchemaSnapKey):
            schema = zstandard.ZstdDecompressor().decompressobj().decompress(data)
        elif isinstance(key, BatchKey):
            files.append(decode_batch_file(key, data))
    pushed = parse_pushed(orjson.loads(schema))
    start_ts = pushed.snapshot.ts
    files.sort(key=lambda file: (file.cut_ts, file.key.store_id, file.key.seq))
    ranges = dict(
        enumerate((task.range for task in lay_out(History(pushed.snapshot, pushed.job_table), _DATA_TASKS)), 1)
    )
    tasks = run_tasks(prepare(files), ranges, start_ts, random.Random(1), _UNTROUBLED)
    of_meta = [task.rows() for task in tasks.values() if task.range == META_RANGE]
    others = [task.rows() for task in tasks.values() if task.range != META_RANGE]
    end_ts = min(task.durable_ts for task in tasks.values())
    return PartitionRecording(
        start_ts=start_ts,
        end_ts=end_ts,
        committed={at for file in files for at in _commits(file.rows) if start_ts < at[1] <= end_ts},
        schema=schema,
        rows=_in_order(others),
        meta=_in_order(of_meta),
        readings=[_reading(line) for line in objects(folder / "truth.ndjson.zst") if "rows" in line],
    )


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    with path.open("rb") as raw, zstandard.ZstdDecompressor().stream_reader(raw) as packed:
        data = io.BytesIO(packed.read())
    with tarfile.open(fileobj=data) as archive:
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                yield member.name.removeprefix("./"), file.read()


def _commits(rows: pa.RecordBatch) -> Iterator[tuple[bytes, int]]:
    decided = pc.is_in(rows["kind"], pa.array([RowKind.COMMIT, RowKind.COMMITTED], pa.uint8()))
    decided_rows = rows.filter(decided)
    return zip(decided_rows["key"].to_pylist(), decided_rows["commit_ts"].to_pylist(), strict=True)


def _in_order(parts: Iterable[pa.Table]) -> pa.Table:
    table = pa.concat_tables([change.COMMITTED.empty_table(), *parts])
    return table.sort_by([(name, "ascending") for name in ("commit_ts", "start_ts", "key")]).combine_chunks()


def _reading(line: dict[str, Any]) -> Reading:
    return Reading(ts=int(line["ts"]), table=line["table"], rows=sorted(map(tuple, line["rows"]), key=repr))


Row = tuple[str | None, ...]
Key = tuple[str | None, ...]

_WHOLE = ""  # the name of the only partition of a table without partitions
_CREATE = re.compile(r"create table (?P<name>\S+) ?\((?P<body>.*)$")
_BOUNDS = re.compile(r"partition (\w+) values (?:less than|in) ?\(([^)]*)\)")
_BY = re.compile(r"partition by (range|hash|list) ?\((\w+)\)(?: partitions (\d+))?")
_MOVES: Mapping[str, re.Pattern[str]] = {
    "truncate": re.compile(r"truncate partition ([\w, ]+)"),
    "drop": re.compile(r"drop partition ([\w, ]+)"),
    "add": re.compile(r"add partition partitions (\d+)"),
    "define": re.compile(r"add partition ?\((.*)\)"),
    "coalesce": re.compile(r"coalesce partition (\d+)"),
    "reorganize": re.compile(r"reorganize partition ([\w, ]+?) into ?\((.*)\)"),
    "exchange": re.compile(r"exchange partition (\w+) with table (\S+)"),
    "by": _BY,
    "whole": re.compile(r"remove partitioning"),
}


class Misfit(AssertionError):
    """A change does not fit the row that is there."""


@dataclass
class ConsumedTable:
    """A table: its rows by partition and key, and how a row finds its partition."""

    columns: list[str]
    key: list[str]
    method: str = ""  #: range, hash, list; empty = no partitions
    by: str = ""  #: the column
    bounds: dict[str, list[str]] = field(default_factory=dict)  #: of each partition, in order
    parts: dict[str, dict[Key, Row]] = field(default_factory=lambda: {_WHOLE: {}})

    def rows(self) -> list[Row]:
        return sorted((row for part in self.parts.values() for row in part.values()), key=repr)

    def place(self, row: Row) -> dict[Key, Row]:
        """The partition that the row belongs to."""
        return self.parts[self._part_of(int(row[self.columns.index(self.by)] or 0)) if self.method else _WHOLE]

    def key_of(self, row: Row) -> Key:
        return tuple(row[self.columns.index(name)] for name in self.key)

    def partition(self, text: str) -> None:
        """Distribute the rows as `partition by ...` says."""
        match = _BY.search(text)
        assert match, text
        self.method, self.by = match[1], match[2]
        self.bounds = _bounds(text) or _numbered(int(match[3]))
        self.lay_out()

    def lay_out(self) -> None:
        """Every row into the partition that it belongs to now."""
        rows = self.rows()
        self.parts = {name: {} for name in self.bounds or [_WHOLE]}
        for row in rows:
            self.place(row)[self.key_of(row)] = row

    def _part_of(self, value: int) -> str:
        if self.method == "hash":
            return list(self.bounds)[abs(value) % len(self.bounds)]
        for name, values in self.bounds.items():
            if self.method == "list" and str(value) in values:
                return name
            if self.method == "range" and (values == ["maxvalue"] or value < int(values[0])):
                return name
        raise Misfit(f"no partition for {value}")


class Consumer:
    """See the module."""

    def __init__(self, database: str) -> None:
        self.database = database
        self.tables: dict[str, ConsumedTable] = {}

    def apply(self, event: Mapping[str, Any]) -> None:
        """Take one line of NDJSON."""
        if event.get("database") != self.database or event["type"] == "resolved":
            return
        if event["type"] == "ddl":
            self._ddl(" ".join(event["query"].lower().replace("`", "").split()), event["table"])
        else:
            self._row(event)

    def _row(self, event: Mapping[str, Any]) -> None:
        table = self.tables[event["table"]]
        new, old = (None if (values := event[name]) is None else _row_of(table, values) for name in ("columns", "old"))
        if old is not None:
            row = table.place(old).pop(table.key_of(old), None)
            if row != old:
                raise Misfit(f"{row} is there instead of the old row: {event}")
        if new is not None:
            place, key = table.place(new), table.key_of(new)
            if key in place:
                raise Misfit(f"{place[key]} is there already: {event}")
            place[key] = new

    def _ddl(self, text: str, name: str) -> None:
        if match := _CREATE.match(text):
            self.tables[name] = _created(match["body"])
        elif text.startswith("truncate table"):
            for part in self.tables[name].parts.values():
                part.clear()
        elif text.startswith("drop table"):
            del self.tables[name]
        elif text.startswith("alter table"):
            self._alter(text)
        else:
            assert text.startswith("create database"), text

    def _alter(self, text: str) -> None:
        """An ALTER of partitions. The name that it speaks of is in the text: an exchange is told under another."""
        words = text.split(" ", 3)
        table, what = self.tables[words[2].rsplit(".", 1)[-1]], words[3]
        for move, pattern in _MOVES.items():
            if match := pattern.search(what):
                done: Callable[[ConsumedTable, re.Match[str]], None] = getattr(self, f"_{move}")
                return done(table, match)
        raise AssertionError(text)

    def _truncate(self, table: ConsumedTable, match: re.Match[str]) -> None:
        for name in _names(match[1]):
            table.parts[name].clear()

    def _drop(self, table: ConsumedTable, match: re.Match[str]) -> None:
        for name in _names(match[1]):
            del table.bounds[name], table.parts[name]

    def _add(self, table: ConsumedTable, match: re.Match[str]) -> None:
        table.bounds = _numbered(len(table.bounds) + int(match[1]))
        table.lay_out()

    def _define(self, table: ConsumedTable, match: re.Match[str]) -> None:
        for name, values in _bounds(match[1]).items():
            table.bounds[name], table.parts[name] = values, {}

    def _coalesce(self, table: ConsumedTable, match: re.Match[str]) -> None:
        table.bounds = _numbered(len(table.bounds) - int(match[1]))
        table.lay_out()

    def _reorganize(self, table: ConsumedTable, match: re.Match[str]) -> None:
        names_left, bounds = set(_names(match[1])), dict[str, list[str]]()
        for name, values in table.bounds.items():
            if name not in names_left:
                bounds[name] = values
            elif not names_left <= set(bounds):
                bounds |= _bounds(match[2])
                names_left -= {name}
        table.bounds = bounds
        table.lay_out()

    def _exchange(self, table: ConsumedTable, match: re.Match[str]) -> None:
        other = self.tables[match[2].rsplit(".", 1)[-1]]
        table.parts[match[1]], other.parts[_WHOLE] = other.parts[_WHOLE], table.parts[match[1]]

    def _by(self, table: ConsumedTable, match: re.Match[str]) -> None:
        table.partition(match.string)

    def _whole(self, table: ConsumedTable, match: re.Match[str]) -> None:
        table.method, table.bounds = "", {}
        table.lay_out()


def _created(body: str) -> ConsumedTable:
    columns, key, depth, part = list[str](), list[str](), 0, ""
    for letter in body:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth < 0:
            break
        part += letter
        if letter == "," and not depth:
            columns, key, part = _column(part[:-1].strip(), columns, key), key, ""
    columns = _column(part.strip(), columns, key)
    table = ConsumedTable(columns, key)
    if _BY.search(body):
        table.partition(body)
    return table


def _column(text: str, columns: list[str], key: list[str]) -> list[str]:
    """The columns with this one; a primary key goes into `key`."""
    if text.startswith("primary key"):
        key += _names(text[text.index("(") + 1 : text.index(")")])
        return columns
    name = text.split(" ", 1)[0]
    if "primary key" in text:
        key.append(name)
    return [*columns, name]


def _bounds(text: str) -> dict[str, list[str]]:
    return {name: [value.strip() for value in values.split(",")] for name, values in _BOUNDS.findall(text)}


def _numbered(count: int) -> dict[str, list[str]]:
    return {f"p{n}": [] for n in range(count)}


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _row_of(table: ConsumedTable, values: Mapping[str, Any]) -> Row:
    return tuple(None if (value := values[name]) is None else str(value) for name in table.columns)
