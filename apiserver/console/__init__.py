"""The admin console: pages for people, each also as `.json`.

Jinja pages with htmx for replacing parts in place and uPlot for the lag chart, all vendored: no build step and no
request to another host. Pages show what the API answers and hold no state. A request with `HX-Request` gets only the
part of the page that changes; `/live` sends an open tab all its changed parts (`live.py`). Errors are pages, too; on
`.json` they are problem documents.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.staticfiles import StaticFiles

from apiserver.console import (
    audit_page,
    changefeed_pages,
    consumer_pages,
    key_pages,
    login,
    onboarding,
    operator_pages,
    views,
)
from apiserver.console.error_pages import ErrorPages
from apiserver.console.lag_history import LagHistory
from apiserver.console.live import router as live_router
from apiserver.console.pages import Pages
from apiserver.console.snippets import ORIGIN, keys_snippets, pull_snippets
from apiserver.stream.followers import Followers
from reading.served.services import Services
from tistream import __version__
from tistream.http.auth.access import Who, needs
from tistream.http.auth.core.roles import OfLimited, Right
from tistream.ids import Tenant
from tistream.tikv.core.api_versions import DELETE_RANGE

_HERE = Path(__file__).parent
_TENANT = "/tenants/{cluster_id}/{tenant_id}"


def install(app: FastAPI, services: Services, followers: Followers) -> None:
    """Add the console's pages and files to the application."""
    pages = Pages(services, _templates())
    app.mount("/static", StaticFiles(directory=_HERE / "static"), name="static")
    pages.routes.include_router(login.router(services, pages.render))
    for module in (operator_pages, onboarding, key_pages, audit_page, consumer_pages, changefeed_pages):
        module.add_pages(pages)
    _add_pages(pages)
    app.include_router(pages.routes)
    pages.live.register(app)
    app.include_router(live_router(pages.live, followers))


def install_error_pages(app: FastAPI) -> None:
    """Render errors as pages for browsers. Call it last: middleware refuses requests, too."""
    app.add_middleware(ErrorPages, template=_templates().get_template("problem.html"))


def _add_pages(pages: Pages) -> None:
    services, lags = pages.services, LagHistory()

    @pages.routes.get("/", dependencies=[needs(Right.KNOWN, limited=OfLimited.NO_TABLES)])
    def home() -> Response:
        return RedirectResponse("/overview")

    @pages.view("/overview", "overview.html", filtered=True, every=2)
    def overview(who: Who) -> dict[str, Any]:
        return views.overview(services, who, lags)

    @pages.routes.get(f"{_TENANT}.json", dependencies=[needs(Right.LOOK, limited=OfLimited.REFUSED)])
    def tenant_json(cluster_id: int, tenant_id: int, who: Who) -> dict[str, Any]:
        return views.tenant(services, Tenant(cluster_id, tenant_id), who)

    @pages.view(_TENANT, "tenant.html", every=2, json=False)
    def tenant(request: Request, cluster_id: int, tenant_id: int, who: Who, table: str = "") -> dict[str, Any]:
        of, keyed = Tenant(cluster_id, tenant_id), onboarding.asks_for_keys(request)
        shown = views.tenant(services, of, who)
        snippets = keys_snippets(of, keyed=keyed) if shown["keyspace"] else pull_snippets(of, table, keyed=keyed)
        return {**shown, "table": table, "snippets": snippets, "origin": ORIGIN, "delete_range": DELETE_RANGE}

    @pages.view(f"{_TENANT}/retention", "retention.html")
    def retention(cluster_id: int, tenant_id: int) -> dict[str, Any]:
        start = services.log_starts.shown(Tenant(cluster_id, tenant_id))
        return {"cluster_id": cluster_id, "tenant_id": tenant_id, **start}

    @pages.view(f"{_TENANT}/waterfall", "waterfall.html", every=5)
    def waterfall(cluster_id: int, tenant_id: int) -> dict[str, Any]:
        return views.waterfall(services, Tenant(cluster_id, tenant_id))


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
