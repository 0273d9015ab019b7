"""`tistream doctor`: would pushing this cluster work, and what would it come to."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tistream.cli import cluster_options as of_cluster
from tistream.cli.output import Output, OutputOption, show_data

if TYPE_CHECKING:
    from tistream.pusher.tikv.examine import Finding

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("doctor")(doctor)


def doctor(
    pd: Annotated[str, typer.Option("--pd", help="Addresses of the cluster's PD servers, host:port[,host:port].")],
    keyspace: of_cluster.Keyspace = None,
    ca: of_cluster.Ca = None,
    cert: of_cluster.Cert = None,
    key: of_cluster.Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Look at a TiDB cluster before it is pushed: PD, clocks, stores, regions, history, reads, and an estimate.

    Nothing is written to the cluster. The exit status is 1 when a check fails."""
    from tistream.clock import SystemClock
    from tistream.pusher.tikv.examine import Verdict, examine
    from tistream.pusher.tikv.pd import PdClient
    from tistream.pusher.tikv.ranges import whole_cluster

    secured = of_cluster.tls(ca, cert, key)
    client = PdClient(of_cluster.endpoints(pd), tls=secured, patience_s=5.0)
    try:
        findings = examine(client, whole_cluster(), tls=secured, clock=SystemClock(), keyspace=keyspace)
    finally:
        client.close()
    if output is Output.TABLE:
        _show(pd, findings)
    elif output is Output.NDJSON:
        show_data([asdict(finding) for finding in findings], output)
    else:
        show_data({"checks": [asdict(finding) for finding in findings]}, output)
    if any(finding.verdict is Verdict.FAIL for finding in findings):
        raise typer.Exit(1)


def _show(pd: str, findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"the cluster of {pd}", title_justify="left")
    for column in ("check", "", "what was found"):
        table.add_column(column)
    for finding in findings:
        colour = _COLOURS[finding.verdict]
        table.add_row(finding.name, f"[{colour}]{finding.verdict}[/]", finding.words.replace("[", r"\["))
    Console().print(table)
