"""Which worker owns a task, for every subscription: rows of a task go to its present owner alone.

A subscription names its task, the task's epoch and the worker. The dispatcher compares them with the catalog:

    admit      when it is opened, with what is known, or else with a fresh read of the tenant's tasks
    refresh    by the dispatcher's refresh: reads them again when any task was assigned, added or removed
    check      at each poll, without a read: a replaced owner's open stream ends at the refresh after the assignment

While the catalog is unavailable nothing is assigned, and what is known stays in force.
"""

from __future__ import annotations

import threading
from collections.abc import Collection

from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.work.tasks import list_tasks, tasks_of_tenants, tasks_stamp
from tistream.errors import Fenced, InvalidInput
from tistream.feed.protocol import FeedRequest
from tistream.ids import Tenant
from tistream.runtime import metrics

_REFUSED = metrics.FEED_REFUSED.labels("not_owner")


class TaskOwners:
    """The tasks of the tenants with subscriptions. Thread-safe."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._lock = threading.Lock()  # one read at a time: a later one never sees older rows
        self._marking = threading.Lock()  # of what follows; never held while the catalog is asked
        self._tasks: dict[Tenant, dict[int, TaskRow]] = {}
        self._admitted: set[Tenant] = set()  # since the last refresh began, whose caller may not know them yet
        self._stamp: tuple[int, ...] = ()

    def admit(self, request: FeedRequest) -> None:
        """Fenced unless the request's worker owns the task under its epoch; InvalidInput when it asks for other keys
        than the task's."""
        with self._marking:
            self._admitted.add(request.tenant)
            if self._is_owned(request):
                return
        with self._lock:
            rows = list_tasks(self._catalog, request.tenant)
            with self._marking:
                self._tasks = {**self._tasks, request.tenant: {row.task_id: row for row in rows}}
        if not self._is_owned(request):
            _REFUSED.inc()
        self.check(request)

    def check(self, request: FeedRequest) -> None:
        """As `admit`, by what is known."""
        row = self._tasks.get(request.tenant, {}).get(request.task_id)
        if row is None:
            raise Fenced("the tenant has no such task", task=request.task_id, tenant=str(request.tenant))
        if (row.owner, row.epoch) != (request.worker_id, request.epoch):
            raise Fenced(
                "the task has another owner or epoch", task=request.task_id, worker=request.worker_id,
                epoch=request.epoch, current=row.epoch,
            )  # fmt: skip
        if row.range != request.range:
            raise InvalidInput("a subscription asks for the range of its task", task=request.task_id)

    def refresh(self, tenants: Collection[Tenant]) -> None:
        """Read again what has changed, and forget other tenants: not one with a subscription that was admitted after
        the caller had listed `tenants`."""
        with self._lock:
            with self._marking:
                kept = self._tasks.keys() & {*tenants, *self._admitted}
                self._admitted = set()
            stamp, rows = self._stamp, dict[Tenant, dict[int, TaskRow]]()
            if kept:
                stamp = tasks_stamp(self._catalog)
                if stamp == self._stamp and kept == self._tasks.keys():
                    return
                rows = {tenant: {} for tenant in kept}
                for row in tasks_of_tenants(self._catalog, kept):
                    rows[row.tenant][row.task_id] = row
            with self._marking:
                meanwhile = self._tasks.keys() & self._admitted - rows.keys()
                self._tasks = {**rows, **{tenant: self._tasks[tenant] for tenant in meanwhile}}
            self._stamp = stamp

    def _is_owned(self, request: FeedRequest) -> bool:
        try:
            self.check(request)
        except (Fenced, InvalidInput):
            return False
        return True
