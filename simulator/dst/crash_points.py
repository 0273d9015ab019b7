"""Crash-point enumeration: kills a process at every boundary, one after the other, then at pairs of them.

    count     a scenario is played without faults; its PUTs, DELETEs and COMMITs are numbered (`boundaries`)
    single    for each boundary and each side of it: the same scenario, the process at the boundary is killed
    pairs     for each single point: the resulting run is numbered again, and for each later boundary (recovery
    included)
              and each side of it: the same run, and a second process is killed

The supervisor restarts a killed process; in `crash-takeover` only after others took over. There are no other faults,
and the oracle checks each run completely. `CrashPlan` says what is enumerated. Scenario, seed and mutant determine
everything: a point that fails fails always.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

from simulator import profiles as upstream
from simulator.dst.all_mutants import MUTANTS
from simulator.dst.boundaries import Boundary, Point, Side
from simulator.dst.pool import pool_of
from simulator.dst.profile import Profile
from simulator.dst.profiles import PROFILES, SINGLE
from simulator.dst.run import Outcome, run

_CALM = replace(PROFILES["calm"], actions=80)
SCENARIOS: dict[str, Profile] = PROFILES | {
    p.name: p
    for p in (
        replace(_CALM, name="crash", about="nothing happens by itself; two processes of each kind"),
        replace(
            _CALM,
            name="crash-compaction",
            about="nothing happens by itself; two compactions at once, the collector is quick",
            actions=60,
            tick_s=0.25,
            flush_s=0.15,
            **SINGLE,
            compactors=2,
            compact_s=0.4,
            collect_s=0.5,
            grace_ms=700,
        ),
        replace(
            _CALM,
            name="crash-shapes",
            about="nothing happens by itself, but tasks are split and merged all the time",
            actions=60,
            tick_s=0.5,
            flush_s=0.2,
            snapshot_s=1.5,
            metas=1,
            dispatchers=1,
            sorters=2,
            shapers=1,
            shape_s=0.6,
            limits=PROFILES["shapes"].limits,
        ),
        replace(_CALM, name="crash-takeover", about="as crash; the dead come back after their lease", restart_s=5.5),
        replace(
            _CALM,
            name="crash-pairs",
            about="nothing happens by itself; one process of each kind, one store, one data task",
            actions=24,
            **SINGLE,
            data_tasks=1,
            upstream=replace(upstream.TINY, stores=1),
        ),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class CrashPlan:
    """The points to enumerate."""

    scenario: str = "crash"
    seed: int = 0
    pairs: bool = False  #: a second process is killed, at the boundaries after the first point
    every: int = 1  #: only every n-th of the points, and of the pairs of each
    sides: tuple[Side, ...] = tuple(Side)
    signs_of_life: bool = True  #: also at COMMITs that only renew a lease
    mutant: str | None = None

    def points(self, boundaries: tuple[Boundary, ...], first: int = 1, offset: int = 0) -> list[Point]:
        """The points at the boundaries from number `first` on. `offset` says which of `every` are taken."""
        chosen = [b for b in boundaries if b.number >= first and (self.signs_of_life or not b.alive)]
        points = [Point(b.number, side) for b in chosen for side in b.sides if side in self.sides]
        return points[offset % self.every :: self.every]


PAIRS = CrashPlan(scenario="crash-pairs", seed=6, pairs=True, sides=(Side.BEFORE, Side.AFTER), signs_of_life=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Points at which processes died, and the failed run."""

    points: tuple[Point, ...]
    outcome: Outcome

    @property
    def violations(self) -> tuple[str, ...]:
        missed = [point for point in self.points if point not in self.outcome.struck]
        return (*self.outcome.violations, *(f"no process reached crash point {point}" for point in missed))


@dataclass(slots=True, kw_only=True)
class Tally:
    """The result of an enumeration so far."""

    boundaries: int = 0  #: of the run without crashes
    counted: tuple[int, ...] = ()  #: PUTs, DELETEs, COMMITs, and of the last those that only renew a lease
    runs: int = 0
    singles: int = 0
    pairs: int = 0
    seconds: float = 0.0  #: of processor time
    failures: list[Failure] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.runs += other.runs
        self.singles += other.singles
        self.pairs += other.pairs
        self.seconds += other.seconds
        self.failures += other.failures

    def note(self, points: tuple[Point, ...], outcome: Outcome) -> None:
        """A run has been played."""
        self.runs += 1
        self.singles += len(points) == 1
        self.pairs += len(points) == 2
        self.seconds += outcome.seconds
        failure = Failure(points=points, outcome=outcome)
        if failure.violations:
            self.failures.append(failure)

    def __str__(self) -> str:
        puts, deletes, commits, alive = self.counted
        return (
            f"{self.boundaries} boundaries ({puts} PUT, {deletes} DELETE, {commits} COMMIT, {alive} of these "
            f"signs of life); {self.singles} single points, {self.pairs} pairs; {len(self.failures)} violations; "
            f"{self.seconds:.0f} s of processor time"
        )


def play(plan: CrashPlan, points: tuple[Point, ...]) -> Outcome:
    """One run of the scenario in which processes die at these points."""
    with MUTANTS[plan.mutant].patch() if plan.mutant else nullcontext():
        return run(plan.seed, SCENARIOS[plan.scenario], points=points, without=frozenset({"bounds"}))


def enumerate_points(plan: CrashPlan, *, jobs: int = 1, stop_at_first: bool = False) -> Iterator[Tally]:
    """The tally as it grows, the same object again and again; the last one is the result. The first one is that of the
    run without crashes, and the only one when that does not hold already."""
    calm = play(plan, ())
    tally = Tally(boundaries=len(calm.boundaries), counted=_counted(calm.boundaries))
    tally.note((), calm)
    yield tally
    if tally.failures:
        return
    for part in _parts(plan, plan.points(calm.boundaries), jobs):
        tally.add(part)
        yield tally
        if stop_at_first and tally.failures:
            return


def _parts(plan: CrashPlan, firsts: list[Point], jobs: int) -> Iterator[Tally]:
    if jobs == 1:
        yield from (_from(plan, first, offset) for offset, first in enumerate(firsts))
        return
    with pool_of(jobs) as pool:
        yield from (f.result() for f in [pool.submit(_from, plan, first, at) for at, first in enumerate(firsts)])


def _from(plan: CrashPlan, first: Point, offset: int) -> Tally:
    """One single point, and the pairs that begin with it."""
    tally = Tally()
    outcome = play(plan, (first,))
    tally.note((first,), outcome)
    if plan.pairs and not tally.failures:
        for second in plan.points(outcome.boundaries, first.number + 1, offset):
            tally.note((first, second), play(plan, (first, second)))
    return tally


def _counted(boundaries: tuple[Boundary, ...]) -> tuple[int, ...]:
    kinds = [b.what.partition(" ")[0] for b in boundaries]
    return (kinds.count("PUT"), kinds.count("DELETE"), kinds.count("COMMIT"), sum(b.alive for b in boundaries))
