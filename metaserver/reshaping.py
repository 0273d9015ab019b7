"""Requests splits and merges as `reshape` decides, from the sorters' reports.

Each change is one guarded transaction under the leader's epoch (tistream.catalog.work.reshape); the sorter that owns
both tasks then does a merge. A late change has no effect and is decided again in the next round.

Only tasks of the tenants in `candidates` are read. An error stops the reshaping of its tenant only.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from metaserver.candidates import candidates
from metaserver.contained import Contained
from metaserver.inventory import Columns
from metaserver.reshape import Cancel, Change, Merge, Reshaper, ReshapeSettings, Split
from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.reports import TaskReport
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.workers import WorkerKind
from tistream.catalog.work.reshape import cancel_merge, merging_tenants, request_merge, split_task
from tistream.catalog.work.tasks import tasks_of_tenants
from tistream.catalog.work.workers import list_workers
from tistream.clock import Clock
from tistream.errors import InvalidInput, NotFound
from tistream.ids import Tenant
from tistream.limits import LEASE_MS

ROLE = "reshaping"
INTERVAL_S = 2.0

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
        """`known`: all tasks with their owners, as this process knows them; None before it has read them. `name` of the
        process, for problems."""
        self.tenants = Contained(catalog, clock, name, ROLE)
        self._catalog, self._clock, self._settings, self._known = catalog, clock, settings, known
        self._reshaper = Reshaper(settings)
        self._due_s = clock.monotonic()

    def step(self, leader_epoch: int) -> None:
        """Decide and request changes, when due. Raises errors of reading."""
        now = self._clock.monotonic()
        if now < self._due_s:
            return
        self._due_s = now + INTERVAL_S
        columns = self._known()
        if columns is None:
            return
        reported = self._reported()
        rows = tasks_of_tenants(
            self._catalog, candidates(columns, reported, self._settings) | merging_tenants(self._catalog)
        )
        self.tenants.load()
        for change in self._reshaper.changes(rows, _of_owners(rows, reported), now):
            self.tenants.run(_tenant_of(change), lambda w=change: self._do(w, leader_epoch))  # type: ignore[misc]
        self.tenants.sync()

    def _do(self, change: Change, leader_epoch: int) -> None:
        try:
            done = self._act(change, leader_epoch)
        except (NotFound, InvalidInput) as e:  # the tasks have changed
            log.info("reshape not possible", cause=str(e))
            return
        log.info("reshape requested" if done else "reshape lost to another change", change=_text(change))

    def _reported(self) -> list[tuple[str, TaskReport]]:
        """(worker id, task report) of live sorters."""
        return [
            (worker.worker_id, report)
            for worker in list_workers(self._catalog, WorkerKind.SORTER)
            if worker.heartbeat_age_ms <= LEASE_MS
            for report in worker.report.tasks
        ]

    def _act(self, change: Change, leader_epoch: int) -> bool:
        match change:
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


def _of_owners(rows: list[TaskRow], reported: list[tuple[str, TaskReport]]) -> dict[int, TaskReport]:
    """Task id -> the report of its owner."""
    owners = {row.task_id: (row.owner, row.epoch) for row in rows}
    return {r.task_id: r for worker, r in reported if owners.get(r.task_id) == (worker, r.epoch)}


def _tenant_of(change: Change) -> Tenant:
    match change:
        case Split(task=row) | Merge(left=row) | Cancel(task=row):
            return row.tenant


def _text(change: Change) -> str:
    match change:
        case Split(task=row, key=key):
            return f"split task {row.task_id} at {key.hex()}"
        case Merge(left=left, right=right):
            return f"merge tasks {left.task_id} and {right.task_id}"
        case Cancel(task=row):
            return f"cancel merge of task {row.task_id}"
