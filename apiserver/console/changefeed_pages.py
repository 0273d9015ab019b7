"""Changefeeds of a tenant with their lanes, a page for each, and the forms of its actions: pause, resume, rebalance,
remove, and the decisions about a refused change."""

from __future__ import annotations

import re
import threading
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Query

from apiserver.console.pages import Action, Form, Pages
from apiserver.sources import sources_of
from destinations.opening import recut
from destinations.tables import tables_by_lane
from reading.served.services import Services
from tistream.admin import actions, changefeeds
from tistream.catalog.rows.tenants import TenantRow
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS, ChangefeedRow
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.catalog.work.lanes import replace_lanes
from tistream.clock import Clock
from tistream.http.auth.core.roles import Right
from tistream.http.parameters import Name, PathTenant
from tistream.ids import Tenant

_ALL = "/tenants/{cluster_id}/{tenant_id}/changefeeds"
_ONE = f"{_ALL}/{{changefeed_id}}"
_Lane = Annotated[int, Query(ge=0)]
_Lanes = Annotated[int | None, Query(ge=1, le=256)]
_TABLES_SHOWN = 200
_LOOK_S = 1.5  #: between two looks from which a rate is computed


def add_pages(pages: Pages) -> None:
    """Add the pages of changefeeds."""
    services, rates = pages.services, _Rates(pages.services.clock)

    @pages.view(_ALL, "changefeeds.html", every=2)
    def shown(tenant: PathTenant) -> dict[str, Any]:
        row = get_tenant(services.catalog, tenant)
        items = [_shown(row, item, rates) for item in changefeeds.changefeeds_of(services.catalog, row.tenant)]
        return {**asdict(tenant), "items": items}

    @pages.view(_ONE, "changefeed.html", every=2)
    def one(tenant: PathTenant, changefeed_id: Name) -> dict[str, Any]:
        row = get_tenant(services.catalog, tenant)
        feed = CHANGEFEEDS.get(services.catalog, row.tenant, changefeed_id)
        item = _shown(row, changefeeds.changefeed_facts(services.catalog, feed), rates)
        return {
            **asdict(tenant),
            "items": [item],
            "item": item,
            "tables": _tables(services, row, feed),
            "tables_shown": _TABLES_SHOWN,
        }

    for verb in ("pause", "resume", "remove"):
        _add_action(pages, verb)
    _add_lane_actions(pages)


def _add_action(pages: Pages, verb: str) -> None:
    sources = sources_of(pages.services)

    @pages.action(f"{_ONE}/{verb}", right=Right.TENANT)
    def action(tenant: PathTenant, changefeed_id: Name) -> Action:
        run = partial(getattr(changefeeds, verb), sources, tenant, changefeed_id)
        return Action(run, f"{verb.capitalize()} changefeed {changefeed_id}", _back(tenant))


def _add_lane_actions(pages: Pages) -> None:
    services, sources = pages.services, sources_of(pages.services)

    @pages.action(f"{_ONE}/rebalance", right=Right.TENANT)
    def rebalance(tenant: PathTenant, changefeed_id: Name, lanes: _Lanes = None) -> Action:
        run = partial(_rebalance, services, tenant, changefeed_id, lanes)
        return Action(run, f"Rebalance changefeed {changefeed_id}", _path(tenant, changefeed_id))

    @pages.action(f"{_ONE}/retry", right=Right.TENANT)
    def retry(tenant: PathTenant, changefeed_id: Name, lane: _Lane) -> Action:
        run = partial(changefeeds.retry, sources, tenant, changefeed_id, lane)
        return Action(run, f"Retry the refused change of lane {lane}", _path(tenant, changefeed_id))

    @pages.action(f"{_ONE}/skip", right=Right.TENANT)
    def skip(tenant: PathTenant, changefeed_id: Name, lane: _Lane, form: Form) -> Action:
        tenant, key, commit_ts = tenant, form.get("key"), form.get("commit_ts", "")
        change = (key, int(commit_ts)) if key is not None and re.fullmatch(r"[0-9]{1,19}", commit_ts) else None
        run = partial(changefeeds.skip, sources, tenant, changefeed_id, lane, change=change)
        return Action(run, f"Skip the refused change of lane {lane}", _path(tenant, changefeed_id))


def _rebalance(
    services: Services, tenant: Tenant, name: str, count: int | None, *, dry_run: bool, actor: str
) -> dict[str, Any]:
    """Cut a changefeed anew, by its destination's regions as they are now."""
    before, scopes = recut(services.catalog, tenant, name, count, services.clock, services.outbound)
    if not dry_run:
        replace_lanes(services.catalog, tenant, name, scopes)
    words = f"{len(scopes)} lanes replace {len(before)}: {', '.join(scope.shown for scope in scopes[:8])}"
    words += " and more" if len(scopes) > 8 else ""
    words += ". Each begins at the least checkpoint that it covers, so some changes are written again."
    return actions.outcome("rebalance", f"changefeed {name}", dry_run, words)


def _tables(services: Services, row: TenantRow, feed: ChangefeedRow) -> list[dict[str, Any]]:
    """The tables that a changefeed writes, those that are stopped first."""
    tables = tables_by_lane(services.catalog, services.registry, row, feed)
    return sorted(tables, key=lambda table: not table["stopped"])


def _back(tenant: Tenant) -> str:
    return f"/tenants/{tenant.cluster_id}/{tenant.tenant_id}/changefeeds"


def _path(tenant: Tenant, name: str) -> str:
    return f"{_back(tenant)}/{quote(name)}"


def _shown(row: TenantRow, item: dict[str, Any], rates: _Rates) -> dict[str, Any]:
    """A changefeed with what its lanes have done."""
    done = {name: sum(lane[name] for lane in item["lanes"]) for name in ("rows", "bytes")}
    return {
        **item,
        "path": _path(row.tenant, item["changefeed_id"]),
        "destination": item["sink_uri"],
        "done": done,
        "rate": rates.of((row.tenant, item["changefeed_id"]), done["rows"], done["bytes"]),
        "log_gone": int(item["checkpoint_ts"]) < row.earliest_ts,
    }


class _Rates:
    """Rows and bytes a second of changefeeds, each from two looks at its page."""

    def __init__(self, clock: Clock) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._seen: dict[object, tuple[float, int, int, dict[str, float] | None]] = {}

    def of(self, who: object, rows: int, size: int) -> dict[str, float] | None:
        """None before the second look."""
        now_s = self._clock.monotonic()
        with self._lock:
            then_s, rows_then, size_then, rate = self._seen.get(who, (now_s, rows, size, None))
            if who not in self._seen or rows < rows_then:  # the lanes were replaced
                self._seen[who] = now_s, rows, size, None
                return None
            if (past_s := now_s - then_s) >= _LOOK_S:
                rate = {"rows": (rows - rows_then) / past_s, "bytes": (size - size_then) / past_s}
                self._seen[who] = now_s, rows, size, rate
            return rate
