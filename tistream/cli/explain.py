"""`tistream explain lag`: why a tenant is late in one sentence, and how its stages share the time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from tistream.admin.core.units import seconds_text
from tistream.cli.options import DEFAULT_URL, Cluster, Key, Tenant, Url
from tistream.cli.output import Output, OutputOption, console, show_data
from tistream.cli.service import connect, tenant_path

if TYPE_CHECKING:
    from rich.console import Console

_BAR = 32  # so that a line has less than 80 characters

commands = typer.Typer(help="Explain in a sentence why something is as it is.", no_args_is_help=True)


@commands.callback()
def _explain() -> None:
    """Explain in a sentence why something is as it is."""


@commands.command("lag")
def lag(
    cluster: Cluster,
    tenant: Tenant,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain what is late, since when, why, and what to do; then draw a bar for each stage."""
    with connect(url, retry_s=0) as client:
        found = client.get(tenant_path(cluster, tenant, "lag"), why="true")
    if output is not Output.TABLE:
        show_data(found, output)
        return
    out = console()
    out.print(found["sentence"], markup=False, soft_wrap=True)
    if not found["ended"]:
        _show_stages(out, found)


def _show_stages(out: Console, facts: dict[str, Any]) -> None:
    stages = facts.get("stages", ())
    longest = max((stage["duration_s"] for stage in stages), default=0)
    for stage in stages:
        title = " + ".join(stage["stages"]).replace("_", " ")
        is_slowest = bool(longest) and "+".join(stage["stages"]) == facts["slowest"]
        bar = "█" * round(_BAR * stage["duration_s"] / longest) if longest else ""
        took = seconds_text(stage["duration_s"])
        out.print(f"  {title:<28} {took:>9}  [{'red' if is_slowest else 'green'}]{bar}[/]")
        if is_slowest:
            out.print(f"    {stage['where']}", markup=False, soft_wrap=True)
    for reason in facts.get("waits_for", ()):
        out.print(f"  waits for: {reason}", markup=False, soft_wrap=True)
