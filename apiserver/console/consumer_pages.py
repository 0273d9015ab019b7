"""Consumers of a tenant: state, checkpoint, lag, members with their partitions and leases, what is held of the log; and
the forms that reset, pause, resume or remove one."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import Path, Query

from apiserver.console import operator_views
from apiserver.console.pages import Action, Pages
from reading.deps import Id, Services
from tistream.admin import consumers
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.http.auth.core.roles import Right
from tistream.ids import Tenant

_ALL = "/tenants/{cluster_id}/{tenant_id}/consumers"
_ONE = f"{_ALL}/{{changefeed_id}}"
_Name = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
_To = Annotated[str, Query(max_length=64, description="a TSO, a time, `earliest` or `latest`")]


def add_pages(pages: Pages) -> None:
    """Add the pages of consumers."""
    services, sources = pages.services, operator_views.sources_of(pages.services)

    @pages.view(_ALL, "consumers.html", every=2)
    def shown(cluster_id: Id, tenant_id: Id) -> dict[str, Any]:
        return _shown(services, Tenant(cluster_id, tenant_id))

    @pages.action(f"{_ONE}/reset", right=Right.READ)
    def reset(cluster_id: Id, tenant_id: Id, changefeed_id: _Name, to: _To = "earliest") -> Action:
        tenant = Tenant(cluster_id, tenant_id)

        def run(*, dry_run: bool, actor: str) -> dict[str, Any]:
            to_ts = services.served(tenant).parse_ts(to, services.clock.unix_ms())
            return consumers.reset(sources, tenant, changefeed_id, to_ts, dry_run=dry_run, actor=actor)

        return Action(run, f"Reset consumer {changefeed_id}", _back(tenant))

    for verb in (consumers.pause, consumers.resume, consumers.remove):
        _add_action(pages, verb)


def _add_action(pages: Pages, verb: Any) -> None:
    sources = operator_views.sources_of(pages.services)

    @pages.action(f"{_ONE}/{verb.__name__}", right=Right.TENANT)
    def action(cluster_id: Id, tenant_id: Id, changefeed_id: _Name) -> Action:
        tenant = Tenant(cluster_id, tenant_id)
        run = partial(verb, sources, tenant, changefeed_id)
        return Action(run, f"{verb.__name__.capitalize()} consumer {changefeed_id}", _back(tenant))


def _back(tenant: Tenant) -> str:
    return f"/tenants/{tenant.cluster_id}/{tenant.tenant_id}/consumers"


def _shown(services: Services, tenant: Tenant) -> dict[str, Any]:
    """The consumers with their members, each with its partitions."""
    row = get_tenant(services.catalog, tenant)
    items = consumers.consumers_of(services.catalog, tenant)
    for item in items:
        item["path"] = f"{_back(tenant)}/{quote(item['changefeed_id'])}"
        item["readers"] = [
            {
                "name": name,
                "lease_s": item["leases_s"][name],
                "partitions": [p["partition"] for p in item["partitions"] if p["member"] == name],
                "lag_s": max((p["lag_s"] for p in item["partitions"] if p["member"] == name), default=0),
            }
            for name in item["members"]
        ]
        item["unread"] = [p["partition"] for p in item["partitions"] if item["leases_s"].get(p["member"], 0) <= 0]
        item["log_gone"] = int(item["checkpoint_ts"]) < row.earliest_ts
    return {"cluster_id": tenant.cluster_id, "tenant_id": tenant.tenant_id, "items": items}
