"""`tistream tenant register|list|show|retention`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tistream.cli.options import DEFAULT_URL, Cluster, Tenant, Url

commands = typer.Typer(help="Register and look at tenants.", no_args_is_help=True)


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
def list_all(url: Url = DEFAULT_URL) -> None:
    """All tenants with state and lag."""
    from tistream.client import connect

    with connect(url) as client:
        for row in client.get("/v1/tenants")["items"]:
            lag = "-" if row["lag_ms"] is None else f"{row['lag_ms'] / 1000:.1f} s"
            print(
                f"{row['cluster_id']}/{row['tenant_id']}  {row['state']:<18} resolved {row['resolved_time']}  lag {lag}"
            )


@commands.command()
def show(cluster: Cluster, tenant: Tenant, url: Url = DEFAULT_URL) -> None:
    """One tenant with its tasks and stores."""
    from tistream.client import connect

    with connect(url) as client:
        print(json.dumps(client.get(f"/v1/clusters/{cluster}/tenants/{tenant}"), indent=2))


@commands.command()
def retention(
    cluster: Cluster,
    tenant: Tenant,
    hours: Annotated[float | None, typer.Argument(help="Hours of the log that are kept; 0 = all of it.")] = None,
    default: Annotated[
        bool, typer.Option("--default", help="Go back to what the service keeps of any tenant.")
    ] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """How much of a tenant's log is kept, and where it begins; with HOURS or --default, change that."""
    from tistream.client import connect

    with connect(url) as client:
        path = f"/v1/clusters/{cluster}/tenants/{tenant}"
        if default or hours is not None:
            client.send("PATCH", path, {"retention_hours": None if default else hours})
        print(json.dumps(client.get(f"{path}/retention"), indent=2))
