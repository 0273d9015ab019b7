"""`tistream changefeed create|list|query|update|pause|resume|remove|rebalance|retry|skip`, and `checkpoint|reset`.

With `--sink-uri` the service writes the changes to a destination; without, members read them. Options have TiCDC's and
TiKV-CDC's names where they mean the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from tistream.admin.core.units import seconds_text
from tistream.cli.filter_options import Changed, Columns, FilterFile, Ops, Tables, Where, filters_of
from tistream.cli.key_options import EndKey, KeyPattern, Prefix, StartKey, ValuePattern
from tistream.cli.options import DEFAULT_URL, Cluster, Key, Tenant, Url
from tistream.cli.output import Column, NoColor, Output, OutputOption, show_facts, show_rows
from tistream.cli.service import connect, tenant_path
from tistream.errors import InvalidInput

commands = typer.Typer(help="Register consumers, and write changes to destinations.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(help="Name of the changefeed.", metavar="ID")]
OptionalId = Annotated[str | None, typer.Argument(help="Name of the changefeed.", metavar="ID")]
NamedId = Annotated[str | None, typer.Option("--changefeed-id", help="Name of the changefeed, as TiCDC's option.")]
SinkUri = Annotated[
    str | None,
    typer.Option(help="Where the service writes: tikv://PD:2379, s3://BUCKET/PREFIX?protocol=..., file:///FOLDER?..."),
]
DeadLetter = Annotated[
    str | None,
    typer.Option(
        metavar="URI",
        help="Where refused changes are written, so that their lane continues: file:///FOLDER, s3://BUCKET/PREFIX?...",
    ),
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="A TiCDC or TiKV-CDC changefeed's TOML: its [filter] section.")
]
FormatOfKeys = Annotated[
    str | None,
    typer.Option("--key-format", help="Of --start-key and --end-key: escaped, hex, utf8; TiKV-CDC calls it --format."),
]
Lanes = Annotated[int | None, typer.Option(min=1, help="Parts that are written side by side; 2 unless given.")]
Lane = Annotated[int, typer.Option("--lane", min=0, help="The lane that is stopped, as `query` shows it.")]
IdleHours = Annotated[
    float | None,
    typer.Option(
        min=0,
        help="Without a request of a consumer (720 unless given), or a move of the checkpoint (24), for so long, it no "
        "longer holds the log; 0 = it holds for ever.",
    ),
]
StartTs = Annotated[str, typer.Option(help="A TSO, earliest or latest (also 0).")]
TargetTs = Annotated[int, typer.Option(min=0, help="Finish here; 0 = never.")]


@commands.command()
def create(
    cluster: Cluster,
    tenant: Tenant,
    changefeed_id: OptionalId = None,
    named: NamedId = None,
    sink_uri: SinkUri = None,
    dead_letter: DeadLetter = None,
    start_ts: StartTs = "latest",
    target_ts: TargetTs = 0,
    config: ConfigFile = None,
    tables: Tables = None,
    columns: Columns = None,
    ops: Ops = None,
    where: Where = None,
    changed: Changed = None,
    filter_file: FilterFile = None,
    start_key: StartKey = None,
    end_key: EndKey = None,
    key_prefix: Prefix = None,
    key_format: FormatOfKeys = None,
    key_pattern: KeyPattern = None,
    value_pattern: ValuePattern = None,
    lanes: Lanes = None,
    partitions: Annotated[int, typer.Option(min=1, help="How many members can share a consumer.")] = 1,
    idle_hours: IdleHours = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Write changes to a destination (--sink-uri), or register a consumer.

    The log above its checkpoint is kept until it is removed, finished, or idle for too long."""
    keys = _keys(start_key, end_key, key_prefix, key_format, key_pattern, value_pattern)
    keys |= _keys_in(config)
    filters = filters_of(
        {}, None if keys else (filter_file or config), tables=tables, columns=columns, ops=ops, where=where,
        changed=changed,
    )  # fmt: skip
    body = {
        "changefeed_id": _name(changefeed_id, named),
        "start_ts": "latest" if start_ts == "0" else start_ts,
        "target_ts": str(target_ts),
        "filters": filters,
        "partitions": partitions,
        **({} if idle_hours is None else {"idle_limit_s": idle_hours * 3600}),
        **({} if sink_uri is None else {"sink_uri": sink_uri}),
        **({} if dead_letter is None else {"dead_letter": dead_letter}),
        **({"keys": keys} if keys else {}),
        **({} if lanes is None else {"lanes": lanes}),
    }
    made = _send(url, "POST", tenant_path(cluster, tenant, "changefeeds"), body)
    for note in made.get("notes", ()):
        typer.echo(note, err=True)
    show_facts(made, output)


@commands.command("list")
def list_all(
    cluster: Cluster,
    tenant: Tenant,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
    no_color: NoColor = False,
) -> None:
    """List the changefeeds of a tenant with state, checkpoint, lag, and who works for them."""
    columns: list[Column] = [
        ("changefeed", lambda row: row["changefeed_id"]),
        ("state", lambda row: row["state"]),
        ("checkpoint_ts", lambda row: row["checkpoint_ts"]),
        ("checkpoint", lambda row: row["checkpoint_time"] or "-"),
        ("lag", lambda row: seconds_text(row["lag_s"])),
        ("idle", lambda row: seconds_text(row["idle_s"]) + ("" if row["holds_log"] else ", holds no log")),
        ("destination", lambda row: row["sink_uri"].partition("?")[0] or "members"),
        ("workers", lambda row: ", ".join(_workers(row)) or "-"),
        ("parts", lambda row: str(len(row["partitions"]) or len(row["lanes"]))),
    ]
    found = _send(url, "GET", tenant_path(cluster, tenant, "changefeeds"))
    show_rows(found, output, columns, no_color=no_color, empty="no changefeed")


@commands.command()
def query(
    cluster: Cluster,
    tenant: Tenant,
    changefeed_id: OptionalId = None,
    named: NamedId = None,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show one changefeed."""
    path = tenant_path(cluster, tenant, "changefeeds", _name(changefeed_id, named))
    show_facts(_send(url, "GET", path), output)


@commands.command()
def tables(
    cluster: Cluster,
    tenant: Tenant,
    changefeed_id: OptionalId = None,
    named: NamedId = None,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
    no_color: NoColor = False,
) -> None:
    """List the tables that a changefeed writes, each with its lane."""
    columns: list[Column] = [
        ("table", lambda row: f"{row['database']}.{row['table']}"),
        ("lane", lambda row: str(row["lane"])),
        ("checkpoint_ts", lambda row: row["checkpoint_ts"]),
        ("key", lambda row: "yes" if row["has_key"] else "no: at least once"),
        ("state", lambda row: "stopped" if row["stopped"] else "error" if row["error"] else "ok"),
        ("error", lambda row: (row["error"] or {}).get("message", "")),
    ]
    path = tenant_path(cluster, tenant, "changefeeds", _name(changefeed_id, named)) + "/tables"
    show_rows(_send(url, "GET", path), output, columns, no_color=no_color, empty="no table")


@commands.command()
def update(
    cluster: Cluster,
    tenant: Tenant,
    changefeed_id: OptionalId = None,
    named: NamedId = None,
    sink_uri: SinkUri = None,
    dead_letter: DeadLetter = None,
    target_ts: Annotated[int | None, typer.Option(min=0, help="Finish here; 0 = never.")] = None,
    config: ConfigFile = None,
    tables: Tables = None,
    columns: Columns = None,
    ops: Ops = None,
    where: Where = None,
    changed: Changed = None,
    key_format: FormatOfKeys = None,
    start_key: StartKey = None,
    end_key: EndKey = None,
    key_prefix: Prefix = None,
    key_pattern: KeyPattern = None,
    value_pattern: ValuePattern = None,
    idle_hours: IdleHours = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Change the settings of a paused changefeed with a destination; those that are not given stay.

    An empty --dead-letter removes the place."""
    keys = _keys(start_key, end_key, key_prefix, key_format, key_pattern, value_pattern) | _keys_in(config)
    filters = filters_of(
        {}, None if keys else config, tables=tables, columns=columns, ops=ops, where=where, changed=changed
    )
    given: dict[str, Any] = {
        "sink_uri": sink_uri,
        "dead_letter": dead_letter,
        "target_ts": None if target_ts is None else str(target_ts),
        "filters": filters or None,
        "keys": keys or None,
        "idle_limit_s": None if idle_hours is None else idle_hours * 3600,
    }
    body = {name: value for name, value in given.items() if value is not None}
    path = tenant_path(cluster, tenant, "changefeeds", _name(changefeed_id, named))
    show_facts(_send(url, "POST", f"{path}:update", body), output)


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
    cluster: Cluster,
    tenant: Tenant,
    changefeed_id: OptionalId = None,
    named: NamedId = None,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Pause a changefeed: nothing is read or written, and its log is still kept."""
    show_facts(_act(url, cluster, tenant, _name(changefeed_id, named), "pause"), output)


@commands.command()
def resume(
    cluster: Cluster,
    tenant: Tenant,
    changefeed_id: OptionalId = None,
    named: NamedId = None,
    overwrite_checkpoint_ts: Annotated[
        int | None, typer.Option(min=0, help="With a destination: continue above this TSO, also further back.")
    ] = None,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Resume a paused or failed changefeed, and try refused changes again."""
    body = {} if overwrite_checkpoint_ts is None else {"checkpoint_ts": str(overwrite_checkpoint_ts)}
    show_facts(_act(url, cluster, tenant, _name(changefeed_id, named), "resume", body), output)


@commands.command()
def rebalance(
    cluster: Cluster,
    tenant: Tenant,
    changefeed_id: OptionalId = None,
    named: NamedId = None,
    lanes: Annotated[int | None, typer.Option(min=1, help="Parts; as many as now unless given.")] = None,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Cut a changefeed anew, by the regions of its destination as they are now."""
    body = {} if lanes is None else {"lanes": lanes}
    show_facts(_act(url, cluster, tenant, _name(changefeed_id, named), "rebalance", body), output)


@commands.command()
def retry(
    changefeed_id: Id, lane: Lane, cluster: Cluster, tenant: Tenant, url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:  # fmt: skip
    """Try the change that its destination refused again."""
    show_facts(_act(url, cluster, tenant, changefeed_id, "retry", {"lane": lane}), output)


@commands.command()
def skip(
    changefeed_id: Id, lane: Lane, cluster: Cluster, tenant: Tenant, url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:  # fmt: skip
    """Leave out the change that its destination refused."""
    show_facts(_act(url, cluster, tenant, changefeed_id, "skip", {"lane": lane}), output)


@commands.command()
def verify(
    cluster: Cluster,
    tenant: Tenant,
    changefeed_id: OptionalId = None,
    named: NamedId = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare a keyspace with the TiKV cluster that it is written to, without stopping the changefeed.

    This process scans the cluster. Exit status 1: a key differs."""
    from tistream.cli import replica

    if not replica.verify(url, cluster, tenant, _name(changefeed_id, named), output):
        raise typer.Exit(1)


@commands.command()
def remove(
    cluster: Cluster,
    tenant: Tenant,
    changefeed_id: OptionalId = None,
    named: NamedId = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Remove a changefeed; the log is no longer kept for it."""
    name = _name(changefeed_id, named)
    _send(url, "DELETE", tenant_path(cluster, tenant, "changefeeds", name))
    typer.echo(f"Changefeed {name} is removed. What it has written stays.", err=True)


def _name(argument: str | None, option: str | None) -> str:
    if (argument is None) == (option is None):
        raise InvalidInput("Name the changefeed once: as ID or with --changefeed-id.", option="changefeed-id")
    return argument or option or ""


def _keys(
    start: str | None, end: str | None, prefix: str | None, form: str | None, pattern: str | None, value: str | None
) -> dict[str, str]:
    """The entries of a keyspace; keys are escaped unless a format is named."""
    given = {
        "start_key": start, "end_key": end, "key_prefix": prefix, "key_pattern": pattern, "value_pattern": value,
    }  # fmt: skip
    found = {name: text for name, text in given.items() if text is not None}
    if form is not None or found:
        found["key_format"] = form or "escaped"
    return found


def _keys_in(config: Path | None) -> dict[str, str]:
    """The entries that the [filter] section of a TiKV-CDC changefeed means."""
    from tistream.cli.filter_options import read_key_filter

    return {} if config is None else read_key_filter(config)


def _workers(row: Mapping[str, Any]) -> Sequence[str]:
    return row["members"] or sorted({lane["worker"] for lane in row["lanes"] if lane["worker"]})


def _act(url: str, cluster: int, tenant: int, name: str, what: str, body: dict[str, Any] | None = None) -> Any:
    return _send(url, "POST", f"{tenant_path(cluster, tenant, 'changefeeds', name)}:{what}", body or None)


def _send(url: str, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    with connect(url) as client:
        return client.send(method, path, body)
