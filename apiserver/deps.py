"""What every route needs, made once by the composition root."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from apiserver.reader import LogReader
from schemas.registry import SchemaRegistry
from tistream.catalog import tasks, tenants
from tistream.catalog.engine import Catalog
from tistream.clock import Clock
from tistream.ids import Tenant

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from schemas.history import History
    from tistream.objectstore.protocol import ObjectStore


class Check(Protocol):
    """A readiness check: returns, or raises with the reason."""

    def __call__(self) -> None: ...


@dataclass(slots=True, kw_only=True)
class Services:
    """The parts that routes are made of."""

    catalog: Catalog
    store: ObjectStore
    clock: Clock
    registry: SchemaRegistry
    reader: LogReader
    checks: Mapping[str, Check] = field(default_factory=dict)
    problems: Callable[[], list[dict[str, object]]] = list

    @classmethod
    def create(cls, catalog: Catalog, store: ObjectStore, clock: Clock, **more: object) -> Services:
        """The usual set over one catalog and one object store."""
        return cls(
            catalog=catalog,
            store=store,
            clock=clock,
            registry=SchemaRegistry(catalog, store),
            reader=LogReader(catalog, store),
            **more,  # type: ignore[arg-type]
        )

    def served(self, tenant: Tenant) -> tuple[tenants.TenantRow, History | None, int]:
        """The tenant, its schema history, and the timestamp up to which everything is served.

        W = min(upper of every task): the history is caught up first, so no row at or below W is ever decoded with a
        schema that is not known yet. A tenant that still awaits its schema snapshot has no history and W = 0.
        """
        row = tenants.get_tenant(self.catalog, tenant)
        if row.state == tenants.TenantState.AWAITING_SNAPSHOT:
            return row, None, 0
        resolved = tasks.served_watermark(self.catalog, tenant)
        history = self.registry.history(tenant)
        return row, history, min(resolved, history.resolved_ts)
