"""`tistream audit-log`: who changed what, from where, when, and with what result."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tistream.cli.operate import FOLLOW_S, PAGE, OneTenantOptions, pages
from tistream.cli.output import OutputForm, show_data
from tistream.cli.service import TableOptions, connect, given
from tistream.cli.terminal import clean

if TYPE_CHECKING:
    from tistream.client import Client

_PATH = "/v1/audit-log"
_SHOWN = 100  #: entries of a table, unless said otherwise


class Result(StrEnum):
    """How an operation ended."""

    UNKNOWN = "unknown"
    DONE = "done"
    REFUSED = "refused"
    FAILED = "failed"


_COLUMNS: list[tuple[str, Callable[[dict[str, Any]], Any]]] = [
    ("time", lambda e: e["time"][:19].replace("T", " ")),
    ("principal", lambda e: e["principal"]),
    ("address", lambda e: e["address"]),
    ("operation", lambda e: e["operation"]),
    ("tenant", lambda e: None if e["tenant_id"] is None else f"{e['cluster_id']}/{e['tenant_id']}"),
    ("target", lambda e: e["target"]),
    ("result", lambda e: " ".join(str(e[name]) for name in ("result", "status", "code") if e[name])),
    ("times", lambda e: e["times"] if e["times"] > 1 else None),
    ("request", lambda e: e["request_id"]),
]


def audit_log(
    to: TableOptions,
    of: OneTenantOptions,
    since: Annotated[str | None, typer.Option(help="Begun at or after: an RFC 3339 time, a TSO or -15m.")] = None,
    until: Annotated[str | None, typer.Option(help="Begun before this time.")] = None,
    principal: Annotated[str | None, typer.Option(help="Name or id of a key, or the user of a command.")] = None,
    operation: Annotated[str | None, typer.Option(help="Only this one, as pause_tenant.")] = None,
    result: Annotated[Result | None, typer.Option(help="Only what ended so.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Continue with new entries; Ctrl-C ends it.")] = False,
    limit: Annotated[int | None, typer.Option("--limit", "-n", min=1, help="Most rows to show.")] = None,
) -> None:
    """List who changed what, from where, when, and with what result; the newest last.

    A table has the newest 100 unless --limit says otherwise; data has all, the oldest first, as they come."""
    query = of.query() | given(
        since_time=since, until_time=until, principal=principal, operation=operation, result=result
    )
    most = _SHOWN if limit is None and to.is_table else limit
    with connect(to.url, retry_s=30 if follow else 0) as client:
        try:
            _show(to, _wanted(client, query, most, follow), follow)
        except KeyboardInterrupt:
            if not follow:
                raise


def _wanted(client: Client, query: dict[str, str], most: int | None, follow: bool) -> Iterator[dict[str, Any]]:
    """The newest entries in order, or all of them page by page; a follower gets new ones for ever."""
    newest = "0"
    if most is not None:
        newest = client.get(_PATH, limit="1")["newest"]
        for entry in list(pages(client, _PATH, most, query))[::-1]:
            newest = max(newest, entry["entry_no"], key=int)
            yield entry
    while most is None or follow:
        page = client.get(_PATH, after=newest, limit=str(PAGE), **query)
        newest = page["newest"]
        yield from page["items"]
        if len(page["items"]) < PAGE:
            if not follow:
                return
            time.sleep(FOLLOW_S)


def _line(entry: dict[str, Any]) -> str:
    """An entry in one line."""
    words = [str(get(entry)) for _, get in _COLUMNS if get(entry) is not None]
    return "  ".join(words)


def _show(to: TableOptions, entries: Iterable[dict[str, Any]], follow: bool) -> None:
    """Print entries as they come; a table that is not followed has them all."""
    if to.is_table and not follow:
        to.show_rows(list(entries), _COLUMNS, empty="no entry")
        return
    if to.is_table:
        for entry in entries:
            print(clean(_line(entry)), flush=True)
        return
    if follow or to.output is not OutputForm.JSON:
        for entry in entries:
            show_data([entry], OutputForm.NDJSON if follow else to.output)
        return
    begin = "[\n"
    for entry in entries:
        print(f"{begin}{json.dumps(entry)}", end="", flush=True)
        begin = ",\n"
    print("[]" if begin == "[\n" else "\n]")
