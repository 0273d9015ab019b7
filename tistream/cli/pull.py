"""`tistream pull`: changes on standard output."""

from __future__ import annotations

import shlex
import sys
from typing import Annotated
from urllib.parse import unquote, urlsplit

import typer

from tistream.cli.options import DEFAULT_URL, Cluster, Tenant, Url
from tistream.errors import InvalidInput


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command("pull")(pull)


def pull(
    what: Annotated[str, typer.Argument(help="'database', 'database.table', '*', or a whole .../changes URL.")] = "*",
    url: Url = DEFAULT_URL,
    cluster: Cluster = 1,
    tenant: Tenant = 1,
    since: Annotated[
        str, typer.Option(help="TSO, RFC 3339 time, earliest, latest or a span such as -15m.")
    ] = "earliest",
    until: Annotated[str | None, typer.Option(help="Nothing above this TSO or time.")] = None,
    cursor: Annotated[str | None, typer.Option(help="Resume here; wins over --since.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Wait for more, until Ctrl-C.")] = False,
    format: Annotated[str, typer.Option("--format", help="ndjson, canal-json, open-protocol, ...")] = "ndjson",
    option: Annotated[list[str] | None, typer.Option("--option", "-O", help="NAME=VALUE of the format.")] = None,
) -> None:
    """Pull changes of a tenant, a database or a table, in commit order."""
    from tistream.client import connect

    if what.startswith(("http://", "https://")):
        url, cluster, tenant, database, table = parse_url(what)
    else:
        database, table = parse_names(what)
    options = dict(_option(text) for text in option or ())
    at = cursor
    with connect(url) as client:
        try:
            for page in client.pull(
                cluster, tenant, database=database, table=table, start_ts=since, end_ts=until, cursor=cursor,
                follow=follow, format=format, options=options,
            ):  # fmt: skip
                sys.stdout.buffer.write(page.content)
                sys.stdout.buffer.flush()
                at = page.next_cursor
                if page.quarantined:
                    print(f"tistream: {page.quarantined} rows of this page could not be decoded", file=sys.stderr)
        except KeyboardInterrupt:
            print(f"\nresume with: {_resume(url, cluster, tenant, what, format, at)}", file=sys.stderr)
        except BrokenPipeError:
            sys.stderr.close()  # the reader went away: nothing more to say to it


def parse_names(what: str) -> tuple[str | None, str | None]:
    """'*' -> whole tenant, 'db' -> database, 'db.table' -> table."""
    if what in ("*", ""):
        return None, None
    database, _, table = what.partition(".")
    return database, table or None


def parse_url(text: str) -> tuple[str, int, int, str | None, str | None]:
    """(service, cluster, tenant, database, table) of a .../changes URL."""
    parts = urlsplit(text)
    words = [unquote(w) for w in parts.path.strip("/").split("/")]
    names = dict(zip(words[1::2], words[2::2], strict=False))
    try:
        cluster, tenant = int(names["clusters"]), int(names["tenants"])
    except (KeyError, ValueError) as e:
        raise InvalidInput(f"{text} is not a .../v1/clusters/C/tenants/T/.../changes address.") from e
    return f"{parts.scheme}://{parts.netloc}", cluster, tenant, names.get("databases"), names.get("tables")


def _option(text: str) -> tuple[str, str]:
    name, eq, value = text.partition("=")
    if not eq:
        raise InvalidInput(f"--option {text}: write NAME=VALUE.")
    return name, value


def _resume(url: str, cluster: int, tenant: int, what: str, fmt: str, cursor: str | None) -> str:
    words = ["tistream", "pull", what, "--url", url, "-c", str(cluster), "-t", str(tenant), "--format", fmt, "--follow"]
    return shlex.join(words + (["--cursor", cursor] if cursor else []))
