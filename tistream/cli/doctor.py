"""`tistream doctor`: checks a cluster, the catalog and bucket of a deployment, or a running service.

Packages contribute the checks (their modules named `checks`); this module chooses and prints them, also for
`tistream push --check`.
"""

from __future__ import annotations

import sys
import uuid
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tistream.cli import cluster_options as of_cluster
from tistream.cli.options import DeploymentOptions
from tistream.cli.output import Column, OutputForm, show_data, show_rows
from tistream.cli.service import TableOptions
from tistream.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tistream.clock import Clock
    from tistream.config import Settings
    from tistream.diagnostics.findings import Checklist, Finding
    from tistream.ids import Tenant
    from tistream.tikv.channels import Tls


def doctor(
    context: typer.Context,
    where: DeploymentOptions,
    tls: of_cluster.TlsOptions,
    to: TableOptions,
    pd: Annotated[
        str | None, typer.Option("--pd", help="Check a cluster: addresses of its PD servers, host:port[,host:port].")
    ] = None,
    keyspace: of_cluster.Keyspace = None,
) -> None:
    """Check a TiDB cluster, a catalog and bucket, or a running service.

    What is checked is what is given: with --pd a cluster before it is pushed; with --catalog, --object-store or
    --config the catalog and bucket that a service would use; with --url a running service. Without any of them: the
    service at the default address.

    Nothing is written to a cluster, a catalog or a service. Small objects are put into the bucket below doctor/ and
    removed. The exit status is 1 when a check fails."""
    from tistream.client.checks import check_service
    from tistream.clock import SystemClock
    from tistream.runtime.credentials import key_for

    findings: list[Finding] = []
    subjects = []
    if pd is not None:
        findings += check_cluster(of_cluster.endpoints(pd), tls.tls(), keyspace)
        subjects.append(f"the cluster of {pd}")
    if where != DeploymentOptions():
        findings += check_deployment(where.settings({"log.level": "error"}), SystemClock())
        subjects.append("the deployment's catalog and bucket")
    if not subjects or _is_named(context):
        findings += check_service(to.url, key_for(to.url), SystemClock())
        subjects.append(f"the service at {to.url}")
    show_findings(" and ".join(subjects), findings, to.output, to.no_color)


def _is_named(context: typer.Context) -> bool:
    """Whether --url is on the command line."""
    source = context.get_parameter_source("url")
    return source is not None and source.name == "COMMANDLINE"


def show_findings(title: str, findings: Sequence[Finding], output: OutputForm, no_color: bool = False) -> None:
    """Print the findings. Ends the command with status 1 when a check failed."""
    from rich.text import Text

    from tistream.diagnostics.findings import Severity

    colours = {Severity.OK: "green", Severity.WARN: "yellow", Severity.FAIL: "red"}
    columns: list[Column] = [
        ("check", lambda f: f["name"]),
        ("", lambda f: Text(f["verdict"], style=colours[f["verdict"]])),
        ("what was found", lambda f: f["words"]),
    ]
    data = [asdict(finding) for finding in findings]
    if output in (OutputForm.TABLE, OutputForm.NDJSON):
        show_rows(data, output, columns, no_color=no_color, title=title)
    else:
        show_data({"checks": data}, output)
    if names := [each.name for each in findings if each.verdict is Severity.FAIL]:
        print(f"failed: {', '.join(names)}", file=sys.stderr)
        raise typer.Exit(1)


def check_cluster(pd: list[str], tls: Tls | None, keyspace: str | None) -> list[Finding]:
    """Check a TiDB cluster by the addresses of its PD servers."""
    from pusher.tikv import checks
    from tistream.clock import SystemClock
    from tistream.tikv.core.ranges import whole_cluster
    from tistream.tikv.pd import PdClient

    client = PdClient(pd, tls=tls, patience_s=5.0)
    try:
        return checks.check_cluster(client, whole_cluster(), tls=tls, clock=SystemClock(), keyspace=keyspace)
    finally:
        client.close()


def check_deployment(settings: Settings, clock: Clock) -> list[Finding]:
    """Check the catalog, the bucket and the issuer of push credentials that the settings name. ConfigError when they
    name neither catalog nor bucket."""
    from tistream.catalog.database.checks import check_catalog
    from tistream.diagnostics.findings import Checklist, ok
    from tistream.objectstore.checks import check_store
    from tistream.objectstore.factory import open_store

    catalog, bucket = settings.catalog.url, settings.object_store.url
    if not catalog and not bucket:
        raise ConfigError("Say what to check: --catalog, --object-store, or --config with [catalog], [object_store].")

    def reachable() -> Finding:
        first = next(iter(open_store(bucket, foreign=True).list("")), None)  # does not create a missing folder
        return ok("it answers" if first else "it answers, and is empty", empty=first is None)

    def push_credentials() -> Finding:
        from tistream.cli.assembly import push_issuer
        from tistream.ids import Tenant

        issuer = push_issuer(settings)
        assert issuer is not None
        issuer.issue(Tenant(0, 0))  # no tenant has this id
        minutes = issuer.duration_s // 60
        return ok(
            f"the role of pushers can be assumed; credentials are valid for {minutes} minutes",
            valid_s=issuer.duration_s,
        )

    checklist = Checklist()
    if catalog:
        checklist.findings += check_catalog(catalog, clock)
    if bucket and checklist.check("object store", reachable):
        checklist.findings += check_store(open_store(bucket), clock, uuid.uuid4().hex[:16])
    if settings.push.role_arn:
        checklist.check("push credentials", push_credentials)
    _check_certificates(checklist, settings, clock)
    return checklist.findings


def _check_certificates(checklist: Checklist, settings: Settings, clock: Clock) -> None:
    """The certificates that the settings name."""
    from tistream.cli.ports import files_of
    from tistream.client.checks import check_end
    from tistream.feed.tls import FeedTlsFiles
    from tistream.runtime.tls import not_after

    now, feed = clock.unix_ms() / 1000, FeedTlsFiles.of(settings.feed)

    def of_ports() -> Finding:
        files = files_of(settings.tls)
        files.context()
        return check_end(not_after(files.cert.read_bytes()), now)

    if settings.tls.cert:
        checklist.check("certificate", of_ports)
    if feed is not None:
        checklist.check("certificate of the feed", lambda: check_end(not_after(feed.read().certificate), now))


def check_push(
    url: str,
    tenant: Tenant,
    capture: Path | None,
    replay: Path | None,
    log_backup: str | None,
    pd: list[str] | None,
    tls: Tls | None,
    keyspace: str | None,
    spill: tuple[Path, int] | None = None,
) -> list[Finding]:
    """Check what a push with these options needs: the service, the bucket, the source if one is given, and the spill:
    its folder, and the bytes that a store may have there."""
    from pusher import checks
    from pusher.control import HttpControl
    from pusher.tenant_store import opening
    from tistream.diagnostics.findings import Checklist

    checklist, control = Checklist(), HttpControl(url, tenant)
    try:
        checklist.findings += checks.check_push(control, opening(control), uuid.uuid4().hex[:16])
    finally:
        control.close()
    _check_recordings(checklist, capture, replay)
    if log_backup is not None:
        checklist.check("log backup", lambda: checks.check_log_backup(log_backup))
    if spill is not None:
        checklist.check("spill", lambda: checks.check_spill(*spill))
    if pd is not None:
        checklist.findings += check_cluster(pd, tls, keyspace)
    return checklist.findings


def _check_recordings(checklist: Checklist, capture: Path | None, replay: Path | None) -> None:
    from simulator.checks import check_capture, check_recording

    if capture is not None:
        checklist.check("recording", lambda: check_capture(capture))
    if replay is not None:
        checklist.check("recording", lambda: check_recording(replay))
