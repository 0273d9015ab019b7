"""Runs that lie in snapshot objects: known facts, and parts that are fetched on demand.

A `Group` is rows that were written together, in four parts of one object:

    keys       for probes and for placing rows in slices
    values     value and old value: needed when rows are written out or copied
    numbers    timestamps, flags, and the origin of each row; a constant column is a fact instead
    origins    the subscriptions and files of the rows

A `SavedRun` is a group as a run: it knows the alive flags and the facts of its group (ranges of timestamps and keys,
the lowest cut_ts), and fetches a part on first use. Hashes and indexes are rebuilt from the keys, which is faster than
fetching them.

Alive flags are not part of a group: a `RunState` holds them for one point in time. After a save, the rows of a run that
arrived here lie in one or more groups; each `Piece` names some of them.

A subscription may become ready after its rows were saved; the groups stay unchanged, and LATE_READY is saved with the
state. `saving` decides what is saved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl
import pyarrow as pa

from sorter.rows.batch_rows import from_arrow, rows_inside
from sorter.rows.kernels import I64, U64, Flags
from sorter.rows.payload import Place, Segment, columns_of
from sorter.rows.run import Needles, Run
from tistream.codec.segment_file import decode_segment
from tistream.errors import CorruptObject, ObjectNotFound, StoreError, StoreUnavailable, TiStreamError
from tistream.keyrange import KeyRange

PARTS = ("keys", "values", "numbers", "origins")
SUBSCRIPTION_ID = ["store_id", "incarnation", "region_id", "version", "checkpoint_ts", "tenure_open_ts"]
#: subscriptions whose tenure_ready_ts became known after their rows were saved
LATE_READY = pa.schema([pa.field(name, pa.uint64(), nullable=False) for name in (*SUBSCRIPTION_ID, "told")])
NO_LATE_READY = pl.DataFrame(schema=dict.fromkeys(LATE_READY.names, pl.UInt64))

Rows = npt.NDArray[np.uint32]
Fetch = Callable[[str], pa.Table]  #: a part of one group, by its name
Read = Callable[[str, int, int], bytes]  #: (object key, offset, length) -> bytes


class RowsOutOfReach(StoreUnavailable):
    """Rows in a snapshot object could not be fetched; the operation that needed them is half done."""

    code = "TS-1035"
    hint = "The task restarts from its snapshot automatically once the object store answers."


class StateUnreadable(CorruptObject):
    """An object of a task's saved state is missing or damaged. The task stops; its log and its batch files stay."""

    code = "TS-1065"
    hint = (
        "Restore the object that the error names, from a version or a copy of the bucket; then: tistream tasks retry."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
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
    parts: Mapping[str, Part]
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
class Piece:
    """Rows of a run as they lie in a group: consecutive, starting at `first`."""

    group: Group
    first: int
    rows: Rows | None  #: their numbers in the run; None = all, in order


@dataclass(frozen=True, slots=True, eq=False)
class RunState:
    run: Run
    alive: Flags
    live: int
    origins: pl.DataFrame | None  #: None: as in its group
    saved: tuple[Piece, ...]

    def revive(self) -> Run:
        run = self.run.again(self.alive, self.origins)
        run.saved = self.saved
        return run


def states_of(runs: Iterable[Run]) -> tuple[RunState, ...]:
    """The current states of the runs that have living rows."""
    return tuple(RunState(run, run.frozen(), run.live, _own_origins(run), run.saved) for run in runs if run.live)


def cut(run: Run, range_: KeyRange) -> None:
    keys = run.facts.get("keys")
    if keys is not None and keys[0] >= range_.start and (not range_.end or keys[1] < range_.end):
        return
    if not range_.start and not range_.end:
        return
    at = run.living()
    inside = rows_inside(run.place.take(at).column("key"), range_)
    if inside is not None:
        run.kill(np.delete(at, inside))


def has_undecided(run: Run) -> bool:
    """Whether the run holds, or held, undecided commits."""
    if "asked" not in run.facts:
        run.facts["asked"] = bool(run.numbers["asked"].any())
    return bool(run.facts["asked"])


def with_late_ready(origins: pl.DataFrame, late_ready: pl.DataFrame) -> pl.DataFrame:
    """The same origins, with unknown tenure_ready_ts filled in from `late_ready`."""
    known = pl.when(pl.col("tenure_ready_ts") == 0).then(pl.col("told").fill_null(0)).otherwise("tenure_ready_ts")
    joined = origins.join(late_ready, on=SUBSCRIPTION_ID, how="left", maintain_order="left")
    return joined.with_columns(tenure_ready_ts=known).select(origins.columns)


class SavedRun(Run):
    """A group as a run. Anything that fetches raises the errors of `fetch`."""

    __slots__ = ("_fetch", "_group", "_late_ready", "_numbers", "_origins", "_place", "_segment")

    def __init__(self, group: Group, alive: Flags, read: Read, late_ready: pl.DataFrame) -> None:
        """`late_ready`: LATE_READY of the snapshot that names the group."""
        self._group, self._late_ready = group, late_ready
        self._fetch: Fetch = partial(fetch, group, read)
        self._segment: Segment = SavedSegment(group, self._fetch)
        self._place: Place | None = None
        self._numbers: dict[str, npt.NDArray[Any]] | None = None
        self._origins: pl.DataFrame | None = None
        self.hashes, self.young, self.reach = None, None, None
        self.saved = (Piece(group, 0, None),)
        self.facts = {**group.spans, "keys": group.keys, "cut": group.cut}
        if group.same.get("asked", ("", 1))[1] == 0:
            self.facts["asked"] = False
        self._indexes = {}
        self._frozen = None
        self.set_alive(alive)

    def __len__(self) -> int:
        return self._group.rows

    @property
    def place(self) -> Place:
        if self._place is None:
            self._place = Place.whole(self._segment)
        return self._place

    @place.setter
    def place(self, place: Place) -> None:
        self._place, self._segment = place, place.segments[0]

    @property
    def numbers(self) -> dict[str, npt.NDArray[Any]]:
        if self._numbers is None:
            found: dict[str, npt.NDArray[Any]] = {}
            if "numbers" in self._group.parts:
                table = self._fetch("numbers")
                found = {name: _array(table.column(name)) for name in table.column_names}
            for name, (type_, value) in self._group.same.items():
                found[name] = np.broadcast_to(np.array([value]).astype(type_), len(self))
            self._numbers = found
        return self._numbers

    @numbers.setter
    def numbers(self, numbers: dict[str, npt.NDArray[Any]]) -> None:
        self._numbers = numbers

    @property
    def origins(self) -> pl.DataFrame | None:
        if self._origins is None and "origins" in self._group.parts:
            found = from_arrow(self._fetch("origins"))
            self._origins = (
                with_late_ready(found, self._late_ready) if self._group.unready and self._late_ready.height else found
            )
        return self._origins

    @origins.setter
    def origins(self, origins: pl.DataFrame | None) -> None:
        self._origins = origins

    @property
    def own_origins(self) -> pl.DataFrame | None:
        return self._origins

    def unready(self) -> bool:
        return self._group.unready and super().unready()

    def keep_all(self) -> None:
        """Fetch what is not loaded yet. Raises RowsOutOfReach."""
        for name in ("key", "value"):
            self._segment.columns.get(name)
        self.numbers = self.numbers
        self.origins = self.origins

    def again(self, alive: Flags, origins: pl.DataFrame | None) -> Run:
        new = object.__new__(SavedRun)
        for name in (
            "_fetch",
            "_group",
            "_numbers",
            "_place",
            "_segment",
            "_late_ready",
            "_indexes",
            "hashes",
            "young",
        ):
            setattr(new, name, getattr(self, name))
        new._origins, new.reach, new._frozen, new.facts = origins, None, None, dict(self.facts)
        new.saved = ()
        new.set_alive(alive)
        return new

    def find(self, needles: Needles, ts: str, wanted: U64 | None = None) -> tuple[I64, I64]:
        if self._numbers is not None:
            return super().find(needles, ts, wanted)
        near = self._near(needles, ts)
        if not len(near):
            return near, near
        found, rows = super().find(needles.take(near), ts, None if wanted is None else wanted[near])
        return near[found], rows

    def segments(self) -> tuple[Segment, ...]:
        return (self._segment,) if self._place is None else self._place.segments

    def known_place(self) -> Place | None:
        return self._place

    def known_numbers(self) -> Mapping[str, npt.NDArray[Any]]:
        return self._numbers or {}

    def exchange(self, moved: Mapping[int, Segment]) -> None:
        if self._place is None:
            self._segment = moved.get(id(self._segment), self._segment)
        super().exchange(moved)

    def _near(self, needles: Needles, ts: str) -> I64:
        low, high = self.span(ts)
        near = np.flatnonzero((needles.ts >= np.uint64(low)) & (needles.ts <= np.uint64(high)))
        keys = needles.place.take(near).series("key")
        first, last = (pl.lit(key, pl.Binary) for key in self._group.keys)
        inside = pl.DataFrame({"key": keys}).select((pl.col("key") >= first) & (pl.col("key") <= last)).to_series()
        found: I64 = near[inside.to_numpy()]
        return found


class SavedSegment(Segment):
    """The bytes of a group. Keys and values are fetched on first use."""

    __slots__ = ("_disk", "_fetch", "_group", "_memory")

    def __init__(self, group: Group, fetch: Fetch) -> None:
        self._group, self._fetch = group, fetch
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

    def load(self, part: str) -> None:
        if part not in self._memory and part not in self._disk and part in self._group.parts:
            batch = self._fetch(part).combine_chunks().to_batches()[0]
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
        new = SavedSegment(self._group, self._fetch)
        new.columns.update(self.columns)
        new._disk = {**self._disk, **self._memory}
        for batch in written:
            new.columns.update(columns_of(batch))
        return new


_OF_PART = {"keys": ("key",), "values": ("value", "old_value")}


class _Columns(dict[str, Any]):
    """The loaded columns of a saved segment; asking for another one fetches its part."""

    def __init__(self, segment: SavedSegment) -> None:
        super().__init__()
        self._load = segment.load

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self:
            self._load("keys" if name == "key" else "values")
        return super().get(name, default)


def fetch(group: Group, read: Read, name: str) -> pa.Table:
    """A part of a group. RowsOutOfReach when it cannot be fetched, StateUnreadable when it is missing or damaged."""
    try:
        return _fetched(group, read, name)
    except CorruptObject:
        pass  # possibly damaged in transit: read again
    except StoreError as e:
        raise _fetch_error(group, name, e) from e
    try:
        return _fetched(group, read, name)
    except (StoreError, CorruptObject) as e:
        raise _fetch_error(group, name, e) from e


def _fetched(group: Group, read: Read, name: str) -> pa.Table:
    part = group.parts[name]
    return decode_segment(
        group.object_key,
        part.number,
        read(group.object_key, part.offset, part.length),
        crc=part.crc,
        rows=None if name == "origins" else group.rows,
        raw_length=part.raw_length,
        offset=part.offset,
    )


def _fetch_error(group: Group, name: str, error: StoreError | CorruptObject) -> TiStreamError:
    permanent = isinstance(error, (ObjectNotFound, CorruptObject))
    kind = StateUnreadable if permanent else RowsOutOfReach
    return kind(object=group.object_key, part=name, cause=str(error))


def _own_origins(run: Run) -> pl.DataFrame | None:
    return run.own_origins if isinstance(run, SavedRun) else run.origins


def _array(column: pa.ChunkedArray) -> npt.NDArray[Any]:
    return np.ascontiguousarray(column.combine_chunks().to_numpy(zero_copy_only=False))


def bits_of(alive: Flags) -> bytes | None:
    """Flags, packed; None when all are set."""
    return None if alive.all() else np.packbits(alive, bitorder="little").tobytes()


def flags_of(bits: bytes | None, rows: int) -> Flags:
    """The reverse of `bits_of`. ValueError when the length does not match."""
    if bits is None:
        return np.ones(rows, np.bool_)
    if len(bits) != -(-rows // 8):
        raise ValueError(f"{len(bits)} bytes of flags for {rows} rows")
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=rows, bitorder="little").astype(np.bool_)


def spans_of(numbers: Mapping[str, npt.NDArray[Any]]) -> dict[str, tuple[int, int]]:
    found: dict[str, U64] = {name: numbers[name] for name in ("start_ts", "commit_ts") if name in numbers}
    return {name: (int(values.min()), int(values.max())) for name, values in found.items()}
