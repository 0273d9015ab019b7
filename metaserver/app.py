"""HTTP app of a meta server in its own process: the control routes and the probes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from fastapi import FastAPI

from metaserver.admin_routes import admin_router
from metaserver.push_access import CredentialIssuer
from metaserver.push_routes import push_router
from metaserver.retention_routes import retention_router
from metaserver.routes import control_router
from metaserver.seed_routes import seed_router
from schemas.registry.schema_registry import SchemaRegistry
from schemas.registry.table_names import table_names
from tistream import __version__
from tistream.admin.views import Sources
from tistream.catalog.database.engine import Catalog
from tistream.clock import SystemClock
from tistream.http.auth import install as auth
from tistream.http.auth.authenticator import Authenticator
from tistream.http.probes import Check, Probes, none_stopped, probe_router, store_answers
from tistream.http.problem import install
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime.metrics import Collect
from tistream.runtime.service import Problem


def create_app(
    catalog: Catalog,
    store_url: str,
    problems: Callable[[], Sequence[Problem]] = list,
    store: ObjectStore | None = None,
    authenticator: Authenticator | None = None,
    *,
    issuer: CredentialIssuer | None = None,
    more_checks: Mapping[str, Check] = MappingProxyType({}),
    collect: Sequence[Collect] = (),
) -> FastAPI:
    """The app. A fatal problem of `problems`, or a failing check of `more_checks`, makes the process not ready. Routes
    for seeds, pushers and operators need a `store`. Without a `guard` no API keys are required; without an `issuer`
    pushers use their own credentials for the bucket."""
    app = FastAPI(title="TiStream meta server", version=__version__, docs_url=None, redoc_url=None)
    install(app)
    app.include_router(control_router(catalog, store_url, issuer))
    app.include_router(retention_router(catalog))
    if store is not None:
        app.include_router(seed_router(catalog, store))
        app.include_router(push_router(catalog, store, issuer))
        names = table_names(SchemaRegistry(catalog, store))
        app.include_router(admin_router(Sources(catalog=catalog, clock=SystemClock(), names=names)))

    checks = {"catalog": catalog.ping, "services": none_stopped(problems)}
    if store is not None:
        checks["object store"] = store_answers(store)
    shown = lambda: [problem.shown() for problem in problems()]  # noqa: E731
    app.state.probes = Probes(checks={**checks, **more_checks}, problems=shown, collect=collect)
    app.include_router(probe_router(app.state.probes))
    auth.install(app, catalog, authenticator)
    return app
