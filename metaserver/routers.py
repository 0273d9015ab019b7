"""The routes by which pushers and operators control the service. Every API process answers them, from the catalog.

They are registration, push access, seeds, retention, changefeeds, maintenance jobs, and what operators see and do. The
elected meta server acts on what they write; it has no routes of its own.
"""

from __future__ import annotations

from fastapi import APIRouter

from metaserver.admin_routes import admin_router
from metaserver.changefeed_routes import changefeed_router
from metaserver.job_routes import job_router
from metaserver.push_access import CredentialIssuer
from metaserver.push_routes import push_router
from metaserver.retention_routes import retention_router
from metaserver.routes import control_router
from metaserver.seed_routes import seed_router
from schemas.registry.log_start import LogStarts
from schemas.registry.schema_registry import SchemaRegistry
from tistream.admin.views import Sources
from tistream.limits import CLOCK_SKEW_MAX_MS
from tistream.objectstore.protocol import ObjectStore


def control_routers(
    sources: Sources,
    store: ObjectStore,
    starts: LogStarts,
    registry: SchemaRegistry,
    store_url: str,
    issuer: CredentialIssuer | None = None,
    skew_max_ms: int = CLOCK_SKEW_MAX_MS,
) -> list[APIRouter]:
    """All of them. `store_url`: the bucket's address for pushers; `issuer` of credentials for it: without one pushers
    use their own. `skew_max_ms`: how far pushers' timestamps may be ahead of the service's time."""
    catalog = sources.catalog
    return [
        admin_router(sources),
        job_router(sources),
        control_router(catalog, store_url, issuer),
        push_router(catalog, store, issuer),
        retention_router(catalog, starts),
        changefeed_router(catalog, registry, sources.clock),
        seed_router(catalog, store, registry, sources.clock, skew_max_ms),
    ]
