"""Health probes and metrics, the same on every port.

    /livez     the process runs
    /readyz    200, or 503 with the components that do not answer
    /healthz   current problems; always 200
    /version   the running version
    /metrics   Prometheus text format

Probes leave nothing changed and contain no data of tenants. `/livez`, `/readyz` and `/version` are open; the others
need a key that may see the whole deployment. A port of [metrics] requires no keys: it belongs on an internal network.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
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
from tistream.http.probe_answers import Health, Liveness, Readiness, RunningVersion
from tistream.http.readiness import Check, Probes
from tistream.runtime import metrics

CHECK_WAIT_S = 4.0  #: a component that has not answered by then is not ready

_API_IS_ELSEWHERE = (
    "This port has only /livez, /readyz, /healthz, /version and /metrics. The API servers (tistream serve, or "
    "tistream up) answer every route of pushers, readers and operators: use their address."
)


def probe_router(probes: Probes) -> APIRouter:
    """The probe routes."""
    routes = APIRouter(tags=["ops"])
    checks = _Checks(probes.checks)
    sources = [*probes.collect, lambda: [_problems(probes.problems())]]

    @routes.get(
        "/livez", summary="The process runs", dependencies=[needs(Right.OPEN)], responses={200: {"model": Liveness}}
    )
    async def livez() -> dict[str, str]:
        return {"status": "ok"}

    @routes.get(
        "/readyz",
        summary="Every component answers",
        dependencies=[needs(Right.OPEN)],
        responses={200: {"model": Readiness}, 503: {"model": Readiness, "description": "a component does not answer"}},
    )
    async def readyz(request: Request, response: Response) -> dict[str, Any]:
        states = await checks.states()
        ready = all(state == "ok" for state in states.values())
        response.status_code = 200 if ready else 503
        who = access_of(request).principal
        if who is None or not who.sees_all or Right.LOOK not in who.rights:
            states = {name: "ok" if state == "ok" else "failed" for name, state in states.items()}
        return {"status": "ok" if ready else "not ready", "checks": states}

    @routes.get(
        "/healthz",
        summary="Current problems, by component",
        dependencies=[needs(Right.LOOK, limited=OfLimited.REFUSED)],
        responses={200: {"model": Health}},
    )
    def healthz() -> dict[str, Any]:
        problems = [*probes.problems(), *probes.reported()]
        return {"status": "problems" if problems else "ok", "problems": problems, **probes.facts()}

    @routes.get(
        "/version",
        summary="The running version",
        dependencies=[needs(Right.OPEN)],
        responses={200: {"model": RunningVersion}},
    )
    async def version() -> dict[str, str]:
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


class _Checks:
    """The checks of a process, side by side, each in a thread of its own: none waits behind requests or for another.

    A check that does not return is not begun again; its component is not ready until it does."""

    def __init__(self, checks: Mapping[str, Check]) -> None:
        self._checks = checks
        self._threads = ThreadPoolExecutor(max(1, len(checks)), thread_name_prefix="probes")
        self._running: dict[str, Future[str]] = {}

    async def states(self) -> dict[str, str]:
        """`ok`, or what is wrong, by component, within CHECK_WAIT_S. Called in one event loop only."""
        for name, check in self._checks.items():
            if name not in self._running or self._running[name].done():
                self._running[name] = self._threads.submit(_run, check)
        asked = dict(self._running)
        if asked:
            await asyncio.wait([asyncio.wrap_future(each) for each in asked.values()], timeout=CHECK_WAIT_S)
        late = f"no answer within {CHECK_WAIT_S:g} s"
        return {name: each.result() if each.done() else late for name, each in asked.items()}


def _problems(problems: Sequence[Mapping[str, object]]) -> metrics.Metric:
    counts: dict[tuple[str, str], int] = {}
    for each in problems:
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
