"""Background work of a meta server: election, assignment, activation, collection, retention, maintenance, audit and
exports.

    assignment thread    every 0.3 s: acquire or renew leadership, assign stores, tasks and lanes, rotate the
                         service token, switch on features, look at the database's settings
    activation thread    every 0.3 s, while leader: activate waiting tenants by their schema snapshots
    collection thread    every ten minutes, while leader: delete replaced and orphaned objects, those of deleted
                         tenants, old events and entries of the audit log
    retention thread     every ten minutes, while leader: raise floors, retire the log below
    maintenance thread   every 30 s, while leader: record jobs for executors
    audit thread         once a day, while leader: compare catalog and bucket
    export thread        as often as the settings say, and when asked to, while leader: export the catalog into the
                         bucket

The threads are separate because the others read the object store, and a takeover must not wait for that. Only the
leader acts, and every assignment carries the leader's epoch and the item's epoch that it saw: a leader that was
replaced while it paused changes nothing. A worker counts as live until it retires or is suspected
(`metaserver.core.failure_detector`); `metaserver.core.balance` decides what moves. Without a leader nothing moves, and
data keeps flowing.

An error stops one tenant, or one job, in one role (`metaserver.contained`); no error ends a thread. Stops are recorded
in the catalog, and retried at once when an operator resumes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from metaserver.activation import LONGEST_PAUSE_S, Activation
from metaserver.audit import Auditor
from metaserver.collect import GRACE_MS, Collector
from metaserver.contained import Contained
from metaserver.core.failure_detector import FailureDetector
from metaserver.core.maintenance import MaintenanceRules
from metaserver.deletion import Deletion
from metaserver.inventory import Inventory, LaneItems, StoreItems, TaskItems, Workers
from metaserver.maintenance import INTERVAL_S as MAINTENANCE_INTERVAL_S
from metaserver.maintenance import MaintenanceScheduler
from metaserver.reshape import ReshapeSettings
from metaserver.reshaping import Reshaping
from metaserver.retention import Retention
from schemas.registry.schema_registry import SchemaRegistry
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import prune_events
from tistream.catalog.database.server_settings import CommitsNotDurable, lost_in_a_crash
from tistream.catalog.rows.reports import WorkerReport
from tistream.catalog.rows.workers import Pulse, WorkerKind, WorkerState
from tistream.catalog.tenancy.audit_log import prune_audit_log
from tistream.catalog.tenancy.tenants import every_tenant
from tistream.catalog.work.exports import export_status, switch_exports_off
from tistream.catalog.work.features import EXPORTS, FEATURES, Feature, switch_on, switched_on
from tistream.catalog.work.jobs import prune_jobs
from tistream.catalog.work.leader import acquire_leadership, note_silence, renew_leadership, report_as_leader
from tistream.catalog.work.service_tokens import rotate_service_token
from tistream.catalog.work.stopped_items import forget_stale_items
from tistream.catalog.work.workers import list_workers, pulses
from tistream.clock import Clock, Due
from tistream.errors import Fenced
from tistream.exports.exporter import Exporter
from tistream.limits import CLOCK_SKEW_MAX_MS, LEASE_MS, WAITING_BYTES_MAX
from tistream.model.problem import Problem
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime.service import Repeating, ServiceGroup

log = structlog.get_logger(__name__)

INTERVAL_S = 0.3
COLLECT_INTERVAL_S = 600.0
RETENTION_INTERVAL_S = 600.0
AUDIT_INTERVAL_S = 86_400.0
EXPORT_LOOK_S = 5.0  #: between two looks whether an export is due
RESUMED_S = 1.0  #: between two checks for resumed stops, while something is stopped
JOB_FIRST_S, JOB_MAX_S = 0.5, 5.0  #: retry pauses of assignment jobs, short because a takeover waits for them
FEATURES_S = 10.0  #: between two looks at who lives, while a feature is not switched on
SETTINGS_S = 60.0  #: between two looks at the settings of the database's server
TOKEN_S = 60.0  #: between two looks at the age of the service token; less with a short life
REPORTS_S = 2.0  #: between two reads of the workers' reports ...
REPORTS_PAUSES = 20  #: ... or this many times the duration of a read, with very many items


@dataclass(frozen=True, slots=True)
class _Role:
    """A thread, the items that errors may stop in it, and an action before a requested retry."""

    thread: Repeating
    stopped: tuple[Contained, ...]
    before_retry: Callable[[], None] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaOptions:
    """How often a meta server acts, and by which rules."""

    interval_s: float = INTERVAL_S
    data_tasks: int = 2  #: of a new tenant
    activation_pause_max_s: float = LONGEST_PAUSE_S
    skew_max_ms: int = CLOCK_SKEW_MAX_MS
    collect_interval_s: float = COLLECT_INTERVAL_S
    grace_ms: int = GRACE_MS
    retention_hours: float | None = None  #: of a tenant without its own, 0 = all; None = no retention and no audit
    retention_interval_s: float = RETENTION_INTERVAL_S
    audit_interval_s: float = AUDIT_INTERVAL_S
    maintenance: MaintenanceRules | None = None  #: None = no jobs are scheduled
    maintenance_interval_s: float = MAINTENANCE_INTERVAL_S
    reshape: ReshapeSettings | None = None  #: None = tasks are not split or merged
    exporter: Exporter | None = None  #: None = the catalog is not exported, and deletions do not wait for that
    export_interval_s: float = 300.0
    waiting_bytes_max: int = WAITING_BYTES_MAX  #: more bytes that only wait for an export begin one at once
    service_token_hours: float = 24
    audit_retention_s: int = 0  #: of the audit log; 0 = for ever
    features: Sequence[Feature] = FEATURES


class MetaWorker:
    """A Service. Several may run; one of them is the leader."""

    def __init__(
        self, catalog: Catalog, store: ObjectStore, clock: Clock, name: str, options: MetaOptions = MetaOptions()
    ) -> None:
        """`name` must be unique: a process that starts under the leader's name replaces it."""
        self.name = name
        self._catalog, self._clock = catalog, clock
        grace_ms, hours = options.grace_ms, options.retention_hours or 0
        self._activation = Activation(
            catalog,
            store,
            clock,
            options.data_tasks,
            name,
            options.skew_max_ms,
            pause_max_s=options.activation_pause_max_s,
        )
        self._collector = Collector(catalog, store, clock, grace_ms=grace_ms, name=name)
        self._deletion = Deletion(catalog, store, clock, self._collector, grace_ms=grace_ms, name=name)
        self._pruning, self._audit_log_s = Contained(catalog, clock, name, "pruning"), options.audit_retention_s
        tasks = TaskItems(catalog)
        self._assigning = Contained(
            catalog, clock, name, "assignment", stopped_first_s=JOB_FIRST_S, stopped_max_s=JOB_MAX_S
        )
        reshape, rules = options.reshape, options.maintenance
        self._reshaping = None if reshape is None else Reshaping(catalog, clock, reshape, tasks.known, name)
        registry = SchemaRegistry(catalog, store, clock=clock)
        self._retention = Retention(catalog, registry, default_hours=hours, grace_ms=grace_ms, clock=clock, name=name)
        self._maintenance = None
        if rules is not None:
            pause_s = options.maintenance_interval_s
            self._maintenance = MaintenanceScheduler(
                catalog, store, registry, clock, rules, default_hours=hours, interval_s=pause_s, name=name
            )
        self._auditor = Auditor(catalog, store, clock, name=name)
        self._exporter, self._exporting = options.exporter, Contained(catalog, clock, name, "export")
        self._export_due, self._waiting_bytes_max = Due(options.export_interval_s), options.waiting_bytes_max
        self._epoch: int | None = None
        self._detector, self._has_led = FailureDetector(), False
        self._silent = dict[str, int]()  # worker without heartbeats -> incarnation
        self._inventories = _inventories(catalog, tasks)
        features = [*options.features, *([] if options.exporter is None else [EXPORTS])]
        self._rotate_ms, self._features = int(options.service_token_hours * 3_600_000), features
        self._audit_due = Due(options.audit_interval_s, next_s=clock.monotonic() + options.audit_interval_s)
        self._token_due = Due(min(TOKEN_S, self._rotate_ms / 10_000))
        self._learn_due, self._report_due = Due(REPORTS_S), Due(REPORTS_S)
        self._resume_due, self._features_due, self._settings_due = Due(RESUMED_S), Due(FEATURES_S), Due(SETTINGS_S)
        self._weak_settings: list[str] = []  # of the database's server
        self._reported: tuple[int, list[dict[str, object]]] | None = None
        self._assigned_s: float | None = None
        self._roles = self._made_roles(options)
        self._threads = ServiceGroup(name, [role.thread for role in self._roles], clock)

    def _made_roles(self, options: MetaOptions) -> list[_Role]:
        def thread(role: str, step: Callable[[], None], every_s: float) -> Repeating:
            return Repeating(f"{self.name}/{role}", step, interval_s=every_s, clock=self._clock, lasting=True)

        assignment = thread("assignment", self.assign, options.interval_s)
        activation = thread("activation", self.activate, options.interval_s)
        collection = thread("collection", self.collect, options.collect_interval_s)
        export = thread("export", self.export, EXPORT_LOOK_S)
        reshaping = () if self._reshaping is None else (self._reshaping.tenants,)
        roles = [
            _Role(assignment, (self._assigning, *reshaping)),
            _Role(activation, (self._activation.tenants,), self._activation.resume),
            _Role(collection, (self._collector.tenants, self._deletion.tenants, self._pruning)),
            _Role(export, (self._exporting,), self._export_due.make_due),
        ]
        if options.retention_hours is not None:
            retention = thread("retention", self.retain, options.retention_interval_s)
            audit = thread("audit", self.audit, min(600.0, options.audit_interval_s))
            roles += [
                _Role(retention, (self._retention.tenants,)),
                _Role(audit, (self._auditor.tenants,), self._audit_due.make_due),
            ]
        if self._maintenance is not None:
            maintenance = thread("maintenance", self.maintain, options.maintenance_interval_s)
            roles.append(_Role(maintenance, (self._maintenance.tenants,)))
        return roles

    def start(self) -> None:
        self._threads.start()

    def wait_until_ready(self, timeout_s: float) -> bool:
        return self._threads.wait_until_ready(timeout_s)

    def stop(self) -> None:
        self._threads.stop()

    def problems(self) -> list[Problem]:
        problems = self._threads.problems() + self._assigning.problems()
        if self._weak_settings and self._epoch is not None:
            words = f"A crash of the database's machine may take back transactions: {'; '.join(self._weak_settings)}."
            problems.append(Problem.of(f"{self.name}/database", CommitsNotDurable(words)))
        if self._reshaping is not None:
            problems += self._reshaping.tenants.problems()
        if self._maintenance is not None:
            problems += self._maintenance.problems()
        problems += self._activation.problems() + self._collector.problems() + self._deletion.problems()
        problems += self._exporting.problems()
        return problems + self._pruning.problems() + self._retention.problems() + self._auditor.problems()

    @property
    def leader_epoch(self) -> int | None:
        """The epoch while this process is leader."""
        return self._epoch

    def lease_age_s(self) -> float | None:
        """Seconds since the last successful round of election and assignment; None before the first."""
        at = self._assigned_s
        return None if at is None else self._clock.monotonic() - at

    def assign(self) -> None:
        """One round of election and assignment."""
        self._elect()
        now_s = self._clock.monotonic()
        live, silent = self._watch(now_s)
        if self._epoch is None or self._assign(live, silent, self._epoch, now_s):
            self._assigned_s = self._clock.monotonic()
        if self._epoch is not None:
            self._resume(now_s)

    def _assign(self, live: list[Pulse], silent: list[Pulse], epoch: int, now_s: float) -> bool:
        """Run each job separately: one that fails does not affect the others. Whether stores and tasks were
        assigned."""
        jobs = self._assigning
        jobs.load()
        jobs.run("reports", lambda: self._learn(now_s))
        jobs.run("service token", lambda: self._rotate_token(epoch, now_s))
        assigned = [
            jobs.run(f"{kind} items", lambda k=kind, r=inventory: r.assign(_workers_of(live, k), epoch, now_s))  # type: ignore[misc]
            for kind, inventory in self._inventories.items()
            if kind is not WorkerKind.REPLICATE or any(pulse.kind is kind for pulse in live)  # most services have none
        ]
        reshaping = self._reshaping
        if reshaping is not None:
            jobs.run("reshaping", lambda: reshaping.step(epoch))
        jobs.run("features", lambda: self._switch_on(epoch, now_s))
        jobs.run("database settings", lambda: self._look_at_settings(now_s))
        jobs.run("silent workers", lambda: self._note_silent(live, silent, epoch))
        jobs.run("own report", lambda: self._report(epoch, now_s))
        jobs.sync()
        return all(assigned)

    def activate(self) -> None:
        """One round of activation. Its transaction is guarded; leadership only saves listings."""
        if self._epoch is not None:
            self._activation.step()

    def collect(self) -> None:
        """One round of collection. Each deletion is guarded; leadership only saves listings."""
        if self._epoch is not None:
            tenants = every_tenant(self._catalog)
            self._collector.step(tenants)
            self._deletion.step(tenants)
            self._pruning.load()
            self._pruning.run("events", lambda: prune_events(self._catalog))
            self._pruning.run("stops", lambda: forget_stale_items(self._catalog))
            self._pruning.run("audit log", lambda: prune_audit_log(self._catalog, keep_s=self._audit_log_s))
            self._pruning.run("jobs", lambda: prune_jobs(self._catalog))
            self._pruning.sync()

    def retain(self) -> None:
        """One round of retention. Each step is guarded; leadership only saves work."""
        if self._epoch is not None:
            self._retention.step()

    def maintain(self) -> None:
        """One round of maintenance. What it records is guarded by the leader's epoch."""
        if self._epoch is not None and self._maintenance is not None:
            self._maintenance.step(self._epoch)

    def export(self) -> None:
        """Export the catalog, when it is due, asked for, or many bytes wait for it, once no process lives that deletes
        without waiting for it."""
        now_s, epoch, exporter = self._clock.monotonic(), self._epoch, self._exporter
        if epoch is None:
            return
        if exporter is None:
            if self._export_due.take(now_s):
                switch_exports_off(self._catalog)
            return
        if not (self._export_due.is_due(now_s) or self._is_export_wanted()):
            return
        if EXPORTS.name in switched_on(self._catalog):
            self._exporting.load()
            exported = self._exporting.run("catalog", lambda: exporter.step(epoch))
            self._exporting.sync()
            if exported:
                self._export_due.restart(now_s)

    def _is_export_wanted(self) -> bool:
        status = export_status(self._catalog)
        return status.is_wanted or status.waiting_bytes > self._waiting_bytes_max

    def audit(self) -> None:
        """Compare catalog and bucket, when it is due. Reads only."""
        now_s = self._clock.monotonic()
        if self._epoch is not None and self._audit_due.is_due(now_s):
            self._auditor.step()
            self._audit_due.restart(now_s)

    def _resume(self, now_s: float) -> None:
        """Retry at once what operators resumed."""
        if not self._resume_due.take(now_s):
            return
        for role in self._roles:
            resumed = [stopped.take_resumed() for stopped in role.stopped]
            if any(resumed):
                role.before_retry()
                role.thread.wake()

    def _elect(self) -> None:
        if self._epoch is not None:
            try:
                renew_leadership(self._catalog, self.name, self._epoch)
                return
            except Fenced:
                log.warning("leadership lost", me=self.name, epoch=self._epoch)
                self._epoch = None
                for role in self._roles:
                    for stopped in role.stopped:
                        stopped.forget()
        self._epoch = acquire_leadership(self._catalog, self.name, starts=not self._has_led)
        if self._epoch is not None:
            self._has_led = True
            for inventory in self._inventories.values():
                inventory.forget()
            log.info("elected leader", me=self.name, epoch=self._epoch)

    def _rotate_token(self, epoch: int, now_s: float) -> None:
        """Make the token with which services prove themselves, and a new one when it is due."""
        if not self._token_due.is_due(now_s):
            return
        number = rotate_service_token(self._catalog, rotate_ms=self._rotate_ms, leader_epoch=epoch)
        self._token_due.restart(now_s)
        if number is not None:
            log.info("made a service token", me=self.name, number=number)

    def _switch_on(self, epoch: int, now_s: float) -> None:
        """Switch on the features that every living process has."""
        if not self._features or not self._features_due.take(now_s):
            return
        on = switch_on(self._catalog, self._features, leader_epoch=epoch)
        self._features = [feature for feature in self._features if feature.name not in on]

    def _look_at_settings(self, now_s: float) -> None:
        """Note settings of the database's server with which it may lose what it has confirmed."""
        if self._settings_due.take(now_s):
            self._weak_settings = lost_in_a_crash(self._catalog.server_settings() or {})

    def _watch(self, now_s: float) -> tuple[list[Pulse], list[Pulse]]:
        """The workers that are not gone: those that live, and those that are suspected."""
        pulses_now = pulses(self._catalog)
        self._detector.observe({p.worker_id: (p.incarnation, p.heartbeat_ms) for p in pulses_now}, now_s)
        present = [pulse for pulse in pulses_now if pulse.state != WorkerState.GONE]
        parts: tuple[list[Pulse], list[Pulse]] = [], []
        for pulse in present:
            parts[self._detector.is_suspected(pulse.worker_id)].append(pulse)
        return parts

    def _note_silent(self, live: list[Pulse], silent: list[Pulse], epoch: int) -> None:
        """Record whose heartbeats have ended, and whose are there again."""
        now = {pulse.worker_id: pulse.incarnation for pulse in silent}
        if now != self._silent:
            back = [pulse for pulse in live if self._silent.get(pulse.worker_id) == pulse.incarnation]
            for pulse in [*silent, *back]:
                of = pulse.worker_id, pulse.incarnation
                note_silence(self._catalog, *of, is_silent=pulse.worker_id in now, leader_epoch=epoch)
            self._silent = now

    def _report(self, epoch: int, now_s: float) -> None:
        """Report this process's problems, if they changed, for API servers in other processes."""
        if not self._report_due.take(now_s):
            return
        report = epoch, [problem.shown() for problem in self.problems()]
        if report != self._reported:
            report_as_leader(self._catalog, self.name, epoch, WorkerReport(problems=tuple(report[1])))
            self._reported = report

    def _learn(self, now_s: float) -> None:
        """Read the workers' reports, when due: they are large."""
        if not self._learn_due.take(now_s):
            return
        reports: dict[WorkerKind, list[tuple[str, WorkerReport]]] = {kind: [] for kind in self._inventories}
        for worker in list_workers(self._catalog):
            if worker.kind in reports:
                reports[worker.kind].append((worker.worker_id, worker.report))
        for kind, inventory in self._inventories.items():
            if kind is not WorkerKind.REPLICATE:  # lanes report no loads
                inventory.learn(reports[kind], now_s)
        self._learn_due.restart(now_s, REPORTS_PAUSES * (self._clock.monotonic() - now_s))


def _inventories(catalog: Catalog, tasks: TaskItems) -> dict[WorkerKind, Inventory]:
    """What is assigned, by the kind of worker."""
    return {
        WorkerKind.DISPATCHER: Inventory(StoreItems(catalog)),
        WorkerKind.SORTER: Inventory(tasks),
        WorkerKind.REPLICATE: Inventory(LaneItems(catalog)),
    }


def _workers_of(live: list[Pulse], kind: WorkerKind) -> Workers:
    """The workers of a kind, and replays, whose items are left alone while they are live. A receiving worker must also
    have a recent heartbeat by the database's clock: a new meta server does not know yet who is dead."""
    keeps = WorkerKind.REPLAY if kind is WorkerKind.SORTER else None
    there = sorted((p for p in live if p.kind in (kind, keeps)), key=lambda p: p.worker_id)
    return Workers(
        names=tuple(p.worker_id for p in there),
        receives=tuple(p.kind is kind and p.state is WorkerState.UP and p.heartbeat_age_ms <= LEASE_MS for p in there),
        leaving=tuple(p.kind is kind and p.state is WorkerState.DRAINING for p in there),
    )
