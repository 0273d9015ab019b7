"""Prewrites without their commit, and commits that wait to be decided.

A commit is matched with its prewrite by (key, start_ts). It is *decided* when W(key) has reached its commit_ts, not
when both have arrived: only then has every candidate prewrite arrived, from any store, and a commit that overtook its
prewrite needs no rule of its own.

How rows are handled:

- PREWRITE    is kept, unless its (key, start_ts) is decided; one per subscription (`conflict_rule`). It is dead once
              W(key) > cut_ts of its file, unless its commit waits;
- COMMIT      at or below `durable_ts`, or equal in (key, commit_ts) to a ready or waiting row: a duplicate. Others
              wait. At or below W(key) and without a prewrite: an upstream contract violation;
- COMMITTED   decides (key, start_ts) alone and is ready at once. At or below W(key): an upstream contract violation,
              unless the row answers a commit that waits undecided;
- ROLLBACK    deletes the prewrites before it, never a commit; without a match it is ignored.

`attempted_ts` is the highest W handed out for writing; nothing new may appear at or below it.

Relations: a (key, commit_ts) waits at most once, and never while it is also ready; no waiting commit is at or below
`attempted_ts`; a commit that W(key) has reached is undecided, holds the watermark below itself, and keeps its
prewrites.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from sorter.core.admission import Buffers, Limits, raise_violation, take_in
from sorter.core.conflicts import COMMITS, OPEN, SUBSCRIPTION_ID, TXN, VERSION, frame_of, frame_of_all, matched, runs_of
from sorter.core.decision_queue import DecisionQueue
from sorter.core.sort_buffer import SortBuffer
from sorter.core.watermark import RangeWatermarkMap, Stuck
from sorter.core.watermark_index import Thresholds, may_reach, reached
from sorter.rows.batch_rows import IncomingRows, empty, from_arrow
from sorter.rows.payload import RowRefs, stacked, used_segments
from sorter.rows.run import PROBED, NotLoaded, Run, RunSet, compact, require
from sorter.rows.saved import NO_LATE_READY, RunState, cut, has_undecided, states_of, with_late_ready
from sorter.rows.undo_log import UndoLog
from tistream.errors import invariant
from tistream.keyrange import KeyRange
from tistream.model.arrays import I64, Mask
from tistream.model.change import Op

_READY_NUMBERS = ("op", "start_ts", "commit_ts", "expire_ts", "flags")
_UNDECIDED = ("key", "start_ts", "commit_ts", "region_id", "store_id")

COPY_BYTES_MAX = 16 << 20  #: of rows that one slice copies so that they do not pin larger segments


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """A commit whose prewrite cannot be determined."""

    key: bytes
    start_ts: int
    commit_ts: int
    region_id: int
    store_id: int


class PrewriteBuffer:
    """Unmatched prewrites and early commits of one task."""

    def __init__(self) -> None:
        self.open = RunSet(("key", "value", "old_value"))
        self.commits = RunSet(("key", "value"))
        self.duplicates = 0  #: repeated commits
        self.dropped: dict[int, int] = {}  #: store -> commits at or below `durable_ts`, presumably duplicates
        self.late_ready = (
            NO_LATE_READY  #: subscriptions that became ready after a snapshot held their rows, see `saved.LATE_READY`
        )
        self._clash = False  #: a commit waits although the ready row of another transaction has its (key, commit_ts)
        self.settling = False  #: W(key) has reached undecided commits
        self._decisions = DecisionQueue()

    @property
    def open_count(self) -> int:
        return self.open.live

    @property
    def waiting_count(self) -> int:
        return self.commits.live

    @property
    def undecided_count(self) -> int:
        return sum(int(run.numbers["asked"][run.alive].sum()) for run in self._undecided_runs())

    def take_in(self, rows: IncomingRows, watermarks: RangeWatermarkMap, at: Limits, ready: SortBuffer) -> None:
        """Take the rows of one file, before its watermark rows. UpstreamContractViolated and NotLoaded change
        nothing."""
        admitted = take_in(rows, self.buffers(ready), watermarks, at)
        self.duplicates += admitted.duplicates
        self._clash |= admitted.clash
        if admitted.written:
            store = int(rows.origins["store_id"][0])
            self.dropped[store] = self.dropped.get(store, 0) + admitted.written

    def note_ready(self, regions: pa.RecordBatch, store_id: int, incarnation: int) -> None:
        """Record subscriptions whose opening scan has finished after their prewrites arrived."""
        require((run for run in self.open if run.live and run.facts.get("unready")), ("origins",))
        unready = [run for run in self.open if run.live and run.unready()]
        if not unready:
            return
        now_ready = (
            from_arrow(regions)
            .filter(pl.col("subscription_ready_ts") != 0)
            .with_columns(
                pl.lit(store_id, pl.UInt64).alias("store_id"), pl.lit(incarnation, pl.UInt64).alias("incarnation")
            )
        )
        now_ready = now_ready.select(*SUBSCRIPTION_ID, pl.col("subscription_ready_ts").alias("told")).unique(
            SUBSCRIPTION_ID, keep="first", maintain_order=True
        )
        if not now_ready.height:
            return
        for run in unready:
            assert run.origins is not None
            matters = now_ready.join(
                run.origins.filter(pl.col("subscription_ready_ts") == 0), on=SUBSCRIPTION_ID, how="semi"
            )
            if matters.height:
                run.origins = with_late_ready(run.origins, matters)
                self.late_ready = pl.concat([self.late_ready, matters]).unique(
                    SUBSCRIPTION_ID, keep="first", maintain_order=True
                )

    def settle(self, watermarks: RangeWatermarkMap, ready: SortBuffer) -> list[Undecided]:
        """Decide the first slice of the commits that W(key) has reached, if its rows are loaded; `decide_next` decides
        the rest while `settling`. Returns newly undecided commits. Raises UpstreamContractViolated when such a commit
        has no prewrite."""
        self.look(watermarks)
        self.settling = True
        try:
            return self.decide_next(watermarks, ready)
        except NotLoaded:
            return []

    def look(self, watermarks: RangeWatermarkMap) -> None:
        """Queue the commits that W(key) has reached: from now on they hold the watermark."""
        self._decisions.look(self.commits, watermarks)
        self.settling = bool(self._decisions)

    def decide_next(self, watermarks: RangeWatermarkMap, ready: SortBuffer) -> list[Undecided]:
        """Decide the next slice; after the last one drop dead prewrites and compact. Errors as in `settle`."""
        due = self._decisions.slice(watermarks)
        try:
            with UndoLog(self.commits, ready.runs) as log:
                undecided = self._decide(due, ready, log) if due else []
        except NotLoaded:
            self._decisions.put_back(due)
            raise
        if not self._decisions:
            try:
                self._finish(watermarks, ready)
            except NotLoaded:
                if not due:
                    raise
        return undecided

    def _finish(self, watermarks: RangeWatermarkMap, ready: SortBuffer) -> None:
        self._decisions.done()
        self._drop_dead(watermarks)
        self.open.compact()
        self.commits.compact()
        ready.compact(watermarks.watermark())
        self.settling = False

    def undecided(self, range_: KeyRange) -> list[tuple[Undecided, int, int, int]]:
        """The undecided commits of the range, lowest commit_ts first: per subscription the lowest one, the incarnation
        and seq of its file, and their number."""
        undecided = []
        for run in self._undecided_runs():
            at = np.flatnonzero(run.numbers["asked"] & run.alive)
            if not len(at):
                continue
            by = np.lexsort((run.ts("commit_ts")[at], run.numbers["origin"][at]))
            at = at[by]
            first = np.flatnonzero(np.diff(run.numbers["origin"][at], prepend=-1))
            counts = np.diff(first, append=len(at)).tolist()
            lowest = frame_of(run, at[first], COMMITS)
            for row, count in zip(lowest.to_dicts(), counts, strict=True):
                if row["key"] in range_:
                    commit = Undecided(**{name: row[name] for name in _UNDECIDED})
                    undecided.append((commit, row["incarnation"], row["seq"], count))
        return sorted(undecided, key=lambda f: f[0].commit_ts)

    def oldest_open(self) -> tuple[int, int, bytes] | None:
        """(start_ts, number of open prewrites, key of one of them) of the oldest open transaction, or None."""
        return self.open.lowest("start_ts")

    def hold(self) -> int | None:
        """The highest watermark that undecided or queued commits allow; None when there are none."""
        lowest = self._decisions.lowest()
        for run in self._undecided_runs():
            ts = run.ts("commit_ts")[run.numbers["asked"] & run.alive]
            lowest += [int(ts.min())] if len(ts) else []
        return min(lowest) - 1 if lowest else None

    def snapshot(self) -> tuple[tuple[RunState, ...], tuple[RunState, ...]]:
        """(open prewrites, waiting commits)."""
        if not any(piece.group.unready for run in self.open for piece in run.saved):
            self.late_ready = NO_LATE_READY  # no object holds rows of a subscription that was not ready
        return states_of(self.open), states_of(self.commits)

    def restrict(self, range_: KeyRange, durable_ts: int) -> list[Undecided]:
        """After a restore: drop the rows outside of the range, and commits at or below `durable_ts`, which have been
        written since. Undecided ones hold the watermark at once; they are returned, because the earlier request for a
        subscription may be lost."""
        cut((*self.open, *self.commits), range_)
        begun = [run for run in self.commits if run.span("commit_ts")[0] <= durable_ts]
        require(begun, PROBED)
        for run in begun:
            written = np.flatnonzero(run.alive & (run.ts("commit_ts") <= np.uint64(durable_ts)))
            self.open.kill(run.lookup_keys(written, "start_ts"), "start_ts")
            run.kill(written)
        require(run for run in self.commits if run.live and run.facts.get("asked", True))
        asked = [
            frame_of(run, np.flatnonzero(run.numbers["asked"] & run.alive), COMMITS) for run in self._undecided_runs()
        ]
        return _undecided(pl.concat([empty(COMMITS), *asked]))

    def check(self, at: Limits, ready: SortBuffer) -> None:
        """Raise when a relation of the module's docstring does not hold."""
        commits, open_ = frame_of_all(self.commits.runs, COMMITS), frame_of_all(self.open.runs, OPEN)
        invariant(not commits.select(pl.struct(VERSION).is_duplicated().any()).item(), "a commit waits twice")
        invariant(ready.unknown(commits).height == commits.height, "a commit waits and is ready")
        invariant(not (commits["commit_ts"] <= at.attempted_ts).any(), "a commit waits at or below attempted_ts")
        invariant(
            not open_.select(pl.struct(TXN + SUBSCRIPTION_ID).is_duplicated().any()).item(),
            "a subscription has two prewrites of one transaction",
        )
        for run in (*self.open, *self.commits, *ready.runs):
            invariant(run.live == int(run.alive.sum()), "a run has lost count of its rows")

    def _undecided_runs(self) -> list[Run]:
        """The runs that hold, or held, undecided commits."""
        return [run for run in self.commits if run.live and has_undecided(run)]

    # -- deciding

    def _decide(self, due: list[tuple[Run, I64]], ready: SortBuffer, log: UndoLog) -> list[Undecided]:
        """Match these commits with their prewrites; returns newly undecided commits."""
        require(run for run, _ in due)
        matches = [
            (run, at, self.open.find(run.lookup_keys(at, "start_ts"), "start_ts", whole=True)) for run, at in due
        ]
        missing, doubtful, plain = [], [], []
        unsure: dict[Run, list[I64]] = {}  # prewrites; one row may be hit by commits of several runs
        for run, at, hits in matches:
            count = np.zeros(len(at), np.int64)
            for _old, here, _there in hits:
                count += np.bincount(here, minlength=len(at))
            if not count.all():
                missing.append(frame_of(run, at[count == 0], COMMITS))
            sure = count == 1
            for old, here, there in hits:
                sure[here] &= _fits(run, at[here], old, there)
            plain.append((run, at, hits, sure))
            if not sure.all():
                doubtful.append(frame_of(run, at[~sure], COMMITS))
                for old, here, there in hits:
                    unsure.setdefault(old, []).append(there[~sure[here]])
        if missing:
            raise_violation(pl.concat(missing).with_columns(w=pl.col("commit_ts")))
        self._ready(plain, ready, log)
        if not doubtful:
            return []
        open_ = [frame_of(run, np.unique(np.concatenate(rows)), OPEN) for run, rows in unsure.items()]
        return self._resolve(pl.concat(doubtful), pl.concat([empty(OPEN), *open_]), ready, log)

    def _ready(
        self, plain: list[tuple[Run, I64, list[tuple[Run, I64, I64]], Mask]], ready: SortBuffer, log: UndoLog
    ) -> None:
        """Commits with exactly one matching prewrite: both leave, the row is ready."""
        old_refs, old_numbers, old_hashes = [], [], []
        for run, at, hits, sure in plain:
            hashes = None if run.hashes is None else run.hashes[at]
            for old, here, there in hits:
                mine = sure[here]
                commit, prewrite = at[here[mine]], there[mine]
                if not len(commit):
                    continue
                numbers = {name: old.numbers[name][prewrite] for name in ("op", "start_ts", "expire_ts")}
                numbers["commit_ts"] = run.numbers["commit_ts"][commit]
                numbers["flags"] = old.numbers["flags"][prewrite] | run.numbers["flags"][commit]
                refs = used_segments(old.refs.take(prewrite))
                key_hashes = refs.hashes() if hashes is None else hashes[here[mine]]
                self._decisions.spend(old, prewrite)
                log.kill(run, commit)
                if old.young is not None or _is_much(refs):
                    ready.add_rows(refs, numbers, key_hashes, young=old.young, merge=self._clash)
                else:
                    old_refs.append(refs)
                    old_numbers.append(numbers)
                    old_hashes.append(key_hashes)
        if old_refs:  # a few rows must not pin the segment of a complete run
            numbers = {name: np.concatenate([n[name] for n in old_numbers]) for name in _READY_NUMBERS}
            refs = compact(stacked(old_refs), self.open.names)
            ready.add_rows(refs, numbers, np.concatenate(old_hashes), merge=self._clash)

    def _resolve(self, due: pl.DataFrame, open_: pl.DataFrame, ready: SortBuffer, log: UndoLog) -> list[Undecided]:
        """The slow path for conflicting prewrites, each once; `row_no` orders the rows of one key and is not unique in
        a merged task. Undecided commits get a run of their own."""
        rows, doubtful = matched(due, open_)
        if rows.height:
            ready.add(rows)
            for done in runs_of(due.join(rows, on=VERSION, how="semi"), COMMITS):
                at = np.arange(len(done))
                for run, _, there in self.open.find(done.lookup_keys(at, "start_ts"), "start_ts"):
                    self._decisions.spend(run, there)
                log.kill_equal(self.commits, done.lookup_keys(at, "commit_ts"), "commit_ts")
        new = doubtful.filter(~pl.col("asked"))
        if new.height:
            for asked in runs_of(new.with_columns(asked=pl.lit(value=True)), COMMITS):
                log.kill_equal(self.commits, asked.lookup_keys(np.arange(len(asked)), "commit_ts"), "commit_ts")
                self.commits.add(asked)
        return _undecided(new)

    def _drop_dead(self, watermarks: RangeWatermarkMap) -> None:
        """Drop prewrites whose cut_ts W(key) has passed, unless their commit waits."""
        runs = [run for run in self.open if run.live and may_reach(run, run.least_cut(), watermarks)]
        require(runs, (*PROBED, "origins"))
        for run in runs:
            gone = _past_cut(run, watermarks)
            if len(gone):
                gone = gone[~self.commits.known(run.lookup_keys(gone, "start_ts"), "start_ts")]
                run.kill(gone)

    def buffers(self, ready: SortBuffer) -> Buffers:
        return Buffers(self.open, self.commits, ready)


def _past_cut(run: Run, watermarks: RangeWatermarkMap) -> I64:
    """The living prewrites whose cut_ts W(key) has passed."""
    assert run.origins is not None
    thresholds = Thresholds(run.origins["cut_ts"].to_numpy(), run.least_cut(), run.numbers["origin"])
    return reached(run, thresholds, watermarks, strictly=True)


def _undecided(commits: pl.DataFrame) -> list[Undecided]:
    return [Undecided(**row) for row in commits.sort(VERSION).select(_UNDECIDED).to_dicts()]


def _is_much(refs: RowRefs) -> bool:
    """Whether rows stay where they are: a few must not pin large segments, many cost too much to copy."""
    size = int(refs.sizes(np.ones(len(refs), np.bool_)).sum())
    return size > COPY_BYTES_MAX or 4 * size > sum(s.nbytes for s in refs.segments)


def _fits(commits: Run, at: I64, prewrites: Run, there: I64) -> Mask:
    """Whether a commit's only prewrite certainly is the committed one."""
    commit_op = commits.numbers["op"][at]
    sure = (commit_op == Op.NONE) | (commit_op == prewrites.numbers["op"][there])
    fake = np.flatnonzero(prewrites.numbers["fake"][there])
    if len(fake):
        sure[fake] &= np.diff(commits.refs.take(at[fake]).layout("value")[0]) == 0
    return np.asarray(sure)


def stuck_prewrite(start_ts: int, count: int, key: bytes, w: int | None) -> Stuck:
    """What `oldest_open` means for the watermark."""
    locked = f"one locks key {key.hex()}" if count > 1 else f"it locks key {key.hex()}"
    reason = f"the oldest open transaction began at {start_ts}, {count} of its prewrites are buffered, {locked}"
    return Stuck(range=KeyRange(key, key + b"\0"), w=w, start_ts=start_ts, reason=reason)


def stuck_commit(commit: Undecided, incarnation: int, seq: int, count: int) -> Stuck:
    """What an entry of `undecided` means for the watermark."""
    others = f", and {count - 1} more of this region" if count > 1 else ""
    key = commit.key.hex()
    return Stuck(
        range=KeyRange(commit.key, commit.key + b"\0"),
        w=commit.commit_ts - 1,
        region_id=commit.region_id,
        store_id=commit.store_id,
        incarnation=incarnation,
        seq=seq,
        reason=f"transaction {commit.start_ts} committed an unknown value at {commit.commit_ts} to key {key}{others}; "
        "a new subscription was requested",
    )
