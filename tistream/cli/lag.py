"""`tistream lag`: how far every tenant is behind, and with --why which stages take the time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tistream.admin.core.units import duration_text
from tistream.cli.options import DEFAULT_URL, Key, Url
from tistream.cli.output import Output, OutputOption, console, show_data
from tistream.cli.service import connect, given, tenant_path

if TYPE_CHECKING:
    from rich.console import Console

_BAR = 32  # so that a line has less than 80 characters

OneCluster = Annotated[int | None, typer.Option("--cluster", "-c", help="Only this upstream cluster.")]
OneTenant = Annotated[int | None, typer.Option("--tenant", "-t", help="Only this tenant id.")]


def lag(
    cluster: OneCluster = None,
    tenant: OneTenant = None,
    why: Annotated[bool, typer.Option("--why", help="Show where the time goes, and what is slowest.")] = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """How far each tenant is behind; with --why a bar for each stage, naming the slowest."""
    with connect(url, retry_s=0) as client:
        chosen = [
            (t["cluster_id"], t["tenant_id"])
            for t in client.get("/v1/tenants")["items"]
            if cluster in (None, t["cluster_id"]) and tenant in (None, t["tenant_id"])
        ]
        found = [client.get(tenant_path(c, t, "lag"), **given(why="true" if why else None)) for c, t in chosen]
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
    if facts["lag_ms"] is None:
        out.print(f"{name}: {facts['state']}, nothing is served yet")
        return
    if facts["ended"]:
        out.print(f"[bold]{name}[/]: ended, complete up to {facts['resolved_time']}")
        return
    behind = duration_text(facts["lag_ms"], digits=2)
    out.print(f"[bold]{name}[/]: {behind} behind, watermark {facts['resolved_time']}")
    stages = facts.get("stages", ())
    longest = max((stage["ms"] for stage in stages), default=0)
    for stage in stages:
        title = " + ".join(stage["stages"]).replace("_", " ")
        is_slowest = bool(longest) and "+".join(stage["stages"]) == facts["slowest"]
        bar = "█" * round(_BAR * stage["ms"] / longest) if longest else ""
        took = duration_text(stage["ms"], digits=2)
        out.print(f"  {title:<28} {took:>9}  [{'red' if is_slowest else 'green'}]{bar}[/]")
        if is_slowest:
            out.print(f"    {stage['where']}", markup=False, soft_wrap=True)
    for reason in facts.get("waits_for", ()):
        out.print(f"  waits for: {reason}", markup=False, soft_wrap=True)
