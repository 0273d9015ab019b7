"""`tistream key create|list|revoke|rotate`: API keys."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tistream.cli.filter_options import Tables
from tistream.cli.options import DEFAULT_URL, Key, Url
from tistream.cli.output import Column, NoColor, Output, OutputOption, show_data, show_rows
from tistream.cli.service import connect
from tistream.errors import InvalidInput

commands = typer.Typer(help="Create, list, rotate and revoke API keys.", no_args_is_help=True)

Role = Annotated[str, typer.Option("--role", "-r", help="viewer, consumer, pusher, tenant-admin, operator or owner.")]
OfCluster = Annotated[int | None, typer.Option("--cluster", "-c", help="Bind it to a tenant of this cluster.")]
OfTenant = Annotated[int | None, typer.Option("--tenant", "-t", help="Bind it to this tenant.")]
KeyId = Annotated[str, typer.Argument(help="The id: the part of the key between its underscores.")]


@commands.command()
def create(
    name: Annotated[str, typer.Argument(help="For people: who or what will hold it.")],
    role: Role,
    cluster: OfCluster = None,
    tenant: OfTenant = None,
    tables: Tables = None,
    hours: Annotated[float, typer.Option(help="Hours until it expires; 0 = never.", min=0)] = 0,
    catalog: Annotated[
        str | None, typer.Option("--catalog", help="Without a service: write to this catalog, when all keys are lost.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option("--data", "-d", help="The same, for the folder of tistream up.", exists=True)
    ] = None,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Create a key, which is printed once, alone on standard output."""
    if data is not None and catalog is None:
        catalog = f"sqlite:///{data.resolve()}/catalog.db"
    if catalog is not None:
        print(_without_service(catalog, name, role, cluster, tenant, tables, hours))
        return
    body: dict[str, Any] = {"name": name, "role": role, "cluster_id": cluster, "tenant_id": tenant}
    body |= {"tables": tables, "expires_in_s": hours * 3600}
    with connect(url) as client:
        show_new(client.post("/v1/keys", body), output)


@commands.command("list")
def list_all(
    cluster: OfCluster = None,
    tenant: OfTenant = None,
    output: OutputOption = Output.TABLE,
    no_color: NoColor = False,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """List keys without their secrets: all that your key may see, or those of a tenant."""
    asked = {"cluster_id": cluster, "tenant_id": tenant}
    with connect(url) as client:
        items = client.get("/v1/keys", **{k: str(v) for k, v in asked.items() if v is not None})["items"]
    columns: list[Column] = [
        ("key", lambda row: row["key_id"]),
        ("state", lambda row: row["state"]),
        ("role", lambda row: row["role"]),
        ("tenant", lambda row: "all" if row["tenant_id"] is None else f"{row['cluster_id']}/{row['tenant_id']}"),
        ("tables", lambda row: "all" if row["tables"] is None else ",".join(row["tables"])),
        ("last used", lambda row: (row["last_used_time"] or "never")[:19]),
        ("ends", lambda row: (row["expires_time"] or "never")[:19]),
        ("name", lambda row: row["name"]),
    ]
    show_rows(items, output, columns, no_color=no_color, empty="no key")


@commands.command()
def revoke(key_id: KeyId, url: Url = DEFAULT_URL, key: Key = None, output: OutputOption = Output.TABLE) -> None:
    """Revoke a key at once; safe to repeat."""
    with connect(url) as client:
        row = client.delete(f"/v1/keys/{_id_of(key_id)}")
    if output is not Output.TABLE:
        show_data(row, output)
        return
    print(f"{row['key_id']} ({row['name']}) is revoked", file=sys.stderr)


@commands.command()
def rotate(
    key_id: KeyId,
    overlap_hours: Annotated[float, typer.Option(help="The old key stays valid for so long.", min=0)] = 24,
    url: Url = DEFAULT_URL,
    key: Key = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Replace a key by a new one, printed once; the old key stays valid for a while."""
    with connect(url) as client:
        show_new(client.post(f"/v1/keys/{_id_of(key_id)}:rotate", {"overlap_s": overlap_hours * 3600}), output)


def show_new(made: dict[str, Any], output: Output, more: str = "") -> None:
    """Print a new key, alone on standard output, or as data with all that is known of it."""
    if output is not Output.TABLE:
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


def _without_service(
    catalog_url: str,
    name: str,
    role: str,
    cluster: int | None,
    tenant: int | None,
    tables: list[str] | None,
    hours: float,
) -> str:
    from reading.key_limit import checked_limit
    from tistream.catalog.database.engine import Catalog
    from tistream.http.auth.core.roles import Role as OneRole
    from tistream.http.auth.issue import issue_key, ttl_ms_of
    from tistream.ids import Tenant

    if role not in list(OneRole):
        raise InvalidInput(f"--role: one of {', '.join(OneRole)}")
    if (cluster is None) != (tenant is None):
        raise InvalidInput("--cluster and --tenant go together")
    of = None if cluster is None or tenant is None else Tenant(cluster, tenant)
    catalog = Catalog(catalog_url)
    try:
        catalog.migrate()
        limit, ttl_ms = checked_limit(tables), ttl_ms_of(hours * 3600)
        return issue_key(catalog, name=name, role=OneRole(role), tenant=of, tables=limit, ttl_ms=ttl_ms).text
    finally:
        catalog.close()
