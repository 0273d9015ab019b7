"""A run's world: its processes, their faults, and how it settles.

plan      from the seed: when these processes crash, pause, stop, run twice; catalog outages, clock jumps
rest      faults end, every process is running again, the upstream decides what is open: all must be served
leftovers the pushers end; batch files and orphans must go away
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

import zstandard

from reading.deps import Services
from reading.reader import LogReader
from simulator.dst import future, operator, threads
from simulator.dst.boundaries import Boundaries, Point
from simulator.dst.catalog_rules import CatalogRules
from simulator.dst.database import Database, SimCatalog
from simulator.dst.faults import Dice
from simulator.dst.late import Follower, Late
from simulator.dst.lies import Lies
from simulator.dst.member_rules import MemberRules
from simulator.dst.neighbours import LATE_FROM, Neighbours
from simulator.dst.network import Network
from simulator.dst.oracle import LOWEST, Oracle
from simulator.dst.profiles import Profile
from simulator.dst.raw_reading import read_whole, register_keyspace, rules_of
from simulator.dst.replication import Replication
from simulator.dst.roles import TENANT, Running, SimClock, read_once, run_role
from simulator.dst.scheduler import Process, Scheduler
from simulator.dst.store import Bucket, SimStore
from simulator.dst.upstream import upstream_of
from sorter.worker.worker import SorterWorker
from tistream import ts as tso
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.catalog.work.stores import issue_incarnation
from tistream.errors import ErrorKind, ObjectConflict, TiStreamError
from tistream.objectstore.layout import SchemaSnapKey

START_MS = 1_750_000_000_000
LEASE_MS = 3000
LANE_LEASE_MS = 1500
HEARTBEAT_MS = 700
SWEEP_S = 4.0
READ_LEASE_TTL_MS = 2400
_REST_S = 60.0
#: gone before leftovers are checked
_PUSH_AND_PULL = ("pusher", "reader", "follower", "member", "neighbour", "future", "replicator", "controller")


@dataclass(frozen=True, slots=True)
class Event:
    """Something that befalls a process or the catalog."""

    number: int
    at: float
    kind: str
    role: str = ""
    amount: float = 0.0

    @property
    def label(self) -> str:
        """Its name for `without`."""
        return f"{self.kind}#{self.number}"


class World:
    """Everything of one run. `without` leaves faults (by name) and events (by label) out; at `points` processes die."""

    def __init__(
        self, seed: str, profile: Profile, *, actions: int, without: frozenset[str], points: Collection[Point] = ()
    ) -> None:
        self.profile, self.actions, self.without = profile, actions, without
        self.story: list[tuple[float, str, str]] = []
        s = self.scheduler = Scheduler(seed)
        s.on_crash = self._crash_now
        self.rand = random.Random(f"{seed}/world")
        dice = {
            name: Dice(f"{seed}/{name}", profile.faults, without)
            for name in ("store", "catalog", "network", "recovery")
        }
        self.dice = dice
        self.bucket = Bucket(s, dice["store"], self.unix_ms, self.tell)
        self.database = Database(s, dice["catalog"], self.unix_ms, self.tell)
        self.boundaries = self.bucket.boundaries = self.database.boundaries = Boundaries(s, points, self._strike)
        self.network = Network(s, dice["network"])
        self.start_ts = tso.compose(START_MS)
        self.workload, self.cluster = upstream_of(profile, self.rand.getrandbits(32), self.start_ts)
        self.oracle = Oracle(self.workload.committed, self.database, self.tell, self.workload.shows)
        self.bucket.on_delete = self.oracle.deleting
        self.database.on_durable_ts = self.oracle.durable_ts_moved
        self.oracle.rules = CatalogRules(self.database, self.bucket.objects, self.oracle.violated)
        self.oracle.rules.clock_jumps = "jump" in profile.chaos
        self.oracle.skew_ms = profile.skew_ms
        ahead = random.Random(f"{seed}/future")
        self._ahead = future.plan_of(ahead, profile.skew_ms, actions * profile.action_s) if profile.future else []
        self.database.on_commit = self.oracle.rules.look
        self.running: list[Running] = []
        self.neighbours = Neighbours(random.Random(f"{seed}/neighbours"), self.bucket, self.tso, self.tell)
        self.lies = Lies(random.Random(f"{seed}/lies"), self.workload.committed, profile.lies)
        self.follower = Follower()
        self.members = MemberRules(self.oracle.truth, self.oracle.violated)
        if profile.members:
            self.oracle.rules.members = self.members
        if profile.late:
            late = Late(random.Random(f"{seed}/late"), self.workload.committed)
            self.lies.late = self.oracle.late = self.oracle.rules.late = late
        self.raw = rules_of(self.workload, self.oracle.violated)
        self.replication = Replication(self, dice["recovery"]) if profile.replicators else None
        if self.replication is not None:
            self.oracle.rules.replication = self.replication.rules
        self.bounds: Mapping[str, int] = {}  #: that are small in this run, see `bounds`
        self.resting = False
        self.rested = False
        self.crashes = 0
        self._numbers = 0
        text = json.dumps(self.workload.schema_snapshot()).encode()
        key = str(SchemaSnapKey(tenant=TENANT, ts=self.start_ts))
        self.bucket.objects[key] = (zstandard.compress(text), self.unix_ms())
        self.plan = self._plan(random.Random(f"{seed}/plan"))

    # -- used by processes

    def tso(self) -> int:
        """A timestamp for a tick of the upstream."""
        self.workload.advance_to(tso.compose(self._upstream_ms()))
        return int(self.workload.tick())

    def unix_ms(self) -> int:
        return START_MS + int(self.scheduler.now * 1000)

    def _upstream_ms(self) -> int:
        """The upstream's clock."""
        ahead = [part.ms for part in self._ahead if part.from_s <= self.scheduler.now]
        return self.unix_ms() + (ahead[-1] if ahead and not self.resting else 0)

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
        main = Process("world", self.scheduler)
        threads.spawn(main, self._begin, "begin")
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
            ("member", p.members),
            ("replicator", p.replicators),
            ("controller", min(p.replicators, 1)),
        ):
            for i in range(count):
                self.start(role, f"{role}-{i + 1}")
        for i in range(p.upstream.stores):
            self.start("pusher", f"pusher-{i + 1}")
        for i in range(p.readers):
            self.start("reader", f"reader-{i + 1}")
        if p.future:
            self.start("future", "future-1")
        if p.late:
            self.start("follower", "follower-1")
        if p.neighbours:
            self.start("neighbour", "neighbour-1")
            self._harm_later(main)
        if p.lies:
            operator.decide_later(self, main)
        self._act(self.actions)
        for event in self.plan:
            self.scheduler.call_at(event.at, lambda event=event: self._befall(event))  # type: ignore[misc]
        end = 2.0 + self.actions * p.action_s
        if self.scheduler.run(end, self._is_over):
            return
        self._rest()
        self._until(self._all_served, "rest: not everything is served")
        if p.neighbours:
            self._judge_neighbours(main)
        self._final_pull(main)
        self._leftovers(main)

    def start(self, role: str, name: str) -> Running:
        """A process begins."""
        self._numbers += 1
        process = Process(f"{name}/{self._numbers}", self.scheduler)
        running = Running(process=process, number=self._numbers, role=role, name=name, stopping=threads.Event())
        self.running.append(running)
        threads.spawn(process, lambda: run_role(self, running), "main")
        return running

    def problems(self) -> list[str]:
        """The problems that running services report."""
        out: list[str] = []
        for r in self.running:
            if not r.process.dead and r.service is not None:
                out += [f"{r.name}: {p.source}: {p.message} {dict(p.facts)}" for p in r.service.problems()]
        return out

    # -- inside

    def _harm_later(self, main: Process) -> None:
        """Harm the neighbour as soon as something exists to harm, and restart the owners: what is in memory needs no
        object. In half of the runs a merge of its tasks is under way."""
        n = self.neighbours

        def merge() -> None:
            if not self.resting:
                threads.spawn(main, lambda: n.ask_for_merge(SimCatalog(self.database)), "a merge of the neighbour")

        def harm() -> None:
            if self.resting:
                return
            tasks = self.database.query(
                "SELECT task_id, kind, snapshot_key FROM tasks WHERE cluster_id = 1 AND tenant_id = 2"
            )
            if not n.do_harm(tasks):
                self.scheduler.call_at(self.scheduler.now + 0.5, harm)
                return
            for delay_s in n.merges_after_s:
                self.scheduler.call_at(self.scheduler.now + delay_s, merge)
            for r in list(self.running):
                if r.role in ("sorter", "dispatcher", "neighbour") and not r.process.dead:
                    self._crash_now(r.process, 0.5)

        self.scheduler.call_at(self.scheduler.now + 3.0 + n.rand.random() * 4.0, harm)

    def _judge_neighbours(self, main: Process) -> None:
        """After a restart of the neighbour's pusher, whatever may not stop is written out and what has stopped is
        named."""
        if self._is_over():
            return
        n = self.neighbours
        n.quiet = True
        for r in list(self.running):
            if r.role == "neighbour" and not r.process.dead:
                self._crash_now(r.process, 0.5)
        self._until(lambda: not n.behind(self._neighbour_tasks()), f"isolation: {n.harm}: its other tasks stop")
        self._until(self._is_named, f"isolation: {n.harm}: no problem names it")
        self._until(self._late_are_active, "isolation: a tenant after hostile ones is not activated")
        found: list[str] = []
        threads.spawn(main, lambda: found.append(n.check_log(SimCatalog(self.database))), "the neighbour's log")
        self._until(lambda: bool(found), "isolation: the neighbour's log cannot be read")
        if found and found[0]:
            self.oracle.violated(f"isolation: {n.harm}: the neighbour's log: {found[0]}")

    def _neighbour_tasks(self) -> list[tuple[int, str, int]]:
        return self.database.query("SELECT task_id, kind, durable_ts FROM tasks WHERE cluster_id = 1 AND tenant_id = 2")

    def _is_named(self) -> bool:
        """Whether a service names what has stopped."""
        n = self.neighbours
        if not n.stopped(self._neighbour_tasks()):
            return True
        errors = self.database.query("SELECT task_id, error FROM tasks WHERE error IS NOT NULL")
        named = [*self.problems(), *(f"task {task_id}: {error}" for task_id, error in errors)]
        return any(name in text for name in n.names for text in named)

    def _late_are_active(self) -> bool:
        states = self.database.query("SELECT state FROM tenants WHERE tenant_id >= ?", LATE_FROM)
        return {state for (state,) in states} == {"ACTIVE"}

    def _begin(self) -> None:
        catalog = SimCatalog(self.database)
        if self.raw is None:
            register_tenant(catalog, TENANT)
        else:
            register_keyspace(catalog, TENANT)
        if self.profile.neighbours:
            self.neighbours.register(catalog, self.workload.schema_snapshot(), self.start_ts)

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

    def _befall(self, event: Event) -> None:
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
        self.lies.most = 0
        self.tell("faults end")
        self._faults(on=False)
        self._catalog_back()
        self.workload.drain()
        self.oracle.upstream_moved()
        for r in self.running:
            r.process.crash_in = 0
            if r.process.paused:
                self.scheduler.unpause(r.process)

    def _is_over(self) -> bool:
        return bool(self.oracle.violations) or self.scheduler.failed is not None

    def _until(self, holds: Callable[[], bool], otherwise: str) -> None:
        deadline = self.scheduler.now + _REST_S
        while not self._is_over() and not holds():
            if self.scheduler.now >= deadline:
                self.oracle.violated(f"{otherwise}: {self._why()}")
            self.scheduler.run(self.scheduler.now + 0.5, self._is_over)

    def _why(self) -> str:
        rows = self.database.query("SELECT task_id, durable_ts, epoch, owner, error FROM tasks")
        tasks = [f"task {r[0]} durable_ts {r[1] - self.start_ts} epoch {r[2]} of {r[3]} {r[4] or ''}" for r in rows]
        return "; ".join([*tasks, *self.problems(), *self._stuck()])

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
        if self.profile.late and not self._has_followed():
            return False
        if self.profile.members and self.members.lowest < self._last_commit():
            return False
        if self.replication is not None and not self.replication.has_written(self._last_commit()):
            return False
        return lowest is not None and lowest >= self._last_commit() and self.scheduler.now > self.bucket.all_there_at

    def _has_followed(self) -> bool:
        """Whether the reader that follows has everything, as far as it knows, and knows of every amendment."""
        ((newest,),) = self.database.query("SELECT coalesce(max(number), 0) FROM amendments WHERE tenant_id = 1")
        return self.follower.at >= self._last_commit() and self.follower.amended == newest

    def _final_pull(self, main: Process) -> None:
        if self._is_over():
            return
        done: list[bool] = []

        def pull() -> None:
            store, catalog = SimStore(self.bucket), SimCatalog(self.database)
            if self.raw is not None:
                reader = LogReader(catalog, store, SimClock(main, self.unix_ms, 0))
                read_whole(self, TENANT, catalog, store, reader, self._last_commit())
                done.append(True)
                return
            services = Services.create(catalog, store, SimClock(main, self.unix_ms, 0))
            found = read_once(self, services, "final reader", None, 100_000)
            if self.profile.late and found is not None and (what := self.follower.differs(*found[:2])):
                self.oracle.violated(f"late: the reader that followed: {what}")
            done.append(True)

        threads.spawn(main, pull, "final pull")
        self._until(lambda: bool(done), "rest: the last pull does not come back")
        if self.profile.members:
            self.members.at_rest(self.members.lowest)
        if not self._is_over() and self.oracle.served_max < self._last_commit():
            self.oracle.violated("rest: the last pull does not reach the last commit")

    def _leftovers(self, main: Process) -> None:
        """End the pushers for good; everything unneeded must go away."""
        if self._is_over():
            return
        self.rested = True
        for r in self.running:
            if r.role in _PUSH_AND_PULL:
                self.scheduler.kill(r.process)

        def close() -> None:
            stores = range(1, self.profile.upstream.stores + 1)
            for store_id in (*stores, future.STORE) if self.profile.future else stores:
                issue_incarnation(SimCatalog(self.database), TENANT, store_id)

        threads.spawn(main, close, "close incarnations")
        self._until(self._is_clean, "leftovers")
        if not self._is_over():
            return
        for what in self._wrong(leftovers=True)[:4]:
            self.tell(what)

    def _is_clean(self) -> bool:
        return self.scheduler.now > self.bucket.all_there_at and not self._wrong(leftovers=True)

    def _wrong(self, *, leftovers: bool) -> list[str]:
        return self.oracle.bijection(self.bucket.objects, leftovers=leftovers)
