"""`tistream changefeed create|list|show|checkpoint|pause|resume|remove`: registered consumers."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from tistream.cli.options import DEFAULT_URL, Cluster, Key, Tenant, Url
from tistream.cli.output import Column, NoColor, Output, OutputOption, show_data, show_rows
from tistream.cli.service import connect, tenant_path

commands = typer.Typer(help="Registered consumers: the log above their checkpoints is kept.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(help="Name of the changefeed.", metavar="ID")]


@commands.command()
def create(
    changefeed_id: Id,
    cluster: Cluster,
    tenant: Tenant,
    start_ts: Annotated[str, typer.Option(help="A TSO, earliest or latest.")] = "latest",
    target_ts: Annotated[int, typer.Option(min=0, help="Finish here; 0 = never.")] = 0,
    tables: Annotated[str, typer.Option(help="Which tables it reads, for people.")] = "",
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Register a consumer. The log above its checkpoint is kept until it is removed or finished."""
    body = {"changefeed_id": changefeed_id, "start_ts": start_ts, "target_ts": str(target_ts), "tables": tables}
    show_data(_send(url, "POST", tenant_path(cluster, tenant, "changefeeds"), body))


@commands.command("list")
def list_all(
    cluster: Cluster,
    tenant: Tenant,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
    no_color: NoColor = False,
) -> None:
    """All consumers of a tenant with state and checkpoint."""
    columns: list[Column] = [
        ("changefeed", lambda row: row["changefeed_id"]),
        ("state", lambda row: row["state"]),
        ("checkpoint_ts", lambda row: row["checkpoint_ts"]),
        ("checkpoint", lambda row: row["checkpoint_time"]),
        ("last seen", lambda row: row["seen_time"]),
        ("tables", lambda row: row["tables"]),
    ]
    found = _send(url, "GET", tenant_path(cluster, tenant, "changefeeds"))
    show_rows(found, output, columns, no_color=no_color, empty="no changefeed")


@commands.command()
def show(changefeed_id: Id, cluster: Cluster, tenant: Tenant, url: Url = DEFAULT_URL) -> None:
    """One consumer."""
    show_data(_send(url, "GET", tenant_path(cluster, tenant, "changefeeds", changefeed_id)))


@commands.command()
def checkpoint(
    changefeed_id: Id,
    ts: Annotated[int, typer.Argument(min=0, help="The consumer has everything at or below this TSO.")],
    cluster: Cluster,
    tenant: Tenant,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Move a consumer's checkpoint. It never decreases."""
    path = tenant_path(cluster, tenant, "changefeeds", changefeed_id)
    show_data(_send(url, "PATCH", path, {"checkpoint_ts": str(ts)}))


@commands.command()
def pause(changefeed_id: Id, cluster: Cluster, tenant: Tenant, url: Url = DEFAULT_URL) -> None:
    """Mark a consumer as paused. Its log is still kept."""
    show_data(_send(url, "POST", tenant_path(cluster, tenant, "changefeeds", changefeed_id) + ":pause"))


@commands.command()
def resume(changefeed_id: Id, cluster: Cluster, tenant: Tenant, url: Url = DEFAULT_URL) -> None:
    """Mark a paused consumer as running."""
    show_data(_send(url, "POST", tenant_path(cluster, tenant, "changefeeds", changefeed_id) + ":resume"))


@commands.command()
def remove(changefeed_id: Id, cluster: Cluster, tenant: Tenant, url: Url = DEFAULT_URL) -> None:
    """Remove a consumer. Its log is no longer kept for it."""
    _send(url, "DELETE", tenant_path(cluster, tenant, "changefeeds", changefeed_id))


def _send(url: str, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    with connect(url) as client:
        return client.send(method, path, body)
