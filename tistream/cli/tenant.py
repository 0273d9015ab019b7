"""`tistream tenant register|list|show|pause|resume|delete|retention|rotate-key`."""

from __future__ import annotations

import sys
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tistream.admin.core.units import kind_words, lag_text
from tistream.admin.onboarding import checklist
from tistream.cli.cluster_options import Keyspace
from tistream.cli.key import show_new
from tistream.cli.key_options import EndKey, FormatOfKeys, StartKey
from tistream.cli.options import DEFAULT_URL, Cluster, Key, Tenant, Url
from tistream.cli.output import Column, NoColor, Output, OutputOption, show_data, show_facts, show_rows
from tistream.cli.service import DryRun, act, connect, given, show_outcome, tenant_path
from tistream.errors import ErrorKind, InvalidInput, NotFound, TiStreamError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tistream.client import Client

commands = typer.Typer(help="Register, look at, pause, resume and delete tenants.", no_args_is_help=True)
_POLL_S = 0.5
_SHOWN_ONCE = "(shown once)"

Reason = Annotated[str, typer.Option(help="Shown with the tenant.")]


class Kind(StrEnum):
    """What a tenant's keys are."""

    TIDB = "tidb"
    RAW = "raw"
    TXN = "txn"


class NotActive(TiStreamError):
    """The tenant did not become active in time."""

    kind = ErrorKind.RETRY
    code = "TS-1084"
    hint = "Start its pushers: tistream push. tistream doctor shows what is wrong, if anything is."


@commands.command()
def register(
    cluster: Cluster,
    tenant: Tenant,
    kind: Annotated[
        Kind, typer.Option(help="The kind of its keys: tables of TiDB, or a keyspace of RawKV or TxnKV.")
    ] = Kind.TIDB,
    keyspace: Keyspace = None,
    start_key: StartKey = None,
    end_key: EndKey = None,
    key_format: FormatOfKeys = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the tenant is active; show each step.")] = False,
    timeout: Annotated[float, typer.Option(help="With --wait: give up after this many seconds.", min=0)] = 3600,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.JSON,
) -> None:
    """Register a tenant.

    One of TiDB waits for its first schema snapshot. A raw or txn tenant is a keyspace, 0 if none is named, or a range
    of its keys, and is active at once.

    The answer holds where its pushers write, their environment, a command that checks whether pushing would work and,
    where keys are required, a key for them: once.
    """
    with connect(url) as client:
        made = client.tenant(cluster, tenant).register(
            kind=kind,
            keyspace=keyspace,
            start_key=_key("--start-key", start_key, key_format),
            end_key=_key("--end-key", end_key, key_format),
        )
        show_data(made, output) if output is not Output.TABLE else show_facts(made, output)
        if str(made["push"].get("key") or "").endswith(_SHOWN_ONCE):
            print("an earlier answer, which was lost, showed the key: tistream tenant rotate-key", file=sys.stderr)
        if check := made["push"].get("check"):  # a service of an earlier version names none
            print(f"to check where the pushers run whether pushing would work: {check}", file=sys.stderr)
        if wait:
            _wait(client, cluster, tenant, time.monotonic() + timeout, made["push"])


@commands.command("list")
def list_all(
    url: Url = DEFAULT_URL, key: Key = None, output: OutputOption = Output.TABLE, no_color: NoColor = False
) -> None:
    """List tenants with state and lag."""
    with connect(url) as client:
        found = client.get("/v1/tenants")
    columns = [
        ("tenant", lambda t: f"{t['cluster_id']}/{t['tenant_id']}"),
        ("kind", kind_words),
        ("state", lambda t: t["state"]),
        ("lag", lag_text),
        ("resolved", lambda t: t["resolved_time"]),
        ("resolved_ts", lambda t: t["resolved_ts"]),
    ]
    show_rows(found, output, columns, no_color=no_color, empty="no tenant is registered: tistream tenant register")


@commands.command()
def show(
    cluster: Cluster, tenant: Tenant, url: Url = DEFAULT_URL, key: Key = None, output: OutputOption = Output.JSON
) -> None:
    """Show one tenant with its tasks and stores."""
    with connect(url) as client:
        show_data(_known(client, lambda: client.get(tenant_path(cluster, tenant))), output)


@commands.command()
def pause(
    cluster: Cluster,
    tenant: Tenant,
    reason: Reason = "",
    dry_run: DryRun = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Pause a tenant: its log stays readable, its watermark stops, its pushers' files wait."""
    with connect(url, retry_s=0) as client:
        path = f"{tenant_path(cluster, tenant)}:pause"
        _known(client, lambda: act(client, path, dry_run, output, reason=reason))


@commands.command()
def resume(
    cluster: Cluster,
    tenant: Tenant,
    dry_run: DryRun = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Resume a paused tenant where it was."""
    with connect(url, retry_s=0) as client:
        _known(client, lambda: act(client, f"{tenant_path(cluster, tenant)}:resume", dry_run, output))


@commands.command()
def delete(
    cluster: Cluster,
    tenant: Tenant,
    reason: Reason = "",
    dry_run: DryRun = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Delete a tenant for good, with its log.

    Its pushers are refused, and its id is not used again. The command first says what will be removed, and
    asks for the tenant's name as CLUSTER/TENANT."""
    from urllib.parse import urlencode

    with connect(url, retry_s=0) as client:

        def ask(**asked: str) -> Any:
            query = f"?{urlencode(asked)}" if asked else ""
            return _known(client, lambda: client.send("DELETE", tenant_path(cluster, tenant) + query))

        found = ask(dry_run="true")
        if not dry_run:
            if not yes:
                print(found["words"], file=sys.stderr)
                typed = typer.prompt(f"Type {cluster}/{tenant} to delete it", err=True)
                if typed.strip() != f"{cluster}/{tenant}":
                    raise InvalidInput(f"'{typed}' is not {cluster}/{tenant}: nothing was deleted.")
            found = ask(**given(reason=reason))
    show_outcome(found, output)


@commands.command()
def retention(
    cluster: Cluster,
    tenant: Tenant,
    hours: Annotated[float | None, typer.Argument(help="Hours of the log that are kept; 0 = all of it.")] = None,
    default: Annotated[bool, typer.Option("--default", help="Return to the service's default.")] = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show or change how much of a tenant's log is kept.

    Without HOURS and --default: the policy, where the log begins, and what holds it."""
    with connect(url) as client:
        if default or hours is not None:
            body = {"retention_s": None if default or hours is None else hours * 3600}
            client.send("PATCH", tenant_path(cluster, tenant), body)
        found = client.get(tenant_path(cluster, tenant, "retention"))
    if output is not Output.TABLE:
        show_data(found, output)
        return
    print(_retention_line(found))
    columns: list[Column] = [
        ("holds the log", lambda hold: "yes" if hold["holding"] else "not yet"),
        ("what", lambda hold: hold["by"]),
        ("above", lambda hold: hold["time"]),
        ("since", lambda hold: hold["since_time"]),
        ("released by", lambda hold: hold["release"]),
    ]
    show_rows(found["holds"], output, columns, empty="nothing holds it")
    if found["holds_total"] > len(found["holds"]):
        print(f"and {found['holds_total'] - len(found['holds']):,} more, above these")


def _retention_line(found: dict[str, Any]) -> str:
    """Policy and start in a sentence."""
    hours = found["policy_s"] / 3600
    kept = f"{hours:g} hour{'' if hours == 1 else 's'}" if hours else "all"
    begins = f"It begins at {found['earliest_time']}" if found["earliest_time"] else "None of it is deleted"
    wanted = f", by the policy at {found['policy_time']}" if found["policy_time"] else ""
    return f"The tenant keeps {kept} of its log. {begins}{wanted}."


@commands.command("rotate-key")
def rotate_key(
    cluster: Cluster,
    tenant: Tenant,
    overlap_hours: Annotated[float, typer.Option(help="The old key stays valid for so long.", min=0)] = 24,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create the next key of a tenant's pushers, or their first.

    It is printed once, alone on standard output."""
    with connect(url) as client:
        rows = client.get("/v1/keys", cluster_id=str(cluster), tenant_id=str(tenant))["items"]
        valid = [r for r in rows if r["role"] == "pusher" and r["state"] == "living" and r["replaced_by"] is None]
        if valid:
            made = client.post(f"/v1/keys/{valid[-1]['key_id']}:rotate", {"overlap_s": overlap_hours * 3600})
        else:
            client.get(tenant_path(cluster, tenant))
            new = {"name": f"pushers of {cluster}/{tenant}", "role": "pusher"}
            made = client.post("/v1/keys", {**new, "cluster_id": cluster, "tenant_id": tenant})
    old = f"; {valid[-1]['key_id']} stays valid for {overlap_hours:g} hours" if valid else ""
    show_new(made, output, old)


def _wait(client: Client, cluster: int, tenant: int, deadline: float, push: dict[str, Any]) -> None:
    """Show each step when it is done, until the tenant is active."""
    done: set[str] = set()
    valid_s = _prove_credentials(client, push, deadline)
    while True:
        found = client.get(tenant_path(cluster, tenant))
        steps = checklist(found, has_key=bool(push.get("key")), valid_s=valid_s)
        for step, is_done, details in steps:
            if is_done and step not in done:
                done.add(step)
                print(f"  ✓ {step}{details}", file=sys.stderr, flush=True)
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
        time.sleep(_POLL_S)


def _prove_credentials(client: Client, push: dict[str, Any], deadline: float) -> int | None:
    """Have session credentials issued, and discard them; for how many seconds they are valid. None: the service issues
    none."""
    access, shown = push.get("credentials") or {}, ""
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
            if str(e) != shown:
                shown = str(e)
                print(f"  … {shown}", file=sys.stderr, flush=True)
        time.sleep(_POLL_S)


def _key(option: str, text: str | None, key_format: str | None) -> bytes:
    from tistream.codec.key_format import KeyFormat, parse

    forms = [form.value for form in KeyFormat]
    if (form := key_format or KeyFormat.ESCAPED) not in forms:
        raise InvalidInput(f"--key-format {form}: it is one of {', '.join(forms)}.")
    return parse(text or "", KeyFormat(form), parameter=option)


def _known(client: Client, request: Callable[[], Any]) -> Any:
    """What the request about a tenant returns; when there is no such tenant, the hint lists those that exist."""
    try:
        return request()
    except NotFound as error:
        names = [f"{t['cluster_id']}/{t['tenant_id']}" for t in client.get("/v1/tenants")["items"]]
        more = f", ... ({len(names)} in all)" if len(names) > 5 else ""
        error.hint = f"There are: {', '.join(names[:5])}{more}." if names else error.hint
        raise
