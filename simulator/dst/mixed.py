"""An upgrade of the service under faults: each process runs one of two neighbouring releases, in any mix.

An operator stops processes and starts them again under the other release, forward and back, then all of them forward,
and tries the way back once more when it is closed. The newer release has a feature that the older one cannot read: its
leader switches it on. Every other rule of a run holds meanwhile.

    lives      when the feature is switched on, no process of the older release lives
    admitted   afterwards none registers, sends a heartbeat, or leads

In the end every process runs the newer release, and the feature is on.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from metaserver import loop
from simulator.dst.aspect import Aspect
from simulator.dst.mutants import replaced
from tistream.catalog.database import compatibility
from tistream.catalog.rows.workers import WorkerState
from tistream.catalog.work import features, workers
from tistream.catalog.work.features import Feature
from tistream.release import THIS_RELEASE, Release

if TYPE_CHECKING:
    from simulator.dst.running import Running
    from simulator.dst.world import World

NEWER = Release(THIS_RELEASE.major, THIS_RELEASE.minor + 1, 0)
PARCELS = Feature(name="parcels", since=NEWER, changes="files are written as parcels")
ROLES = ("meta", "dispatcher", "sorter")
_LOOK_S = 0.5  #: between two looks of a leader at who lives
_DEED_S = 0.6  #: mean time between two deeds of the operator
_FORWARD = 0.6  #: of them
_DECIDED = (0.3, 0.6)  #: the part of the run after which all are moved forward

_LATER_BEATS = (
    "SELECT w.worker_id FROM workers w, features f "
    "WHERE w.release_no < f.release_no AND w.state <> 'gone' AND w.heartbeat_ms > f.enabled_ms"
)
_OLDER_LEADER = (
    "SELECT l.name FROM leader l, features f WHERE l.release_no < f.release_no AND l.heartbeat_ms > f.enabled_ms"
)
_REGISTERED = "SELECT worker_id FROM workers WHERE release_no < ? AND state <> ?"


class Mixed(Aspect):
    """The releases of one run, its operator, and the rules."""

    features = (PARCELS,)

    def __init__(self, world: World) -> None:
        self._world = world
        self._rand = random.Random(f"{world.seed}/mixed")
        self._newer: set[str] = set()  #: names of the processes that run the newer release
        self._is_on = False
        self._counts = {"upgraded": 0, "downgraded": 0, "switched_on": 0}
        world.oracle.rules.more.append(self)

    def release_of(self, name: str) -> Release | None:
        """What a process of this name runs when it is started now."""
        return NEWER if name in self._newer else THIS_RELEASE

    @contextmanager
    def patched(self) -> Iterator[None]:
        """Leaders look often. A lock of the row `catalog_release` waits for the transaction that holds it and whose
        COMMIT comes late: SQLite's statements do not say that they lock."""

        def waiting(lock: Callable[..., Any]) -> Callable[..., Any]:
            def waits(*given: Any) -> Any:
                self._world.database.land()
                return lock(*given)

            return waits

        with ExitStack() as stack:
            stack.enter_context(replaced(loop, "FEATURES_S", _LOOK_S))
            stack.enter_context(replaced(features, "keep_out", waiting(compatibility.keep_out)))
            stack.enter_context(replaced(workers, "admit", waiting(compatibility.admit)))
            yield

    def start(self) -> None:
        world = self._world
        self._operate()
        until = world.actions * world.profile.action_s
        world.scheduler.call_at(world.scheduler.now + until * self._rand.uniform(*_DECIDED), self._forward)

    def rest(self) -> None:
        """The operator completes the upgrade."""
        self._forward()

    def settle(self) -> None:
        self._world.until(lambda: self._is_on, "rest: the feature is not switched on")

    def counts(self) -> dict[str, int]:
        return self._counts

    def look(self, query: Callable[..., list[Any]]) -> None:
        """After a COMMIT, as a rule."""
        if not self._is_on and query("SELECT name FROM features"):
            self._is_on = True
            self._counts["switched_on"] = 1
            self._world.tell("the feature is on")
            older = {name for (name,) in query(_REGISTERED, NEWER.number, WorkerState.GONE)}
            for running in self._world.running:
                if running.name in older and not running.process.dead and running.catalog.release < NEWER:
                    self._world.oracle.violated(f"features: {running.name} of {running.catalog.release} lives")
        for (name,) in (*query(_LATER_BEATS), *query(_OLDER_LEADER)):
            self._world.oracle.violated(f"features: {name} of an older release continues after the feature is on")

    def _names(self) -> list[str]:
        return sorted({running.name for running in self._world.running if running.role in ROLES})

    def _operate(self) -> None:
        """The next deed."""
        world = self._world
        if world.resting:
            return
        self._replace(self._rand.choice(self._names()), forward=self._rand.random() < _FORWARD)
        s = world.scheduler
        s.call_at(s.now + self._rand.expovariate(1 / _DEED_S), self._operate)

    def _forward(self) -> None:
        for name in self._names():
            self._replace(name, forward=True)

    def _replace(self, name: str, *, forward: bool) -> None:
        """Stop the processes of this name, if they run the other release: the supervisor starts one of the new one."""
        if (name in self._newer) == forward:
            return
        (self._newer.add if forward else self._newer.discard)(name)
        self._counts["upgraded" if forward else "downgraded"] += 1
        self._world.tell(f"an operator moves {name} to {self.release_of(name)}")
        for running in self._living(name):
            running.stopping.set()

    def _living(self, name: str) -> list[Running]:
        return [r for r in self._world.running if r.name == name and not r.process.dead]
