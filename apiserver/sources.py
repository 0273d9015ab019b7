"""What views of operators and of lag are read from, in an API server."""

from __future__ import annotations

from reading.served.services import Services
from schemas.registry.table_names import table_names
from tistream.admin.lag import LagSources
from tistream.admin.views import Sources


def sources_of(services: Services) -> Sources:
    """For views of operators."""
    return Sources(catalog=services.catalog, clock=services.clock, names=table_names(services.registry))


def lag_sources(services: Services) -> LagSources:
    """For the lag of a tenant."""
    return LagSources(
        views=sources_of(services),
        store=services.store,
        skew_max_ms=services.skew_max_ms,
        served=lambda tenant: services.served(tenant).resolved,
        reports=services.process.reports,
        explain=services.process.explain,
    )
