"""The tasks that the catalog assigns to this worker; when there are many, their rows are cached by version stamp."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.work.tasks import owned_stamp, tasks_owned_by
from tistream.clock import Clock

MANY_TASKS = 100  #: from this many tasks on, the stamp is read first
REREAD_S = 10.0  #: after this time the rows are read again whatever the stamp


class Owned:
    """Used from one thread."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog, self._clock = catalog, clock
        self._rows: dict[int, TaskRow] = {}
        self._stamp: tuple[int, ...] = ()
        self._read_s = 0.0

    def look(self, worker_id: str, incarnation: int, *, is_here: Callable[[int], bool]) -> Mapping[int, TaskRow]:
        """Task id -> its row. The progress of a task that `is_here` may be stale; everything that others decide (epoch,
        error, merge) is current, and so is the whole row of a task that is not here yet."""
        stamp: tuple[int, ...] = ()
        if len(self._rows) >= MANY_TASKS:
            stamp = owned_stamp(
                self._catalog, worker_id, incarnation
            )  # read before the rows, so that later changes differ from it
            is_fresh = self._clock.monotonic() - self._read_s < REREAD_S
            if stamp == self._stamp and is_fresh and not self._has_new(is_here):
                return self._rows
        self._rows = {row.task_id: row for row in tasks_owned_by(self._catalog, worker_id, incarnation)}
        self._stamp, self._read_s = stamp, self._clock.monotonic()
        return self._rows

    def _has_new(self, is_here: Callable[[int], bool]) -> bool:
        return any(row.error is None and not is_here(task_id) for task_id, row in self._rows.items())
