"""A changefeed of the raw tenant to a recovery cluster: the real workers write it, an operator disturbs it.

`replicator`   the real `ReplicationWorker`; the meta server gives it lanes
`controller`   an operator who does everything that the API allows (`changefeed_operator`), and lets the recovery
               cluster refuse a key for a while. In half of the runs the changefeed holds the log for five seconds: one
               that comes back later fails, and the recovery cluster is loaded anew
`retainer`     gives up the log as far as nothing holds it (`raw_floors`)
"""

from __future__ import annotations

import random
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import apiserver.control.changefeed_control
import destinations.opening
import reading.log.reader
import replicator.stretch
from apiserver.control.changefeed_control import ChangefeedSettings
from reading.log.reader import LogPage, LogReader
from reading.served.services import Services
from replicator.worker import ReplicationWorker
from simulator.dst.bounds import patched
from simulator.dst.changefeed_operator import Scenario
from simulator.dst.database import SimDatabase
from simulator.dst.recovery import RecoveryCluster, SimLetters, SimRecovery
from simulator.dst.replication_rules import ReplicationRules
from simulator.dst.running import Running, serve
from tistream.catalog.work.core.lane_scope import KeyScope
from tistream.catalog.work.lanes import LaneJob
from tistream.clock import Clock
from tistream.codec.raw.keys import PREFIX_BYTES
from tistream.exports.restore import Restored
from tistream.keyrange import KeyRange
from tistream.objectstore.generations import FIRST

if TYPE_CHECKING:
    from simulator.dst.world import World

LOOK_S = 0.3
_HOLDS_MS = (5_000, 86_400_000)
_URI = "tikv://recovery:2379"
_LETTERS = "s3://letters"


_DEEDS = ("pause", "rebalance", "rebalance", "rewind", "recreate", "update", "target", "refuse", "decide")
#: what a restored changefeed may lack without harm; the other deeds an operator has to repeat
_KEPT = ("pause", "rebalance", "update")


class Replication(Scenario):
    """The recovery cluster of a run, and the rules."""

    names = ("recovery", "recovery", "again")
    name = "recovery"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        assert world.raw is not None
        assert world.profile.raw is not None
        self.cluster = RecoveryCluster(world.scheduler, world.dice["recovery"], world.unix_ms, world.tell)
        prefix = world.raw.range.start[:PREFIX_BYTES]
        self.rules = ReplicationRules(world.raw.truth, prefix, self.cluster, world.oracle.violated)
        world.oracle.rules.more.append(self.rules)
        self.cluster.on_sent, self.cluster.on_applied = self.rules.sent, self.rules.applied
        self.cluster.on_letter = self.rules.kept
        self.keys: list[bytes] = [b"k%08d" % number for number in range(world.profile.raw.keys)]
        rand = random.Random(f"{prefix!r}{self.cluster.skew_ms}")
        self._may_write_letters = world.profile.letters
        self.wanted = ChangefeedSettings(
            sink_uri=_URI, hold_ms=rand.choice(_HOLDS_MS), dead_letter=_LETTERS if world.profile.letters else ""
        )
        self.deeds = (*_DEEDS, "refuse", "refuse") if world.profile.letters else _DEEDS
        if world.profile.lost:
            self.deeds = _KEPT
        self.split(rand)

    @property
    def stops(self) -> int:
        return self.cluster.stops

    def other(self, wanted: ChangefeedSettings, rand: random.Random) -> ChangefeedSettings:
        return replace(wanted, dead_letter=rand.choice(("", _LETTERS)) if self._may_write_letters else "")

    def split(self, rand: random.Random) -> None:
        self.cluster.bounds = sorted(rand.sample(self.keys[1:], 4))

    def refuse(self, rand: random.Random) -> bool:
        cluster, letters = self.cluster, self._may_write_letters
        if cluster.refused is not None:
            cluster.refused = None
            return True
        if rand.random() < 0.3 or letters:
            cluster.refused = rand.choice(self.keys[:3] if letters else self.keys)
            self._world.tell(f"the recovery cluster refuses {cluster.refused!r}")
        return False

    def takes_all(self) -> None:
        self.cluster.refused = None

    def loaded(self, ts: int) -> None:
        self.rules.loaded(ts)

    def skipped(self, error: dict[str, Any]) -> None:
        self.rules.left_out.add((int(str(error["commit_ts"])), bytes.fromhex(str(error["key"]))))

    def at_rest(self) -> None:
        self.rules.at_rest()

    def replicate(self, running: Running) -> None:
        catalog, store, clock = running.catalog, running.store, running.clock
        rand = random.Random(self._world.scheduler.rand.random())
        reader = _NotedReader(catalog, store, clock)
        reader.name, reader.rules = running.name, self.rules
        services = replace(Services.create(catalog, store, clock), reader=reader)

        def opened(job: LaneJob) -> SimRecovery:
            assert isinstance(job.lane.scope, KeyScope)
            owner = running.catalog.generation or FIRST, job.lane.lane_id, job.lane.epoch
            return SimRecovery(cluster=self.cluster, owner=owner, scope=job.lane.scope, clock=clock)

        def letters(job: LaneJob, uri: str, clock: Clock) -> SimLetters:
            assert uri == _LETTERS
            return SimLetters(cluster=self.cluster)

        look = running.look_first
        serve(
            running,
            ReplicationWorker(
                services, running.name, opened, letters, slots=2, look_s=LOOK_S, look_first=look, rand=rand
            ),
        )

    def restored(self, database: SimDatabase, made: Restored) -> None:
        has_place = bool(database.query("SELECT destination_id FROM destinations"))
        self.rules.restored(made.generation, has_place=has_place)

    def counts(self) -> dict[str, int]:
        """How much happened: requests, owners of lanes, keys that went back when a lane changed its owner."""
        rules = self.rules
        letters = {"letters": len(rules.letters)} if rules.letters else {}
        return {"written": self.cluster.requests, "owners": len(rules.owners), "went_back": rules.went_back, **letters}

    def patched(self) -> AbstractContextManager[None]:
        """A stretch has a few rows of the log, and reads a few of its segments. Before a lane is there the cluster is
        opened, too."""

        def opened(*_: Any) -> SimRecovery:
            return SimRecovery(cluster=self.cluster, owner=(0, 0, 0), scope=KeyScope(range=KeyRange()), clock=None)

        opening = destinations.opening
        return patched(
            [
                (replicator.stretch, "BYTES", 100),
                (reading.log.reader, "_PAGE_STORED_BYTES_MAX", 3000),
                (opening, "open_tikv", opened),
                (opening, "TikvDestination", SimRecovery),
                (apiserver.control.changefeed_control, "check_letters", lambda *_: None),
            ]
        )


class _NotedReader(LogReader):
    """A LogReader whose pages the rules know."""

    name: str
    rules: ReplicationRules

    def page(self, *args: Any, after: int, **named: Any) -> LogPage:
        page = super().page(*args, after=after, **named)
        self.rules.paged(self.name, page.rows, after, page.upto)
        return page
