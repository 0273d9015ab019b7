"""The routes by which pushers and operators control the service. Every API process answers them, from the catalog.

They are registration, push access, seeds, retention, changefeeds, and the views and actions of operators. The elected
meta server acts on what they write; it has no routes of its own.
"""

from __future__ import annotations

from fastapi import APIRouter

from metaserver.admin_routes import admin_router
from metaserver.push_access import CredentialIssuer
from metaserver.push_routes import push_router
from metaserver.retention_routes import retention_router
from metaserver.routes import control_router
from metaserver.seed_routes import seed_router
from tistream.admin.views import Sources
from tistream.objectstore.protocol import ObjectStore


def control_routers(
    sources: Sources, store: ObjectStore, store_url: str, issuer: CredentialIssuer | None = None
) -> list[APIRouter]:
    """All of them. `store_url`: the bucket's address for pushers; `issuer` of credentials for it: without one pushers
    use their own."""
    catalog = sources.catalog
    return [
        admin_router(sources),
        control_router(catalog, store_url, issuer),
        push_router(catalog, store, issuer),
        retention_router(catalog),
        seed_router(catalog, store),
    ]
