"""What the leader believes about the load of each item, from the workers' reports.

A report is believed when it comes from the worker that has the item. For SETTLING_S after a move the belief from before
stays: a new owner first reports nothing, then the replay, and neither says what the item weighs. What nobody has
reported for FORGET_S weighs nothing: reports leave out what is idle.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from tistream.catalog.work.reports import RATE_WINDOW_S, StoreReport, TaskReport, WorkerReport

SETTLING_S = 2 * RATE_WINDOW_S
FORGET_S = 30.0


class Load(NamedTuple):
    """Of one item."""

    bytes_per_s: float
    open_rows: float
    held_bytes: float


IDLE = Load(0.0, 0.0, 0.0)


class Loads:
    """The loads of one kind of item."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Load, float]] = {}
        self._moved: dict[Hashable, float] = {}

    def learn(self, said: Iterable[tuple[Hashable, Load]], now_s: float) -> None:
        """The newest reports of all workers, each item from the worker that has it."""
        self._moved = {key: at for key, at in self._moved.items() if now_s - at < SETTLING_S}
        for key, load in said:
            if key not in self._moved:
                self._known[key] = load, now_s
        self._known = {
            key: known for key, known in self._known.items() if key in self._moved or now_s - known[1] < FORGET_S
        }

    def note_move(self, key: Hashable, now_s: float) -> None:
        """The item goes to another worker."""
        self._moved[key] = now_s

    def items(self) -> Iterable[tuple[Hashable, Load]]:
        """What is known to weigh something."""
        return ((key, load) for key, (load, _) in self._known.items())


def task_loads(
    worker: str, report: WorkerReport, owner_of: Callable[[Hashable], str | None]
) -> Iterable[tuple[Hashable, Load]]:
    """What a sorter says of the tasks that it has."""
    return ((task.task_id, _of_task(task)) for task in report.tasks if owner_of(task.task_id) == worker)


def store_loads(
    worker: str, report: WorkerReport, owner_of: Callable[[Hashable], str | None]
) -> Iterable[tuple[Hashable, Load]]:
    """What a dispatcher says of the stores that it has."""
    said = (((store.tenant, store.store_id), _of_store(store)) for store in report.stores)
    return ((key, load) for key, load in said if owner_of(key) == worker)


def _of_task(task: TaskReport) -> Load:
    return Load(task.bytes_per_s, float(task.open_rows), float(task.held_bytes))


def _of_store(store: StoreReport) -> Load:
    return Load(store.bytes_per_s, 0.0, 0.0)
