"""Has tasks split and merged as `reshape` decides, from what their sorters report with their heartbeats.

Each wish is one guarded transaction under the owner's epoch (tistream.catalog.work.reshape); a merge is then done by
the sorter that owns both tasks. A wish that comes too late changes nothing and is thought over again the next time.

Read are only the tasks of tenants of which something may change: see `candidates`. An error of one wish stops the
reshaping of its tenant and of no other.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from metaserver.candidates import candidates
from metaserver.contained import Contained
from metaserver.inventory import Columns
from metaserver.reshape import Cancel, Merge, Reshaper, ReshapeSettings, Split, Wish
from tistream.catalog.database.engine import Catalog
from tistream.catalog.work.reports import TaskReport
from tistream.catalog.work.reshape import cancel_merge, merging_tenants, request_merge, split_task
from tistream.catalog.work.tasks import TaskRow, tasks_of_tenants
from tistream.catalog.work.workers import WorkerKind, list_workers
from tistream.clock import Clock
from tistream.errors import InvalidInput, NotFound
from tistream.ids import Tenant
from tistream.limits import LEASE_MS

ROLE = "reshaping"
LOOK_EVERY_S = 2.0

log = structlog.get_logger(__name__)


class Reshaping:
    """Used from one thread."""

    def __init__(
        self,
        catalog: Catalog,
        clock: Clock,
        settings: ReshapeSettings,
        known: Callable[[], Columns | None],
        name: str = "",
    ) -> None:
        """`known`: all tasks with their owners, as this process knows them; None when it has not read them yet. `name`
        of the process, in problems."""
        self.tenants = Contained(catalog, clock, name, ROLE)
        self._catalog, self._clock, self._settings, self._known = catalog, clock, settings, known
        self._reshaper = Reshaper(settings)
        self._due_s = clock.monotonic()

    def step(self, leader_epoch: int) -> None:
        """Look at the tasks, if it is time. Errors of looking pass through."""
        now = self._clock.monotonic()
        if now < self._due_s:
            return
        self._due_s = now + LOOK_EVERY_S
        columns = self._known()
        if columns is None:
            return
        said = self._said()
        rows = tasks_of_tenants(
            self._catalog, candidates(columns, said, self._settings) | merging_tenants(self._catalog)
        )
        self.tenants.load()
        for wish in self._reshaper.wishes(rows, _of_owners(rows, said), now):
            self.tenants.run(_tenant_of(wish), lambda w=wish: self._do(w, leader_epoch))  # type: ignore[misc]
        self.tenants.sync()

    def _do(self, wish: Wish, leader_epoch: int) -> None:
        try:
            done = self._act(wish, leader_epoch)
        except (NotFound, InvalidInput) as e:  # the tasks are others by now
            log.info("tasks stay as they are", cause=str(e))
            return
        log.info("tasks change" if done else "tasks have changed meanwhile", wish=_told(wish))

    def _said(self) -> list[tuple[str, TaskReport]]:
        """What living sorters say of tasks now."""
        return [
            (worker.worker_id, report)
            for worker in list_workers(self._catalog, WorkerKind.SORTER)
            if worker.heartbeat_age_ms <= LEASE_MS
            for report in worker.report.tasks
        ]

    def _act(self, wish: Wish, leader_epoch: int) -> bool:
        match wish:
            case Split(task=row, key=key):
                parts = split_task(self._catalog, row.task_id, key, seen_epoch=row.epoch, leader_epoch=leader_epoch)
                return parts is not None
            case Merge(left=left, right=right):
                epochs = left.epoch, right.epoch
                return request_merge(
                    self._catalog, left.task_id, right.task_id, seen_epochs=epochs, leader_epoch=leader_epoch
                )
            case Cancel(task=row):
                return cancel_merge(self._catalog, row.task_id, seen_epoch=row.epoch, leader_epoch=leader_epoch)


def _of_owners(rows: list[TaskRow], said: list[tuple[str, TaskReport]]) -> dict[int, TaskReport]:
    """What the owner of each of these tasks says of it."""
    owners = {row.task_id: (row.owner, row.epoch) for row in rows}
    return {r.task_id: r for worker, r in said if owners.get(r.task_id) == (worker, r.epoch)}


def _tenant_of(wish: Wish) -> Tenant:
    match wish:
        case Split(task=row) | Merge(left=row) | Cancel(task=row):
            return row.tenant


def _told(wish: Wish) -> str:
    match wish:
        case Split(task=row, key=key):
            return f"split task {row.task_id} at {key.hex()}"
        case Merge(left=left, right=right):
            return f"merge tasks {left.task_id} and {right.task_id}"
        case Cancel(task=row):
            return f"do not merge task {row.task_id}"
