"""Puts the wall around an application, and refuses one with a route that does not say what it needs."""

from __future__ import annotations

from fastapi import FastAPI

from tistream.catalog.database.engine import Catalog
from tistream.errors import invariant
from tistream.http.auth.access import undeclared
from tistream.http.auth.authenticator import Authenticator
from tistream.http.auth.idempotency import Idempotency
from tistream.http.auth.middleware import AuthMiddleware, SecurityHeaders


def install(app: FastAPI, catalog: Catalog, authenticator: Authenticator | None) -> None:
    """Call it when all routes are there. `guard` None: no keys are asked for."""
    silent = undeclared(app)
    invariant(not silent, "every route says what it needs: dependencies=[needs(Right....)]", routes=", ".join(silent))
    app.add_middleware(Idempotency, catalog=catalog)
    app.add_middleware(AuthMiddleware, authenticator=authenticator)
    app.add_middleware(SecurityHeaders)  # added last: the outermost
