"""Prewrites without their commit, and commits that wait to be decided.

A commit is matched with its prewrite by (key, start_ts). It is *decided* when W(key) has reached its commit_ts, not
when the two meet: only then has every prewrite arrived that could be the committed one, from whichever store, and a
commit row that overtook its prewrite needs no rule of its own. Waiting costs nothing, because the row may not be
written out earlier anyway.

What a row does:

- PREWRITE    is kept, unless its (key, start_ts) is known to be decided. Several of one (key, start_ts) are kept one
              per tenure (see `choice`). It is dead once W(key) > cut_ts of the file that brought it, unless its commit
              waits;
- COMMIT      at or below `upper`, or equal in (key, commit_ts) to a row that is ready or waits: a duplicate. New ones
              wait. New, at or below W(key) and without a prewrite: a broken promise;
- COMMITTED   decides (key, start_ts) by itself and is ready at once. New and at or below W(key): a broken promise,
              except where it answers a commit that waits undecided;
- ROLLBACK    deletes the prewrites that came before it, never a commit; one that finds nothing is forgotten.

`sealed` is the largest W that was ever handed out for writing: nothing new may appear at or below it.

Relations: a (key, commit_ts) waits at most once, and never while the same is ready; no waiting commit is at or below
`sealed`; a commit that stays although W(key) has reached it is undecided, holds the watermark below itself, and keeps
its prewrites. Everything is columns; only keys in doubt are looked at one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import polars as pl
import pyarrow as pa

from sorter.arrivals import SOURCE, TENURE, empty, from_arrow, joined, to_arrow, within
from sorter.choice import Candidate, choose
from sorter.sort_buffer import READY, SortBuffer
from sorter.watermark import RangeWatermarkMap
from tistream.change import Op, RowKind
from tistream.errors import BrokenPromise, invariant
from tistream.keyrange import KeyRange


def _schema(**types: pa.DataType) -> pa.Schema:
    nullable = ("value", "old_value")
    return pa.schema([pa.field(name, kind, nullable=name in nullable) for name, kind in types.items()])


_NUMBERS = {name: pa.uint64() for name in (*SOURCE, *TENURE, "cut_ts", "row_no")}
#: prewrites that are not decided
OPEN = _schema(
    key=pa.binary(),
    start_ts=pa.uint64(),
    op=pa.uint8(),
    generation=pa.uint64(),
    value=pa.binary(),
    old_value=pa.binary(),
    expire_ts=pa.uint64(),
    flags=pa.uint8(),
    **_NUMBERS,
)
#: commits that wait for W(key), or for a decision
COMMITS = _schema(
    key=pa.binary(),
    start_ts=pa.uint64(),
    commit_ts=pa.uint64(),
    op=pa.uint8(),
    value=pa.binary(),
    flags=pa.uint8(),
    store_id=pa.uint64(),
    incarnation=pa.uint64(),
    seq=pa.uint64(),
    region_id=pa.uint64(),
    asked=pa.bool_(),
)

_TXN = ["key", "start_ts"]
_VERSION = ["key", "commit_ts"]
_TENURE_ID = ["store_id", "incarnation", "region_id", "version", "checkpoint_ts", "tenure_open_ts"]
_CONTENT = ["op", "value", "old_value", "expire_ts", "flags"]
_IS_FAKE = (pl.col("op") == Op.PUT) & (pl.col("value").bin.size() == 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """A commit of which nobody can say which prewrite it committed."""

    key: bytes
    start_ts: int
    commit_ts: int
    region_id: int
    store_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The timestamps that tell old rows from new ones."""

    upper: int  #: everything at or below is in the committed log
    sealed: int  #: everything at or below may be; upper <= sealed


class PrewriteBuffer:
    """Unmatched prewrites and early commits of one task."""

    def __init__(self) -> None:
        self.open = empty(OPEN)
        self.commits = empty(COMMITS)
        self.dead = 0  #: prewrites dropped because W passed their cut_ts
        self.forgotten = 0  #: rollbacks that met no prewrite
        self.duplicates = 0  #: commits that were known already
        self.dropped: dict[int, int] = {}  #: store -> commits at or below `upper`: duplicates, as far as one can tell

    def take_in(
        self, rows: pl.DataFrame, w: np.ndarray[tuple[int], np.dtype[np.uint64]], at: Limits, ready: SortBuffer
    ) -> None:
        """Take the rows of one file (`arrivals`); `w` is W of each row's key before the file's watermark rows.

        BrokenPromise leaves the buffers as they were.
        """
        rows = rows.with_columns(pl.Series("w", w, pl.UInt64))
        kind = pl.col("kind")
        outcomes = rows.filter(kind.is_in([RowKind.COMMIT, RowKind.COMMITTED]))
        fresh = ready.unknown(outcomes.filter(pl.col("commit_ts") > at.upper))
        whole = fresh.filter(kind == RowKind.COMMITTED).unique(_VERSION, keep="first", maintain_order=True)
        live = fresh.filter(kind == RowKind.COMMIT).join(whole, on=_VERSION, how="anti")
        self._refuse(whole.filter(pl.col("commit_ts") <= pl.col("w")).join(self.commits, on=_VERSION, how="anti"))
        decided = outcomes.join(live, on="row_no", how="anti").select(_TXN)
        commits, new = self._with_commits(live)
        prewrites = rows.filter(kind == RowKind.PREWRITE).join(decided, on=_TXN, how="anti")
        old = self.open.join(decided, on=_TXN, how="anti") if decided.height else self.open
        old, prewrites, forgotten = _roll_back(rows.filter(kind == RowKind.ROLLBACK), old, prewrites, commits)
        merged = _merge(old, prewrites.select(OPEN.names))
        late = new.filter(pl.col("commit_ts") <= pl.col("w"))
        self._refuse(late.filter(pl.col("commit_ts") <= at.sealed))
        self._refuse(late.join(merged, on=_TXN, how="anti"))

        ready.add(whole)
        self.open = merged
        self.commits = commits.join(decided, on=_TXN, how="anti")
        self.forgotten += forgotten
        self.duplicates += outcomes.height - whole.height - new.height
        for store_id, count in outcomes.filter(pl.col("commit_ts") <= at.upper)["store_id"].value_counts().iter_rows():
            self.dropped[store_id] = self.dropped.get(store_id, 0) + count

    def learn(self, regions: pa.RecordBatch, store_id: int, incarnation: int) -> None:
        """Tenures whose prewrites arrived before their opening scan had finished may be ready now."""
        if not self.open.height or not self.open.filter(pl.col("tenure_ready_ts") == 0).height:
            return
        told = (
            from_arrow(regions)
            .filter(pl.col("tenure_ready_ts") != 0)
            .with_columns(
                pl.lit(store_id, pl.UInt64).alias("store_id"), pl.lit(incarnation, pl.UInt64).alias("incarnation")
            )
        )
        told = told.select(*_TENURE_ID, pl.col("tenure_ready_ts").alias("told")).unique(
            _TENURE_ID, keep="first", maintain_order=True
        )
        known = pl.coalesce("told", "tenure_ready_ts").alias("tenure_ready_ts")
        self.open = self.open.join(told, on=_TENURE_ID, how="left").with_columns(known).select(OPEN.names)

    def settle(self, watermarks: RangeWatermarkMap, ready: SortBuffer) -> list[Undecided]:
        """Decide the commits that W(key) has reached and let the dead go; what is newly undecided.

        BrokenPromise when such a commit has no prewrite.
        """
        due = _reached(self.commits, "commit_ts", watermarks, strictly=False)
        asking: list[Undecided] = []
        if due.height:
            self._refuse(due.join(self.open, on=_TXN, how="anti").with_columns(w=pl.col("commit_ts")))
            rows, doubtful = _match(due, self.open)
            ready.add(rows)
            self._leave(rows, doubtful)
            asking = _asking(doubtful)
        gone = _reached(self.open, "cut_ts", watermarks, strictly=True)
        gone = gone.join(self.commits, on=_TXN, how="anti") if gone.height else gone
        if gone.height:
            self.dead += gone.height
            self.open = self.open.join(gone, on="row_no", how="anti")
        return asking

    def hold(self) -> int | None:
        """The largest watermark that undecided commits allow; None when there is none of them."""
        if not self.commits.height:
            return None
        lowest = self.commits.filter(pl.col("asked"))["commit_ts"].min()
        return None if lowest is None else int(lowest) - 1  # type: ignore[arg-type]

    def snapshot(self) -> tuple[pa.Table, pa.Table]:
        """(open prewrites, waiting commits), schemas OPEN and COMMITS."""
        return to_arrow(self.open.sort("row_no"), OPEN), to_arrow(self.commits.sort(_VERSION), COMMITS)

    def restore(self, open_: pa.Table, commits: pa.Table, range_: KeyRange, upper: int) -> None:
        """Take over a snapshot, cut to the range. Commits at or below `upper` were written out since; undecided ones
        will ask again, because nobody knows whether they were heard."""
        held = within(from_arrow(commits), range_).with_columns(asked=pl.lit(value=False))
        served = held.filter(pl.col("commit_ts") <= upper)
        self.commits = held.join(served, on=_VERSION, how="anti")
        self.open = within(from_arrow(open_), range_).join(served, on=_TXN, how="anti")

    def check(self, at: Limits, ready: SortBuffer) -> None:
        """Raise when a relation of the module's docstring does not hold."""
        invariant(not self.commits.select(pl.struct(_VERSION).is_duplicated().any()).item(), "a commit waits twice")
        invariant(ready.unknown(self.commits).height == self.commits.height, "a commit waits and is ready")
        invariant(not (self.commits["commit_ts"] <= at.sealed).any(), "a commit waits at or below what is sealed")
        invariant(
            not self.open.select(pl.struct(_TXN + _TENURE_ID).is_duplicated().any()).item(), "a tenure says twice"
        )

    def _with_commits(self, live: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
        """(all waiting commits with these, those of them that are new). A known one may still bring its value."""
        live = live.sort(pl.col("value").is_null(), maintain_order=True)
        live = live.unique(_VERSION, keep="first", maintain_order=True)
        new = live.join(self.commits, on=_VERSION, how="anti")
        brought = live.filter(pl.col("value").is_not_null()).select(*_VERSION, pl.col("value").alias("brought"))
        known = self.commits
        if known.height and brought.height:
            value = pl.coalesce("value", "brought").alias("value")
            known = known.join(brought, on=_VERSION, how="left").with_columns(value).select(COMMITS.names)
        return joined(known, new.with_columns(asked=pl.lit(value=False)).select(COMMITS.names)), new

    def _leave(self, decided: pl.DataFrame, doubtful: pl.DataFrame) -> None:
        """Decided commits and their prewrites go; the doubtful ones have been asked for."""
        self.open = self.open.join(decided, on=_TXN, how="anti")
        kept = self.commits.join(decided, on=_VERSION, how="anti")
        quiet = kept.join(doubtful, on=_VERSION, how="anti")
        asked = kept.join(doubtful, on=_VERSION, how="semi").with_columns(asked=pl.lit(value=True))
        self.commits = pl.concat([quiet, asked])

    def _refuse(self, rows: pl.DataFrame) -> None:
        if rows.height:
            _break(rows)


def _break(rows: pl.DataFrame) -> NoReturn:
    first = rows.sort("commit_ts").row(0, named=True)
    names = ("key", "start_ts", "commit_ts", "region_id", "store_id", "incarnation", "seq", "w")
    raise BrokenPromise(**{name: first[name] for name in names}, rows=rows.height)


def _reached(frame: pl.DataFrame, column: str, watermarks: RangeWatermarkMap, *, strictly: bool) -> pl.DataFrame:
    """The rows whose W(key) has reached (or, strictly, passed) the column's timestamp."""
    if not frame.height:
        return frame
    near = frame.filter(pl.col(column) <= watermarks.highest())
    w, ts = watermarks.w_of(near["key"]), near[column].to_numpy()
    return near.filter(pl.Series(ts < w if strictly else ts <= w, dtype=pl.Boolean))


def _roll_back(
    rollbacks: pl.DataFrame, old: pl.DataFrame, new: pl.DataFrame, commits: pl.DataFrame
) -> tuple[pl.DataFrame, pl.DataFrame, int]:
    """(old, new) without the prewrites that these rollbacks end, and how many rollbacks ended none."""
    if not rollbacks.height:
        return old, new, 0
    ends = rollbacks.join(commits, on=_TXN, how="anti").group_by(_TXN).agg(pl.col("row_no").max().alias("until"))
    hit = new.join(ends, on=_TXN).filter(pl.col("row_no") < pl.col("until"))
    ended = pl.concat([old.join(ends, on=_TXN, how="semi").select(_TXN), hit.select(_TXN)])
    forgotten = rollbacks.join(ended, on=_TXN, how="anti").height
    return old.join(ends, on=_TXN, how="anti"), new.join(hit, on="row_no", how="anti"), forgotten


def _merge(old: pl.DataFrame, new: pl.DataFrame) -> pl.DataFrame:
    """Old and new prewrites: per (key, start_ts) and tenure the one that counts; its cut_ts is the largest of them."""
    if not new.height:
        return old
    touched = old.join(new, on=_TXN, how="semi")
    if not touched.height and not new.select(pl.struct(_TXN).is_duplicated().any()).item():
        return joined(old, new)
    group = pl.concat([touched, new]).with_columns(full=~_IS_FAKE)
    group = group.filter(pl.col("full") == pl.col("full").max().over(_TXN))
    group = group.filter(pl.col("generation") == pl.col("generation").max().over(_TXN))
    same = [*_TXN, *_TENURE_ID]
    group = group.with_columns(
        cut_ts=pl.col("cut_ts").max().over(same), tenure_ready_ts=pl.col("tenure_ready_ts").max().over(same)
    )
    group = group.sort("row_no").unique(same, keep="last", maintain_order=True)
    return pl.concat([old.join(new, on=_TXN, how="anti"), group.select(OPEN.names)])


def _match(due: pl.DataFrame, open_: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """(READY rows of the decided commits, the commits that stay undecided)."""
    said = due.rename({"op": "said_op", "value": "said", "flags": "said_flags"})
    pairs = said.select(*_TXN, "commit_ts", "said_op", "said", "said_flags").join(open_, on=_TXN)
    able = pairs.filter((pl.col("said_op") == Op.NONE) | (pl.col("said_op") == pl.col("op")))
    kinds = able.unique([*_VERSION, *_CONTENT], keep="last")
    plain = kinds.filter((pl.len().over(_VERSION) == 1) & ~(_IS_FAKE & pl.col("said").is_not_null()))
    rows = [_ready(plain)]
    doubtful = due.join(plain, on=_VERSION, how="anti")
    if doubtful.height:
        chosen = _choose_each(pairs.join(doubtful, on=_VERSION, how="semi"))
        rows.append(_ready(chosen))
        doubtful = doubtful.join(chosen, on=_VERSION, how="anti")
    return pl.concat(rows), doubtful


def _ready(pairs: pl.DataFrame) -> pl.DataFrame:
    return pairs.with_columns(flags=pl.col("flags") | pl.col("said_flags")).select(READY.names)


def _choose_each(pairs: pl.DataFrame) -> pl.DataFrame:
    """One pair for each commit that can be decided, with the chosen content."""
    chosen = []
    for group in pairs.sort([*_VERSION, "row_no"]).partition_by(_VERSION, maintain_order=True):
        rows = group.to_dicts()
        won = choose([_candidate(row) for row in rows], rows[0]["said_op"], rows[0]["said"])
        if won is not None:
            chosen.append({**rows[0], **{name: getattr(won, name) for name in _CONTENT}})
    return pl.DataFrame(chosen, schema=pairs.schema)


def _candidate(row: dict[str, int]) -> Candidate:
    content = {name: row[name] for name in (*_CONTENT, "generation", "row_no")}
    tenure = tuple(row[name] for name in _TENURE_ID)
    return Candidate(tenure=tenure, open_ts=row["tenure_open_ts"], ready_ts=row["tenure_ready_ts"], **content)  # type: ignore[arg-type]


def _asking(doubtful: pl.DataFrame) -> list[Undecided]:
    """The commits that become undecided now, in a fixed order."""
    new = doubtful.filter(~pl.col("asked")).sort(_VERSION)
    return [Undecided(**row) for row in new.select("key", "start_ts", "commit_ts", "region_id", "store_id").to_dicts()]
