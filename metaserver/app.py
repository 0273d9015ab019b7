"""The meta server's HTTP port when it runs as a process of its own: the control routes and the probes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastapi import FastAPI, Response

from metaserver.admin_routes import admin_router
from metaserver.routes import control_router
from metaserver.seed_routes import seed_router
from schemas.registry import SchemaRegistry
from tistream import __version__
from tistream.admin.facts import Sources
from tistream.admin.names import table_names
from tistream.catalog.engine import Catalog
from tistream.clock import SystemClock
from tistream.objectstore.protocol import ObjectStore
from tistream.problem import install
from tistream.service import Problem


def create_app(
    catalog: Catalog,
    store_url: str,
    problems: Callable[[], Sequence[Problem]] = list,
    store: ObjectStore | None = None,
) -> FastAPI:
    """The app. `problems` tells what is wrong with the process; a fatal one makes it not ready. Seeds can be added,
    and operators be answered, where there is a `store` to look into."""
    app = FastAPI(title="TiStream meta server", version=__version__, docs_url=None, redoc_url=None)
    install(app)
    app.include_router(control_router(catalog, store_url))
    if store is not None:
        app.include_router(seed_router(catalog, store))
        names = table_names(SchemaRegistry(catalog, store))
        app.include_router(admin_router(Sources(catalog=catalog, clock=SystemClock(), names=names)))

    @app.get("/livez", include_in_schema=False)
    def livez() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz", include_in_schema=False)
    def readyz(response: Response) -> dict[str, str]:
        catalog.ping()
        ready = not any(problem.fatal for problem in problems())
        response.status_code = 200 if ready else 503
        return {"status": "ok" if ready else "not ready"}

    @app.get("/healthz", include_in_schema=False)
    def healthz() -> dict[str, object]:
        found = [{"code": p.code, "source": p.source, "message": p.message} for p in problems()]
        return {"status": "problems" if found else "ok", "problems": found}

    return app
