"""`tistream status`, `lag` and `explain lag`: what has stopped, how late each tenant is, and why."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import typer

from tistream.admin.core.units import kind_words, seconds_text
from tistream.cli.options import OneCluster, OneTenant
from tistream.cli.output import Column, OutputForm, console, show_data, show_rows
from tistream.cli.service import ServiceOptions, TableOptions, TenantOptions, connect, tenant_path

if TYPE_CHECKING:
    from rich.console import Console

_STOPS_MAX = 20
_BAR = 32  # so that a line has less than 80 characters


def status(to: TableOptions) -> None:
    """Show health, what has stopped, tenants with their lag, and tasks with their owners."""
    with connect(to.url, retry_s=0) as client:
        health = client.get("/healthz")
        listed = client.get("/v1/tenants")["items"]
        tenants = [client.get(tenant_path(t["cluster_id"], t["tenant_id"])) for t in listed]
        stops = client.get("/v1/stops", limit=str(_STOPS_MAX))["items"]
        offers = client.get("/v1/jobs", state="offered", limit=str(_STOPS_MAX))["items"]
        releases = _releases(client.get("/v1/workers")["items"])
    service = {"health": health, "releases": releases, "stops": stops, "offers": offers}
    if to.is_table:
        _show_status(to, service, tenants)
    else:
        show_data([service, *tenants] if to.output is OutputForm.NDJSON else {**service, "tenants": tenants}, to.output)


def _releases(workers: list[dict[str, Any]]) -> dict[str, int]:
    """The release of the living processes, and how many run it."""
    return dict(sorted(Counter(worker["release"] for worker in workers if worker["alive"]).items()))


def _show_status(to: TableOptions, service: dict[str, Any], tenants: list[dict[str, Any]]) -> None:
    from rich.markup import escape

    out, health, releases = console(to.no_color), service["health"], service["releases"]
    out.print(f"TiStream at {to.url}: [{'green' if health['status'] == 'ok' else 'red'}]{escape(health['status'])}[/]")
    if releases:
        out.print(f"  processes: {', '.join(f'{count} of release {name}' for name, count in releases.items())}")
    for problem in health["problems"]:
        out.print(f"  [red]{escape(problem['code'])}[/] {escape(problem['source'])}: {escape(problem['message'])}")
    for stop in service["stops"]:
        what = escape(f"{stop['role']} of {stop['scope']} {stop['item']}: {stop['message']}")
        out.print(f"  [red]stopped[/] {what} (tistream stops resume {escape(stop['stop_id'])})", soft_wrap=True)
    for job in service["offers"]:
        who = f"tenant {job['cluster_id']}/{job['tenant_id']}"
        what = escape(f"{job['words']} of {who}: {job['reason']}")
        out.print(f"  [yellow]offered[/] {what} (tistream jobs retry {job['job_id']})", soft_wrap=True)
    columns: list[Column] = [
        ("task", lambda t: t["task_id"]),
        "kind",
        ("range", lambda t: f"{t['start_key'][:24] or '-inf'} .. {t['end_key'][:24] or '+inf'}"),
        ("durable_ts", lambda t: t["durable_time"]),
        *("owner", "epoch"),
        ("error", lambda t: t["error"] or ""),
    ]
    for tenant in tenants:
        lag = f"lag {seconds_text(tenant['lag_s'])}"
        if tenant["ended"]:
            lag = f"ended, complete up to {tenant['resolved_time']}"
        kind = f" ({kind_words(tenant)})" if tenant["keyspace"] else ""
        title = f"tenant {tenant['cluster_id']}/{tenant['tenant_id']}{kind}: {tenant['state']}, {lag}"
        show_rows(tenant["tasks"], OutputForm.TABLE, columns, no_color=to.no_color, title=title)


def lag(to: ServiceOptions, cluster: OneCluster = None, tenant: OneTenant = None) -> None:
    """Show how far each tenant is behind."""
    if cluster is not None and tenant is not None:
        lags = [to.get(tenant_path(cluster, tenant, "lag"))]
    else:
        every = to.get("/v1/tenants", readers="true")["items"]
        lags = [t for t in every if cluster in (None, t["cluster_id"]) and tenant in (None, t["tenant_id"])]
    if not to.is_table:
        show_data(lags, to.output)
        return
    out = console()
    if not lags:
        out.print("no such tenant" if cluster is not None or tenant is not None else "no tenant is registered")
    for each in lags:
        _show_lag(out, each)


def _show_lag(out: Console, facts: dict[str, Any]) -> None:
    from rich.markup import escape

    name = f"tenant {facts['cluster_id']}/{facts['tenant_id']}"
    if facts["state"] in ("DELETING", "DELETED"):
        out.print(f"{name}: it is being deleted")
        return
    if facts["lag_s"] is None:
        out.print(f"{name}: {facts['state']}, nothing is served yet", markup=False)
        return
    if facts["ended"]:
        out.print(f"[bold]{name}[/]: ended, complete up to {escape(facts['resolved_time'])}")
    else:
        behind = seconds_text(facts["lag_s"])
        out.print(f"[bold]{name}[/]: {behind} behind, watermark {escape(facts['resolved_time'])}")
    for reader in facts.get("readers", ()):
        _show_reader(out, reader)


def _show_reader(out: Console, facts: dict[str, Any]) -> None:
    behind = f"{seconds_text(facts['lag_s'])} behind the watermark" if facts["lag_s"] else "at the watermark"
    if facts["kind"] == "changefeed":
        out.print(f"  changefeed {facts['name']}: {behind}, {facts['state']}", markup=False)
        return
    count = facts["members"]
    who = f"{count} member{'' if count == 1 else 's'}" if count else f"no member, idle {seconds_text(facts['idle_s'])}"
    out.print(f"  consumer {facts['name']}: {behind}, {who}", markup=False)


explain = typer.Typer(help="Explain in a sentence why something is as it is.", no_args_is_help=True)


@explain.callback()
def _explain() -> None:
    """Explain in a sentence why something is as it is."""


@explain.command("lag")
def explain_lag(of: TenantOptions, to: ServiceOptions) -> None:
    """Explain what is late, since when, why, and what to do; then draw a bar for each stage."""
    answer = to.get(of.path("lag"), why="true")
    if not to.is_table:
        show_data(answer, to.output)
        return
    out = console()
    out.print(answer["sentence"], markup=False, soft_wrap=True)
    if not answer["ended"]:
        _show_stages(out, answer)


def _show_stages(out: Console, facts: dict[str, Any]) -> None:
    from rich.markup import escape

    stages = facts.get("stages", ())
    longest = max((stage["duration_s"] for stage in stages), default=0)
    for stage in stages:
        title = escape(" + ".join(stage["stages"]).replace("_", " "))
        is_slowest = bool(longest) and "+".join(stage["stages"]) == facts["slowest"]
        bar = "█" * round(_BAR * stage["duration_s"] / longest) if longest else ""
        took = seconds_text(stage["duration_s"])
        out.print(f"  {title:<28} {took:>9}  [{'red' if is_slowest else 'green'}]{bar}[/]")
        if is_slowest:
            out.print(f"    {stage['where']}", markup=False, soft_wrap=True)
    for reason in facts.get("waits_for", ()):
        out.print(f"  waits for: {reason}", markup=False, soft_wrap=True)
