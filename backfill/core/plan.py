"""Plans a batch of a replay: partitions of tasks, each with its files in order and the timestamp to reach (pure).

    steps of a batch, tasks, rows by region --> partitions of each task's range, one plan row each

Rows are matched by key, and W(key) rises slice by slice, so a task's range may be cut anywhere: each partition is a run
of the same core over the same files. Cuts are made where regions begin, with about equally many rows per partition;
larger tasks get more partitions.

Relations:

- the partitions of a task tile its range, and have the same steps, positions and end;
- the steps of one (store, incarnation) are dense: they follow its position without a gap;
- every partition reaches `upto` by its watermark rows, so the results can be handed over together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tistream.catalog.rows.segments import SegmentRow
from tistream.catalog.rows.tasks import TaskRow
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.model.positions import Positions, position_of


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRead:
    """A file to read, or the end of an incarnation behind it."""

    store_id: int
    incarnation: int
    seq: int
    closes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlanRow:
    """The work of one worker."""

    tenant: Tenant
    partition: int  #: number within the batch
    task_id: int
    epoch: int  #: of the replay
    range: KeyRange
    start_ts: int
    durable_ts: int  #: everything at or below is written
    upto: int  #: write up to here; `durable_ts` = nothing
    snapshot_key: str | None  #: of the whole task's state
    positions: Positions  #: of that state
    steps: tuple[ReplayRead, ...]
    memory_bytes: int  #: limit of its rows; 0 = a share of the machine's
    logged_above: int | None = None  #: `logged` is the log of the range in (this, durable_ts]; None = it was not read
    logged: tuple[SegmentRow, ...] = ()


def plan(
    tasks: Sequence[TaskRow],
    positions: Mapping[int, Positions],
    steps: Sequence[ReplayRead],
    upto: Mapping[int, int],
    weights: Mapping[int, Sequence[tuple[bytes, int]]],
    *,
    partitions: int,
    memory_bytes: int = 0,
) -> list[ReplayPlanRow]:
    """A plan row per partition. `weights`: task -> (start key, rows) of its regions, by key; `partitions`: about how
    many to make, at least one per task."""
    shares = _shares({task.task_id: sum(n for _, n in weights[task.task_id]) for task in tasks}, partitions)
    rows: list[ReplayPlanRow] = []
    for task in tasks:
        own = own_steps(steps, positions[task.task_id])
        for range_ in cut(task.range, weights[task.task_id], shares[task.task_id]):
            rows.append(
                ReplayPlanRow(
                    tenant=task.tenant,
                    partition=len(rows),
                    task_id=task.task_id,
                    epoch=task.epoch,
                    range=range_,
                    start_ts=task.start_ts,
                    durable_ts=task.durable_ts,
                    upto=upto[task.task_id],
                    snapshot_key=task.snapshot_key,
                    positions=positions[task.task_id],
                    steps=own,
                    memory_bytes=memory_bytes,
                )
            )
    return rows


def own_steps(steps: Iterable[ReplayRead], positions: Positions) -> tuple[ReplayRead, ...]:
    """The steps that lie behind these positions."""

    def is_new(step: ReplayRead) -> bool:
        at = position_of(positions.get(step.store_id, {}), step.incarnation)
        return not at.closed and (step.closes or step.seq > at.seq)

    return tuple(step for step in steps if is_new(step))


def cut(range_: KeyRange, weights: Sequence[tuple[bytes, int]], partitions: int) -> list[KeyRange]:
    """At most `partitions` ranges that tile `range_`, of about equal weight, cut where regions begin. `weights` as in
    `plan`."""
    total = sum(rows for _, rows in weights)
    cuts: list[bytes] = []
    before = 0
    for start, rows in weights:
        if start > range_.start and len(cuts) < partitions - 1 and before * partitions >= total * (len(cuts) + 1):
            cuts.append(start)
        before += rows
    edges = [range_.start, *cuts, range_.end]
    return [KeyRange(start, end) for start, end in pairwise(edges)]


def _shares(rows: Mapping[int, int], partitions: int) -> dict[int, int]:
    """The number of partitions of each task: at least one, more for larger tasks."""
    total = max(1, sum(rows.values()))
    return {task_id: max(1, round(partitions * of_task / total)) for task_id, of_task in rows.items()}
