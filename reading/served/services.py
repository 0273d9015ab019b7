"""What API routes depend on, built once by the composition root."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from reading.log.memory import ReadMemory
from reading.log.reader import LogReader
from reading.rows.excluded_rows import ExcludedRows
from reading.served.position import Served
from schemas.registry.log_start import LogStarts
from schemas.registry.schema_registry import SavePolicy, SchemaRegistry
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy import tenants
from tistream.catalog.work import tasks
from tistream.catalog.work.quarantines import lowest_quarantine
from tistream.clock import Clock
from tistream.ids import Tenant
from tistream.limits import CLOCK_SKEW_MAX_MS
from tistream.model.task_state import TaskState
from tistream.objectstore.protocol import ObjectStore
from tistream.outbound.policy import NO_TERMS, Terms
from tistream.runtime.metrics import Collect


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """What the process tells beside the answers of its routes."""

    checks: Mapping[str, Callable[[], None]] = field(default_factory=dict)
    """Readiness by component: returns, or raises with the reason."""
    problems: Callable[[], list[dict[str, object]]] = list  #: of the other components
    reported: Callable[[], list[dict[str, object]]] = list  #: and of other processes
    collect: Sequence[Collect] = ()  #: metrics of the other components
    reports: Callable[[], Sequence[TaskState]] = tuple  #: task states of the sorters here
    explain: Callable[[int], Sequence[str]] = lambda _: ()  #: what a task here waits for, as text


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """The dependencies of routes."""

    catalog: Catalog
    store: ObjectStore
    clock: Clock
    registry: SchemaRegistry
    reader: LogReader
    log_starts: LogStarts
    excluded: ExcludedRows
    process: Process
    skew_max_ms: int = CLOCK_SKEW_MAX_MS  #: how far pushers' timestamps may be ahead of the service's time
    outbound: Terms = NO_TERMS  #: what may be opened for callers

    @classmethod
    def create(
        cls,
        catalog: Catalog,
        store: ObjectStore,
        clock: Clock,
        process: Process = Process(),
        *,
        retention_hours: float = 0,
        skew_max_ms: int = CLOCK_SKEW_MAX_MS,
        outbound: Terms = NO_TERMS,
        read_memory: ReadMemory | None = None,
    ) -> Services:
        """The usual set over one catalog and one object store. `retention_hours` of tenants without their own.
        `read_memory`: what reads of the log may hold."""
        registry = SchemaRegistry(catalog, store, saving=SavePolicy(), clock=clock)
        return cls(
            catalog=catalog,
            store=store,
            clock=clock,
            registry=registry,
            reader=LogReader(catalog, store, clock, memory=read_memory),
            log_starts=LogStarts(catalog, registry, default_hours=retention_hours),
            excluded=ExcludedRows(),
            process=process,
            skew_max_ms=skew_max_ms,
            outbound=outbound,
        )

    def problems(self) -> list[dict[str, object]]:
        """Current problems of this process."""
        own = [*self.registry.problems(), *self.excluded.problems()]
        return [*self.process.problems(), *(problem.shown() for problem in own)]

    def reported(self) -> list[dict[str, object]]:
        """And of the others."""
        return self.process.reported()

    def served(self, tenant: Tenant) -> Served:
        """What is served of the tenant now.

        W = min(durable watermark of every task), read first: the history then covers at least W, so every row at or
        below W is decoded with a known schema, and every segment up to W is in the catalog. A tenant that still awaits
        its schema snapshot has no history and W = 0; a keyspace never has a history. While a store of the tenant is
        quarantined, W is at most the last timestamp known to be good.
        """
        row = tenants.get_tenant(self.catalog, tenant)
        if not row.has_log:
            return Served(row=row, history=None, resolved=0, covers=0)
        edge = tasks.served_edge(self.catalog, tenant)
        history = None if row.kind.is_keyspace else self.registry.history(tenant)
        resolved = edge.ts if history is None else min(edge.ts, history.resolved_ts)
        held = None if edge.good_ts is None else lowest_quarantine(self.catalog, tenant)
        return Served(
            row=row,
            history=history,
            resolved=resolved,
            covers=resolved,
            quarantine=held,
            gap=edge.gap,
        )
