"""The admin console: pages for people, each also as `.json`.

Jinja pages with htmx for refreshing parts and uPlot for the lag chart, all vendored: no build step and no request to
another host. Pages show what the API answers; they hold no state of their own. An htmx request gets only the part of
the page that changes. What goes wrong on a page is a page, too; on `.json` it is a problem document.
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

from apiserver.console import key_pages, login, onboarding, operate_routes, pages
from apiserver.console.copies import ORIGIN, copies
from apiserver.console.seen import LagsSeen
from apiserver.deps import Services
from tistream import __version__, problem
from tistream.auth.access import Who, access_of, needs
from tistream.auth.roles import Right
from tistream.errors import TiStreamError
from tistream.ids import Tenant

_HERE = Path(__file__).parent
_MENU = (  #: address, name, the right it needs, whether it is about the whole deployment
    ("/overview", "Overview", Right.LOOK, False),
    ("/tenants", "Tenants", Right.LOOK, True),
    ("/tasks", "Tasks", Right.LOOK, True),
    ("/workers", "Workers", Right.LOOK, True),
    ("/holes", "Holes", Right.LOOK, True),
    ("/events", "Events", Right.LOOK, True),
    ("/keys", "Keys", Right.KEYS, False),
    ("/docs", "API", Right.KNOWN, False),
)
_HEADERS = {
    "Cache-Control": "no-store",  # a page and its part have the same address
    "Vary": "HX-Request",
}


def _place(request: Request) -> dict[str, Any]:
    """Where a page is, for its menu and its twin; who looks at it, for what it offers."""
    who = access_of(request).principal
    rights, whole = (who.rights, who.sees_all) if who is not None else (frozenset[Right](), False)
    return {
        "here": request.url.path,
        "address": request.url.path + (f"?{request.url.query}" if request.url.query else ""),
        "menu": [
            (path, name) for path, name, right, all_of_it in _MENU if right in rights and (whole or not all_of_it)
        ],
        "rights": rights,
        "whole": whole,
    }


def install(app: FastAPI, services: Services) -> None:
    """Put the console's pages and files under the application."""
    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")
    app.include_router(_router(services))


def _router(services: Services) -> APIRouter:
    routes = APIRouter(include_in_schema=False)
    env, lags = _templates(), LagsSeen()

    def page(request: Request, template: str, facts: Callable[[], dict[str, Any]]) -> Response:
        status, part = 200, request.headers.get("HX-Request") == "true"
        place = {**_place(request), "csrf": access_of(request).csrf}
        try:
            text = env.get_template(template).render(facts(), part=part, **place)
        except TiStreamError as e:
            status = problem.status_of(e)
            text = env.get_template("problem.html").render(problem.problem_body(e), part=part, **place)
        return Response(text, status, _HEADERS, "text/html")

    def plain(request: Request, template: str, facts: dict[str, Any], status: int) -> Response:
        return Response(
            env.get_template(template).render(facts, part=False, **_place(request)), status, _HEADERS, "text/html"
        )

    routes.include_router(login.router(services, plain))
    operate_routes.add_pages(routes, services, page)
    onboarding.add_pages(routes, services, page)
    key_pages.add_pages(routes, services, page)

    @routes.get("/", dependencies=[needs(Right.KNOWN)])
    def home() -> Response:
        return RedirectResponse("/overview")

    @routes.get("/overview", dependencies=[needs(Right.LOOK, filtered=True)])
    def overview(request: Request, who: Who) -> Response:
        return page(request, "overview.html", lambda: pages.overview(services, who, lags))

    @routes.get("/overview.json", dependencies=[needs(Right.LOOK, filtered=True)])
    def overview_json(who: Who) -> dict[str, Any]:
        return pages.overview(services, who, lags)

    @routes.get("/tenants/{cluster_id}/{tenant_id}.json", dependencies=[needs(Right.LOOK)])
    def tenant_json(cluster_id: int, tenant_id: int, who: Who) -> dict[str, Any]:
        return pages.tenant(services, Tenant(cluster_id, tenant_id), who)

    @routes.get("/tenants/{cluster_id}/{tenant_id}", dependencies=[needs(Right.LOOK)])
    def tenant(request: Request, cluster_id: int, tenant_id: int, who: Who, table: str = "") -> Response:
        of = Tenant(cluster_id, tenant_id)
        lines = {"table": table, "copies": copies(of, table, keyed=onboarding.asks_for_keys(request)), "origin": ORIGIN}
        return page(request, "tenant.html", lambda: {**pages.tenant(services, of, who), **lines})

    @routes.get("/tenants/{cluster_id}/{tenant_id}/waterfall.json", dependencies=[needs(Right.LOOK)])
    def waterfall_json(cluster_id: int, tenant_id: int) -> dict[str, Any]:
        return pages.waterfall(services, Tenant(cluster_id, tenant_id))

    @routes.get("/tenants/{cluster_id}/{tenant_id}/waterfall", dependencies=[needs(Right.LOOK)])
    def waterfall(request: Request, cluster_id: int, tenant_id: int) -> Response:
        return page(request, "waterfall.html", lambda: pages.waterfall(services, Tenant(cluster_id, tenant_id)))

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
    env.filters.update(pages.FILTERS)
    return env
