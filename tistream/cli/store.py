"""`tistream store quarantine list|accept|reject`: stores that sent commits below their own promise."""

from __future__ import annotations

from typing import Annotated

import typer

from tistream.cli.options import DEFAULT_URL, Cluster, Key, Tenant, Url
from tistream.cli.output import NoColor, Output, OutputOption, show_rows
from tistream.cli.service import DryRun, act, connect, tenant_path

commands = typer.Typer(help="Look at the stores of a tenant.", no_args_is_help=True)
quarantine = typer.Typer(help="Decide about stores that contradict their own promise.", no_args_is_help=True)
commands.add_typer(quarantine, name="quarantine")

Store = Annotated[int, typer.Argument(help="Id of the store.", metavar="STORE")]


@quarantine.command("list")
def list_all(
    cluster: Cluster,
    tenant: Tenant,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
    no_color: NoColor = False,
) -> None:
    """List quarantined stores, open and decided; --json shows the rows in question."""
    with connect(url, retry_s=0) as client:
        found = client.get(tenant_path(cluster, tenant, "quarantines"))
    columns = [
        ("store", lambda q: q["store_id"]),
        ("state", lambda q: q["state"]),
        ("rows", lambda q: q["rows"]),
        ("good up to", lambda q: q["good_time"]),
        ("since", lambda q: q["since_time"][:19].replace("T", " ")),
        ("first key", lambda q: q["sample"][0]["key"][:40] if q["sample"] else ""),
        ("object", lambda q: q["object"]),
        ("decided by", lambda q: q["decided_by"] or "–"),
    ]
    show_rows(found, output, columns, no_color=no_color, empty="no store is quarantined")


@quarantine.command()
def accept(
    store: Store,
    cluster: Cluster,
    tenant: Tenant,
    dry_run: DryRun = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Merge the store's rows into the log.

    Readers that have passed their place get TS-1013 and read again."""
    with connect(url, retry_s=0) as client:
        act(client, tenant_path(cluster, tenant, "stores", f"{store}") + ":accept", dry_run, output)


@quarantine.command()
def reject(
    store: Store,
    cluster: Cluster,
    tenant: Tenant,
    dry_run: DryRun = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Give up the store's incarnation from the file on; its pusher begins again, and pulls go on."""
    with connect(url, retry_s=0) as client:
        act(client, tenant_path(cluster, tenant, "stores", f"{store}") + ":reject", dry_run, output)
