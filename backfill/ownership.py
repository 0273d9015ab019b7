"""Holds a tenant's tasks during a replay, as a worker with an incarnation and a lease.

    register an incarnation -> heartbeats -> take the tasks (new epochs) ... retire

While it is alive the meta server leaves its tasks alone; the sorters that had them drop them, and their later writes
are refused. When it retires, or its lease expires, the tasks are assigned to sorters. Of two replays of one tenant the
later one wins: it registers under the same name, which fences the earlier one.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

import structlog

from tistream.catalog.database.engine import Catalog
from tistream.catalog.work.handover import take_tasks
from tistream.catalog.work.tasks import TaskRow
from tistream.catalog.work.workers import WorkerKind, heartbeat, register_worker, retire_worker
from tistream.clock import Clock
from tistream.errors import CatalogUnavailable, Fenced
from tistream.ids import Tenant
from tistream.limits import HEARTBEAT_MS
from tistream.runtime.service import Repeating

log = structlog.get_logger(__name__)


class Ownership:
    """Context manager: registered on entry, retired on exit."""

    def __init__(self, catalog: Catalog, tenant: Tenant, clock: Clock) -> None:
        self.worker_id = f"replay-{tenant.cluster_id}-{tenant.tenant_id}"
        self._catalog, self._tenant = catalog, tenant
        self._incarnation = 0
        self._heartbeat = Repeating(
            f"{self.worker_id}/heartbeat", self._beat, interval_s=HEARTBEAT_MS / 1000, clock=clock
        )

    def __enter__(self) -> Self:
        self._incarnation = register_worker(self._catalog, self.worker_id, WorkerKind.REPLAY, "")
        self._heartbeat.start()
        return self

    def take(self) -> list[TaskRow]:
        """Take the tenant's tasks that are not stopped, under new epochs."""
        return take_tasks(self._catalog, self._tenant, self.worker_id, self._incarnation)

    def check(self) -> None:
        """Fenced when another replay has started. Only saves work: epochs guard the hand-over."""
        if self._heartbeat.crashed:
            raise Fenced("another replay of this tenant has started", worker_id=self.worker_id)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._heartbeat.stop()
        try:
            retire_worker(self._catalog, self.worker_id, self._incarnation)
        except CatalogUnavailable as e:
            log.warning("replay not retired, its lease will expire", error=str(e))

    def _beat(self) -> None:
        heartbeat(self._catalog, self.worker_id, self._incarnation)
