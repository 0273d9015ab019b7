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

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import pyarrow as pa

from sorter.core.admission import (
    Removed,
    fits,
    has_value,
    is_fake,
    late_rows,
    one_of_each,
    raise_violation,
    violations,
    without,
)
from sorter.core.conflicts import (
    COMMITS,
    OPEN,
    SUBSCRIPTION_ID,
    TXN,
    VERSION,
    frame_of,
    frame_of_all,
    matched,
    merged,
    runs_of,
)
from sorter.core.decision_queue import DecisionQueue
from sorter.core.sort_buffer import SortBuffer
from sorter.core.watermark import RangeWatermarkMap
from sorter.core.watermark_index import Thresholds, may_reach, reached
from sorter.rows.batch_rows import SOURCE, Arrivals, empty, from_arrow
from sorter.rows.kernels import I64, Flags
from sorter.rows.payload import Place, stacked, used_segments
from sorter.rows.run import Needles, Run, RunSet, compact
from sorter.rows.saved import NO_LATE_READY, RunState, cut, has_undecided, states_of, with_late_ready
from tistream.errors import UpstreamContractViolated, invariant
from tistream.keyrange import KeyRange
from tistream.model.change import RowKind

_OPEN_NUMBERS = ("start_ts", "op", "generation", "expire_ts", "flags", "row_no", "origin")
_COMMIT_NUMBERS = ("start_ts", "commit_ts", "op", "flags", "origin")
_READY_NUMBERS = ("op", "start_ts", "commit_ts", "expire_ts", "flags")
_UNDECIDED = ("key", "start_ts", "commit_ts", "region_id", "store_id")
_NONE: I64 = np.empty(0, np.int64)

COPY_BYTES_MAX = 16 << 20  #: of rows that one slice copies so that they do not pin larger segments


@dataclass(frozen=True, slots=True, kw_only=True)
class Undecided:
    """A commit whose prewrite cannot be determined."""

    key: bytes
    start_ts: int
    commit_ts: int
    region_id: int
    store_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The timestamps that separate old rows from new ones."""

    durable_ts: int  #: everything at or below is in the committed log
    attempted_ts: int  #: everything at or below may be; durable_ts <= attempted_ts


@dataclass(frozen=True, slots=True)
class _Outcomes:
    """The COMMIT and COMMITTED rows of a file, classified (row numbers)."""

    complete: I64  #: new COMMITTED rows
    new: I64  #: new COMMIT rows
    known: tuple[tuple[Run, I64, I64], ...]  #: (run, its row, COMMIT row with a value for it)
    decided: I64  #: rows whose transaction this file or an earlier one decided
    duplicates: int
    written: I64  #: at or below `durable_ts`


class PrewriteBuffer:
    """Unmatched prewrites and early commits of one task."""

    def __init__(self) -> None:
        self.open = RunSet(("key", "value", "old_value"))
        self.commits = RunSet(("key", "value"))
        self.dead = 0  #: prewrites dropped because W passed their cut_ts
        self.forgotten = 0  #: rollbacks without a prewrite
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

    def take_in(self, rows: Arrivals, watermarks: RangeWatermarkMap, at: Limits, ready: SortBuffer) -> None:
        """Take the rows of one file, before its watermark rows. UpstreamContractViolated changes nothing."""
        removed = Removed()
        try:
            outcomes = self._classify(rows, at, ready)
            self._raise_violation(self._late_complete(rows, outcomes.complete, watermarks))
            fresh, forgotten = self._without_ended(rows, outcomes, removed)
            added = self._merge(rows, fresh, removed)
            late, w = late_rows(rows, outcomes.new, watermarks)
            self._raise_violation(violations(rows, late[rows.ts("commit_ts")[late] <= np.uint64(at.attempted_ts)], w))
            self._raise_violation(violations(rows, late[~self._has_prewrite(rows.needles(late, "start_ts"), added)], w))
        except UpstreamContractViolated:
            removed.undo()
            raise
        for run in added:
            self.open.add(run)
        self._add_commits(rows, outcomes)
        self._add_complete(rows, outcomes, ready)
        self.forgotten += forgotten
        self.duplicates += outcomes.duplicates
        if len(outcomes.written):
            store = int(rows.origins["store_id"][0])
            self.dropped[store] = self.dropped.get(store, 0) + len(outcomes.written)

    def note_ready(self, regions: pa.RecordBatch, store_id: int, incarnation: int) -> None:
        """Record subscriptions whose opening scan has finished after their prewrites arrived."""
        unready = [run for run in self.open if run.live and run.unready()]
        if not unready:
            return
        now_ready = (
            from_arrow(regions)
            .filter(pl.col("tenure_ready_ts") != 0)
            .with_columns(
                pl.lit(store_id, pl.UInt64).alias("store_id"), pl.lit(incarnation, pl.UInt64).alias("incarnation")
            )
        )
        now_ready = now_ready.select(*SUBSCRIPTION_ID, pl.col("tenure_ready_ts").alias("told")).unique(
            SUBSCRIPTION_ID, keep="first", maintain_order=True
        )
        if not now_ready.height:
            return
        for run in unready:
            assert run.origins is not None
            matters = now_ready.join(run.origins.filter(pl.col("tenure_ready_ts") == 0), on=SUBSCRIPTION_ID, how="semi")
            if matters.height:
                run.origins = with_late_ready(run.origins, matters)
                self.late_ready = pl.concat([self.late_ready, matters]).unique(
                    SUBSCRIPTION_ID, keep="first", maintain_order=True
                )

    def settle(self, watermarks: RangeWatermarkMap, ready: SortBuffer) -> list[Undecided]:
        """Begin to decide the commits that W(key) has reached; call `decide_next` while `settling`. Returns newly
        undecided commits. Raises UpstreamContractViolated when such a commit has no prewrite."""
        self.look(watermarks)
        return self.decide_next(watermarks, ready)

    def look(self, watermarks: RangeWatermarkMap) -> None:
        """Queue the commits that W(key) has reached: from now on they hold the watermark."""
        self._decisions.look(self.commits, watermarks)
        self.settling = bool(self._decisions)

    def decide_next(self, watermarks: RangeWatermarkMap, ready: SortBuffer) -> list[Undecided]:
        """Decide the next slice; after the last one drop dead prewrites. Errors as in `settle`."""
        due = list(self._decisions.slice(watermarks))
        undecided = self._decide(due, ready) if due else []
        if self._decisions:
            return undecided
        self._decisions.done()
        self._drop_dead(watermarks)
        self.open.tidy()
        self.commits.tidy()
        ready.tidy(watermarks.watermark())
        self.settling = False
        return undecided

    def undecided(self, range_: KeyRange) -> list[tuple[Undecided, int, int, int]]:
        """The undecided commits of the range, lowest commit_ts first: per subscription the lowest one, the incarnation
        and seq of its file, and their number."""
        found = []
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
                    found.append((commit, row["incarnation"], row["seq"], count))
        return sorted(found, key=lambda f: f[0].commit_ts)

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

    def restore(
        self, open_: Sequence[Run], commits: Sequence[Run], violations: pl.DataFrame, range_: KeyRange, durable_ts: int
    ) -> list[Undecided]:
        """Load a snapshot, cut to the range; commits at or below `durable_ts` have been written since. Undecided ones
        hold the watermark at once; they are returned, because the earlier request for a subscription may be lost."""
        self.late_ready = violations
        for found, runs in ((open_, self.open), (commits, self.commits)):
            for run in found:
                cut(run, range_)
                runs.add(run)
        for run in self.commits:
            if run.span("commit_ts")[0] <= durable_ts:
                written = np.flatnonzero(run.alive & (run.ts("commit_ts") <= np.uint64(durable_ts)))
                self.open.kill(run.needles(written, "start_ts"), "start_ts")
                run.kill(written)
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

    # -- intake

    def _classify(self, rows: Arrivals, at: Limits, ready: SortBuffer) -> _Outcomes:
        outcome = rows.of_kind(RowKind.COMMIT, RowKind.COMMITTED)
        above = rows.ts("commit_ts")[outcome] > np.uint64(at.durable_ts)
        fresh = outcome[above]
        fresh = fresh[~ready.known(rows.needles(fresh, "commit_ts"))]
        is_complete = rows.kind[fresh] == RowKind.COMMITTED
        complete, commits = fresh[is_complete], fresh[~is_complete]
        if len(complete):
            complete = complete[rows.needles(complete, "commit_ts").first_equals() == np.arange(len(complete))]
            commits = commits[~rows.needles(commits, "commit_ts").within(rows.needles(complete, "commit_ts"))]
        decided = _NONE if len(commits) == len(outcome) else without(outcome, commits)
        commits = one_of_each(rows, commits)
        waits = np.zeros(len(commits), np.bool_)
        known: list[tuple[Run, I64, I64]] = []
        for run, found, there in self.commits.find(rows.needles(commits, "commit_ts"), "commit_ts"):
            waits[found] = True
            brought = has_value(rows, commits[found])
            known.append((run, there[brought], commits[found[brought]]))
        new = commits[~waits]
        duplicates = len(outcome) - len(complete) - len(new)
        return _Outcomes(complete, new, tuple(known), decided, duplicates, outcome[~above])

    def _late_complete(self, rows: Arrivals, complete: I64, watermarks: RangeWatermarkMap) -> pl.DataFrame | None:
        late, w = late_rows(rows, complete, watermarks)
        return violations(rows, late[~self.commits.known(rows.needles(late, "commit_ts"), "commit_ts")], w)

    def _without_ended(self, rows: Arrivals, outcomes: _Outcomes, removed: Removed) -> tuple[I64, int]:
        """The prewrites of the file that no outcome or rollback has ended, and the number of rollbacks without a match.
        Older prewrites that are ended leave."""
        fresh = rows.of_kind(RowKind.PREWRITE)
        if len(outcomes.decided):
            decided = rows.needles(outcomes.decided, "start_ts")
            fresh = fresh[~rows.needles(fresh, "start_ts").within(decided)]
            removed.kill(self.open, decided)
        rollbacks = rows.of_kind(RowKind.ROLLBACK)
        if not len(rollbacks):
            return fresh, 0
        needles = rows.needles(rollbacks, "start_ts")
        committing = self.commits.known(needles, "start_ts")
        committing |= needles.within(rows.needles(outcomes.new, "start_ts"))
        ends = rollbacks[~committing]
        before = rows.needles(ends, "start_ts")
        here, by = rows.needles(fresh, "start_ts").pairs(before)
        here = here[fresh[here] < ends[by]]
        ended = needles.within(rows.needles(fresh[here], "start_ts"))
        ended |= needles.within(before) & self.open.known(needles, "start_ts")
        removed.kill(self.open, before)
        return np.delete(fresh, here), int((~ended).sum())

    def _merge(self, rows: Arrivals, fresh: I64, removed: Removed) -> list[Run]:
        """Runs with these prewrites and the older ones of the same (key, start_ts), which leave."""
        if not len(fresh):
            return []
        run = rows.run(fresh, _OPEN_NUMBERS, fake=is_fake(rows, fresh))
        first = run.first_equals("start_ts")
        again = first != np.arange(len(run))
        doubtful = again.copy()
        doubtful[first[again]] = True
        group = []
        for old, found, there in self.open.find(run.needles(np.arange(len(run)), "start_ts"), "start_ts"):
            doubtful[found] = True
            there = removed.rows(old, there)
            group.append(frame_of(old, there, OPEN))
        if not doubtful.any():
            return [run]
        doubtful |= doubtful[first]
        at = np.flatnonzero(doubtful)
        group.append(frame_of(run, at, OPEN))
        run.kill(at)
        return [run, *runs_of(merged(pl.concat(group)), OPEN)]

    def _has_prewrite(self, needles: Needles, added: list[Run]) -> Flags:
        found = self.open.known(needles, "start_ts")
        for run in added:
            found[run.find(needles, "start_ts")[0]] = True
        return found

    def _add_commits(self, rows: Arrivals, outcomes: _Outcomes) -> None:
        new = outcomes.new
        added = rows.run(new, _COMMIT_NUMBERS, asked=np.zeros(len(new), np.bool_))
        added.origins = pl.DataFrame([rows.origins[name] for name in (*SOURCE, "region_id")])
        self.commits.add(added)
        for run, there, here in outcomes.known:
            if len(here):
                self._bring_values(run, there, rows, here)
        if len(outcomes.decided):
            self.commits.kill(rows.needles(outcomes.decided, "start_ts"), "start_ts")

    def _bring_values(self, run: Run, there: I64, rows: Arrivals, here: I64) -> None:
        """Add the values of second copies to waiting commits that have none."""
        known = frame_of(run, there, COMMITS)
        brought = rows.place.take(here).series("value")
        kept = known.with_columns(pl.coalesce(pl.col("value"), brought).alias("value"))
        run.kill(there)
        for learned_run in runs_of(kept, COMMITS):
            self.commits.add(learned_run)

    def _add_complete(self, rows: Arrivals, outcomes: _Outcomes, ready: SortBuffer) -> None:
        complete = outcomes.complete
        if not len(complete):
            return
        numbers = {name: rows.numbers[name][complete] for name in _READY_NUMBERS}
        ready.add_rows(rows.place.take(complete), numbers, rows.hashes[complete], young=rows.segment)
        self._clash |= bool(self.commits.known(rows.needles(complete, "commit_ts"), "commit_ts").any())

    def _undecided_runs(self) -> list[Run]:
        """The runs that hold, or held, undecided commits."""
        return [run for run in self.commits if run.live and has_undecided(run)]

    # -- deciding

    def _decide(self, due: list[tuple[Run, I64]], ready: SortBuffer) -> list[Undecided]:
        """Match these commits with their prewrites; returns newly undecided commits."""
        found = [(run, at, self.open.find(run.needles(at, "start_ts"), "start_ts")) for run, at in due]
        missing, doubtful, plain = [], [], []
        unsure: dict[Run, list[I64]] = {}  # prewrites; one row may be hit by commits of several runs
        for run, at, hits in found:
            count = np.zeros(len(at), np.int64)
            for _old, here, _there in hits:
                count += np.bincount(here, minlength=len(at))
            if not count.all():
                missing.append(frame_of(run, at[count == 0], COMMITS))
            sure = count == 1
            for old, here, there in hits:
                sure[here] &= fits(run, at[here], old, there)
            plain.append((run, at, hits, sure))
            if not sure.all():
                doubtful.append(frame_of(run, at[~sure], COMMITS))
                for old, here, there in hits:
                    unsure.setdefault(old, []).append(there[~sure[here]])
        if missing:
            self._raise_violation(pl.concat(missing).with_columns(w=pl.col("commit_ts")))
        self._ready(plain, ready)
        if not doubtful:
            return []
        open_ = [frame_of(run, np.unique(np.concatenate(rows)), OPEN) for run, rows in unsure.items()]
        return self._resolve(pl.concat(doubtful), pl.concat([empty(OPEN), *open_]), ready)

    def _ready(self, plain: list[tuple[Run, I64, list[tuple[Run, I64, I64]], Flags]], ready: SortBuffer) -> None:
        """Commits with exactly one matching prewrite: both leave, the row is ready."""
        old_places, old_numbers, old_hashes = [], [], []
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
                place = used_segments(old.place.take(prewrite))
                key_hashes = place.hashes() if hashes is None else hashes[here[mine]]
                self._decisions.spend(old, prewrite)
                run.kill(commit)
                if old.young is not None or _is_much(place):
                    ready.add_rows(place, numbers, key_hashes, young=old.young, merge=self._clash)
                else:
                    old_places.append(place)
                    old_numbers.append(numbers)
                    old_hashes.append(key_hashes)
        if old_places:  # a few rows must not pin the segment of a complete run
            numbers = {name: np.concatenate([n[name] for n in old_numbers]) for name in _READY_NUMBERS}
            place = compact(stacked(old_places), self.open.names)
            ready.add_rows(place, numbers, np.concatenate(old_hashes), merge=self._clash)

    def _resolve(self, due: pl.DataFrame, open_: pl.DataFrame, ready: SortBuffer) -> list[Undecided]:
        """The slow path for conflicting prewrites, each once; `row_no` orders the rows of one key and is not unique in
        a merged task. Undecided commits get a run of their own."""
        rows, doubtful = matched(due, open_)
        if rows.height:
            ready.add(rows)
            for done in runs_of(due.join(rows, on=VERSION, how="semi"), COMMITS):
                at = np.arange(len(done))
                for run, _, there in self.open.find(done.needles(at, "start_ts"), "start_ts"):
                    self._decisions.spend(run, there)
                self.commits.kill(done.needles(at, "commit_ts"), "commit_ts")
        new = doubtful.filter(~pl.col("asked"))
        if new.height:
            for asked in runs_of(new.with_columns(asked=pl.lit(value=True)), COMMITS):
                self.commits.kill(asked.needles(np.arange(len(asked)), "commit_ts"), "commit_ts")
                self.commits.add(asked)
        return _undecided(new)

    def _drop_dead(self, watermarks: RangeWatermarkMap) -> None:
        """Drop prewrites whose cut_ts W(key) has passed, unless their commit waits."""
        for run in self.open:
            lowest = run.least_cut()
            if not may_reach(run, lowest, watermarks) or not run.live:
                continue
            assert run.origins is not None
            thresholds = Thresholds(run.origins["cut_ts"].to_numpy(), lowest, run.numbers["origin"])
            gone = reached(run, thresholds, watermarks, strictly=True)
            if len(gone):
                gone = gone[~self.commits.known(run.needles(gone, "start_ts"), "start_ts")]
                self.dead += run.kill(gone)

    def _raise_violation(self, rows: pl.DataFrame | None) -> None:
        if rows is not None:
            raise_violation(rows)


def _undecided(commits: pl.DataFrame) -> list[Undecided]:
    return [Undecided(**row) for row in commits.sort(VERSION).select(_UNDECIDED).to_dicts()]


def _is_much(place: Place) -> bool:
    """Whether rows stay where they are: a few must not pin large segments, many cost too much to copy."""
    size = int(place.sizes(np.ones(len(place), np.bool_)).sum())
    return size > COPY_BYTES_MAX or 4 * size > sum(s.nbytes for s in place.segments)
