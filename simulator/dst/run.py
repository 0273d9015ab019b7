"""One run: a seed and a scenario in, a trace hash, violations and a story out."""

from __future__ import annotations

import contextlib
import gc
import random
import time
import traceback
from collections.abc import Callable, Collection, Iterator, MutableMapping
from dataclasses import dataclass

import structlog

from simulator.dst import threads
from simulator.dst.boundaries import Boundary, Point
from simulator.dst.bounds import drawn, lowered
from simulator.dst.install import installed
from simulator.dst.profile import Profile
from simulator.dst.profiles import PROFILES, profile_of
from simulator.dst.scenario import parts_of
from simulator.dst.scheduler import Livelock
from simulator.dst.world import World


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a run. Equal seeds, scenarios and omissions give equal outcomes, but for `seconds`."""

    seed: int
    profile: str
    trace_hash: str
    events: int  #: scheduling steps
    violations: tuple[str, ...]
    story: tuple[str, ...]
    simulated_s: float
    counts: dict[str, int]  #: how much happened: see `_counts`
    labels: tuple[str, ...]  #: faults and events that happened, for `without`
    seconds: float
    boundaries: tuple[Boundary, ...]  #: PUTs, DELETEs and COMMITs, in order
    struck: tuple[Point, ...]  #: crash points that were reached

    @property
    def committed(self) -> int:
        """Rows that the upstream committed."""
        return self.counts["committed"]

    @property
    def pulls(self) -> int:
        """Pulls that were compared with the truth."""
        return self.counts["pulls"]

    @property
    def held(self) -> bool:
        return not self.violations


def run(
    seed: int,
    profile: Profile | str | None = None,
    *,
    actions: int | None = None,
    without: frozenset[str] = frozenset(),
    points: Collection[Point] = (),
) -> Outcome:
    """Run a scenario (the seed's own when none is named). `actions` shortens the upstream, `without` leaves out faults
    and events by the names that `Outcome.labels` shows; at `points` processes are killed."""
    chosen = PROFILES[profile] if isinstance(profile, str) else profile or profile_of(seed)
    began = time.process_time()
    length = chosen.actions if actions is None else actions
    with _prepared(seed, chosen, length, without, points) as world:
        s, oracle = world.scheduler, world.oracle
        try:
            world.run()
        except Livelock as e:
            oracle.violated(f"livelock: {e}")
        if s.failed is not None:
            task, error = s.failed
            where = "".join(traceback.format_exception(error)[-3:])
            oracle.violated(f"died: {task.process.name} {task.name}: {where}")
        hit = {name for dice in world.dice.values() for name in dice.hit}
        outcome = Outcome(
            seed=seed,
            profile=chosen.name,
            trace_hash=s.trace_hash,
            events=s.steps,
            violations=tuple(oracle.violations),
            story=tuple(f"{at:8.3f} {who:16} {text}" for at, who, text in world.story),
            simulated_s=s.now,
            counts=_counts(world),
            labels=(*sorted(hit), *(("bounds",) if world.bounds else ()), *(event.label for event in world.plan)),
            seconds=time.process_time() - began,
            boundaries=tuple(world.boundaries.passed),
            struck=tuple(world.boundaries.struck),
        )
    return outcome


def _counts(world: World) -> dict[str, int]:
    """How much happened in a run, to compare runs and their cost by."""
    return {
        "events": world.scheduler.steps,
        "committed": len(world.workload.committed),
        "pulls": world.oracle.pulls,
        "rows": world.oracle.rows,
        "lacked": 0 if world.raw is None else world.raw.missing,
        "transactions": world.database.transactions,
        "puts": world.bucket.puts,
        "gets": world.bucket.gets,
        "processes": len(world.running),
        **{name: count for aspect in world.aspects for name, count in aspect.counts().items()},
        "crashes": world.crashes,
        "faults": sum(sum(dice.hit.values()) for dice in world.dice.values()),
    }


@contextlib.contextmanager
def _prepared(
    seed: int, profile: Profile, actions: int, without: frozenset[str], points: Collection[Point]
) -> Iterator[World]:
    """A world with the simulation installed; everything is put back afterwards."""
    logging = structlog.get_config()
    bounds = {} if "bounds" in without else drawn(seed, profile.name)
    gc.disable()  # a run is short, and its greenlets are a lot to look through
    world = World(f"{seed}/{profile.name}", profile, parts_of(profile), actions=actions, without=without, points=points)
    threads.use(world.scheduler)
    story_logger(world.tell)
    world.bounds = bounds
    if bounds:
        world.tell(f"bounds: {bounds}")
    chance = random.Random(f"{seed}/{profile.name}/chance")
    try:
        with (
            lowered(bounds),
            installed(chance, profile.limits),
            world.oracle.watching_cores(),
            contextlib.ExitStack() as stack,
        ):
            for aspect in world.aspects:
                stack.enter_context(aspect.patched())
            yield world
            world.scheduler.close()
    finally:
        world.scheduler.closing = True
        for database in world.databases:
            database.close()
        threads.use(None)
        structlog.configure(**logging)
        gc.enable()


def story_logger(tell: Callable[[str], None]) -> None:
    """Let the rooms' log lines become part of the story."""

    def noted(_logger: object, level: str, event: MutableMapping[str, object]) -> str:
        if level != "debug":
            facts = " ".join(f"{k}={v}" for k, v in event.items() if k not in ("event", "exc_info"))
            error = event.get("exc_info")
            tell(f"[{level}] {event['event']} {facts}" + (f" {error!r}" if error else ""))
        raise structlog.DropEvent

    structlog.configure(processors=[noted], cache_logger_on_first_use=False)
