"""`tistream demo`: the whole service over a folder that is thrown away, fed by a recording of a real TiDB.

    0 s  version, service with its URLs        1 s  tenant registered, recording pushed as three TiKV stores would
    then the first decoded row in colour, three lines to copy, a counter; Ctrl-C ends with a summary

The recording, the pushers, the dispatcher, the sorters, the catalog and the HTTP API are the real ones. The pushers run
in threads of this process and talk to the service over its HTTP port, as they would from elsewhere.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

import orjson
from rich.console import Console
from rich.text import Text

from tistream import __version__
from tistream import ts as tso
from tistream.client import Client
from tistream.ids import Tenant

RECORDING = Path(__file__).parent / "recording"
TENANT = Tenant(1, 1)
_SHOWN_ROWS = 12
_FIRST_PAGES_ROWS = 10  # small pages until a row is shown: it needs the decoders of few column types only
_PAUSE_S = 0.3
_COLOURS = {"insert": "green", "update": "yellow", "delete": "red", "ddl": "cyan"}
_SIGNS = {"insert": "+", "update": "~", "delete": "-", "ddl": "≡"}


Push = Callable[[str, threading.Event], object]


class Service(Protocol):
    """What the composition root hands in: a started service."""

    @property
    def url(self) -> str: ...

    def close(self) -> None: ...


@dataclass
class Seen:
    """What came out so far."""

    kinds: Counter[str] = field(default_factory=Counter)
    tables: Counter[str] = field(default_factory=Counter)
    last_commit_ts: int = 0
    resolved_ts: int = 0
    order_violations: int = 0


def run(
    start_service: Callable[[Path], Service],
    push: Push,
    *,
    wait_for_end: Callable[[float], bool],
    out: Console,
) -> Seen:
    """Run until `wait_for_end(seconds)` answers True.

    `push(url, stop)` pushes the recording until `stop` is set. It runs in a thread of its own and has ended before the
    folder, into which it writes, is taken away.
    """
    with tempfile.TemporaryDirectory(prefix="tistream-demo-") as folder:
        said = f"[bold]TiStream {__version__}[/]  demo: everything in {folder}, thrown away at the end"
        out.print(said, highlight=False, soft_wrap=True)
        service = start_service(Path(folder))
        try:
            return _show(service.url, push, wait_for_end, out)
        finally:
            service.close()


def _show(url: str, push: Push, wait_for_end: Callable[[float], bool], out: Console) -> Seen:
    api = f"{url}/v1/clusters/1/tenants/1/changes?start_ts=earliest&format=ndjson"
    out.print(f"  [green]✓[/] console  {url}/", soft_wrap=True)
    out.print(f"  [green]✓[/] API      {api}", soft_wrap=True)
    seen = Seen()
    with Client(url) as client:
        client.register_tenant(TENANT.cluster_id, TENANT.tenant_id)
        out.print(
            "  [green]✓[/] tenant 1/1 registered; three pushers play the recorded change stream of a real TiDB",
            highlight=False,
            soft_wrap=True,
        )
        out.print("    (the first start compiles the row decoders: that takes some seconds once)\n", style="dim")
        with Pushing(push, url) as pushing:
            _follow(client, pushing, seen, wait_for_end, out)
    if out.is_terminal:
        out.print()
    _summary(seen, out)
    return seen


def _follow(client: Client, pushing: Pushing, seen: Seen, wait_for_end: Callable[[float], bool], out: Console) -> None:
    cursor: str | None = None
    told = False
    while not wait_for_end(_PAUSE_S):
        limit = None if told else _FIRST_PAGES_ROWS
        page = client.page(TENANT.cluster_id, TENANT.tenant_id, cursor=cursor, wait_s=0.5, limit=limit)
        cursor = page.next_cursor
        _take(page.lines(), seen, out)
        if not told and sum(seen.kinds.values()) >= _SHOWN_ROWS:
            told = True
            _lines_to_copy(client.url, out)
        if pushing.error is not None:
            raise pushing.error
        if out.is_terminal and told:
            out.print(_counter(seen, pushing.is_alive()), end="\r", highlight=False, no_wrap=True, crop=True)


class Pushing:
    """The pushers, in a thread that has ended when the `with` block is left."""

    def __init__(self, push: Push, url: str) -> None:
        self.error: Exception | None = None  #: what ended the push before its time
        self._push, self._url = push, url
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="push", daemon=True)
        self.is_alive = self._thread.is_alive

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        try:
            self._push(self._url, self._stop)
        except Exception as e:  # noqa: BLE001 - whatever it is, the thread that shows things raises it
            self.error = e


def _take(lines: list[bytes], seen: Seen, out: Console) -> None:
    for line in lines:
        event = orjson.loads(line)
        kind = event["type"]
        if kind == "resolved":
            seen.resolved_ts = int(event["resolved_ts"])
            continue
        at = int(event["commit_ts"])
        seen.order_violations += at < seen.last_commit_ts
        seen.last_commit_ts = at
        if sum(seen.kinds.values()) < _SHOWN_ROWS:
            out.print(_row(event), no_wrap=True, overflow="ellipsis", crop=True)
        seen.kinds[kind] += 1
        seen.tables[f"{event['database']}.{event['table']}"] += 1


def _row(event: dict[str, object]) -> Text:
    kind = str(event["type"])
    text = Text(f" {_SIGNS.get(kind, '?')} ", style=f"bold {_COLOURS.get(kind, 'white')}")
    text.append(f"{tso.to_text(int(str(event['commit_ts'])))[11:]}  ", style="dim")
    text.append(f"{event['database']}.{event['table']}  ", style="bold")
    shown = event.get("query") or orjson.dumps(event.get("columns") or event.get("old")).decode()
    text.append(" ".join(str(shown).split())[:110], style=_COLOURS.get(kind, "white"))
    return text


def _lines_to_copy(url: str, out: Console) -> None:
    out.print("\n[bold]Try it:[/]", highlight=False)
    tistream, python = _program("tistream"), _program("python")
    for line in (
        f"curl -s '{url}/v1/clusters/1/tenants/1/changes?start_ts=earliest&format=canal-json' | head -3",
        f"{tistream} pull shop --url {url} --follow",
        f"{python} -c \"import tistream.client as c; print(c.connect('{url}').page(1, 1, format='arrow').arrow())\"",
    ):
        out.print(f"  {line}", style="cyan", highlight=False, soft_wrap=True)
    out.print()


def _program(name: str) -> str:
    """How this installation's program is called from here: by its name where the PATH finds it, else by its path."""
    path = Path(sys.executable).with_name(name)
    if shutil.which(name) == str(path) or not path.exists():
        return name
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


def _counter(seen: Seen, pushing: bool) -> str:
    state = "pushing" if pushing else "all pushed; Ctrl-C ends"
    rows = sum(seen.kinds.values())
    return f"  {rows:,} changes of {len(seen.tables)} tables, in commit order up to {seen.resolved_ts} ({state})   "


def _summary(seen: Seen, out: Console) -> None:
    out.print("\n[bold]Summary[/]")
    counts = ", ".join(f"{n:,} {kind}s" for kind, n in seen.kinds.most_common())
    out.print(f"  {counts or 'nothing yet'} in {len(seen.tables)} tables", highlight=False)
    if seen.resolved_ts:
        out.print(f"  complete up to {seen.resolved_ts} ({tso.to_text(seen.resolved_ts)})", highlight=False)
    out.print(f"  out of order: {seen.order_violations}", highlight=False)
