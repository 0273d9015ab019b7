"""`tistream consumer create|list|query|checkpoint|reset|pause|resume|remove`.

The members of a consumer pull its changes, as `tistream pull --consumer` does; the service keeps how far they are.
"""

from __future__ import annotations

from typing import Annotated

import typer

from tistream.admin.core.units import seconds_text
from tistream.cli.changefeed_options import IdleHours, StartTs, TargetTs
from tistream.cli.filter_options import FilterFile, FilterOptions, filters_of
from tistream.cli.options import DEFAULT_URL, Url
from tistream.cli.output import Column
from tistream.cli.service import ServiceOptions, TableOptions, TenantOptions, connect

commands = typer.Typer(help="Register consumers, which members pull.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(help="Name of the consumer.", metavar="ID")]


@commands.command()
def create(
    *,
    consumer_id: Id,
    of: TenantOptions,
    start_ts: StartTs = "latest",
    target_ts: TargetTs = 0,
    filters: FilterOptions,
    filter_file: FilterFile = None,
    partitions: Annotated[int, typer.Option(min=1, help="How many members can share it.")] = 1,
    idle_hours: IdleHours = None,
    to: ServiceOptions,
) -> None:
    """Register a consumer.

    The log above its checkpoint is kept until it is removed, finished, or idle for too long."""
    body = {
        "consumer_id": consumer_id,
        "start_ts": "latest" if start_ts == "0" else start_ts,
        "target_ts": str(target_ts),
        "filters": filters_of({}, filter_file, filters, pulls=True),
        "partitions": partitions,
        **({} if idle_hours is None else {"idle_limit_s": idle_hours * 3600}),
    }
    to.show(to.send("POST", of.path("consumers"), body))


@commands.command("list")
def list_all(of: TenantOptions, to: TableOptions) -> None:
    """List the consumers of a tenant with state, checkpoint, lag, and members."""
    columns: list[Column] = [
        ("consumer", lambda row: row["consumer_id"]),
        *("state", "checkpoint_ts"),
        ("checkpoint", lambda row: row["checkpoint_time"] or "-"),
        ("lag", lambda row: seconds_text(row["lag_s"])),
        ("idle", lambda row: seconds_text(row["idle_s"]) + ("" if row["holds_log"] else ", holds no log")),
        ("members", lambda row: ", ".join(row["members"]) or "-"),
        ("partitions", lambda row: str(len(row["partitions"]))),
    ]
    to.show_rows(to.send("GET", of.path("consumers")), columns, empty="no consumer")


@commands.command()
def query(consumer_id: Id, of: TenantOptions, to: ServiceOptions) -> None:
    """Show one consumer."""
    to.show(to.send("GET", of.path("consumers", consumer_id)))


@commands.command()
def checkpoint(
    consumer_id: Id,
    ts: Annotated[int, typer.Argument(min=0, help="The consumer has everything at or below this TSO.")],
    of: TenantOptions,
    to: ServiceOptions,
) -> None:
    """Move a consumer's checkpoint forward."""
    to.show(to.send("PATCH", of.path("consumers", consumer_id), {"checkpoint_ts": str(ts)}))


@commands.command()
def reset(
    consumer_id: Id,
    to: Annotated[str, typer.Option(help="A TSO, an RFC 3339 time, earliest or latest.")],
    of: TenantOptions,
    service: ServiceOptions,
) -> None:
    """Move a consumer to another timestamp, also further back."""
    service.show(service.send("POST", f"{of.path('consumers', consumer_id)}:reset", {"to": to}))


@commands.command()
def pause(consumer_id: Id, of: TenantOptions, to: ServiceOptions) -> None:
    """Pause a consumer: its members are refused, and its log is still kept."""
    to.show(to.send("POST", f"{of.path('consumers', consumer_id)}:pause"))


@commands.command()
def resume(consumer_id: Id, of: TenantOptions, to: ServiceOptions) -> None:
    """Resume a paused consumer."""
    to.show(to.send("POST", f"{of.path('consumers', consumer_id)}:resume"))


@commands.command()
def remove(consumer_id: Id, of: TenantOptions, url: Url = DEFAULT_URL) -> None:
    """Remove a consumer; the log is no longer kept for it."""
    path = of.path("consumers", consumer_id)
    with connect(url) as client:
        client.get(path)  # a name that is not there is an error
        client.send("DELETE", path)
    typer.echo(f"Consumer {consumer_id} is removed.", err=True)
