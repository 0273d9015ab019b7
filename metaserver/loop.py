"""The meta server's background work: be elected, activate tenants, give out stores and tasks.

    assignment thread    every 0.3 s: acquire or renew ownership, give out stores and tasks
    activation thread    every 0.3 s, while owner: look for schema snapshots of waiting tenants
    collection thread    every ten minutes, while owner: delete what was replaced or never visible, and old events
    retention thread     every ten minutes, while owner: raise floors, retire what lies below
    audit thread         once a day, while owner: compare catalog and bucket

They are apart because the others read the object store, and a takeover must not wait for that. Only the elected owner
acts, and every assignment carries the owner's epoch and the item's epoch that it saw: an owner that was replaced while
it paused changes nothing. A worker counts as dead when the *database* has not heard of it for LEASE_MS, or when it says
that it is draining or gone. With no owner elected nothing moves and data keeps flowing.
"""

from __future__ import annotations

import structlog

from metaserver.activation import Activation
from metaserver.assign import Owned, moves
from metaserver.audit import Auditor
from metaserver.collect import GRACE_MS, Collector
from metaserver.reshape import ReshapeSettings
from metaserver.reshaping import Reshaping
from metaserver.retention import Retention
from schemas.registry import SchemaRegistry
from tistream.catalog.engine import Catalog
from tistream.catalog.events import prune_events
from tistream.catalog.owner import acquire_owner, renew_owner
from tistream.catalog.stores import assign_store, list_stores
from tistream.catalog.tasks import assign_task, list_tasks
from tistream.catalog.workers import WorkerKind, WorkerState, list_workers
from tistream.clock import Clock
from tistream.errors import Fenced
from tistream.limits import LEASE_MS
from tistream.objectstore.protocol import ObjectStore
from tistream.service import Problem, Repeating, ServiceGroup

log = structlog.get_logger(__name__)

INTERVAL_S = 0.3
COLLECT_INTERVAL_S = 600.0
RETENTION_INTERVAL_S = 600.0
AUDIT_INTERVAL_S = 86_400.0


class MetaWorker:
    """A Service. Several may run; one of them is the owner."""

    def __init__(
        self,
        catalog: Catalog,
        store: ObjectStore,
        clock: Clock,
        name: str,
        data_tasks: int = 2,
        *,
        interval_s: float = INTERVAL_S,
        collect_interval_s: float = COLLECT_INTERVAL_S,
        grace_ms: int = GRACE_MS,
        reshape: ReshapeSettings | None = None,
        retention_hours: float | None = None,
        retention_interval_s: float = RETENTION_INTERVAL_S,
        audit_interval_s: float = AUDIT_INTERVAL_S,
    ) -> None:
        """`name` must differ between the processes that run at the same time: it is what the election compares.
        Without `reshape` tasks stay as they are. `retention_hours` is what is kept of a tenant without a retention of
        its own, 0 = all; None = this process retires and audits nothing."""
        self.name = name
        self._catalog, self._clock = catalog, clock
        self._activation = Activation(catalog, store, clock, data_tasks)
        self._collector = Collector(catalog, store, clock, grace_ms=grace_ms)
        self._reshaping = None if reshape is None else Reshaping(catalog, clock, reshape)
        registry = SchemaRegistry(catalog, store, clock=clock)
        self._retention = Retention(catalog, registry, default_hours=retention_hours or 0)
        self._auditor = Auditor(catalog, store, clock)
        self._audit_interval_s, self._audited = audit_interval_s, clock.monotonic()
        self._epoch: int | None = None
        self._assignment = Repeating(f"{name}/assignment", self.assign, interval_s=interval_s, clock=clock)
        self._threads = ServiceGroup(
            name,
            (
                self._assignment,
                Repeating(f"{name}/activation", self.activate, interval_s=interval_s, clock=clock),
                Repeating(f"{name}/collection", self.collect, interval_s=collect_interval_s, clock=clock),
                *(
                    ()
                    if retention_hours is None
                    else (
                        Repeating(f"{name}/retention", self.retain, interval_s=retention_interval_s, clock=clock),
                        Repeating(f"{name}/audit", self.audit, interval_s=min(600.0, audit_interval_s), clock=clock),
                    )
                ),
            ),
            clock,
        )

    def start(self) -> None:
        self._threads.start()

    def wait_until_ready(self, timeout_s: float) -> bool:
        return self._threads.wait_until_ready(timeout_s)

    def stop(self) -> None:
        self._threads.stop()

    def problems(self) -> list[Problem]:
        found = self._threads.problems() + self._activation.problems(self.name)
        return found + self._retention.problems() + self._auditor.problems()

    @property
    def owner_epoch(self) -> int | None:
        """My epoch while I am the owner."""
        return self._epoch

    def lease_age_s(self) -> float | None:
        """Seconds since a round of election and assignment went well; None before the first."""
        return self._assignment.succeeded_age_s

    def assign(self) -> None:
        """One round of election and assignment."""
        self._elect()
        if self._epoch is not None:
            self._assign_stores(self._epoch)
            self._assign_tasks(self._epoch)
            if self._reshaping is not None:
                self._reshaping.step(self._epoch)

    def activate(self) -> None:
        """One round of activation. Activating is guarded by itself; being the owner only saves the listing."""
        if self._epoch is not None:
            self._activation.step()

    def collect(self) -> None:
        """One round of collection. Each deletion is guarded by itself; being the owner only saves the listing."""
        if self._epoch is not None:
            self._collector.step()
            prune_events(self._catalog)

    def retain(self) -> None:
        """One round of retention. Each step is guarded by itself; being the owner only saves the work."""
        if self._epoch is not None:
            self._retention.step()

    def audit(self) -> None:
        """Compare catalog and bucket, when the last time was long ago. It reads only."""
        now = self._clock.monotonic()
        if self._epoch is not None and now - self._audited >= self._audit_interval_s:
            self._auditor.step()
            self._audited = now

    def _elect(self) -> None:
        if self._epoch is not None:
            try:
                renew_owner(self._catalog, self.name, self._epoch)
                return
            except Fenced:
                log.warning("another meta server is the owner now", me=self.name, epoch=self._epoch)
                self._epoch = None
        self._epoch = acquire_owner(self._catalog, self.name)
        if self._epoch is not None:
            log.info("this meta server is the owner", me=self.name, epoch=self._epoch)

    def _alive(self, kind: WorkerKind) -> list[str]:
        return [
            worker.worker_id
            for worker in list_workers(self._catalog, kind)
            if worker.state == WorkerState.UP and worker.heartbeat_age_ms <= LEASE_MS
        ]

    def _assign_stores(self, owner_epoch: int) -> None:
        rows = [Owned(item=row, owner=row.dispatcher) for row in list_stores(self._catalog)]
        for move in moves(rows, self._alive(WorkerKind.DISPATCHER)):
            row = move.item
            assign_store(
                self._catalog,
                row.tenant,
                row.store_id,
                worker_id=move.to,
                seen_epoch=row.dispatcher_epoch,
                owner_epoch=owner_epoch,
            )
            log.info("store assigned", tenant=str(row.tenant), store=row.store_id, was=row.dispatcher, to=move.to)

    def _assign_tasks(self, owner_epoch: int) -> None:
        replays = set(self._alive(WorkerKind.REPLAY))  # what they hold stays with them for as long as they live
        rows = [Owned(item=row, owner=row.owner) for row in list_tasks(self._catalog) if row.owner not in replays]
        for move in moves(rows, self._alive(WorkerKind.SORTER)):
            row = move.item
            assign_task(self._catalog, row.task_id, worker_id=move.to, seen_epoch=row.epoch, owner_epoch=owner_epoch)
            log.info("task assigned", tenant=str(row.tenant), task=row.task_id, was=row.owner, to=move.to)
