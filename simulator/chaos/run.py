"""One chaos run: start the deployment, inject faults, let everything heal, and compare.

Nothing may be lost, repeated, foreign or out of order, no resolved_ts may fall, and "not now" is the only error; after
the faults the log catches up with the upstream within HEAL_S. Then all of it is read again from the beginning: the
readers that followed it have passed what a fault may have taken away since. A run with hardly a row proves nothing.
"""

from __future__ import annotations

import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from simulator.chaos.plan import Harm, PlannedHarm, schedule
from simulator.chaos.rig import TENANT, Rig, Size
from simulator.judging.core.judge import Content, Judge, Version, truth_of
from simulator.judging.core.takeover import Takeovers, percentile
from simulator.judging.readers import Reader, read_again
from simulator.profiles import FIRST_TABLE_ID
from tistream import ts as tso
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.clock import Clock, SystemClock
from tistream.codec.table_key import DDL_JOB_TABLE_ID
from tistream.errors import CatalogUnavailable

HEAL_S = 120.0
TAKEOVER_P99_S = 15.0
READERS = 2
ROWS_MIN = 100  #: versions that a run must have committed, and every reader read
_LOOK_S = 0.1
TABLES = range(FIRST_TABLE_ID, DDL_JOB_TABLE_ID)
_DATABASE_AWAY = {Harm.KILL, Harm.REFUSE}
_ASLEEP = {Harm.KILL, Harm.PAUSE}

Say = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class ChaosReport:
    """The report of a run."""

    seed: int
    seconds: float
    events: dict[str, int] = field(default_factory=dict)  #: harm -> how often
    revived: int = 0  #: processes that had ended by themselves, as one does that was replaced while it slept
    committed: int = 0  #: versions upstream
    read: int = 0  #: versions that each reader got, at least
    read_again: int = 0  #: versions in the whole log at the end, at least
    findings: dict[str, int] = field(default_factory=dict)
    examples: list[str] = field(default_factory=list)
    healed_s: float | None = None  #: from the end of the harm until everything was readable; None = not in time
    takeovers: list[float] = field(default_factory=list)  #: seconds, rising
    returned: int = 0  #: of these, the worker came back before a takeover
    takeover_p50_s: float | None = None
    takeover_p99_s: float | None = None
    lag_p50_s: float | None = None  #: of the log behind the upstream, ten samples a second, faults included
    lag_p99_s: float | None = None

    @property
    def held(self) -> bool:
        """Whether every promise was kept."""
        late = self.takeover_p99_s is not None and self.takeover_p99_s > TAKEOVER_P99_S
        enough = min(self.committed, self.read, self.read_again) >= ROWS_MIN
        return enough and not self.findings and self.healed_s is not None and not late

    def compare(self, live: Sequence[Judge], again: Sequence[Judge], truth: Mapping[Version, Content]) -> None:
        """Take what the judges find: of readers that followed the log, and of those that read it again at the end."""
        counter: Counter[str] = Counter()
        for judge in (*live, *again):
            judge.compare(truth)
            counter.update(judge.counts)
            self.examples += judge.examples
        self.findings = dict(counter)
        self.committed = len(truth)
        self.read = min(len(judge.got) for judge in live)
        self.read_again = min(len(judge.got) for judge in again)

    def shown(self) -> dict[str, Any]:
        """As JSON."""
        return {**asdict(self), "held": self.held}


def run(seconds: float, seed: int, size: Size, say: Say, *, every_s: float = 5.0, stop: threading.Event) -> ChaosReport:
    """Run for `seconds`; `stop` ends it early, with the report so far."""
    clock = SystemClock()
    with tempfile.TemporaryDirectory(prefix="tistream-chaos-") as folder:
        say(f"starting a deployment in {folder}")
        with Rig(Path(folder), seed, size) as rig:
            return _Run(rig, seed, seconds, every_s, clock, say, stop).report()


class _Run:
    def __init__(
        self, rig: Rig, seed: int, seconds: float, every_s: float, clock: Clock, say: Say, stop: threading.Event
    ) -> None:
        self._rig, self._clock, self._say, self._stop = rig, clock, say, stop
        self._seconds = seconds
        self._report = ChaosReport(seed=seed, seconds=seconds)
        self._schedule = schedule(seed, seconds, rig.targets(), every_s=every_s)
        self._takeovers = Takeovers()
        self._lags: list[float] = []
        self._going: list[PlannedHarm] = []
        self._counts: Counter[str] = Counter()

    def report(self) -> ChaosReport:
        urls = self._rig.api_urls
        readers = [
            Reader(f"reader-{n + 1}", urls[n % len(urls) :] + urls[: n % len(urls)], TENANT, self._clock, TABLES)
            for n in range(READERS)
        ]
        for reader in readers:
            reader.start()
        try:
            self._hurt()
            end_ts = self._heal([reader.judge for reader in readers])
            self._say("reading everything again")
            again = read_again(urls, TENANT, self._clock, TABLES, end_ts, within_s=HEAL_S)
        finally:
            for reader in readers:
                reader.stop()
        self._compare([reader.judge for reader in readers], again)
        return self._report

    def _hurt(self) -> None:
        began = self._clock.monotonic()
        coming = next(self._schedule, None)
        while not self._clock.wait(self._stop, _LOOK_S):
            now_s = self._clock.monotonic() - began
            for event in [e for e in self._going if e.end_s <= now_s]:
                self._end(event)
            while coming is not None and coming.at_s <= now_s:
                self._begin(coming)
                coming = next(self._schedule, None)
            self._look()
            if now_s >= self._seconds:
                break
        for event in list(self._going):
            self._end(event)

    def _begin(self, event: PlannedHarm) -> None:
        self._say(str(event))
        self._counts[f"{event.harm} {event.target.partition('-')[0]}"] += 1
        try:
            holding = self._rig.holding()
        except CatalogUnavailable:
            holding = {}
        self._rig.begin(event)
        self._going.append(event)
        if event.harm in _ASLEEP and event.target in self._rig.processes:
            self._takeovers.harmed(event.target, holding, self._clock.monotonic())
        if event.target == "database" and event.harm in _DATABASE_AWAY:
            self._takeovers.void()

    def _end(self, event: PlannedHarm) -> None:
        self._going.remove(event)
        self._rig.end(event)
        if event.harm is Harm.PAUSE:
            self._takeovers.back(event.target, self._clock.monotonic())

    def _look(self) -> None:
        for name in self._rig.revive():
            self._say(f"{name} had ended and was started again")
            self._report.revived += 1
        if any(e.target == "database" and e.harm in _DATABASE_AWAY for e in self._going):
            self._takeovers.void()
            return
        self._hold()
        try:
            for worker, seconds in self._takeovers.seen(self._rig.holding(), self._clock.monotonic()):
                self._say(f"the items of {worker} were taken over after {seconds:.1f} s")
            behind_ms = self._clock.unix_ms() - tso.physical_ms(self._rig.durable_ts())
        except CatalogUnavailable:
            return
        self._lags.append(max(0.0, behind_ms / 1000))

    def _hold(self) -> None:
        """Without a meta server, or with all workers of a kind asleep, nothing can be taken over."""
        asleep = {event.target for event in self._going if event.harm in _ASLEEP}
        for kind in ("meta", "sorter", "dispatcher"):
            if asleep.issuperset(name for name in self._rig.processes if name.startswith(kind)):
                self._takeovers.hold(self._clock.monotonic(), "" if kind == "meta" else kind)

    def _heal(self, judges: list[Judge]) -> int:
        """No more harm, no more changes: how long until every reader has everything. The timestamp of its end."""
        began = self._clock.monotonic()
        end_ts = self._rig.upstream.settle()
        self._say("no more harm; waiting until everything is readable")
        while min(judge.complete_ts for judge in judges) < end_ts:
            if self._clock.monotonic() - began > HEAL_S:
                self._report.examples += [f"not readable within {HEAL_S:.0f} s: {end_ts}", self._rig.services.logs()]
                return end_ts
            self._clock.wait(threading.Event(), _LOOK_S)
            self._look()
        self._report.healed_s = round(self._clock.monotonic() - began, 1)
        return end_ts

    def _compare(self, live: list[Judge], again: list[Judge]) -> None:
        report, times = self._report, self._takeovers.seconds
        report.compare(live, again, _truth(self._rig))
        if unnamed := self._rig.unnamed():
            report.findings["unnamed"] = len(unnamed)
            report.examples += [f"the list of stops lacks this tenant: {each}" for each in unnamed]
        report.events = dict(self._counts)
        report.takeovers, report.returned = sorted(round(s, 1) for s in times), self._takeovers.returned
        report.takeover_p50_s, report.takeover_p99_s = percentile(times, 0.5), percentile(times, 0.99)
        report.lag_p50_s, report.lag_p99_s = percentile(self._lags, 0.5), percentile(self._lags, 0.99)


def _truth(rig: Rig) -> dict[Version, Content]:
    """The versions committed in user tables since the tenant began."""
    return truth_of(rig.workload.committed, get_tenant(rig.catalog, TENANT).start_ts, TABLES)
