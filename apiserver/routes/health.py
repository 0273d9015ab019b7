"""Is the process alive, is it ready, and what does it run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Response

from apiserver.deps import Services
from tistream import __version__
from tistream.errors import ObjectNotFound, TiStreamError
from tistream.objectstore.protocol import ObjectStore


def router(services: Services) -> APIRouter:
    """Unauthenticated probes."""
    routes = APIRouter(tags=["ops"])
    checks = {"catalog": services.catalog.ping, "object store": lambda: _ask(services.store), **services.checks}

    @routes.get("/livez", operation_id="livez", summary="The process runs")
    def livez() -> dict[str, str]:
        return {"status": "ok"}

    @routes.get("/readyz", operation_id="readyz", summary="Every part answers")
    def readyz(response: Response) -> dict[str, Any]:
        found = {name: _run(check) for name, check in checks.items()}
        ready = all(state == "ok" for state in found.values())
        response.status_code = 200 if ready else 503
        return {"status": "ok" if ready else "not ready", "checks": found}

    @routes.get("/healthz", operation_id="healthz", summary="What is wrong, part by part")
    def healthz() -> dict[str, Any]:
        problems = services.problems()
        return {"status": "problems" if problems else "ok", "problems": problems}

    @routes.get("/version", operation_id="version", summary="What runs")
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
