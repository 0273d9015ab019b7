"""The admin console: pages for people, each also as `.json`.

Jinja pages with htmx for changing parts in place and uPlot for the lag chart, all vendored: no build step and no
request to another host. Pages show what the API answers; they hold no state of their own. A request with `HX-Request`
gets only the part of the page that changes, and `/live` tells an open tab of all its parts (`live.py`). What goes wrong
on a page is a page, too; on `.json` it is a problem document.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.staticfiles import StaticFiles

from apiserver.console import key_pages, login, onboarding, operator_pages, views
from apiserver.console.error_pages import ErrorPages
from apiserver.console.lag_history import LagHistory
from apiserver.console.live import LiveParts
from apiserver.console.live import router as live_router
from apiserver.console.page_context import HEADERS, page_context
from apiserver.console.snippets import ORIGIN, pull_snippets
from apiserver.stream.followers import Followers
from reading.deps import Services
from tistream import __version__
from tistream.errors import TiStreamError
from tistream.http import problem
from tistream.http.auth.access import Who, needs
from tistream.http.auth.core.roles import Right
from tistream.ids import Tenant

_HERE = Path(__file__).parent


def install(app: FastAPI, services: Services, followers: Followers) -> None:
    """Put the console's pages and files under the application."""
    live = LiveParts()
    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")
    app.include_router(_router(services, live))
    live.know(app)
    app.include_router(live_router(live, followers))


def install_error_pages(app: FastAPI) -> None:
    """Make what is refused a page for browsers. Call it last: the wall refuses, too."""
    app.add_middleware(ErrorPages, template=_templates().get_template("problem.html"))


def _router(services: Services, live: LiveParts) -> APIRouter:
    routes = APIRouter(include_in_schema=False)
    env, lags = _templates(), LagHistory()

    def page(request: Request, template: str, facts: Callable[[], dict[str, Any]]) -> Response:
        status, place = 200, page_context(request)
        try:
            text = env.get_template(template).render(facts(), **place)
        except TiStreamError as e:
            status = problem.status_of(e)
            text = env.get_template("problem.html").render(problem.problem_body(e), **place)
        return Response(text, status, HEADERS, "text/html")

    def plain(request: Request, template: str, facts: dict[str, Any], status: int) -> Response:
        place = {**page_context(request), "part": False}
        return Response(env.get_template(template).render(facts, **place), status, HEADERS, "text/html")

    routes.include_router(login.router(services, plain))
    for module in (operator_pages, onboarding, key_pages):
        module.add_pages(routes, services, page, live)

    @routes.get("/", dependencies=[needs(Right.KNOWN)])
    def home() -> Response:
        return RedirectResponse("/overview")

    @routes.get("/overview", dependencies=[needs(Right.LOOK, filtered=True)])
    @live.every(2)
    def overview(request: Request, who: Who) -> Response:
        return page(request, "overview.html", lambda: views.overview(services, who, lags))

    @routes.get("/overview.json", dependencies=[needs(Right.LOOK, filtered=True)])
    def overview_json(who: Who) -> dict[str, Any]:
        return views.overview(services, who, lags)

    @routes.get("/tenants/{cluster_id}/{tenant_id}.json", dependencies=[needs(Right.LOOK)])
    def tenant_json(cluster_id: int, tenant_id: int, who: Who) -> dict[str, Any]:
        return views.tenant(services, Tenant(cluster_id, tenant_id), who)

    @routes.get("/tenants/{cluster_id}/{tenant_id}", dependencies=[needs(Right.LOOK)])
    @live.every(2)
    def tenant(request: Request, cluster_id: int, tenant_id: int, who: Who, table: str = "") -> Response:
        of = Tenant(cluster_id, tenant_id)
        lines = {
            "table": table,
            "copies": pull_snippets(of, table, keyed=onboarding.asks_for_keys(request)),
            "origin": ORIGIN,
        }
        return page(request, "tenant.html", lambda: {**views.tenant(services, of, who), **lines})

    @routes.get("/tenants/{cluster_id}/{tenant_id}/waterfall.json", dependencies=[needs(Right.LOOK)])
    def waterfall_json(cluster_id: int, tenant_id: int) -> dict[str, Any]:
        return views.waterfall(services, Tenant(cluster_id, tenant_id))

    @routes.get("/tenants/{cluster_id}/{tenant_id}/waterfall", dependencies=[needs(Right.LOOK)])
    @live.every(5)
    def waterfall(request: Request, cluster_id: int, tenant_id: int) -> Response:
        return page(request, "waterfall.html", lambda: views.waterfall(services, Tenant(cluster_id, tenant_id)))

    return routes


def _templates() -> Environment:
    vendored = json.loads((_HERE / "static" / "vendor" / "vendor.json").read_text("utf-8"))
    env = Environment(
        loader=FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.globals.update(version=__version__, integrity=vendored)
    env.filters.update(views.FILTERS)
    return env
