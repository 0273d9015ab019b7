"""`tistream schema show|history|diff`: a tenant's schema at any time, its DDL, and what changed."""

from __future__ import annotations

from typing import Annotated

import typer

from tistream.cli.output import Column, show_data
from tistream.cli.service import ServiceOptions, TableOptions, TenantOptions, connect, given

commands = typer.Typer(help="Look at a tenant's schema through time.", no_args_is_help=True)

_WHEN = "A TSO, an RFC 3339 time, or a span such as -15m."
At = Annotated[str | None, typer.Option("--at", help=f"As of this time; now without it. {_WHEN}")]


@commands.command()
def show(
    of: TenantOptions,
    to: TableOptions,
    table: Annotated[str | None, typer.Argument(help="DATABASE.TABLE; without it all tables are listed.")] = None,
    at: At = None,
) -> None:
    """Show the tables of a tenant, or the definition of one, as of a time."""
    when = given(start_ts=at)
    database, _, name = (table or "").partition(".")
    with connect(to.url, retry_s=0) as client:
        listed = [] if table else client.get(of.path("databases"), **when)["items"]
        pages = (
            client.get(of.path("databases", each, "tables"), **when)
            for each in ([database] if table else [d["database"] for d in listed])
        )
        tables = [{"database": page["database"], **item} for page in pages for item in page["items"]]
        if name:
            path = of.path("databases", database, "tables", name, "definition")
            definition = client.get(path, as_of=at or "latest")
            tables = [t for t in tables if t["table"].lower() == name.lower()]
    if name and to.is_table:
        print(f"{definition['create_table']};")
        for note in definition["notes"]:
            print("-- " + note.replace("\n", " "))
        return
    columns: list[Column] = [
        ("table", lambda t: f"{t['database']}.{t['table']}"),
        "kind",
        ("id", lambda t: t["table_id"]),
        ("columns", lambda t: len(t["columns"])),
        ("key", lambda t: ", ".join(t["primary_key"])),
    ]
    to.show_rows({"items": tables}, columns, empty="there was no table")


@commands.command()
def history(
    of: TenantOptions,
    to: TableOptions,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="Most rows to show.")] = 50,
) -> None:
    """List the DDL of a tenant, the newest first."""
    columns: list[Column] = [
        ("time", lambda e: e["commit_time"][:19].replace("T", " ")),
        *("commit_ts", "kind"),
        ("query", lambda e: e["query"] or f"{e['database']}.{e['table'] or ''}"),
    ]
    answer = to.get(of.path("ddl"), limit=str(limit))
    to.show_rows(answer, columns, empty="no DDL since the tenant's first schema snapshot")


@commands.command()
def diff(
    of: TenantOptions,
    to: ServiceOptions,
    since: Annotated[
        str | None, typer.Option("--from", help=f"The earlier time; the beginning without it. {_WHEN}")
    ] = None,
    until: Annotated[str | None, typer.Option("--to", help=f"The later time; now without it. {_WHEN}")] = None,
) -> None:
    """Show what changed between two times: databases, tables and columns."""
    answer = to.get(of.path("schema-diff"), **given(from_ts=since, to_ts=until))
    if not to.is_table:
        show_data(answer, to.output)
        return
    signs = {"created": "+", "added": "+", "dropped": "-", "changed": "~"}
    for name in answer["databases_added"]:
        print(f"+ database {name}")
    for name in answer["databases_dropped"]:
        print(f"- database {name}")
    for table in answer["tables"]:
        was = f" (was {table['was']})" if table["was"] else ""
        print(f"{signs[table['change']]} {table['database']}.{table['table']}{was}{' with new ids' * table['new_ids']}")
        for column in table["columns"] if table["change"] == "changed" else ():
            types = " -> ".join(text for text in (column["before"], column["after"]) if text)
            print(f"    {signs[column['change']]} {column['name']} {types}")
