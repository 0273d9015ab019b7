"""The HTTP application: routes over one set of services, every error a problem document.

Routers of other rooms (the control plane in a one-process deployment) are handed in by the composition root; services
never import each other.
"""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import APIRouter, FastAPI

from apiserver import console
from apiserver.deps import Services
from apiserver.routes import changes, health, schemas, tenants
from tistream import __version__, problem


def create_app(services: Services, extra_routers: Sequence[APIRouter] = ()) -> FastAPI:
    """The API and the console on one port."""
    app = FastAPI(
        title="TiStream",
        version=__version__,
        summary="The ordered change log of TiDB and TiKV clusters",
        docs_url=None,
        redoc_url=None,
    )
    problem.install(app)
    for module in (changes, schemas, tenants, health):
        app.include_router(module.router(services))
    for extra in extra_routers:
        app.include_router(extra)
    console.install(app, services)

    return app
