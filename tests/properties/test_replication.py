"""The rules of a changefeed that the service writes, one by one: its runs over a real catalog and log, its lanes, and
what reaches a recovery cluster. Each is broken once, by the simulator's mutants, and the check that it needs fails.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from destinations import opening
from destinations.opening import Target
from destinations.protocol import Allowed, DestinationUnavailable, Plan, Share, Stretch
from destinations.uri import parse_sink_uri
from reading.served.services import Services
from replicator import worker
from replicator.core.lane import LATE_S, LaneCore, Read
from replicator.lane_run import LaneRun
from replicator.stretch import LaneReader
from replicator.worker import ReplicationWorker
from schemas.model import DdlEvent
from simulator.dst import threads
from simulator.dst.all_mutants import MUTANTS
from simulator.dst.faults import Dice
from simulator.dst.recovery import RecoveryCluster, SimRecovery
from simulator.dst.scheduler import Process, Scheduler
from tests.kit.catalog_cases import elected, shift
from tests.kit.entry_log import Entry, EntryLog, entry_rows
from tests.kit.lane_feed import letters_of_operators
from tests.kit.log_builder import LogBuilder
from tests.kit.manual_clock import ManualClock
from tests.unit.replicator import test_lane_core
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import changefeeds
from tistream.catalog.log.bases import add_bases
from tistream.catalog.log.retention import raise_floor
from tistream.catalog.rows.bases import KEY_RANGE, NewBase
from tistream.catalog.rows.kinds import TenantKind
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.tenancy.log_readers import ReaderState
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.catalog.work import lanes
from tistream.catalog.work.changefeeds import create_changefeed
from tistream.catalog.work.core.lane_scope import KeyScope, Progress, TableScope, covers
from tistream.catalog.work.lanes import LaneAssignment, LaneJob, lane_places, lanes_of, list_lanes
from tistream.catalog.work.workers import register_worker
from tistream.clock import Clock
from tistream.errors import CatalogUnavailable, Fenced, TiStreamError, TsExpired
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.limits import LANE_LEASE_MS
from tistream.objectstore.generations import FIRST
from tistream.objectstore.memory import MemoryStore
from tistream.outbound.policy import OPERATED

T = Tenant(1, 1)
FEED = "dr"
LEASE_S = LANE_LEASE_MS / 1000
ALL = KeyScope(range=KeyRange())
WRITES = [Entry(10, b"a", b"1"), Entry(20, b"b", b"2"), Entry(30, b"a", b"3"), Entry(40, b"c", b"4")]


@dataclass
class Written:
    """A destination that keeps each write, and fails as often as the test asks."""

    catalog: Catalog
    stretches: list[tuple[int, int]] = field(default_factory=list)
    fails: int = 0
    record: str = ""
    rows: int = 1
    size: int = 1

    def check(self) -> Sequence[str]:
        return ()

    def ranges(self, wanted: KeyRange, count: int) -> Sequence[KeyRange]:
        return [wanted]

    def plan(self, stretch: Stretch, record: str) -> Plan:
        self.stretches.append((stretch.after, stretch.upto))
        return self

    def write(self, plan: Plan, allowed: Allowed) -> None:
        (lane,) = list_lanes(self.catalog, T, FEED)
        assert lane.attempted_ts >= self.stretches[-1][1], "the catalog has the attempt before anything is written"
        if self.fails:
            self.fails -= 1
            raise DestinationUnavailable

    def note_checkpoint(self, ts: int, allowed: Allowed) -> None: ...

    def close(self) -> None: ...


class World:
    """A keyspace's log up to 40, a changefeed with one lane, and its workers."""

    def __init__(self, catalog: Catalog, hold_ms: int = 0) -> None:
        self.catalog, self.clock = catalog, ManualClock(1_750_000_000_000)
        store = MemoryStore()
        self.log = EntryLog(catalog, store, tenant=T, rows=entry_rows(WRITES)).activate()
        self.services = Services.create(catalog, store, self.clock)
        self.written = Written(catalog)
        create_changefeed(
            catalog, T, FEED, None, sink_uri="tikv://pd:2379", options="{}", filters="{}", scopes=[ALL], target_ts=0,
            hold_ms=hold_ms,
        )  # fmt: skip
        for name in ("a", "b", "c"):
            register_worker(catalog, name, "replicate", "")

    def give(self, worker: str) -> LaneJob:
        """The lane to this worker."""
        wanted = [
            LaneAssignment(place.lane_id, worker, place.epoch, place.tenant) for place in lane_places(self.catalog)
        ]
        lanes.assign_lanes(self.catalog, wanted, leader_epoch=elected(self.catalog))
        (job,) = lanes_of(self.catalog, worker, 1)
        return job

    def run(self) -> LaneRun:
        """An ownership."""
        job, now_s = self.give("a"), self.clock.monotonic()
        made = LaneRun(self.services, self.clock, job, lambda _: self.written, letters_of_operators, random.Random(1))
        assert made.seen(job, now_s, now_s)
        return made

    def turn(self, run: LaneRun) -> None:
        self.clock.advance(run.turn(lambda: self.services.served(T)))

    @property
    def checkpoint_ts(self) -> int:
        return list_lanes(self.catalog, T, FEED)[0].checkpoint_ts


# ---- one check for each rule, or for a few


def stretches_are_attempted_and_repeated(catalog: Catalog) -> None:
    """A failed stretch moves no checkpoint, and is tried again as it was, although more is served by then."""
    world = World(catalog)
    world.log.flush(20)
    run, world.written.fails = world.run(), 1
    world.turn(run)
    assert world.checkpoint_ts == 0
    world.log.flush(40)
    world.clock.advance(1.0)
    world.turn(run)
    assert world.written.stretches == [(0, 20), (0, 20)]
    world.turn(run)
    assert (world.written.stretches[-1], world.checkpoint_ts) == ((20, 40), 40)


def a_changefeed_holds_its_log(catalog: Catalog) -> None:
    """The floor passes its checkpoint only when its hold has ended; it then fails, and does not go on from later."""
    world = World(catalog, hold_ms=60_000)
    world.log.flush(40)
    begin = get_tenant(catalog, T).earliest_ts
    base = NewBase(table_id=KEY_RANGE, ts=30, previous=None, after_ts=begin, rows=0, segments=())
    assert add_bases(catalog, T, [base], {})
    run = world.run()
    assert not raise_floor(catalog, T, seen_floor=0, to_ts=30)
    shift(catalog, changefeeds.c.last_active_ms, -60_001)
    assert raise_floor(catalog, T, seen_floor=0, to_ts=30)
    with suppress(Fenced):  # the run ends; a broken one continues
        world.turn(run)
    found = CHANGEFEEDS.get(catalog, T, FEED)
    assert (found.state, found.error is not None and found.error["code"]) == (ReaderState.FAILED, TsExpired.code)
    assert world.checkpoint_ts == 0


def leases_exclude_each_other(_: Catalog) -> None:
    """Of two owners the second writes only when the first cannot, however long its question took."""
    first, second = (LaneCore(checkpoint_ts=10, record="", record_ts=0, target_ts=0, lease_s=LEASE_S) for _ in range(2))
    first.confirmed(0.0)
    first.owned(0.0, is_free=True)
    second.confirmed(0.0)
    second.owned(3.0, is_free=False)  # asked at 0.0, answered at 3.0
    for tenths in range(100):
        now_s = tenths / 10
        writes = [not isinstance(core.next(50, now_s), Read) or core.allowed_s(now_s) > 0 for core in (first, second)]
        assert all(writes)
        assert first.allowed_s(now_s) <= max(0.0, LEASE_S - LATE_S - now_s)
        assert now_s >= 3.0 + LEASE_S or second.allowed_s(now_s) <= 0


def giving_up_is_for_oneself(catalog: Catalog) -> None:
    """Who gives a lane up while it waits for the owner before leaves the next one to wait for that."""
    world = World(catalog)
    world.give("a")
    second = world.give("b")
    assert not second.lane.is_free
    give_up_lane = vars(worker)["give_up_lane"]  # as the worker calls it, a mutant's included
    give_up_lane(catalog, second.lane, waited=True)
    third = world.give("c")
    assert not third.lane.is_free
    fourth = world.give("b")
    give_up_lane(catalog, third.lane, waited=True)
    (fourth,) = lanes_of(catalog, "b", 1)
    assert not fourth.lane.is_free
    give_up_lane(catalog, fourth.lane)
    assert not world.give("a").lane.is_free


class _Unheard(Catalog):
    """A catalog whose replies to transactions are lost on demand, with the transactions."""

    def __init__(self, catalog: Catalog) -> None:
        vars(self).update(vars(catalog))
        self.away = False

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        if self.away:
            raise CatalogUnavailable("no reply to COMMIT", determinate=False)
        with super().transaction() as conn:
            yield conn


def an_end_is_an_end(catalog: Catalog) -> None:
    """A worker that has ended an ownership writes no more under it, whether or not the catalog has heard of it."""
    unheard = _Unheard(catalog)
    world = World(catalog)
    world.log.flush(40)
    services = Services.create(unheard, world.log.store, world.clock)
    ours = ReplicationWorker(services, "a", lambda _: world.written, letters_of_operators)
    world.give("a")
    ours._beat()
    ours._look()
    (lane_id,) = ours._runs
    unheard.away = True
    ours._drop(lane_id)
    ours._round()
    unheard.away = False
    before = lane_places(catalog)
    ours._look()
    assert not ours._runs
    assert lane_places(catalog) != before, "it tells the catalog again"


def lanes_take_over_from_the_slowest(_: Catalog) -> None:
    halves = (KeyRange(b"", b"m"), KeyRange(b"m", b""))
    old = [
        Progress(scope=KeyScope(range=part), checkpoint_ts=ts, attempted_ts=ts + 5)
        for part, ts in zip(halves, (30, 10), strict=True)
    ]
    inherited = vars(lanes)["inherited"]  # as lanes are cut with it, a mutant's included
    assert inherited(ALL, old) == (10, 35)
    assert inherited(KeyScope(range=KeyRange(b"", b"c")), old) == (30, 35)


def lanes_have_each_key_once(_: Catalog) -> None:
    """What a destination says of its regions is checked; a refused key is in a lane of its own, and no other."""
    cluster = _cluster(Scheduler("ranges"))
    cluster.bounds = [b"c", b"f", b"m"]
    row: Any = SimpleNamespace(kind=TenantKind.RAW, tenant=T)
    target = _Target(uri=parse_sink_uri("tikv://pd:2379"), row=row, policy=OPERATED, cluster=cluster)
    for count in (1, 2, 3, 4, 9):
        cut = opening.cut_lanes(target, FEED, KeyRange(b"a", b"z"), count, ManualClock())
        ranges = [scope.range for scope in cut if isinstance(scope, KeyScope)]
        assert covers(ranges, KeyRange(b"a", b"z"))
        assert len(ranges) == min(count, 4)
    rest, alone = ALL.isolate(b"k1".hex())
    assert alone.range == KeyRange(b"k1", b"k1\0")
    assert rest.without == (alone.range,)


def lanes_meet_at_statements(_: Catalog) -> None:
    """See the test of the core."""
    meeting: Any = test_lane_core.test_lanes_meet_at_each_statement
    meeting.hypothesis.inner_test([7, 20], [(0, 9), (0, 9), (1, 5), (2, 3), (0, 9)])


def lanes_have_each_change_once(catalog: Catalog) -> None:
    """Rows and DDL statements of a recording, read by three lanes in stretches that end at each statement."""
    log = LogBuilder(catalog, MemoryStore()).build(3)
    services = Services.create(catalog, log.store, ManualClock())
    served = services.served(T)
    shares = [TableScope(number=n, of=3) for n in range(3)]
    whole = Read(after=0, upto=served.resolved, exact=True, record="")
    create_changefeed(
        catalog, T, FEED, None, sink_uri="file:///x", options="{}", filters="{}", scopes=shares, target_ts=0, hold_ms=0
    )
    history = served.known_history
    wanted = history.events(history.start_ts, served.resolved)
    ends = sorted({served.resolved, *(event.commit_ts for event in wanted)})
    events: list[DdlEvent] = []
    rows = 0
    for lane in list_lanes(catalog, T, FEED):
        reader = LaneReader(services=services, job=LaneJob(lane, "file:///x", "{}", "{}", 0, 3))
        at = 0
        for upto in ends:
            with services.reader.memory.held(T) as held:
                stretch = reader.read(Read(after=at, upto=upto, exact=True, record=""), served, held)
            events += stretch.events
            rows += stretch.rows.num_rows
            at = stretch.upto
    assert sorted(event.job_id for event in events) == sorted(event.job_id for event in wanted)
    job = LaneJob(replace(lane, scope=TableScope()), "file:///x", "{}", "{}", 0, 1)
    with services.reader.memory.held(T) as held:
        assert rows == LaneReader(services=services, job=job).read(whole, served, held).rows.num_rows > 10_000


def a_cluster_has_what_was_written(_: Catalog) -> None:
    """The newest version of each key, by the clock of the cluster: what remains of it, or nothing."""
    for seed in range(12):
        scheduler = Scheduler(f"recovery/{seed}")
        threads.use(scheduler)
        cluster = _cluster(scheduler)
        cluster.dice = Dice(f"recovery/{seed}", {"slow": 0.5, "slow_s": 0.5})
        now_s = cluster.unix_ms() // 1000
        entries = [Entry(n, b"k", b"%d" % n) for n in range(1, 9)]
        entries += [Entry(20, b"gone", b"x", now_s - 1), Entry(21, b"soon", b"y", now_s + 50)]
        stretch = Stretch(after=0, upto=30, rows=entry_rows(entries))
        clock = ManualClock(cluster.unix_ms() - cluster.skew_ms)
        recovery = SimRecovery(cluster=cluster, owner=(FIRST, 1, 1), scope=ALL, clock=clock)
        threads.spawn(Process("p", scheduler), lambda: recovery.write(recovery.plan(stretch, ""), lambda: 5.0), "write")  # noqa: B023 - at once
        scheduler.run(20.0)
        scheduler.close()
        threads.use(None)
        assert scheduler.failed is None
        assert sorted(cluster.data) == [b"k", b"soon"]
        assert cluster.data[b"k"].value == b"8"
        assert abs(cluster.data[b"soon"].expire_ms - (now_s + 50) * 1000) <= 2000


def a_lost_reply_is_waited_for(_: Catalog) -> None:
    """When a write has failed, none of its requests can be applied any more."""
    for seed in range(4):
        scheduler = Scheduler(f"late/{seed}")
        threads.use(scheduler)
        cluster = _cluster(scheduler)
        cluster.dice = Dice(f"late/{seed}", {"rec_late": 1.0})
        applied: list[float] = []
        cluster.on_applied = lambda *_: applied.append(scheduler.now)  # noqa: B023 - at once
        recovery = SimRecovery(cluster=cluster, owner=(FIRST, 1, 1), scope=ALL, clock=ManualClock())
        stretch = Stretch(after=0, upto=30, rows=entry_rows([Entry(1, b"k", b"1")]))
        ended: list[float] = []

        def write(recovery: SimRecovery = recovery, stretch: Stretch = stretch, ended: list[float] = ended) -> None:
            with pytest.raises(DestinationUnavailable):
                recovery.write(recovery.plan(stretch, ""), lambda: 5.0)
            ended.append(recovery.cluster.scheduler.now)

        threads.spawn(Process("p", scheduler), write, "write")
        scheduler.run(20.0)
        scheduler.close()
        threads.use(None)
        assert len(ended) == 1
        assert all(at <= ended[0] for at in applied)


def _cluster(scheduler: Scheduler) -> RecoveryCluster:
    dice = Dice("recovery", {"slow": 0.3, "slow_s": 0.5})
    return RecoveryCluster(scheduler, dice, lambda: 1_750_000_000_000 + int(scheduler.now * 1000), lambda text: None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target(Target):
    cluster: RecoveryCluster

    def open(self, share: Share, clock: Clock) -> SimRecovery:
        return SimRecovery(cluster=self.cluster, owner=(FIRST, 0, 0), scope=ALL, clock=clock)


CHECKS: dict[Callable[[Catalog], None], Sequence[str]] = {
    stretches_are_attempted_and_repeated: (
        "checkpoint-of-a-failed-batch", "attempted-too-late", "attempt-not-repeated",
    ),
    a_changefeed_holds_its_log: ("hold-ignored", "continues-at-the-floor"),
    leases_exclude_each_other: ("lane-lease-ignored", "owner-before-ignored"),
    giving_up_is_for_oneself: ("given-up-for-others",),
    an_end_is_an_end: ("written-after-giving-up",),
    lanes_meet_at_statements: ("lanes-pass-statements",),
    lanes_have_each_change_once: ("statement-twice",),
    lanes_take_over_from_the_slowest: ("rebalanced-ahead",),
    lanes_have_each_key_once: ("lanes-with-a-hole", "lanes-that-overlap", "refused-key-in-two-lanes"),
    a_lost_reply_is_waited_for: ("retried-before-deadline",),
    a_cluster_has_what_was_written: ("versions-at-once", "ttl-by-the-host", "expired-for-ever"),
}  # fmt: skip


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_rule_holds(check: Callable[[Catalog], None], catalog: Catalog) -> None:
    check(catalog)


@pytest.mark.parametrize(("check", "name"), [(check, name) for check, names in CHECKS.items() for name in names])
def test_a_broken_rule_is_noticed(check: Callable[[Catalog], None], name: str, catalog: Catalog) -> None:
    with MUTANTS[name].patch(), pytest.raises((AssertionError, TiStreamError)):
        check(catalog)


def test_every_mutant_of_replications_has_a_check() -> None:
    known = {name for names in CHECKS.values() for name in names}
    assert known == {name for name, mutant in MUTANTS.items() if mutant.scenario == "replication"}
