"""The admin console: pages for people, each also as `.json`.

Jinja pages with htmx for refreshing parts and uPlot for the lag chart, all vendored: no build step and no request to
another host. Pages show what the API answers; they hold no state of their own.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.staticfiles import StaticFiles

from apiserver.console import pages
from apiserver.deps import Services
from tistream import __version__
from tistream.ids import Tenant

_HERE = Path(__file__).parent
_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; img-src 'self' data:; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


def install(app: FastAPI, services: Services) -> None:
    """Put the console's pages and files under the application."""
    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")
    app.include_router(_router(services))


def _router(services: Services) -> APIRouter:
    routes = APIRouter(include_in_schema=False)
    vendor = json.loads((_HERE / "static" / "vendor" / "vendor.json").read_text("utf-8"))
    env = Environment(loader=FileSystemLoader(_HERE / "templates"), autoescape=True, undefined=StrictUndefined)
    env.globals.update(version=__version__, integrity=vendor)
    env.filters.update(pages.FILTERS)

    def page(request: Request, template: str, facts: dict[str, Any]) -> Response:
        text = env.get_template(template).render(facts, part=request.headers.get("HX-Request") == "true")
        return Response(text, media_type="text/html", headers=_HEADERS)

    @routes.get("/")
    def home() -> Response:
        return RedirectResponse("/overview")

    @routes.get("/overview")
    def overview(request: Request) -> Response:
        return page(request, "overview.html", pages.overview(services))

    @routes.get("/overview.json")
    def overview_json() -> dict[str, Any]:
        return pages.overview(services)

    @routes.get("/tenants/{cluster_id}/{tenant_id}.json")
    def tenant_json(cluster_id: int, tenant_id: int) -> dict[str, Any]:
        return pages.tenant(services, Tenant(cluster_id, tenant_id))

    @routes.get("/tenants/{cluster_id}/{tenant_id}")
    def tenant(request: Request, cluster_id: int, tenant_id: int) -> Response:
        return page(request, "tenant.html", pages.tenant(services, Tenant(cluster_id, tenant_id)))

    return routes
