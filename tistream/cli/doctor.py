"""`tistream doctor`: would it work, and is it well: a cluster, what a service starts over, a running service."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from tistream.cli import cluster_options as of_cluster
from tistream.cli.options import DEFAULT_URL, ApiKey, Bucket, Catalog, Config, Url
from tistream.cli.output import NoColor, Output, OutputOption, console, show_data

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tistream.diagnostics.findings import Finding

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("doctor")(doctor)


def doctor(
    context: typer.Context,
    pd: Annotated[
        str | None, typer.Option("--pd", help="Look at a cluster: addresses of its PD servers, host:port[,host:port].")
    ] = None,
    catalog: Catalog = None,
    object_store: Bucket = None,
    config: Config = None,
    url: Url = DEFAULT_URL,
    api_key: ApiKey = None,
    keyspace: of_cluster.Keyspace = None,
    ca: of_cluster.Ca = None,
    cert: of_cluster.Cert = None,
    key: of_cluster.Key = None,
    output: OutputOption = Output.TABLE,
    no_color: NoColor = False,
) -> None:
    """Look at whatever is given: --pd, a TiDB cluster before it is pushed; --catalog, --object-store or --config, what
    a service would start over; --url, a running service. Nothing given: the service at the usual address.

    Nothing is written to a cluster, a catalog or a service. Into the bucket small objects are put below doctor/, and
    removed. The exit status is 1 when a check fails."""
    from tistream.cli.push_check import examine_cluster

    found: list[Finding] = []
    looked_at = []
    if pd is not None:
        found += examine_cluster(of_cluster.endpoints(pd), of_cluster.tls(ca, cert, key), keyspace)
        looked_at.append(f"the cluster of {pd}")
    if catalog is not None or object_store is not None or config is not None:
        found += _deployment(catalog, object_store, config)
        looked_at.append("the deployment's catalog and bucket")
    if not looked_at or _is_named(context):
        found += _service(url)
        looked_at.append(f"the service at {url}")
    show_findings(" and ".join(looked_at), found, output, no_color)


def _is_named(context: typer.Context) -> bool:
    """Whether --url is on the command line."""
    given = context.get_parameter_source("url")
    return given is not None and given.name == "COMMANDLINE"


def _deployment(catalog: str | None, object_store: str | None, config: Path | None) -> list[Finding]:
    from tistream.cli.examine_deployment import examine_deployment
    from tistream.cli.run import settings_of
    from tistream.clock import SystemClock

    settings = settings_of(config, None, None, None, catalog, object_store, {"log.level": "error"})
    return examine_deployment(settings, SystemClock())


def _service(url: str) -> list[Finding]:
    from tistream.cli.examine_service import examine_service
    from tistream.clock import SystemClock
    from tistream.runtime.credentials import key_for

    return examine_service(url, key_for(url), SystemClock())


def show_findings(title: str, findings: Sequence[Finding], output: Output, no_color: bool = False) -> None:
    """Print the findings. Ends the command with status 1 when one of them is a failure."""
    from tistream.diagnostics.findings import Verdict

    if output is Output.TABLE:
        _show(title, findings, no_color)
    elif output is Output.NDJSON:
        show_data([asdict(finding) for finding in findings], output)
    else:
        show_data({"checks": [asdict(finding) for finding in findings]}, output)
    failed = [finding.name for finding in findings if finding.verdict is Verdict.FAIL]
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
        raise typer.Exit(1)


def _show(title: str, findings: Sequence[Finding], no_color: bool) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(title), title_justify="left")
    for column in ("check", "", "what was found"):
        table.add_column(column, overflow="fold")
    for finding in findings:
        colour = _COLOURS[finding.verdict]
        table.add_row(finding.name, f"[{colour}]{finding.verdict}[/]", escape(finding.words))
    console(no_color).print(table)
