"""`tistream lag`: how far every tenant is behind. Why one is: `tistream explain lag`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tistream.admin.core.units import seconds_text
from tistream.cli.options import DEFAULT_URL, Key, OneCluster, OneTenant, Url
from tistream.cli.output import Output, OutputOption, console, show_data
from tistream.cli.service import connect, tenant_path

if TYPE_CHECKING:
    from rich.console import Console


def lag(
    cluster: OneCluster = None,
    tenant: OneTenant = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show how far each tenant is behind."""
    with connect(url, retry_s=0) as client:
        chosen = [
            (t["cluster_id"], t["tenant_id"])
            for t in client.get("/v1/tenants")["items"]
            if cluster in (None, t["cluster_id"]) and tenant in (None, t["tenant_id"])
        ]
        found = [client.get(tenant_path(c, t, "lag")) for c, t in chosen]
    if output is not Output.TABLE:
        show_data(found, output)
        return
    out = console()
    if not found:
        out.print("no such tenant" if cluster is not None or tenant is not None else "no tenant is registered")
    for each in found:
        _show(out, each)


def _show(out: Console, facts: dict[str, Any]) -> None:
    name = f"tenant {facts['cluster_id']}/{facts['tenant_id']}"
    if facts["lag_s"] is None:
        out.print(f"{name}: {facts['state']}, nothing is served yet")
        return
    if facts["ended"]:
        out.print(f"[bold]{name}[/]: ended, complete up to {facts['resolved_time']}")
    else:
        behind = seconds_text(facts["lag_s"])
        out.print(f"[bold]{name}[/]: {behind} behind, watermark {facts['resolved_time']}")
    for consumer in facts["consumers"]:
        _show_consumer(out, consumer)


def _show_consumer(out: Console, facts: dict[str, Any]) -> None:
    behind = f"{seconds_text(facts['lag_s'])} behind the watermark" if facts["lag_s"] else "at the watermark"
    if facts["destination"]:
        out.print(f"  changefeed {facts['changefeed_id']}: {behind}, {facts['state']}", markup=False)
        return
    count = facts["members"]
    who = (
        "1 member"
        if count == 1
        else f"{count} members"
        if count
        else f"no member, idle {seconds_text(facts['idle_s'])}"
    )
    out.print(f"  consumer {facts['changefeed_id']}: {behind}, {who}", markup=False)
