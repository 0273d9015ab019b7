"""`tistream jobs`: maintenance jobs, what they saved, and the actions to run or cancel one."""

from __future__ import annotations

from typing import Annotated

import typer

from tistream.admin.core.units import bytes_text, seconds_text
from tistream.cli.operate import Limit, of_tenant, pages
from tistream.cli.options import DEFAULT_URL, Key, OneCluster, OneTenant, Url
from tistream.cli.output import NoColor, Output, OutputOption, show_facts, show_rows
from tistream.cli.service import DryRun, act, connect, given

commands = typer.Typer(help="Look at maintenance jobs; run or cancel one.", no_args_is_help=True)

JobId = Annotated[int, typer.Argument(help="Id of the job.")]
States = Annotated[str | None, typer.Option("--state", help="Only these: offered, queued, running, done, failed ...")]
Kind = Annotated[str | None, typer.Option("--kind", help="Only these: merge, bases, retire_seeds or replay.")]


@commands.command("list")
def list_jobs(
    cluster: OneCluster = None,
    tenant: OneTenant = None,
    state: States = None,
    kind: Kind = None,
    limit: Limit = 100,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
    no_color: NoColor = False,
) -> None:
    """List jobs with their state, what they read and the requests they saved; the newest first."""
    asked = {**of_tenant(cluster, tenant), **given(state=state, kind=kind)}
    with connect(url, retry_s=0) as client:
        found = list(pages(client, "/v1/jobs", limit, asked))
    columns = [
        ("job", lambda j: j["job_id"]),
        ("tenant", lambda j: f"{j['cluster_id']}/{j['tenant_id']}"),
        ("kind", lambda j: j["kind"]),
        ("state", lambda j: j["state"]),
        ("parts", lambda j: f"{j['parts_done']}/{j['parts_total']}" if j["parts_total"] else None),
        ("read", lambda j: bytes_text(j["bytes_read"] or j["estimated_bytes"])),
        ("objects", lambda j: f"{j['objects_before']} -> {j['objects_after']}" if j["objects_before"] else None),
        ("saved", lambda j: j["requests_saved"] or None),
        ("took", lambda j: seconds_text(j["duration_s"])),
        ("why", lambda j: j["error"] or j["reason"]),
    ]
    show_rows({"items": found}, output, columns, no_color=no_color, empty="no job yet: nothing is worth one")


@commands.command("show")
def show_job(
    job: JobId, url: Url = DEFAULT_URL, key: Key = None, output: OutputOption = Output.TABLE, no_color: NoColor = False
) -> None:
    """Show one job."""
    with connect(url, retry_s=0) as client:
        show_facts(client.get(f"/v1/jobs/{job}"), output, no_color=no_color)


@commands.command()
def retry(job: JobId, dry_run: DryRun = False, url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Run now a job that is offered, pauses, failed or was cancelled."""
    _act(url, f"/v1/jobs/{job}:retry", dry_run, output)


@commands.command()
def cancel(job: JobId, dry_run: DryRun = False, url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Cancel a job that has not ended; what it has published stays."""
    _act(url, f"/v1/jobs/{job}:cancel", dry_run, output)


def _act(url: str, path: str, dry_run: bool, output: Output) -> None:
    with connect(url, retry_s=0) as client:
        act(client, path, dry_run, output)
