"""`tistream key create|list|owner|revoke|rotate` and `tistream login`: API keys."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tistream.cli.filter_options import Tables
from tistream.cli.options import DEFAULT_URL, Catalog, Config, Key, Url, catalog_of
from tistream.cli.output import Column, OutputForm, show_data
from tistream.cli.service import ServiceOptions, TableOptions, connect
from tistream.errors import InvalidInput

commands = typer.Typer(help="Create, list, rotate and revoke API keys.", no_args_is_help=True)

Role = Annotated[str, typer.Option("--role", "-r", help="viewer, consumer, pusher, tenant-admin, operator or owner.")]
OfCluster = Annotated[int | None, typer.Option("--cluster", "-c", help="Bind it to a tenant of this cluster.")]
OfTenant = Annotated[int | None, typer.Option("--tenant", "-t", help="Bind it to this tenant.")]
OverlapHours = Annotated[float, typer.Option(help="The old key stays valid for so long.", min=0)]
KeyId = Annotated[str, typer.Argument(help="The id: the part of the key between its underscores.")]


@commands.command()
def create(
    name: Annotated[str, typer.Argument(help="For people: who or what will hold it.")],
    role: Role,
    to: ServiceOptions,
    cluster: OfCluster = None,
    tenant: OfTenant = None,
    tables: Tables = None,
    hours: Annotated[float, typer.Option(help="Hours until it expires; 0 = never.", min=0)] = 0,
) -> None:
    """Create a key, which is printed once, alone on standard output."""
    body: dict[str, Any] = {"name": name, "role": role, "cluster_id": cluster, "tenant_id": tenant}
    body |= {"tables": tables, "expires_in_s": hours * 3600}
    with connect(to.url) as client:
        show_new(client.post("/v1/keys", body), to.output)


@commands.command()
def owner(
    name: Annotated[str, typer.Argument(help="For people: who will hold it.")] = "owner",
    data: Annotated[Path | None, typer.Option("--data", "-d", help="The folder of tistream up.", exists=True)] = None,
    catalog: Catalog = None,
    config: Config = None,
) -> None:
    """Create an owner's key without asking a service: the first one, or when all keys are lost.

    It writes to the catalog that --data, --catalog or the settings name, as services do. The key is printed once, alone
    on standard output."""
    from tistream.catalog.rows.audit import Deed
    from tistream.cli.recorded import recorded
    from tistream.http.auth.core.roles import Role as OneRole
    from tistream.http.auth.issue import issue_key

    url = catalog or (None if data is None else f"sqlite:///{data.resolve()}/catalog.db")
    with catalog_of(url, config) as database:
        database.migrate()
        with recorded(database, Deed(operation="tistream key owner")) as command:
            made = issue_key(database, name=name, role=OneRole.OWNER)
            command.note_target(f"key_id={made.row.key_id} role={made.row.role}")
        print(made.text)


@commands.command("list")
def list_all(to: TableOptions, cluster: OfCluster = None, tenant: OfTenant = None) -> None:
    """List keys without their secrets: all that your key may see, or those of a tenant."""
    query = {"cluster_id": cluster, "tenant_id": tenant}
    with connect(to.url) as client:
        items = client.get("/v1/keys", **{k: str(v) for k, v in query.items() if v is not None})["items"]
    columns: list[Column] = [
        ("key", lambda row: row["key_id"]),
        *("state", "role"),
        ("tenant", lambda row: "all" if row["tenant_id"] is None else f"{row['cluster_id']}/{row['tenant_id']}"),
        ("tables", lambda row: "all" if row["tables"] is None else ",".join(row["tables"])),
        ("last used", lambda row: (row["last_used_time"] or "never")[:19]),
        ("ends", lambda row: (row["expires_time"] or "never")[:19]),
        "name",
    ]
    to.show_rows(items, columns, empty="no key")


@commands.command()
def revoke(key_id: KeyId, to: ServiceOptions) -> None:
    """Revoke a key at once; safe to repeat."""
    with connect(to.url) as client:
        row = client.delete(f"/v1/keys/{_id_of(key_id)}")
    if not to.is_table:
        show_data(row, to.output)
        return
    print(f"{row['key_id']} ({row['name']}) is revoked", file=sys.stderr)


@commands.command()
def rotate(key_id: KeyId, to: ServiceOptions, overlap_hours: OverlapHours = 24) -> None:
    """Replace a key by a new one, printed once; the old key stays valid for a while."""
    with connect(to.url) as client:
        show_new(client.post(f"/v1/keys/{_id_of(key_id)}:rotate", {"overlap_s": overlap_hours * 3600}), to.output)


def show_new(made: dict[str, Any], output: OutputForm, more: str = "") -> None:
    """Print a new key, alone on standard output, or as data with all that is known of it."""
    if output is not OutputForm.TABLE:
        show_data(made, output)
        return
    of = "" if made["tenant_id"] is None else f" of tenant {made['cluster_id']}/{made['tenant_id']}"
    of += "" if made["tables"] is None else f", limited to the tables {','.join(made['tables'])}"
    print(f"{made['role']} key {made['key_id']}{of} ({made['name']}), shown this once{more}:", file=sys.stderr)
    print(made["key"])


def _id_of(text: str) -> str:
    """The id; when a whole key is given, its secret stays out of addresses."""
    key_id = text.split("_")[1] if text.startswith("tsk_") and text.count("_") == 2 else text
    if not key_id.isalnum():
        raise InvalidInput("A key's id is the part between its underscores.")
    return key_id


def login(
    url: Url = DEFAULT_URL,
    key: Key = None,
    console: Annotated[
        bool, typer.Option("--console", help="Print a link that signs in to the console, once, within ten minutes.")
    ] = False,
    forget: Annotated[bool, typer.Option("--forget", help="Forget the key of this address.")] = False,
) -> None:
    """Remember the address of a service and a key for it.

    Without --key the key is read from a hidden prompt. Other commands then use both, unless they are given --url,
    --key, TISTREAM_URL or TISTREAM_KEY.
    """
    from tistream.runtime import credentials

    if console and forget:
        raise InvalidInput("give --console or --forget, not both")
    if forget:
        was = credentials.forget(url)
        print(f"forgot the key for {url}" if was else f"there is no key for {url}", file=sys.stderr)
        return
    if console:
        with connect(url, retry_s=0) as client:
            print(client.post("/v1/console-codes")["url"])
        return
    text = key or _ask(url)
    with connect(url, key=text, retry_s=0) as client:
        who = client.get("/v1/whoami")
    file = credentials.keep(url, text)
    of = f" of tenant {who['cluster_id']}/{who['tenant_id']}" if who["tenant_id"] is not None else ""
    print(f"logged in to {url} as {who['role']}{of} ({who['name']}); kept in {file}", file=sys.stderr)


def _ask(url: str) -> str:
    if sys.stdin.isatty():
        return str(typer.prompt(f"API key for {url}", hide_input=True, err=True)).strip()
    return sys.stdin.readline().strip()
