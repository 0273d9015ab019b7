"""Rules for tasks that replace others, checked when the transaction has committed.

New and old ranges cover the same keys. For each key: kind, start_ts and `durable_ts` stay (`durable_ts` may have been
advanced by a flush that landed in the same step), the epoch rises, resubscribe_id does not fall, and no durable
position falls: files at or below it may have been deleted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tistream.keyrange import KeyRange

ShapePositions = Mapping[tuple[int, int], tuple[int, bool]]


@dataclass(frozen=True, slots=True)
class Shape:
    """The properties of a task that its replacement must keep."""

    range: KeyRange
    kind: str
    start_ts: int
    durable_ts: int
    epoch: int
    resubscribe_id: int


def wrong(
    gone: Mapping[int, Shape],
    come: Mapping[int, Shape],
    moved: Mapping[int, int],
    positions: tuple[Mapping[int, ShapePositions], Mapping[int, ShapePositions]],
) -> Iterator[str]:
    """The violations. `moved`: the durable watermarks to which flushes of the same step advanced replaced tasks;
    `positions`: those before and after."""
    if _outline(gone) != _outline(come):
        yield f"shapes: {_shown(gone)} went, {_shown(come)} came"
    for new_id, new in come.items():
        for old_id, old in gone.items():
            if old.range.intersect(new.range) is None:
                continue
            durable_ts = moved.get(old_id, old.durable_ts)
            if new.durable_ts != durable_ts:
                yield f"shapes: task {new_id} has durable watermark {new.durable_ts}, task {old_id} had {durable_ts}"
            if (new.kind, new.start_ts) != (old.kind, old.start_ts):
                yield f"shapes: task {new_id} is {new}, task {old_id} was {old}"
            if new.epoch <= old.epoch or new.resubscribe_id < old.resubscribe_id:
                yield f"shapes: task {new_id} is {new}, task {old_id} was {old}"
            yield from _fallen(new_id, positions[1].get(new_id, {}), old_id, positions[0].get(old_id, {}))


def _fallen(new_id: int, new: ShapePositions, old_id: int, old: ShapePositions) -> Iterator[str]:
    for incarnation, (seq, closed) in old.items():
        lowest = min((number for store, number in new if store == incarnation[0]), default=0)
        now, ended = new.get(incarnation, (0, incarnation[1] < lowest))  # those below the lowest entry have ended
        if not ended and (closed or now < seq):  # an incarnation that one half has closed counts as read
            yield f"shapes: task {new_id} is at {now} of {incarnation}, the snapshot of task {old_id} was at {seq}"


def _outline(tasks: Mapping[int, Shape]) -> list[KeyRange]:
    """Their union, without the edges between adjacent ones. Tasks that overlap are listed singly."""
    key_ranges: list[KeyRange] = []
    for range_ in sorted(task.range for task in tasks.values()):
        if key_ranges and key_ranges[-1].end and key_ranges[-1].end == range_.start:
            key_ranges[-1] = KeyRange(key_ranges[-1].start, range_.end)
        else:
            key_ranges.append(range_)
    return key_ranges


def _shown(tasks: Mapping[int, Shape]) -> str:
    return ", ".join(f"{task_id} {task.range}" for task_id, task in tasks.items()) or "nothing"
