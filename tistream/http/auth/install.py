"""Installs authentication, and refuses an application with a route that declares no rule."""

from __future__ import annotations

from fastapi import FastAPI

from tistream.catalog.database.engine import Catalog
from tistream.errors import invariant
from tistream.http.auth.access import undeclared
from tistream.http.auth.authenticator import Authenticator
from tistream.http.auth.idempotency import Idempotency
from tistream.http.auth.middleware import AuthMiddleware, SecurityHeaders


def install(app: FastAPI, catalog: Catalog, authenticator: Authenticator | None) -> None:
    """Call it after all routes are added. `authenticator` None: no keys are required."""
    missing = undeclared(app)
    invariant(not missing, "every route declares a rule: dependencies=[needs(Right....)]", routes=", ".join(missing))
    app.add_middleware(Idempotency, catalog=catalog)
    app.add_middleware(AuthMiddleware, authenticator=authenticator)
    app.add_middleware(SecurityHeaders)  # added last: the outermost
