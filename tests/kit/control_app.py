"""The API server's application over a catalog and a bucket, as the composition root makes it from settings."""

from __future__ import annotations

from fastapi import FastAPI

from apiserver.app import create_app
from metaserver.push_access import CredentialIssuer
from metaserver.routers import control_routers
from reading.deps import Services
from schemas.registry.table_names import table_names
from tistream.admin.views import Sources
from tistream.catalog.database.engine import Catalog
from tistream.clock import SystemClock
from tistream.http.auth.authenticator import Authenticator
from tistream.objectstore.memory import MemoryStore
from tistream.objectstore.protocol import ObjectStore


def control_app(
    catalog: Catalog,
    store_url: str = "memory://",
    store: ObjectStore | None = None,
    *,
    authenticator: Authenticator | None = None,
    issuer: CredentialIssuer | None = None,
) -> FastAPI:
    """Pushers hear that their bucket is `store_url`; the service itself reads `store`."""
    store = store or MemoryStore()
    services = Services.create(catalog, store, SystemClock())
    sources = Sources(catalog=catalog, clock=services.clock, names=table_names(services.registry))
    routers = control_routers(sources, store, services.log_starts, services.registry, store_url, issuer)
    return create_app(services, routers, authenticator=authenticator)
