"""Changefeeds of a tenant: consumers with their members, and replications with their lanes; a page for each; and the
forms that reset, pause, resume, rebalance or remove one, or decide about a refused change."""

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
from tistream.admin import actions, consumers, replication_actions
from tistream.catalog.rows.tenants import TenantRow
from tistream.catalog.tenancy.changefeeds import ChangefeedRow, get_changefeed
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.catalog.work.lanes import replace_lanes
from tistream.clock import Clock
from tistream.http.auth.core.roles import Right
from tistream.http.parameters import Name, PathTenant
from tistream.ids import Tenant

_ALL = "/tenants/{cluster_id}/{tenant_id}/changefeeds"
_ONE = f"{_ALL}/{{changefeed_id}}"
_To = Annotated[str, Query(max_length=64, description="a TSO, a time, `earliest` or `latest`")]
_Lane = Annotated[int, Query(ge=0)]
_Lanes = Annotated[int | None, Query(ge=1, le=256)]
_TABLES_SHOWN = 200
_LOOK_S = 1.5  #: between two looks from which a rate is computed


def add_pages(pages: Pages) -> None:
    """Add the pages of changefeeds."""
    services, sources, rates = pages.services, sources_of(pages.services), _Rates(pages.services.clock)

    @pages.view(_ALL, "changefeeds.html", every=2)
    def shown(tenant: PathTenant) -> dict[str, Any]:
        row = get_tenant(services.catalog, tenant)
        items = [_shown(row, item, rates) for item in consumers.consumers_of(services.catalog, row.tenant)]
        return {**asdict(tenant), "items": items}

    @pages.view(_ONE, "changefeed.html", every=2)
    def one(tenant: PathTenant, changefeed_id: Name) -> dict[str, Any]:
        row = get_tenant(services.catalog, tenant)
        feed = get_changefeed(services.catalog, row.tenant, changefeed_id)
        item = _shown(row, consumers.one_consumer(services.catalog, feed), rates)
        return {
            **asdict(tenant),
            "items": [item],
            "item": item,
            "tables": _tables(services, row, feed),
            "tables_shown": _TABLES_SHOWN,
        }

    @pages.action(f"{_ONE}/reset", right=Right.READ)
    def reset(tenant: PathTenant, changefeed_id: Name, to: _To = "earliest") -> Action:
        def run(*, dry_run: bool, actor: str) -> dict[str, Any]:
            to_ts = services.served(tenant).parse_ts(to, services.clock.unix_ms())
            return consumers.reset(sources, tenant, changefeed_id, to_ts, dry_run=dry_run, actor=actor)

        return Action(run, f"Reset consumer {changefeed_id}", _back(tenant))

    for verb in ("pause", "resume", "remove"):
        _add_action(pages, verb)
    _add_lane_actions(pages)


def _add_action(pages: Pages, verb: str) -> None:
    services, sources = pages.services, sources_of(pages.services)

    @pages.action(f"{_ONE}/{verb}", right=Right.TENANT)
    def action(tenant: PathTenant, changefeed_id: Name) -> Action:
        def run(*, dry_run: bool, actor: str) -> dict[str, Any]:
            row = get_changefeed(services.catalog, tenant, changefeed_id)
            does = getattr(replication_actions if row.is_replication else consumers, verb)
            done: dict[str, Any] = does(sources, tenant, changefeed_id, dry_run=dry_run, actor=actor)
            return done

        return Action(run, f"{verb.capitalize()} changefeed {changefeed_id}", _back(tenant))


def _add_lane_actions(pages: Pages) -> None:
    services, sources = pages.services, sources_of(pages.services)

    @pages.action(f"{_ONE}/rebalance", right=Right.TENANT)
    def rebalance(tenant: PathTenant, changefeed_id: Name, lanes: _Lanes = None) -> Action:
        run = partial(_rebalance, services, tenant, changefeed_id, lanes)
        return Action(run, f"Rebalance changefeed {changefeed_id}", _path(tenant, changefeed_id))

    @pages.action(f"{_ONE}/retry", right=Right.TENANT)
    def retry(tenant: PathTenant, changefeed_id: Name, lane: _Lane) -> Action:
        run = partial(replication_actions.retry, sources, tenant, changefeed_id, lane)
        return Action(run, f"Retry the refused change of lane {lane}", _path(tenant, changefeed_id))

    @pages.action(f"{_ONE}/skip", right=Right.TENANT)
    def skip(tenant: PathTenant, changefeed_id: Name, lane: _Lane, form: Form) -> Action:
        tenant, key, commit_ts = tenant, form.get("key"), form.get("commit_ts", "")
        change = (key, int(commit_ts)) if key is not None and re.fullmatch(r"[0-9]{1,19}", commit_ts) else None
        run = partial(replication_actions.skip, sources, tenant, changefeed_id, lane, change=change)
        return Action(run, f"Skip the refused change of lane {lane}", _path(tenant, changefeed_id))


def _rebalance(
    services: Services, tenant: Tenant, name: str, count: int | None, *, dry_run: bool, actor: str
) -> dict[str, Any]:
    """Cut a replication anew, by its destination's regions as they are now."""
    before, scopes = recut(services.catalog, tenant, name, count, services.clock, services.outbound)
    if not dry_run:
        replace_lanes(services.catalog, tenant, name, scopes)
    words = f"{len(scopes)} lanes replace {len(before)}: {', '.join(scope.shown for scope in scopes[:8])}"
    words += " and more" if len(scopes) > 8 else ""
    words += ". Each begins at the least checkpoint that it covers, so some changes are written again."
    return actions.outcome("rebalance", f"changefeed {name}", dry_run, words)


def _tables(services: Services, row: TenantRow, feed: ChangefeedRow) -> list[dict[str, Any]]:
    """The tables that a replication writes, those that are stopped first."""
    tables = tables_by_lane(services.catalog, services.registry, row, feed)
    return sorted(tables, key=lambda table: not table["stopped"])


def _back(tenant: Tenant) -> str:
    return f"/tenants/{tenant.cluster_id}/{tenant.tenant_id}/changefeeds"


def _path(tenant: Tenant, name: str) -> str:
    return f"{_back(tenant)}/{quote(name)}"


def _shown(row: TenantRow, item: dict[str, Any], rates: _Rates) -> dict[str, Any]:
    """A changefeed with its members and their partitions, or with what its lanes have done."""
    done = {name: sum(lane[name] for lane in item["lanes"]) for name in ("rows", "bytes")}
    return {
        **item,
        "path": _path(row.tenant, item["changefeed_id"]),
        "destination": item["sink_uri"],
        "done": done,
        "rate": rates.of((row.tenant, item["changefeed_id"]), done["rows"], done["bytes"]) if item["lanes"] else None,
        "readers": [
            {
                "name": name,
                "lease_s": item["leases_s"][name],
                "partitions": [p["partition"] for p in item["partitions"] if p["member"] == name],
                "lag_s": max((p["lag_s"] for p in item["partitions"] if p["member"] == name), default=0),
            }
            for name in item["members"]
        ],
        "unread": [p["partition"] for p in item["partitions"] if item["leases_s"].get(p["member"], 0) <= 0],
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
