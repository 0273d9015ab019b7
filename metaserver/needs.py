"""Counts what maintenance a tenant needs: small files, the log since its bases, what holds its floor, its backlog.

Everything is an estimate for `metaserver.core.maintenance`; the jobs plan from the catalog as it is when they run. What
is dear is counted rarely: the tables' needs a few times in a retention, and the bucket is listed only for a tenant
that lags.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from metaserver.core.maintenance import MaintenanceRules, ReplayMode, TaskPieces, TenantNeed
from schemas.registry.retention import births, need_of_keys, needs_of_reads
from schemas.registry.schema_registry import SchemaRegistry
from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.bases import list_bases
from tistream.catalog.log.compaction import lowest_durable_ts
from tistream.catalog.log.needs import base_figures, small_pieces, tail_bytes
from tistream.catalog.log.retention import Hold, database_time_ms
from tistream.catalog.log.seeds import list_seeds
from tistream.catalog.log.snapshots import positions
from tistream.catalog.rows.tenants import TenantRow
from tistream.catalog.tenancy.tenants import kept_s
from tistream.catalog.work.stores import list_stores
from tistream.catalog.work.stream_ends import stream_end
from tistream.catalog.work.tasks import list_tasks, served_watermark
from tistream.clock import Clock
from tistream.ids import Tenant
from tistream.model.positions import position_of
from tistream.objectstore.layout import BatchKey, incarnation_prefix, parse
from tistream.objectstore.protocol import ObjectStore

_HELD_S_MIN, _HELD_S_MAX = 10.0, 3600.0  #: between two looks at the tables' needs


@dataclass(frozen=True, slots=True)
class _Held:
    """What held the floor when it was looked at."""

    age_ms: int
    by: str
    looked_s: float


class Needs:
    """Counts tenants. For one thread."""

    def __init__(
        self,
        catalog: Catalog,
        store: ObjectStore,
        registry: SchemaRegistry,
        clock: Clock,
        rules: MaintenanceRules,
        default_hours: float,
    ) -> None:
        """`default_hours`: retention of tenants without their own; 0 = all."""
        self._catalog, self._store, self._registry, self._clock = catalog, store, registry, clock
        self._rules, self._default_hours = rules, default_hours
        self._held: dict[Tenant, _Held] = {}

    def keep_only(self, tenants: set[Tenant]) -> None:
        """Forget the others."""
        self._held = {tenant: held for tenant, held in self._held.items() if tenant in tenants}

    def of(self, row: TenantRow) -> TenantNeed:
        """Count one tenant."""
        catalog, tenant, rules = self._catalog, row.tenant, self._rules
        edge = lowest_durable_ts(catalog, tenant)
        upto_ts = tso.earlier(edge, rules.lag_ms)
        built = base_figures(catalog, tenant)
        kept_ms = int(kept_s(row, self._default_hours) * 1000)
        held = self._holding(row, kept_ms)
        now_ms, end_ts = database_time_ms(catalog), stream_end(catalog, tenant)
        served = served_watermark(catalog, tenant)
        behind_ms = tso.lag_ms(served, now_ms, end_ts) if served else 0
        return TenantNeed(
            tenant=tenant,
            tasks=tuple(
                TaskPieces(task_id=task.task_id, pieces=task.pieces, stored_bytes=task.stored_bytes)
                for task in small_pieces(catalog, tenant, upto_ts=upto_ts)
            ),
            tail_bytes=tail_bytes(catalog, tenant, after_ts=max(built.ts, row.earliest_ts), upto_ts=upto_ts),
            base_bytes=built.stored_bytes // max(1, built.number),
            bases_bytes=built.stored_bytes,
            kept_ms=kept_ms,
            held_ms=held.age_ms,
            held_by=held.by,
            behind_ms=behind_ms,
            backlog_bytes=self._backlog(tenant) if self._may_be_behind(behind_ms) else 0,
        )

    def _holding(self, row: TenantRow, kept_ms: int) -> _Held:
        """The table that needs the oldest part of the log, as its floor will need it."""
        now_s, known = self._clock.monotonic(), self._held.get(row.tenant)
        pause_s = min(max(kept_ms / 8000, _HELD_S_MIN), _HELD_S_MAX)
        if not kept_ms:
            return _Held(0, "", now_s)
        if known is None or now_s - known.looked_s >= pause_s:
            age_ms, who = self._oldest_need(row)
            known = self._held[row.tenant] = _Held(age_ms, who, now_s)
        return known

    def _oldest_need(self, row: TenantRow) -> tuple[int, str]:
        at, bases = served_watermark(self._catalog, row.tenant), list_bases(self._catalog, row.tenant)
        needs: Iterable[Hold]
        if row.kind.is_keyspace:
            needs = [need_of_keys(earliest_ts=row.earliest_ts, bases=bases)]
        else:
            history = self._registry.history(row.tenant)
            at = min(at, history.resolved_ts)
            needs = needs_of_reads(
                history,
                at,
                earliest_ts=row.earliest_ts,
                seeds=list_seeds(self._catalog, row.tenant),
                bases=bases,
                born=births(history, row.earliest_ts),
            )
        oldest = min(needs, key=lambda hold: hold.ts, default=None)
        if oldest is None:
            return 0, ""
        return max(0, tso.physical_ms(at) - tso.physical_ms(oldest.ts)), oldest.who

    def _may_be_behind(self, behind_ms: int) -> bool:
        return self._rules.replay is not ReplayMode.OFF and 2 * behind_ms >= self._rules.replay_lag_ms

    def _backlog(self, tenant: Tenant) -> int:
        """Bytes of batch files that some task has not consumed; counting ends above what the rules ask for."""
        of_tasks = [positions(self._catalog, task.task_id) for task in list_tasks(self._catalog, tenant)]
        total = 0
        for store in list_stores(self._catalog, tenant):
            consumed = [of_task.get(store.store_id, {}) for of_task in of_tasks]
            for incarnation in range(min((min(of, default=1) for of in consumed), default=1), store.incarnation + 1):
                at = [position_of(of, incarnation) for of in consumed]
                unread = [position.seq for position in at if not position.closed]
                if not unread:
                    continue
                first = BatchKey(tenant=tenant, store_id=store.store_id, incarnation=incarnation, seq=min(unread))
                folder = incarnation_prefix(tenant, store.store_id, incarnation)
                for info in self._store.list(folder, after=str(first)):
                    total += info.size if isinstance(parse(info.key), BatchKey) else 0
                    if total >= 2 * self._rules.replay_bytes_min:
                        return total
        return total
