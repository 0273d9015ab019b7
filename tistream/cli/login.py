"""`tistream login`: remembers a key for a service, or prints a link that opens its console."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tistream.cli.options import DEFAULT_URL, Key, Url
from tistream.cli.service import connect
from tistream.errors import InvalidInput


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
