"""Watermark map of a task: the piecewise-constant function W(key).

A watermark row of a subscription promises: every change of [start_key, end_key) with commit_ts in (checkpoint_ts,
resolved_ts], and every undecided prewrite, is in this store's files up to and including the one that carries the row.
So

    a row may raise a slice from w to max(w, resolved_ts)  only if  checkpoint_ts <= max(w, durable_ts);

otherwise it waits until another row has raised the slice that far. A slice that no row ever raised counts as `start_ts`
in this test and as "none" in the result: it is a watermark gap, and a task with a gap has no watermark. Leader moves,
splits, merges, restarts and files in any order need no further rule. Region ids and versions explain, never decide.

`durable_ts` counts because all changes at or below it are in the committed log, so a subscription that begins there
omits nothing; and its opening scan sends every lock that is held, so it needs no earlier prewrite. This matters only
after a restart, when W comes from an older snapshot: the files that had raised it to `durable_ts` may be unreadable by
now, and a subscription opened at the published frontier needs none of them. While a task runs, `durable_ts` never
exceeds W. W itself is not raised to `durable_ts`: a replayed prewrite would count as dead before its commit, which lies
in a later file, has been replayed.

Every store lists all its regions in every file, mostly the same ones. Their rows lie on numbered slots
(`sorter.core.slots`) that are located once per region list: `apply` compares keys only when the list has changed.

Relations that hold after every call:

- W(key) never falls, unless a quarantined store is rejected (`withdraw`), and is at least `start_ts`; after a restart
  it may lie below `durable_ts`;
- no waiting row may raise anything: every raise that the rows of any file allow has been made;
- for each (store, incarnation) the newest file counts. A waiting row stays when later files omit it, because its
  promise still holds. Of equal promises only the row with the highest resolved_ts waits;
- results (slices, gaps, snapshot) have no two neighbours that agree in W and in being covered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from sorter.core.slots import Bounds, Promises, Slots, Stamps
from sorter.rows.payload import RowRefs, Segment, as_binary
from tistream.errors import invariant
from tistream.keyrange import KeyRange, gaps
from tistream.model.arrays import I64, Mask

EXPLAINED_MAX = 1000  #: entries of one `explain`

#: a slice of the map
SLICES = pa.schema(
    [
        pa.field("start_key", pa.binary(), nullable=False),
        pa.field("end_key", pa.binary(), nullable=False),
        pa.field("w", pa.uint64(), nullable=False),
        pa.field("covered", pa.bool_(), nullable=False),
    ]
)

_ROW_FIELDS = ("store_id", "incarnation", "seq", "region_id", "version", "checkpoint_ts", "resolved_ts")
_PROMISE = ("store_id", "incarnation", "region_id", "version", "start_key", "end_key", "checkpoint_ts")
_SHAPE = ("region_id", "version", "start_key", "end_key", "checkpoint_ts")  # of a region list
#: a waiting row: its slices have not reached its checkpoint_ts
WAITING = pa.schema(
    [pa.field(name, pa.uint64(), nullable=False) for name in _ROW_FIELDS]
    + [pa.field(name, pa.binary(), nullable=False) for name in ("start_key", "end_key")]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkRow:
    store_id: int
    incarnation: int
    seq: int
    region_id: int
    version: int
    checkpoint_ts: int
    resolved_ts: int
    start_key: bytes
    end_key: bytes  #: empty = plus infinity


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """Why a slice is stalled: one entry per region that covers it and one per part that no region covers."""

    range: KeyRange  #: the slice, or the part of it that no region covers
    w: int | None  #: None for a gap
    region_id: int = 0
    version: int = 0
    store_id: int = 0
    incarnation: int = 0
    seq: int = 0  #: of the store's newest file; 0 = no store covers this range
    start_ts: int = 0  #: of the transaction that locks the range's first key; 0 = not a lock
    reason: str

    @property
    def file(self) -> str:
        """The newest file of that store, empty when there is none."""
        return f"{self.incarnation}/{self.seq}" if self.seq else ""

    def __str__(self) -> str:
        at = "watermark_gap" if self.w is None else f"W {self.w}"
        source = f"region {self.region_id} store {self.store_id} file {self.file}: " if self.seq else ""
        return f"{self.range} {at}: {source}{self.reason}"


@dataclass(slots=True, kw_only=True)
class _NewestFile:
    """The newest file of one incarnation of a store."""

    seq: int
    regions: pa.RecordBatch  #: the newest file's watermark rows
    inside: I64 | None  #: rows that touch the range; None for all
    promises: Promises  #: of those rows


class RangeWatermarkMap:
    def __init__(self, range_: KeyRange, start_ts: int, *, durable_ts: int = 0) -> None:
        """`durable_ts`: the task's current one. Later values are not needed, they never exceed W."""
        self.range = range_
        self.start_ts = start_ts
        self._slots = Slots(range_, start_ts, max(start_ts, durable_ts))
        self._newest: dict[tuple[int, int], _NewestFile] = {}
        self._orphans = _NO_ROWS  # waiting rows that the newest file of their store omits
        self._orphaned = _promises(_NO_ROWS, self._slots)

    def apply(self, regions: pa.RecordBatch, store_id: int, incarnation: int, seq: int) -> bool:
        """Apply the watermark rows (change.REGIONS) of a file whose data has been applied; whether any slice moved."""
        newest = self._newest.get((store_id, incarnation))
        if newest is None or not _same_shape(newest.regions, regions):
            moved = self._advance(self._reshape((store_id, incarnation), regions, seq).promises)
            self._slots.join_unexplained(self._placed())
            return moved
        promises, resolved = newest.promises, resolved_of(regions, newest.inside)
        if len(promises.waiting):
            promises.seq[(resolved >= promises.resolved) & (resolved > 0)] = seq
        np.maximum(promises.resolved, resolved, out=promises.resolved)
        newest.seq, newest.regions = seq, regions
        return self._advance(promises)

    def forget(self, store_id: int, incarnation: int) -> None:
        """An incarnation has ended: stop using its last file to explain. Its promises still hold."""
        at = store_id, incarnation
        if at in self._newest:
            left = self._waiting_of(at)
            del self._newest[at]
            self._adopt(pl.concat([self._orphans_waiting(), left]))

    def withdraw(self, store_id: int, incarnation: int, floor_ts: int) -> None:
        """An incarnation's promises do not count any more: lower W to `floor_ts`, at most, and apply what the newest
        files of the others promise again."""
        self._newest.pop((store_id, incarnation), None)
        self._adopt(self._orphans_waiting(but=(store_id, incarnation)))
        self._slots.lower(max(floor_ts, self.start_ts))
        for promises in self._placed():
            promises.place(self._slots)
        for promises in self._placed():
            self._advance(promises)

    def watermark(self) -> int | None:
        """The task's watermark: the lowest slice; None while there is a gap."""
        return None if self._slots.uncovered else int(self._slots.w.min())

    def highest(self) -> int:
        return int(self._slots.w.max())

    def w_of(self, keys: pa.BinaryArray | pl.Series) -> Stamps:
        """W of each key; the keys must lie in the range."""
        return self.w_at(RowRefs.whole(Segment(as_binary(keys) if isinstance(keys, pl.Series) else keys)))

    def w_at(self, refs: RowRefs) -> Stamps:
        stamps: Stamps = self._slots.w[self.bounds.slots_of(refs)]
        return stamps

    @property
    def bounds(self) -> Bounds:
        """Where the slots of `w` begin; another object after slots were cut or joined."""
        return self._slots.bounds

    @property
    def w(self) -> Stamps:
        """W of each slot; read only."""
        return self._slots.w

    def watermark_gaps(self) -> list[KeyRange]:
        """The ranges that no row ever raised, in key order."""
        return [slice_ for slice_, w in self.slices() if w is None] if self._slots.uncovered else []

    def slices(self) -> Iterator[tuple[KeyRange, int | None]]:
        """All slices in key order, with None for a gap."""
        bounds, w, covered = self._slots.joined()
        starts = bounds.to_pylist()
        for start, end, ts, known in zip(
            starts, [*starts[1:], self.range.end], w.tolist(), covered.tolist(), strict=True
        ):
            yield KeyRange(start, end), ts if known else None

    @property
    def watermark_gap_count(self) -> int:
        """Number of slots that no row ever raised."""
        return self._slots.uncovered

    def slice_count(self) -> int:
        return len(self._slots.joined()[0])

    def waiting(self) -> list[WatermarkRow]:
        """The waiting rows, in a fixed order."""
        return [WatermarkRow(**row) for row in self._waiting().to_dicts()]

    def explain(self, range_: KeyRange | None = None) -> list[Stuck]:
        """What each gap in the range waits for or, without gaps, each lowest slice. In key order, at most EXPLAINED_MAX
        entries. `range_` defaults to the task's range."""
        wanted = self.range if range_ is None else self.range.intersect(range_)
        if wanted is None:
            return []
        parts = [(part, w) for slice_, w in self.slices() if (part := slice_.intersect(wanted)) is not None]
        if any(w is None for _, w in parts):
            parts = [(part, w) for part, w in parts if w is None]
        else:
            lowest = min(w for _, w in parts if w is not None)
            parts = [(part, w) for part, w in parts if w == lowest]
        return list(islice((stuck for part, w in parts for stuck in self._reasons(part, w)), EXPLAINED_MAX))

    def snapshot(self) -> tuple[pa.Table, pa.Table]:
        """(slices, waiting rows), with schemas SLICES and WAITING."""
        bounds, w, covered = self._slots.joined()
        starts = bounds.to_pylist()
        slices = pa.table([starts, [*starts[1:], self.range.end], w, covered], schema=SLICES)
        waiting = self._waiting()
        return slices, waiting.to_arrow().cast(WAITING) if len(waiting) else WAITING.empty_table()

    def restore(self, slices: pa.Table, waiting: pa.Table) -> None:
        """Load a snapshot, cut to this map's range. Parts that it does not cover stay gaps."""
        parts = slices.filter(self._touches(slices["start_key"], slices["end_key"])).combine_chunks()
        starts, ends = (_whole(parts[name]) for name in ("start_key", "end_key"))
        covered = parts["covered"].to_numpy(zero_copy_only=False)
        self._slots.restore(starts, ends, parts["w"].to_numpy(), covered)
        rows = waiting.filter(self._touches(waiting["start_key"], waiting["end_key"])).combine_chunks()
        lo, hi = self._slots.locate(_whole(rows["start_key"]), _whole(rows["end_key"]), self._placed())
        self._adopt(pl.concat([self._orphans_waiting(), _frame(rows, lo, hi)]))
        self._advance(self._orphaned)

    def check(self) -> None:
        """Raise when a relation of the docstrings does not hold."""
        self._slots.check(self.start_ts, self._placed())
        invariant(len(self._orphans) == len(self._orphaned.lo), "waiting rows were lost")
        for newest in self._newest.values():
            rows = newest.regions.num_rows if newest.inside is None else len(newest.inside)
            invariant(rows == len(newest.promises.lo), "a store's rows and its promises differ in number")
        for row in self._waiting().to_dicts():
            promised, needed = KeyRange(row["start_key"], row["end_key"]), min(row["resolved_ts"], row["checkpoint_ts"])
            behind = [w or self.start_ts for slice_, w in self.slices() if slice_.intersect(promised) is not None]
            invariant(any(w < needed for w in behind), "a waiting row waits for nothing", row=row)
            invariant(row["checkpoint_ts"] > int(self._slots.floor), "a row waits for what is written", row=row)

    def _advance(self, new: Promises) -> bool:
        """Apply new promises, then waiting ones until nothing moves; whether any slice moved."""
        moved = again = self._slots.lift(new, new.admitted())
        while again:
            again = False
            for promises in self._placed():
                if len(promises.waiting) and len(pairs := promises.admit(self._slots)):
                    again |= self._slots.lift(promises, pairs)
        if moved and len(self._orphans):
            self._adopt(self._orphans_waiting())
        return moved

    def _reshape(self, at: tuple[int, int], regions: pa.RecordBatch, seq: int) -> _NewestFile:
        """Locate the slots of a store's new region list."""
        old = self._newest.get(at)
        touching = self._touches(regions.column("start_key"), regions.column("end_key")).to_numpy(zero_copy_only=False)
        inside = None if touching.all() else np.flatnonzero(touching)
        rows = _inside(regions, inside)
        lo, hi = np.empty(rows.num_rows, np.int64), np.empty(rows.num_rows, np.int64)
        kept, known = _kept(_inside(old.regions, old.inside) if old is not None else regions.slice(0, 0), rows)
        new = np.flatnonzero(~known)
        changed = rows.take(pa.array(new)) if len(new) < rows.num_rows else rows
        lo[new], hi[new] = self._slots.locate(changed.column("start_key"), changed.column("end_key"), self._placed())
        if old is not None:  # numbered anew by now
            lo[known], hi[known] = old.promises.lo[kept[known]], old.promises.hi[kept[known]]
        promises = Promises(
            checkpoint=rows.column("checkpoint_ts").to_numpy(),
            resolved=resolved_of(regions, inside),
            seq=np.full(rows.num_rows, seq, np.uint64),
            lo=lo,
            hi=hi,
            slots=self._slots,
        )
        left = _hand_over(_joined([self._orphans_waiting(at), self._waiting_of(at)]), rows, promises)
        if len(left) or len(self._orphans):
            self._adopt(_joined([self._orphans_waiting(but=at), left]))
        newest = self._newest[at] = _NewestFile(seq=seq, regions=regions, inside=inside, promises=promises)
        return newest

    def _adopt(self, rows: pl.DataFrame) -> None:
        """Keep these rows, with their slots, as waiting rows that no newest file holds."""
        self._orphans = _highest(rows)
        self._orphaned = _promises(self._orphans, self._slots)

    def _placed(self) -> list[Promises]:
        return [newest.promises for newest in self._newest.values()] + [self._orphaned]

    def _waiting(self) -> pl.DataFrame:
        """All waiting rows, one per promise, in a fixed order."""
        waiting = [self._orphans_waiting(), *(self._waiting_of(at) for at in self._newest)]
        rows = _joined(waiting)
        return _highest(rows).select(WAITING.names).sort(_PROMISE) if len(rows) else rows

    def _orphans_waiting(
        self, at: tuple[int, int] | None = None, *, but: tuple[int, int] | None = None
    ) -> pl.DataFrame:
        """The waiting rows that no newest file holds: of one incarnation, of all but one, or all."""
        promises = self._orphaned
        if not len(rows := promises.rows_waiting(self._slots)):
            return _NO_ROWS
        frame = self._orphans[rows].with_columns(lo=pl.Series(promises.lo[rows]), hi=pl.Series(promises.hi[rows]))
        if at is not None:
            return frame.filter(_is_of(at))
        return frame.filter(~_is_of(but)) if but is not None else frame

    def _waiting_of(self, at: tuple[int, int]) -> pl.DataFrame:
        newest = self._newest.get(at)
        if newest is None or not len(waiting := newest.promises.rows_waiting(self._slots)):
            return _NO_ROWS
        promises = newest.promises
        regions = _inside(newest.regions, newest.inside).take(pa.array(waiting))
        known = {
            "store_id": np.full(len(waiting), at[0], np.uint64),
            "incarnation": np.full(len(waiting), at[1], np.uint64),
            "seq": promises.seq[waiting],
            "resolved_ts": promises.resolved[waiting],
        }
        columns = [known.get(name) if name in known else regions.column(name) for name in WAITING.names]
        return _frame(pa.table(columns, schema=WAITING), promises.lo[waiting], promises.hi[waiting])

    def _touches(self, starts: pa.Array | pa.ChunkedArray, ends: pa.Array | pa.ChunkedArray) -> pa.BooleanArray:
        """Which ranges share a key with this range. An empty one shares none."""
        out = pc.or_(pc.equal(ends, b""), pc.and_(pc.greater(ends, self.range.start), pc.less(starts, ends)))
        return pc.and_(out, pc.less(starts, self.range.end)) if self.range.end else out

    def _reasons(self, part: KeyRange, w: int | None) -> Iterator[Stuck]:
        """Reasons from the newest files for one part of a slice."""
        lo, hi = self._slots.numbers(part)
        ts = max(int(self._slots.floor), w or 0)
        covered: list[KeyRange] = []
        seen = set()
        for (store_id, incarnation), newest in sorted(self._newest.items()):
            file = {"store_id": store_id, "incarnation": incarnation, "seq": newest.seq}
            for row in _inside(newest.regions, newest.inside).take(pa.array(newest.promises.on(lo, hi))).to_pylist():
                covered.append(KeyRange(row["start_key"], row["end_key"]))
                seen.add((store_id, incarnation, row["region_id"], row["version"]))
                region = {"region_id": row["region_id"], "version": row["version"]}
                yield Stuck(range=part, w=w, reason=_reason(row, ts), **region, **file)
        alone = self._orphans[self._orphaned.on(lo, hi)]
        for row in alone.to_dicts():
            region = {name: row[name] for name in ("store_id", "incarnation", "region_id", "version")}
            if tuple(region.values()) not in seen:
                covered.append(KeyRange(row["start_key"], row["end_key"]))
                reason = f"waits for W to reach its checkpoint_ts {row['checkpoint_ts']}"
                yield Stuck(range=part, w=w, seq=row["seq"], reason=reason, **region)
        for gap in gaps(part, covered):
            yield Stuck(range=gap, w=w, reason="no store covers this range")


def _reason(row: dict[str, int], w: int) -> str:
    if not row["subscription_ready_ts"]:
        return "its opening scan has not finished"
    if not row["resolved_ts"]:
        return "it has sent no resolved ts yet"
    if row["checkpoint_ts"] > w:
        return f"waits for W to reach its checkpoint_ts {row['checkpoint_ts']}"
    return f"its resolved ts is stalled at {row['resolved_ts']}"


def _same_shape(a: pa.RecordBatch, b: pa.RecordBatch) -> bool:
    """Whether both list the same regions with the same checkpoint_ts, in the same order."""
    return a.num_rows == b.num_rows and all(a.column(name).equals(b.column(name)) for name in _SHAPE)


def _kept(old: pa.RecordBatch, new: pa.RecordBatch) -> tuple[I64, Mask]:
    """For each new row an old one, and whether that has the same range."""
    old_ids, ids = (rows.column("region_id").to_numpy() for rows in (old, new))
    if not len(old_ids) or not len(ids):
        return np.zeros(len(ids), np.int64), np.zeros(len(ids), np.bool_)
    order = np.argsort(old_ids, kind="stable")
    at = np.searchsorted(old_ids[order], ids)
    like = order[np.minimum(at, len(order) - 1)]
    taken = old.select(["start_key", "end_key"]).take(pa.array(like))
    same = pc.and_(*(pc.equal(taken.column(name), new.column(name)) for name in ("start_key", "end_key")))
    return like, same.to_numpy(zero_copy_only=False)


def resolved_of(regions: pa.RecordBatch, inside: I64 | None) -> Stamps:
    """Each row's resolved_ts; 0 while its subscription is not ready. A new array."""
    ready, resolved = regions.column("subscription_ready_ts").to_numpy(), regions.column("resolved_ts").to_numpy()
    out: Stamps = resolved.copy() if ready.all() else np.where(ready, resolved, np.uint64(0))
    return out if inside is None else out[inside]


def _inside(regions: pa.RecordBatch, inside: I64 | None) -> pa.RecordBatch:
    return regions if inside is None else regions.take(pa.array(inside))


def _hand_over(waiting: pl.DataFrame, rows: pa.RecordBatch, promises: Promises) -> pl.DataFrame:
    """Merge waiting rows into rows with the same promise; returns the waiting rows without one."""
    if not len(waiting):
        return waiting
    new = pl.from_arrow(rows.select(_SHAPE))
    assert isinstance(new, pl.DataFrame)
    both = new.with_row_index("row").join(waiting.select(*_SHAPE, "resolved_ts", "seq"), on=_SHAPE)
    row, resolved = both["row"].to_numpy(), both["resolved_ts"].to_numpy()
    higher = resolved > promises.resolved[row]
    promises.resolved[row[higher]] = resolved[higher]
    promises.seq[row[higher]] = both["seq"].to_numpy()[higher]
    return waiting.join(new, on=_SHAPE, how="anti")


def _frame(rows: pa.Table, lo: I64, hi: I64) -> pl.DataFrame:
    """WAITING rows and their slots."""
    frame = pl.from_arrow(rows)
    assert isinstance(frame, pl.DataFrame)
    return frame.with_columns(lo=pl.Series(lo), hi=pl.Series(hi))


def _promises(rows: pl.DataFrame, slots: Slots) -> Promises:
    columns = {name: rows[name].to_numpy().copy() for name in ("resolved_ts", "seq", "checkpoint_ts", "lo", "hi")}
    return Promises(
        checkpoint=columns["checkpoint_ts"],
        resolved=columns["resolved_ts"],
        seq=columns["seq"],
        lo=columns["lo"],
        hi=columns["hi"],
        slots=slots,
    )


def _joined(frames: list[pl.DataFrame]) -> pl.DataFrame:
    """Concatenated; most are empty."""
    some = [frame for frame in frames if len(frame)]
    return pl.concat(some) if len(some) > 1 else some[0] if some else _NO_ROWS


def _highest(rows: pl.DataFrame) -> pl.DataFrame:
    """Of each promise the row with the highest resolved_ts."""
    if len(rows) < 2:
        return rows
    best = rows.sort("resolved_ts", "seq", descending=True)
    return best.unique(_PROMISE, keep="first", maintain_order=True)


def _is_of(at: tuple[int, int]) -> pl.Expr:
    return (pl.col("store_id") == at[0]) & (pl.col("incarnation") == at[1])


def _whole(column: pa.ChunkedArray) -> pa.BinaryArray:
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


_NO_ROWS = _frame(WAITING.empty_table(), np.empty(0, np.int64), np.empty(0, np.int64))
