"""`tistream status`: health of the service, what has stopped, and the lag of every tenant."""

from __future__ import annotations

from typing import Any

from tistream.admin.core.units import kind_words, seconds_text
from tistream.cli.options import DEFAULT_URL, Key, Url
from tistream.cli.output import NoColor, Output, OutputOption, console, show_data, show_rows
from tistream.cli.service import connect, tenant_path

_STOPS_MAX = 20


def status(
    url: Url = DEFAULT_URL, key: Key = None, output: OutputOption = Output.TABLE, no_color: NoColor = False
) -> None:
    """Show health, what has stopped, tenants with their lag, and tasks with their owners."""
    with connect(url, retry_s=0) as client:
        health = client.get("/healthz")
        listed = client.get("/v1/tenants")["items"]
        tenants = [client.get(tenant_path(t["cluster_id"], t["tenant_id"])) for t in listed]
        stops = client.get("/v1/stops", limit=str(_STOPS_MAX))["items"]
        offers = client.get("/v1/jobs", state="offered", limit=str(_STOPS_MAX))["items"]
    if output is Output.TABLE:
        _show(url, health, stops, offers, tenants, no_color)
    elif output is Output.NDJSON:
        show_data([{"health": health, "stops": stops, "offers": offers}, *tenants], output)
    else:
        show_data({"health": health, "stops": stops, "offers": offers, "tenants": tenants}, output)


def _show(
    url: str,
    health: dict[str, Any],
    stops: list[dict[str, Any]],
    offers: list[dict[str, Any]],
    tenants: list[dict[str, Any]],
    no_color: bool,
) -> None:
    from rich.markup import escape

    out = console(no_color)
    out.print(f"TiStream at {url}: [{'green' if health['status'] == 'ok' else 'red'}]{health['status']}[/]")
    for problem in health["problems"]:
        out.print(f"  [red]{problem['code']}[/] {escape(problem['source'])}: {escape(problem['message'])}")
    for stop in stops:
        what = escape(f"{stop['role']} of {stop['scope']} {stop['item']}: {stop['message']}")
        out.print(f"  [red]stopped[/] {what} (tistream stops resume {stop['stop_id']})", soft_wrap=True)
    for job in offers:
        who = f"tenant {job['cluster_id']}/{job['tenant_id']}"
        what = escape(f"{job['words']} of {who}: {job['reason']}")
        out.print(f"  [yellow]offered[/] {what} (tistream jobs retry {job['job_id']})", soft_wrap=True)
    columns = [
        ("task", lambda t: t["task_id"]),
        ("kind", lambda t: t["kind"]),
        ("range", lambda t: f"{t['start_key'][:24] or '-inf'} .. {t['end_key'][:24] or '+inf'}"),
        ("durable_ts", lambda t: t["durable_time"]),
        ("owner", lambda t: t["owner"]),
        ("epoch", lambda t: t["epoch"]),
        ("error", lambda t: t["error"] or ""),
    ]
    for tenant in tenants:
        lag = f"lag {seconds_text(tenant['lag_s'])}"
        if tenant["ended"]:
            lag = f"ended, complete up to {tenant['resolved_time']}"
        kind = f" ({kind_words(tenant)})" if tenant["keyspace"] else ""
        title = f"tenant {tenant['cluster_id']}/{tenant['tenant_id']}{kind}: {tenant['state']}, {lag}"
        show_rows(tenant["tasks"], Output.TABLE, columns, no_color=no_color, title=title)
