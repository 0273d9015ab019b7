"""How far each key of a task is complete: the piecewise-constant map W(key).

A watermark row of a subscription says: every change of [start_key, end_key) with commit_ts in (checkpoint_ts,
resolved_ts], and every undecided prewrite, is in this store's files up to and including the one that carries the row.
So

    a row may lift a slice from w to max(w, resolved_ts)  only if  checkpoint_ts <= max(w, durable_ts);

otherwise it waits until another row has lifted the slice that far. A slice that no row ever lifted counts as `start_ts`
for this test, and as "none" for the result: it is a hole, and a task with a hole has no watermark. Leader moves,
splits, merges, restarts and files in any order need no further rule. Region ids and versions explain, never decide.

`durable_ts` counts because all changes at or below it are in the committed log, so a subscription that begins there
leaves nothing out; and a subscription's opening scan sends every lock that is held, so it needs no prewrite of an
earlier one. It makes a difference after a restart only, when W is what an older snapshot says: the files that had
lifted it to `durable_ts` may be unreadable by now, and a subscription that was opened at the published frontier needs
none of them. While a task runs, `durable_ts` never exceeds W. W itself is not raised to `durable_ts`: a prewrite of a
file that is read again would count as dead before its commit, which lies in a later file, has been read again.

Every store names all its regions in every file, mostly the same ones. Their rows lie on numbered slots
(sorter.core.slots) that are found once per list of regions: `apply` looks at keys only when a store's list differs
from that of its file before.

Relations that hold after every call:

- W(key) never falls, and is at least `start_ts`; after a restart it may lie below `durable_ts`;
- no row that waits may lift anything: all that the rows of any file allow has been done;
- for each (store, incarnation) the newest file counts. A row that waits stays when later files no longer have it: its
  promise holds. Of one promise only the row with the highest resolved_ts waits;
- what is told (slices, holes, snapshot) has no two neighbours that agree in W and in being covered.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc

from sorter.core.slots import Bounds, Ints, Mask, Promises, Slots, Stamps
from sorter.rows.payload import Place, Segment, as_binary
from tistream.errors import invariant
from tistream.keyrange import KeyRange, gaps

EXPLAINED_MAX = 1000  #: answers of one `explain`

#: one slice of the map
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
#: a row that waits for its slices to reach its checkpoint_ts
WAITING = pa.schema(
    [pa.field(name, pa.uint64(), nullable=False) for name in _ROW_FIELDS]
    + [pa.field(name, pa.binary(), nullable=False) for name in ("start_key", "end_key")]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatermarkRow:
    """A watermark row and the file that brought it."""

    store_id: int
    incarnation: int
    seq: int
    region_id: int
    version: int
    checkpoint_ts: int
    resolved_ts: int
    start_key: bytes
    end_key: bytes  #: empty = plus infinity

    @property
    def promise(self) -> tuple[object, ...]:
        """What stays the same when the same subscription speaks again."""
        where = (self.store_id, self.incarnation, self.region_id, self.version)
        return (*where, self.start_key, self.end_key, self.checkpoint_ts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stuck:
    """Why a slice is where it is: one for each region that speaks of it, one for each part of which nobody speaks."""

    range: KeyRange  #: the slice, or the silent part of it
    w: int | None  #: None for a hole
    region_id: int = 0
    version: int = 0
    store_id: int = 0
    incarnation: int = 0
    seq: int = 0  #: the newest file of that store; 0 = none spoke of this range
    start_ts: int = 0  #: of the transaction whose lock on the range's first key is undecided; 0 = it is no lock
    reason: str

    @property
    def file(self) -> str:
        """The newest file of that store, empty when there is none."""
        return f"{self.incarnation}/{self.seq}" if self.seq else ""

    def __str__(self) -> str:
        at = "watermark_gap" if self.w is None else f"W {self.w}"
        who = f"region {self.region_id} store {self.store_id} file {self.file}: " if self.seq else ""
        return f"{self.range} {at}: {who}{self.reason}"


@dataclass(slots=True, kw_only=True)
class _Voice:
    """What one life of a store says."""

    seq: int
    regions: pa.RecordBatch  #: the newest file's watermark rows
    inside: Ints | None  #: those that touch the range; None for all
    promises: Promises  #: of those


class RangeWatermarkMap:
    """W(key) over the range of one task."""

    def __init__(self, range_: KeyRange, start_ts: int, *, durable_ts: int = 0) -> None:
        """`durable_ts`: that of the task now. Later ones need not be told, they never exceed W."""
        self.range = range_
        self.start_ts = start_ts
        self._slots = Slots(range_, start_ts, max(start_ts, durable_ts))
        self._voices: dict[tuple[int, int], _Voice] = {}
        self._orphans = _NO_ROWS  # rows that wait and that their store no longer says
        self._orphaned = _promises(_NO_ROWS, self._slots)

    def apply(self, regions: pa.RecordBatch, store_id: int, incarnation: int, seq: int) -> bool:
        """Take the watermark rows (change.REGIONS) of one file whose data has been applied; whether any slice moved."""
        voice = self._voices.get((store_id, incarnation))
        if voice is None or not _same_shape(voice.regions, regions):
            moved = self._advance(self._reshape((store_id, incarnation), regions, seq).promises)
            self._slots.join_unexplained(self._placed())
            return moved
        promises, said = voice.promises, _resolved_of(regions, voice.inside)
        if len(promises.waiting):
            promises.seq[(said >= promises.resolved) & (said > 0)] = seq
        np.maximum(promises.resolved, said, out=promises.resolved)
        voice.seq, voice.regions = seq, regions
        return self._advance(promises)

    def forget(self, store_id: int, incarnation: int) -> None:
        """An incarnation has ended: no longer use its last file to explain. Its promises stay as they are."""
        at = store_id, incarnation
        if at in self._voices:
            left = self._waiting_of(at)
            del self._voices[at]
            self._adopt(pl.concat([self._waiting_alone(), left]))

    def watermark(self) -> int | None:
        """The task's watermark: the lowest slice; None while there is a hole."""
        return None if self._slots.uncovered else int(self._slots.w.min())

    def highest(self) -> int:
        """The highest slice: no key has a larger W."""
        return int(self._slots.w.max())

    def w_of(self, keys: pa.BinaryArray | pl.Series) -> Stamps:
        """W of each key. The keys must lie in the range."""
        return self.w_at(Place.whole(Segment(as_binary(keys) if isinstance(keys, pl.Series) else keys)))

    def w_at(self, place: Place) -> Stamps:
        """W of the keys of these rows."""
        found: Stamps = self._slots.w[self.bounds.slots_of(place)]
        return found

    @property
    def bounds(self) -> Bounds:
        """Where the slots begin of which `w` tells; another object when they were cut or joined."""
        return self._slots.bounds

    @property
    def w(self) -> Stamps:
        """W of each slot, to be read only."""
        return self._slots.w

    def watermark_gaps(self) -> list[KeyRange]:
        """The ranges that no row ever lifted, in key order."""
        return [where for where, w in self.slices() if w is None] if self._slots.uncovered else []

    def slices(self) -> Iterator[tuple[KeyRange, int | None]]:
        """All slices in key order; None for a hole."""
        bounds, w, covered = self._slots.joined()
        starts = bounds.to_pylist()
        for start, end, ts, known in zip(
            starts, [*starts[1:], self.range.end], w.tolist(), covered.tolist(), strict=True
        ):
            yield KeyRange(start, end), ts if known else None

    @property
    def watermark_gap_count(self) -> int:
        """How many slots no row ever lifted: 0 without a hole."""
        return self._slots.uncovered

    def slice_count(self) -> int:
        """How many slices there are."""
        return len(self._slots.joined()[0])

    def waiting(self) -> list[WatermarkRow]:
        """The rows that wait, in a fixed order."""
        return [WatermarkRow(**row) for row in self._waiting().to_dicts()]

    def explain(self, range_: KeyRange | None = None) -> list[Stuck]:
        """For each hole in the range, or (without holes) each lowest slice: what it waits for. In key order, at most
        EXPLAINED_MAX answers. Without `range_` the task's own."""
        wanted = self.range if range_ is None else self.range.intersect(range_)
        if wanted is None:
            return []
        parts = [(part, w) for where, w in self.slices() if (part := where.intersect(wanted)) is not None]
        if any(w is None for _, w in parts):
            parts = [(part, w) for part, w in parts if w is None]
        else:
            lowest = min(w for _, w in parts if w is not None)
            parts = [(part, w) for part, w in parts if w == lowest]
        return list(islice((stuck for part, w in parts for stuck in self._explain(part, w)), EXPLAINED_MAX))

    def snapshot(self) -> tuple[pa.Table, pa.Table]:
        """(slices, waiting rows), schemas SLICES and WAITING."""
        bounds, w, covered = self._slots.joined()
        starts = bounds.to_pylist()
        slices = pa.table([starts, [*starts[1:], self.range.end], w, covered], schema=SLICES)
        waiting = self._waiting()
        return slices, waiting.to_arrow().cast(WAITING) if len(waiting) else WAITING.empty_table()

    def restore(self, slices: pa.Table, waiting: pa.Table) -> None:
        """Take over a snapshot, cut to this map's range. Parts of the range that it does not speak of stay holes."""
        parts = slices.filter(self._touches(slices["start_key"], slices["end_key"])).combine_chunks()
        starts, ends = (_whole(parts[name]) for name in ("start_key", "end_key"))
        covered = parts["covered"].to_numpy(zero_copy_only=False)
        self._slots.restore(starts, ends, parts["w"].to_numpy(), covered)
        rows = waiting.filter(self._touches(waiting["start_key"], waiting["end_key"])).combine_chunks()
        lo, hi = self._slots.locate(_whole(rows["start_key"]), _whole(rows["end_key"]), self._placed())
        self._adopt(pl.concat([self._waiting_alone(), _frame(rows, lo, hi)]))
        self._advance(self._orphaned)

    def check(self) -> None:
        """Raise when a relation of the docstrings does not hold."""
        self._slots.check(self.start_ts, self._placed())
        invariant(len(self._orphans) == len(self._orphaned.lo), "rows that wait were lost")
        for voice in self._voices.values():
            rows = voice.regions.num_rows if voice.inside is None else len(voice.inside)
            invariant(rows == len(voice.promises.lo), "a store's rows and its promises differ in number")
        for row in self._waiting().to_dicts():
            promised, needed = KeyRange(row["start_key"], row["end_key"]), min(row["resolved_ts"], row["checkpoint_ts"])
            found = [w or self.start_ts for where, w in self.slices() if where.intersect(promised) is not None]
            invariant(any(w < needed for w in found), "a waiting row waits for nothing", row=row)
            invariant(row["checkpoint_ts"] > int(self._slots.floor), "a row waits for what is written", row=row)

    def _advance(self, spoke: Promises) -> bool:
        """Let what has just been said lift what it may, then whatever waits, until nothing moves; whether any did."""
        moved = again = self._slots.lift(spoke, spoke.admitted())
        while again:
            again = False
            for promises in self._placed():
                if len(promises.waiting) and len(due := promises.admit(self._slots)):
                    again |= self._slots.lift(promises, due)
        if moved and len(self._orphans):
            self._adopt(self._waiting_alone())
        return moved

    def _reshape(self, at: tuple[int, int], regions: pa.RecordBatch, seq: int) -> _Voice:
        """A store speaks of other regions than before, or for the first time: find the slots of its rows."""
        old = self._voices.get(at)
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
            resolved=_resolved_of(regions, inside),
            seq=np.full(rows.num_rows, seq, np.uint64),
            lo=lo,
            hi=hi,
            slots=self._slots,
        )
        left = _hand_over(_joined([self._waiting_alone(at), self._waiting_of(at)]), rows, promises)
        if len(left) or len(self._orphans):
            self._adopt(_joined([self._waiting_alone(but=at), left]))
        voice = self._voices[at] = _Voice(seq=seq, regions=regions, inside=inside, promises=promises)
        return voice

    def _adopt(self, rows: pl.DataFrame) -> None:
        """These rows, with their slots, wait and no store says them any more."""
        self._orphans = _highest(rows)
        self._orphaned = _promises(self._orphans, self._slots)

    def _placed(self) -> list[Promises]:
        """All that lies on the slots."""
        return [voice.promises for voice in self._voices.values()] + [self._orphaned]

    def _waiting(self) -> pl.DataFrame:
        """All rows that wait, one for each promise, in a fixed order."""
        found = [self._waiting_alone(), *(self._waiting_of(at) for at in self._voices)]
        rows = _joined(found)
        return _highest(rows).select(WAITING.names).sort(_PROMISE) if len(rows) else rows

    def _waiting_alone(self, at: tuple[int, int] | None = None, *, but: tuple[int, int] | None = None) -> pl.DataFrame:
        """The rows that still wait and that no store says any more: of one life, of all but one, or all."""
        promises = self._orphaned
        if not len(rows := promises.rows_waiting(self._slots)):
            return _NO_ROWS
        frame = self._orphans[rows].with_columns(lo=pl.Series(promises.lo[rows]), hi=pl.Series(promises.hi[rows]))
        if at is not None:
            return frame.filter(_is_of(at))
        return frame.filter(~_is_of(but)) if but is not None else frame

    def _waiting_of(self, at: tuple[int, int]) -> pl.DataFrame:
        """The rows that wait of those that a life of a store says now."""
        voice = self._voices.get(at)
        if voice is None or not len(waiting := voice.promises.rows_waiting(self._slots)):
            return _NO_ROWS
        promises = voice.promises
        regions = _inside(voice.regions, voice.inside).take(pa.array(waiting))
        told = {
            "store_id": np.full(len(waiting), at[0], np.uint64),
            "incarnation": np.full(len(waiting), at[1], np.uint64),
            "seq": promises.seq[waiting],
            "resolved_ts": promises.resolved[waiting],
        }
        columns = [told.get(name) if name in told else regions.column(name) for name in WAITING.names]
        return _frame(pa.table(columns, schema=WAITING), promises.lo[waiting], promises.hi[waiting])

    def _touches(self, starts: pa.Array | pa.ChunkedArray, ends: pa.Array | pa.ChunkedArray) -> pa.BooleanArray:
        """Which ranges have a key in common with the range. An empty one has none."""
        out = pc.or_(pc.equal(ends, b""), pc.and_(pc.greater(ends, self.range.start), pc.less(starts, ends)))
        return pc.and_(out, pc.less(starts, self.range.end)) if self.range.end else out

    def _explain(self, where: KeyRange, w: int | None) -> Iterator[Stuck]:
        """What the newest files say of a part of a slice."""
        lo, hi = self._slots.numbers(where)
        ts = max(int(self._slots.floor), w or 0)
        spoken: list[KeyRange] = []
        told = set()
        for (store_id, incarnation), voice in sorted(self._voices.items()):
            life = {"store_id": store_id, "incarnation": incarnation, "seq": voice.seq}
            for row in _inside(voice.regions, voice.inside).take(pa.array(voice.promises.on(lo, hi))).to_pylist():
                spoken.append(KeyRange(row["start_key"], row["end_key"]))
                told.add((store_id, incarnation, row["region_id"], row["version"]))
                who = {"region_id": row["region_id"], "version": row["version"]}
                yield Stuck(range=where, w=w, reason=_reason(row, ts), **who, **life)
        alone = self._orphans[self._orphaned.on(lo, hi)]
        for row in alone.to_dicts():
            who = {name: row[name] for name in ("store_id", "incarnation", "region_id", "version")}
            if tuple(who.values()) not in told:
                spoken.append(KeyRange(row["start_key"], row["end_key"]))
                reason = f"waits for W to reach its checkpoint_ts {row['checkpoint_ts']}"
                yield Stuck(range=where, w=w, seq=row["seq"], reason=reason, **who)
        for part in gaps(where, spoken):
            yield Stuck(range=part, w=w, reason="no store speaks of this range")


def _reason(row: dict[str, int], w: int) -> str:
    if not row["tenure_ready_ts"]:
        return "its opening scan has not finished"
    if not row["resolved_ts"]:
        return "it has sent no resolved ts yet"
    if row["checkpoint_ts"] > w:
        return f"waits for W to reach its checkpoint_ts {row['checkpoint_ts']}"
    return f"its resolved ts stands at {row['resolved_ts']}"


def _same_shape(a: pa.RecordBatch, b: pa.RecordBatch) -> bool:
    """Whether both are the same regions with the same checkpoint_ts, in the same order."""
    return a.num_rows == b.num_rows and all(a.column(name).equals(b.column(name)) for name in _SHAPE)


def _kept(old: pa.RecordBatch, new: pa.RecordBatch) -> tuple[Ints, Mask]:
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


def _resolved_of(regions: pa.RecordBatch, inside: Ints | None) -> Stamps:
    """How far each row's subscription is complete; 0 when it says nothing yet. A new array."""
    ready, resolved = regions.column("tenure_ready_ts").to_numpy(), regions.column("resolved_ts").to_numpy()
    out: Stamps = resolved.copy() if ready.all() else np.where(ready, resolved, np.uint64(0))
    return out if inside is None else out[inside]


def _inside(regions: pa.RecordBatch, inside: Ints | None) -> pa.RecordBatch:
    return regions if inside is None else regions.take(pa.array(inside))


def _hand_over(left: pl.DataFrame, rows: pa.RecordBatch, promises: Promises) -> pl.DataFrame:
    """Rows of the store's life that waited: a row that says the same promise again goes on from them. The others."""
    if not len(left):
        return left
    said = pl.from_arrow(rows.select(_SHAPE))
    assert isinstance(said, pl.DataFrame)
    both = said.with_row_index("row").join(left.select(*_SHAPE, "resolved_ts", "seq"), on=_SHAPE)
    row, resolved = both["row"].to_numpy(), both["resolved_ts"].to_numpy()
    higher = resolved > promises.resolved[row]
    promises.resolved[row[higher]] = resolved[higher]
    promises.seq[row[higher]] = both["seq"].to_numpy()[higher]
    return left.join(said, on=_SHAPE, how="anti")


def _frame(rows: pa.Table, lo: Ints, hi: Ints) -> pl.DataFrame:
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
    """One behind the other; most are empty."""
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
    """The column as one array."""
    return column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)


_NO_ROWS = _frame(WAITING.empty_table(), np.empty(0, np.int64), np.empty(0, np.int64))
