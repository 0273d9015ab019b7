"""Puts the wall around an application, and refuses one with a route that does not say what it needs."""

from __future__ import annotations

from fastapi import FastAPI

from tistream.auth.access import undeclared
from tistream.auth.guard import KeyGuard
from tistream.auth.idempotency import Idempotency
from tistream.auth.wall import SecurityHeaders, Wall
from tistream.catalog.engine import Catalog
from tistream.errors import invariant


def install(app: FastAPI, catalog: Catalog, guard: KeyGuard | None) -> None:
    """Call it when all routes are there. `guard` None: no keys are asked for."""
    silent = undeclared(app)
    invariant(not silent, "every route says what it needs: dependencies=[needs(Right....)]", routes=", ".join(silent))
    app.add_middleware(Idempotency, catalog=catalog)
    app.add_middleware(Wall, guard=guard)
    app.add_middleware(SecurityHeaders)  # added last: the outermost
