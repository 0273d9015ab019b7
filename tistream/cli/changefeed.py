"""`tistream changefeed create|list|query|tables|update|pause|resume|remove|rebalance|retry|skip|verify`.

The service writes a changefeed to its destination. Options have TiCDC's and TiKV-CDC's names where they mean the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tistream.admin.core.units import seconds_text
from tistream.cli.changefeed_options import (
    ConfigFile,
    DeadLetter,
    EntryOptions,
    FeedOptions,
    Id,
    IdleHours,
    Lane,
    Lanes,
    NewSinkUri,
    SinkUri,
    StartTs,
    TargetTs,
)
from tistream.cli.filter_options import (
    FilterFile,
    FilterOptions,
    filters_of,
    parse_changefeed,
    read_toml,
    with_options,
)
from tistream.cli.options import DEFAULT_URL, Url
from tistream.cli.output import Column
from tistream.cli.service import ServiceOptions, TableOptions, TenantOptions, connect
from tistream.errors import InvalidInput

commands = typer.Typer(help="Write changes to destinations.", no_args_is_help=True)


@commands.command()
def create(
    *,
    of: FeedOptions,
    sink_uri: SinkUri,
    dead_letter: DeadLetter = None,
    start_ts: StartTs = "latest",
    target_ts: TargetTs = 0,
    config: ConfigFile = None,
    filters: FilterOptions,
    filter_file: FilterFile = None,
    entries: EntryOptions,
    lanes: Lanes = None,
    idle_hours: IdleHours = None,
    to: ServiceOptions,
) -> None:
    """Write the changes of a tenant to a destination.

    The log above its checkpoint is kept until it is removed, finished, or idle for too long."""
    keys = entries.keys(config)
    if not keys:
        sink_uri = _with_sink(sink_uri, filter_file or config) or ""
    body = {
        "changefeed_id": of.name,
        "start_ts": "latest" if start_ts == "0" else start_ts,
        "target_ts": str(target_ts),
        "filters": filters_of({}, None if keys else (filter_file or config), filters, pulls=False),
        **({} if idle_hours is None else {"idle_limit_s": idle_hours * 3600}),
        "sink_uri": sink_uri,
        **({} if dead_letter is None else {"dead_letter": dead_letter}),
        **({"keys": keys} if keys else {}),
        **({} if lanes is None else {"lanes": lanes}),
    }
    made = to.send("POST", of.path("changefeeds"), body)
    for note in made.get("notes", ()):
        typer.echo(note, err=True)
    to.show(made)


@commands.command("list")
def list_all(of: TenantOptions, to: TableOptions) -> None:
    """List the changefeeds of a tenant with state, checkpoint, lag, and who works for them."""
    columns: list[Column] = [
        ("changefeed", lambda row: row["changefeed_id"]),
        *("state", "checkpoint_ts"),
        ("checkpoint", lambda row: row["checkpoint_time"] or "-"),
        ("lag", lambda row: seconds_text(row["lag_s"])),
        ("idle", lambda row: seconds_text(row["idle_s"]) + ("" if row["holds_log"] else ", holds no log")),
        ("destination", lambda row: row["sink_uri"].partition("?")[0]),
        ("workers", lambda row: ", ".join(_workers(row)) or "-"),
        ("lanes", lambda row: str(len(row["lanes"]))),
    ]
    to.show_rows(to.send("GET", of.path("changefeeds")), columns, empty="no changefeed")


@commands.command()
def query(of: FeedOptions, to: ServiceOptions) -> None:
    """Show one changefeed."""
    to.show(to.send("GET", of.feed()))


@commands.command()
def tables(of: FeedOptions, to: TableOptions) -> None:
    """List the tables that a changefeed writes, each with its lane."""
    columns: list[Column] = [
        ("table", lambda row: f"{row['database']}.{row['table']}"),
        ("lane", lambda row: str(row["lane"])),
        "checkpoint_ts",
        ("key", lambda row: "yes" if row["has_key"] else "no: at least once"),
        ("state", lambda row: "stopped" if row["stopped"] else "error" if row["error"] else "ok"),
        ("error", lambda row: (row["error"] or {}).get("message", "")),
    ]
    to.show_rows(to.send("GET", f"{of.feed()}/tables"), columns, empty="no table")


@commands.command()
def update(
    *,
    of: FeedOptions,
    sink_uri: NewSinkUri = None,
    dead_letter: DeadLetter = None,
    target_ts: Annotated[int | None, typer.Option(min=0, help="Finish here; 0 = never.")] = None,
    config: ConfigFile = None,
    filters: FilterOptions,
    entries: EntryOptions,
    idle_hours: IdleHours = None,
    to: ServiceOptions,
) -> None:
    """Change the settings of a paused changefeed; those that are not given stay.

    An empty --dead-letter removes the place."""
    keys = entries.keys(config)
    if not keys:
        sink_uri = _with_sink(sink_uri, config)
    given: dict[str, Any] = {
        "sink_uri": sink_uri,
        "dead_letter": dead_letter,
        "target_ts": None if target_ts is None else str(target_ts),
        "filters": filters_of({}, None if keys else config, filters, pulls=False) or None,
        "keys": keys or None,
        "idle_limit_s": None if idle_hours is None else idle_hours * 3600,
    }
    body = {name: value for name, value in given.items() if value is not None}
    to.show(to.send("POST", f"{of.feed()}:update", body))


@commands.command()
def pause(of: FeedOptions, to: ServiceOptions) -> None:
    """Pause a changefeed: nothing is written, and its log is still kept."""
    to.show(to.send("POST", f"{of.feed()}:pause"))


@commands.command()
def resume(
    of: FeedOptions,
    to: ServiceOptions,
    overwrite_checkpoint_ts: Annotated[
        int | None, typer.Option(min=0, help="Continue above this TSO, also further back.")
    ] = None,
) -> None:
    """Resume a paused or failed changefeed, and try refused changes again."""
    body = {} if overwrite_checkpoint_ts is None else {"checkpoint_ts": str(overwrite_checkpoint_ts)}
    to.show(to.send("POST", f"{of.feed()}:resume", body))


@commands.command()
def rebalance(
    of: FeedOptions,
    to: ServiceOptions,
    lanes: Annotated[int | None, typer.Option(min=1, help="Parts; as many as now unless given.")] = None,
) -> None:
    """Cut a changefeed again, by the regions of its destination as they are now."""
    body = {} if lanes is None else {"lanes": lanes}
    to.show(to.send("POST", f"{of.feed()}:rebalance", body))


@commands.command()
def retry(changefeed_id: Id, lane: Lane, of: TenantOptions, to: ServiceOptions) -> None:
    """Try the change that its destination refused again."""
    to.show(to.send("POST", f"{of.path('changefeeds', changefeed_id)}:retry", {"lane": lane}))


@commands.command()
def skip(
    changefeed_id: Id,
    lane: Lane,
    commit_ts: Annotated[int, typer.Option(min=1, help="Of the change to leave out, as the lane's error has it.")],
    of: TenantOptions,
    to: ServiceOptions,
) -> None:
    """Leave out the change that its destination refused."""
    path = of.path("changefeeds", changefeed_id)
    error = next((each["error"] or {} for each in to.send("GET", path)["lanes"] if each["lane"] == lane), {})
    if error.get("commit_ts") != str(commit_ts) or "key" not in error:
        raise typer.BadParameter(f"Lane {lane} does not wait for a decision about a change of {commit_ts}.")
    body = {"lane": lane, "key": error["key"], "commit_ts": str(commit_ts)}
    to.show(to.send("POST", f"{path}:skip", body))


@commands.command()
def verify(of: FeedOptions, to: ServiceOptions) -> None:
    """Compare the log with the destination, without stopping the changefeed.

    This process scans the TiKV cluster, or reads the files: they have each change, in order, and twice only where an
    event names it. Exit status 1: a key differs; a change is lost, out of order or twice."""
    from tistream.cli.changefeed_verify import verify_cluster, verify_files

    sink_uri = to.send("GET", of.feed())["sink_uri"]
    compare = verify_cluster if sink_uri.startswith("tikv:") else verify_files
    if not compare(of, to):
        raise typer.Exit(1)


@commands.command()
def remove(of: FeedOptions, url: Url = DEFAULT_URL) -> None:
    """Remove a changefeed; the log is no longer kept for it."""
    with connect(url) as client:
        client.get(of.feed())  # a name that is not there is an error
        client.send("DELETE", of.feed())
    typer.echo(f"Changefeed {of.name} is removed. What it has written stays.", err=True)


def _with_sink(uri: str | None, config: Path | None) -> str | None:
    """The URI with what the file's [sink] says. InvalidInput when there are such options, and no URI to take them."""
    options = {} if config is None else parse_changefeed(config, read_toml(config)).sink
    if uri is None and options:
        names = ", ".join(sorted(options))
        raise InvalidInput(f"{config}: {names} of [sink] change the destination: give its --sink-uri too.")
    return uri if uri is None else with_options(uri, options)


def _workers(row: Mapping[str, Any]) -> Sequence[str]:
    return sorted({lane["worker"] for lane in row["lanes"] if lane["worker"]})
