"""The cost of the simulated service, in units of the scheduler that it runs on.

Runs of the usual scenario are compared with as many steps of the bare scheduler: threads that sleep, take locks and set
events, and no product code. Both sides are timed in CPU seconds of this process, including the libraries' threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from benchmarks.harness import Result
from simulator.dst import threads
from simulator.dst.run import Outcome
from simulator.dst.run import run as simulate
from simulator.dst.scheduler import Process, Scheduler

SEEDS = (2, 4)  # of the usual scenario
ACTIONS = 80
THREADS = 24
RUNS = 7
TARGET = 40
BARE_REPEATED = 5  # within a run, for it takes little


def run() -> Iterator[Result]:
    """One ratio: CPU seconds of simulated runs in CPU seconds of the bare scheduler."""
    runs = _runs()
    steps = sum(outcome.events for outcome in runs)
    if not all(outcome.held and outcome.pulls for outcome in runs) or abs(_bare(steps) - steps) > steps / 50:
        raise ValueError("the two sides do not take as many steps, or a run failed")
    ratios = []
    for _ in range(RUNS):
        before = _cpu_seconds(lambda: _bare(steps), BARE_REPEATED)
        simulated = _cpu_seconds(_runs, 1)
        after = _cpu_seconds(lambda: _bare(steps), BARE_REPEATED)
        ratios.append(simulated / ((before + after) / 2))
    yield Result.of("simulation/run-in-bare-steps", ratios, TARGET, "lower")


def _cpu_seconds(side: Callable[[], object], repeat: int) -> float:
    start = time.process_time()
    for _ in range(repeat):
        side()
    return (time.process_time() - start) / repeat


def _runs() -> list[Outcome]:
    return [simulate(seed, "usual", actions=ACTIONS) for seed in SEEDS]


def _bare(steps: int) -> int:
    """At least this many steps; returns how many."""
    scheduler = Scheduler("bare")
    threads.use(scheduler)
    lock, event = threads.Lock(), threads.Event()

    def work() -> None:
        while True:
            scheduler.sleep(0.1)
            with lock:
                scheduler.point("a step of input and output")
            event.set()
            event.wait(0.1)
            event.clear()

    process = Process("bare", scheduler)
    for i in range(THREADS):
        threads.spawn(process, work, f"thread {i}")
    try:
        while scheduler.steps < steps:
            scheduler.run(scheduler.now + 0.02)
    finally:
        scheduler.close()
        threads.use(None)
    return scheduler.steps
