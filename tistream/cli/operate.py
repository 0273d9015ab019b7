"""`tistream workers|tasks|jobs|stops|gaps|events|api` and `store quarantine`: what runs, and the actions of operators.

An action prints what it did; with --dry-run what it would do. Lists are read page by page up to their end or --limit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tistream.admin.core.units import bytes_text, seconds_text
from tistream.cli.options import DEFAULT_URL, OneCluster, OneTenant, Url
from tistream.cli.output import Column, OutputForm, OutputOption, console, show_data
from tistream.cli.service import ActionOptions, ServiceOptions, TableOptions, TenantOptions, connect, given
from tistream.errors import InvalidInput

if TYPE_CHECKING:
    from tistream.client import Client

workers = typer.Typer(help="Look at the processes of the service, and drain them.", no_args_is_help=True)
tasks = typer.Typer(help="Look at tasks; move, split, merge and retry them.", no_args_is_help=True)
stops = typer.Typer(help="Look at what errors have stopped, and resume it.", no_args_is_help=True)
jobs = typer.Typer(help="Look at maintenance jobs; run or cancel one.", no_args_is_help=True)
stores = typer.Typer(help="Look at the stores of a tenant.", no_args_is_help=True)
quarantine = typer.Typer(help="Decide about stores that contradict their own promise.", no_args_is_help=True)
stores.add_typer(quarantine, name="quarantine")
api = typer.Typer(help="Ask the HTTP API directly.", no_args_is_help=True)

PAGE = 1000
FOLLOW_S = 1.0

Limit = Annotated[int, typer.Option("--limit", "-n", min=1, help="Most rows to show.")]
WorkerName = Annotated[str, typer.Argument(help="Name of the worker.")]
TaskId = Annotated[int, typer.Argument(help="Id of the task.")]
JobId = Annotated[int, typer.Argument(help="Id of the job.")]
States = Annotated[str | None, typer.Option("--state", help="Only these: offered, queued, running, done, failed ...")]
Kind = Annotated[str | None, typer.Option("--kind", help="Only these: merge, bases, retire_seeds or replay.")]
Store = Annotated[int, typer.Argument(help="Id of the store.", metavar="STORE")]


@dataclass(frozen=True, slots=True, kw_only=True)
class OneTenantOptions:
    """The tenant that a list is about; without it all."""

    cluster: OneCluster = None
    tenant: OneTenant = None

    def query(self) -> dict[str, str]:
        """The query parameters."""
        if (self.cluster is None) != (self.tenant is None):
            raise InvalidInput("--cluster and --tenant go together")
        return {} if self.cluster is None else {"cluster_id": str(self.cluster), "tenant_id": str(self.tenant)}


@workers.command("list")
def list_workers(
    to: TableOptions,
    kind: Annotated[str | None, typer.Option(help="Only these, as sorter, dispatcher, replicate, meta or api.")] = None,
) -> None:
    """List processes with state and load."""
    columns: list[Column] = [
        ("worker", lambda w: w["worker_id"]),
        *("kind", "release", "state", "tasks", "stores"),
        ("bytes/s", lambda w: bytes_text(w["bytes_per_s"])),
        ("held", lambda w: bytes_text(w["held_bytes"])),
        ("last seen", lambda w: f"{seconds_text(w['heartbeat_age_s'])} ago"),
        ("starts", lambda w: w["incarnation"]),
        "address",
    ]
    answer = to.get("/v1/workers", **given(kind=kind))
    to.show_rows(answer, columns, empty="no worker has registered: start one, as tistream sort")


@workers.command("show")
def show_worker(worker: WorkerName, to: TableOptions) -> None:
    """Show one process with what it reports."""
    to.show(to.get(f"/v1/workers/{_quoted(worker)}"))


@workers.command()
def drain(
    worker: WorkerName,
    to: ActionOptions,
    undo: Annotated[bool, typer.Option("--undo", help="Assign work to it again.")] = False,
) -> None:
    """Drain a sorter or dispatcher: what it owns is handed over, and it is assigned nothing more."""
    to.act(f"/v1/workers/{_quoted(worker)}:{'undrain' if undo else 'drain'}")


@tasks.command("list")
def list_tasks(
    to: TableOptions,
    of: OneTenantOptions,
    owner: Annotated[str | None, typer.Option(help="Only those of this worker.")] = None,
    stopped: Annotated[bool, typer.Option("--stopped", help="Only those that have stopped.")] = False,
    limit: Limit = 1000,
) -> None:
    """List tasks with owners, lag and load."""
    columns: list[Column] = [
        ("task", lambda t: t["task_id"]),
        ("tenant", lambda t: f"{t['cluster_id']}/{t['tenant_id']}"),
        ("range", lambda t: t["label"]),
        "state",
        ("lag", lambda t: seconds_text(t["lag_s"])),
        ("rows/s", lambda t: f"{t['load']['rows_per_s']:.0f}" if t["load"] else None),
        *("owner", "epoch"),
    ]
    query = of.query() | given(owner=owner, stopped="true" if stopped else None)
    to.show_rows(items(to, "/v1/tasks", limit, query), columns, empty="no such task")


@tasks.command("show")
def show_task(task: TaskId, to: TableOptions) -> None:
    """Show one task, and its watermark gaps."""
    answer = to.get(f"/v1/tasks/{task}")
    to.show(answer)
    if to.is_table:
        for gap in answer["watermark_gaps"]:
            print(f"\n{gap['sentence']}\n  {gap['next_step']}")


@tasks.command()
def move(
    task: TaskId,
    to: ActionOptions,
    sorter: Annotated[
        str | None, typer.Option("--sorter", help="Which one; by default the one with the least load.")
    ] = None,
) -> None:
    """Move a task to another sorter; its watermark pauses for a moment."""
    to.act(f"/v1/tasks/{task}:move", to=sorter)


@tasks.command()
def split(
    task: TaskId,
    to: ActionOptions,
    split_key: Annotated[
        str | None, typer.Option(help="Where, in hexadecimal; by default where its sorter suggests.")
    ] = None,
) -> None:
    """Split a task in two, while data flows."""
    to.act(f"/v1/tasks/{task}:split", key=split_key)


@tasks.command()
def merge(task: TaskId, other: Annotated[int, typer.Argument(help="Id of its neighbour.")], to: ActionOptions) -> None:
    """Merge two neighbouring tasks into one."""
    to.act(f"/v1/tasks/{task}:merge", **{"with": str(other)})


@tasks.command()
def retry(task: TaskId, to: ActionOptions) -> None:
    """Retry a stopped task, after its cause has been fixed."""
    to.act(f"/v1/tasks/{task}:retry")


@stops.command("list")
def list_stops(to: TableOptions, of: OneTenantOptions, limit: Limit = 1000) -> None:
    """List tenants, stores, jobs and tasks that an error has stopped."""
    columns: list[Column] = [
        ("stop", lambda s: s["stop_id"]),
        ("what", lambda s: f"{s['scope']} {s['item']}"),
        "role",
        ("since", lambda s: (s["since_time"] or "–")[:19].replace("T", " ")),
        "tries",
        ("error", lambda s: f"{s['code'] or ''} {s['message']}".strip()),
        "object",
    ]
    to.show_rows(items(to, "/v1/stops", limit, of.query()), columns, empty="nothing has stopped")


@stops.command("resume")
def resume_stop(
    stop: Annotated[str, typer.Argument(help="Id of the stop, or task-N for a task.")], to: ActionOptions
) -> None:
    """Resume what has stopped, after its cause has been fixed."""
    to.act(f"/v1/stops/{_quoted(stop)}:resume")


def watermark_gaps(to: TableOptions, of: OneTenantOptions) -> None:
    """Explain each stalled range in one sentence, with what to look at."""
    answer = to.get("/v1/gaps", **of.query())
    if not to.is_table:
        show_data(answer, to.output)
        return
    out = console(to.no_color)
    if not answer["items"]:
        out.print("no stalled ranges", style="green")
    for gap in answer["items"]:
        name = f"{gap['cluster_id']}/{gap['tenant_id']}"
        out.print(f"{name} {gap['cause']}: {gap['sentence']}", style="yellow", markup=False, soft_wrap=True)
        out.print(f"  {gap['next_step']}", markup=False, soft_wrap=True)


def events(
    to: ServiceOptions,
    of: OneTenantOptions,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new events; Ctrl-C ends it.")] = False,
    kind: Annotated[
        str | None, typer.Option(help="A kind such as task.moved, or all of task, worker, tenant ...")
    ] = None,
    limit: Limit = 50,
) -> None:
    """List what happened to tasks, stores, workers and tenants; the newest last."""
    query = of.query() | given(kind=kind)
    with connect(to.url, retry_s=30 if follow else 0) as client:
        newest = client.get("/v1/events", limit="1")["newest"]
        listed = list(pages(client, "/v1/events", limit, query))[::-1]
        _show_events(listed, to.output, follow)
        newest = max([newest, *(event["event_id"] for event in listed)], key=int)
        try:
            while follow:
                page = client.get("/v1/events", after=newest, limit=str(PAGE), **query)
                newest = page["newest"]
                _show_events(page["items"], to.output, follow)
                if len(page["items"]) < PAGE:
                    time.sleep(FOLLOW_S)
        except KeyboardInterrupt:
            return


@api.command("get")
def api_get(
    path: Annotated[str, typer.Argument(help="Path and query, such as /v1/workers?kind=sorter.")],
    url: Url = DEFAULT_URL,
    output: OutputOption = OutputForm.JSON,
) -> None:
    """Get a JSON resource of the API."""
    if not path.startswith("/"):
        raise InvalidInput(f"'{path}' is not a path: it begins with /, such as /v1/tenants.")
    with connect(url, retry_s=0) as client:
        show_data(client.get(path), output)


def _show_events(events: list[dict[str, Any]], output: OutputForm, follow: bool) -> None:
    """Show events; a follower has one document or line for each."""
    if output is OutputForm.TABLE:
        for event in events:
            by = f"  by {event['actor']}" if event["actor"] else ""
            print(f"{event['time'][:19].replace('T', ' ')}  {event['words']}{by}", flush=True)
    elif follow or output is OutputForm.NDJSON:
        for event in events:
            show_data(event, OutputForm.NDJSON)
    else:
        show_data(events, output)


def items(to: ServiceOptions, path: str, limit: int, query: dict[str, str]) -> dict[str, Any]:
    """The items of a list, as one page."""
    with connect(to.url, retry_s=0) as client:
        return {"items": list(pages(client, path, limit, query))}


def pages(client: Client, path: str, limit: int, query: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The items of a list, page by page, up to its end or `limit`."""
    cursor = None
    while limit > 0:
        page = client.get(path, limit=str(min(limit, PAGE)), **query, **given(cursor=cursor))
        yield from page["items"]
        limit -= len(page["items"])
        cursor = page["next_cursor"]
        if cursor is None:
            return


def _quoted(name: str) -> str:
    from urllib.parse import quote

    return quote(name, safe="")


@jobs.command("list")
def list_jobs(
    to: TableOptions, of: OneTenantOptions, state: States = None, kind: Kind = None, limit: Limit = 100
) -> None:
    """List jobs with their state, what they read and the requests they saved; the newest first."""
    columns: list[Column] = [
        ("job", lambda j: j["job_id"]),
        ("tenant", lambda j: f"{j['cluster_id']}/{j['tenant_id']}"),
        *("kind", "state"),
        ("parts", lambda j: f"{j['parts_done']}/{j['parts_total']}" if j["parts_total"] else None),
        ("read", lambda j: bytes_text(j["bytes_read"] or j["estimated_bytes"])),
        ("objects", lambda j: f"{j['objects_before']} -> {j['objects_after']}" if j["objects_before"] else None),
        ("saved", lambda j: j["requests_saved"] or None),
        ("took", lambda j: seconds_text(j["duration_s"])),
        ("why", lambda j: j["error"] or j["reason"]),
    ]
    listed = items(to, "/v1/jobs", limit, of.query() | given(state=state, kind=kind))
    to.show_rows(listed, columns, empty="no job yet: nothing is worth one")


@jobs.command("show")
def show_job(job: JobId, to: TableOptions) -> None:
    """Show one job."""
    to.show(to.get(f"/v1/jobs/{job}"))


@jobs.command("retry")
def retry_job(job: JobId, to: ActionOptions) -> None:
    """Run now a job that is offered, pauses, failed or was cancelled."""
    to.act(f"/v1/jobs/{job}:retry")


@jobs.command()
def cancel(job: JobId, to: ActionOptions) -> None:
    """Cancel a job that has not ended; what it has published stays."""
    to.act(f"/v1/jobs/{job}:cancel")


@quarantine.command("list")
def list_quarantines(of: TenantOptions, to: TableOptions) -> None:
    """List quarantined stores, open and decided; --json shows the rows in question."""
    columns: list[Column] = [
        ("store", lambda q: q["store_id"]),
        *("state", "rows"),
        ("good up to", lambda q: q["good_time"]),
        ("since", lambda q: q["since_time"][:19].replace("T", " ")),
        ("first key", lambda q: q["sample"][0]["key"][:40] if q["sample"] else ""),
        "object",
        ("decided by", lambda q: q["decided_by"] or "–"),
    ]
    to.show_rows(to.get(of.path("quarantines")), columns, empty="no store is quarantined")


@quarantine.command()
def reject(store: Store, of: TenantOptions, to: ActionOptions) -> None:
    """Give up the store's incarnation from the file on; its pusher begins again, and pulls continue.

    For rows that are not in the cluster. If they are, connect another tenant and delete this one."""
    to.act(of.path("stores", f"{store}") + ":reject")
