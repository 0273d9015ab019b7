"""`tistream schema show|history|diff`: a tenant's schema at any time, its DDL, and what changed."""

from __future__ import annotations

from typing import Annotated

import typer

from tistream.cli.options import DEFAULT_URL, Cluster, Tenant, Url
from tistream.cli.output import NoColor, Output, OutputOption, show_data, show_rows
from tistream.cli.service import connect, given, tenant_path

commands = typer.Typer(help="Look at a tenant's schema through time.", no_args_is_help=True)

_WHEN = "A TSO, an RFC 3339 time, or a span such as -15m."
At = Annotated[str | None, typer.Option("--at", help=f"As of this time; now without it. {_WHEN}")]


@commands.command()
def show(
    cluster: Cluster,
    tenant: Tenant,
    table: Annotated[str | None, typer.Argument(help="DATABASE.TABLE; without it all tables are listed.")] = None,
    at: At = None,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
    no_color: NoColor = False,
) -> None:
    """Show the tables of a tenant, or the definition of one, as of a time."""
    when = given(start_ts=at)
    database, _, name = (table or "").partition(".")
    with connect(url, retry_s=0) as client:
        listed = [] if table else client.get(tenant_path(cluster, tenant, "databases"), **when)["items"]
        found = [
            {"database": page["database"], **item}
            for page in (
                client.get(tenant_path(cluster, tenant, "databases", each, "tables"), **when)
                for each in ([database] if table else [d["database"] for d in listed])
            )
            for item in page["items"]
        ]
        if name:
            path = tenant_path(cluster, tenant, "databases", database, "tables", name, "definition")
            definition = client.get(path, as_of=at or "latest")
            found = [t for t in found if t["table"].lower() == name.lower()]
    if name and output is Output.TABLE:
        print(f"{definition['create_table']};")
        for note in definition["notes"]:
            print("-- " + note.replace("\n", " "))
        return
    columns = [
        ("table", lambda t: f"{t['database']}.{t['table']}"),
        ("kind", lambda t: t["kind"]),
        ("id", lambda t: t["table_id"]),
        ("columns", lambda t: len(t["columns"])),
        ("key", lambda t: ", ".join(t["primary_key"])),
    ]
    show_rows({"items": found}, output, columns, no_color=no_color, empty="there was no table")


@commands.command()
def history(
    cluster: Cluster,
    tenant: Tenant,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Most rows to show.")] = 50,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
    no_color: NoColor = False,
) -> None:
    """List the DDL of a tenant, the newest first."""
    with connect(url, retry_s=0) as client:
        found = client.get(tenant_path(cluster, tenant, "ddl"), limit=str(limit))
    columns = [
        ("time", lambda e: e["commit_time"][:19].replace("T", " ")),
        ("commit_ts", lambda e: e["commit_ts"]),
        ("kind", lambda e: e["kind"]),
        ("query", lambda e: e["query"] or f"{e['database']}.{e['table'] or ''}"),
    ]
    show_rows(found, output, columns, no_color=no_color, empty="no DDL since the tenant's first schema snapshot")


@commands.command()
def diff(
    cluster: Cluster,
    tenant: Tenant,
    since: Annotated[
        str | None, typer.Option("--from", help=f"The earlier time; the beginning without it. {_WHEN}")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", help=f"The later time; now without it. {_WHEN}")] = None,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show what changed between two times: databases, tables and columns."""
    with connect(url, retry_s=0) as client:
        found = client.get(tenant_path(cluster, tenant, "schema-diff"), **given(from_ts=since, to_ts=until))
    if output is not Output.TABLE:
        show_data(found, output)
        return
    signs = {"created": "+", "added": "+", "dropped": "-", "changed": "~"}
    for name in found["databases_added"]:
        print(f"+ database {name}")
    for name in found["databases_dropped"]:
        print(f"- database {name}")
    for table in found["tables"]:
        was = f" (was {table['was']})" if table["was"] else ""
        print(f"{signs[table['change']]} {table['database']}.{table['table']}{was}{' with new ids' * table['new_ids']}")
        for column in table["columns"] if table["change"] == "changed" else ():
            types = " -> ".join(text for text in (column["before"], column["after"]) if text)
            print(f"    {signs[column['change']]} {column['name']} {types}")
