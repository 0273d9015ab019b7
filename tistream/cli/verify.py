"""`tistream verify`: tables as of a timestamp, by the log, against the cluster's own at that timestamp."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tistream.cli.cluster_options import CaPath
from tistream.cli.filter_options import Tables
from tistream.cli.options import DEFAULT_URL, Cluster, Key, Tenant, Url
from tistream.cli.output import Output, OutputOption, show_rows
from tistream.errors import InvalidInput

if TYPE_CHECKING:
    from backup.tidb import TableResult
    from tistream.client import Tenant as Source

_PORT = 4000


def verify(
    tidb: Annotated[str, typer.Option("--tidb", help="A TiDB server of the cluster, HOST[:PORT]; port 4000.")],
    cluster: Cluster = 1,
    tenant: Tenant = 1,
    tables: Tables = None,
    as_of: Annotated[str, typer.Option(help="TSO, RFC 3339 time, latest or a span such as -15m.")] = "latest",
    user: Annotated[str, typer.Option(help="SQL user, who may read the tables.")] = "root",
    password: Annotated[str, typer.Option(envvar="TISTREAM_TIDB_PASSWORD", help="Its password.")] = "",
    ca_path: CaPath = None,
    no_snapshot: Annotated[
        bool, typer.Option("--no-snapshot", help="Compare with the rows of now; nothing may write to the tables.")
    ] = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Compare tables as of a timestamp with the cluster's own at that timestamp.

    The cluster computes checksums with SET @@tidb_snapshot; only what differs is transferred. Its garbage collection
    must not have passed the timestamp. Exit status 1: a table differs."""
    from contextlib import closing

    from backup.tidb import Database, TableVerifier
    from tistream.cli.progress import Progress
    from tistream.cli.service import connect

    host, _, port = tidb.rpartition(":") if tidb.rpartition(":")[2].isdecimal() else (tidb, "", str(_PORT))
    at = Database(
        host=host.strip("[]"), port=int(port), user=user, password=password,
        ca_path=None if ca_path is None else str(ca_path), snapshot=not no_snapshot,
    )  # fmt: skip
    found: list[TableResult] = []
    with connect(url) as client, Progress("verified", sys.stderr) as progress:
        source = client.tenant(cluster, tenant)
        ts, names = _tables(source, as_of, ",".join(tables or ["*.*"]))
        with closing(TableVerifier(source, ts, at)) as verifier:
            for number, (database, table) in enumerate(names):
                progress.update(number, len(names), f"tables; now {database}.{table}")
                found.append(verifier.verify(database, table))
    columns = [
        (name, lambda row, name=name: row[name]) for name in ("table", "rows", "cluster_rows", "differing", "result")
    ]
    show_rows([_facts(each) for each in found], output, columns, numbers=("rows", "cluster_rows", "differing"))
    print(f"compared {len(found)} tables as of {ts}", file=sys.stderr)
    for each in found:
        if each.first is not None:
            print(f"{each.table}: first row that differs", file=sys.stderr)
            print(
                f"  log      {_row(each, each.first.log)}\n  cluster  {_row(each, each.first.database)}",
                file=sys.stderr,
            )
    if not all(each.equal for each in found):
        raise typer.Exit(1)


def _tables(source: Source, as_of: str, tables: str) -> tuple[int, list[tuple[str, str]]]:
    """(the timestamp, names of the tables), so that all are read as of the same timestamp."""
    from reading.filters.core.rules import parse_table_rules

    rules, ts = parse_table_rules(tables), None
    names: list[tuple[str, str]] = []
    for database in (found["database"] for found in source.databases(as_of=as_of)):
        for item in source.tables(database, as_of=ts or as_of):
            if item["kind"] != "table" or not rules.matches(database, item["table"]):
                continue
            ts = ts or str(source.table(item["table"], database=database).definition(as_of=as_of)["as_of"])
            names.append((database, item["table"]))
    if ts is None:
        raise InvalidInput("There is no such table at the timestamp.", tables=tables)
    return int(ts), names


def _facts(found: TableResult) -> dict[str, Any]:
    return {
        "table": found.table,
        "rows": found.log_rows,
        "cluster_rows": found.database_rows,
        "differing": found.differing,
        "result": found.problem or ("equal" if found.equal else "differs"),
        "first": None
        if found.first is None
        else {
            "key": list(found.first.key),
            "log": _named(found, found.first.log),
            "cluster": _named(found, found.first.database),
        },
    }


def _named(found: TableResult, row: Any) -> dict[str, Any] | None:
    return None if row is None else dict(zip(found.columns, row, strict=True))


def _row(found: TableResult, row: Any) -> str:
    shown = _named(found, row)
    return "no such row" if shown is None else ", ".join(f"{name}={cell}" for name, cell in shown.items())
