"""What commands that talk to a service share: the client, paths, parameters, and the result of an action."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import quote

import typer

from tistream.cli.output import Output, show_data

if TYPE_CHECKING:
    from tistream.client import Client

DryRun = Annotated[bool, typer.Option("--dry-run", help="Say what would happen, and do nothing.")]


def connect(url: str, **options: Any) -> Client:
    """`tistream.client.connect`, imported when it is needed."""
    from tistream.client import connect

    return connect(url, **options)


def tenant_path(cluster: int, tenant: int, *names: str) -> str:
    """Path of a tenant's resource; names are quoted."""
    return "/".join([f"/v1/clusters/{cluster}/tenants/{tenant}", *(quote(name, safe="") for name in names)])


def given(**parameters: str | None) -> dict[str, str]:
    """The parameters that are set."""
    return {name: value for name, value in parameters.items() if value}


def act(client: Client, path: str, dry_run: bool, output: Output, **parameters: str | None) -> None:
    """POST an action and print its result."""
    show_outcome(client.post(path, None, **given(**parameters, dry_run="true" if dry_run else None)), output)


def show_outcome(found: dict[str, Any], output: Output) -> None:
    """Print the result of an action: what it did, or would do."""
    if output is Output.TABLE:
        print(f"{'would happen: ' if found['dry_run'] else ''}{found['words']}")
    else:
        show_data(found, output)
