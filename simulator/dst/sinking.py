"""A changefeed of a TiDB tenant to object storage: the real workers and the real destination write it, over `Sink`.

`replicator`   the real `ReplicationWorker`; the meta server gives it lanes
`controller`   an operator who does everything that the API allows (`changefeed_operator`): among it, other filters, and
               another folder and back
"""

from __future__ import annotations

import json
import random
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import apiserver.control.changefeed_control
import destinations.storage.destination
import destinations.storage.files
import replicator.stretch
from apiserver.control.changefeed_control import ChangefeedSettings
from destinations.opening import open_destination
from destinations.protocol import Allowed, DeadLetter, DeadLetterUnavailable, Destination, LeaseOver, Plan, Stretch
from destinations.storage.core.contents import refused
from reading.served.services import Services
from replicator.worker import ReplicationWorker
from simulator.dst import coroutines
from simulator.dst.bounds import patched
from simulator.dst.changefeed_operator import Scenario
from simulator.dst.running import Running, serve
from simulator.dst.sink import Sink, open_sim_files
from simulator.dst.sink_rules import SinkRules, place_of
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.catalog.work.lanes import LaneJob
from tistream.outbound.policy import OPERATED

if TYPE_CHECKING:
    from simulator.dst.world import World

LOOK_S = 0.3
_OPTIONS = "?protocol=canal-json&enable-tidb-extension=true&date-separator=none"
_URIS = tuple(f"file:///lake/{name}{_OPTIONS}" for name in ("a", "a", "b"))
_FILTERS: tuple[Mapping[str, str], ...] = ({}, {}, {"tables": "Shop.Table1"}, {"tables": "Shop.Table2,Shop.Table3"})
_LETTERS = "file:///letters"


class Sinking(Scenario):
    """The folders of a run, and the rules."""

    names = ("lake", "lake", "pond")
    name = "lake"
    deeds = ("pause", "rebalance", "rewind", "recreate", "update", "update", "target", "refuse", "decide")

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._dice = world.dice["recovery"]
        self.sink = Sink(world.scheduler, self._dice, world.tell)
        self.rules = SinkRules(world.workload.committed, world.workload.shows, self.sink, world.oracle.violated)
        world.oracle.rules.more.append(self.rules)
        self.wanted = ChangefeedSettings(sink_uri=_URIS[0], hold_ms=0)
        self._refused: bytes | None = None

    def replicate(self, running: Running) -> None:
        catalog, clock = running.catalog, running.clock
        rand = random.Random(self._world.scheduler.rand.random())

        def opened(job: LaneJob) -> Destination:
            lane, row = job.lane, get_tenant(catalog, job.lane.tenant)
            made = open_destination(
                job.sink_uri, row, lane.tenant, lane.changefeed_id, lane.number, job.lanes, clock, OPERATED
            )
            return _Refusing(made, self)

        def letters(*_: Any) -> _Letters:
            return _Letters(self)

        services = Services.create(catalog, running.store, clock)
        serve(running, ReplicationWorker(services, running.name, opened, letters, slots=2, look_s=LOOK_S, rand=rand))

    def has_all(self, upto: int) -> bool:
        """Also: no object is under way."""
        return super().has_all(upto) and self._world.scheduler.now > self.sink.all_there_at

    def at_rest(self) -> None:
        self.rules.at_rest(self._world.database.query)

    def counts(self) -> dict[str, int]:
        """How much happened."""
        rules = self.rules
        return {"written": self.sink.requests, "owners": len(rules.owners), "finished": rules.finished}

    @contextmanager
    def patched(self) -> Iterator[None]:
        """A stretch has a few rows of the log; the destination waits as simulated threads do."""
        destination, files = destinations.storage.destination, destinations.storage.files
        opened = open_sim_files(self.sink)
        with patched(
            [
                (replicator.stretch, "BYTES", 1200),
                (destination, "open_files", opened),
                (destination, "asyncio", coroutines),
                (files, "asyncio", coroutines),
                (apiserver.control.changefeed_control, "check_letters", lambda *_: None),
            ]
        ):
            yield
        coroutines.close()

    # -- for the operator

    @property
    def stops(self) -> int:
        return self.sink.stops

    def other(self, wanted: ChangefeedSettings, rand: random.Random) -> ChangefeedSettings:
        dead_letter = rand.choice(("", "", _LETTERS))
        return replace(
            wanted, sink_uri=rand.choice(_URIS), filters=dict(rand.choice(_FILTERS)), dead_letter=dead_letter
        )

    def split(self, rand: random.Random) -> None:
        """Tables are shared out by name."""

    def refuse(self, rand: random.Random) -> bool:
        if self._refused is not None:
            self._refused = None
            return True
        rows = [row.key for row in self._world.workload.committed[-8:] if place_of(row.key)]
        if rows:
            self._refused = rand.choice(rows)
            self._world.tell(f"the folder refuses {self._refused.hex()}")
        return False

    def takes_all(self) -> None:
        self._refused = None

    def loaded(self, ts: int) -> None:
        """The log of a TiDB tenant is kept in these runs."""

    def skipped(self, error: dict[str, Any]) -> None:
        self.left_out(str(error["key"]), int(str(error["commit_ts"])))

    # -- for its destinations

    def check(self, stretch: Stretch) -> None:
        """DestinationRefused for a change that is refused."""
        keys, stamps = stretch.rows["key"].to_pylist(), stretch.rows["commit_ts"].to_pylist()
        for key, ts in zip(keys, stamps, strict=True):
            if key == self._refused:
                place = place_of(key)
                assert place is not None
                raise refused("Shop", place[0], key, ts, "it is refused for a while")

    def keep(self, letters: Any, allowed: Allowed) -> None:
        """Write dead letters."""
        for letter in letters:
            if allowed() <= 0:
                raise LeaseOver
            self._world.scheduler.point(f"letter: {letter.name}")
            self._kept(letter)
            if self._dice.roll("letter_lost"):
                raise DeadLetterUnavailable("letter_lost")

    def left_out(self, key: str, commit_ts: int) -> None:
        """This change need not be in a file."""
        place = place_of(bytes.fromhex(key))
        assert place is not None
        self.rules.left_out.add((commit_ts, *place))

    def _kept(self, letter: DeadLetter) -> None:
        line = json.loads(letter.data)
        self.left_out(b64decode(line["stored"]["key"]).hex(), int(line["commit_ts"]))


class _Refusing:
    """A destination that refuses a change."""

    def __init__(self, inner: Destination, sinking: Sinking) -> None:
        self._inner, self._sinking = inner, sinking

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def plan(self, stretch: Stretch, record: str) -> Plan:
        self._sinking.check(stretch)
        return self._inner.plan(stretch, record)


class _Letters:
    """DeadLetters of one lane."""

    def __init__(self, sinking: Sinking) -> None:
        self.keep = sinking.keep

    def close(self) -> None:
        """It has no connections."""
