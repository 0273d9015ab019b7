"""`tistream status`: is the service well, and how far is every tenant."""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any

import typer

from tistream.cli.options import DEFAULT_URL, Key, Url


class Output(StrEnum):
    """Forms of the answer."""

    TABLE = "table"
    JSON = "json"


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("status")(status)


def status(
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: Annotated[Output, typer.Option("--output", "-o", help="How to show it.")] = Output.TABLE,
) -> None:
    """Health, tenants with lag, tasks with owners."""
    from tistream.client import connect

    with connect(url, retry_s=0) as client:
        health = client.get("/healthz")
        tenants = [
            client.get(f"/v1/clusters/{t['cluster_id']}/tenants/{t['tenant_id']}")
            for t in client.get("/v1/tenants")["items"]
        ]
    if output is Output.JSON:
        print(json.dumps({"health": health, "tenants": tenants}, indent=2))
    else:
        _show(url, health, tenants)


def _show(url: str, health: dict[str, Any], tenants: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    console.print(f"TiStream at {url}: [{'green' if health['status'] == 'ok' else 'red'}]{health['status']}[/]")
    for problem in health["problems"]:
        console.print(f"  [red]{problem['code']}[/] {problem['source']}: {problem['message']}", highlight=False)
    for tenant in tenants:
        lag = "-" if tenant["lag_ms"] is None else f"{tenant['lag_ms'] / 1000:.1f} s"
        title = f"tenant {tenant['cluster_id']}/{tenant['tenant_id']}: {tenant['state']}, lag {lag}"
        table = Table(title=title, title_justify="left")
        for column in ("task", "kind", "range", "upper", "owner", "epoch", "error"):
            table.add_column(column)
        for task in tenant["tasks"]:
            span = f"{task['start_key'][:24] or '-inf'} .. {task['end_key'][:24] or '+inf'}"
            table.add_row(
                str(task["task_id"]), task["kind"], span, task["upper_time"], task["owner"] or "-", str(task["epoch"]),
                task["error"] or "",
            )  # fmt: skip
        console.print(table)
