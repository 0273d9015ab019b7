"""`tistream workers|tasks|stops|gaps|events|api`: what runs, and the actions of operators.

An action prints what it did; with --dry-run what it would do. Lists are read page by page up to their end or --limit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tistream.admin.core.units import bytes_text, seconds_text
from tistream.cli.options import DEFAULT_URL, OneCluster, OneTenant, Url
from tistream.cli.output import NoColor, Output, OutputOption, console, show_data, show_facts, show_rows
from tistream.cli.service import DryRun, act, connect, given
from tistream.errors import InvalidInput

if TYPE_CHECKING:
    from tistream.client import Client

workers = typer.Typer(help="Look at the processes of the service, and drain them.", no_args_is_help=True)
tasks = typer.Typer(help="Look at tasks; move, split, merge and retry them.", no_args_is_help=True)
stops = typer.Typer(help="Look at what errors have stopped, and resume it.", no_args_is_help=True)
api = typer.Typer(help="Ask the HTTP API directly.", no_args_is_help=True)

_PAGE = 1000
_FOLLOW_S = 1.0

Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Most rows to show.")]
WorkerName = Annotated[str, typer.Argument(help="Name of the worker.")]
TaskId = Annotated[int, typer.Argument(help="Id of the task.")]


@workers.command("list")
def list_workers(
    kind: Annotated[str | None, typer.Option(help="Only these: sorter, dispatcher, maintain, spark or replay.")] = None,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
    no_color: NoColor = False,
) -> None:
    """List processes with state and load."""
    with connect(url, retry_s=0) as client:
        found = client.get("/v1/workers", **given(kind=kind))
    columns = [
        ("worker", lambda w: w["worker_id"]),
        ("kind", lambda w: w["kind"]),
        ("state", lambda w: w["state"]),
        ("tasks", lambda w: w["tasks"]),
        ("stores", lambda w: w["stores"]),
        ("bytes/s", lambda w: bytes_text(w["bytes_per_s"])),
        ("held", lambda w: bytes_text(w["held_bytes"])),
        ("last seen", lambda w: f"{seconds_text(w['heartbeat_age_s'])} ago"),
        ("starts", lambda w: w["incarnation"]),
        ("address", lambda w: w["address"]),
    ]
    show_rows(found, output, columns, no_color=no_color, empty="no worker has registered: start one, as tistream sort")


@workers.command("show")
def show_worker(
    worker: WorkerName, url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE, no_color: NoColor = False
) -> None:
    """Show one process with what it reports."""
    with connect(url, retry_s=0) as client:
        show_facts(client.get(f"/v1/workers/{_quoted(worker)}"), output, no_color=no_color)


@workers.command()
def drain(
    worker: WorkerName,
    dry_run: DryRun = False,
    undo: Annotated[bool, typer.Option("--undo", help="Assign work to it again.")] = False,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Drain a sorter or dispatcher: what it owns is handed over, and it is assigned nothing more."""
    _act(url, f"/v1/workers/{_quoted(worker)}:{'undrain' if undo else 'drain'}", dry_run, output)


@tasks.command("list")
def list_tasks(
    cluster: OneCluster = None,
    tenant: OneTenant = None,
    owner: Annotated[str | None, typer.Option(help="Only those of this worker.")] = None,
    stopped: Annotated[bool, typer.Option("--stopped", help="Only those that have stopped.")] = False,
    limit: Limit = 1000,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
    no_color: NoColor = False,
) -> None:
    """List tasks with owners, lag and load."""
    asked = {**of_tenant(cluster, tenant), **given(owner=owner, stopped="true" if stopped else None)}
    with connect(url, retry_s=0) as client:
        found = list(pages(client, "/v1/tasks", limit, asked))
    columns = [
        ("task", lambda t: t["task_id"]),
        ("tenant", lambda t: f"{t['cluster_id']}/{t['tenant_id']}"),
        ("range", lambda t: t["label"]),
        ("state", lambda t: t["state"]),
        ("lag", lambda t: seconds_text(t["lag_s"])),
        ("rows/s", lambda t: f"{t['load']['rows_per_s']:.0f}" if t["load"] else None),
        ("owner", lambda t: t["owner"]),
        ("epoch", lambda t: t["epoch"]),
    ]
    show_rows({"items": found}, output, columns, no_color=no_color, empty="no such task")


@tasks.command("show")
def show_task(
    task: TaskId, url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE, no_color: NoColor = False
) -> None:
    """Show one task, and its watermark gaps."""
    with connect(url, retry_s=0) as client:
        found = client.get(f"/v1/tasks/{task}")
    show_facts(found, output, no_color=no_color)
    if output is Output.TABLE:
        for gap in found["watermark_gaps"]:
            print(f"\n{gap['sentence']}\n  {gap['next_step']}")


@tasks.command()
def move(
    task: TaskId,
    to: Annotated[
        str | None, typer.Option("--sorter", help="Which one; by default the one with the least load.")
    ] = None,
    dry_run: DryRun = False,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Move a task to another sorter; its watermark pauses for a moment."""
    _act(url, f"/v1/tasks/{task}:move", dry_run, output, to=to)


@tasks.command()
def split(
    task: TaskId,
    split_key: Annotated[
        str | None, typer.Option(help="Where, in hexadecimal; by default where its sorter suggests.")
    ] = None,
    dry_run: DryRun = False,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Split a task in two, while data flows."""
    _act(url, f"/v1/tasks/{task}:split", dry_run, output, key=split_key)


@tasks.command()
def merge(
    task: TaskId,
    other: Annotated[int, typer.Argument(help="Id of its neighbour.")],
    dry_run: DryRun = False,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Merge two neighbouring tasks into one."""
    _act(url, f"/v1/tasks/{task}:merge", dry_run, output, **{"with": str(other)})


@tasks.command()
def retry(task: TaskId, dry_run: DryRun = False, url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE) -> None:
    """Retry a stopped task, after its cause has been fixed."""
    _act(url, f"/v1/tasks/{task}:retry", dry_run, output)


@stops.command("list")
def list_stops(
    cluster: OneCluster = None,
    tenant: OneTenant = None,
    limit: Limit = 1000,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
    no_color: NoColor = False,
) -> None:
    """List tenants, stores, jobs and tasks that an error has stopped."""
    with connect(url, retry_s=0) as client:
        found = list(pages(client, "/v1/stops", limit, of_tenant(cluster, tenant)))
    columns = [
        ("stop", lambda s: s["stop_id"]),
        ("what", lambda s: f"{s['scope']} {s['item']}"),
        ("role", lambda s: s["role"]),
        ("since", lambda s: (s["since_time"] or "–")[:19].replace("T", " ")),
        ("tries", lambda s: s["tries"]),
        ("error", lambda s: f"{s['code'] or ''} {s['message']}".strip()),
        ("object", lambda s: s["object"]),
    ]
    show_rows({"items": found}, output, columns, no_color=no_color, empty="nothing has stopped")


@stops.command("resume")
def resume_stop(
    stop: Annotated[str, typer.Argument(help="Id of the stop, or task-N for a task.")],
    dry_run: DryRun = False,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """Resume what has stopped, after its cause has been fixed."""
    _act(url, f"/v1/stops/{_quoted(stop)}:resume", dry_run, output)


def watermark_gaps(
    cluster: OneCluster = None,
    tenant: OneTenant = None,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
    no_color: NoColor = False,
) -> None:
    """Explain each stalled range in one sentence, with what to look at."""
    with connect(url, retry_s=0) as client:
        found = client.get("/v1/gaps", **of_tenant(cluster, tenant))
    if output is not Output.TABLE:
        show_data(found, output)
        return
    out = console(no_color)
    if not found["items"]:
        out.print("no stalled ranges", style="green")
    for gap in found["items"]:
        of = f"{gap['cluster_id']}/{gap['tenant_id']}"
        out.print(f"{of} {gap['cause']}: {gap['sentence']}", style="yellow", markup=False, soft_wrap=True)
        out.print(f"  {gap['next_step']}", markup=False, soft_wrap=True)


def events(
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new events; Ctrl-C ends it.")] = False,
    kind: Annotated[
        str | None, typer.Option(help="A kind such as task.moved, or all of task, worker, tenant ...")
    ] = None,
    cluster: OneCluster = None,
    tenant: OneTenant = None,
    limit: Limit = 50,
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.TABLE,
) -> None:
    """List what happened to tasks, stores, workers and tenants; the newest last."""
    asked = {**of_tenant(cluster, tenant), **given(kind=kind)}
    with connect(url, retry_s=30 if follow else 0) as client:
        newest = client.get("/v1/events", limit="1")["newest"]
        found = list(pages(client, "/v1/events", limit, asked))[::-1]
        _show_events(found, output, follow)
        newest = max([newest, *(event["event_id"] for event in found)], key=int)
        try:
            while follow:
                page = client.get("/v1/events", after=newest, limit=str(_PAGE), **asked)
                newest = page["newest"]
                _show_events(page["items"], output, follow)
                if len(page["items"]) < _PAGE:
                    time.sleep(_FOLLOW_S)
        except KeyboardInterrupt:
            return


@api.command("get")
def api_get(
    path: Annotated[str, typer.Argument(help="Path and query, such as /v1/workers?kind=sorter.")],
    url: Url = DEFAULT_URL,
    output: OutputOption = Output.JSON,
) -> None:
    """Get a JSON resource of the API."""
    if not path.startswith("/"):
        raise InvalidInput(f"'{path}' is not a path: it begins with /, such as /v1/tenants.")
    with connect(url, retry_s=0) as client:
        show_data(client.get(path), output)


def _show_events(events: list[dict[str, Any]], output: Output, follow: bool) -> None:
    """Show events; a follower has one document or line for each."""
    if output is Output.TABLE:
        for event in events:
            by = f"  by {event['actor']}" if event["actor"] else ""
            print(f"{event['time'][:19].replace('T', ' ')}  {event['words']}{by}", flush=True)
    elif follow or output is Output.NDJSON:
        for event in events:
            show_data(event, Output.NDJSON)
    else:
        show_data(events, output)


def _act(url: str, path: str, dry_run: bool, output: Output, **parameters: str | None) -> None:
    with connect(url, retry_s=0) as client:
        act(client, path, dry_run, output, **parameters)


def pages(client: Client, path: str, limit: int, asked: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The items of a list, page by page, up to its end or `limit`."""
    cursor = None
    while limit > 0:
        page = client.get(path, limit=str(min(limit, _PAGE)), **asked, **given(cursor=cursor))
        yield from page["items"]
        limit -= len(page["items"])
        cursor = page["next_cursor"]
        if cursor is None:
            return


def of_tenant(cluster: int | None, tenant: int | None) -> dict[str, str]:
    """The query parameters of one tenant; none without it."""
    if (cluster is None) != (tenant is None):
        raise InvalidInput("--cluster and --tenant go together")
    return {} if cluster is None else {"cluster_id": str(cluster), "tenant_id": str(tenant)}


def _quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")
