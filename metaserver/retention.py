"""Lets tenants' logs begin later: works out the floor, raises it, and takes away what lies below.

    policy            min(the database's time, served watermark) - retention
    changefeeds, safe points                  the lowest that counts
    reads as of a timestamp                   what each table needs (see `schemas.registry.retention`)
        -> floor -> raise_floor               one transaction that looks at the holds again
        -> retire_below_floor                 as often as there is something, also after a crash in between

Retention counts back from what is served, and by the database's clock at most: a tenant whose upstream stands still
keeps its last hours for ever, and a clock of the upstream that runs ahead takes away nothing. What holds the floor back
is a problem that names it, once it holds back more than an hour.

A day after it died the row of an object that was visible once is forgotten: its writer published it and is done with
it, so nobody can meet the row any more, and were its PUT to arrive once more it would be an orphan like others. The
tombstone of an orphan stays, for its writer may still be on the way, and no clock says that it is not.

What it does not do: deleting objects. They are superseded, and the collector takes them when no read lease needs them.
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
_WORTH_SAYING_MS = 3_600_000
_ROWS_AT_ONCE = 1000


class Retention:
    """Looks after the floors of all tenants. Used from one thread; several processes may run one each."""

    def __init__(
        self,
        catalog: Catalog,
        registry: SchemaRegistry,
        *,
        default_hours: float,
        clock: Clock | None = None,
        name: str = "",
    ) -> None:
        """`default_hours`: what is kept of a tenant that has no retention of its own; 0 = all. `name` of the process,
        in problems."""
        self._catalog, self._registry, self._default_hours = catalog, registry, default_hours
        self.tenants = Contained(catalog, clock or SystemClock(), name, ROLE)
        self._held: dict[Tenant, Problem] = {}
        self._looked_at = 0

    def step(self) -> int:
        """One round over all tenants; how many objects were looked at. A tenant that fails keeps its log, and no other
        from losing what it does not keep."""
        self._looked_at = 0
        self.tenants.load()
        tenants = list_tenants(self._catalog)
        known = {row.tenant for row in tenants}
        self.tenants.keep_only(known)
        self._held = {t: p for t, p in self._held.items() if t in known}
        for row in tenants:
            self.tenants.run(row.tenant, lambda r=row: self._keep(r))  # type: ignore[misc]
        self.tenants.run(_FORGETTING, self._forget)
        self.tenants.sync()
        return self._looked_at

    def problems(self) -> list[Problem]:
        """What holds floors back, and the tenants that fail."""
        return list(self._held.values()) + self.tenants.problems()

    def _keep(self, row: TenantRow) -> None:
        """Take away what lies below the floor, also where a new floor cannot be worked out."""
        try:
            self._raise(row)
        finally:
            self._retire(row.tenant)

    def _forget(self) -> None:
        while forget_dead(self._catalog, older_ms=FORGET_MS, limit=_ROWS_AT_ONCE) == _ROWS_AT_ONCE:
            pass

    def wanted(self, row: TenantRow) -> int | None:
        """What the policy alone makes of the tenant's floor; None when it keeps everything."""
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
            log.info("the log begins later", tenant=str(row.tenant), was=row.earliest_ts, earliest_ts=floor.ts)

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
        if held is None or late_ms < _WORTH_SAYING_MS:
            self._held.pop(tenant, None)
            return
        error = LogHeld(
            f"{held.who} holds the log {late_ms / _WORTH_SAYING_MS:.1f} h longer than its retention.",
            held_by=held.who,
            held_at_ts=str(held.ts),
            wanted_ts=str(wanted),
        )
        self._held[tenant] = Problem.of(f"retention/{tenant}", error)

    def _retire(self, tenant: Tenant) -> None:
        while True:
            found = retire_below_floor(self._catalog, tenant)
            self._looked_at += found.objects
            if found.objects < OBJECTS_AT_ONCE:
                return


def holds_of(catalog: Catalog, tenant: Tenant) -> list[Hold]:
    """The changefeeds and safe points that count."""
    feeds: Sequence[Hold] = [
        Hold(ts=feed.checkpoint_ts, who=f"changefeed {feed.changefeed_id} ({feed.state})")
        for feed in list_changefeeds(catalog, tenant)
        if feed.state in HOLDING
    ]
    points = [Hold(ts=p.safe_ts, who=f"safe point of {p.service_id}") for p in list_safe_points(catalog, tenant)]
    return [*feeds, *points]
