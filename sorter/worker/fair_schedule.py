"""Who has a turn where very many tasks share one loop, so that tenants that write never wait for all the others.

    take    all tasks of a tenant that gets rows take batches in every turn, for it is complete only as far as each of
            them; those of others for TAKE_S together, one after the other
    write   tenants with rows are written out in every round, the others IDLE_AT_ONCE in a transaction, for QUIET_S

Idle tasks that catch up, as after another sorter has died, have thousands of batches to take and watermarks to write
out. What has no turn is left to the next, in which it comes first.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from sorter.worker.owned import MANY
from sorter.worker.publisher import Publisher
from sorter.worker.runner import TaskRunner
from tistream.clock import Clock
from tistream.ids import Tenant

TAKE_S = 0.5  #: of a turn, for tasks of tenants that get no rows
QUIET_S = 0.5  #: of a round, for tenants of which only watermarks move; one transaction more at most
IDLE_AT_ONCE = 50  #: of them in one transaction

Group = Mapping[Tenant, Sequence[TaskRunner]]


class FairSchedule:
    """Used from one thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._next_task = 0
        self.waiting = False  #: whether the last turn left out a task that has something to take
        self._left: dict[Tenant, None] = {}

    def turn(self, runners: Mapping[int, TaskRunner]) -> Iterator[TaskRunner]:
        """The tasks that have something to take, in the order in which they take it."""
        ready = [r for r in runners.values() if r.more or r.inbox.count]  # nearly none of very many
        self.waiting = False
        if len(runners) < MANY:
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

    def groups(self, by_tenant: Group, publisher: Publisher, *, whole: bool) -> Iterator[Group]:
        """What is flushed at once: those of which only watermarks move together, the others each by itself and first.
        When it is to be the `whole`, nobody is left out."""
        quiet: dict[Tenant, Sequence[TaskRunner]] = {}
        for tenant, runners in by_tenant.items():
            if publisher.is_idle(tenant, [runner.publication for runner in runners]):
                quiet[tenant] = runners
            else:
                yield {tenant: runners}
        tenants = [t for t in self._left if t in quiet] + [t for t in quiet if t not in self._left]
        self._left, until = {}, self._clock.monotonic() + QUIET_S
        for at in range(0, len(tenants), IDLE_AT_ONCE):
            if not whole and self._clock.monotonic() > until:
                self._left = dict.fromkeys(tenants[at:])
                return
            yield {tenant: quiet[tenant] for tenant in tenants[at : at + IDLE_AT_ONCE]}

    def left(self) -> Mapping[Tenant, None]:
        """The tenants that the last round left out."""
        return self._left
