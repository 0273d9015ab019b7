"""Runs: immutable groups of buffered rows, and how rows are found in them.

A `Run` is rows that arrived or were merged together: their numbers as arrays, references to their bytes, and an alive
flag each. Rows leave by clearing their flag; a run without living rows is dropped. Nothing else changes, so an index by
(key, timestamp) is built once, on first use (`kernels`), and a probe skips every run whose timestamps cannot contain
the wanted one. The cost follows the rows looked up, not the rows held.

`RunSet` keeps the runs of one buffer and compacts them, a bounded number of rows at a time:

- once the feed batches that a buffer holds exceed YOUNG_BYTES, the living rows of the oldest are copied together,
  unless they are most of the batch anyway;
- a run of which less than half is alive is copied;
- FAN_IN small runs of about one size become one, up to RUN_ROWS, unless the next flush takes from them anyway.

Equal hashes prove nothing: each hit is compared with the whole key.

The rows of a saved run may lie in a snapshot object. A step that reads rows names the parts with `require`, which
raises NotLoaded while some are not loaded; the caller loads them and repeats the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import polars as pl

from sorter.rows.kernels import build_index, first_equals, hash_filter, kill, probe
from sorter.rows.payload import RowRefs, Segment, mixed, stacked, used_segments
from tistream.model.arrays import I64, U32, U64, Mask

YOUNG_BYTES = 128 << 20  #: of feed batches that a buffer may keep for few of their rows
RUN_ROWS = 1 << 18  #: rows that one step of tidying copies, and so of the largest merged run
SEGMENT_BYTES = 64 << 20  #: bytes of a merged segment, and of one step of tidying
ARRAY_BYTES_MIN = 4 << 10  #: a smaller array stays in memory
FAN_IN = 8  #: small runs merged into one; of larger runs, whose rows mostly leave soon, twice as many
SMALL_ROWS = 4096

PARTS = ("keys", "values", "numbers", "origins")  #: of a saved run, see `saved`
PROBED = ("keys", "numbers")  #: the parts that `find` reads

Index = tuple[U32, U32, U32, U64, U64]
Numbers = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class LookupKeys:
    """Rows to look up: references to their keys, a hash of each key, and a timestamp each."""

    refs: RowRefs
    hashes: U64  #: of the keys alone
    ts: U64

    def __len__(self) -> int:
        return len(self.ts)

    def take(self, at: npt.NDArray[np.integer] | Mask) -> LookupKeys:
        return LookupKeys(self.refs.take(at), self.hashes[at], self.ts[at])

    def index(self) -> Index:
        """An index over the keys themselves."""
        return _index(mixed(self.hashes, self.ts), self.ts)

    def first_equals(self) -> I64:
        """For each of them the first one equal to it."""
        out: I64 = first_equals(self.index(), self.ts, self.refs.addresses)
        return out

    def within(self, others: LookupKeys) -> Mask:
        mask = np.zeros(len(self), np.bool_)
        if len(self) and len(others):
            equal, _ = _probe(others.index(), np.ones(len(others), np.bool_), others.ts, others.refs, self)
            mask[equal] = True
        return mask

    def pairs(self, others: LookupKeys) -> tuple[I64, I64]:
        """All (number here, number there) that are equal."""
        if not len(self) or not len(others):
            return np.empty(0, np.int64), np.empty(0, np.int64)
        return _probe(others.index(), np.ones(len(others), np.bool_), others.ts, others.refs, self)


@dataclass(frozen=True, slots=True)
class Need:
    """A part of a saved run that a step reads and that is not loaded."""

    run: Run
    part: str


class NotLoaded(Exception):
    """A step reads parts that are not loaded. It has changed nothing; load them and repeat it."""

    def __init__(self, needs: Sequence[Need]) -> None:
        super().__init__(f"{len(needs)} parts of saved runs are read before they are loaded")
        self.needs = needs


def require(runs: Iterable[Run], parts: Iterable[str] = PARTS) -> None:
    """Raise NotLoaded with those of the parts of the runs that are not loaded, if any."""
    if needs := [need for run in runs for need in run.missing(parts)]:
        raise NotLoaded(needs)


class Reached(Protocol):
    """Cached state of `watermark_index` for a run."""

    @property
    def nbytes(self) -> int: ...


class Run:
    """Rows of a buffer. `numbers` are arrays of one length; `origins` (if any) is a small table of what many rows
    share, indexed by `numbers["origin"]`."""

    __slots__ = (
        "_frozen",
        "_indexes",
        "alive",
        "facts",
        "hashes",
        "live",
        "numbers",
        "origins",
        "reach",
        "refs",
        "saved",
        "young",
    )

    def __init__(
        self,
        refs: RowRefs,
        numbers: Numbers,
        origins: pl.DataFrame | None = None,
        *,
        hashes: U64 | None = None,
        young: Segment | None = None,
    ) -> None:
        self.refs = refs
        self.numbers: dict[str, npt.NDArray[Any]] = {name: _thin(name, v) for name, v in numbers.items()}
        self.origins = origins
        self.hashes = hashes  #: of the keys; computed when needed and not given
        self.young = young  #: the feed batch that it lies in
        self.alive: Mask = np.ones(len(refs), np.bool_)
        self.live = len(refs)
        self.reach: Reached | None = None  #: see `watermark_index.Reach`
        self.saved: tuple[Any, ...] = ()  #: where a snapshot object holds it, see `saved.SavedRows`
        self.facts: dict[str, Any] = {}  #: cached properties of all rows
        self._indexes: dict[str, Index] = {}
        self._frozen: tuple[int, Mask] | None = None  # number of living rows, and their flags

    def __len__(self) -> int:
        return len(self.refs)

    def ts(self, name: str) -> U64:
        stamps: U64 = self.numbers[name]
        return stamps

    def living(self) -> I64:
        return np.flatnonzero(self.alive) if self.live < len(self) else np.arange(len(self))

    def lookup_keys(self, at: I64, ts: str) -> LookupKeys:
        refs = self.refs.take(at)
        return LookupKeys(refs, refs.hashes() if self.hashes is None else self.hashes[at], self.ts(ts)[at])

    def index(self, ts: str) -> Index:
        if ts not in self._indexes:
            hashes = self.refs.hashes() if self.hashes is None else self.hashes
            self._indexes[ts] = _index(mixed(hashes, self.ts(ts)), self.ts(ts))
        return self._indexes[ts]

    def span(self, ts: str) -> tuple[int, int]:
        if ts not in self.facts:
            values = self.ts(ts)
            self.facts[ts] = int(values.min()), int(values.max())
        bounds: tuple[int, int] = self.facts[ts]
        return bounds

    def least_cut(self) -> int:
        if "cut" not in self.facts:
            assert self.origins is not None
            self.facts["cut"] = int(self.origins["cut_ts"].min())  # type: ignore[arg-type]
        return int(self.facts["cut"])

    def unready(self) -> bool:
        """Whether the subscription of some row was not ready when last reported."""
        return self.origins is not None and not self.origins["subscription_ready_ts"].to_numpy().all()

    def frozen(self) -> Mask:
        """An immutable copy of its current alive flags."""
        if self._frozen is None or self._frozen[0] != self.live:
            self._frozen = self.live, self.alive.copy()
            self._frozen[1].flags.writeable = False
        return self._frozen[1]

    def missing(self, parts: Iterable[str] = PARTS) -> list[Need]:
        """Those of the parts that are in a snapshot object and not loaded."""
        return []

    def may_have(self, lookup_keys: LookupKeys, ts: str) -> bool:
        """Whether `find` must read its rows: False when a saved run that is not loaded has no such row."""
        return True

    def with_alive(self, alive: Mask, origins: pl.DataFrame | None) -> Run:
        """The same rows as another run, with these alive flags."""
        run = Run(self.refs, self.numbers, origins, hashes=self.hashes)
        run.set_alive(alive)
        run.facts = dict(self.facts)
        return run

    def set_alive(self, alive: Mask) -> None:
        self.alive, self.live = alive.copy(), int(np.count_nonzero(alive))

    def find(self, lookup_keys: LookupKeys, ts: str, wanted: U64 | None = None) -> tuple[I64, I64]:
        """(lookup key, row) of all living rows that are equal in (key, ts). `wanted`: the mixed hashes of the keys."""
        return _probe(self.index(ts), self.alive, self.ts(ts), self.refs, lookup_keys, wanted)

    def first_equals(self, ts: str) -> I64:
        """For each row the first one equal to it in (key, ts)."""
        out: I64 = first_equals(self.index(ts), self.ts(ts), self.refs.addresses)
        return out

    def kill(self, rows: I64) -> None:
        """Remove these rows."""
        self.live -= int(kill(self.alive, rows))

    def known_refs(self) -> RowRefs | None:
        return self.refs

    def known_numbers(self) -> Mapping[str, npt.NDArray[Any]]:
        return self.numbers

    def segments(self) -> Sequence[Segment]:
        return self.refs.segments

    def fills(self, segment: Segment | None) -> bool:
        """Whether its living rows make up at least half of a segment's bytes."""
        if segment is None or 8 * self.live < segment.rows:
            return False
        refs = self.refs.take(self.living())
        return 2 * int(refs.sizes(np.ones(len(refs), np.bool_)).sum()) >= segment.nbytes

    def exchange(self, moved: Mapping[int, Segment]) -> None:
        """Replace segments (by the id of the old one) with others that hold the same rows."""
        refs = self.known_refs()
        if refs is not None and any(id(s) in moved for s in refs.segments):
            now = [moved.get(id(s), s) for s in refs.segments]
            self.refs = RowRefs(now, refs.segment, refs.row)
        if self.young is not None:
            self.young = moved.get(id(self.young), self.young)

    def arrays_in_memory(self) -> list[npt.NDArray[Any]]:
        """Its immutable arrays that are large enough to spill."""
        return [a for a in self._arrays() if a.nbytes >= ARRAY_BYTES_MIN and not _is_mapped(a)]

    def exchange_arrays(self, moved: Mapping[int, npt.NDArray[Any]]) -> None:
        """Replace arrays (by the id of the old one) with equal ones."""
        if numbers := self.known_numbers():
            self.numbers = {name: moved.get(id(a), a) for name, a in numbers.items()}
        if self.hashes is not None:
            self.hashes = moved.get(id(self.hashes), self.hashes)
        refs = self.known_refs()
        if refs is not None and (id(refs.segment) in moved or id(refs.row) in moved):
            segment, row = (moved.get(id(a), a) for a in (refs.segment, refs.row))
            self.refs = RowRefs(refs.segments, segment, row)
        for ts, index in self._indexes.items():
            starts, tags, rows, words, span = (moved.get(id(a), a) for a in index)
            self._indexes[ts] = starts, tags, rows, words, span

    def forget_reach(self) -> int:
        """Drop the cached `reach`, which the next look rebuilds from all rows; the bytes freed."""
        size = 0 if self.reach is None else self.reach.nbytes
        self.reach = None
        return size

    def numbers_bytes(self, *, on_disk: bool = False) -> int:
        """Bytes of everything but the segments, in memory or on disk."""
        size = sum(int(a.nbytes) for a in self._arrays() if _is_mapped(a) is on_disk)
        if on_disk:
            return size
        return size + self.alive.nbytes + (0 if self.reach is None else self.reach.nbytes)

    def _arrays(self) -> Iterator[npt.NDArray[Any]]:
        yield from (
            a for a in self.known_numbers().values() if not a.strides or a.strides[0]
        )  # the others are one number
        if (refs := self.known_refs()) is not None:
            yield from (refs.segment, refs.row)
        if self.hashes is not None:
            yield self.hashes
        for index in self._indexes.values():
            yield from index


@dataclass(slots=True)
class RunSet:
    """The runs of one buffer, oldest first. `names` are its columns of bytes."""

    names: Sequence[str]
    runs: list[Run] = field(default_factory=list)

    def __iter__(self) -> Iterator[Run]:
        return iter(self.runs)

    @property
    def live(self) -> int:
        return sum(run.live for run in self.runs)

    def add(self, run: Run) -> None:
        if len(run):
            self.runs.append(run)

    def find(self, lookup_keys: LookupKeys, ts: str, *, whole: bool = False) -> list[tuple[Run, I64, I64]]:
        """(run, lookup keys, rows) of every run with living rows that are equal in (key, ts). `whole`: the caller reads
        all parts of these rows."""
        if not len(lookup_keys):
            return []
        low, high = int(lookup_keys.ts.min()), int(lookup_keys.ts.max())
        near = [run for run in self.runs if run.live and run.span(ts)[0] <= high and low <= run.span(ts)[1]]
        near = [run for run in near if run.may_have(lookup_keys, ts)]
        require(near, PROBED)
        wanted = mixed(lookup_keys.hashes, lookup_keys.ts)
        out = [(run, *run.find(lookup_keys, ts, wanted)) for run in near]
        out = [hit for hit in out if len(hit[1])]
        if whole:
            require(run for run, *_ in out)
        return out

    def lowest(self, ts: str) -> tuple[int, int, bytes] | None:
        """The lowest timestamp of a living row, how many rows have it, and the key of one; None if empty."""
        lowest, count, key = None, 0, b""
        by_lowest = sorted(((run.span(ts)[0], run) for run in self.runs if run.live), key=itemgetter(0))
        for low, run in by_lowest:
            if lowest is not None and low > lowest:
                break
            require([run], PROBED)
            stamps = run.ts(ts)[run.alive]
            mine = int(stamps.min())
            if lowest is None or mine < lowest:
                lowest, count = mine, 0
                row = np.flatnonzero(run.alive)[[int(stamps.argmin())]]
                key = run.refs.take(row).column("key")[0].as_py()
            count += int(np.count_nonzero(stamps == np.uint64(lowest)))
        return None if lowest is None else (lowest, count, key)

    def known(self, lookup_keys: LookupKeys, ts: str) -> Mask:
        out = np.zeros(len(lookup_keys), np.bool_)
        for _run, matches, _rows in self.find(lookup_keys, ts):
            out[matches] = True
        return out

    def kill(self, lookup_keys: LookupKeys, ts: str) -> None:
        """Remove all rows that equal one of them."""
        for run, _found, rows in self.find(lookup_keys, ts):
            run.kill(rows)

    def compact(self, is_leaving: Callable[[Run], bool] = lambda run: False) -> None:
        """Drop empty runs and compact sparse ones: for each rule at most RUN_ROWS rows. Runs of SMALL_ROWS or more that
        leave soon are not merged."""
        self.runs = [run for run in self.runs if run.live]
        for choose in (self._too_old, self._half_empty, lambda: self._of_one_size(is_leaving)):
            chosen = choose()
            if not chosen:
                continue
            require(chosen)
            gone = {id(run) for run in chosen}
            at = next(i for i, run in enumerate(self.runs) if id(run) in gone)
            made = merge(chosen, self.names)
            self.runs = [run for run in self.runs if id(run) not in gone]
            self.runs.insert(at, made)

    def _too_old(self) -> list[Run]:
        """The oldest runs that lie in feed batches, until the other batches are small enough."""
        young = [run for run in self.runs if run.young is not None]
        sizes = {id(run.young): run.young.nbytes for run in young if run.young is not None}
        excess = sum(sizes.values()) - YOUNG_BYTES
        old: list[Run] = []
        for run in young:
            if excess <= 0:
                break
            excess -= sizes.pop(id(run.young), 0)
            if run.fills(run.young):
                run.young = None  # copying would gain nothing
            else:
                old.append(run)
        return _fitting(old)

    def _half_empty(self) -> list[Run]:
        return _fitting(run for run in self.runs if run.young is None and 2 * run.live < len(run))

    def _of_one_size(self, is_leaving: Callable[[Run], bool]) -> list[Run]:
        tiers: dict[int, list[Run]] = {}
        for run in self.runs:
            if run.live >= SMALL_ROWS and is_leaving(run):
                continue
            if run.live * FAN_IN <= RUN_ROWS and FAN_IN * sum(s.nbytes for s in run.segments()) <= 2 * SEGMENT_BYTES:
                tiers.setdefault((max(run.live, 512).bit_length() - 1) // 3, []).append(run)
        for _tier, runs in sorted(tiers.items()):
            enough = FAN_IN if runs[0].live < SMALL_ROWS else 2 * FAN_IN
            if len(runs) >= enough and len(chosen := _fitting(runs)) > 1:
                return chosen
        return []


def _is_mapped(array: npt.NDArray[Any]) -> bool:
    """Whether the array lies in a mapped file: only those are views of something that is no array."""
    return isinstance(array.base, memoryview)


def _thin(name: str, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The same values; an all-zero column of those that mostly are takes no memory."""
    if name not in ("generation", "expire_ts", "flags") or not len(values) or values.any():
        return values
    return np.broadcast_to(np.zeros(1, values.dtype), len(values))


def merge(runs: Sequence[Run], names: Sequence[str], *, rows: Sequence[I64] | None = None) -> Run:
    """One run with the living rows of these runs, or the named rows, with its bytes copied into segments of its own."""
    living = [run.living() for run in runs] if rows is None else rows
    refs = stacked([run.refs.take(at) for run, at in zip(runs, living, strict=True)])
    columns = list(runs[0].numbers)
    numbers = {c: np.concatenate([r.numbers[c][at] for r, at in zip(runs, living, strict=True)]) for c in columns}
    origins = _merge_origins(runs, living, numbers)
    return Run(compact(refs, names), numbers, origins)


def compact(refs: RowRefs, names: Sequence[str]) -> RowRefs:
    """The same rows in segments of their own: one, unless their bytes do not fit."""
    refs = used_segments(refs)
    sizes = np.cumsum(refs.sizes(np.ones(len(refs), np.bool_)))
    cuts = np.flatnonzero(np.diff(sizes // SEGMENT_BYTES)) + 1
    pieces = [refs.take(at) for at in np.split(np.arange(len(refs)), cuts)]
    made = [Segment(**{name: piece.column(name) for name in names}) for piece in pieces]  # type: ignore[arg-type]
    row = np.concatenate([np.arange(s.rows, dtype=np.uint32) for s in made])
    return RowRefs(made, np.repeat(np.arange(len(made), dtype=np.uint32), [s.rows for s in made]), row)


def _fitting(runs: Iterable[Run]) -> list[Run]:
    """As many of the runs as one step may copy, and as fit one Arrow column."""
    chosen: list[Run] = []
    rows = size = 0
    for run in runs:
        rows, size = rows + run.live, size + sum(s.nbytes for s in run.segments())
        if chosen and (rows > RUN_ROWS or size > SEGMENT_BYTES):
            break
        chosen.append(run)
    return chosen


def _merge_origins(
    runs: Sequence[Run], living: Sequence[I64], numbers: dict[str, npt.NDArray[Any]]
) -> pl.DataFrame | None:
    """The origins that some row still uses; updates `numbers["origin"]` to index them."""
    if runs[0].origins is None:
        return None
    tables = [run.origins for run in runs if run.origins is not None]
    first = np.cumsum([0, *(t.height for t in tables[:-1])])
    shifted = [run.numbers["origin"][at] + f for run, at, f in zip(runs, living, first, strict=True)]
    used, origin = np.unique(np.concatenate(shifted), return_inverse=True)
    numbers["origin"] = origin.astype(np.uint32)
    return pl.concat(tables)[used]


def _index(hashes: U64, ts: U64) -> Index:
    bits = max(1, int(len(hashes) // 3).bit_length())
    starts, tags, rows = build_index(hashes, bits)
    words = 1 << max(0, int(len(hashes) // 8).bit_length())
    span = np.array([ts.min(), ts.max()], np.uint64)
    return starts, tags, rows, hash_filter(hashes, words), span


def _probe(
    index: Index, alive: Mask, ts: U64, refs: RowRefs, lookup_keys: LookupKeys, wanted: U64 | None = None
) -> tuple[I64, I64]:
    wanted = mixed(lookup_keys.hashes, lookup_keys.ts) if wanted is None else wanted
    capacity = len(lookup_keys) + 16
    for _ in range(2):
        count, left, right = probe(
            index, alive, ts, refs.addresses, wanted, lookup_keys.ts, lookup_keys.refs.addresses, capacity
        )
        if count <= capacity:
            break
        capacity = count
    return left[:count], right[:count]
