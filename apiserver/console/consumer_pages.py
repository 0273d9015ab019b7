"""Consumers of a tenant with their members, a page for each, and the forms that reset, pause, resume or remove one."""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Query

from apiserver.console.pages import Action, Pages
from apiserver.sources import sources_of
from tistream.admin import consumers
from tistream.catalog.rows.tenants import TenantRow
from tistream.catalog.tenancy.consumers import CONSUMERS
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.http.auth.core.roles import Right
from tistream.http.parameters import Name, PathTenant
from tistream.ids import Tenant

_ALL = "/tenants/{cluster_id}/{tenant_id}/consumers"
_ONE = f"{_ALL}/{{consumer_id}}"
_To = Annotated[str, Query(max_length=64, description="a TSO, a time, `earliest` or `latest`")]


def add_pages(pages: Pages) -> None:
    """Add the pages of consumers."""
    services, sources = pages.services, sources_of(pages.services)

    @pages.view(_ALL, "consumers.html", every=2)
    def all_consumers(tenant: PathTenant) -> dict[str, Any]:
        row = get_tenant(services.catalog, tenant)
        items = [_shown(row, facts) for facts in consumers.consumers_of(services.catalog, row.tenant)]
        return {**asdict(tenant), "items": items}

    @pages.view(_ONE, "consumer.html", every=2)
    def one_consumer(tenant: PathTenant, consumer_id: Name) -> dict[str, Any]:
        row = get_tenant(services.catalog, tenant)
        reader = CONSUMERS.get(services.catalog, row.tenant, consumer_id)
        item = _shown(row, consumers.consumer_facts(services.catalog, reader))
        return {**asdict(tenant), "items": [item], "item": item}

    @pages.action(f"{_ONE}/reset", right=Right.READ)
    def reset(tenant: PathTenant, consumer_id: Name, to: _To = "earliest") -> Action:
        def run(*, dry_run: bool, actor: str) -> dict[str, Any]:
            to_ts = services.served(tenant).parse_ts(to, services.clock.unix_ms())
            return consumers.reset(sources, tenant, consumer_id, to_ts, dry_run=dry_run, actor=actor)

        return Action(run, f"Reset consumer {consumer_id}", _back(tenant))

    for verb in ("pause", "resume", "remove"):
        _add_action(pages, verb)


def _add_action(pages: Pages, verb: str) -> None:
    sources = sources_of(pages.services)

    @pages.action(f"{_ONE}/{verb}", right=Right.TENANT)
    def action(tenant: PathTenant, consumer_id: Name) -> Action:
        run = partial(getattr(consumers, verb), sources, tenant, consumer_id)
        return Action(run, f"{verb.capitalize()} consumer {consumer_id}", _back(tenant))


def _back(tenant: Tenant) -> str:
    return f"/tenants/{tenant.cluster_id}/{tenant.tenant_id}/consumers"


def _shown(row: TenantRow, facts: dict[str, Any]) -> dict[str, Any]:
    """A consumer with its members and their partitions."""
    partitions, leases_s = facts["partitions"], facts["leases_s"]
    return {
        **facts,
        "path": f"{_back(row.tenant)}/{quote(facts['consumer_id'])}",
        "readers": [
            {
                "name": name,
                "lease_s": leases_s[name],
                "partitions": [p["partition"] for p in partitions if p["member"] == name],
                "lag_s": max((p["lag_s"] for p in partitions if p["member"] == name), default=0),
            }
            for name in facts["members"]
        ],
        "unread": [p["partition"] for p in partitions if leases_s.get(p["member"], 0) <= 0],
        "log_gone": int(facts["checkpoint_ts"]) < row.earliest_ts,
    }
