"""What a replay gives to its workers: which part of a task, which files in which order, up to which timestamp.

    steps of a leg, tasks, rows by region --> parts of each task's range, one plan row for each

Keys never meet: rows are matched by key, and W(key) is lifted slice by slice. So a task's range may be cut anywhere,
and each part is a run of the same core over the same files. Parts are cut where regions begin, so that each has about
as many rows, and the larger tasks get more of them.

Relations:

- the parts of a task tile its range, and have the same steps, positions and end;
- the steps of one (store, incarnation) are dense: they follow its position without a gap;
- `upto` is a timestamp that every part reaches by its watermark rows, so what is written can be handed over together.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from tistream.catalog.work.tasks import TaskRow
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.model.positions import Positions, position_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A file to take, or the end of an incarnation behind it."""

    store_id: int
    incarnation: int
    seq: int
    closes: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """The work of one worker."""

    tenant: Tenant
    part: int  #: number in this leg
    task_id: int
    epoch: int  #: of the replay
    range: KeyRange
    start_ts: int
    durable_ts: int  #: everything at or below is written
    upto: int  #: write up to here; `durable_ts` = nothing
    snapshot_key: str | None  #: of the whole task's state
    positions: Positions  #: of that state
    steps: tuple[Step, ...]
    memory_bytes: int  #: what its rows may take; 0 = a share of the machine's


def plan(
    tasks: Sequence[TaskRow],
    positions: Mapping[int, Positions],
    steps: Sequence[Step],
    upto: Mapping[int, int],
    weights: Mapping[int, Sequence[tuple[bytes, int]]],
    *,
    parts: int,
    memory_bytes: int = 0,
) -> list[PlanRow]:
    """A plan row for each part. `weights`: of each task, where regions begin and how many rows they have, by key;
    `parts`: about how many there shall be, not fewer than tasks."""
    shares = _shares({task.task_id: sum(n for _, n in weights[task.task_id]) for task in tasks}, parts)
    rows: list[PlanRow] = []
    for task in tasks:
        own = own_steps(steps, positions[task.task_id])
        for range_ in cut(task.range, weights[task.task_id], shares[task.task_id]):
            rows.append(
                PlanRow(
                    tenant=task.tenant,
                    part=len(rows),
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


def own_steps(steps: Iterable[Step], positions: Positions) -> tuple[Step, ...]:
    """The steps that a task with these positions has not done yet."""

    def is_new(step: Step) -> bool:
        at = position_of(positions.get(step.store_id, {}), step.incarnation)
        return not at.closed and (step.closes or step.seq > at.seq)

    return tuple(step for step in steps if is_new(step))


def cut(range_: KeyRange, weights: Sequence[tuple[bytes, int]], parts: int) -> list[KeyRange]:
    """At most so many ranges that tile `range_`, of about the same weight, cut where regions begin. `weights` as in
    `plan`."""
    total = sum(rows for _, rows in weights)
    cuts: list[bytes] = []
    before = 0
    for start, rows in weights:
        if start > range_.start and len(cuts) < parts - 1 and before * parts >= total * (len(cuts) + 1):
            cuts.append(start)
        before += rows
    edges = [range_.start, *cuts, range_.end]
    return [KeyRange(start, end) for start, end in pairwise(edges)]


def _shares(rows: Mapping[int, int], parts: int) -> dict[int, int]:
    """How many parts each task gets: one, and more for the larger ones."""
    total = max(1, sum(rows.values()))
    return {task_id: max(1, round(parts * of_task / total)) for task_id, of_task in rows.items()}
