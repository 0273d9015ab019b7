"""A changefeed of the raw tenant to a recovery cluster: the real workers write it, an operator disturbs it.

`replicator`   the real `ReplicationWorker`; the meta server gives it lanes
`controller`   creates the changefeed; then pauses, resumes, rebalances and rewinds it at random, and lets the recovery
               cluster refuse a key for a while. In half of the runs the changefeed holds the log for five seconds: one
               that comes back later fails, and the recovery cluster is loaded anew
`retainer`     gives up the log as far as nothing holds it (`raw_floors`)
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import reading.reader
import replicator.stretch
from destinations.opening import Target, cut_lanes
from destinations.protocol import Share
from destinations.uri import parse_sink_uri
from reading.deps import Services
from reading.reader import LogPage, LogReader
from replicator.worker import ReplicationWorker
from simulator.dst.bounds import patched
from simulator.dst.database import SimCatalog
from simulator.dst.faults import Dice
from simulator.dst.recovery import RecoveryCluster, SimLetters, SimRecovery
from simulator.dst.replication_rules import FEED, ReplicationRules
from simulator.dst.store import SimStore
from tistream.catalog.tenancy.changefeeds import ChangefeedRow, FeedState, get_changefeed, switch_changefeed
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.catalog.work.core.lane_scope import KeyScope, LaneScope
from tistream.catalog.work.lanes import LaneJob, list_lanes, replace_lanes
from tistream.catalog.work.replications import create_replication, resume_replication
from tistream.catalog.work.tasks import frontier
from tistream.clock import Clock
from tistream.codec.raw.keys import PREFIX_BYTES
from tistream.errors import ErrorKind, TiStreamError
from tistream.ids import Tenant
from tistream.keyrange import KeyRange

LOOK_S = 0.3
_EVERY_S = 3.0  # mean time between two deeds of the operator
_DEEDS = ("pause", "rebalance", "rebalance", "rewind", "refuse")
_SETTLED = (ErrorKind.RETRY, ErrorKind.FENCED, ErrorKind.INVALID, ErrorKind.NOT_FOUND)
_HOLDS_MS = (5_000, 86_400_000)
_QUIET_S = 2.0  # after it has failed no request is under way
_URI = "tikv://recovery:2379"
_LETTERS = "s3://letters"


class Replication:
    """The recovery cluster of a run, and the rules."""

    def __init__(self, world: Any, dice: Dice) -> None:
        self.cluster = RecoveryCluster(world.scheduler, dice, world.unix_ms, world.tell)
        prefix = world.raw.range.start[:PREFIX_BYTES]
        self.rules = ReplicationRules(world.raw.truth, prefix, self.cluster, world.oracle.violated)
        self.cluster.on_sent, self.cluster.on_applied = self.rules.sent, self.rules.applied
        self.cluster.on_letter = self.rules.kept
        self.keys: list[bytes] = [b"k%08d" % number for number in range(world.profile.raw.keys)]
        rand = random.Random(f"{prefix!r}{self.cluster.skew_ms}")
        self.hold_ms = rand.choice(_HOLDS_MS)
        self.split(rand)

    def split(self, rand: random.Random) -> None:
        """The cluster has other regions."""
        self.cluster.bounds = sorted(rand.sample(self.keys[1:], 4))

    def worker(self, name: str, catalog: SimCatalog, store: SimStore, clock: Clock, rand: random.Random) -> Any:
        """The parts of a process that replicates."""
        reader = _NotedReader(catalog, store, clock)
        reader.name, reader.rules = name, self.rules
        services = replace(Services.create(catalog, store, clock), reader=reader)

        def opened(job: LaneJob) -> SimRecovery:
            assert isinstance(job.lane.scope, KeyScope)
            owner = job.lane.lane_id, job.lane.epoch
            return SimRecovery(cluster=self.cluster, owner=owner, scope=job.lane.scope, clock=clock)

        def letters(uri: str, clock: Clock) -> SimLetters:
            assert uri == _LETTERS
            return SimLetters(cluster=self.cluster)

        return ReplicationWorker(services, name, opened, slots=2, look_s=LOOK_S, rand=rand, open_letters=letters)

    def has_written(self, upto: int) -> bool:
        """Whether the changefeed runs and has reached this."""
        return self.rules.is_settled and self.rules.lowest() >= upto and self.rules.checkpoint_ts >= upto

    def counts(self) -> dict[str, int]:
        """How much happened: requests, owners of lanes, keys that went back when a lane changed its owner."""
        rules = self.rules
        letters = {"letters": len(rules.letters)} if rules.letters else {}
        return {"written": self.cluster.requests, "owners": len(rules.owners), "went_back": rules.went_back, **letters}

    @contextmanager
    def small_stretches(self) -> Iterator[None]:
        """A stretch has a few rows of the log, and reads a few of its segments."""
        with patched([(replicator.stretch, "BYTES", 100), (reading.reader, "_PAGE_STORED_BYTES_MAX", 3000)]):
            yield


class _NotedReader(LogReader):
    """A LogReader whose pages the rules know."""

    name: str
    rules: ReplicationRules

    def page(self, *args: Any, after: int, **named: Any) -> LogPage:
        page = super().page(*args, after=after, **named)
        self.rules.paged(self.name, page.rows, after, page.upto)
        return page


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target(Target):
    """The recovery cluster, before a lane is there."""

    cluster: RecoveryCluster

    def open(self, share: Share, clock: Clock) -> SimRecovery:
        return SimRecovery(cluster=self.cluster, owner=(0, 0), scope=KeyScope(range=KeyRange()), clock=clock)


def control(world: Any, running: Any, tenant: Tenant, catalog: SimCatalog, clock: Clock, rand: random.Random) -> None:
    """Until the end. At rest the changefeed runs and the cluster refuses nothing."""
    operator = _Operator(world, tenant, catalog, clock, rand)
    created = False
    stops = 0
    while not running.stopping.wait(0.3):
        cluster, rules = world.replication.cluster, world.replication.rules
        stopped, stops = cluster.stops > stops and not rules.is_idle, cluster.stops
        due = world.resting or operator.is_due()
        if created and not stopped and not due:
            continue
        try:
            if stopped and created and rand.random() < 0.7:
                operator.do("rebalance")
            elif not created:
                operator.create()
                created = True
            elif world.resting:
                operator.settle()
            else:
                operator.do(rand.choice(_DEEDS if not world.profile.letters else ("refuse", *_DEEDS)))
        except TiStreamError as e:
            if e.kind not in _SETTLED:
                raise


class _Operator:
    """Who owns the changefeed."""

    def __init__(self, world: Any, tenant: Tenant, catalog: SimCatalog, clock: Clock, rand: random.Random) -> None:
        self._world, self._tenant, self._catalog, self._rand = world, tenant, catalog, rand
        self._clock = clock
        self._replication: Replication = world.replication
        self._idle_until_s = 0.0

    def is_due(self) -> bool:
        """Whether to do something."""
        if self._replication.rules.is_idle:
            return bool(self._world.scheduler.now >= self._idle_until_s)
        return self._rand.random() < 0.3 / _EVERY_S

    def create(self) -> None:
        options = json.dumps({"dead_letter": _LETTERS} if self._world.profile.letters else {})
        create_replication(
            self._catalog, self._tenant, FEED, None, sink_uri=_URI, options=options, filters="{}",
            scopes=self._lanes(2), target_ts=0, hold_ms=self._replication.hold_ms,
        )  # fmt: skip

    def settle(self) -> None:
        """Mend and run everything."""
        self._replication.cluster.refused = None
        stopped = any(lane.is_stopped for lane in list_lanes(self._catalog, self._tenant, FEED))
        feed = get_changefeed(self._catalog, self._tenant, FEED)
        if stopped or feed.state is not FeedState.NORMAL:
            self._resume(feed)

    def do(self, what: str) -> None:
        """One of `_DEEDS`, or its end."""
        rand, tell = self._rand, self._world.tell
        feed = get_changefeed(self._catalog, self._tenant, FEED)
        if feed.state is not FeedState.NORMAL:
            self._resume(feed)
        elif what == "pause":
            seconds = rand.choice((0.0, 1.5, 7.0))
            tell(f"an operator pauses the changefeed for {seconds} s")
            self._idle_until_s = self._world.scheduler.now + seconds
            switch_changefeed(self._catalog, self._tenant, FEED, FeedState.STOPPED)
        elif what == "rebalance":
            self._replication.split(rand)
            scopes = self._lanes(rand.randrange(1, 5))
            tell(f"an operator cuts the changefeed: {[scope.shown for scope in scopes]}")
            replace_lanes(self._catalog, self._tenant, FEED, scopes)
        elif what == "rewind" and rand.random() < 0.3:
            self._rewind(feed.checkpoint_ts)
        elif what == "refuse":
            cluster = self._replication.cluster
            letters = self._world.profile.letters
            if cluster.refused is None and (rand.random() < 0.3 or letters):
                cluster.refused = rand.choice(self._replication.keys[:3] if letters else self._replication.keys)
                tell(f"the recovery cluster refuses {cluster.refused!r}")
            elif cluster.refused is not None:
                cluster.refused = None
                resume_replication(self._catalog, self._tenant, FEED)

    def _resume(self, feed: ChangefeedRow) -> None:
        """Run it again; when it has failed, above a copy of the main cluster, which the recovery cluster gets."""
        to_ts = None
        self._world.tell(f"an operator resumes the changefeed, which is {feed.state}: {feed.error}")
        if feed.state is FeedState.FAILED:
            self._world.scheduler.sleep(_QUIET_S)
            to_ts = min(row.durable_ts for row in frontier(self._catalog, self._tenant))
            self._replication.rules.loaded(to_ts)
        resume_replication(self._catalog, self._tenant, FEED, to_ts=to_ts)

    def _rewind(self, checkpoint_ts: int) -> None:
        """Back to somewhere between the start of the log and the checkpoint."""
        earliest_ts = get_tenant(self._catalog, self._tenant).earliest_ts
        if earliest_ts < checkpoint_ts:
            to_ts = self._rand.randrange(max(earliest_ts, 1), checkpoint_ts + 1)
            self._replication.rules.rewinds.add(to_ts)
            self._world.tell(f"an operator moves the changefeed back to {to_ts}")
            resume_replication(self._catalog, self._tenant, FEED, to_ts=to_ts)

    def _lanes(self, count: int) -> Sequence[LaneScope]:
        row = get_tenant(self._catalog, self._tenant)
        target = _Target(uri=parse_sink_uri(_URI), row=row, cluster=self._replication.cluster)
        return cut_lanes(target, FEED, KeyRange(), count, self._clock)
