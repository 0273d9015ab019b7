"""`tistream sim`: play the whole service under a seed, with everything that may go wrong, and check the promises."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from tistream.sim.run import Outcome

_MUTANT_SEEDS = 2000
_STORY_LINES = 60


@dataclass(frozen=True, slots=True)
class _Job:
    seed: int
    profile: str | None
    mutant: str | None
    actions: int | None
    without: frozenset[str]


def add_to(app: typer.Typer) -> None:
    """Register the command."""
    app.command()(sim)


def sim(
    seed: Annotated[int | None, typer.Option(help="Play this seed.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Play seeds A:B, B not included.")] = None,
    profile: Annotated[str | None, typer.Option(help="Scenario; each seed has one of its own otherwise.")] = None,
    mutant: Annotated[str | None, typer.Option(help="Break this rule and look whether that is noticed.")] = None,
    list_mutants: Annotated[bool, typer.Option("--list-mutants", help="Show what can be broken, and stop.")] = False,
    shrink: Annotated[bool, typer.Option("--shrink", help="Look for a smaller run that fails the same way.")] = False,
    actions: Annotated[int | None, typer.Option(help="Upstream actions.")] = None,
    without: Annotated[str, typer.Option(help="Faults and events to leave out, separated by commas.")] = "",
    jobs: Annotated[int, typer.Option(min=1, help="Processes that share the seeds.")] = 1,
    story: Annotated[bool, typer.Option("--story", help="Tell the whole story of the run.")] = False,
) -> None:
    """Play the whole service on simulated time, with faults: nothing may be lost, doubled or out of order."""
    from tistream.sim.mutants import MUTANTS
    from tistream.sim.profiles import PROFILES

    if list_mutants:
        for known in MUTANTS.values():
            print(f"{known.name:32} {known.scenario:10} {known.rule}")
        return
    for given, known_names in ((mutant, MUTANTS), (profile, PROFILES)):
        if given is not None and given not in known_names:
            raise typer.BadParameter(f"there is no '{given}'; known are {', '.join(sorted(known_names))}")
    left_out = frozenset(filter(None, without.split(",")))
    chosen = profile or (MUTANTS[mutant].scenario if mutant else None)
    work = [_Job(number, chosen, mutant, actions, left_out) for number in _range(seed, seeds, bool(mutant))]
    failed = _play(work, jobs, stop_at_first=mutant is not None, story=story, shrink=shrink)
    raise typer.Exit(1 if failed else 0)


def _range(seed: int | None, seeds: str | None, mutant: bool) -> Sequence[int]:
    if seed is not None:
        return [seed]
    if seeds is not None:
        first, _, last = seeds.partition(":")
        if not (first.isdecimal() and last.isdecimal()):
            raise typer.BadParameter("give --seeds as A:B")
        return range(int(first), int(last))
    return range(_MUTANT_SEEDS if mutant else 1)


def _play(work: Sequence[_Job], jobs: int, *, stop_at_first: bool, story: bool, shrink: bool) -> int:
    """Play them all; how many failed."""
    began, events, played, failed = time.monotonic(), 0, 0, 0
    for job, outcome in _outcomes(work, jobs):
        events, played = events + outcome.events, played + 1
        if outcome.held:
            if story:
                print("\n".join(outcome.story))
            if len(work) == 1:
                print(f"seed {outcome.seed} ({outcome.profile}): held, trace {outcome.trace_hash}")
            continue
        failed += 1
        _report(job, outcome, whole=story, shrink=shrink)
        if stop_at_first:
            break
    took = max(time.monotonic() - began, 1e-9)
    print(
        f"{played} seeds, {failed} failed, {events} events; "
        f"{events / took:.0f} events/s, {60 * played / took:.0f} seeds/min",
        file=sys.stderr,
    )
    return failed


def _outcomes(work: Sequence[_Job], jobs: int) -> Iterator[tuple[_Job, Outcome]]:
    if jobs == 1 or len(work) == 1:
        yield from ((job, _run(job)) for job in work)
        return
    with ProcessPoolExecutor(jobs, max_tasks_per_child=None) as pool:
        futures = [(job, pool.submit(_run, job)) for job in work]
        try:
            for job, future in futures:
                yield job, future.result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _run(job: _Job) -> Outcome:
    from contextlib import nullcontext

    from tistream.sim.mutants import MUTANTS
    from tistream.sim.run import run

    with MUTANTS[job.mutant].patch() if job.mutant else nullcontext():
        return run(job.seed, job.profile, actions=job.actions, without=job.without)


def _report(job: _Job, outcome: Outcome, *, whole: bool, shrink: bool) -> None:
    """What failed, one line that repeats it, and the story."""
    from tistream.sim.shrink import smaller

    if shrink:

        def again(actions: int | None, without: frozenset[str]) -> Outcome:
            return _run(_Job(job.seed, job.profile, job.mutant, actions, without))

        outcome, actions, without = smaller(outcome, again, job.actions, job.without)
        job = _Job(job.seed, job.profile, job.mutant, actions, without)
    lines = outcome.story if whole or shrink else outcome.story[-_STORY_LINES:]
    print("\n".join(lines))
    for violation in outcome.violations:
        print(f"seed {outcome.seed} ({outcome.profile}): {violation}")
    parts = [f"tistream sim --seed {outcome.seed} --profile {outcome.profile}"]
    parts += [f"--mutant {job.mutant}"] if job.mutant else []
    parts += [f"--actions {job.actions}"] if job.actions is not None else []
    parts += [f"--without {','.join(sorted(job.without))}"] if job.without else []
    print(f"repeat: {' '.join(parts)}", flush=True)
