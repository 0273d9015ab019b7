"""Mutants of what a task decides: watermarks, matching, dead prewrites, duplicates, restore."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from simulator.dst.mutants import register, replaced, reworded


@register("written-left-out", "a watermark row that begins at or below `durable_ts` waits for W", scenario="owners")
def _written_left_out() -> Iterator[None]:
    from sorter.core.slots import Slots

    with reworded(Slots, "reaches", ("np.maximum(self.w[slot], self.floor)", "self.w[slot]")):
        yield


@register("counts-before-ready", "a subscription counts although its opening scan goes on", scenario="scans")
def _counts_before_ready() -> Iterator[None]:
    from sorter.core import watermark

    with reworded(watermark, "_resolved_of", ("np.where(ready, resolved, np.uint64(0))", "resolved.copy()")):
        yield


@register(
    "dead-by-start-ts",
    "a prewrite is dead once W has passed its start_ts, instead of its file's cut_ts",
    scenario="reclaim",
)
def _dead_by_start_ts() -> Iterator[None]:
    from sorter.core.prewrite_buffer import PrewriteBuffer

    with reworded(
        PrewriteBuffer,
        "_drop_dead",
        ("not may_reach(run, lowest, watermarks) or not run.live", "not run.live"),
        (
            'Thresholds(run.origins["cut_ts"].to_numpy(), lowest, run.numbers["origin"])',
            'Thresholds(run.ts("start_ts"), 0)',
        ),
    ):
        yield


@register("dead-at-cut-ts", "a prewrite is dead when W equals its file's cut_ts", scenario="coarse")
def _dead_at_cut_ts() -> Iterator[None]:
    from sorter.core.prewrite_buffer import PrewriteBuffer

    with reworded(PrewriteBuffer, "_drop_dead", ("strictly=True", "strictly=False")):
        yield


@register("dead-while-commit-waits", "a prewrite is dead by cut_ts although its commit waits", scenario="spread")
def _dead_while_commit_waits() -> Iterator[None]:
    from sorter.core.prewrite_buffer import PrewriteBuffer

    with reworded(
        PrewriteBuffer,
        "_drop_dead",
        ('gone[~self.commits.known(run.needles(gone, "start_ts"), "start_ts")]', "gone"),
    ):
        yield


@register(
    "rollback-beats-commit", "a rollback of a transaction deletes a prewrite whose commit waits", scenario="spread"
)
def _rollback_beats_commit() -> Iterator[None]:
    from sorter.core.prewrite_buffer import PrewriteBuffer

    with reworded(PrewriteBuffer, "_without_ended", ("rollbacks[~committing]", "rollbacks")):
        yield


@register("overlapped-commit-deleted", "a rollback deletes the waiting commit whose commit_ts it overlaps", "spread")
def _overlapped_commit_deleted() -> Iterator[None]:
    from sorter.core.prewrite_buffer import PrewriteBuffer

    old = "self._add_complete(rows, outcomes, ready)"
    gone = 'self.commits.kill(rows.needles(rows.of_kind(RowKind.ROLLBACK), "start_ts"), "commit_ts")'
    with reworded(PrewriteBuffer, "take_in", (old, f"{gone}; {old}")):
        yield


@register("promise-before-duplicates", "a repeated row is taken for an upstream contract violation", "upstream")
def _promise_before_duplicates() -> Iterator[None]:
    from sorter.core.prewrite_buffer import PrewriteBuffer

    early = "self._raise_violation(violations(rows, *late_rows(rows, rows.of_kind(RowKind.COMMITTED), watermarks)))"
    old = "outcomes = self._classify(rows, at, ready)"
    with reworded(PrewriteBuffer, "take_in", (old, f"{early}; {old}")):
        yield


@register("fake-wins", "a PUT without its value replaces the full prewrite before it", scenario="overflow")
def _fake_wins() -> Iterator[None]:
    from sorter.core import prewrite_buffer

    with reworded(
        prewrite_buffer, "merged", ('pl.col("full") == pl.col("full").max().over(TXN)', "pl.lit(value=True)")
    ):
        yield


@register("lower-generation-wins", "of two flushes of a pipelined transaction the lower counts", scenario="overflow")
def _lower_generation_wins() -> Iterator[None]:
    from sorter.core import conflict_rule, conflicts, prewrite_buffer

    with (
        reworded(prewrite_buffer, "merged", ('pl.col("generation").max()', 'pl.col("generation").min()')),
        reworded(conflict_rule, "choose", ("max((c.generation", "min((c.generation")),
        replaced(conflicts, "choose", conflict_rule.choose),
    ):
        yield


@register("earlier-row-wins", "of two prewrites of one subscription the earlier counts", scenario="overflow")
def _earlier_row_wins() -> Iterator[None]:
    from sorter.core import prewrite_buffer

    with reworded(prewrite_buffer, "merged", ('keep="last"', 'keep="first"')):
        yield


@register("early-commits-forgotten", "a commit whose prewrite has not come is dropped", scenario="reclaim")
def _early_commits_forgotten() -> Iterator[None]:
    from sorter.core.prewrite_buffer import PrewriteBuffer

    old = "decided = _NONE if"
    mine = 'mine = rows.needles(commits, "start_ts"); said = rows.of_kind(RowKind.PREWRITE)'
    met = 'met = self.open.known(mine, "start_ts"); at, by = mine.pairs(rows.needles(said, "start_ts"))'
    drop = "met[at[said[by] < commits[at]]] = True; commits = commits[met]"
    with reworded(PrewriteBuffer, "_classify", (old, f"{mine}; {met}; {drop}\n    {old}")):
        yield


@register("undecided-not-held", "the watermark passes an undecided commit", scenario="doubt")
def _undecided_not_held() -> Iterator[None]:
    from sorter.core.task_core import TaskCore

    with reworded(TaskCore, "watermark", ("min(w, hold)", "w")):
        yield


@register("commits-not-awaited", "W passes commits that wait: only what is ready counts", scenario="upstream")
def _commits_not_awaited() -> Iterator[None]:
    from sorter.core.prewrite_buffer import PrewriteBuffer

    with reworded(PrewriteBuffer, "look", ("look(self.commits,", "look((),")):
        yield


@register("partly-decided-written", "W passes a commit_ts of which only some rows are decided", scenario="pieces")
def _partly_decided_written() -> Iterator[None]:
    from sorter.core.prewrite_buffer import PrewriteBuffer

    with reworded(PrewriteBuffer, "hold", ("self._decisions.lowest()", "list[int]()")):
        yield


@register("watermarks-before-data", "a file's watermark rows are applied before its data")
def _watermarks_before_data() -> Iterator[None]:
    from sorter.core.task_core import TaskCore

    early = "self._watermarks.apply(batch.regions, batch.store_id, batch.incarnation, batch.seq)"
    old = "self._prewrites.take_in("
    with reworded(TaskCore, "_take_rows", (old, f"{early}; {old}")):
        yield


@register("duplicates-not-merged", "a row that is ready already is added again", scenario="upstream")
def _duplicates_not_merged() -> Iterator[None]:
    from sorter.core.sort_buffer import SortBuffer

    with replaced(SortBuffer, "known", lambda self, needles: np.zeros(len(needles), np.bool_)):
        yield


@register("written-rows-come-again", "a duplicate at or below `durable_ts` counts as new", scenario="upstream")
def _written_rows_come_again() -> Iterator[None]:
    from sorter.core.prewrite_buffer import PrewriteBuffer

    with reworded(PrewriteBuffer, "_classify", ("fresh = outcome[above]", "fresh = outcome")):
        yield


@register("taken-rows-leave", "rows leave the buffer when they are handed to a flush, not when it is done", "owners")
def _taken_rows_leave() -> Iterator[None]:
    from sorter.core.sort_buffer import SortBuffer

    whole = SortBuffer.take

    def take(self: Any, w: int) -> Any:
        rows = whole(self, w)
        self.flushed(w)
        return rows

    with replaced(SortBuffer, "take", take):
        yield


@register("restore-lifts-w", "a restored W is lifted to `durable_ts`, so that prewrites die early", scenario="spread")
def _restore_lifts_w() -> Iterator[None]:
    from sorter.core.task_core import TaskCore

    lift = "self._watermarks._slots.w.clip(self._durable_ts, None, out=self._watermarks._slots.w)"
    with reworded(TaskCore, "restore", ("self._positions =", f"{lift}; self._positions =")):
        yield


@register("restore-keeps-written", "ready rows at or below `durable_ts` stay after a restore", scenario="spread")
def _restore_keeps_written() -> Iterator[None]:
    from sorter.core.sort_buffer import SortBuffer

    with reworded(SortBuffer, "restore", ("self.flushed(durable_ts)", "pass")):
        yield


@register("restore-keeps-commits", "waiting commits at or below `durable_ts` stay after a restore", scenario="spread")
def _restore_keeps_commits() -> Iterator[None]:
    from sorter.core.prewrite_buffer import PrewriteBuffer

    with reworded(PrewriteBuffer, "restore", ('run.span("commit_ts")[0] <= durable_ts', "False")):
        yield


@register("restore-lets-go", "undecided commits do not hold the watermark after a restore", scenario="doubt")
def _restore_lets_go() -> Iterator[None]:
    from sorter.core.prewrite_buffer import PrewriteBuffer

    def forget(self: Any, *args: Any) -> Any:
        whole(self, *args)
        for run in self._undecided_runs():
            run.numbers = {**run.numbers, "asked": np.zeros(len(run), np.bool_)}
            run.facts["asked"] = False
        return []

    whole = PrewriteBuffer.restore
    with replaced(PrewriteBuffer, "restore", forget):
        yield
