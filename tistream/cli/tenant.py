"""`tistream tenant register|list|show|pause|resume|delete|reseed|retention|allow|disallow|targets|rotate-key`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tistream.admin.core.units import kind_words, lag_text
from tistream.admin.onboarding import checklist
from tistream.cli.cluster_options import Keyspace
from tistream.cli.filter_options import EndKey, FormatOfKeys, StartKey
from tistream.cli.key import OverlapHours, show_new
from tistream.cli.options import DEFAULT_URL, Url
from tistream.cli.output import Column, OutputForm, OutputOption, show_data, show_facts, show_rows
from tistream.cli.service import (
    ActionOptions,
    ServiceOptions,
    TableOptions,
    TenantOptions,
    connect,
    given,
    show_outcome,
)
from tistream.errors import ErrorKind, InvalidInput, NotFound, TenantDeleted, TiStreamError

if TYPE_CHECKING:
    from tistream.client import Client

commands = typer.Typer(help="Register, look at, pause, resume and delete tenants.", no_args_is_help=True)
_POLL_S = 0.5
_SHOWN_ONCE = "(shown once)"

Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
Reason = Annotated[str, typer.Option(help="Shown with the tenant.")]


class KeyKind(StrEnum):
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
    of: TenantOptions,
    kind: Annotated[
        KeyKind, typer.Option(help="The kind of its keys: tables of TiDB, or a keyspace of RawKV or TxnKV.")
    ] = KeyKind.TIDB,
    keyspace: Keyspace = None,
    start_key: StartKey = None,
    end_key: EndKey = None,
    key_format: FormatOfKeys = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the tenant is active; show each step.")] = False,
    timeout: Annotated[float, typer.Option(help="With --wait: give up after this many seconds.", min=0)] = 3600,
    url: Url = DEFAULT_URL,
    output: OutputOption = OutputForm.JSON,
) -> None:
    """Register a tenant.

    One of TiDB waits for its first schema snapshot. A raw or txn tenant is a keyspace, 0 if none is named, or a range
    of its keys, and is active at once.

    The answer holds where its pushers write, their environment, a command that checks whether pushing would work and,
    where keys are required, a key for them: once.
    """
    with connect(url) as client:
        made = client.tenant(of.cluster, of.tenant).register(
            kind=kind,
            keyspace=keyspace,
            start_key=_key("--start-key", start_key, key_format),
            end_key=_key("--end-key", end_key, key_format),
        )
        show_data(made, output) if output is not OutputForm.TABLE else show_facts(made, output)
        if str(made["push"].get("key") or "").endswith(_SHOWN_ONCE):
            print("an earlier answer, which was lost, showed the key: tistream tenant rotate-key", file=sys.stderr)
        if check := made["push"].get("check"):  # a service of an earlier version names none
            print(f"to check where the pushers run whether pushing would work: {check}", file=sys.stderr)
        if wait:
            _wait(client, of, time.monotonic() + timeout, made["push"])


@commands.command("list")
def list_all(to: TableOptions) -> None:
    """List tenants with state and lag."""
    with connect(to.url) as client:
        answer = client.get("/v1/tenants")
    columns: list[Column] = [
        ("tenant", lambda t: f"{t['cluster_id']}/{t['tenant_id']}"),
        ("kind", kind_words),
        "state",
        ("lag", lag_text),
        ("resolved", lambda t: t["resolved_time"]),
        "resolved_ts",
    ]
    to.show_rows(answer, columns, empty="no tenant is registered: tistream tenant register")


@commands.command()
def show(of: TenantOptions, url: Url = DEFAULT_URL, output: OutputOption = OutputForm.JSON) -> None:
    """Show one tenant with its tasks and stores."""
    with connect(url) as client, _hint(client):
        show_data(client.get(of.path()), output)


@commands.command()
def pause(of: TenantOptions, to: ActionOptions, reason: Reason = "") -> None:
    """Pause a tenant: its log stays readable, its watermark stops, its pushers' files wait."""
    with connect(to.url, retry_s=0) as client, _hint(client):
        to.act(f"{of.path()}:pause", reason=reason)


@commands.command()
def resume(of: TenantOptions, to: ActionOptions) -> None:
    """Resume a paused tenant where it was."""
    with connect(to.url, retry_s=0) as client, _hint(client):
        to.act(f"{of.path()}:resume")


@commands.command()
def delete(
    of: TenantOptions,
    to: ActionOptions,
    reason: Reason = "",
    yes: Yes = False,
) -> None:
    """Delete a tenant with its log.

    Its pushers are refused, and its id is not used again. The command first says what will be removed, and
    asks for the tenant's name as CLUSTER/TENANT."""
    from urllib.parse import urlencode

    with connect(to.url, retry_s=0) as client, _hint(client):
        answer = client.send("DELETE", f"{of.path()}?dry_run=true")
        if not to.dry_run:
            _confirm(of, answer, yes=yes)
            answer = client.send("DELETE", f"{of.path()}?{urlencode(given(reason=reason))}".rstrip("?"))
    show_outcome(answer, to.output)


@commands.command()
def reseed(
    of: TenantOptions,
    new: Annotated[int, typer.Option("--as", help="Id of the tenant that takes its place.", min=0)],
    to: ActionOptions,
    yes: Yes = False,
    timeout: Annotated[float, typer.Option(help="Give up after this many seconds.", min=0)] = 86_400,
) -> None:
    """Replace a tenant that fell behind for good by another one, with all rows of now.

    For a tenant whose cluster has collected the history that its log would need next. Registers the new tenant, with
    the same retention and targets, waits until its pushers (tistream push --seed-rows) have pushed its schema and all
    rows, and deletes the old tenant with its log. Readers of the old one are refused from then on, and the answer names
    the new tenant, the timestamp to begin at, and what is in neither log. Repeat the command after whatever ended it:
    it continues."""
    from urllib.parse import urlencode

    after = TenantOptions(cluster=of.cluster, tenant=new)
    replace = f"{of.path()}?{urlencode({'replaced_by': new})}"
    with connect(to.url, retry_s=0) as client, _hint(client):
        answer = client.send("DELETE", f"{replace}&dry_run=true")
        if not to.dry_run and not _is_deleted(client, of):
            _confirm(of, answer, yes=yes)
            _prepare(client, of, after, time.monotonic() + timeout)
        if not to.dry_run:
            answer = client.send("DELETE", replace)
    show_outcome(answer, to.output)


def _is_deleted(client: Client, of: TenantOptions) -> bool:
    try:
        return bool(client.get(of.path())["state"] == "DELETING")
    except TenantDeleted:
        return True


def _prepare(client: Client, of: TenantOptions, after: TenantOptions, deadline: float) -> None:
    """Register the tenant that takes another one's place, and wait until readers can begin there."""
    kept, targets = client.get(of.path())["retention_s"], client.get(of.path("targets"))["targets"]
    push = client.tenant(after.cluster, after.tenant).register()["push"]
    if key := push.get("key"):
        print(f"the key of its pushers, shown this once: {key}", file=sys.stderr)
    client.send("PATCH", after.path(), {"retention_s": kept})
    for target in targets:
        client.send("POST", after.path("targets"), {"target": target})
    _wait(client, after, deadline, push, more=" --seed-rows")
    start_ts = client.get(after.path())["start_ts"]
    while not any((s["ts"], s["table_id"]) == (start_ts, 0) for s in client.get(after.path("seeds"))["items"]):
        if time.monotonic() > deadline:
            raise NotActive(f"tenant {after} has no seed of all its rows yet: its pusher is started with --seed-rows")
        time.sleep(_POLL_S)
    print(f"  ✓ all rows as of {start_ts} are there", file=sys.stderr)
    for kind in ("consumers", "changefeeds"):
        for reader in client.get(of.path(kind))["items"]:
            name = reader[f"{kind[:-1]}_id"]
            print(f"  - create {kind[:-1]} {name} for tenant {after} with --start-ts {start_ts}", file=sys.stderr)


def _confirm(of: TenantOptions, answer: dict[str, Any], *, yes: bool) -> None:
    """InvalidInput unless the operator types the name of the tenant that is to be deleted."""
    if yes:
        return
    print(answer["words"], file=sys.stderr)
    typed = typer.prompt(f"Type {of} to delete it", err=True)
    if typed.strip() != f"{of}":
        raise InvalidInput(f"'{typed}' is not {of}: nothing was deleted.")


@commands.command()
def retention(
    of: TenantOptions,
    to: ServiceOptions,
    hours: Annotated[float | None, typer.Argument(help="Hours of the log that are kept; 0 = all of it.")] = None,
    default: Annotated[bool, typer.Option("--default", help="Return to the service's default.")] = False,
) -> None:
    """Show or change how much of a tenant's log is kept.

    Without HOURS and --default: the policy, where the log begins, and what holds it."""
    with connect(to.url) as client:
        if default or hours is not None:
            body = {"retention_s": None if default or hours is None else hours * 3600}
            client.send("PATCH", of.path(), body)
        answer = client.get(of.path("retention"))
    if not to.is_table:
        show_data(answer, to.output)
        return
    print(_retention_line(answer))
    columns: list[Column] = [
        ("holds the log", lambda hold: "yes" if hold["holding"] else "not yet"),
        ("what", lambda hold: hold["by"]),
        ("above", lambda hold: hold["time"]),
        ("since", lambda hold: hold["since_time"]),
        ("released by", lambda hold: hold["release"]),
    ]
    show_rows(answer["holds"], to.output, columns, empty="nothing holds it")
    if answer["holds_total"] > len(answer["holds"]):
        print(f"and {answer['holds_total'] - len(answer['holds']):,} more, above these")


def _retention_line(answer: dict[str, Any]) -> str:
    """Policy and start in a sentence."""
    hours = answer["policy_s"] / 3600
    kept = f"{hours:g} hour{'' if hours == 1 else 's'}" if hours else "all"
    begins = f"It begins at {answer['earliest_time']}" if answer["earliest_time"] else "None of it is deleted"
    wanted = f", by the policy at {answer['policy_time']}" if answer["policy_time"] else ""
    return f"The tenant keeps {kept} of its log. {begins}{wanted}."


_Target = Annotated[
    str, typer.Argument(help="s3://BUCKET/PREFIX, https://HOST/BUCKET, tikv://HOST:PORT or file:///FOLDER.")
]


@commands.command()
def allow(of: TenantOptions, target: _Target, to: ServiceOptions) -> None:
    """Add a target to which a tenant's administrators may let the service write."""
    _show_targets(to, "POST", of.path("targets"), {"target": target})


@commands.command()
def disallow(of: TenantOptions, target: _Target, to: ServiceOptions) -> None:
    """Remove a target to which a tenant's administrators may let the service write.

    Changefeeds that write there stop when their destination is next opened: pause and resume them."""
    from urllib.parse import urlencode

    _show_targets(to, "DELETE", f"{of.path('targets')}?{urlencode({'target': target})}")


@commands.command()
def targets(of: TenantOptions, to: ServiceOptions) -> None:
    """List the targets that are allowed for a tenant."""
    _show_targets(to, "GET", of.path("targets"))


def _show_targets(to: ServiceOptions, method: str, path: str, body: dict[str, str] | None = None) -> None:
    """Send a request, and print the targets that its answer names."""
    with connect(to.url) as client:
        answer = client.send(method, path, body)
    rows = [{"target": target, "of": "tenant"} for target in answer["targets"]]
    rows += [{"target": target, "of": "deployment"} for target in answer["of_deployment"]]
    columns: list[Column] = [("target", lambda row: row["target"]), ("allowed for", lambda row: row["of"])]
    show_rows(rows, to.output, columns, empty="no target") if to.is_table else show_data(answer, to.output)


@commands.command("rotate-key")
def rotate_key(of: TenantOptions, to: ServiceOptions, overlap_hours: OverlapHours = 24) -> None:
    """Create the next key of a tenant's pushers, or their first.

    It is printed once, alone on standard output."""
    with connect(to.url) as client:
        rows = client.get("/v1/keys", cluster_id=str(of.cluster), tenant_id=str(of.tenant))["items"]
        valid = [r for r in rows if r["role"] == "pusher" and r["state"] == "living" and r["replaced_by"] is None]
        if valid:
            made = client.post(f"/v1/keys/{valid[-1]['key_id']}:rotate", {"overlap_s": overlap_hours * 3600})
        else:
            client.get(of.path())
            new = {"name": f"pushers of {of}", "role": "pusher"}
            made = client.post("/v1/keys", {**new, "cluster_id": of.cluster, "tenant_id": of.tenant})
    old = f"; {valid[-1]['key_id']} stays valid for {overlap_hours:g} hours" if valid else ""
    show_new(made, to.output, old)


def _wait(client: Client, of: TenantOptions, deadline: float, push: dict[str, Any], more: str = "") -> None:
    """Show each step when it is done, until the tenant is active. `more`: what else its pushers are started with."""
    done: set[str] = set()
    valid_s = _prove_credentials(client, push, deadline)
    while True:
        answer = client.get(of.path())
        steps = checklist(answer, has_key=bool(push.get("key")), valid_s=valid_s)
        for step, is_done, details in steps:
            if is_done and step not in done:
                done.add(step)
                print(f"  ✓ {step}{details}", file=sys.stderr, flush=True)
        if answer["state"] == "ACTIVE":
            return
        if answer["state"] != "AWAITING_SNAPSHOT":
            raise NotFound(f"tenant {of} is {answer['state']} now", state=answer["state"])
        waits = next(step for step, is_done, _ in steps if not is_done)
        if "waits" not in done:
            done.add("waits")
            print(f"  … {waits}: start the pushers, for example", file=sys.stderr)
            where = f"-c {of.cluster} -t {of.tenant} --url {client.url}"
            print(f"      tistream push --pd HOST:2379 {where}{more}", file=sys.stderr)
        if time.monotonic() > deadline:
            raise NotActive(f"tenant {of} still waits: {waits}")
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


@contextmanager
def _hint(client: Client) -> Iterator[None]:
    """When there is no such tenant, the hint lists those that exist."""
    try:
        yield
    except NotFound as error:
        names = [f"{t['cluster_id']}/{t['tenant_id']}" for t in client.get("/v1/tenants")["items"]]
        more = f", ... ({len(names)} in all)" if len(names) > 5 else ""
        error.hint = f"There are: {', '.join(names[:5])}{more}." if names else error.hint
        raise
