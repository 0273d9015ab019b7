"""Takes the rows of one file into the buffers, before its watermark rows.

`take_in` is the algorithm, its steps in order; the functions below it are the steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import polars as pl

from sorter.core.conflicts import COMMITS, OPEN, frame_of, merged, runs_of
from sorter.core.raw_rows import take_raw
from sorter.core.sort_buffer import SortBuffer
from sorter.core.watermark import RangeWatermarkMap
from sorter.rows.batch_rows import SOURCE, SUBSCRIPTION, IncomingRows
from sorter.rows.run import Run, RunSet
from sorter.rows.undo_log import UndoLog
from tistream.errors import UpstreamContractViolated
from tistream.model.arrays import I64, U64, Mask
from tistream.model.change import Op, RowKind

_OPEN_NUMBERS = ("start_ts", "op", "generation", "expire_ts", "flags", "row_no", "origin")
_COMMIT_NUMBERS = ("start_ts", "commit_ts", "op", "flags", "origin")
_READY_NUMBERS = ("op", "start_ts", "commit_ts", "expire_ts", "flags")
_NONE: I64 = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The timestamps that separate old rows from new ones."""

    durable_ts: int  #: everything at or below is in the committed log
    attempted_ts: int  #: everything at or below may be; durable_ts <= attempted_ts


@dataclass(frozen=True, slots=True)
class Buffers:
    open: RunSet  #: prewrites without their commit
    commits: RunSet  #: commits that wait to be decided
    ready: SortBuffer


@dataclass(frozen=True, slots=True)
class Admitted:
    """What became of the rows of a file."""

    duplicates: int  #: repeated commits
    written: int  #: commits at or below `durable_ts`, RawKV rows at or below `attempted_ts`
    clash: bool  #: a commit waits although the ready row of another transaction has its (key, commit_ts)


@dataclass(frozen=True, slots=True)
class _Outcomes:
    """The COMMIT and COMMITTED rows of a file, classified (row numbers)."""

    complete: I64  #: new COMMITTED rows
    new: I64  #: new COMMIT rows
    known: tuple[tuple[Run, I64, I64], ...]  #: (run, its row, COMMIT row with a value for it)
    decided: I64  #: rows whose transaction this file or an earlier one decided
    duplicates: int
    written: int  #: number of rows at or below `durable_ts`


def take_in(rows: IncomingRows, buffers: Buffers, watermarks: RangeWatermarkMap, at: Limits) -> Admitted:
    """Take the rows of one file. UpstreamContractViolated and NotLoaded change nothing."""
    with UndoLog(buffers.open, buffers.commits, buffers.ready.runs) as log:
        outcomes = classify(rows, buffers, at)
        refuse_late_complete(rows, outcomes.complete, buffers.commits, watermarks)
        fresh = without_ended(rows, outcomes, buffers, log)
        prewrites = merge_with_older(rows, fresh, buffers.open, log)
        refuse_late_commits(rows, outcomes.new, [*buffers.open, *prewrites], watermarks, at)
        for run in prewrites:
            buffers.open.add(run)
        add_commits(rows, outcomes, buffers.commits, log)
        clash = add_complete(rows, outcomes.complete, buffers)
        raw = take_raw(rows, buffers.ready, at.attempted_ts, log)
    return Admitted(outcomes.duplicates + raw.duplicates, outcomes.written + raw.written, clash)


def classify(rows: IncomingRows, buffers: Buffers, at: Limits) -> _Outcomes:
    """Separate new outcomes from duplicates."""
    outcome = rows.of_kind(RowKind.COMMIT, RowKind.COMMITTED)
    above = rows.ts("commit_ts")[outcome] > np.uint64(at.durable_ts)
    fresh = outcome[above]
    fresh = fresh[~buffers.ready.known(rows.lookup_keys(fresh, "commit_ts"))]
    is_complete = rows.kind[fresh] == RowKind.COMMITTED
    complete, commits = fresh[is_complete], fresh[~is_complete]
    if len(complete):
        complete = complete[rows.lookup_keys(complete, "commit_ts").first_equals() == np.arange(len(complete))]
        commits = commits[~rows.lookup_keys(commits, "commit_ts").within(rows.lookup_keys(complete, "commit_ts"))]
    decided = _NONE if len(commits) == len(outcome) else _without(outcome, commits)
    commits = _one_of_each(rows, commits)
    waits = np.zeros(len(commits), np.bool_)
    known: list[tuple[Run, I64, I64]] = []
    for run, matches, there in buffers.commits.find(rows.lookup_keys(commits, "commit_ts"), "commit_ts", whole=True):
        waits[matches] = True
        brought = _has_value(rows, commits[matches])
        known.append((run, there[brought], commits[matches[brought]]))
    new = commits[~waits]
    duplicates = len(outcome) - len(complete) - len(new)
    return _Outcomes(complete, new, tuple(known), decided, duplicates, len(outcome) - int(above.sum()))


def refuse_late_complete(rows: IncomingRows, complete: I64, commits: RunSet, watermarks: RangeWatermarkMap) -> None:
    """A COMMITTED row at or below W(key) must answer a commit that waits."""
    late, w = late_rows(rows, complete, watermarks)
    raise_violation(violations(rows, late[~commits.known(rows.lookup_keys(late, "commit_ts"), "commit_ts")], w))


def without_ended(rows: IncomingRows, outcomes: _Outcomes, buffers: Buffers, log: UndoLog) -> I64:
    """The prewrites of the file that no outcome or rollback has ended. Older prewrites that are ended leave."""
    fresh = rows.of_kind(RowKind.PREWRITE)
    if len(outcomes.decided):
        decided = rows.lookup_keys(outcomes.decided, "start_ts")
        fresh = fresh[~rows.lookup_keys(fresh, "start_ts").within(decided)]
        log.kill_equal(buffers.open, decided, "start_ts")
    rollbacks = rows.of_kind(RowKind.ROLLBACK)
    if not len(rollbacks):
        return fresh
    lookup_keys = rows.lookup_keys(rollbacks, "start_ts")
    committing = buffers.commits.known(lookup_keys, "start_ts")
    committing |= lookup_keys.within(rows.lookup_keys(outcomes.new, "start_ts"))
    ends = rollbacks[~committing]
    before = rows.lookup_keys(ends, "start_ts")
    here, by = rows.lookup_keys(fresh, "start_ts").pairs(before)
    here = here[fresh[here] < ends[by]]
    log.kill_equal(buffers.open, before, "start_ts")
    return np.delete(fresh, here)


def merge_with_older(rows: IncomingRows, fresh: I64, open_: RunSet, log: UndoLog) -> list[Run]:
    """Runs with these prewrites and the older ones of the same (key, start_ts), which leave."""
    if not len(fresh):
        return []
    run = prewrites_of(rows, fresh)
    first = run.first_equals("start_ts")
    again = first != np.arange(len(run))
    doubtful = again.copy()
    doubtful[first[again]] = True
    group = []
    for old, matches, there in open_.find(run.lookup_keys(np.arange(len(run)), "start_ts"), "start_ts", whole=True):
        doubtful[matches] = True
        there = np.unique(there)
        log.kill(old, there)
        group.append(frame_of(old, there, OPEN))
    if not doubtful.any():
        return [run]
    doubtful |= doubtful[first]
    at = np.flatnonzero(doubtful)
    group.append(frame_of(run, at, OPEN))
    run.kill(at)
    return [run, *runs_of(merged(pl.concat(group)), OPEN)]


def prewrites_of(rows: IncomingRows, at: I64) -> Run:
    """A run of these prewrites."""
    is_fake = (rows.numbers["op"][at] == Op.PUT) & ~_has_value(rows, at)
    return rows.run(at, _OPEN_NUMBERS, fake=np.asarray(is_fake))


def refuse_late_commits(
    rows: IncomingRows, new: I64, prewrites: list[Run], watermarks: RangeWatermarkMap, at: Limits
) -> None:
    """A new COMMIT row at or below W(key) must lie above `attempted_ts` and have a prewrite."""
    late, w = late_rows(rows, new, watermarks)
    raise_violation(violations(rows, late[rows.ts("commit_ts")[late] <= np.uint64(at.attempted_ts)], w))
    has_prewrite = RunSet((), prewrites).known(rows.lookup_keys(late, "start_ts"), "start_ts")
    raise_violation(violations(rows, late[~has_prewrite], w))


def add_commits(rows: IncomingRows, outcomes: _Outcomes, commits: RunSet, log: UndoLog) -> None:
    """Add new commits and the values of second copies; drop the decided ones."""
    new = outcomes.new
    added = rows.run(new, _COMMIT_NUMBERS, asked=np.zeros(len(new), np.bool_))
    added.origins = pl.DataFrame([rows.origins[name] for name in (*SOURCE, "region_id")])
    commits.add(added)
    for run, there, here in outcomes.known:
        if not len(here):
            continue
        brought = rows.refs.take(here).series("value")
        kept = frame_of(run, there, COMMITS).with_columns(pl.coalesce(pl.col("value"), brought).alias("value"))
        log.kill(run, there)
        for with_value in runs_of(kept, COMMITS):
            commits.add(with_value)
    if len(outcomes.decided):
        log.kill_equal(commits, rows.lookup_keys(outcomes.decided, "start_ts"), "start_ts")


def add_complete(rows: IncomingRows, complete: I64, buffers: Buffers) -> bool:
    """Add new COMMITTED rows; whether a commit with the (key, commit_ts) of one of them still waits."""
    if not len(complete):
        return False
    numbers = {name: rows.numbers[name][complete] for name in _READY_NUMBERS}
    buffers.ready.add_rows(rows.refs.take(complete), numbers, rows.hashes[complete], young=rows.segment)
    return bool(buffers.commits.known(rows.lookup_keys(complete, "commit_ts"), "commit_ts").any())


def late_rows(rows: IncomingRows, at: I64, watermarks: RangeWatermarkMap) -> tuple[I64, U64]:
    """(those of the rows at or below W(key), W of every row of the file or 0 where it was not looked up)."""
    w = np.zeros(len(rows), np.uint64)
    near = at[rows.ts("commit_ts")[at] <= np.uint64(watermarks.highest())]
    if len(near):
        w[near] = watermarks.w_at(rows.refs.take(near))
    return near[rows.ts("commit_ts")[near] <= w[near]], w


def violations(rows: IncomingRows, at: I64, w: U64) -> pl.DataFrame | None:
    """Details of contract violations by these rows; None when there are none."""
    if not len(at):
        return None
    keys = rows.refs.take(at).series("key")
    frame = pl.DataFrame({"key": keys, **{n: rows.numbers[n][at] for n in ("start_ts", "commit_ts")}, "w": w[at]})
    return frame.hstack(rows.origins.select(*SOURCE, *SUBSCRIPTION)[rows.numbers["origin"][at]])


def raise_violation(rows: pl.DataFrame | None) -> None:
    """Raise UpstreamContractViolated with the first of the violations, if any."""
    if rows is not None:
        first = rows.sort("commit_ts").row(0, named=True)
        names = ("key", "start_ts", "commit_ts", "region_id", "store_id", "incarnation", "seq", "w")
        raise UpstreamContractViolated(**{name: first[name] for name in names}, rows=rows.height)


def _without(rows: I64, others: I64) -> I64:
    kept = np.ones(int(rows[-1]) + 1, np.bool_)
    kept[others] = False
    return rows[kept[rows]]


def _one_of_each(rows: IncomingRows, live: I64) -> I64:
    """COMMIT rows with one row per (key, commit_ts), preferably one with a value."""
    if not len(live):
        return live
    first = rows.lookup_keys(live, "commit_ts").first_equals()
    if (first == np.arange(len(live))).all():
        return live
    live = live[np.argsort(~_has_value(rows, live), kind="stable")]
    first = rows.lookup_keys(live, "commit_ts").first_equals()
    return np.sort(live[first == np.arange(len(live))])


def _has_value(rows: IncomingRows, at: I64) -> Mask:
    sizes = np.diff(rows.refs.take(at).layout("value")[0])
    return np.asarray(sizes > 0)
