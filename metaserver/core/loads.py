"""Known load of each item, from the workers' reports.

Only the report of an item's owner counts. For SETTLING_S after a move the load from before is kept: a new owner first
reports nothing, then the replay, and neither is the load of the item. An item not reported for FORGET_S counts as idle:
reports omit idle items.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import NamedTuple

from tistream.catalog.rows.reports import StoreReport, TaskReport, WorkerReport
from tistream.limits import RATE_WINDOW_S

SETTLING_S = 2 * RATE_WINDOW_S
FORGET_S = 30.0


class Load(NamedTuple):
    """Load of one item."""

    bytes_per_s: float
    open_rows: float
    held_bytes: float


class Loads:
    """The loads of one kind of item."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Load, float]] = {}
        self._moved: dict[Hashable, float] = {}

    def learn(self, reported: Iterable[tuple[Hashable, Load]], now_s: float) -> None:
        """Take the newest reports: (item, load), each from its owner."""
        self._moved = {key: at for key, at in self._moved.items() if now_s - at < SETTLING_S}
        for key, load in reported:
            if key not in self._moved:
                self._known[key] = load, now_s
        self._known = {
            key: known for key, known in self._known.items() if key in self._moved or now_s - known[1] < FORGET_S
        }

    def note_move(self, key: Hashable, now_s: float) -> None:
        """Note that the item moves to another worker."""
        self._moved[key] = now_s

    def items(self) -> Iterable[tuple[Hashable, Load]]:
        """The items with a known load."""
        return ((key, load) for key, (load, _) in self._known.items())


def task_loads(
    worker: str, report: WorkerReport, owner_of: Callable[[Hashable], str | None]
) -> Iterable[tuple[Hashable, Load]]:
    """The loads that a sorter reports of its own tasks."""
    return ((task.task_id, _of_task(task)) for task in report.tasks if owner_of(task.task_id) == worker)


def store_loads(
    worker: str, report: WorkerReport, owner_of: Callable[[Hashable], str | None]
) -> Iterable[tuple[Hashable, Load]]:
    """The loads that a dispatcher reports of its own stores."""
    reported = (((store.tenant, store.store_id), _of_store(store)) for store in report.stores)
    return ((key, load) for key, load in reported if owner_of(key) == worker)


def _of_task(task: TaskReport) -> Load:
    return Load(task.bytes_per_s, float(task.open_rows), float(task.held_bytes))


def _of_store(store: StoreReport) -> Load:
    return Load(store.bytes_per_s, 0.0, 0.0)
