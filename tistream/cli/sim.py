"""`tistream sim`: runs the whole service on simulated time with faults, and checks its promises.

--crash-points    kills at every PUT, DELETE and COMMIT of a scenario
--serve-tikv      instead serves a modelled cluster with a workload as PD and TiKV, on the loopback interface

`tistream chaos`: runs a whole deployment on this machine under random faults; nothing may be lost.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tistream.cli.run import on_signals

if TYPE_CHECKING:
    from simulator.dst.crash_points import CrashPlan, Failure
    from simulator.dst.results import Results
    from simulator.dst.run import Outcome

_MUTANT_SEEDS = 2000
_STORY_LINES = 60
_WHY_CHARS = 120  # of a violation, in the line of its seed
_CRASH_STORY_LINES = 40
_FAILURES_SHOWN = 10
_PROGRESS_EVERY = 20
_STORM_RESOLVED_S = 0.5
_AHEAD = 16  # queued seeds per process, so that a long one does not block the others


@dataclass(frozen=True, slots=True)
class _Job:
    seed: int
    profile: str | None
    mutant: str | None
    actions: int | None
    without: frozenset[str]


def sim(
    seed: Annotated[int | None, typer.Option(help="Play this seed.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Play seeds A:B, B not included.")] = None,
    profile: Annotated[str | None, typer.Option(help="Scenario; by default each seed chooses one.")] = None,
    mutant: Annotated[str | None, typer.Option(help="Break this rule and check that it is noticed.")] = None,
    list_mutants: Annotated[
        bool, typer.Option("--list-mutants", help="List the rules that can be broken, and stop.")
    ] = False,
    shrink: Annotated[bool, typer.Option("--shrink", help="Find a smaller run that fails the same way.")] = False,
    actions: Annotated[int | None, typer.Option(help="Upstream actions.")] = None,
    without: Annotated[str, typer.Option(help="Faults and events to leave out, separated by commas.")] = "",
    processes: Annotated[int, typer.Option(min=1, help="Processes that share the seeds.")] = 1,
    story: Annotated[bool, typer.Option("--story", help="Print the whole story of the run.")] = False,
    results: Annotated[
        Path | None, typer.Option(help="Keep the results of --seeds in this file, and skip those it has.")
    ] = None,
    keep: Annotated[
        Path | None, typer.Option(help="Add a line for each seed that fails, as tests/sim/regressions has them.")
    ] = None,
    crash_points: Annotated[
        bool, typer.Option("--crash-points", help="Kill before and after every PUT, DELETE and COMMIT of a scenario.")
    ] = False,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="With --crash-points: of a small scenario, and a second time in each run.")
    ] = False,
    every: Annotated[int, typer.Option(min=1, help="With --crash-points: play only every N-th of them.")] = 1,
    crash_point: Annotated[
        str | None, typer.Option(help="Play one run with these crash points, such as 17:after,40:before.")
    ] = None,
    serve_tikv: Annotated[
        bool, typer.Option("--serve-tikv", help="Instead, serve a modelled cluster as PD and TiKV until Ctrl-C.")
    ] = False,
    storm: Annotated[
        bool, typer.Option("--storm", help="With --serve-tikv: regions and stores change, and all errors occur.")
    ] = False,
    stores: Annotated[int, typer.Option(min=1, help="With --serve-tikv: number of stores.")] = 3,
    regions: Annotated[int, typer.Option(min=1, help="With --serve-tikv: least number of regions.")] = 1,
    rate: Annotated[float, typer.Option(min=0, help="With --serve-tikv: steps of the workload per second.")] = 50.0,
) -> None:
    """Run the whole service on simulated time with faults, and check its promises."""
    if serve_tikv:
        serve_cluster(seed=seed or 0, stores=stores, regions=regions, rate=rate, storm=storm)
        return
    from simulator.dst.all_mutants import MUTANTS
    from simulator.dst.crash_points import SCENARIOS

    if list_mutants:
        for known in MUTANTS.values():
            print(f"{known.name:32} {known.scenario:10} {known.rule}")
        return
    for given, known_names in ((mutant, MUTANTS), (profile, SCENARIOS)):
        if given is not None and given not in known_names:
            raise typer.BadParameter(f"there is no '{given}'; known are {', '.join(sorted(known_names))}")
    if crash_points or crash_point is not None:
        plan = plan_of(profile, seed, mutant, pairs=pairs, every=every)
        held = play_all(plan, processes) if crash_point is None else play_one(plan, crash_point, whole=story)
        raise typer.Exit(0 if held else 1)
    chosen = profile or (MUTANTS[mutant].scenario if mutant else None)
    job = _Job(0, chosen, mutant, actions, frozenset(filter(None, without.split(","))))
    player = _Player(jobs=processes, story=story, shrink=shrink, keep=keep)
    if results is None:
        failed = player.play([replace(job, seed=n) for n in _range(seed, seeds, mutant is not None)])
    else:
        if seeds is None or mutant or without or actions is not None:
            raise typer.BadParameter("--results is for --seeds, and for whole runs")
        failed = player.play_into(results, _range(None, seeds, False), job)
    raise typer.Exit(1 if failed else 0)


def _range(seed: int | None, seeds: str | None, mutant: bool) -> range:
    if seed is not None:
        return range(seed, seed + 1)
    if seeds is not None:
        first, _, last = seeds.partition(":")
        if not (first.isdecimal() and last.isdecimal()):
            raise typer.BadParameter("give --seeds as A:B")
        return range(int(first), int(last))
    return range(_MUTANT_SEEDS if mutant else 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Player:
    """Plays seeds and prints the results."""

    jobs: int
    story: bool
    shrink: bool
    keep: Path | None

    def play(self, work: Sequence[_Job]) -> int:
        """Play them all, or until a mutant is noticed; how many failed."""
        speed, failed = _Speed(), 0
        for job, outcome in self._outcomes(work):
            speed.add(outcome)
            failed += self._tell(job, outcome)
            if len(work) == 1 and outcome.held:
                print(f"seed {outcome.seed} ({outcome.profile}): held, trace {outcome.trace_hash}")
            if job.mutant and failed:
                break
        print(f"{speed.played} seeds, {failed} failed, {speed}", file=sys.stderr)
        return failed

    def play_into(self, path: Path, seeds: range, job: _Job) -> int:
        """Play the seeds that the file lacks, and add them; how many failed, including those it had."""
        from simulator.dst.results import Results

        results, profile = Results(path), job.profile or ""
        speed, pieces = _Speed(), results.missing(seeds, profile)
        outcomes = self._outcomes([replace(job, seed=seed) for piece in pieces for seed in piece])
        for piece in pieces:
            played: list[Outcome] = []
            for done, outcome in islice(outcomes, len(piece)):
                speed.add(outcome)
                self._tell(done, outcome)
                played.append(outcome)
            results.add(piece, profile, played)
            print(f"seeds {piece.start}:{piece.stop} played; {speed}", file=sys.stderr, flush=True)
        print("\n".join(results.summary()))
        return _failed(results, seeds)

    def _outcomes(self, work: Sequence[_Job]) -> Iterator[tuple[_Job, Outcome]]:
        """In the order of the work."""
        if self.jobs == 1 or len(work) == 1:
            yield from ((job, self._without_story(_run(job))) for job in work)
            return
        from simulator.dst.pool import pool_of

        with pool_of(self.jobs) as pool:
            left = iter(work)
            ahead = deque((job, pool.submit(_run, job)) for job in islice(left, self.jobs * _AHEAD))
            while ahead:
                job, future = ahead.popleft()
                outcome = self._without_story(future.result())
                ahead.extend((more, pool.submit(_run, more)) for more in islice(left, 1))
                yield job, outcome

    def _without_story(self, outcome: Outcome) -> Outcome:
        """Stories of runs that succeeded are dropped: there may be thousands."""
        return replace(outcome, story=()) if outcome.held and not self.story else outcome

    def _tell(self, job: _Job, outcome: Outcome) -> bool:
        """Print the result of a run; whether it failed."""
        if outcome.held:
            if self.story:
                print("\n".join(outcome.story))
            return False
        if self.shrink:
            from simulator.dst.shrink import smaller

            def again(actions: int | None, without: frozenset[str]) -> Outcome:
                return _run(replace(job, actions=actions, without=without))

            outcome, actions, without = smaller(outcome, again, job.actions, job.without)
            job = replace(job, actions=actions, without=without)
        lines = outcome.story if self.story or self.shrink else outcome.story[-_STORY_LINES:]
        print("\n".join(lines))
        for violation in outcome.violations:
            print(f"seed {outcome.seed} ({outcome.profile}): {violation}")
        print(f"repeat: {_again(job, outcome)}", flush=True)
        if self.keep is not None:
            _keep(self.keep, job, outcome)
        return True


class _Speed:
    """Measures the speed."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self.played = self.events = 0

    def add(self, outcome: Outcome) -> None:
        self.played += 1
        self.events += outcome.events

    def __str__(self) -> str:
        took = max(time.monotonic() - self._began, 1e-9)
        return f"{self.events} events; {self.events / took:.0f} events/s, {60 * self.played / took:.0f} seeds/min"


def _run(job: _Job) -> Outcome:
    from contextlib import nullcontext

    from simulator.dst.all_mutants import MUTANTS
    from simulator.dst.run import run

    with MUTANTS[job.mutant].patch() if job.mutant else nullcontext():
        return run(job.seed, job.profile, actions=job.actions, without=job.without)


def _failed(results: Results, seeds: range) -> int:
    return sum(violation["seed"] in seeds for line in results.lines for violation in line.violations)


def _again(job: _Job, outcome: Outcome) -> str:
    """The command that repeats a run."""
    parts = [f"tistream sim --seed {outcome.seed} --profile {outcome.profile}"]
    parts += [f"--mutant {job.mutant}"] if job.mutant else []
    parts += [f"--actions {job.actions}"] if job.actions is not None else []
    parts += [f"--without {','.join(sorted(job.without))}"] if job.without else []
    return " ".join(parts)


def _keep(path: Path, job: _Job, outcome: Outcome) -> None:
    """Add the seed to the file of regressions."""
    parts = [str(outcome.seed), outcome.profile]
    parts += [f"actions={job.actions}"] if job.actions is not None else []
    parts += [f"without={','.join(sorted(job.without))}"] if job.without else []
    why = f"{job.mutant}: {outcome.violations[0]}" if job.mutant else outcome.violations[0]
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        file.write(f"{' '.join(parts)}  # {' '.join(why.split())[:_WHY_CHARS]}\n")


def plan_of(profile: str | None, seed: int | None, mutant: str | None, *, pairs: bool, every: int) -> CrashPlan:
    """The plan that the options describe."""
    from simulator.dst.crash_points import PAIRS, CrashPlan

    plan = replace(PAIRS if pairs else CrashPlan(), every=every, mutant=mutant)
    plan = plan if profile is None else replace(plan, scenario=profile)
    return plan if seed is None else replace(plan, seed=seed)


def play_all(plan: CrashPlan, jobs: int) -> bool:
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


def play_one(plan: CrashPlan, text: str, *, whole: bool) -> bool:
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


def _report(plan: CrashPlan, failure: Failure, *, whole: bool) -> None:
    """Print a failure, and the command that repeats it."""
    text = ",".join(str(point) for point in failure.points)
    print("\n".join(failure.outcome.story if whole else failure.outcome.story[-_CRASH_STORY_LINES:]))
    for violation in failure.violations:
        print(f"{plan.scenario}, seed {plan.seed}, {text or 'no crash'}: {violation}")
    parts = [f"tistream sim --profile {plan.scenario} --seed {plan.seed}"]
    parts += [f"--mutant {plan.mutant}"] if plan.mutant else []
    parts += [f"--crash-point {text}" if text else "--crash-points"]
    print(f"repeat: {' '.join(parts)}", flush=True)


def serve_cluster(*, seed: int, stores: int, regions: int, rate: float, storm: bool) -> None:
    """Serve until Ctrl-C. PD's address goes to standard output."""
    from simulator.profiles import SLOW_STORM, STEADY
    from simulator.serve.content import workload_cluster
    from simulator.serve.faults import CALM, STORM
    from simulator.serve.served import ServedCluster
    from simulator.workload import Workload
    from tistream import ts
    from tistream.cli.run import wait_for_signal
    from tistream.clock import SystemClock

    clock = SystemClock()
    profile = replace(SLOW_STORM if storm else STEADY, stores=stores)
    cluster = workload_cluster(profile, floor_ts=ts.compose(clock.unix_ms()), regions=regions)
    workload = Workload(seed, cluster, profile, whole_meta=True)
    with ServedCluster(
        cluster,
        stores=stores,
        workload=workload,
        steps_per_s=rate,
        resolved_s=_STORM_RESOLVED_S if storm else 1.0,
        faults=STORM if storm else CALM,
        seed=seed,
    ) as served:
        print(served.pd_address, flush=True)
        print(
            f"PD at {served.pd_address}, {stores} stores, {len(cluster.regions())} regions, seed {seed}; "
            f"history begins at {cluster.floor_ts}; Ctrl-C ends it",
            file=sys.stderr,
            flush=True,
        )
        wait_for_signal(served.check)
        print(f"{len(workload.committed)} changes committed; {dict(served.feed.counts)}", file=sys.stderr, flush=True)


def chaos(
    minutes: Annotated[float, typer.Option(min=0.1, help="How long faults are injected.")] = 3.0,
    seed: Annotated[int | None, typer.Option(help="Seed of the faults and of the upstream; random by default.")] = None,
    pause: Annotated[float, typer.Option(min=0.5, help="Seconds between two events, about.")] = 5.0,
    sorters: Annotated[int, typer.Option(min=1, help="How many of them.")] = 2,
    dispatchers: Annotated[int, typer.Option(min=1, help="How many of them.")] = 2,
    rate: Annotated[float, typer.Option(help="Steps of the modelled workload per second.")] = 200.0,
) -> None:
    """Run a deployment under random faults, while readers follow its log.

    It runs on a MariaDB and an S3 server, fed by a modelled cluster; its processes are killed, paused, cut off and
    restarted. Needs Debian's mariadb-server-core, mariadb-client-core and libfaketime, and the extra testing.

    The report goes to standard output as JSON. Exit status 0: no promise was violated."""
    import secrets

    from simulator.chaos.rig import Size
    from simulator.chaos.run import run

    stop = threading.Event()
    on_signals(stop.set)
    chosen = secrets.randbelow(1 << 31) if seed is None else seed
    size = Size(sorters=sorters, dispatchers=dispatchers, steps_per_s=rate)
    report = run(minutes * 60, chosen, size, _say, every_s=pause, stop=stop)
    print(json.dumps(report.shown(), indent=2))
    if not report.held:
        raise typer.Exit(1)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
