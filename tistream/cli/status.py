"""`tistream status`: is the service well, and how far is every tenant."""

from __future__ import annotations

from typing import Any

from tistream.cli.options import DEFAULT_URL, Key, Url
from tistream.cli.output import NoColor, Output, OutputOption, console, lag, show_data

_STOPS_MAX = 20


def status(
    url: Url = DEFAULT_URL, key: Key = None, output: OutputOption = Output.TABLE, no_color: NoColor = False
) -> None:
    """Health, what has stopped, tenants with lag, tasks with owners."""
    from tistream.client import connect

    with connect(url, retry_s=0) as client:
        health = client.get("/healthz")
        tenants = [
            client.get(f"/v1/clusters/{t['cluster_id']}/tenants/{t['tenant_id']}")
            for t in client.get("/v1/tenants")["items"]
        ]
        stops = client.get("/v1/stops", limit=str(_STOPS_MAX))["items"]
    if output is Output.TABLE:
        _show(url, health, stops, tenants, no_color)
    elif output is Output.NDJSON:
        show_data([{"health": health, "stops": stops}, *tenants], output)
    else:
        show_data({"health": health, "stops": stops, "tenants": tenants}, output)


def _show(
    url: str, health: dict[str, Any], stops: list[dict[str, Any]], tenants: list[dict[str, Any]], no_color: bool
) -> None:
    from rich.markup import escape
    from rich.table import Table

    out = console(no_color)
    out.print(f"TiStream at {url}: [{'green' if health['status'] == 'ok' else 'red'}]{health['status']}[/]")
    for problem in health["problems"]:
        out.print(f"  [red]{problem['code']}[/] {escape(problem['source'])}: {escape(problem['message'])}")
    for stop in stops:
        what = escape(f"{stop['role']} of {stop['scope']} {stop['item']}: {stop['message']}")
        out.print(f"  [red]stopped[/] {what} (tistream stops resume {stop['stop_id']})", soft_wrap=True)
    for tenant in tenants:
        title = f"tenant {tenant['cluster_id']}/{tenant['tenant_id']}: {tenant['state']}, lag {lag(tenant['lag_ms'])}"
        table = Table(title=title, title_justify="left")
        for column in ("task", "kind", "range", "durable_ts", "owner", "epoch", "error"):
            table.add_column(column)
        for task in tenant["tasks"]:
            span = f"{task['start_key'][:24] or '-inf'} .. {task['end_key'][:24] or '+inf'}"
            table.add_row(
                str(task["task_id"]),
                task["kind"],
                span,
                task["durable_time"],
                task["owner"] or "-",
                str(task["epoch"]),
                escape(task["error"] or ""),
            )
        out.print(table)
