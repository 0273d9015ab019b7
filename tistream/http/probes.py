"""Health probes and metrics, the same on every port.

    /livez     the process runs
    /readyz    200, or 503 with the components that do not answer
    /healthz   current problems; always 200
    /version   the running version
    /metrics   Prometheus text format

Probes change nothing and contain no data of tenants. `/livez`, `/readyz` and `/version` are open; the others need a key
that may see the whole deployment. A port of [metrics] requires no keys: it belongs on an internal network.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client import CONTENT_TYPE_LATEST

from tistream import __version__
from tistream.errors import TiStreamError
from tistream.http import problem
from tistream.http.auth.access import access_of, needs
from tistream.http.auth.core.roles import OfLimited, Right
from tistream.http.auth.middleware import AuthMiddleware
from tistream.http.heads import Heads
from tistream.http.readiness import Check, Probes
from tistream.runtime import metrics

_API_IS_ELSEWHERE = (
    "This port has only /livez, /readyz, /healthz, /version and /metrics. The API servers (tistream serve, or "
    "tistream up) answer every route of pushers, readers and operators: use their address."
)


def probe_router(probes: Probes) -> APIRouter:
    """The probe routes."""
    routes = APIRouter(tags=["ops"])
    sources = [*probes.collect, lambda: [_problems(probes.problems())]]

    @routes.get("/livez", operation_id="livez", summary="The process runs", dependencies=[needs(Right.OPEN)])
    def livez() -> dict[str, str]:
        return {"status": "ok"}

    @routes.get("/readyz", operation_id="readyz", summary="Every component answers", dependencies=[needs(Right.OPEN)])
    def readyz(request: Request, response: Response) -> dict[str, Any]:
        found = {name: _run(check) for name, check in probes.checks.items()}
        ready = all(state == "ok" for state in found.values())
        response.status_code = 200 if ready else 503
        who = access_of(request).principal
        if who is None or not who.sees_all or Right.LOOK not in who.rights:
            found = {name: "ok" if state == "ok" else "failed" for name, state in found.items()}
        return {"status": "ok" if ready else "not ready", "checks": found}

    @routes.get(
        "/healthz",
        operation_id="healthz",
        summary="Current problems, by component",
        dependencies=[needs(Right.LOOK, limited=OfLimited.REFUSED)],
    )
    def healthz() -> dict[str, Any]:
        found = [*probes.problems(), *probes.reported()]
        return {"status": "problems" if found else "ok", "problems": found}

    @routes.get("/version", operation_id="version", summary="The running version", dependencies=[needs(Right.OPEN)])
    def version() -> dict[str, str]:
        return {"version": __version__}

    @routes.get(
        "/metrics",
        operation_id="metrics",
        summary="Metrics in Prometheus text format",
        dependencies=[needs(Right.LOOK, limited=OfLimited.REFUSED)],
    )
    def measured() -> Response:
        return Response(metrics.exposition(sources), media_type=CONTENT_TYPE_LATEST)

    return routes


def probe_app(probes: Probes) -> FastAPI:
    """The probes alone, for a process without another HTTP port."""
    app = FastAPI(title="TiStream probes", version=__version__, docs_url=None, redoc_url=None)
    problem.install(app, where=_API_IS_ELSEWHERE)
    app.include_router(probe_router(probes))
    app.add_middleware(Heads)
    app.add_middleware(AuthMiddleware, authenticator=None, any_host=True)  # Prometheus may use any name
    return app


def _problems(found: Sequence[Mapping[str, object]]) -> metrics.Metric:
    counts: dict[tuple[str, str], int] = {}
    for each in found:
        ends = each.get("fatal") and not each.get("contained")
        labels = str(each["code"]), "true" if ends else "false"
        counts[labels] = counts.get(labels, 0) + 1
    family = metrics.collected("tistream_problems")
    for labels, count in sorted(counts.items()):
        family.add_metric(labels, count)
    return family


def _run(check: Check) -> str:
    try:
        check()
    except TiStreamError as e:
        return str(e)
    return "ok"
