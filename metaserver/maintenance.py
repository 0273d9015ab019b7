"""Maintenance: counts the tenants' logs, decides which jobs they need, and records these in the catalog.

    each round:  open and ended jobs -> count some tenants -> `metaserver.core.maintenance.decide` -> enqueue, withdraw

Executors take the jobs (`tistream.catalog.work.jobs`); a meta server does none of their work. Counting costs a few
aggregates per tenant, so a round spends at most a quarter of its interval on it, those first that were counted longest
ago. An error of one tenant does not affect the others. A paused tenant is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import structlog

from metaserver.contained import Contained
from metaserver.core.maintenance import JobsNow, MaintenanceRules, TenantNeed, decide
from metaserver.needs import Needs
from schemas.registry.schema_registry import SchemaRegistry
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.retention import database_time_ms
from tistream.catalog.rows.tenants import TenantRow, TenantState
from tistream.catalog.rows.workers import WorkerKind, WorkerState
from tistream.catalog.tenancy.tenants import list_tenants
from tistream.catalog.work.job_rows import newest_ended, open_jobs, spent_bytes
from tistream.catalog.work.jobs import enqueue, withdraw_jobs
from tistream.catalog.work.workers import pulses
from tistream.clock import Clock
from tistream.ids import Tenant
from tistream.limits import LEASE_MS
from tistream.model.problem import Problem
from tistream.objectstore.protocol import ObjectStore

log = structlog.get_logger(__name__)

ROLE = "maintenance"
INTERVAL_S = 30.0
_COUNTING = 0.25  #: of the interval


@dataclass(frozen=True, slots=True)
class _Counted:
    need: TenantNeed
    at_s: float
    newest_job: int  #: the tenant's newest ended job then


class MaintenanceScheduler:
    """Schedules the jobs of all tenants. Used from one thread."""

    def __init__(
        self,
        catalog: Catalog,
        store: ObjectStore,
        registry: SchemaRegistry,
        clock: Clock,
        rules: MaintenanceRules,
        *,
        default_hours: float,
        interval_s: float = INTERVAL_S,
        name: str = "",
    ) -> None:
        """`default_hours`: retention of tenants without their own; 0 = all. `name` of the process, for problems."""
        self._catalog, self._clock, self._rules = catalog, clock, rules
        self._needs = Needs(catalog, store, registry, clock, rules, default_hours)
        self._counting_s = interval_s * _COUNTING
        self._counted: dict[Tenant, _Counted] = {}
        self.tenants = Contained(catalog, clock, name, ROLE)

    def step(self, leader_epoch: int) -> list[int]:
        """One round; the ids of the jobs added. Each write is guarded by the leader's epoch and by what is open."""
        self.tenants.load()
        tenants = list_tenants(self._catalog)
        rows = [row for row in tenants if row.state is TenantState.ACTIVE]
        tenants_now = {row.tenant for row in rows}
        self.tenants.keep_only(tenants_now)
        self._needs.keep_only(tenants_now)
        jobs = self._known(frozenset(row.tenant for row in tenants if row.state is TenantState.PAUSED))
        self._count(rows, jobs)
        decision = decide([c.need for c in self._counted.values()], jobs, self._rules)
        added = enqueue(self._catalog, decision.enqueue, leader_epoch=leader_epoch)
        withdraw_jobs(self._catalog, decision.withdraw, leader_epoch=leader_epoch)
        if added:
            log.info("maintenance jobs added", count=len(added))
        self.tenants.sync()
        return added

    def problems(self) -> list[Problem]:
        """The tenants that cannot be counted."""
        return self.tenants.problems()

    def _count(self, rows: list[TenantRow], jobs: JobsNow) -> None:
        """Count tenants again, as many as the time allows; a figure from before a job ended is dropped."""
        newest: dict[Tenant, int] = {}
        for job in jobs.ended:
            newest[job.tenant] = max(newest.get(job.tenant, 0), job.job_id)
        busy = jobs.busy
        tenants_now = {row.tenant for row in rows}
        self._counted = {
            tenant: counted
            for tenant, counted in self._counted.items()
            if tenant in tenants_now - busy and counted.newest_job == newest.get(tenant, 0)
        }
        begun_s = self._clock.monotonic()
        idle = [row for row in rows if row.tenant not in busy]
        for row in sorted(idle, key=lambda r: self._counted_s(r.tenant)):
            self.tenants.run(row.tenant, lambda r=row: self._count_one(r, newest.get(r.tenant, 0)))  # type: ignore[misc]
            if self._clock.monotonic() - begun_s > self._counting_s:
                return

    def _counted_s(self, tenant: Tenant) -> float:
        counted = self._counted.get(tenant)
        return float("-inf") if counted is None else counted.at_s

    def _count_one(self, row: TenantRow, newest_job: int) -> None:
        self._counted.pop(row.tenant, None)
        need = self._needs.of(row)
        self._counted[row.tenant] = _Counted(need, self._clock.monotonic(), newest_job)

    def _known(self, paused: frozenset[Tenant]) -> JobsNow:
        workers = pulses(self._catalog)
        return JobsNow(
            now_ms=database_time_ms(self._catalog),
            open=open_jobs(self._catalog),
            ended=newest_ended(self._catalog),
            paused=paused,
            spent_bytes=spent_bytes(self._catalog, window_ms=self._rules.window_ms),
            spark=any(
                p.kind is WorkerKind.SPARK and p.state is WorkerState.UP and p.heartbeat_age_ms <= LEASE_MS
                for p in workers
            ),
        )
