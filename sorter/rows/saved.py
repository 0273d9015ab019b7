"""Runs that lie in snapshot objects: known facts, and parts that are loaded when a step needs them.

A `Group` is rows that were written together, in four parts of one object:

    keys       for probes and for placing rows in slices
    values     value and old value: needed when rows are written out or copied
    numbers    timestamps, flags, and the origin of each row; a constant column is a fact instead
    origins    the subscriptions and files of the rows

A `SavedRun` is a group as a run. It begins with the alive flags and the facts of its group (ranges of timestamps and
keys, the lowest cut_ts). A step names the parts that it reads (`run.require`), the worker fetches them, `load` adds
them; reading a part that is not loaded is a bug. Hashes and indexes are rebuilt from the keys, which is faster
than fetching them.

Alive flags are not part of a group: a `RunState` holds them for one point in time. After a save, the rows of a run that
arrived here lie in one or more groups; each `SavedRows` names some of them.

A subscription may become ready after its rows were saved; the groups stay unchanged, and LATE_READY is saved with the
state. `saving` decides what is saved.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from sorter.rows.batch_rows import from_arrow, rows_inside
from sorter.rows.payload import RowRefs, Segment, columns_of
from sorter.rows.run import PARTS, PROBED, LookupKeys, Need, Run, require
from tistream.errors import invariant
from tistream.keyrange import KeyRange
from tistream.model.arrays import U64, Mask

SUBSCRIPTION_ID = ["store_id", "incarnation", "region_id", "version", "checkpoint_ts", "subscription_open_ts"]
#: subscriptions whose subscription_ready_ts became known after their rows were saved
LATE_READY = pa.schema([pa.field(name, pa.uint64(), nullable=False) for name in (*SUBSCRIPTION_ID, "told")])
NO_LATE_READY = pl.DataFrame(schema=dict.fromkeys(LATE_READY.names, pl.UInt64))

Rows = npt.NDArray[np.uint32]


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectPart:
    """Where a segment lies in its object."""

    number: int
    offset: int
    length: int
    raw_length: int
    crc: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Group:
    """Rows that were written together; compared by identity."""

    object_key: str
    object_bytes: int  #: of the object
    kind: str  #: open, commits or ready
    rows: int
    parts: Mapping[str, ObjectPart]
    keys: tuple[bytes, bytes]  #: smallest and largest
    spans: Mapping[str, tuple[int, int]]  #: of timestamps: lowest and highest
    same: Mapping[str, tuple[str, int]]  #: columns of `numbers` that have one value: type and value
    cut: int = 0  #: lowest cut_ts of open prewrites
    unready: bool = False  #: whether the subscription of some prewrite was not ready when it was written

    @property
    def stored_bytes(self) -> int:
        """Bytes of all parts in the object."""
        return sum(part.length for part in self.parts.values())

    @property
    def raw_bytes(self) -> int:
        return sum(part.raw_length for name, part in self.parts.items() if name in ("keys", "values"))


@dataclass(frozen=True, slots=True, eq=False)
class SavedRows:
    """Rows of a run as they lie in a group: consecutive, starting at `first`."""

    group: Group
    first: int
    rows: Rows | None  #: their numbers in the run; None = all, in order


@dataclass(frozen=True, slots=True, eq=False)
class RunState:
    run: Run
    alive: Mask
    live: int
    origins: pl.DataFrame | None  #: None: as in its group
    saved: tuple[SavedRows, ...]

    def revive(self) -> Run:
        run = self.run.with_alive(self.alive, self.origins)
        run.saved = self.saved
        return run


def states_of(runs: Iterable[Run]) -> tuple[RunState, ...]:
    """The current states of the runs that have living rows."""
    return tuple(RunState(run, run.frozen(), run.live, _own_origins(run), run.saved) for run in runs if run.live)


def _is_cut(run: Run, range_: KeyRange) -> bool:
    """Whether some of its rows may lie outside of the range."""
    keys = run.facts.get("keys")
    if keys is not None and keys[0] >= range_.start and (not range_.end or keys[1] < range_.end):
        return False
    return bool(range_.start or range_.end)


def cut(runs: Iterable[Run], range_: KeyRange) -> None:
    """Remove the rows outside of the range."""
    partly = [run for run in runs if _is_cut(run, range_)]
    require(partly, ("keys",))
    for run in partly:
        at = run.living()
        inside = rows_inside(run.refs.take(at).column("key"), range_)
        if inside is not None:
            run.kill(np.delete(at, inside))


def has_undecided(run: Run) -> bool:
    """Whether the run holds, or held, undecided commits."""
    if "asked" not in run.facts:
        run.facts["asked"] = bool(run.numbers["asked"].any())
    return bool(run.facts["asked"])


def with_late_ready(origins: pl.DataFrame, late_ready: pl.DataFrame) -> pl.DataFrame:
    """The same origins, with unknown subscription_ready_ts filled in from `late_ready`."""
    known = (
        pl.when(pl.col("subscription_ready_ts") == 0)
        .then(pl.col("told").fill_null(0))
        .otherwise("subscription_ready_ts")
    )
    joined = origins.join(late_ready, on=SUBSCRIPTION_ID, how="left", maintain_order="left")
    return joined.with_columns(subscription_ready_ts=known).select(origins.columns)


class SavedRun(Run):
    """A group as a run."""

    __slots__ = ("_late_ready", "_numbers", "_origins", "_refs", "_segment", "group")

    def __init__(self, group: Group, alive: Mask, late_ready: pl.DataFrame) -> None:
        """`late_ready`: LATE_READY of the snapshot that names the group."""
        self.group, self._late_ready = group, late_ready
        self._segment = SavedSegment(group)
        self._refs: RowRefs | None = None
        self._numbers: dict[str, npt.NDArray[Any]] | None = None
        self._origins: pl.DataFrame | None = None
        self.hashes, self.young, self.reach = None, None, None
        self.saved = (SavedRows(group, 0, None),)
        self.facts = {**group.spans, "keys": group.keys, "cut": group.cut, "unready": group.unready}
        if group.same.get("asked", ("", 1))[1] == 0:
            self.facts["asked"] = False
        self._indexes = {}
        self._frozen = None
        self.set_alive(alive)

    def __len__(self) -> int:
        return self.group.rows

    @property
    def refs(self) -> RowRefs:
        if self._refs is None:
            self._refs = RowRefs.whole(self._segment)
        return self._refs

    @refs.setter
    def refs(self, refs: RowRefs) -> None:
        (segment,) = refs.segments
        assert isinstance(segment, SavedSegment)
        self._refs, self._segment = refs, segment

    def missing(self, parts: Iterable[str] = PARTS) -> list[Need]:
        return [Need(self, part) for part in parts if part in self.group.parts and not self._has(part)]

    def load(self, part: str, rows: pa.Table) -> None:
        """Add a part as it was fetched. Repeats are ignored."""
        if self._has(part):
            return
        if part == "numbers":
            self._set_numbers({name: _array(rows.column(name)) for name in rows.column_names})
        elif part == "origins":
            origins = from_arrow(rows)
            late = self.group.unready and self._late_ready.height
            self._origins = with_late_ready(origins, self._late_ready) if late else origins
        else:
            self._segment.load(part, rows)

    def _has(self, part: str) -> bool:
        if part == "numbers":
            return self._numbers is not None
        if part == "origins":
            return self._origins is not None
        return self._segment.has(part)

    @property
    def numbers(self) -> dict[str, npt.NDArray[Any]]:
        if self._numbers is None:
            invariant("numbers" not in self.group.parts, "rows are read before they are loaded", part="numbers")
            self._set_numbers({})
        assert self._numbers is not None
        return self._numbers

    @numbers.setter
    def numbers(self, numbers: dict[str, npt.NDArray[Any]]) -> None:
        self._numbers = numbers

    def _set_numbers(self, arrays: dict[str, npt.NDArray[Any]]) -> None:
        same = {n: np.broadcast_to(np.array([v]).astype(type_), len(self)) for n, (type_, v) in self.group.same.items()}
        self._numbers = {**arrays, **same}

    @property
    def origins(self) -> pl.DataFrame | None:
        invariant(self._has("origins") or "origins" not in self.group.parts, "rows are read before they are loaded")
        return self._origins

    @origins.setter
    def origins(self, origins: pl.DataFrame | None) -> None:
        self._origins = origins

    @property
    def own_origins(self) -> pl.DataFrame | None:
        return self._origins

    def unready(self) -> bool:
        return self.group.unready and super().unready()

    def with_alive(self, alive: Mask, origins: pl.DataFrame | None) -> Run:
        new = object.__new__(SavedRun)
        for name in ("group", "_numbers", "_refs", "_segment", "_late_ready", "_indexes", "hashes", "young"):
            setattr(new, name, getattr(self, name))
        new._origins = self._origins if origins is None else origins
        new.reach, new._frozen, new.facts = None, None, dict(self.facts)
        new.saved = ()
        new.set_alive(alive)
        return new

    def segments(self) -> tuple[Segment, ...]:
        return (self._segment,) if self._refs is None else self._refs.segments

    def known_refs(self) -> RowRefs | None:
        return self._refs

    def known_numbers(self) -> Mapping[str, npt.NDArray[Any]]:
        return self._numbers or {}

    def exchange(self, moved: Mapping[int, Segment]) -> None:
        if self._refs is None:
            segment = moved.get(id(self._segment), self._segment)
            assert isinstance(segment, SavedSegment)
            self._segment = segment
        super().exchange(moved)

    def may_have(self, lookup_keys: LookupKeys, ts: str) -> bool:
        if not self.missing(PROBED):
            return True
        low, high = self.span(ts)
        near = np.flatnonzero((lookup_keys.ts >= np.uint64(low)) & (lookup_keys.ts <= np.uint64(high)))
        if not len(near):
            return False
        first, last = (pl.lit(key, pl.Binary) for key in self.group.keys)
        keys = pl.DataFrame({"key": lookup_keys.refs.take(near).series("key")})
        return bool(keys.select(pl.col("key").is_between(first, last).any()).item())


class SavedSegment(Segment):
    """The bytes of a group: keys and values, once they are loaded."""

    __slots__ = ("_disk", "_group", "_memory")

    def __init__(self, group: Group) -> None:
        self._group = group
        self.rows, self.nbytes, self.on_disk = group.rows, group.raw_bytes, False
        self._memory: dict[str, int] = {}  # part -> bytes
        self._disk: dict[str, int] = {}
        self.columns = _Columns(self)

    @property
    def memory_bytes(self) -> int:
        return sum(self._memory.values())

    @property
    def disk_bytes(self) -> int:
        return sum(self._disk.values())

    def has(self, part: str) -> bool:
        return part in self._memory or part in self._disk

    def lacks(self, column: str) -> bool:
        """Whether the column's part is not loaded."""
        part = "keys" if column == "key" else "values"
        return part in self._group.parts and not self.has(part)

    def load(self, part: str, rows: pa.Table) -> None:
        batch = rows.combine_chunks().to_batches()[0]
        self.columns.update(columns_of(batch))
        self._memory[part] = int(batch.nbytes)

    def in_memory(self) -> list[pa.RecordBatch]:
        return [
            pa.RecordBatch.from_pydict(
                {name: self.columns[name].array for name in _OF_PART[part] if name in self.columns}
            )
            for part in self._memory
        ]

    def spilled(self, written: Sequence[pa.RecordBatch]) -> Segment:
        new = SavedSegment(self._group)
        new.columns.update(self.columns)
        new._disk = {**self._disk, **self._memory}
        for batch in written:
            new.columns.update(columns_of(batch))
        return new


_OF_PART = {"keys": ("key",), "values": ("value", "old_value")}


class _Columns(dict[str, Any]):
    """The loaded columns of a saved segment."""

    def __init__(self, segment: SavedSegment) -> None:
        super().__init__()
        self._lacks = segment.lacks

    def get(self, name: str, default: Any = None) -> Any:
        invariant(name in self or not self._lacks(name), "rows are read before they are loaded", part=name)
        return super().get(name, default)


def _own_origins(run: Run) -> pl.DataFrame | None:
    return run.own_origins if isinstance(run, SavedRun) else run.origins


def _array(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    return np.ascontiguousarray(column.combine_chunks().to_numpy(zero_copy_only=False))


def bits_of(alive: Mask) -> bytes | None:
    """Flags, packed; None when all are set."""
    return None if alive.all() else np.packbits(alive, bitorder="little").tobytes()


def flags_of(bits: bytes | None, rows: int) -> Mask:
    """The reverse of `bits_of`. ValueError when the length does not match."""
    if bits is None:
        return np.ones(rows, np.bool_)
    if len(bits) != -(-rows // 8):
        raise ValueError(f"{len(bits)} bytes of flags for {rows} rows")
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=rows, bitorder="little").astype(np.bool_)


def spans_of(numbers: Mapping[str, npt.NDArray[Any]]) -> dict[str, tuple[int, int]]:
    stamps: dict[str, U64] = {name: numbers[name] for name in ("start_ts", "commit_ts") if name in numbers}
    return {name: (int(values.min()), int(values.max())) for name, values in stamps.items()}
