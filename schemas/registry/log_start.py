"""Where a tenant's log may begin, and everything that keeps it from beginning later.

    policy              min(the database's time, served watermark) - retention
    consumers, changefeeds, safe points
    reads as of a timestamp     what each table needs, or the keys of a tenant without tables
                                (`schemas.registry.retention`)

Retention counts back from the served watermark, and at most from the database's clock: a tenant whose upstream stalls
keeps its last hours for ever, and a fast upstream clock deletes nothing. The meta server raises floors by it, and the
API shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schemas.registry.retention import Floor, births, floor_of_keys, lowest_floor, needs_of_reads
from schemas.registry.schema_registry import SchemaRegistry
from tistream import ts as tso
from tistream.admin.core.units import duration_text
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.bases import list_bases
from tistream.catalog.log.retention import Hold, HoldKind, database_time_ms
from tistream.catalog.log.safe_points import list_safe_points
from tistream.catalog.log.seeds import list_seeds
from tistream.catalog.rows.tenants import TenantRow
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.tenancy.consumers import CONSUMERS
from tistream.catalog.tenancy.tenants import get_tenant, kept_s
from tistream.catalog.work.tasks import served_watermark
from tistream.errors import TiStreamError
from tistream.ids import Tenant

HOLDS_MAX = 100  #: holds in one answer, the lowest; a tenant may have a hundred thousand tables


@dataclass(frozen=True, slots=True, kw_only=True)
class LogStart:
    """Where the log may begin."""

    wanted_ts: int  #: by the policy alone
    kept_ms: int
    floor: Floor
    holds: tuple[Hold, ...]  #: all of them, lowest first

    @property
    def holding(self) -> tuple[Hold, ...]:
        """Those that lie below the policy."""
        return tuple(hold for hold in self.holds if hold.ts < self.wanted_ts)

    def since_ms(self, hold: Hold) -> int:
        """When the policy passed the hold's timestamp."""
        return tso.physical_ms(hold.ts) + self.kept_ms


class LogStarts:
    """Computes them. Thread-safe."""

    def __init__(self, catalog: Catalog, registry: SchemaRegistry, *, default_hours: float) -> None:
        """`default_hours`: retention of tenants without their own; 0 = all."""
        self._catalog, self._registry, self._default_hours = catalog, registry, default_hours

    def wanted(self, row: TenantRow) -> int | None:
        """The floor by the policy alone; None when everything is kept."""
        kept_ms = kept_s(row, self._default_hours) * 1000
        served = served_watermark(self._catalog, row.tenant) if row.has_log and kept_ms else 0
        if not served:
            return None
        newest_ms = min(database_time_ms(self._catalog), tso.physical_ms(served))
        return tso.compose(max(0, newest_ms - kept_ms))

    def of(self, row: TenantRow, wanted_ts: int) -> LogStart:
        """The floor and its holds. `wanted_ts`: by `wanted`. Raises when the schema history cannot be read."""
        holds = holds_of(self._catalog, row.tenant)
        if row.kind.is_keyspace:
            return self._of_keys(row, wanted_ts, holds)
        history = self._registry.history(row.tenant)
        at = min(wanted_ts, history.resolved_ts)
        born = births(history, row.earliest_ts)
        holds += needs_of_reads(
            history,
            at,
            earliest_ts=row.earliest_ts,
            seeds=list_seeds(self._catalog, row.tenant),
            bases=list_bases(self._catalog, row.tenant),
            born=born,
        )
        if at < wanted_ts:
            holds.append(_history_hold(at, "it is read again when the DDL tasks advance: tistream gaps"))
        floor = lowest_floor(at, holds, born)
        if floor.held_by is not None and floor.held_by.ts < min((hold.ts for hold in holds), default=wanted_ts):
            holds.append(floor.held_by)
        return self._start(row, wanted_ts, floor, holds)

    def _of_keys(self, row: TenantRow, wanted_ts: int, holds: list[Hold]) -> LogStart:
        bases = list_bases(self._catalog, row.tenant)
        floor = floor_of_keys(wanted_ts, holds, earliest_ts=row.earliest_ts, bases=bases)
        if floor.held_by is not None and floor.held_by not in holds:
            holds.append(floor.held_by)
        return self._start(row, wanted_ts, floor, holds)

    def _start(self, row: TenantRow, wanted_ts: int, floor: Floor, holds: list[Hold]) -> LogStart:
        kept_ms = kept_s(row, self._default_hours) * 1000
        ordered = tuple(sorted(holds, key=lambda hold: hold.ts))
        return LogStart(wanted_ts=wanted_ts, kept_ms=kept_ms, floor=floor, holds=ordered)

    def shown(self, tenant: Tenant) -> dict[str, Any]:
        """For people and programs: the start of the log, what the policy asks for, and what holds it."""
        row = get_tenant(self._catalog, tenant)
        wanted_ts = self.wanted(row)
        holds, start = holds_of(self._catalog, tenant), None
        if wanted_ts is not None and wanted_ts > row.earliest_ts:
            try:
                start = self.of(row, wanted_ts)
            except TiStreamError as e:
                holds.append(_history_hold(row.earliest_ts, f"it cannot be read: {e.message}"))
            else:
                holds = list(start.holds)
        kept_ms = kept_s(row, self._default_hours) * 1000
        holds = [h for h in holds if h.kind is not HoldKind.TABLE or (wanted_ts is not None and h.ts < wanted_ts)]
        return {
            "retention_s": row.retention_s,
            "policy_s": kept_ms / 1000,
            "policy_ts": None if wanted_ts is None else str(wanted_ts),
            "policy_time": None if wanted_ts is None else tso.to_text(wanted_ts),
            "earliest_ts": str(row.earliest_ts),
            "earliest_time": tso.to_text(row.earliest_ts) if row.earliest_ts else None,
            "holds": [_shown(hold, kept_ms, wanted_ts) for hold in sorted(holds, key=lambda hold: hold.ts)[:HOLDS_MAX]],
            "holds_total": len(holds),
        }


def holds_of(catalog: Catalog, tenant: Tenant) -> list[Hold]:
    """The consumers, changefeeds and safe points of a tenant."""
    readers = [
        Hold(
            ts=reader.checkpoint_ts,
            kind=kind,
            name=reader.name,
            who=f"{kind} {reader.name} ({reader.state})",
            release=f"its next checkpoint, or tistream {kind} remove {reader.name}",
        )
        for kind, rows in (
            (HoldKind.CONSUMER, CONSUMERS.of_tenant(catalog, tenant)),
            (HoldKind.CHANGEFEED, CHANGEFEEDS.of_tenant(catalog, tenant)),
        )
        for reader in rows
        if reader.holds_log
    ]
    points = [
        Hold(
            ts=point.safe_ts,
            kind=HoldKind.SAFE_POINT,
            name=point.service_id,
            who=f"safe point of {point.service_id}",
            release=f"its end in {duration_text(point.left_ms)}, or DELETE .../safe-point/{point.service_id}",
        )
        for point in list_safe_points(catalog, tenant)
    ]
    return [*readers, *points]


def _history_hold(ts: int, release: str) -> Hold:
    return Hold(ts=ts, kind=HoldKind.SCHEMA, name="schema history", who="the schema history", release=release)


def _shown(hold: Hold, kept_ms: int, wanted_ts: int | None) -> dict[str, Any]:
    holding = wanted_ts is not None and hold.ts < wanted_ts
    return {
        "kind": hold.kind,
        "name": hold.name,
        "by": hold.who,
        "ts": str(hold.ts),
        "time": tso.to_text(hold.ts),
        "holding": holding,
        "since_time": tso.to_text(tso.compose(tso.physical_ms(hold.ts) + kept_ms)) if holding else None,
        "release": hold.release,
    }
