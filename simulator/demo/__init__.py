"""`tistream demo`: the whole service over a temporary folder, fed by a recording of a real TiDB.

    0 s  version, a tick for each part       1 s  tenant registered, recording pushed as three TiKV stores would
    a box with addresses, the first decoded row in colour, three lines to copy
    then a generated load of a second tenant, whose reader is checked; about 45 s in, a sorter is killed
    the last act: the log is compacted, and read again
    a summary ends it, or Ctrl-C before; with `stay` a sample shop begins to write as a third tenant, until Ctrl-C

Each part says when it begins what it does and how long it usually takes.

The recording, the pushers, the dispatcher, the sorters, the catalog and the HTTP API are the real ones. The pushers run
in threads of this process and use the service's HTTP port. Until the first rows are shown only the recording runs.
"""

from __future__ import annotations

import shlex
import shutil
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

import orjson
from rich.console import Console
from rich.text import Text

from simulator.capture import Capture
from simulator.sample import kept
from simulator.sample.running import RunningSample
from tistream import __version__
from tistream import ts as tso
from tistream.client import Client
from tistream.clock import SystemClock
from tistream.ids import Tenant

if TYPE_CHECKING:
    from simulator.demo.compaction import LastAct, Outcome
    from simulator.demo.drill import Drill
    from simulator.demo.load import Load, Verdict
    from tistream.catalog.rows.tasks import TaskRow

RECORDING = Path(__file__).parents[1] / "recording"
TENANT = Tenant(1, 1)
SAMPLE_TENANT = Tenant(1, 3)
KILL_AFTER_S = 45.0
_SHOWN_ROWS = 12
_FIRST_PAGES_ROWS = 10  # small pages until a row is shown: it needs the decoders of few column types only
_PAUSE_S = 0.3
_READY_S = 60.0
_CHECKED_BEFORE_KILL = 50
_DRILL_S = 120.0  # from the kill; then the last act begins in any case
_LAST_ACT_SHARE = 0.7  # of a limited demo, after which the last act begins in any case
_FETCH_SHARE = 0.1  # of a limited demo: so long the last act waits for what is being fetched
_FETCH_S = 300.0  # the same without a limit
_COLOURS = {"insert": "green", "update": "yellow", "delete": "red", "ddl": "cyan"}
_SIGNS = {"insert": "+", "update": "~", "delete": "-", "ddl": "≡"}


Push = Callable[[str, threading.Event], object]


class Part(Protocol):
    """A part of the service."""

    name: str

    def wait_until_ready(self, timeout_s: float) -> bool: ...


class Service(Protocol):
    """A started service, from the composition root."""

    @property
    def url(self) -> str: ...

    @property
    def parts(self) -> Sequence[Part]: ...

    @property
    def catalog_url(self) -> str: ...

    @property
    def store_url(self) -> str: ...

    def tasks(self) -> Sequence[TaskRow]:
        """All tasks, as the catalog has them."""
        ...

    def kill(self, name: str) -> None:
        """Stop a sorter without any clean-up."""
        ...

    def close(self) -> None: ...


class Time:
    """How long the demo runs: until `ended` is set, or for `limit_s` seconds; None: no limit."""

    def __init__(self, ended: threading.Event, limit_s: float | None) -> None:
        self.limit_s, self._ended, self._clock = limit_s, ended, SystemClock()
        self._began_s = self._clock.monotonic()

    def is_over(self, pause_s: float) -> bool:
        """Wait for `pause_s`; whether the demo is to end."""
        return self._ended.wait(pause_s) or (self.limit_s is not None and self.seconds() > self.limit_s)

    def is_stopped(self) -> bool:
        return self._ended.is_set()

    def seconds(self) -> float:
        """Since it began."""
        return self._clock.monotonic() - self._began_s


@dataclass
class Seen:
    """The output so far."""

    kinds: Counter[str] = field(default_factory=Counter)
    tables: Counter[str] = field(default_factory=Counter)
    last_commit_ts: int = 0
    resolved_ts: int = 0
    order_violations: int = 0
    verdict: Verdict | None = None
    compaction: Outcome | None = None

    @property
    def held(self) -> bool:
        """Whether the checker has no findings, and compaction changed nothing that is read."""
        is_same = self.compaction is None or self.compaction.equal
        return is_same and not self.order_violations and (self.verdict is None or self.verdict.held)


def run(
    start_service: Callable[[Path], Service],
    push: Push,
    *,
    time: Time,
    out: Console,
    kill_after_s: float = KILL_AFTER_S,
    with_spark: bool = True,
    stay: bool = False,
) -> Seen:
    """Run until everything was played, or the time is over. `push(url, stop)` pushes the recording until `stop` is set,
    in its own thread; it ends before the folder into which it writes is removed. `with_spark`: the last act uses Spark
    if it can be had. `stay`: continue until the time is over."""
    with tempfile.TemporaryDirectory(prefix="tistream-demo-") as folder:
        said = f"[bold]TiStream {__version__}[/]  demo: everything in {folder}, thrown away at the end"
        out.print(said, highlight=False, soft_wrap=True)
        out.print("  ▸ service: everything in this process, usually 3 s", highlight=False)
        service = start_service(Path(folder))
        scratch = Path(folder) / "spark" if with_spark else None
        try:
            shop = Path(folder) / kept.NAME if stay else None
            return _Demo(service, push, time, out, kill_after_s, scratch, shop).play()
        finally:
            service.close()


class _Demo:
    """One run."""

    def __init__(
        self,
        service: Service,
        push: Push,
        time: Time,
        out: Console,
        kill_after_s: float,
        scratch: Path | None,
        shop: Path | None,
    ) -> None:
        """`scratch`: a folder for Spark; None: no Spark. `shop`: the sample's file, if it stays; else None."""
        self._service, self._push, self._time, self._out, self._shop = service, push, time, out, shop
        self._sample: RunningSample | None = None
        self._kill_after_s, self._scratch = kill_after_s, scratch
        self._recording_ends = Capture(RECORDING).meta.last_resolved_ts
        self._seen = Seen()
        self._load: Load | None = None
        self._drill: Drill | None = None
        self._last_act: LastAct | None = None
        self._lags: list[float] = []

    def play(self) -> Seen:
        """Show everything; returns what was seen."""
        out, seen = self._out, self._seen
        self._tick("catalog and bucket in the folder; HTTP API")
        with Client(self._service.url) as client:
            client.tenant(TENANT.cluster_id, TENANT.tenant_id).register()
            with ExitStack() as stack:
                pushing = stack.enter_context(Pushing(self._push, self._service.url))
                self._boot()
                self._follow(client, pushing, stack)
                if self._last_act is not None:
                    if not self._time.is_stopped():
                        self._last_act.finish(self._time.seconds())
                    self._last_act.stop()
                    seen.compaction = self._last_act.outcome
                if self._load is not None:
                    seen.verdict = self._load.verdict()
        if out.is_terminal:
            out.print()
        self._summary()
        return seen

    def _boot(self) -> None:
        """A tick for each part that is ready, while the recording is being pushed."""
        from simulator.demo.boxes import addresses

        for part in self._service.parts:
            if part.wait_until_ready(_READY_S):
                self._tick(part.name)
        self._tick("tenant 1/1 registered")
        end = "Ctrl-C" if self._shop is not None else "by itself after about 90 s (--stay: not), or Ctrl-C"
        self._out.print(addresses(self._service.url, end), highlight=False)
        self._say("recording: three pushers play the change stream of a real TiDB; first rows usually after 4 s")

    def _tick(self, what: str) -> None:
        self._out.print(f"  [green]✓[/] {what}", highlight=False, soft_wrap=True)

    def _follow(self, client: Client, pushing: Pushing, stack: ExitStack) -> None:
        out, seen = self._out, self._seen
        cursor: str | None = None
        is_announced = False
        while not self._time.is_over(_PAUSE_S) and not (self._is_played() and self._shop is None):
            limit = None if is_announced else _FIRST_PAGES_ROWS
            page = client.tenant(TENANT.cluster_id, TENANT.tenant_id).page(cursor=cursor, wait_s=0.5, limit=limit)
            cursor = page.next_cursor
            _take(page.lines(), seen, out)
            if not is_announced and sum(seen.kinds.values()) >= _SHOWN_ROWS:
                is_announced = True
                _lines_to_copy(client.url, out)
                self._begin_load(stack)
            if pushing.error is not None:
                raise pushing.error
            self._look()
            self._keep_writing(client, stack)
            if out.is_terminal and is_announced:
                out.print(self._line(pushing.is_alive()), end="\r", highlight=False, no_wrap=True, crop=True)

    def _is_played(self) -> bool:
        """Whether nothing is left to be shown: neither of the recording nor of the acts."""
        is_read = self._seen.resolved_ts >= self._recording_ends
        return is_read and self._last_act is not None and self._last_act.is_over

    def _keep_writing(self, client: Client, stack: ExitStack) -> None:
        """Open the shop once everything was played, if the demo stays; raise what ended it."""
        if self._sample is not None and self._sample.error is not None:
            raise self._sample.error
        if self._shop is None or self._sample is not None or not self._is_played():
            return
        tenant = SAMPLE_TENANT
        client.tenant(tenant.cluster_id, tenant.tenant_id).register()
        self._sample = RunningSample(client.url, tenant, self._shop)
        stack.callback(self._sample.stop)
        self._say(f"tenant {tenant}: a sample shop writes until Ctrl-C")
        line = f"{_program('tistream')} pull shop.orders -t {tenant.tenant_id} --url {client.url} --follow"
        self._out.print(f"  {line}", style="cyan", highlight=False, soft_wrap=True)

    def _begin_load(self, stack: ExitStack) -> None:
        from simulator.demo import load
        from simulator.demo.compaction import LastAct, Where
        from simulator.demo.drill import Drill
        from simulator.demo.fetching import Fetching

        service = self._service
        self._load = stack.enter_context(load.Load(service.url))
        self._drill = Drill(service, self._say)
        self._say("tenant 1/2: a modelled cluster writes, and a checker compares the rows read with those committed")
        kill_s = max(0.0, self._kill_after_s - self._time.seconds())
        self._say(f"in about {kill_s:.0f} s a sorter is killed; others usually take over within 15 s")
        where = Where(service.url, service.catalog_url, service.store_url, self._scratch)
        fetching = None if self._scratch is None else Fetching()
        self._last_act = LastAct(where, [TENANT, load.TENANT], self._say, fetching)
        stack.callback(self._last_act.stop)
        self._last_act.fetch()

    def _look(self) -> None:
        """The load, the drill and the last act."""
        load, drill, act, now_s = self._load, self._drill, self._last_act, self._time.seconds()
        if load is None or drill is None or act is None:
            return
        load.look()
        lag_s, before = load.lag_s(), drill.phase
        if lag_s is not None:
            self._lags.append(lag_s)
            del self._lags[:-100]
        drill.step(now_s, lag_s, now_s >= self._kill_after_s and len(load.judge.got) >= _CHECKED_BEFORE_KILL)
        if drill.phase is not before and drill.recovered_s is not None:
            self._say(f"the checker: {load.verdict()}")
        limit_s = self._time.limit_s
        latest_s = self._kill_after_s + _DRILL_S if limit_s is None else _LAST_ACT_SHARE * limit_s
        due = drill.is_over or now_s >= latest_s
        act.step(now_s, due=due, wait_s=_FETCH_S if limit_s is None else _FETCH_SHARE * limit_s)

    def _say(self, words: str) -> None:
        """A separate line above the one that is updated."""
        stamp = f"{self._time.seconds():5.1f} s"
        line = Text.assemble(("  ▸ ", "bold cyan"), (f"{stamp}  ", "dim"), words)
        self._out.print(line, soft_wrap=True)

    def _line(self, pushing: bool) -> str:
        from simulator.demo.boxes import spark

        seen = self._seen
        parts = [f"  {sum(seen.kinds.values()):,} changes of {len(seen.tables)} tables"]
        if self._load is not None and self._lags:
            judge = self._load.judge
            parts.append(f"1/2: {len(judge.got):,} checked, {sum(judge.counts.values())} wrong")
            parts.append(f"lag {self._lags[-1]:.1f} s {spark(self._lags)}")
        parts.append("the recording plays" if pushing else "the recording has ended")
        return " · ".join(parts) + "   "

    def _summary(self) -> None:
        from simulator.demo.boxes import Totals, card, facts

        seen, out = self._seen, self._out
        totals = Totals(
            kinds=seen.kinds,
            tables=len(seen.tables),
            violations=seen.order_violations,
        )
        lines = facts(totals, self._drill, seen.verdict, seen.compaction)
        if seen.resolved_ts:
            lines.append(("complete", f"up to {seen.resolved_ts} ({tso.to_text(seen.resolved_ts)})"))
        out.print(card(lines, boxed=out.is_terminal), highlight=False, soft_wrap=not out.is_terminal)
        for example in seen.verdict.examples[:3] if seen.verdict is not None else ():
            out.print(f"  {example}", style="red", highlight=False)


class Pushing:
    """The pushers, in a thread that has ended when the `with` block is left."""

    def __init__(self, push: Push, url: str) -> None:
        self.error: Exception | None = None  #: the error that ended the push early
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
        f'{python} -c "import tistream.client as c; '
        f"print(c.connect('{url}').tenant(1, 1).table('shop.customers').rows().to_arrow())\"",
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
