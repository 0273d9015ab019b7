"""Broken rules of tasks that are split and merged. Each function names what it breaks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from simulator.dst.mutants import broken, register, replaced, reworded

_ADD_STATE = "_add_state(conn, part, positions, refers)"
_ONE_DURABLE_TS = (
    "invariant(left.durable_ts == right.durable_ts, "
    '"halves of one durable watermark are merged", left=left, right=right)'
)


@contextmanager
def _merging(*changes: tuple[str, str]) -> Iterator[None]:
    """The transaction of a merge reads otherwise."""
    from sorter.worker import merging
    from tistream.catalog.work import reshape

    with reworded(reshape, "merge_tasks", *changes), replaced(merging, "merge_tasks", reshape.merge_tasks):
        yield


broken(
    "part-without-positions (shapes): the parts of a task do not have the positions of its snapshot",
    (
        "tistream.catalog.work.reshape:split_task",
        "_add_state(conn, part, positions, refers)",
        "_add_state(conn, part, {}, refers)",
    ),
)


@register("part-without-state (shapes): a part continues after the snapshot of its task, without its rows")
def _part_without_state() -> Iterator[None]:
    from sorter.core.task_core import TaskCore

    whole = TaskCore.restore

    def restore(self: Any, snapshot: Any, positions: Any) -> None:
        edges = snapshot.slices["start_key"][0].as_py(), snapshot.slices["end_key"][-1].as_py()
        is_whole = edges == (self.range.start, self.range.end)
        whole(self, snapshot if is_whole else replace(snapshot, open=(), commits=(), ready=()), positions)

    with replaced(TaskCore, "restore", restore):
        yield


broken(
    "new-task-above-durable-watermark (shapes): a new task begins at the highest `durable_ts` of all tasks",
    (
        "tistream.catalog.work.reshape:_add_task",
        '"durable_ts": like.durable_ts,',
        '"durable_ts": max(conn.execute(select(_t.durable_ts)).scalars()),',
    ),
)
broken(
    "parts-let-go (shapes): the parts of a task do not refer to the objects of its snapshot",
    (
        "tistream.catalog.work.reshape:split_task",
        "_add_state(conn, part, positions, refers)",
        "_add_state(conn, part, positions, frozenset())",
    ),
)
broken(
    "split-task-stays (shapes): a task that was split continues beside its parts",
    ("tistream.catalog.work.reshape:split_task", "_drop(conn, task_id, refers)", "pass"),
)


@register("halves-stay (shapes): tasks that were merged continue beside the merged one")
def _halves_stay() -> Iterator[None]:
    with _merging(("_drop(conn, row.task_id, of_row)", "pass")):
        yield


@register("parts-of-old-epoch (shapes): the parts of a task have its epoch")
def _parts_of_old_epoch() -> Iterator[None]:
    from tistream.catalog.work import reshape

    old = tuple((f"range_=parts[{n}], epoch=row.epoch + 1", f"range_=parts[{n}], epoch=row.epoch") for n in (0, 1))
    with reworded(reshape, "split_task", *old):
        yield


@register("merged-at-two-durable-watermarks (shapes): two tasks are merged as they are, at the larger `durable_ts`")
def _merged_at_two_durable_timestamps() -> Iterator[None]:
    from sorter.state import join_snapshots
    from sorter.worker import merging

    joined = join_snapshots.joined

    def anyhow(range_: Any, states: Any) -> Any:
        durable_ts = max(state.durable_ts for state in states)
        return joined(range_, [replace(state, durable_ts=durable_ts) for state in states])

    larger = "durable_ts=max(row.durable_ts for row in rows), epoch=max("
    with (
        reworded(merging, "_place", ("if left.core.durable_ts != right.core.durable_ts:", "if False:")),
        replaced(merging, "joined", anyhow),
        _merging((_ONE_DURABLE_TS, "pass"), ("epoch=max(", larger)),
    ):
        yield


broken(
    "merged-unmet (shapes): a merged task continues at the larger position of each incarnation",
    ("sorter.worker.merging:_place", "has_reached(runner.core.positions(), now.until) and ", ""),
)


@register("merged-with-one-half (shapes): a merged task has the rows of its left half only")
def _merged_with_one_half() -> Iterator[None]:
    from sorter.state import join_snapshots
    from sorter.worker import merging

    one = ("_groups(run for state in states for run", "_groups(run for state in states[:1] for run")
    with reworded(join_snapshots, "joined", one), replaced(merging, "joined", join_snapshots.joined):
        yield
