"""Mutants of what a task decides: watermarks, matching, dead prewrites, duplicates, restore."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from simulator.dst.mutants import broken, register, replaced, reworded

broken(
    "written-left-out (owners): a watermark row that begins at or below `durable_ts` waits for W",
    ("sorter.core.slots:Slots.reaches", "np.maximum(self.w[slot], self.floor)", "self.w[slot]"),
)
broken(
    "counts-before-ready (scans): a subscription counts during its opening scan",
    ("sorter.core.watermark:resolved_of", "np.where(ready, resolved, np.uint64(0))", "resolved.copy()"),
)
broken(
    "dead-by-start-ts (reclaim): a prewrite is dead once W has passed its start_ts, instead of its file's cut_ts",
    (
        "sorter.core.prewrite_buffer:PrewriteBuffer._drop_dead",
        "run.live and may_reach(run, run.least_cut(), watermarks)",
        "run.live",
        "_past_cut(run, watermarks)",
        'reached(run, Thresholds(run.ts("start_ts"), 0), watermarks, strictly=True)',
    ),
)
broken(
    "dead-at-cut-ts (coarse): a prewrite is dead when W equals its file's cut_ts",
    ("sorter.core.prewrite_buffer:_past_cut", "strictly=True", "strictly=False"),
)
broken(
    "dead-while-commit-waits (spread): a prewrite is dead by cut_ts although its commit waits",
    (
        "sorter.core.prewrite_buffer:PrewriteBuffer._drop_dead",
        'gone[~self.commits.known(run.lookup_keys(gone, "start_ts"), "start_ts")]',
        "gone",
    ),
)
broken(
    "rollback-beats-commit (spread): a rollback of a transaction deletes a prewrite whose commit waits",
    ("sorter.core.admission:without_ended", "rollbacks[~committing]", "rollbacks"),
)
broken(
    "overlapped-commit-deleted (spread): a rollback deletes the waiting commit whose commit_ts it overlaps",
    (
        "sorter.core.prewrite_buffer:take_in",
        "clash = add_complete(",
        (
            'buffers.commits.kill(rows.lookup_keys(rows.of_kind(RowKind.ROLLBACK), "start_ts"), "commit_ts"); '
            "clash = add_complete("
        ),
    ),
)


@register("promise-before-duplicates (upstream): a repeated row is taken for an upstream contract violation")
def _promise_before_duplicates() -> Iterator[None]:
    from sorter.core import prewrite_buffer

    early = "raise_violation(violations(rows, *late_rows(rows, rows.of_kind(RowKind.COMMITTED), watermarks)))"
    old = "outcomes = classify(rows, buffers, at)"
    with reworded(prewrite_buffer, "take_in", (old, f"{early}; {old}")):
        yield


broken(
    "fake-wins (overflow): a PUT without its value replaces the full prewrite before it",
    ("sorter.core.admission:merged", 'pl.col("full") == pl.col("full").max().over(TXN)', "pl.lit(value=True)"),
)


@register("lower-generation-wins (overflow): of two flushes of a pipelined transaction the lower counts")
def _lower_generation_wins() -> Iterator[None]:
    from sorter.core import admission, conflict_rule, conflicts

    with (
        reworded(admission, "merged", ('pl.col("generation").max()', 'pl.col("generation").min()')),
        reworded(conflict_rule, "choose", ("max((c.generation", "min((c.generation")),
        replaced(conflicts, "choose", conflict_rule.choose),
    ):
        yield


broken(
    "earlier-row-wins (overflow): of two prewrites of one subscription the earlier counts",
    ("sorter.core.admission:merged", 'keep="last"', 'keep="first"'),
)
broken(
    "early-commits-forgotten (reclaim): a commit whose prewrite has not come is dropped",
    (
        "sorter.core.admission:classify",
        "decided = _NONE if",
        (
            'mine = rows.lookup_keys(commits, "start_ts"); said = rows.of_kind(RowKind.PREWRITE); '
            'met = buffers.open.known(mine, "start_ts"); '
            'at, by = mine.pairs(rows.lookup_keys(said, "start_ts")); '
            "met[at[said[by] < commits[at]]] = True; commits = commits[met]\n    decided = _NONE if"
        ),
    ),
)
broken(
    "undecided-not-held (doubt): the watermark passes an undecided commit",
    ("sorter.core.task_core:TaskCore.watermark", "min(w, hold)", "w"),
)
broken(
    "commits-not-awaited (upstream): W passes commits that wait: only what is ready counts",
    ("sorter.core.prewrite_buffer:PrewriteBuffer.look", "look(self.commits,", "look((),"),
)
broken(
    "partly-decided-written (pieces): W passes a commit_ts before all its rows are decided",
    ("sorter.core.prewrite_buffer:PrewriteBuffer.hold", "self._decisions.lowest()", "list[int]()"),
)
broken(
    "watermarks-before-data (usual): a file's watermark rows are applied before its data",
    (
        "sorter.core.task_core:TaskCore._take_rows",
        "self._prewrites.take_in(",
        (
            "self._watermarks.apply(batch.regions, batch.store_id, batch.incarnation, batch.seq); "
            "self._prewrites.take_in("
        ),
    ),
)
broken(
    "duplicates-not-merged (upstream): a row that is ready already is added again",
    ("sorter.core.sort_buffer:SortBuffer.known", lambda self, lookup_keys: np.zeros(len(lookup_keys), np.bool_)),
)
broken(
    "written-rows-come-again (upstream): a duplicate at or below `durable_ts` counts as new",
    ("sorter.core.admission:classify", "fresh = outcome[above]", "fresh = outcome"),
)


@register("taken-rows-leave (owners): rows leave the buffer when they are handed to a flush, not when it is done")
def _taken_rows_leave() -> Iterator[None]:
    from sorter.core.sort_buffer import SortBuffer

    whole = SortBuffer.take

    def take(self: Any, w: int) -> Any:
        rows = whole(self, w)
        self.flushed(w)
        return rows

    with replaced(SortBuffer, "take", take):
        yield


broken(
    "restore-lifts-w (spread): a restored W is lifted to `durable_ts`, so that prewrites die early",
    (
        "sorter.core.task_core:TaskCore.restore",
        "self._positions =",
        ("self._watermarks._slots.w.clip(self._durable_ts, None, out=self._watermarks._slots.w); self._positions ="),
    ),
)
broken(
    "restore-keeps-written (spread): ready rows at or below `durable_ts` stay after a restore",
    ("sorter.core.sort_buffer:SortBuffer.restrict", "self.flushed(durable_ts)", "pass"),
)
broken(
    "restore-keeps-commits (spread): waiting commits at or below `durable_ts` stay after a restore",
    ("sorter.core.prewrite_buffer:PrewriteBuffer.restrict", 'run.span("commit_ts")[0] <= durable_ts', "False"),
)


@register("restore-lets-go (doubt): undecided commits do not hold the watermark after a restore")
def _restore_lets_go() -> Iterator[None]:
    from sorter.core.prewrite_buffer import PrewriteBuffer

    def forget(self: Any, *args: Any) -> Any:
        whole(self, *args)
        for run in self._undecided_runs():
            run.numbers = {**run.numbers, "asked": np.zeros(len(run), np.bool_)}
            run.facts["asked"] = False
        return []

    whole = PrewriteBuffer.restrict
    with replaced(PrewriteBuffer, "restrict", forget):
        yield
