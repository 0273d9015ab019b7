"""`tistream tenant register|list|show|pause|resume|delete|retention|rotate-key`."""

from __future__ import annotations

import json
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tistream.admin.onboarding import checklist
from tistream.cli.options import DEFAULT_URL, Cluster, Key, Tenant, Url
from tistream.cli.output import NoColor, Output, OutputOption, lag, show_data, show_rows
from tistream.errors import ErrorKind, InvalidInput, NotFound, TiStreamError

if TYPE_CHECKING:
    from tistream.client import Client

commands = typer.Typer(help="Register, look at, pause, resume and delete tenants.", no_args_is_help=True)
_LOOK_EVERY_S = 0.5
_SHOWN_ONCE = "(shown once)"

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and do nothing.")]


class NotActive(TiStreamError):
    """The tenant did not become active in time."""

    kind = ErrorKind.RETRY
    code = "TS-1084"
    hint = "Start its pushers: tistream push. GET /healthz tells what is wrong, if anything is."


@commands.command()
def register(
    cluster: Cluster,
    tenant: Tenant,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the tenant is active; show each step.")] = False,
    timeout: Annotated[float, typer.Option(help="With --wait: give up after so many seconds.", min=0)] = 3600,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Register a tenant. It then awaits its first schema snapshot.

    The answer holds where its pushers write, their environment, a command that looks whether pushing would work and,
    where keys are asked for, a key of theirs: once.
    """
    from tistream.client import connect

    with connect(url) as client:
        made = client.register_tenant(cluster, tenant)
        print(json.dumps(made, indent=2), flush=True)
        if str(made["push"].get("key") or "").endswith(_SHOWN_ONCE):
            print("an earlier answer, which was lost, showed the key: tistream tenant rotate-key", file=sys.stderr)
        if check := made["push"].get("check"):  # a service of an earlier version names none
            print(f"to look whether pushing would work, where the pushers run: {check}", file=sys.stderr)
        if wait:
            _wait(client, cluster, tenant, time.monotonic() + timeout, made["push"])


@commands.command("list")
def list_all(
    url: Url = DEFAULT_URL, key: Key = None, output: OutputOption = Output.TABLE, no_color: NoColor = False
) -> None:
    """All tenants with state and lag."""
    from tistream.client import connect

    with connect(url) as client:
        found = client.get("/v1/tenants")
    columns = [
        ("tenant", lambda t: f"{t['cluster_id']}/{t['tenant_id']}"),
        ("state", lambda t: t["state"]),
        ("lag", lambda t: lag(t["lag_ms"])),
        ("resolved", lambda t: t["resolved_time"]),
        ("resolved_ts", lambda t: t["resolved_ts"]),
    ]
    show_rows(found, output, columns, no_color=no_color, empty="no tenant is registered: tistream tenant register")


@commands.command()
def show(
    cluster: Cluster, tenant: Tenant, url: Url = DEFAULT_URL, key: Key = None, output: OutputOption = Output.JSON
) -> None:
    """One tenant with its tasks and stores."""
    from tistream.client import connect

    with connect(url) as client:
        show_data(_asked(client, cluster, tenant, lambda base: client.get(base)), output)


@commands.command()
def pause(
    cluster: Cluster,
    tenant: Tenant,
    reason: Annotated[str, typer.Option(help="Told to whoever looks at the tenant.")] = "",
    dry_run: DryRun = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Set a tenant aside: its log stays readable, its watermark stands, its pushers' files wait."""
    _do(url, cluster, tenant, "pause", dry_run, output, **({"reason": reason} if reason else {}))


@commands.command()
def resume(
    cluster: Cluster,
    tenant: Tenant,
    dry_run: DryRun = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Let a paused tenant go on where it was."""
    _do(url, cluster, tenant, "resume", dry_run, output)


@commands.command()
def delete(
    cluster: Cluster,
    tenant: Tenant,
    reason: Annotated[str, typer.Option(help="Told to whoever looks at the tenant.")] = "",
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give a tenant up, for good: its pushers are refused, its log is removed, its id is not used again.

    It says first what goes, and asks for the tenant's name as CLUSTER/TENANT."""
    from urllib.parse import urlencode

    from tistream.client import connect

    with connect(url, retry_s=0) as client:

        def ask(**asked: str) -> Any:
            words = f"?{urlencode(asked)}" if asked else ""
            return _asked(client, cluster, tenant, lambda base: client.send("DELETE", base + words))

        found = ask(dry_run="true")
        if not dry_run:
            if not yes:
                print(found["words"], file=sys.stderr)
                typed = typer.prompt(f"Type {cluster}/{tenant} to go on", err=True)
                if typed.strip() != f"{cluster}/{tenant}":
                    raise InvalidInput(f"'{typed}' is not {cluster}/{tenant}: nothing was deleted.")
            found = ask(**({"reason": reason} if reason else {}))
    _tell(found, output)


@commands.command()
def retention(
    cluster: Cluster,
    tenant: Tenant,
    hours: Annotated[float | None, typer.Argument(help="Hours of the log that are kept; 0 = all of it.")] = None,
    default: Annotated[
        bool, typer.Option("--default", help="Go back to what the service keeps of any tenant.")
    ] = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """How much of a tenant's log is kept, and where it begins; with HOURS or --default, change that."""
    from tistream.client import connect

    with connect(url) as client:
        path = f"/v1/clusters/{cluster}/tenants/{tenant}"
        if default or hours is not None:
            client.send("PATCH", path, {"retention_hours": None if default else hours})
        print(json.dumps(client.get(f"{path}/retention"), indent=2))


@commands.command("rotate-key")
def rotate_key(
    cluster: Cluster,
    tenant: Tenant,
    overlap_hours: Annotated[float, typer.Option(help="The old key counts for so long more.", min=0)] = 24,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Give the key of a tenant's pushers a successor, or a first one. It is printed once, alone on standard output."""
    from tistream.client import connect

    with connect(url) as client:
        asked = {"cluster_id": str(cluster), "tenant_id": str(tenant)}
        rows = [r for r in client.get("/v1/keys", **asked)["items"] if r["role"] == "pusher"]
        living = [r for r in rows if r["state"] == "living" and r["replaced_by"] is None]
        if living:
            made = client.post(f"/v1/keys/{living[-1]['key_id']}:rotate", {"overlap_hours": overlap_hours})
        else:
            client.get(f"/v1/clusters/{cluster}/tenants/{tenant}")
            new = {"name": f"pushers of {cluster}/{tenant}", "role": "pusher"}
            made = client.post("/v1/keys", {**new, "cluster_id": cluster, "tenant_id": tenant})
    old = f"; {living[-1]['key_id']} counts for {overlap_hours:g} hours more" if living else ""
    print(f"pusher key {made['key_id']} of tenant {cluster}/{tenant}, shown this once{old}:", file=sys.stderr)
    print(made["key"])


def _wait(client: Client, cluster: int, tenant: int, deadline: float, push: dict[str, Any]) -> None:
    """Show each step when it is done, until the tenant is active."""
    done: set[str] = set()
    valid_s = _prove(client, push, deadline)
    while True:
        found = client.get(f"/v1/clusters/{cluster}/tenants/{tenant}")
        steps = checklist(found, has_key=bool(push.get("key")), valid_s=valid_s)
        for step, is_done, told in steps:
            if is_done and step not in done:
                done.add(step)
                print(f"  ✓ {step}{told}", file=sys.stderr, flush=True)
        if found["state"] == "ACTIVE":
            return
        if found["state"] != "AWAITING_SNAPSHOT":
            raise NotFound(f"tenant {cluster}/{tenant} is {found['state']} now", state=found["state"])
        waits = next(step for step, is_done, _ in steps if not is_done)
        if "waits" not in done:
            done.add("waits")
            print(f"  … {waits}: start the pushers, for example", file=sys.stderr)
            print(f"      tistream push --pd HOST:2379 -c {cluster} -t {tenant} --url {client.url}", file=sys.stderr)
        if time.monotonic() > deadline:
            raise NotActive(f"tenant {cluster}/{tenant} still waits: {waits}")
        time.sleep(_LOOK_EVERY_S)


def _prove(client: Client, push: dict[str, Any], deadline: float) -> int | None:
    """Have session credentials issued, and forget them; how many seconds they count. None: the service issues none."""
    from tistream.client import connect

    access, told = push.get("credentials") or {}, ""
    if access.get("by") != "service":
        if access:
            print(f"  - {access['words']}", file=sys.stderr, flush=True)
        return None
    while True:
        try:
            with connect(client.url, retry_s=0) as once:
                return int(once.post(access["url"])["valid_s"])
        except TiStreamError as e:
            if e.kind is not ErrorKind.RETRY or time.monotonic() > deadline:
                raise
            if str(e) != told:
                told = str(e)
                print(f"  … {told}", file=sys.stderr, flush=True)
        time.sleep(_LOOK_EVERY_S)


def _do(url: str, cluster: int, tenant: int, verb: str, dry_run: bool, output: Output, **asked: str) -> None:
    from tistream.client import connect

    asked |= {"dry_run": "true"} if dry_run else {}
    with connect(url, retry_s=0) as client:
        _tell(_asked(client, cluster, tenant, lambda base: client.post(f"{base}:{verb}", None, **asked)), output)


def _tell(found: Any, output: Output) -> None:
    if output is Output.TABLE:
        print(f"{'would happen: ' if found['dry_run'] else ''}{found['words']}")
    else:
        show_data(found, output)


def _asked(client: Client, cluster: int, tenant: int, ask: Any) -> Any:
    """What `ask` answers about the tenant; when there is no such tenant, the ones that there are."""
    try:
        return ask(f"/v1/clusters/{cluster}/tenants/{tenant}")
    except NotFound as error:
        names = [f"{t['cluster_id']}/{t['tenant_id']}" for t in client.get("/v1/tenants")["items"]]
        more = f", ... ({len(names)} in all)" if len(names) > 5 else ""
        error.hint = f"There are: {', '.join(names[:5])}{more}." if names else error.hint
        raise
