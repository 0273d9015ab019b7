"""Retention: computes each tenant's floor, raises it, and retires the log below.

    policy and holds (`schemas.registry.log_start`)
        -> floor -> raise_floor               one transaction that checks the holds again
        -> retire_below_floor                 repeatedly, also after a crash in between

A hold that delays the floor by more than an hour, or by more than a shorter retention (at least five minutes), is a
problem that names it.

Floors are raised first, then tenants retire some objects each in turn: none waits for the end of another one's backlog.

A grace period after it was deleted, the row of an object that was once visible is deleted: its writer has published it
and is done, and a late PUT would be an orphan like others. Tombstones of orphans stay, because their writers may still
be running.

Objects are only superseded here; the collector deletes them when no read lease needs them.
"""

from __future__ import annotations

from collections import deque

import structlog

from metaserver.collect import GRACE_MS
from metaserver.contained import Contained
from schemas.registry.log_start import LogStart, LogStarts
from schemas.registry.schema_registry import SchemaRegistry
from tistream import ts as tso
from tistream.admin.core.units import duration_text
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.objects import forget_dead
from tistream.catalog.log.retention import raise_floor, retire_below_floor
from tistream.catalog.rows.tenants import TenantRow
from tistream.catalog.tenancy.tenants import list_tenants
from tistream.clock import Clock, SystemClock
from tistream.errors import LogHeld
from tistream.ids import Tenant
from tistream.model.problem import Problem

log = structlog.get_logger(__name__)

ROLE = "retention"
_FORGETTING = "forgetting rows of deleted objects"
_REPORTED_FROM_MS = 3_600_000
_BUILDING_MS = 300_000  # a base takes some minutes, however short the retention
_NAMED = 20  # holds that a problem lists
_RETIRING_S = 300.0  # of a round: then floors are raised again, and the rest is retired in the next one
_ROWS_AT_ONCE = 1000


class Retention:
    """Raises the floors of all tenants. Used from one thread; several processes may run one each."""

    def __init__(
        self,
        catalog: Catalog,
        registry: SchemaRegistry,
        *,
        default_hours: float,
        grace_ms: int = GRACE_MS,
        clock: Clock | None = None,
        name: str = "",
    ) -> None:
        """`default_hours`: retention of tenants without their own; 0 = all. `grace_ms`: how long the rows of deleted
        objects stay. `name` of the process, for problems."""
        self._catalog, self._starts = catalog, LogStarts(catalog, registry, default_hours=default_hours)
        self._clock = clock or SystemClock()
        self.tenants = Contained(catalog, self._clock, name, ROLE)
        self._grace_ms = grace_ms
        self._held: dict[Tenant, Problem] = {}
        self._processed = 0

    def step(self) -> int:
        """One round over all tenants; the number of objects processed. An error of one tenant does not affect the
        others."""
        self._processed = 0
        self.tenants.load()
        tenants = list_tenants(self._catalog)
        tenants_now = {row.tenant for row in tenants}
        self.tenants.keep_only(tenants_now)
        self._held = {t: p for t, p in self._held.items() if t in tenants_now}
        more: deque[Tenant] = deque()
        for row in tenants:
            self.tenants.run(row.tenant, lambda r=row: self._keep(r, more))  # type: ignore[misc]
        begun_s = self._clock.monotonic()
        while more and self._clock.monotonic() - begun_s < _RETIRING_S:
            tenant = more.popleft()
            self.tenants.run(tenant, lambda t=tenant: self._retire(t, more))  # type: ignore[misc]
        self.tenants.run(_FORGETTING, self._forget)
        self.tenants.sync()
        return self._processed

    def problems(self) -> list[Problem]:
        """Holds that delay floors, and tenants that fail."""
        return list(self._held.values()) + self.tenants.problems()

    def _keep(self, row: TenantRow, more: deque[Tenant]) -> None:
        """Raise the floor, and retire the first of the log below it even when that fails."""
        try:
            self._raise(row)
        finally:
            self._retire(row.tenant, more)

    def _forget(self) -> None:
        while forget_dead(self._catalog, older_ms=self._grace_ms, limit=_ROWS_AT_ONCE) == _ROWS_AT_ONCE:
            pass

    def _raise(self, row: TenantRow) -> None:
        wanted = self._starts.wanted(row)
        if wanted is None or wanted <= row.earliest_ts:
            self._held.pop(row.tenant, None)
            return
        start = self._starts.of(row, wanted)
        self._note(row, start)
        floor = start.floor
        if floor.ts > row.earliest_ts and raise_floor(
            self._catalog, row.tenant, seen_floor=row.floor_ts, to_ts=floor.ts
        ):
            log.info("floor raised", tenant=str(row.tenant), was=row.earliest_ts, earliest_ts=floor.ts)

    def _note(self, row: TenantRow, start: LogStart) -> None:
        tenant, held = row.tenant, start.floor.held_by
        since_ms = tso.physical_ms(start.floor.ts) or row.created_ms  # the log of a raw tenant begins at 0
        late_ms = tso.physical_ms(start.wanted_ts) - since_ms
        if held is None or late_ms < min(_REPORTED_FROM_MS, max(_BUILDING_MS, start.kept_ms)):
            self._held.pop(tenant, None)
            return
        others = len(start.holding) - 1
        more = f", and {others} more: tistream tenant retention" if others > 0 else ""
        error = LogHeld(
            f"{held.who} holds the log {duration_text(late_ms)} longer than its retention{more}. Released by"
            f" {held.release}.",
            tenant=tenant,
            kind=held.kind,
            held_by=held.who,
            held_at_ts=str(held.ts),
            since_time=tso.to_text(tso.compose(start.since_ms(held))),
            release=held.release,
            wanted_ts=str(start.wanted_ts),
            holds=", ".join(hold.who for hold in start.holding[:_NAMED]),
        )
        self._held[tenant] = Problem.of(f"retention/{tenant}", error)

    def _retire(self, tenant: Tenant, more: deque[Tenant]) -> None:
        """One transaction; the tenant is at the end of the line when there may be more."""
        retired = retire_below_floor(self._catalog, tenant)
        self._processed += retired.objects
        if retired.objects:
            more.append(tenant)
