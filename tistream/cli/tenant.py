"""`tistream tenant register|list|show|pause|resume`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tistream.cli.options import DEFAULT_URL, Cluster, Tenant, Url
from tistream.cli.output import NoColor, Output, OutputOption, lag, show_data, show_rows
from tistream.errors import NotFound

if TYPE_CHECKING:
    from tistream.client import Client

commands = typer.Typer(help="Register, look at, pause and resume tenants.", no_args_is_help=True)

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and do nothing.")]


def add_to(app: typer.Typer) -> None:
    """Register the command group."""
    app.add_typer(commands, name="tenant")


@commands.command()
def register(cluster: Cluster, tenant: Tenant, url: Url = DEFAULT_URL) -> None:
    """Register a tenant. It then awaits its first schema snapshot."""
    from tistream.client import connect

    with connect(url) as client:
        print(json.dumps(client.register_tenant(cluster, tenant), indent=2))


@commands.command("list")
def list_all(url: Url = DEFAULT_URL, output: OutputOption = Output.TABLE, no_color: NoColor = False) -> None:
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
def show(cluster: Cluster, tenant: Tenant, url: Url = DEFAULT_URL, output: OutputOption = Output.JSON) -> None:
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
    output: OutputOption = Output.TABLE,
) -> None:
    """Let a paused tenant go on where it was."""
    _do(url, cluster, tenant, "resume", dry_run, output)


def _do(url: str, cluster: int, tenant: int, verb: str, dry_run: bool, output: Output, **asked: str) -> None:
    from tistream.client import connect

    asked |= {"dry_run": "true"} if dry_run else {}
    with connect(url, retry_s=0) as client:
        found = _asked(client, cluster, tenant, lambda base: client.post(f"{base}:{verb}", **asked))
    if output is Output.TABLE:
        print(f"{'would happen: ' if dry_run else ''}{found['words']}")
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
