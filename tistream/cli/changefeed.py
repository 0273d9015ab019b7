"""`tistream changefeed create|list|show|checkpoint|reset|pause|resume|remove`: registered consumers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tistream.admin.core.units import seconds_text
from tistream.cli.filter_options import Changed, Columns, FilterFile, Ops, Tables, Where, filters_of
from tistream.cli.options import DEFAULT_URL, Cluster, Key, Tenant, Url
from tistream.cli.output import Column, NoColor, Output, OutputOption, show_facts, show_rows
from tistream.cli.service import connect, tenant_path
from tistream.limits import CONSUMER_IDLE_HOURS_DEFAULT

commands = typer.Typer(help="Register consumers: the log above their checkpoints is kept.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(help="Name of the changefeed.", metavar="ID")]


@commands.command()
def create(
    changefeed_id: Id,
    cluster: Cluster,
    tenant: Tenant,
    start_ts: Annotated[str, typer.Option(help="A TSO, earliest or latest.")] = "latest",
    target_ts: Annotated[int, typer.Option(min=0, help="Finish here; 0 = never.")] = 0,
    tables: Tables = None,
    columns: Columns = None,
    ops: Ops = None,
    where: Where = None,
    changed: Changed = None,
    filter_file: FilterFile = None,
    partitions: Annotated[int, typer.Option(min=1, help="How many members can share it.")] = 1,
    idle_hours: Annotated[
        float, typer.Option(min=0, help="Without a request for so long, it no longer holds the log; 0 = for ever.")
    ] = CONSUMER_IDLE_HOURS_DEFAULT,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Register a consumer; the log above its checkpoint is kept.

    It is kept until the consumer is removed, finished, or idle for too long."""
    body = {
        "changefeed_id": changefeed_id,
        "start_ts": start_ts,
        "target_ts": str(target_ts),
        "filters": filters_of({}, filter_file, tables=tables, columns=columns, ops=ops, where=where, changed=changed),
        "partitions": partitions,
        "idle_limit_s": idle_hours * 3600,
    }
    show_facts(_send(url, "POST", tenant_path(cluster, tenant, "changefeeds"), body), output)


@commands.command("list")
def list_all(
    cluster: Cluster,
    tenant: Tenant,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
    no_color: NoColor = False,
) -> None:
    """List the consumers of a tenant with state, checkpoint, lag and members."""
    columns: list[Column] = [
        ("changefeed", lambda row: row["changefeed_id"]),
        ("state", lambda row: row["state"]),
        ("checkpoint_ts", lambda row: row["checkpoint_ts"]),
        ("checkpoint", lambda row: row["checkpoint_time"]),
        ("lag", lambda row: seconds_text(row["lag_s"])),
        ("idle", lambda row: seconds_text(row["idle_s"]) + ("" if row["holds_log"] else ", holds no log")),
        ("members", lambda row: ", ".join(row["members"]) or "-"),
        ("partitions", lambda row: str(len(row["partitions"]))),
    ]
    found = _send(url, "GET", tenant_path(cluster, tenant, "changefeeds"))
    show_rows(found, output, columns, no_color=no_color, empty="no changefeed")


@commands.command()
def show(
    changefeed_id: Id, cluster: Cluster, tenant: Tenant, url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE
) -> None:
    """Show one consumer."""
    show_facts(_send(url, "GET", tenant_path(cluster, tenant, "changefeeds", changefeed_id)), output)


@commands.command()
def checkpoint(
    changefeed_id: Id,
    ts: Annotated[int, typer.Argument(min=0, help="The consumer has everything at or below this TSO.")],
    cluster: Cluster,
    tenant: Tenant,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move a consumer's checkpoint forward."""
    path = tenant_path(cluster, tenant, "changefeeds", changefeed_id)
    show_facts(_send(url, "PATCH", path, {"checkpoint_ts": str(ts)}), output)


@commands.command()
def reset(
    changefeed_id: Id,
    to: Annotated[str, typer.Option(help="A TSO, an RFC 3339 time, earliest or latest.")],
    cluster: Cluster,
    tenant: Tenant,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move a consumer to another timestamp, also further back."""
    path = tenant_path(cluster, tenant, "changefeeds", changefeed_id)
    show_facts(_send(url, "POST", f"{path}:reset", {"to": to}), output)


@commands.command()
def pause(
    changefeed_id: Id, cluster: Cluster, tenant: Tenant, url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE
) -> None:
    """Pause a consumer: its members get nothing, and its log is still kept."""
    show_facts(_send(url, "POST", tenant_path(cluster, tenant, "changefeeds", changefeed_id) + ":pause"), output)


@commands.command()
def resume(
    changefeed_id: Id, cluster: Cluster, tenant: Tenant, url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE
) -> None:
    """Resume a paused consumer."""
    show_facts(_send(url, "POST", tenant_path(cluster, tenant, "changefeeds", changefeed_id) + ":resume"), output)


@commands.command()
def remove(changefeed_id: Id, cluster: Cluster, tenant: Tenant, url: Url = DEFAULT_URL) -> None:
    """Remove a consumer; the log is no longer kept for it."""
    _send(url, "DELETE", tenant_path(cluster, tenant, "changefeeds", changefeed_id))


def _send(url: str, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    with connect(url) as client:
        return client.send(method, path, body)
