"""Retention: computes each tenant's floor, raises it, and retires the log below.

    policy            min(the database's time, served watermark) - retention
    changefeeds, safe points                  the lowest one
    reads as of a timestamp                   what each table needs (see `schemas.registry.retention`)
        -> floor -> raise_floor               one transaction that checks the holds again
        -> retire_below_floor                 repeatedly, also after a crash in between

Retention counts back from the served watermark, and at most from the database's clock: a tenant whose upstream stalls
keeps its last hours for ever, and a fast upstream clock deletes nothing. A hold that delays the floor by more than an
hour is a problem that names it.

A day after it died, the row of an object that was once visible is deleted: its writer has published it and is done, and
a late PUT would be an orphan like others. Tombstones of orphans stay, because their writers may still be running.

Objects are only superseded here; the collector deletes them when no read lease needs them.
"""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from metaserver.contained import Contained
from schemas.registry.retention import Floor, births, lowest_floor, needs_of_reads
from schemas.registry.schema_registry import SchemaRegistry
from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.bases import list_bases
from tistream.catalog.log.objects import forget_dead
from tistream.catalog.log.retention import OBJECTS_AT_ONCE, Hold, database_time_ms, raise_floor, retire_below_floor
from tistream.catalog.log.safe_points import list_safe_points
from tistream.catalog.log.seeds import list_seeds
from tistream.catalog.tenancy.changefeeds import HOLDING, list_changefeeds
from tistream.catalog.tenancy.tenants import TenantRow, kept_s, list_tenants
from tistream.catalog.work.tasks import served_watermark
from tistream.clock import Clock, SystemClock
from tistream.errors import LogHeld
from tistream.ids import Tenant
from tistream.runtime.service import Problem

log = structlog.get_logger(__name__)

ROLE = "retention"
_FORGETTING = "forgetting rows of deleted objects"
FORGET_MS = 24 * 3_600_000
_REPORTED_FROM_MS = 3_600_000
_ROWS_AT_ONCE = 1000


class Retention:
    """Raises the floors of all tenants. Used from one thread; several processes may run one each."""

    def __init__(
        self,
        catalog: Catalog,
        registry: SchemaRegistry,
        *,
        default_hours: float,
        clock: Clock | None = None,
        name: str = "",
    ) -> None:
        """`default_hours`: retention of tenants without their own; 0 = all. `name` of the process, for problems."""
        self._catalog, self._registry, self._default_hours = catalog, registry, default_hours
        self.tenants = Contained(catalog, clock or SystemClock(), name, ROLE)
        self._held: dict[Tenant, Problem] = {}
        self._processed = 0

    def step(self) -> int:
        """One round over all tenants; the number of objects processed. An error of one tenant does not affect the
        others."""
        self._processed = 0
        self.tenants.load()
        tenants = list_tenants(self._catalog)
        known = {row.tenant for row in tenants}
        self.tenants.keep_only(known)
        self._held = {t: p for t, p in self._held.items() if t in known}
        for row in tenants:
            self.tenants.run(row.tenant, lambda r=row: self._keep(r))  # type: ignore[misc]
        self.tenants.run(_FORGETTING, self._forget)
        self.tenants.sync()
        return self._processed

    def problems(self) -> list[Problem]:
        """Holds that delay floors, and tenants that fail."""
        return list(self._held.values()) + self.tenants.problems()

    def _keep(self, row: TenantRow) -> None:
        """Raise the floor, and retire the log below it even when that fails."""
        try:
            self._raise(row)
        finally:
            self._retire(row.tenant)

    def _forget(self) -> None:
        while forget_dead(self._catalog, older_ms=FORGET_MS, limit=_ROWS_AT_ONCE) == _ROWS_AT_ONCE:
            pass

    def wanted(self, row: TenantRow) -> int | None:
        """The floor by the policy alone; None when everything is kept."""
        kept_ms = kept_s(row, self._default_hours) * 1000
        served = served_watermark(self._catalog, row.tenant) if row.start_ts and kept_ms else 0
        if not served:
            return None
        newest_ms = min(database_time_ms(self._catalog), tso.physical_ms(served))
        return tso.compose(max(0, newest_ms - kept_ms))

    def _raise(self, row: TenantRow) -> None:
        wanted = self.wanted(row)
        if wanted is None or wanted <= row.earliest_ts:
            self._held.pop(row.tenant, None)
            return
        floor = self._floor(row, wanted)
        self._note(row.tenant, floor, wanted)
        if floor.ts > row.earliest_ts and raise_floor(
            self._catalog, row.tenant, seen_floor=row.floor_ts, to_ts=floor.ts
        ):
            log.info("floor raised", tenant=str(row.tenant), was=row.earliest_ts, earliest_ts=floor.ts)

    def _floor(self, row: TenantRow, wanted: int) -> Floor:
        holds = holds_of(self._catalog, row.tenant)
        history = self._registry.history(row.tenant)
        at = min(wanted, history.resolved_ts)
        born = births(history, row.earliest_ts)
        holds += needs_of_reads(
            history,
            at,
            earliest_ts=row.earliest_ts,
            seeds=list_seeds(self._catalog, row.tenant),
            bases=list_bases(self._catalog, row.tenant),
            born=born,
        )
        return lowest_floor(at, holds, born)

    def _note(self, tenant: Tenant, floor: Floor, wanted: int) -> None:
        held = floor.held_by
        late_ms = tso.physical_ms(wanted) - tso.physical_ms(floor.ts)
        if held is None or late_ms < _REPORTED_FROM_MS:
            self._held.pop(tenant, None)
            return
        error = LogHeld(
            f"{held.who} holds the log {late_ms / _REPORTED_FROM_MS:.1f} h longer than its retention.",
            held_by=held.who,
            held_at_ts=str(held.ts),
            wanted_ts=str(wanted),
        )
        self._held[tenant] = Problem.of(f"retention/{tenant}", error)

    def _retire(self, tenant: Tenant) -> None:
        while True:
            found = retire_below_floor(self._catalog, tenant)
            self._processed += found.objects
            if found.objects < OBJECTS_AT_ONCE:
                return


def holds_of(catalog: Catalog, tenant: Tenant) -> list[Hold]:
    """The changefeeds and safe points that hold the log."""
    feeds: Sequence[Hold] = [
        Hold(ts=feed.checkpoint_ts, who=f"changefeed {feed.changefeed_id} ({feed.state})")
        for feed in list_changefeeds(catalog, tenant)
        if feed.state in HOLDING
    ]
    points = [Hold(ts=p.safe_ts, who=f"safe point of {p.service_id}") for p in list_safe_points(catalog, tenant)]
    return [*feeds, *points]
