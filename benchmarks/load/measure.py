"""One run of a deployment under a load: how soon readers have what was committed, and what that costs each process."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.load.deployment import Deployment, Shape, Usage, load_now, usage_of, wait_for
from benchmarks.load.process import PushProcess
from benchmarks.load.push import Load
from benchmarks.load.reader import Reader
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.catalog.work.tasks import list_tasks, task_places
from tistream.ids import Tenant

LAG_BACK_S = 5.0
PATIENCE_S = 900.0
WARM_S = 10.0
LOOK_S = 2.0  #: looking at all tasks costs something itself
RECOVERY_S = 30.0  #: rows committed in this time after a kill do not count for the calm lag


@dataclass(slots=True, kw_only=True)
class Report:
    """The result of a run."""

    where: str
    pushing_s: float = 0.0  #: until all tenants are active and pushed
    complete_s: float = 0.0  #: until all is complete
    load: float = 0.0  #: of the machine
    lag: dict[str, float] = field(default_factory=dict)  #: of rows, from commit to pull, outside kills
    p99_with_kills_s: float = 0.0
    kills: list[tuple[float, str]] = field(default_factory=list)  #: (Unix time, process)
    steady: dict[str, dict[str, float]] = field(default_factory=dict)  #: process -> what it uses a second
    fail_over: dict[str, Any] = field(default_factory=dict)
    committed: int = 0
    read: int = 0
    disorder: int = 0  #: pages out of order

    @property
    def whole(self) -> bool:
        """Whether readers got every row once and in order."""
        return self.read == self.committed and not self.disorder


class Run:
    """A deployment with its pushers and readers, between the start and the end of its load."""

    def __init__(self, d: Deployment, push: PushProcess, readers: list[Reader], report: Report) -> None:
        self.d, self.push, self.readers, self.report = d, push, readers, report

    def steady(self, seconds: float) -> None:
        """Of each process, a second: processor time, statements and requests; and memory and threads at the end."""
        before, used, pushed = self.d.counters(), self._used(), self.push.tell("report")
        began = time.monotonic()
        time.sleep(seconds)
        after, used_then, pushed_then = self.d.counters(), self._used(), self.push.tell("report")
        took = time.monotonic() - began
        for name, usage in used_then.items():
            counts = after.get(name, Counter()) - before.get(name, Counter())
            cpu = (usage.cpu_s - used[name].cpu_s) / took
            rates = {what: n / took for what, n in counts.items()}
            self.report.steady[name] = {"cpu": cpu, "rss_mb": usage.rss_mb, "threads": usage.threads, **rates}
        for name, what in (("PUT", "files"), ("rows", "committed")):
            self.report.steady["push"][name] = (pushed_then[what] - pushed[what]) / took

    def fail_over(self) -> None:
        """Kill the sorter that has the first reader's first task, and wait until nothing is late because of it."""
        d, reader = self.d, self.readers[0]
        places = task_places(d.catalog)
        dead = str([row for row in places if row.tenant == Tenant(1, reader.tenant_id)][-1].owner)
        tasks = sum(row.owner == dead for row in places)
        say(f"killing {dead}, which has {tasks} of {len(places)} tasks")
        began = time.monotonic()
        self.kill(dead)
        given_s = wait_for(
            "others have its tasks", lambda: all(row.owner != dead for row in task_places(d.catalog)), 300, pause_s=0.5
        )
        wait_for("the lag is back", lambda: reader.lag_s < LAG_BACK_S, PATIENCE_S)
        back_s = time.monotonic() - began
        wait_until_complete(d, 40)
        all_s = time.monotonic() - began
        self.report.fail_over = {"tasks": tasks, "given_s": given_s, "lag_back_s": back_s, "all_back_s": all_s}

    def kill(self, name: str) -> None:
        self.report.kills.append((time.time(), name))
        self.d.processes[name].kill()

    def _used(self) -> dict[str, Usage]:
        return {**self.d.usage(), "push": usage_of(self.push.pid)}


@contextmanager
def under_load(load: Load, shape: Shape, readers: int, folder: Path) -> Iterator[Run]:
    """A run that has got going; at its end everything is read, and the report is complete. `load.url` is filled in."""
    report = Report(where=str(shape))
    with ExitStack() as open_, Deployment(folder, shape) as d:
        began = time.monotonic()
        for n in range(load.tenants):
            register_tenant(d.catalog, Tenant(1, n + 1))
        push = open_.enter_context(PushProcess(d, replace(load, url=d.url)))
        report.pushing_s = push.wait_until_ready()
        run = Run(d, push, [Reader(d.url, n + 1) for n in range(readers)], report)
        for reader in run.readers:
            reader.start()
        wait_for("the readers are there", lambda: all(reader.marks for reader in run.readers), PATIENCE_S)
        push.tell("start")
        say("pushing; waiting until all tenants are complete")
        wait_until_complete(d, load.idle_s + 10)
        report.complete_s = time.monotonic() - began
        # services learn that a store is idle from its second file
        time.sleep(2.2 * load.idle_s if load.tenants > load.writing else WARM_S)
        wait_for("the lag is small", lambda: all(reader.lag_s < LAG_BACK_S for reader in run.readers), PATIENCE_S)
        for reader in run.readers:
            reader.forget()
        say(f"complete after {report.complete_s:.1f} s; the measurement begins")
        yield run
        report.load = load_now()
        push.tell("stop")
        end_ms = time.time() * 1000 + 1000  # by then the last transactions have committed
        with suppress(TimeoutError):
            wait_for("all is read", lambda: all(r.marks[-1][1] >> 18 > end_ms for r in run.readers), 120)
        report.committed = push.tell("report")["committed"]
        for reader in run.readers:
            reader.stop()
        _judge(run)


def wait_until_complete(d: Deployment, age_s: float) -> None:
    """Until every task is complete up to that age."""

    def is_so() -> bool:
        tasks, limit = list_tasks(d.catalog), int((time.time() - age_s) * 1000) << 18
        return bool(tasks) and all(row.durable_ts >= limit and row.durable_ts != row.start_ts for row in tasks)

    wait_for("all are complete", is_so, PATIENCE_S, pause_s=LOOK_S)


def say(text: str) -> None:
    """Progress, on standard error."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def _judge(run: Run) -> None:
    report, seen = run.report, [reader.seen_ms() for reader in run.readers]
    committed_ms, here_ms = (np.concatenate([pair[n] for pair in seen]) for n in (0, 1))
    ages_s = (here_ms - committed_ms) / 1000
    calm = np.ones(len(ages_s), np.bool_)
    for at, _ in report.kills:
        calm &= ~((here_ms >= at * 1000) & (committed_ms < (at + RECOVERY_S) * 1000))
    quantiles = {"p50_s": 50, "p99_s": 99, "max_s": 100}
    report.lag = {name: float(np.percentile(ages_s[calm], q)) for name, q in quantiles.items()}
    report.p99_with_kills_s = float(np.percentile(ages_s, 99))
    report.read = sum(reader.rows for reader in run.readers)
    report.disorder = sum(reader.disorder for reader in run.readers)


def shown(report: Report) -> dict[str, Any]:
    """As JSON."""
    return asdict(report)
