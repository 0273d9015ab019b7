"""Saves a state checkpoint: rows that no snapshot object holds yet, and a small state that locates all rows.

    row held by a group already      --> keep the group's object, record which of its rows are alive
    row not held, or object released --> new groups, in new objects

Rows are rewritten where that releases an object:

- less than 1 / LOOSE of an object is alive;
- the state refers to more than OBJECTS_MAX objects, plus one for each OBJECT_BYTES of them: the smallest are released,
  so many that half of OBJECTS_MAX new ones fit before the limit is reached again.

So the cost of a save follows the rows that arrived and left, not the rows held, apart from one bit per row of a group
that has lost some. The number of groups follows the number of runs, which `run` keeps low.

A `Save` is one attempt. Its objects are new, under unused keys; `done` records that the catalog has switched to it, and
only then do the runs learn their place. A failed attempt leaves only objects that nothing refers to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from sorter.core.task_core import CoreSnapshot
from sorter.rows.run import RUN_ROWS, Run, merge, require
from sorter.rows.saved import Group, ObjectPart, Rows, RunState, SavedRows, spans_of
from sorter.state.snapshot import ROW_KINDS, build_state_file, named
from tistream.codec.segment_file import SegmentFileWriter, SegmentInfo
from tistream.model.arrays import Mask
from tistream.objectstore.layout import SnapshotKey

GROUP_BYTES = 64 << 20  #: of keys and values of one group, uncompressed
OBJECT_BYTES = 128 << 20  #: an object of groups ends here, compressed
OBJECTS_MAX = 64
LOOSE = 4

RUNS_FILE = "snapshot-runs"


@dataclass(slots=True, eq=False)
class _Group:
    kind: str
    run: Run
    sources: list[tuple[RunState, Rows]]
    parts: dict[str, ObjectPart] = field(default_factory=dict)

    def made(self, object_key: str, object_bytes: int) -> Group:
        numbers, keys = self.run.numbers, pl.Series(pl.from_arrow(self.run.refs.column("key")), dtype=pl.Binary)
        is_open = self.kind == "open"
        return Group(
            object_key=object_key,
            object_bytes=object_bytes,
            kind=self.kind,
            rows=len(self.run),
            parts=self.parts,
            keys=(keys.min(), keys.max()),  # type: ignore[arg-type]
            spans=spans_of(numbers),
            same={name: (v.dtype.name, int(v[0])) for name, v in numbers.items() if _is_same(v)},
            cut=self.run.least_cut() if is_open else 0,
            unready=is_open and self.run.unready(),
        )


class Save:
    """One attempt to save a state. Write all of `objects` first; then `key`, `new` and `keeps` are what the catalog
    needs."""

    def __init__(self, state: CoreSnapshot, next_key: Callable[[], SnapshotKey], write_id: str) -> None:
        """`next_key` returns an unused key, a later one at each call. NotLoaded with the rows of objects to release."""
        self._state, self._next_key, self._write_id = state, next_key, write_id
        self._key: SnapshotKey | None = None
        self._pieces: dict[Run, list[SavedRows]] = {}
        self._held = _held(state)
        self._released = _released(self._held)
        self.new: dict[str, int] = {}  #: key of each new object -> its size, bytes
        self.keeps: frozenset[str] = frozenset()  #: keys of older objects that the state refers to
        runs = [run for kind in ROW_KINDS for run in getattr(state, kind)]
        require(run.run for run in runs if any(piece.group.object_key in self._released for piece in run.saved))

    @property
    def key(self) -> SnapshotKey:
        assert self._key is not None, "write the objects first"
        return self._key

    def objects(self) -> Iterator[tuple[str, bytes]]:
        """(key, bytes) of each object to PUT, in this order, the state last."""
        held, released = self._held, self._released
        kept = {group: flags for group, flags in held.items() if group.object_key not in released and flags.any()}
        self.keeps = frozenset(group.object_key for group in kept)
        writer: _ObjectWriter | None = None
        for kind in ROW_KINDS:
            for sources in _packed(self._sources(kind, kept, released)):
                if writer is None:
                    writer = _ObjectWriter(self._next_key(), self._write_id)
                writer.add(kind, sources)
                if writer.size >= OBJECT_BYTES:
                    yield self._finished(writer, kept)
                    writer = None
        if writer is not None:
            yield self._finished(writer, kept)
        self._key = self._next_key()
        data = build_state_file(self._key, self._state, kept, self._write_id)
        self.new[str(self._key)] = len(data)
        yield str(self._key), data

    def done(self) -> None:
        """The catalog has switched to this state."""
        for run, pieces in self._pieces.items():
            run.saved = tuple(pieces)

    def _sources(self, kind: str, kept: dict[Group, Mask], released: frozenset[str]) -> Iterator[tuple[RunState, Rows]]:
        """The living rows of this kind to write, by run; records the place of the others."""
        for state in getattr(self._state, kind):
            self._pieces[state.run] = [piece for piece in state.saved if piece.group in kept]
            if not state.saved:
                yield state, np.flatnonzero(state.alive).astype(np.uint32)
            for piece in state.saved:
                if piece.group.object_key in released:
                    rows = np.arange(len(state.alive), dtype=np.uint32) if piece.rows is None else piece.rows
                    yield state, rows[state.alive[rows]]

    def _finished(self, writer: _ObjectWriter, kept: dict[Group, Mask]) -> tuple[str, bytes]:
        key, data = str(writer.key), writer.finish()
        self.new[key] = len(data)
        for of in writer.groups:
            group = of.made(key, len(data))
            kept[group] = np.ones(group.rows, np.bool_)
            first = 0
            for state, rows in of.sources:
                all_rows = len(rows) == len(state.alive)
                self._pieces[state.run].append(SavedRows(group, first, None if all_rows else rows))
                first += len(rows)
        return key, data


class _ObjectWriter:
    def __init__(self, key: SnapshotKey, write_id: str) -> None:
        self.key = key
        self._writer = SegmentFileWriter({"file": RUNS_FILE, **named(key), "write_id": write_id})
        self.groups: list[_Group] = []
        self.size = 0  #: bytes so far

    def add(self, kind: str, sources: list[tuple[RunState, Rows]]) -> None:
        """Add rows of one kind as a group, copied together."""
        runs = [state.revive() for state, _ in sources]
        made = merge(runs, ROW_KINDS[kind], rows=[rows.astype(np.int64) for _, rows in sources])
        group = _Group(kind, made, sources)
        for name, table in _parts_of(made).items():
            info = self._writer.add(f"{kind}-{name}", table)
            group.parts[name] = _part(info)
            self.size += info.length
        self.groups.append(group)

    def finish(self) -> bytes:
        return self._writer.finish()


def _parts_of(run: Run) -> dict[str, pa.Table]:
    parts = {"keys": pa.table({"key": _column_of(run, "key")})}
    if values := {name: _column_of(run, name) for name in ("value", "old_value") if _has(run, name)}:
        parts["values"] = pa.table(values)
    if numbers := {name: pa.array(v) for name, v in run.numbers.items() if not _is_same(v)}:
        parts["numbers"] = pa.table(numbers)
    if run.origins is not None:
        parts["origins"] = run.origins.to_arrow()
    return parts


def _has(run: Run, name: str) -> bool:
    """Whether any segment has this column; a segment whose rows have none leaves it out."""
    return any(name in s.columns for s in run.refs.segments)


def _column_of(run: Run, name: str) -> pa.ChunkedArray:
    """A column of all rows. Segments are in row order, as `merge` makes them."""
    columns = [(s.columns.get(name), s.rows) for s in run.refs.segments]
    return pa.chunked_array([pa.nulls(rows, pa.binary()) if c is None else c.array for c, rows in columns], pa.binary())


def _held(state: CoreSnapshot) -> dict[Group, Mask]:
    held: dict[Group, Mask] = {}
    for kind in ROW_KINDS:
        for run in getattr(state, kind):
            for piece in run.saved:
                alive = run.alive if piece.rows is None else run.alive[piece.rows]
                if len(alive) == piece.group.rows:
                    held[piece.group] = alive
                    continue
                flags = held.setdefault(piece.group, np.zeros(piece.group.rows, np.bool_))
                flags[piece.first : piece.first + len(alive)] = alive
    return held


def _released(held: dict[Group, Mask]) -> frozenset[str]:
    """The objects to release although some of their rows may be alive."""
    alive: dict[str, float] = {}
    total: dict[str, int] = {}
    for group, flags in held.items():
        share = int(np.count_nonzero(flags)) / group.rows
        alive[group.object_key] = alive.get(group.object_key, 0.0) + share * group.stored_bytes
        total[group.object_key] = group.object_bytes
    released = {key for key, size in alive.items() if size * LOOSE < total[key]}
    rest = sorted(alive.keys() - released, key=lambda key: (alive[key], key))
    most = OBJECTS_MAX + int(sum(alive.values())) // OBJECT_BYTES
    if len(rest) >= most:
        released |= set(rest[: len(rest) - most + OBJECTS_MAX // 2])
    return frozenset(released)


def _packed(sources: Iterator[tuple[RunState, Rows]]) -> Iterator[list[tuple[RunState, Rows]]]:
    """The rows in groups of at most RUN_ROWS rows and about GROUP_BYTES bytes."""
    group: list[tuple[RunState, Rows]] = []
    count = size = 0
    for state, rows in sources:
        if not len(rows):
            continue
        ends = np.cumsum(state.run.refs.take(rows).sizes(np.ones(len(rows), np.bool_)))
        full = np.diff(ends // GROUP_BYTES) + np.diff(np.arange(len(rows)) // RUN_ROWS)
        cuts = [0, *(np.flatnonzero(full) + 1).tolist(), len(rows)]
        for low, high in pairwise(cuts):
            bytes_ = int(ends[high - 1] - (ends[low - 1] if low else 0))
            if group and (count + high - low > RUN_ROWS or size + bytes_ > GROUP_BYTES):
                yield group
                group, count, size = [], 0, 0
            group.append((state, rows[low:high]))
            count, size = count + high - low, size + bytes_
    if group:
        yield group


def _part(info: SegmentInfo) -> ObjectPart:
    return ObjectPart(
        number=info.number, offset=info.offset, length=info.length, raw_length=info.raw_length, crc=info.crc
    )


def _is_same(values: npt.NDArray[Any]) -> bool:
    return bool((values == values[0]).all())
