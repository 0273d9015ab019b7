"""The buffers of a task as plain polars frames, where each batch costs a pass over all that is held.

This is how the sorter's buffers were first written: the same rules as `sorter.core.prewrite_buffer` and
`sorter.core.sort_buffer`, as joins over whole frames. They stay as the reference that the product's runs are compared
with. `PlainTaskCore` is a TaskCore with these buffers; snapshots go from one to the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import polars as pl
import pyarrow as pa

from sorter.core import sort_buffer
from sorter.core.admission import Limits
from sorter.core.conflict_rule import Candidate, choose
from sorter.core.conflicts import COMMITS, OPEN, READY, SUBSCRIPTION_ID, TXN, VERSION
from sorter.core.contradictions import contradicted
from sorter.core.prewrite_buffer import Undecided
from sorter.core.task_core import TaskCore
from sorter.core.watermark import RangeWatermarkMap
from sorter.rows.batch_rows import SOURCE, SUBSCRIPTION, empty, from_arrow, to_arrow
from sorter.rows.run import Run
from sorter.rows.saved import NO_LATE_READY, RunState
from tests.kit.plain_promised import PlainPromised, same_commit, same_row
from tests.kit.sorter_states import frame_from, runs_from
from tistream.codec.table_key import table_ids
from tistream.errors import CorruptObject, UpstreamContractViolated, invariant
from tistream.feed.protocol import FeedBatch
from tistream.keyrange import KeyRange
from tistream.model.change import COMMITTED, Op, RowKind
from tistream.model.contradiction import SAMPLE_ROWS_MAX, ContradictingRow, Contradiction

CHUNKS_MAX = 32  #: a buffer in more pieces is copied into one
_ORDER = ["table_id", "commit_ts", "start_ts", "key"]
_CONTENT = ["op", "value", "old_value", "expire_ts", "flags"]
_IS_FAKE = (pl.col("op") == Op.PUT) & (pl.col("value").bin.size() == 0)
_SIZE = pl.sum_horizontal(
    pl.col(name).bin.size().fill_null(0).cast(pl.UInt64) for name in ("key", "value", "old_value")
)


class PlainTaskCore(TaskCore):
    """The same task with plain buffers."""

    def __init__(self, task_id: int, range_: KeyRange, start_ts: int, durable_ts: int) -> None:
        super().__init__(task_id, range_, start_ts, durable_ts)
        self._prewrites = PlainPrewriteBuffer()  # type: ignore[assignment]
        self._ready = PlainSortBuffer()  # type: ignore[assignment]
        self._promised = PlainPromised()  # type: ignore[assignment]

    def bytes_held(self) -> int:
        return self._prewrites.nbytes() + self._ready.nbytes()  # type: ignore[attr-defined,no-any-return]

    def bytes_on_disk(self) -> int:
        return 0

    def _take_rows(self, batch: FeedBatch) -> None:
        rows = arrivals(batch, self.range, self._next_row_no)
        w = self._watermarks.w_of(rows["key"])
        self._prewrites.take_in(rows, w, self._limits(), self._ready)  # type: ignore[arg-type, call-arg]
        self._next_row_no += batch.rows.num_rows

    def _refuse_contradictions(self, batch: FeedBatch, logged: pa.Table | None) -> None:
        rows = arrivals(batch, self.range, 0).to_dicts()
        held = [*self._ready.rows.to_dicts(), *(logged.to_pylist() if logged is not None else ())]  # type: ignore[attr-defined]
        waiting = self._prewrites.commits.to_dicts()  # type: ignore[attr-defined]
        late = [
            row
            for row in rows
            if row["kind"] in (RowKind.COMMIT, RowKind.COMMITTED)
            and row["commit_ts"] <= self._promised.of(row)  # type: ignore[attr-defined]
            and not any(same_row(row, other) for other in held)
            and not any(same_commit(row, other) for other in waiting)
        ]
        if late:
            late.sort(key=lambda row: row["commit_ts"])
            sample = [
                ContradictingRow(
                    **{name: row[name] for name in ("key", "start_ts", "commit_ts", "region_id")},
                    promised_ts=self._promised.of(row),  # type: ignore[attr-defined]
                )
                for row in late[:SAMPLE_ROWS_MAX]
            ]
            found = Contradiction(
                store_id=batch.store_id,
                incarnation=batch.incarnation,
                seq=batch.seq,
                good_ts=late[0]["commit_ts"] - 1,
                rows=len(late),
                sample=sample,
            )
            raise contradicted(self.task_id, found)


@dataclass(frozen=True, slots=True)
class PlainOutput:
    """Rows to be written, as they are."""

    rows: pa.Table

    def table(self) -> pa.Table:
        return self.rows


class PlainSortBuffer:
    """Ready rows of one task."""

    def __init__(self) -> None:
        self.rows = empty(READY)
        self.flushed_ts = 0

    @property
    def count(self) -> int:
        return int(self.rows.height)

    def nbytes(self) -> int:
        return int(self.rows.estimated_size())

    def add(self, rows: pl.DataFrame) -> None:
        """Add rows with the columns of READY; a (key, commit_ts) that is here already is merged with it."""
        new = self.unknown(rows).select(READY.names).unique(VERSION, keep="first", maintain_order=True)
        if new.height:
            self.rows = joined(self.rows, new)

    def unknown(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Those of the rows whose (key, commit_ts) is not here."""
        return rows.join(self.rows, on=VERSION, how="anti", maintain_order="left") if self.rows.height else rows

    def bytes_due(self, w: int) -> int:
        """Bytes of keys and values of the rows at or below w."""
        return int(self.rows.filter(pl.col("commit_ts") <= w).select(_SIZE.sum()).item())

    def reach(self, w: int) -> int:
        """The largest watermark up to w whose rows fit one flush; a single commit_ts always does."""
        if self.bytes_due(w) <= sort_buffer.FLUSH_BYTES_MAX:
            return w
        sizes = (
            self.rows.filter(pl.col("commit_ts") <= w)
            .select("commit_ts", size=_SIZE)
            .group_by("commit_ts")
            .agg(pl.col("size").sum())
            .sort("commit_ts")
        )
        fits = sizes.filter(pl.col("size").cum_sum() <= sort_buffer.FLUSH_BYTES_MAX)
        return int((fits if fits.height else sizes.head(1))["commit_ts"][-1])

    def take(self, w: int) -> PlainOutput:
        """All rows at or below w as change.COMMITTED, by (table_id, commit_ts, start_ts, key). They stay here."""
        due = self.rows.filter(pl.col("commit_ts") <= w)
        keys = due.select(pl.col("key")).to_arrow().column(0).combine_chunks().cast(pa.binary())
        due = due.with_columns(pl.Series("table_id", table_ids(keys), pl.Int64))
        return PlainOutput(to_arrow(due.sort(_ORDER), COMMITTED))

    def flushed(self, w: int) -> None:
        """Everything at or below w is durably in the log."""
        self.flushed_ts = max(self.flushed_ts, w)
        self.rows = self.rows.filter(pl.col("commit_ts") > w)

    def snapshot(self) -> tuple[RunState, ...]:
        """The ready rows."""
        return runs_from(self.rows.sort(VERSION), "ready")

    def restore(self, rows: list[Run], range_: KeyRange, durable_ts: int) -> None:
        """Take over a snapshot, cut to the range; rows at or below `durable_ts` have been written since."""
        self.rows = _within(frame_from(rows, "ready"), range_)
        self.flushed(durable_ts)

    def check(self) -> None:
        """Raise when a relation of the module's docstring does not hold."""
        invariant(not self.rows.select(pl.struct(VERSION).is_duplicated().any()).item(), "a row is ready twice")
        invariant(not (self.rows["commit_ts"] <= self.flushed_ts).any(), "a ready row lies below what was flushed")


class PlainPrewriteBuffer:
    """Unmatched prewrites and early commits of one task."""

    def __init__(self) -> None:
        self.settling = False  #: whether it was restored with commits that W(key) has reached
        self.open = empty(OPEN)
        self.commits = empty(COMMITS)
        self.late_ready = NO_LATE_READY  #: nothing: it learns in the rows themselves
        self.dead = 0  #: prewrites dropped because W passed their cut_ts
        self.forgotten = 0  #: rollbacks that met no prewrite
        self.duplicates = 0  #: commits that were known already
        self.dropped: dict[
            int, int
        ] = {}  #: store -> commits at or below `durable_ts`: duplicates, as far as one can tell

    @property
    def open_count(self) -> int:
        return int(self.open.height)

    @property
    def waiting_count(self) -> int:
        return int(self.commits.height)

    @property
    def undecided_count(self) -> int:
        return int(self.commits["asked"].sum())

    def nbytes(self) -> int:
        return int(self.open.estimated_size() + self.commits.estimated_size())

    def take_in(
        self, rows: pl.DataFrame, w: np.ndarray[tuple[int], np.dtype[np.uint64]], at: Limits, ready: PlainSortBuffer
    ) -> None:
        """Take the rows of one file (`arrivals`); `w` is W of each row's key before the file's watermark rows.

        UpstreamContractViolated leaves the buffers as they were.
        """
        rows = rows.with_columns(pl.Series("w", w, pl.UInt64))
        kind = pl.col("kind")
        outcomes = rows.filter(kind.is_in([RowKind.COMMIT, RowKind.COMMITTED]))
        fresh = ready.unknown(outcomes.filter(pl.col("commit_ts") > at.durable_ts))
        whole = fresh.filter(kind == RowKind.COMMITTED).unique(VERSION, keep="first", maintain_order=True)
        live = fresh.filter(kind == RowKind.COMMIT).join(whole, on=VERSION, how="anti")
        self._refuse(whole.filter(pl.col("commit_ts") <= pl.col("w")).join(self.commits, on=VERSION, how="anti"))
        decided = outcomes.join(live, on="row_no", how="anti").select(TXN)
        commits, new = self._with_commits(live)
        prewrites = rows.filter(kind == RowKind.PREWRITE).join(decided, on=TXN, how="anti")
        old = self.open.join(decided, on=TXN, how="anti") if decided.height else self.open
        old, prewrites, forgotten = _roll_back(rows.filter(kind == RowKind.ROLLBACK), old, prewrites, commits)
        merged = _merge(old, prewrites.select(OPEN.names))
        late = new.filter(pl.col("commit_ts") <= pl.col("w"))
        self._refuse(late.filter(pl.col("commit_ts") <= at.attempted_ts))
        self._refuse(late.join(merged, on=TXN, how="anti"))

        ready.add(whole)
        self.open = merged
        self.commits = commits.join(decided, on=TXN, how="anti")
        self.forgotten += forgotten
        self.duplicates += outcomes.height - whole.height - new.height
        for store_id, count in (
            outcomes.filter(pl.col("commit_ts") <= at.durable_ts)["store_id"].value_counts().iter_rows()
        ):
            self.dropped[store_id] = self.dropped.get(store_id, 0) + count

    def note_ready(self, regions: pa.RecordBatch, store_id: int, incarnation: int) -> None:
        """Subscriptions whose prewrites arrived before their opening scan had finished may be ready now."""
        unknown = self.open.filter(pl.col("tenure_ready_ts") == 0)
        if not unknown.height:
            return
        told = (
            from_arrow(regions)
            .filter(pl.col("tenure_ready_ts") != 0)
            .with_columns(
                pl.lit(store_id, pl.UInt64).alias("store_id"), pl.lit(incarnation, pl.UInt64).alias("incarnation")
            )
        )
        told = told.select(*SUBSCRIPTION_ID, pl.col("tenure_ready_ts").alias("told")).unique(
            SUBSCRIPTION_ID, keep="first", maintain_order=True
        )
        known = pl.when(pl.col("tenure_ready_ts") == 0).then(pl.col("told").fill_null(0)).otherwise("tenure_ready_ts")
        self.open = (
            self.open.join(told, on=SUBSCRIPTION_ID, how="left").with_columns(tenure_ready_ts=known).select(OPEN.names)
        )

    def look(self, watermarks: RangeWatermarkMap) -> None:
        """Find whether there are commits that W(key) has reached: they come before anything new."""
        self.settling = _reached(self.commits, "commit_ts", watermarks, strictly=False).height > 0

    def decide_next(self, watermarks: RangeWatermarkMap, ready: PlainSortBuffer) -> list[Undecided]:
        """Decide them all. UpstreamContractViolated as in `settle`."""
        self.settling = False
        return self.settle(watermarks, ready)

    def settle(self, watermarks: RangeWatermarkMap, ready: PlainSortBuffer) -> list[Undecided]:
        """Decide the commits that W(key) has reached and let the dead go; what is newly undecided.

        UpstreamContractViolated when such a commit has no prewrite.
        """
        due = _reached(self.commits, "commit_ts", watermarks, strictly=False)
        asking: list[Undecided] = []
        if due.height:
            self._refuse(due.join(self.open, on=TXN, how="anti").with_columns(w=pl.col("commit_ts")))
            rows, doubtful = _match(due, self.open)
            ready.add(rows)
            self._leave(rows, doubtful)
            asking = _asking(doubtful)
        gone = _reached(self.open, "cut_ts", watermarks, strictly=True).join(self.commits, on=TXN, how="anti")
        if gone.height:
            self.dead += gone.height
            self.open = self.open.join(gone, on=[*TXN, "row_no"], how="anti")
        return asking

    def hold(self) -> int | None:
        """The largest watermark that undecided commits allow; None when there is none of them."""
        lowest = self.commits.filter(pl.col("asked"))["commit_ts"].min()
        return None if lowest is None else int(lowest) - 1  # type: ignore[arg-type]

    def snapshot(self) -> tuple[tuple[RunState, ...], tuple[RunState, ...]]:
        """(open prewrites, waiting commits)."""
        return runs_from(self.open.sort("row_no"), "open"), runs_from(self.commits.sort(VERSION), "commits")

    def restore(
        self, open_: list[Run], commits: list[Run], _told: pl.DataFrame, range_: KeyRange, durable_ts: int
    ) -> list[Undecided]:
        """Take over a snapshot, cut to the range. Commits at or below `durable_ts` were written out since. Undecided
        ones
        hold the watermark from the first moment; they are returned, because nobody knows whether they were heard."""
        held = _within(frame_from(commits, "commits"), range_)
        served = held.filter(pl.col("commit_ts") <= durable_ts)
        self.commits = held.join(served, on=VERSION, how="anti")
        self.open = _within(frame_from(open_, "open"), range_).join(served, on=TXN, how="anti")
        return _named(self.commits.filter(pl.col("asked")))

    def check(self, at: Limits, ready: PlainSortBuffer) -> None:
        """Raise when a relation of the module's docstring does not hold."""
        invariant(not self.commits.select(pl.struct(VERSION).is_duplicated().any()).item(), "a commit waits twice")
        invariant(ready.unknown(self.commits).height == self.commits.height, "a commit waits and is ready")
        invariant(
            not (self.commits["commit_ts"] <= at.attempted_ts).any(), "a commit waits at or below what is attempted_ts"
        )
        invariant(
            not self.open.select(pl.struct(TXN + SUBSCRIPTION_ID).is_duplicated().any()).item(),
            "a subscription says twice",
        )

    def _with_commits(self, live: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """(all waiting commits with these, those of them that are new). A known one may still bring its value."""
        live = live.sort(pl.col("value").is_null(), maintain_order=True)
        live = live.unique(VERSION, keep="first", maintain_order=True)
        new = live.join(self.commits, on=VERSION, how="anti")
        brought = live.filter(pl.col("value").is_not_null()).select(*VERSION, pl.col("value").alias("brought"))
        known = self.commits
        if known.height and brought.height:
            value = pl.coalesce("value", "brought").alias("value")
            known = known.join(brought, on=VERSION, how="left").with_columns(value).select(COMMITS.names)
        return joined(known, new.with_columns(asked=pl.lit(value=False)).select(COMMITS.names)), new

    def _leave(self, decided: pl.DataFrame, doubtful: pl.DataFrame) -> None:
        """Decided commits and their prewrites go; the doubtful ones have been asked for."""
        self.open = self.open.join(decided, on=TXN, how="anti")
        kept = self.commits.join(decided, on=VERSION, how="anti")
        quiet = kept.join(doubtful, on=VERSION, how="anti")
        asked = kept.join(doubtful, on=VERSION, how="semi").with_columns(asked=pl.lit(value=True))
        self.commits = pl.concat([quiet, asked])

    def _refuse(self, rows: pl.DataFrame) -> None:
        if rows.height:
            _break(rows)


def _break(rows: pl.DataFrame) -> NoReturn:
    first = rows.sort("commit_ts").row(0, named=True)
    names = ("key", "start_ts", "commit_ts", "region_id", "store_id", "incarnation", "seq", "w")
    raise UpstreamContractViolated(**{name: first[name] for name in names}, rows=rows.height)


def _reached(frame: pl.DataFrame, column: str, watermarks: RangeWatermarkMap, *, strictly: bool) -> pl.DataFrame:
    """The rows whose W(key) has reached (or, strictly, passed) the column's timestamp."""
    near = frame.filter(pl.col(column) <= watermarks.highest())
    w, ts = watermarks.w_of(near["key"]), near[column].to_numpy()
    return near.filter(pl.Series(ts < w if strictly else ts <= w, dtype=pl.Boolean))


def _roll_back(
    rollbacks: pl.DataFrame, old: pl.DataFrame, new: pl.DataFrame, commits: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, int]:
    """(old, new) without the prewrites that these rollbacks end, and how many rollbacks ended none."""
    if not rollbacks.height:
        return old, new, 0
    ends = rollbacks.join(commits, on=TXN, how="anti").group_by(TXN).agg(pl.col("row_no").max().alias("until"))
    hit = new.join(ends, on=TXN).filter(pl.col("row_no") < pl.col("until"))
    ended = pl.concat([old.join(ends, on=TXN, how="semi").select(TXN), hit.select(TXN)])
    forgotten = rollbacks.join(ended, on=TXN, how="anti").height
    return old.join(ends, on=TXN, how="anti"), new.join(hit, on="row_no", how="anti"), forgotten


def _merge(old: pl.DataFrame, new: pl.DataFrame) -> pl.DataFrame:
    """Old and new prewrites: per (key, start_ts) and subscription the one that counts; its cut_ts is the largest of
    them."""
    if not new.height:
        return old
    touched = old.join(new, on=TXN, how="semi")
    if not touched.height and not new.select(pl.struct(TXN).is_duplicated().any()).item():
        return joined(old, new)
    group = pl.concat([touched, new]).with_columns(full=~_IS_FAKE)
    group = group.filter(pl.col("full") == pl.col("full").max().over(TXN))
    group = group.filter(pl.col("generation") == pl.col("generation").max().over(TXN))
    same = [*TXN, *SUBSCRIPTION_ID]
    group = group.with_columns(
        cut_ts=pl.col("cut_ts").max().over(same), tenure_ready_ts=pl.col("tenure_ready_ts").max().over(same)
    )
    group = group.sort("row_no").unique(same, keep="last", maintain_order=True)
    return pl.concat([old.join(new, on=TXN, how="anti"), group.select(OPEN.names)])


def _match(due: pl.DataFrame, open_: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(READY rows of the decided commits, the commits that stay undecided)."""
    said = due.rename({"op": "said_op", "value": "said", "flags": "said_flags"})
    pairs = said.select(*TXN, "commit_ts", "said_op", "said", "said_flags").join(open_, on=TXN)
    able = pairs.filter((pl.col("said_op") == Op.NONE) | (pl.col("said_op") == pl.col("op")))
    kinds = able.unique([*VERSION, *_CONTENT], keep="last")
    plain = kinds.filter((pl.len().over(VERSION) == 1) & ~(_IS_FAKE & pl.col("said").is_not_null()))
    rows = [_ready(plain)]
    doubtful = due.join(plain, on=VERSION, how="anti")
    if doubtful.height:
        chosen = _choose_each(pairs.join(doubtful, on=VERSION, how="semi"))
        rows.append(_ready(chosen))
        doubtful = doubtful.join(chosen, on=VERSION, how="anti")
    return pl.concat(rows), doubtful


def _ready(pairs: pl.DataFrame) -> pl.DataFrame:
    return pairs.with_columns(flags=pl.col("flags") | pl.col("said_flags")).select(READY.names)


def _choose_each(pairs: pl.DataFrame) -> pl.DataFrame:
    """One pair for each commit that can be decided, with the chosen content."""
    chosen = []
    for group in pairs.sort([*VERSION, "row_no"]).partition_by(VERSION, maintain_order=True):
        rows = group.to_dicts()
        won = choose([_candidate(row) for row in rows], rows[0]["said_op"], rows[0]["said"])
        if won is not None:
            chosen.append({**rows[0], **{name: getattr(won, name) for name in _CONTENT}})
    return pl.DataFrame(chosen, schema=pairs.schema)


def _candidate(row: dict[str, int]) -> Candidate:
    content = {name: row[name] for name in (*_CONTENT, "generation", "row_no")}
    subscription = tuple(row[name] for name in SUBSCRIPTION_ID)
    open_ts, ready_ts = row["tenure_open_ts"], row["tenure_ready_ts"]
    return Candidate(subscription=subscription, open_ts=open_ts, ready_ts=ready_ts, **content)  # type: ignore[arg-type]


def _asking(doubtful: pl.DataFrame) -> list[Undecided]:
    """The commits that become undecided now, in a fixed order."""
    return _named(doubtful.filter(~pl.col("asked")))


def _named(commits: pl.DataFrame) -> list[Undecided]:
    names = ("key", "start_ts", "commit_ts", "region_id", "store_id")
    return [Undecided(**row) for row in commits.sort(VERSION).select(names).to_dicts()]


def joined(*frames: pl.DataFrame) -> pl.DataFrame:
    """The frames one behind the other, in not too many chunks."""
    frame = pl.concat(frames)
    return frame.rechunk() if frame.n_chunks() > CHUNKS_MAX else frame


def arrivals(batch: FeedBatch, range_: KeyRange, first_row_no: int) -> pl.DataFrame:
    """change.ROWS plus Subscription, SOURCE, `cut_ts` and `row_no`; rows outside the range are left out.

    CorruptObject when a row belongs to no subscription of the batch, or to two.
    """
    rows, regions = batch.rows, batch.regions
    of_row = _subscription_of_rows(batch)
    frame = from_arrow(rows).with_columns(
        *(pl.Series(name, regions.column(name).to_numpy()[of_row], pl.UInt64) for name in SUBSCRIPTION),
        *(pl.lit(getattr(batch, name), pl.UInt64).alias(name) for name in SOURCE),
        pl.lit(batch.cut_ts, pl.UInt64).alias("cut_ts"),
        pl.Series("row_no", np.arange(rows.num_rows, dtype=np.uint64) + np.uint64(first_row_no), pl.UInt64),
        _plain_value(),
    )
    return _within(frame, range_)


def _subscription_of_rows(batch: FeedBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """For each row the number of its REGIONS row."""
    offset = batch.regions.column("row_offset").to_numpy().astype(np.int64)
    count = batch.regions.column("row_count").to_numpy().astype(np.int64)
    with_rows = np.flatnonzero(count)
    order = with_rows[np.argsort(offset[with_rows], kind="stable")]
    ends = np.cumsum(count[order])
    total = int(ends[-1]) if len(ends) else 0
    if total != batch.rows.num_rows or (offset[order] != ends - count[order]).any():
        facts = {"store": batch.store_id, "incarnation": batch.incarnation, "seq": batch.seq}
        raise CorruptObject(
            "the subscriptions do not name each row once", rows=batch.rows.num_rows, named=total, **facts
        )
    return np.repeat(order, count[order])


def _plain_value() -> pl.Expr:
    op, value = pl.col("op"), pl.col("value")
    nothing = pl.lit(None, pl.Binary)
    whole = pl.when(op == Op.PUT).then(value.fill_null(b"")).otherwise(nothing)
    said = pl.when(value.bin.size() > 0).then(value).otherwise(nothing)
    return pl.when(pl.col("kind") == RowKind.COMMIT).then(said).otherwise(whole).alias("value")


def _within(frame: pl.DataFrame, range_: KeyRange) -> pl.DataFrame:
    """The rows whose key lies in the range."""
    if range_.start:
        frame = frame.filter(pl.col("key") >= pl.lit(range_.start, pl.Binary))
    return frame.filter(pl.col("key") < pl.lit(range_.end, pl.Binary)) if range_.end else frame
