"""`tistream verify`: tables as of a timestamp, by the log, against the cluster's own at that timestamp."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tistream.cli.cluster_options import CaPath
from tistream.cli.filter_options import Tables
from tistream.cli.options import Cluster, Tenant
from tistream.cli.output import show_rows
from tistream.cli.service import ServiceOptions, connect, tenant_path
from tistream.errors import InvalidInput, NotFound, TsOutOfRange

if TYPE_CHECKING:
    from backup.tidb import TableResult
    from reading.filters.core.rules import TableRules
    from tistream.client import Client
    from tistream.client import Tenant as Source

_PORT = 4000


def verify(
    tidb: Annotated[str, typer.Option("--tidb", help="A TiDB server of the cluster, HOST[:PORT]; port 4000.")],
    to: ServiceOptions,
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
) -> None:
    """Compare tables as of a timestamp with the cluster's own at that timestamp.

    The cluster computes checksums with SET @@tidb_snapshot; only what differs is transferred. Its garbage collection
    must not have passed the timestamp. Exit status 1: a table differs, or one side lacks a table or a column."""
    from contextlib import closing

    from backup.tidb import SqlAddress, TableResult, TableVerifier
    from reading.filters.core.rules import parse_table_rules
    from tistream.cli.progress import Progress

    host, _, port = tidb.rpartition(":") if tidb.rpartition(":")[2].isdecimal() else (tidb, "", str(_PORT))
    at = SqlAddress(
        host=host.strip("[]"), port=int(port), user=user, password=password,
        ca_path=None if ca_path is None else str(ca_path), snapshot=not no_snapshot,
    )  # fmt: skip
    rules = parse_table_rules(",".join(tables or ["*.*"]))
    with connect(to.url) as client, Progress("verified", sys.stderr) as progress:
        source = client.tenant(cluster, tenant)
        ts, names = _tables(client, source, as_of, rules)
        with closing(TableVerifier(source, ts, at)) as verifier:
            theirs = [name for name in verifier.tables() if rules.matches(*name)]
            lost, left_out = _lost(source, ts, theirs, known=names)
            results = [TableResult(table=f"{db}.{table}", problem="the log has no such table") for db, table in lost]
            for number, (database, table) in enumerate(names):
                progress.update(number, len(names), f"tables; now {database}.{table}")
                results.append(verifier.verify(database, table))
    if not results:
        raise InvalidInput("There is no such table at the timestamp.", tables=",".join(tables or []))
    results.sort(key=lambda each: each.table)
    columns = ("table", "rows", "cluster_rows", "differing", "result")
    show_rows([_facts(each) for each in results], to.output, columns, numbers=("rows", "cluster_rows", "differing"))
    print(f"compared {len(names)} tables as of {ts}", file=sys.stderr)
    if left_out:
        print(f"left out {left_out} tables of the cluster that the tenant does not follow", file=sys.stderr)
    for each in results:
        if each.first is not None:
            print(f"{each.table}: first row that differs", file=sys.stderr)
            print(
                f"  log      {_row(each, each.first.log)}\n  cluster  {_row(each, each.first.database)}",
                file=sys.stderr,
            )
    if not all(each.equal for each in results):
        raise typer.Exit(1)


def _tables(client: Client, source: Source, as_of: str, rules: TableRules) -> tuple[int, list[tuple[str, str]]]:
    """(the timestamp, names of the log's tables), so that all are read as of the same timestamp."""
    databases = client.get(tenant_path(source.cluster_id, source.tenant_id, "databases"), start_ts=as_of)
    ts = str(databases["at_ts"])
    if as_of.isdecimal() and int(as_of) > int(ts):
        raise TsOutOfRange(f"{as_of} is not served yet, {ts} is.", latest_ts=ts)
    names = [
        (database["database"], item["table"])
        for database in databases["items"]
        for item in source.tables(database["database"], as_of=ts)
        if item["kind"] == "table" and rules.matches(database["database"], item["table"])
    ]
    return int(ts), names


def _lost(
    source: Source, ts: int, theirs: Sequence[tuple[str, str]], *, known: Sequence[tuple[str, str]]
) -> tuple[list[tuple[str, str]], int]:
    """(the cluster's tables that the log lacks, how many others the tenant does not follow)."""
    from schemas.names import folded

    have = {(folded(database), folded(table)) for database, table in known}
    lost, left_out = [], 0
    for database, table in theirs:
        if (folded(database), folded(table)) in have:
            continue
        try:
            source.table(table, database=database).definition(as_of=ts)
        except NotFound as e:
            if e.facts.get("followed") is False:
                left_out += 1
                continue
        lost.append((database, table))
    return lost, left_out


def _facts(table_result: TableResult) -> dict[str, Any]:
    return {
        "table": table_result.table,
        "rows": table_result.log_rows,
        "cluster_rows": table_result.database_rows,
        "differing": table_result.differing,
        "result": table_result.problem or ("equal" if table_result.equal else "differs"),
        "first": None
        if table_result.first is None
        else {
            "key": list(table_result.first.key),
            "log": _named(table_result, table_result.first.log),
            "cluster": _named(table_result, table_result.first.database),
        },
    }


def _named(table_result: TableResult, row: Any) -> dict[str, Any] | None:
    return None if row is None else dict(zip(table_result.columns, row, strict=True))


def _row(table_result: TableResult, row: Any) -> str:
    shown = _named(table_result, row)
    return "no such row" if shown is None else ", ".join(f"{name}={cell}" for name, cell in shown.items())
