"""Names of a tenant's tables in the newest schema, to render key ranges for people."""

from __future__ import annotations

from collections.abc import Callable

from schemas.registry.schema_registry import SchemaRegistry
from tistream.admin.core.formatting import NameOf
from tistream.ids import Tenant


def table_names(registry: SchemaRegistry) -> Callable[[Tenant], NameOf]:
    """For `Sources`: names by physical table id. NotFound while there is no schema."""

    def of_tenant(tenant: Tenant) -> NameOf:
        history = registry.history(tenant)
        ts = history.resolved_ts

        def name_of(table_id: int) -> str | None:
            table = history.table_at(table_id, ts)
            return None if table is None else f"{table.db}.{table.name}"

        return name_of

    return of_tenant
