"""Fair task scheduling: tenants that write never wait for many idle ones in the same loop.

    take    all tasks of a tenant that gets rows take batches in every round, because the tenant is complete only as far
            as each of them; the tasks of other tenants share TAKE_S, one after the other
    write   tenants with rows are written in every round, the others IDLE_AT_ONCE per transaction, for IDLE_S

Idle tasks that catch up, for example after another sorter has died, have thousands of batches to take and watermarks to
write. Skipped tasks go first in the next round.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from sorter.worker.owned import MANY_TASKS
from sorter.worker.publisher import Publisher
from sorter.worker.runner import TaskRunner
from tistream.clock import Clock
from tistream.ids import Tenant

TAKE_S = 0.5  #: of a round, for tasks of tenants that get no rows
IDLE_S = 0.5  #: of a round, for tenants with watermark-only progress; one transaction longer at most
IDLE_AT_ONCE = 50  #: idle tenants in one transaction

Group = Mapping[Tenant, Sequence[TaskRunner]]


class FairSchedule:
    """Used from one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_task = 0
        self.waiting = False  #: whether the last round skipped a task that has something to take
        self._skipped: dict[Tenant, None] = {}

    def tasks(self, runners: Mapping[int, TaskRunner]) -> Iterator[TaskRunner]:
        """The tasks with something to take, in the order in which they take it."""
        ready = [r for r in runners.values() if r.more or r.inbox.count]  # few of many
        self.waiting = False
        if len(runners) < MANY_TASKS:
            yield from ready
            return
        writing = {r.row.tenant for r in runners.values() if r.gets_rows}
        yield from (r for r in ready if r.row.tenant in writing)
        others = sorted((r for r in ready if r.row.tenant not in writing), key=lambda r: r.task_id)
        at = bisect_left(others, self._next_task, key=lambda r: r.task_id)
        until = self._clock.monotonic() + TAKE_S
        for runner in others[at:] + others[:at]:
            if self._clock.monotonic() > until:
                self._next_task, self.waiting = runner.task_id, True
                return
            yield runner

    def groups(self, by_tenant: Group, publisher: Publisher, *, everything: bool) -> Iterator[Group]:
        """The tenants to flush, in groups of one transaction each: busy ones alone and first, then idle ones together.
        With `everything` none is skipped."""
        idle: dict[Tenant, Sequence[TaskRunner]] = {}
        for tenant, runners in by_tenant.items():
            if publisher.is_idle(tenant, [runner.publication for runner in runners]):
                idle[tenant] = runners
            else:
                yield {tenant: runners}
        tenants = [t for t in self._skipped if t in idle] + [t for t in idle if t not in self._skipped]
        self._skipped, until = {}, self._clock.monotonic() + IDLE_S
        for at in range(0, len(tenants), IDLE_AT_ONCE):
            if not everything and self._clock.monotonic() > until:
                self._skipped = dict.fromkeys(tenants[at:])
                return
            yield {tenant: idle[tenant] for tenant in tenants[at : at + IDLE_AT_ONCE]}

    def skipped(self) -> Mapping[Tenant, None]:
        return self._skipped
