"""`tistream changefeed create|list|show|checkpoint|pause|resume|remove`: registered consumers."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from tistream.cli.options import DEFAULT_URL, Cluster, Key, Tenant, Url

commands = typer.Typer(help="Registered consumers: the log above their checkpoints is kept.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(help="Name of the changefeed.", metavar="ID")]


@commands.command()
def create(
    changefeed_id: Id,
    cluster: Cluster,
    tenant: Tenant,
    start_ts: Annotated[str, typer.Option(help="A TSO, earliest or latest.")] = "latest",
    target_ts: Annotated[int, typer.Option(min=0, help="Finish here; 0 = never.")] = 0,
    tables: Annotated[str, typer.Option(help="Which tables it reads, for people.")] = "",
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Register a consumer. Nothing above its checkpoint is given up until it is removed or finished."""
    body = {"changefeed_id": changefeed_id, "start_ts": start_ts, "target_ts": str(target_ts), "tables": tables}
    _print(_send(url, "POST", _path(cluster, tenant), body))


@commands.command("list")
def list_all(cluster: Cluster, tenant: Tenant, url: Url = DEFAULT_URL) -> None:
    """All consumers of a tenant with state and checkpoint."""
    for row in _send(url, "GET", _path(cluster, tenant))["items"]:
        print(f"{row['changefeed_id']:<24} {row['state']:<9} {row['checkpoint_ts']}  {row['checkpoint_time']}")


@commands.command()
def show(changefeed_id: Id, cluster: Cluster, tenant: Tenant, url: Url = DEFAULT_URL) -> None:
    """One consumer."""
    _print(_send(url, "GET", _path(cluster, tenant, changefeed_id)))


@commands.command()
def checkpoint(
    changefeed_id: Id,
    ts: Annotated[int, typer.Argument(min=0, help="The consumer has everything at or below this TSO.")],
    cluster: Cluster,
    tenant: Tenant,
    url: Url = DEFAULT_URL,
    key: Key = None,
) -> None:
    """Move a consumer's checkpoint. It never falls."""
    _print(_send(url, "PATCH", _path(cluster, tenant, changefeed_id), {"checkpoint_ts": str(ts)}))


@commands.command()
def pause(changefeed_id: Id, cluster: Cluster, tenant: Tenant, url: Url = DEFAULT_URL) -> None:
    """Say that a consumer stands still. Its log is kept all the same."""
    _print(_send(url, "POST", _path(cluster, tenant, changefeed_id) + ":pause"))


@commands.command()
def resume(changefeed_id: Id, cluster: Cluster, tenant: Tenant, url: Url = DEFAULT_URL) -> None:
    """Say that a consumer goes on."""
    _print(_send(url, "POST", _path(cluster, tenant, changefeed_id) + ":resume"))


@commands.command()
def remove(changefeed_id: Id, cluster: Cluster, tenant: Tenant, url: Url = DEFAULT_URL) -> None:
    """Forget a consumer: it holds nothing any more."""
    _send(url, "DELETE", _path(cluster, tenant, changefeed_id))


def _path(cluster: int, tenant: int, changefeed_id: str | None = None) -> str:
    from urllib.parse import quote

    base = f"/v1/clusters/{cluster}/tenants/{tenant}/changefeeds"
    return base if changefeed_id is None else f"{base}/{quote(changefeed_id, safe='')}"


def _send(url: str, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
    from tistream.client import connect

    with connect(url) as client:
        return client.send(method, path, body)


def _print(answer: Any) -> None:
    print(json.dumps(answer, indent=2))
