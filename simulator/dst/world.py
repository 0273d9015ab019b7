"""The frame of a run: its processes, their faults, and how it settles. What a scenario adds are aspects (`aspect`).

plan      from the seed: when these processes crash, pause, stop, run twice; catalog outages, clock jumps
rest      faults end, every process is running again, the upstream decides what is open: all must be served
leftovers the pushers end; batch files and orphans must go away
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import zstandard

from simulator.core.cluster import Cluster
from simulator.dst import threads
from simulator.dst.aspect import Aspect
from simulator.dst.boundaries import Boundaries, Point
from simulator.dst.catalog_rules import CatalogRules
from simulator.dst.database import SimCatalog, SimDatabase
from simulator.dst.faults import Dice
from simulator.dst.network import Network
from simulator.dst.oracle import LOWEST, Oracle
from simulator.dst.profile import Profile
from simulator.dst.raw_rules import RawRules
from simulator.dst.running import TENANT, Running, SimClock
from simulator.dst.scheduler import Process, Scheduler
from simulator.dst.store import Bucket, SimStore
from sorter.worker.worker import SorterWorker
from tistream import ts as tso
from tistream.catalog.work.stores import issue_incarnation
from tistream.errors import ErrorKind, ObjectConflict, TiStreamError
from tistream.keyrange import KeyRange
from tistream.objectstore.layout import SchemaSnapKey
from tistream.objectstore.protocol import ObjectStore
from tistream.release import THIS_RELEASE, Release

A = TypeVar("A", bound=Aspect)
START_MS = 1_750_000_000_000
_REST_S = 60.0
#: gone before leftovers are checked
_PUSH_AND_PULL = ("pusher", "reader", "member", "neighbour", "anew", "future", "replicator", "controller")


@dataclass(frozen=True, slots=True)
class Event:
    """A fault of a process or the catalog."""

    number: int
    at: float
    kind: str
    role: str = ""
    amount: float = 0.0

    @property
    def label(self) -> str:
        """Its name for `without`."""
        return f"{self.kind}#{self.number}"


class ReadLog(Protocol):
    """The log of the judged tenant, as its readers get it."""

    @property
    def raw_keys(self) -> KeyRange | None:
        """The keyspace that pushers follow; None: tables."""

    def register(self, catalog: SimCatalog) -> None:
        """Register the tenant."""

    def read(self, running: Running) -> None:
        """Read as a process, until it ends."""

    def read_whole(self, catalog: SimCatalog, store: ObjectStore, clock: SimClock, upto: int) -> None:
        """Read all of the log at the end of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What a world is made of, see `simulator.dst.scenario`."""

    upstream: Callable[[Profile, int, int], tuple[Any, Cluster]]  #: of a seed and a start
    raw: Callable[[World], RawRules] | None  #: the rules of a keyspace
    log: Callable[[World], ReadLog]
    aspects: Sequence[Callable[[World], Aspect]]
    roles: Callable[[World], Mapping[str, Callable[[Running], None]]]
    run_role: Callable[[World, Running], None]


class World:
    """Everything of one run. `without` leaves faults (by name) and events (by label) out; at `points` processes die."""

    def __init__(
        self,
        seed: str,
        profile: Profile,
        parts: Parts,
        *,
        actions: int,
        without: frozenset[str],
        points: Collection[Point] = (),
    ) -> None:
        self.seed, self.profile, self.actions, self.without = seed, profile, actions, without
        self.story: list[tuple[float, str, str]] = []
        s = self.scheduler = Scheduler(seed)
        s.on_crash = self._crash_now
        self.rand = random.Random(f"{seed}/world")
        self.dice = dice = {
            name: Dice(f"{seed}/{name}", profile.faults, without)
            for name in ("store", "catalog", "network", "recovery")
        }
        self.bucket = Bucket(s, dice["store"], self.unix_ms, self.tell)
        self.database = SimDatabase(s, dice["catalog"], self.unix_ms, self.tell)
        self.databases = [self.database]  #: of the run; the last may be one that is being restored
        self.boundaries = self.bucket.boundaries = self.database.boundaries = Boundaries(s, points, self._strike)
        self.network = Network(s, dice["network"])
        self.start_ts = tso.compose(START_MS)
        self.workload, self.cluster = parts.upstream(profile, self.rand.getrandbits(32), self.start_ts)
        self.oracle = Oracle(self.workload.committed, self.database, self.tell, self.workload.shows)
        self.bucket.on_delete = self.oracle.deleting
        self.database.on_durable_ts = self.oracle.durable_ts_moved
        self.oracle.rules = rules = CatalogRules(self.database, self.bucket.objects, self.oracle.violated)
        rules.clock_jumps = "jump" in profile.chaos
        rules.jobs.by_lease = profile.jobs
        self.oracle.skew_ms = profile.skew_ms
        self.database.on_commit = rules.look
        self.running: list[Running] = []
        self.bounds: Mapping[str, int] = {}  #: that are small in this run, see `bounds`
        self.resting = False
        self.rested = False
        self.crashes = 0
        self._numbers = 0
        self._main = Process("world", s)
        self.raw = None if parts.raw is None else parts.raw(self)
        self.log = parts.log(self)
        self.aspects: Sequence[Aspect] = [kind(self) for kind in parts.aspects]
        self._run_role = parts.run_role
        self.roles = {**parts.roles(self), **{role: run for a in self.aspects for role, run in a.roles().items()}}
        text = json.dumps(self.workload.schema_snapshot()).encode()
        key = str(SchemaSnapKey(tenant=TENANT, ts=self.start_ts))
        self.bucket.objects[key] = (zstandard.compress(text), self.unix_ms())
        self.plan = self._plan(random.Random(f"{seed}/plan"))

    def find(self, kind: type[A]) -> A | None:
        """The aspect of this kind, if the scenario has it."""
        return next((aspect for aspect in self.aspects if isinstance(aspect, kind)), None)

    # -- used by processes

    def tso(self) -> int:
        """A timestamp for a tick of the upstream."""
        self.workload.advance_to(tso.compose(self._upstream_ms()))
        return int(self.workload.tick())

    def unix_ms(self) -> int:
        return START_MS + int(self.scheduler.now * 1000)

    def _upstream_ms(self) -> int:
        """The upstream's clock."""
        return self.unix_ms() + sum(aspect.ahead_ms() for aspect in self.aspects)

    def tell(self, text: str) -> None:
        """A line of the story."""
        task = self.scheduler.current
        self.story.append((self.scheduler.now, task.process.name if task else "", text))
        self.scheduler.trace(text)

    def ended(self, process: Process, error: BaseException | None) -> None:
        """A process came to its end by itself."""
        running = next(r for r in self.running if r.process is process)
        self.tell(f"{running.name} ends: {error}" if error else f"{running.name} has stopped")
        if isinstance(error, TiStreamError) and error.kind not in (ErrorKind.RETRY, ErrorKind.FENCED):
            self.oracle.violated(f"fatal: {running.name}: {error}")
        if isinstance(error, ObjectConflict) and running.role == "pusher":
            self.oracle.violated(f"fatal: {running.name}: {error}")
        self.scheduler.kill(process)
        self._again(running, 1.0)

    # -- the run

    def run(self) -> None:
        """From the beginning to rest."""
        self.spawn(self._begin, "begin")
        self._faults(on=False)
        self.scheduler.run(self.scheduler.now + 1.0)
        self._faults(on=True)
        p = self.profile
        for role, count in (
            ("meta", p.metas),
            ("dispatcher", p.dispatchers),
            ("sorter", p.sorters),
            ("compactor", p.compactors),
            ("retainer", p.retainers),
            ("shaper", p.shapers),
        ):
            self._start_all(role, count)
        for aspect in self.aspects:
            for role, name in aspect.processes():
                self.start(role, name)
        self._start_all("pusher", p.upstream.stores)
        self._start_all("reader", p.readers)
        for aspect in self.aspects:
            aspect.start()
        self._act(self.actions)
        for event in self.plan:
            self.scheduler.call_at(event.at, partial(self._play, event))
        end = 2.0 + self.actions * p.action_s
        if self.scheduler.run(end, self.is_over):
            return
        self._rest()
        self.until(self._all_served, "rest: not everything is served")
        for aspect in self.aspects:
            aspect.settle()
        self._final_pull()
        self._leftovers()

    def _start_all(self, role: str, count: int) -> None:
        for i in range(count):
            self.start(role, f"{role}-{i + 1}")

    def spawn(self, run: Callable[[], None], name: str) -> None:
        """Run something in a thread that belongs to no process."""
        threads.spawn(self._main, run, name)

    def start(self, role: str, name: str) -> Running:
        """A process begins."""
        self._numbers += 1
        process = Process(f"{name}/{self._numbers}", self.scheduler)
        running = Running(
            process=process,
            number=self._numbers,
            role=role,
            name=name,
            catalog=SimCatalog(self.database, self._release_of(name)),
            store=self.way_to_bucket(role),
            stopping=threads.Event(),
        )
        self.running.append(running)
        threads.spawn(process, lambda: self._run_role(self, running), "main")
        return running

    def way_to_bucket(self, role: str, store: ObjectStore | None = None) -> ObjectStore:
        """What a process of this role uses in front of its `store`."""
        store = store or SimStore(self.bucket)
        for aspect in self.aspects:
            store = aspect.over(store, role)
        return store

    def _release_of(self, name: str) -> Release:
        releases = (aspect.release_of(name) for aspect in self.aspects)
        return next((release for release in releases if release is not None), THIS_RELEASE)

    def restored(self, database: SimDatabase) -> None:
        """Another database is the catalog from now on."""
        before, self.database = self.database, database
        before.on_commit, before.on_durable_ts = (lambda: None), (lambda *_: None)
        self.oracle.restored(database)
        database.on_durable_ts, database.on_commit = self.oracle.durable_ts_moved, self.oracle.rules.look

    def problems(self) -> list[str]:
        """The problems that running services report."""
        out: list[str] = []
        for r in self.running:
            if not r.process.dead and r.service is not None:
                out += [f"{r.name}: {p.source}: {p.message} {dict(p.facts)}" for p in r.service.problems()]
        return out

    def crash(self, roles: Collection[str], pause_s: float) -> None:
        """Kill all processes of these roles; they come back after a pause."""
        for r in list(self.running):
            if r.role in roles:
                self._crash_now(r.process, pause_s)

    # -- inside

    def _begin(self) -> None:
        catalog = SimCatalog(self.database)
        self.log.register(catalog)
        for aspect in self.aspects:
            aspect.begin(catalog)

    def _act(self, left: int) -> None:
        """The next upstream action."""
        if left <= 0 or self.resting:
            return
        self.workload.advance_to(tso.compose(self._upstream_ms()))
        self.tell(self.workload.step())
        if self.raw is not None and self.workload.disorder:
            self.oracle.violated(f"raw upstream: {self.workload.disorder}")
        self.oracle.upstream_moved()
        pause = self.rand.expovariate(1 / self.profile.action_s)
        self.scheduler.call_at(self.scheduler.now + pause, lambda: self._act(left - 1))

    def _plan(self, rand: random.Random) -> list[Event]:
        events: list[Event] = []
        length = 1.5 + self.profile.actions * self.profile.action_s  # fewer actions leave the plan as it is
        for kind, count in self.profile.chaos.items():
            for _ in range(count):
                amount = rand.choice(self.profile.amounts) + rand.random()
                role = rand.choice(self.profile.victims)
                events.append(Event(len(events), 1.0 + rand.random() * length, kind, role, amount))
        return [e for e in events if e.label not in self.without and e.kind not in self.without]

    def _faults(self, *, on: bool) -> None:
        for dice in self.dice.values():
            dice.on = on

    def _play(self, event: Event) -> None:
        if self.resting:
            return
        s = self.scheduler
        match event.kind:
            case "outage":
                self.database.away = event.amount > 2
                self.database.read_only = True
                self.tell(f"{event.label}: the catalog is {'away' if self.database.away else 'read only'}")
                s.call_at(s.now + event.amount, self._catalog_back)
                return
            case "jump":
                self.database.offset_ms += int((event.amount - 2) * 2000)
                self.tell(f"{event.label}: the database's clock jumps to {self.database.offset_ms} ms")
                return
        there = [r for r in self.running if r.role == event.role and not r.process.dead]
        if not there:
            return
        victim = there[self.rand.randrange(len(there))]
        self.tell(f"{event.label}: {event.kind} {victim.process.name}")
        match event.kind:
            case "crash":
                self._crash_now(victim.process, event.amount)
            case "crash_io":
                victim.process.crash_in = self.rand.randint(1, 30)
            case "pause":
                s.pause(victim.process)
                s.call_at(s.now + event.amount, lambda: s.unpause(victim.process))
            case "stop":
                victim.stopping.set()
            case "double":
                self.start(victim.role, victim.name)

    def _catalog_back(self) -> None:
        self.database.away = self.database.read_only = False

    def _crash_now(self, process: Process, pause_s: float = 1.0) -> None:
        if not process.dead:
            self.crashes += 1
            self.scheduler.kill(process)
            self.tell(f"{process.name} is dead")
            self._again(next(r for r in self.running if r.process is process), pause_s)

    def _strike(self, process: Process, point: Point) -> None:
        self.tell(f"crash point {point}: {self.boundaries.passed[point.number - 1].what}")
        self._crash_now(process, self.profile.restart_s)

    def _again(self, running: Running, pause_s: float) -> None:
        """The supervisor starts it again."""

        def begin() -> None:
            if not self._over_for(running) and not self._living(running.name):
                self.tell(f"{running.name} is started again")
                self.start(running.role, running.name)

        self.scheduler.call_at(self.scheduler.now + pause_s, begin)

    def _over_for(self, running: Running) -> bool:
        return self.rested and running.role in _PUSH_AND_PULL

    def _living(self, name: str) -> list[Running]:
        """Processes of this name: while there is one, of whatever age, its supervisor sees no need for another."""
        return [r for r in self.running if r.name == name and not r.process.dead]

    def _rest(self) -> None:
        """Faults end and the upstream decides what is open."""
        self.resting = True
        self.tell("faults end")
        self._faults(on=False)
        self._catalog_back()
        for aspect in self.aspects:
            aspect.rest()
        self.workload.drain()
        self.oracle.upstream_moved()
        for r in self.running:
            r.process.crash_in = 0
            if r.process.paused:
                self.scheduler.unpause(r.process)

    def is_over(self) -> bool:
        """Whether a rule was violated, or a thread died."""
        return bool(self.oracle.violations) or self.scheduler.failed is not None

    def until(self, holds: Callable[[], bool], otherwise: str) -> None:
        """At rest: let time pass until this holds. It must in a while, or `otherwise` is a violation."""
        deadline = self.scheduler.now + _REST_S
        while not self.is_over() and not holds():
            if self.scheduler.now >= deadline:
                self.oracle.violated(f"{otherwise}: {self._why()}")
            self.scheduler.run(self.scheduler.now + 0.5, self.is_over)

    def _why(self) -> str:
        rows = self.database.query("SELECT task_id, durable_ts, epoch, owner, error FROM tasks")
        tasks = [f"task {r[0]} durable_ts {r[1] - self.start_ts} epoch {r[2]} of {r[3]} {r[4] or ''}" for r in rows]
        due = [what for aspect in self.aspects for what in aspect.due()]
        return "; ".join([*due, *tasks, *self.problems(), *self._stuck()])

    def _stuck(self) -> list[str]:
        """What the lowest tasks wait for, according to their cores."""
        out: list[str] = []
        for r in self.running:
            if r.role == "sorter" and not r.process.dead and isinstance(r.service, SorterWorker):
                for task_id, runner in r.service._runners.items():
                    at = {s: {i: (p.seq, p.closed) for i, p in v.items()} for s, v in runner.core.positions().items()}
                    why = [str(stuck) for stuck in runner.core.explain()[:3]]
                    out.append(f"{r.name} task {task_id} at {at}: {why}")
        return out

    def _last_commit(self) -> int:
        return max((row.commit_ts for row in self.workload.committed), default=self.start_ts)

    def _all_served(self) -> bool:
        stopped = self.database.query("SELECT task_id, error FROM tasks WHERE error IS NOT NULL AND tenant_id = 1")
        if stopped:
            self.oracle.violated(f"stopped: task {stopped[0][0]}: {stopped[0][1]}")
        ((lowest,),) = self.database.query(LOWEST)
        if self.oracle.good_ts() is not None:
            return False
        if not all(aspect.has_all(self._last_commit()) for aspect in self.aspects):
            return False
        return lowest is not None and lowest >= self._last_commit() and self.scheduler.now > self.bucket.all_there_at

    def _final_pull(self) -> None:
        if self.is_over():
            return
        done: list[bool] = []

        def pull() -> None:
            store, catalog = self.way_to_bucket(""), SimCatalog(self.database)
            self.log.read_whole(catalog, store, SimClock(self._main, self.unix_ms, 0), self._last_commit())
            for aspect in self.aspects:
                aspect.at_rest()
            done.append(True)

        self.spawn(pull, "final pull")
        self.until(lambda: bool(done), "rest: the last pull does not come back")
        if not self.is_over() and self.oracle.served_max < self._last_commit():
            self.oracle.violated("rest: the last pull does not reach the last commit")

    def _leftovers(self) -> None:
        """End the pushers; everything unneeded must go away."""
        if self.is_over():
            return
        self.rested = True
        for r in self.running:
            if r.role in _PUSH_AND_PULL:
                self.scheduler.kill(r.process)

        def close() -> None:
            stores = range(1, self.profile.upstream.stores + 1)
            for store_id in (*stores, *(store for aspect in self.aspects for store in aspect.stores)):
                issue_incarnation(SimCatalog(self.database), TENANT, store_id)

        self.spawn(close, "close incarnations")
        self.until(self._is_clean, "leftovers")
        if not self.is_over():
            return
        for what in self.oracle.left_over(self.bucket.objects)[:4]:
            self.tell(what)

    def _is_clean(self) -> bool:
        return self.scheduler.now > self.bucket.all_there_at and not self.oracle.left_over(self.bucket.objects)
