"""Schedules the flushes of all tenants of a worker, each contained: an error in one delays no other.

A tenant whose flush failed waits and is retried. A task whose rows cannot be written waits too, and the other tasks of
its tenant are written without it. Used from the worker's loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from sorter.worker import measures
from sorter.worker.fair_schedule import FairSchedule, Group
from sorter.worker.publisher import Publisher
from sorter.worker.runner import TaskRunner
from tistream.clock import Clock
from tistream.errors import ErrorKind, Fenced, TiStreamError
from tistream.ids import Tenant
from tistream.limits import COMMITTED_FILE_BYTES_TARGET
from tistream.runtime.containment import Containment

SWEEP_S = 1.0  #: between flushes of all tenants; touched ones are flushed more often


@dataclass(slots=True)
class Outcome:
    gone: set[int] = field(default_factory=set)  #: fenced
    failed: dict[int, Exception] = field(default_factory=dict)  #: excluded
    written: set[int] = field(default_factory=set)  #: the others


class Flushing:
    def __init__(
        self,
        worker_id: str,
        clock: Clock,
        schedule: FairSchedule,
        tenants: Mapping[Tenant, list[TaskRunner]],
        may_write: Callable[[TaskRunner], bool],
    ) -> None:
        """`tenants`: all tasks that are here. `may_write`: whether a task runs and does not wait after an error."""
        self._clock, self._schedule, self._tenants, self._may_write = clock, schedule, tenants, may_write
        self.tenants: Containment[Tenant] = Containment(f"{worker_id}/flush", clock)
        self._touched: dict[Tenant, None] = {}  # may have something to write
        self._sweep_due_s = clock.monotonic()

    def touch(self, tenant: Tenant) -> None:
        """The tenant may have something to write."""
        self._touched[tenant] = None

    def has_a_full_file(self, tenants: Iterable[Tenant]) -> bool:
        """Whether the tasks of one of these tenants together could write a file of the target size now."""
        backlogs = (sum(r.backlog for r in runners) for runners in self._running(tenants).values())
        return any(backlog >= COMMITTED_FILE_BYTES_TARGET for backlog in backlogs)

    def is_busy(self, publisher: Publisher) -> bool:
        """Whether a flush has objects left to write and does not wait."""
        return any(self.tenants.is_due(tenant) for tenant in publisher.under_way())

    def write(self, publisher: Publisher, *, everything: bool = False) -> Outcome:
        """Flush the tenants that were touched or are unfinished, and every tenant at intervals or with `everything`."""
        now_s = self._clock.monotonic()
        touched, self._touched = self._touched, {}
        publisher.keep(self._running(publisher.under_way()))
        self.tenants.keep_only(self._tenants.keys())
        if everything or now_s >= self._sweep_due_s:
            self._sweep_due_s = now_s + SWEEP_S
            by_tenant = self._running(self._tenants)
        else:
            by_tenant = self._running(touched)
        for tenant in [tenant for tenant in by_tenant if not self.tenants.is_due(tenant)]:
            del by_tenant[tenant]
            self.touch(tenant)
        outcome = Outcome()
        for group in self._schedule.groups(by_tenant, publisher, everything=everything):
            self._flush_group(publisher, group, outcome)
        self._touched |= self._schedule.skipped()
        return outcome

    def write_all(self, publisher: Publisher) -> None:
        """Flush until nothing is left but what waits after an error."""
        self.write(publisher, everything=True)
        while self.is_busy(publisher):
            self.write(publisher, everything=True)

    def _running(self, tenants: Iterable[Tenant]) -> dict[Tenant, list[TaskRunner]]:
        running = {tenant: [r for r in self._tenants.get(tenant, ()) if self._may_write(r)] for tenant in tenants}
        return {tenant: runners for tenant, runners in running.items() if runners}

    def _flush_group(self, publisher: Publisher, group: Group, outcome: Outcome) -> None:
        """Idle tenants are flushed together; after an error that is not the catalog's, each alone."""
        if len(group) > 1:
            try:
                self._measured(publisher, group, outcome, partial(self._flush_idle, publisher, group))
            except Fenced:
                raise
            except Exception as e:  # noqa: BLE001 - the next lines decide whom it stops
                if isinstance(e, TiStreamError) and e.kind is ErrorKind.RETRY:
                    for tenant in group:
                        self.tenants.failed(tenant, e)
                        self.touch(tenant)
                    return
            else:
                for tenant in group:
                    self.tenants.forget(tenant)
                return
        for tenant, runners in group.items():
            flush = partial(publisher.flush, tenant, [runner.publication for runner in runners])
            if not self.tenants.run(tenant, partial(self._measured, publisher, {tenant: runners}, outcome, flush)):
                self.touch(tenant)

    def _flush_idle(self, publisher: Publisher, group: Group) -> frozenset[int]:
        return publisher.flush_idle({t: [r.publication for r in runners] for t, runners in group.items()})

    def _measured(
        self, publisher: Publisher, group: Group, outcome: Outcome, flush: Callable[[], frozenset[int]]
    ) -> None:
        runners = [runner for of_tenant in group.values() for runner in of_tenant]
        before, began = {runner.task_id: runner.core.durable_ts for runner in runners}, self._clock.monotonic()
        try:
            outcome.gone |= flush()
            outcome.written |= {runner.task_id for runner in runners} - publisher.failed.keys()
        finally:
            outcome.failed |= publisher.failed
            moved = [runner for runner in runners if runner.core.durable_ts != before[runner.task_id]]
            for runner in moved:
                runner.note_flush()
                self.touch(runner.row.tenant)
            self._touched |= {tenant: None for tenant in group if publisher.is_busy_with(tenant)}
        if moved:
            seconds = self._clock.monotonic() - began
            measures.flushed([(r.core.durable_ts, r.cut_timestamps) for r in moved], seconds=seconds, clock=self._clock)
