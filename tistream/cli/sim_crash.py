"""`tistream sim --crash-points`: kills at every PUT, DELETE and COMMIT of a scenario, and prints failures."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulator.dst.crash_points import Failure, Plan

_STORY_LINES = 40
_FAILURES_SHOWN = 10
_PROGRESS_EVERY = 20


def plan_of(profile: str | None, seed: int | None, mutant: str | None, *, pairs: bool, every: int) -> Plan:
    """The plan that the options describe."""
    from simulator.dst.crash_points import PAIRS, Plan

    plan = replace(PAIRS if pairs else Plan(), every=every, mutant=mutant)
    plan = plan if profile is None else replace(plan, scenario=profile)
    return plan if seed is None else replace(plan, seed=seed)


def play_all(plan: Plan, jobs: int) -> bool:
    """Enumerate; with a mutant only up to the first violation. Whether nothing failed."""
    from simulator.dst.crash_points import Tally, enumerate_points

    tally, shown = Tally(), 0
    for at, tally in enumerate(enumerate_points(plan, jobs=jobs, stop_at_first=plan.mutant is not None)):
        for failure in tally.failures[shown:_FAILURES_SHOWN]:
            _report(plan, failure, whole=False)
        shown = len(tally.failures)
        if at % _PROGRESS_EVERY == 0:
            print(f"{tally.runs} runs, {shown} violations", file=sys.stderr, flush=True)
    print(f"{plan.scenario}, seed {plan.seed}: {tally}")
    return not tally.failures


def play_one(plan: Plan, text: str, *, whole: bool) -> bool:
    """Play the run with these points. Whether it held."""
    from simulator.dst.boundaries import parse_points
    from simulator.dst.crash_points import Failure, play

    points = parse_points(text)
    played = Failure(points=points, outcome=play(plan, points))
    if played.violations:
        _report(plan, played, whole=whole)
        return False
    if whole:
        print("\n".join(played.outcome.story))
    print(f"{plan.scenario}, seed {plan.seed}, {text}: held, trace {played.outcome.trace_hash}")
    return True


def _report(plan: Plan, failure: Failure, *, whole: bool) -> None:
    """Print a failure, and the command that repeats it."""
    text = ",".join(str(point) for point in failure.points)
    print("\n".join(failure.outcome.story if whole else failure.outcome.story[-_STORY_LINES:]))
    for violation in failure.violations:
        print(f"{plan.scenario}, seed {plan.seed}, {text or 'no crash'}: {violation}")
    parts = [f"tistream sim --profile {plan.scenario} --seed {plan.seed}"]
    parts += [f"--mutant {plan.mutant}"] if plan.mutant else []
    parts += [f"--crash-point {text}" if text else "--crash-points"]
    print(f"repeat: {' '.join(parts)}", flush=True)
