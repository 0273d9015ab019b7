"""The HTTP application: API, control routes, console and problem documents."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from fastapi import APIRouter, Depends, FastAPI, Request, Response

from apiserver import console
from apiserver.control.push_access import PushPlace
from apiserver.control.routers import control_routers
from apiserver.negotiate import NotAcceptable
from apiserver.openapi import document as openapi
from apiserver.request_limits import RateLimits, RequestLimits
from apiserver.routes import (
    changes,
    consumers,
    docs,
    files,
    health,
    keyrows,
    keys,
    keyvalues,
    lag,
    rows,
    schemas,
    splits,
    streams,
    tenants,
)
from apiserver.slashes import NameSlashes
from apiserver.stream.followers import Followers, FollowLimits
from reading.served.services import Services
from tistream import __version__
from tistream.errors import ObjectNotFound, TiStreamError
from tistream.http import problem
from tistream.http.audit.middleware import AuditMiddleware
from tistream.http.audit.trail import AuditTrail
from tistream.http.auth import install as auth
from tistream.http.auth.authenticator import Authenticator
from tistream.http.heads import Heads
from tistream.http.probes import probe_router
from tistream.http.strict import refuse_unknown

log = structlog.get_logger(__name__)


def create_app(
    services: Services,
    extra_routers: Sequence[APIRouter] = (),
    *,
    push: PushPlace | None = None,
    authenticator: Authenticator | None = None,
    follow: FollowLimits | None = None,
    rates: RateLimits | None = None,
) -> FastAPI:
    """The API and the console on one port. `push`: where pushers write. Without an authenticator no keys are required.
    `app.state.followers.close()` ends streams and waiting pulls; `app.state.audit` is a Service that writes what is
    folded of the audit log."""
    app = FastAPI(
        title="TiStream",
        version=__version__,
        summary="The ordered change log of TiDB and TiKV clusters",
        docs_url=None,
        redoc_url=None,
        dependencies=[Depends(refuse_unknown)],
        generate_unique_id_function=lambda route: route.name,  # an operation is named as its function
    )
    problem.install(app)
    app.add_middleware(Heads)
    app.add_middleware(NameSlashes)
    app.add_middleware(RequestLimits, limits=rates or RateLimits(), clock=services.clock)
    app.add_exception_handler(NotAcceptable, _not_acceptable)
    app.add_exception_handler(ObjectNotFound, _object_missing)
    app.state.followers = followers = Followers(services, follow)
    for following in (changes, consumers, keyrows, keyvalues, streams, rows):
        app.include_router(following.router(followers))
    for module in (splits, files, schemas, tenants, lag, keys):
        app.include_router(module.router(services))
    app.state.probes = health.probes_of(services)
    app.include_router(probe_router(app.state.probes))
    for extra in (*control_routers(services, push or PushPlace()), *extra_routers):
        app.include_router(extra)
    app.include_router(docs.router())
    openapi.install(app)
    console.install(app, services, followers)
    auth.install(app, services.catalog, authenticator)
    app.state.audit = AuditTrail(services.catalog, services.clock)
    app.add_middleware(AuditMiddleware, trail=app.state.audit)
    console.install_error_pages(app)
    return app


async def _not_acceptable(_: Request, error: Exception) -> Response:
    assert isinstance(error, TiStreamError)
    return problem.problem_response(error, 406)


async def _object_missing(request: Request, error: Exception) -> Response:
    """An object in the catalog is missing: an internal error, not a wrong path."""
    assert isinstance(error, TiStreamError)
    log.error("object missing", path=request.url.path, exc_info=error)
    return problem.problem_response(error, 500)
