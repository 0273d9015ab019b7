"""Is the process alive, is it ready, and what does it run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request, Response

from apiserver.deps import Services
from tistream import __version__
from tistream.auth.access import access_of, needs
from tistream.auth.roles import Right
from tistream.errors import ObjectNotFound, TiStreamError
from tistream.objectstore.protocol import ObjectStore


def router(services: Services) -> APIRouter:
    """The probes are open to everybody; only who may look is told what is wrong."""
    routes = APIRouter(tags=["ops"])
    checks = {"catalog": services.catalog.ping, "object store": lambda: _ask(services.store), **services.checks}

    @routes.get("/livez", operation_id="livez", summary="The process runs", dependencies=[needs(Right.OPEN)])
    def livez() -> dict[str, str]:
        return {"status": "ok"}

    @routes.get("/readyz", operation_id="readyz", summary="Every part answers", dependencies=[needs(Right.OPEN)])
    def readyz(request: Request, response: Response) -> dict[str, Any]:
        found = {name: _run(check) for name, check in checks.items()}
        ready = all(state == "ok" for state in found.values())
        response.status_code = 200 if ready else 503
        who = access_of(request).principal
        if who is None or not who.sees_all or Right.LOOK not in who.rights:
            found = {name: "ok" if state == "ok" else "failed" for name, state in found.items()}
        return {"status": "ok" if ready else "not ready", "checks": found}

    @routes.get(
        "/healthz",
        operation_id="healthz",
        summary="What is wrong, part by part",
        dependencies=[needs(Right.LOOK)],
    )
    def healthz() -> dict[str, Any]:
        problems = services.problems()
        return {"status": "problems" if problems else "ok", "problems": problems}

    @routes.get("/version", operation_id="version", summary="What runs", dependencies=[needs(Right.OPEN)])
    def version() -> dict[str, str]:
        return {"version": __version__}

    return routes


def _ask(store: ObjectStore) -> None:
    """One small request; that there is no such object is a good answer."""
    try:
        store.size("readyz")
    except ObjectNotFound:
        return


def _run(check: Callable[[], None]) -> str:
    try:
        check()
    except TiStreamError as e:
        return str(e)
    return "ok"
