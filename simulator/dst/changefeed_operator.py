"""Who owns the changefeed of a run, and does everything that the API allows, through the code that answers the API.

    pause, resume, rebalance, rewind       at random, some of them one right after the other
    recreate                               remove it, and create it again: under the same or another name, where it was
                                           or further back, at once or later
    update                                 other settings, while it is paused: what the scenario offers
    target                                 an end ahead, at or below the checkpoint; once finished it continues
    refuse, decide                         a change is refused for a while; a stopped lane is tried again, or leaves it
                                           out

At rest the changefeed runs without an end, and nothing is refused.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from apiserver.control.changefeed_control import ChangefeedControl, ChangefeedSettings
from schemas.registry.schema_registry import SchemaRegistry
from simulator.dst.aspect import Aspect
from simulator.dst.running import TENANT, Running
from tistream import ts as tso
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS, ChangefeedRow
from tistream.catalog.tenancy.log_readers import ReaderState
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.catalog.work.changefeeds import remove_changefeed
from tistream.catalog.work.lanes import list_lanes
from tistream.catalog.work.tasks import frontier
from tistream.errors import ErrorKind, TiStreamError
from tistream.outbound.policy import NO_TERMS

if TYPE_CHECKING:
    from simulator.dst.world import World

_EVERY_S = 3.0  # mean time between two deeds
_SETTLED = (ErrorKind.RETRY, ErrorKind.FENCED, ErrorKind.INVALID, ErrorKind.NOT_FOUND)


class Scenario(Aspect, ABC):
    """A changefeed that workers write: what is written, and where."""

    names: Sequence[str]  #: of the changefeed, one after the other
    deeds: Sequence[str]
    rules: Any
    wanted: ChangefeedSettings
    name: str
    start_ts: int | None = None  #: of the next one that is created; None = the start of the log

    def __init__(self, world: World) -> None:
        self._world = world

    def roles(self) -> Mapping[str, Callable[[Running], None]]:
        return {"replicator": self.replicate, "controller": lambda running: operate(self._world, running, self)}

    def processes(self) -> Iterable[tuple[str, str]]:
        workers = [("replicator", f"replicator-{i + 1}") for i in range(self._world.profile.replicators)]
        return [*workers, ("controller", "controller-1")]

    def has_all(self, upto: int) -> bool:
        rules = self.rules
        return bool(rules.is_settled and rules.lowest() >= upto and rules.checkpoint_ts >= upto)

    @abstractmethod
    def replicate(self, running: Running) -> None:
        """A process that writes the changefeed."""

    @property
    @abstractmethod
    def stops(self) -> int:
        """How often a host has stopped in the middle of a request, or one was held up."""

    @abstractmethod
    def other(self, wanted: ChangefeedSettings, rand: random.Random) -> ChangefeedSettings:
        """Other settings."""

    @abstractmethod
    def split(self, rand: random.Random) -> None:
        """The destination is cut otherwise."""

    @abstractmethod
    def refuse(self, rand: random.Random) -> bool:
        """The destination refuses a change, or takes it again; whether it takes all now."""

    @abstractmethod
    def takes_all(self) -> None:
        """The destination refuses nothing any more."""

    @abstractmethod
    def loaded(self, ts: int) -> None:
        """The destination was loaded with a copy of what there is as of then."""

    @abstractmethod
    def skipped(self, error: dict[str, Any]) -> None:
        """The operator leaves this change out."""


def operate(world: World, running: Running, scenario: Scenario) -> None:
    """Until the end."""
    operator, rand = Operator(world, running, scenario), running.rand
    stops = 0
    while not running.stopping.wait(0.3):
        stopped, stops = scenario.stops > stops and not scenario.rules.is_idle, scenario.stops
        if not (stopped or world.resting or operator.is_due()):
            continue
        try:
            if world.resting:
                operator.settle()
            elif stopped and rand.random() < 0.7:
                operator.do("rebalance" if rand.random() < 0.5 or "recreate" not in scenario.deeds else "recreate")
            else:
                operator.do(rand.choice(scenario.deeds))
        except TiStreamError as e:
            world.tell(f"the API refuses: {e}")
            if e.kind not in _SETTLED:
                raise


class Operator:
    """See the module."""

    def __init__(self, world: World, running: Running, scenario: Scenario) -> None:
        self._world, self._catalog, self._rand = world, running.catalog, running.rand
        self._scenario = scenario
        registry = SchemaRegistry(running.catalog, running.store, clock=running.clock)
        self._control = ChangefeedControl(
            catalog=running.catalog, clock=running.clock, registry=registry, outbound=NO_TERMS
        )
        self._idle_until_s = 0.0
        self._created = False

    def is_due(self) -> bool:
        """Whether to do something."""
        if not self._created:
            return True
        if self._scenario.rules.is_idle:
            return self._world.scheduler.now >= self._idle_until_s
        return self._rand.random() < 0.3 / _EVERY_S

    def settle(self) -> None:
        """Mend and run everything."""
        self._scenario.takes_all()
        feed = self._changefeed()
        if feed is None:
            self._create()
        elif feed.state is ReaderState.FINISHED:
            self._continue(feed)
        elif feed.target_ts and feed.state is ReaderState.NORMAL:
            return  # its end comes
        elif feed.state is not ReaderState.NORMAL or any(lane.is_stopped for lane in self._lanes()):
            self._resume(feed)

    def do(self, what: str) -> None:
        """One of these deeds, or what must come before it."""
        feed = self._changefeed()
        if feed is None:
            self._create()
        elif feed.state is ReaderState.FINISHED:
            self._continue(feed)
        elif feed.state is not ReaderState.NORMAL and what != "recreate":
            self._resume(feed)
        else:
            deeds: dict[str, Callable[[ChangefeedRow], None]] = {
                "pause": self._pause,
                "rebalance": self._rebalance,
                "rewind": self._rewind,
                "recreate": self._recreate,
                "update": self._update,
                "target": self._set_target,
                "refuse": self._refuse,
                "decide": self._decide,
            }
            deeds[what](feed)

    # -- deeds

    def _create(self) -> None:
        scenario = self._scenario
        start_ts, earliest_ts = scenario.start_ts, get_tenant(self._catalog, TENANT).earliest_ts
        if start_ts is not None and start_ts < earliest_ts:  # the log was given up meanwhile
            start_ts = scenario.start_ts = self._load()
        self._world.tell(f"an operator creates {scenario.name} above {start_ts}: {scenario.wanted}")
        self._control.create(
            TENANT, scenario.name, start_ts, scenario.wanted, lanes=self._rand.randrange(1, 4), actor="op"
        )
        self._created = True

    def _pause(self, feed: ChangefeedRow) -> None:
        seconds = self._rand.choice((0.0, 1.5, 7.0))
        self._world.tell(f"an operator pauses the changefeed for {seconds} s")
        self._idle_until_s = self._world.scheduler.now + seconds
        CHANGEFEEDS.switch(self._catalog, TENANT, feed.name, ReaderState.STOPPED)

    def _resume(self, feed: ChangefeedRow) -> None:
        """Run it again; when it has failed, above a copy of the source, which the destination gets."""
        to_ts = None
        self._world.tell(f"an operator resumes the changefeed, which is {feed.state}: {feed.error}")
        if feed.state is ReaderState.FAILED:
            to_ts = self._load()
        self._control.resume(TENANT, feed.name, to_ts, actor="op")

    def _rebalance(self, feed: ChangefeedRow) -> None:
        self._scenario.split(self._rand)
        lanes = self._rand.randrange(1, 5)
        self._world.tell(f"an operator cuts the changefeed into {lanes}")
        self._control.rebalance(TENANT, feed.name, lanes)

    def _rewind(self, feed: ChangefeedRow) -> None:
        """Back to somewhere between the start of the log and the checkpoint."""
        earliest_ts = get_tenant(self._catalog, TENANT).earliest_ts
        if earliest_ts < feed.checkpoint_ts and self._rand.random() < 0.3:
            to_ts = self._rand.randrange(max(earliest_ts, 1), feed.checkpoint_ts + 1)
            self._scenario.rules.rewinds.add(to_ts)
            self._world.tell(f"an operator moves the changefeed back to {to_ts}")
            self._control.resume(TENANT, feed.name, to_ts, actor="op")

    def _recreate(self, feed: ChangefeedRow) -> None:
        rand, scenario = self._rand, self._scenario
        self._world.tell(f"an operator removes {feed.name}, which is at {feed.checkpoint_ts}")
        scenario.start_ts = rand.choice((feed.checkpoint_ts, feed.checkpoint_ts, feed.start_ts))
        remove_changefeed(self._catalog, TENANT, feed.name)
        scenario.name = rand.choice(scenario.names)
        if rand.random() < 0.7:
            self._create()

    def _update(self, feed: ChangefeedRow) -> None:
        other = self._scenario.other(self._scenario.wanted, self._rand)
        self._world.tell(f"an operator pauses and updates the changefeed to {other}")
        CHANGEFEEDS.switch(self._catalog, TENANT, feed.name, ReaderState.STOPPED)
        self._world.scheduler.sleep(self._rand.choice((0.0, 0.0, 0.5, 3.0)))
        self._change(feed, other)

    def _set_target(self, feed: ChangefeedRow) -> None:
        at = self._rand.choice((-3000, -1, 0, 0, 1500, 1500))
        target_ts = feed.checkpoint_ts if at == 0 else max(1, feed.checkpoint_ts + tso.compose(at))
        self._world.tell(f"an operator lets the changefeed end at {target_ts}, {at} ms from its checkpoint")
        CHANGEFEEDS.switch(self._catalog, TENANT, feed.name, ReaderState.STOPPED)
        self._change(feed, replace(self._scenario.wanted, target_ts=target_ts))

    def _change(self, feed: ChangefeedRow, other: ChangefeedSettings) -> None:
        self._control.update(TENANT, feed.name, other, actor="op")
        self._scenario.wanted = replace(other, target_ts=0)
        if self._rand.random() < 0.8:
            self._control.resume(TENANT, feed.name, None, actor="op")

    def _continue(self, feed: ChangefeedRow) -> None:
        self._world.tell(f"an operator lets the changefeed, which is finished at {feed.checkpoint_ts}, go on")
        if feed.target_ts:
            self._control.update(TENANT, feed.name, self._scenario.wanted, actor="op")
        is_gone = feed.checkpoint_ts < get_tenant(self._catalog, TENANT).earliest_ts
        to_ts = self._load() if is_gone else feed.checkpoint_ts
        self._scenario.rules.rewinds.add(to_ts)
        self._control.resume(TENANT, feed.name, to_ts, actor="op")

    def _refuse(self, feed: ChangefeedRow) -> None:
        if self._scenario.refuse(self._rand):
            self._control.resume(TENANT, feed.name, None, actor="op")

    def _decide(self, feed: ChangefeedRow) -> None:
        for lane in self._lanes():
            if lane.is_stopped and lane.error is not None:
                leave_out = self._rand.random() < 0.6
                self._world.tell(f"an operator {'leaves out' if leave_out else 'tries again'}: {lane.error}")
                if leave_out:
                    self._scenario.skipped(lane.error)
                self._control.decide(TENANT, feed.name, lane.number, leave_out=leave_out)

    def _load(self) -> int:
        """Give the destination a copy of the source, when no request is under way; as of when it is."""
        self._world.scheduler.sleep(2.0)
        to_ts = min(row.durable_ts for row in frontier(self._catalog, TENANT))
        self._scenario.loaded(to_ts)
        return to_ts

    # -- what there is

    def _changefeed(self) -> ChangefeedRow | None:
        return next(iter(CHANGEFEEDS.of_tenant(self._catalog, TENANT)), None)

    def _lanes(self) -> Sequence[Any]:
        return list_lanes(self._catalog, TENANT)
