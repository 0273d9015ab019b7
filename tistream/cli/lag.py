"""`tistream lag`: how far every tenant is behind, and with --why where the time goes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tistream.cli.options import DEFAULT_URL, Key, Url
from tistream.cli.output import Output

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
    output: Annotated[Output, typer.Option("--output", "-o", help="How to show it.")] = Output.TABLE,
) -> None:
    """How far each tenant is behind; with --why a bar for each stage of the way, naming the slowest."""
    from tistream.client import connect

    with connect(url, retry_s=0) as client:
        chosen = [
            (t["cluster_id"], t["tenant_id"])
            for t in client.get("/v1/tenants")["items"]
            if cluster in (None, t["cluster_id"]) and tenant in (None, t["tenant_id"])
        ]
        asked = {"why": "true"} if why else {}
        found = [client.get(f"/v1/clusters/{c}/tenants/{t}/lag", **asked) for c, t in chosen]
    if output is Output.JSON:
        print(json.dumps(found, indent=2))
        return
    from rich.console import Console

    console = Console(highlight=False)
    if not found:
        console.print("no such tenant" if cluster is not None or tenant is not None else "no tenant is registered")
    for each in found:
        _show(console, each)


def _show(console: Console, facts: dict[str, Any]) -> None:
    name = f"tenant {facts['cluster_id']}/{facts['tenant_id']}"
    if facts["lag_ms"] is None:
        console.print(f"{name}: {facts['state']}, nothing is served yet")
        return
    console.print(f"[bold]{name}[/]: {seconds(facts['lag_ms'])} behind, complete up to {facts['resolved_time']}")
    stages = facts.get("stages", ())
    longest = max((stage["ms"] for stage in stages), default=0)
    for stage in stages:
        title, slowest = " + ".join(stage["stages"]).replace("_", " "), "+".join(stage["stages"]) == facts["slowest"]
        bar = "█" * round(_BAR * stage["ms"] / longest) if longest else ""
        colour = "red" if slowest and longest else "green"
        console.print(f"  {title:<28} {seconds(stage['ms']):>9}  [{colour}]{bar}[/]")
        if slowest and longest:
            console.print(f"    {stage['where']}", markup=False, soft_wrap=True)
    for reason in facts.get("waits_for", ()):
        console.print(f"  waits for: {reason}", markup=False, soft_wrap=True)


def seconds(ms: int) -> str:
    """A duration for people."""
    return f"{ms / 1000:.2f} s" if ms < 60_000 else f"{ms / 60_000:.1f} min"
