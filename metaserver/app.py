"""The meta server's HTTP port when it runs as a process of its own: the control routes and the probes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from fastapi import FastAPI, Response

from metaserver.routes import control_router
from metaserver.seed_routes import seed_router
from tistream import __version__
from tistream.auth import install as auth
from tistream.auth.access import needs
from tistream.auth.guard import KeyGuard
from tistream.auth.roles import Right
from tistream.catalog.engine import Catalog
from tistream.objectstore.protocol import ObjectStore
from tistream.problem import install
from tistream.service import Problem


def create_app(
    catalog: Catalog,
    store_url: str,
    problems: Callable[[], Sequence[Problem]] = list,
    store: ObjectStore | None = None,
    guard: KeyGuard | None = None,
) -> FastAPI:
    """The app. `problems` tells what is wrong with the process; a fatal one makes it not ready. Seeds can be added
    where there is a `store` to look into. Without a `guard` no keys are asked for."""
    app = FastAPI(title="TiStream meta server", version=__version__, docs_url=None, redoc_url=None)
    install(app)
    app.include_router(control_router(catalog, store_url))
    if store is not None:
        app.include_router(seed_router(catalog, store))

    @app.get("/livez", include_in_schema=False, dependencies=[needs(Right.OPEN)])
    def livez() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/readyz", include_in_schema=False, dependencies=[needs(Right.OPEN)])
    def readyz(response: Response) -> dict[str, str]:
        catalog.ping()
        ready = not any(problem.fatal for problem in problems())
        response.status_code = 200 if ready else 503
        return {"status": "ok" if ready else "not ready"}

    @app.get("/healthz", include_in_schema=False, dependencies=[needs(Right.LOOK)])
    def healthz() -> dict[str, object]:
        found = [{"code": p.code, "source": p.source, "message": p.message} for p in problems()]
        return {"status": "problems" if found else "ok", "problems": found}

    auth.install(app, catalog, guard)
    return app
