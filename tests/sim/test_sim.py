"""The simulator itself: its threads, that a seed says everything, that it notices, and a few seeds of the service."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator.dst import threads
from simulator.dst.all_mutants import MUTANTS
from simulator.dst.profiles import PROFILES, profile_of
from simulator.dst.run import run
from simulator.dst.scheduler import Process, Scheduler
from tests.kit.rotation import commit_number
from tests.kit.waiting import eventually

SEEDS = int(os.environ.get("SIM_SEEDS", "10"))
FIRST = commit_number() % 1_000_000  # each commit plays others
REGRESSIONS = sorted((Path(__file__).parent / "regressions").glob("*.txt"))


@pytest.fixture
def scheduler() -> Iterator[Scheduler]:
    new_scheduler = Scheduler("test")
    threads.use(new_scheduler)
    yield new_scheduler
    new_scheduler.close()
    threads.use(None)


def play(scheduler: Scheduler, *bodies: Callable[[], object], until: float = 100.0) -> Process:
    process = Process("p", scheduler)
    for body in bodies:
        threads.spawn(process, lambda body=body: body() and None, "body")  # type: ignore[misc]
    scheduler.run(until)
    if scheduler.failed is not None:
        raise scheduler.failed[1]
    return process


def test_an_event_wakes_who_waits_and_a_timeout_takes_its_time(scheduler: Scheduler) -> None:
    event, seen = threads.Event(), []

    def wait() -> None:
        seen.append((event.wait(2.0), scheduler.now))
        seen.append((event.wait(5.0), scheduler.now))

    def later() -> None:
        scheduler.sleep(4.0)
        event.set()

    play(scheduler, wait, later)
    assert seen == [(False, 2.0), (True, 4.0)]


@pytest.mark.parametrize("seed", range(8))
def test_who_is_woken_just_as_its_time_is_up_goes_on_once(seed: int) -> None:
    scheduler = Scheduler(str(seed))
    threads.use(scheduler)
    event, ends = threads.Event(), []

    def wait() -> None:
        event.wait(2.0)
        scheduler.sleep(3.0)
        ends.append(scheduler.now)

    def set_it() -> None:
        scheduler.sleep(2.0)
        event.set()

    play(scheduler, wait, wait, set_it)
    scheduler.close()
    threads.use(None)
    assert ends == [5.0, 5.0]


def test_a_lock_is_held_by_one_and_a_condition_gives_it_back(scheduler: Scheduler) -> None:
    lock, inside, most = threads.Lock(), [0], [0]

    def work() -> None:
        for _ in range(5):
            with lock:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                scheduler.sleep(0.1)
                inside[0] -= 1

    play(scheduler, *[work] * 4)
    assert most == [1]
    condition, results = threads.Condition(), list[object]()

    def take() -> None:
        with condition:
            results.append(condition.wait_for(lambda: len(results) == 1, timeout=1.0))

    def give() -> None:
        scheduler.sleep(0.5)
        with condition:
            results.append("given")
            condition.notify_all()

    play(scheduler, take, give, until=scheduler.now + 10)
    assert results == ["given", True]


def test_a_queue_is_bounded_and_keeps_its_order(scheduler: Scheduler) -> None:
    q, taken = threads.Queue(2), []

    def put() -> None:
        for i in range(6):
            q.put(i)
        scheduler.sleep(5.0)
        q.put(6)
        q.put(7)
        with pytest.raises(queue.Full):
            q.put(8, timeout=0.5)

    def get() -> None:
        scheduler.sleep(1.0)
        for _ in range(6):
            taken.append(q.get(timeout=1.0))

    play(scheduler, put, get)
    assert taken == [0, 1, 2, 3, 4, 5]


def test_a_pool_runs_so_many_at_once_and_hands_errors_on(scheduler: Scheduler) -> None:
    pool, done = threads.ThreadPoolExecutor(2), list[object]()

    def half(n: int) -> float:
        scheduler.sleep(1.0)
        return 10 / n

    def use() -> None:
        done.append(list(pool.map(half, [1, 2, 5, 10])))
        with pytest.raises(ZeroDivisionError):
            pool.submit(half, 0).result()
        pool.shutdown()
        done.append(scheduler.now)

    play(scheduler, use)
    assert done == [[10.0, 5.0, 2.0, 1.0], 3.0]


def test_a_dead_process_does_nothing_and_a_paused_one_later(scheduler: Scheduler) -> None:
    seen: list[tuple[str, float]] = []

    def tick(name: str) -> Callable[[], None]:
        def body() -> None:
            try:
                for _ in range(4):
                    scheduler.sleep(1.0)
                    seen.append((name, scheduler.now))
            finally:
                seen.append((f"{name} ends", scheduler.now))

        return body

    dying, paused = Process("dying", scheduler), Process("paused", scheduler)
    threads.spawn(dying, tick("dying"), "t")
    threads.spawn(paused, tick("paused"), "t")
    scheduler.run(1.5)
    scheduler.kill(dying)
    scheduler.pause(paused)
    scheduler.run(7.5)
    scheduler.unpause(paused)
    scheduler.run(20.0)
    assert [s for s in seen if s[0].startswith("dying")] == [("dying", 1.0)]
    assert [s for s in seen if s[0] == "paused"] == [("paused", t) for t in (1.0, 7.5, 8.5, 9.5)]


def test_the_same_seed_twice_is_the_same_run_in_any_process() -> None:
    seeds = [4, FIRST]  # the usual scenario, and one of the others that seeds have
    code = "import sys; from simulator.dst.run import run; print(*(run(int(s)).trace_hash for s in sys.argv[1:]))"
    others = [
        subprocess.Popen(
            [sys.executable, "-c", code, *map(str, order)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed, order in (("77", seeds), ("1234", seeds[::-1]))
    ]
    first = run(4)
    again = run(4)
    assert (first.trace_hash, first.counts, first.story) == (again.trace_hash, again.counts, again.story)
    there, back = (other.communicate(timeout=300)[0].split() for other in others)
    assert there[0] == first.trace_hash
    assert dict(zip(seeds, there, strict=True)) == dict(zip(seeds, back[::-1], strict=True))
    assert len(set(there)) == len(seeds)


def test_a_command_that_is_killed_leaves_no_process_behind() -> None:
    command = [sys.executable, "-m", "tistream.cli.main", "sim", "--seeds", "0:1000", "--processes", "2"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        try:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
            eventually(lambda: len(children.read_text().split()) == 3)  # those that play, and one of the library's
            started = children.read_text().split()
        finally:
            process.kill()
    eventually(lambda: not any(_runs(pid) for pid in started))


def _runs(pid: str) -> bool:
    """Whether there is such a process that has not ended, though perhaps nobody has asked yet how it did."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes() != b""
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_a_seed_holds(seed: int) -> None:
    outcome = run(seed)
    assert outcome.violations == (), f"tistream sim --seed {seed} --profile {profile_of(seed).name}"
    assert outcome.committed > 0
    assert outcome.pulls > 0


def _regressions() -> Iterator[tuple[int, str, int | None, frozenset[str]]]:
    for line in (line for path in REGRESSIONS for line in path.read_text().splitlines()):
        words = line.split("  #")[0].split()
        if words and words[0] != "#":
            more = dict(word.split("=") for word in words[2:])
            actions, without = more.get("actions"), more.get("without", "")
            left_out = frozenset(filter(None, without.split(",")))
            yield int(words[0]), words[1], None if actions is None else int(actions), left_out


@pytest.mark.parametrize(("seed", "profile", "actions", "without"), list(_regressions()))
def test_what_failed_once_holds(seed: int, profile: str, actions: int | None, without: frozenset[str]) -> None:
    assert run(seed, profile, actions=actions, without=without | {"bounds"}).violations == ()


NO_BOUNDS: frozenset[str] = frozenset({"bounds"})
#: scenario, its seeds, more of the run; what it has more of than this, and what its story has
SHOWN: list[tuple[str, tuple[int, ...], dict[str, Any], dict[str, int], tuple[str, ...]]] = [
    # a lost file that had been read, a missing state, and a step of a task that fails
    ("isolation", (0, 5, 8), {}, {}, ()),
    # a store is never taken without a word, and none is refused for rows that it only repeats
    ("promises", (0, 6), {}, {}, ("an operator rejects",)),
    # the tenant before is served up to what is good, and not at all once it is deleted
    ("anew", (0, 3), {}, {}, ("store contradicts its promise", "an operator has replaced tenant 1/4")),
    # the newest write of each key is in the log, and what is missing is in a marked interval
    ("rawkv", (0, 1), {}, {"lacked": 0}, ()),
    # no key is older than the checkpoint, no lane has two writers; seed 5 holds its log for five seconds, and loses it
    ("replication", (0,), {"without": NO_BOUNDS}, {"written": 20, "owners": 2}, ("the changefeed, which is failed",)),
    ("replication", (1,), {"without": NO_BOUNDS}, {"written": 20, "owners": 2}, ()),
    # no file is replaced, no checkpoint passes a change that is in no file, and what is there twice is named
    ("sink", (2,), {"without": NO_BOUNDS, "actions": 200}, {"written": 30}, ("an operator removes",)),
    # each refused change has its letter before a checkpoint passes it, with the same bytes at each try
    ("letters", (1,), {"without": NO_BOUNDS}, {"letters": 1, "owners": 4}, ()),
    ("floors", (4,), {}, {}, ("the floor is",)),
    ("jobs", (0, 1), {"without": NO_BOUNDS}, {}, ()),
    ("consumers", (1, 9), {"without": NO_BOUNDS}, {}, ("is refused",)),
    # processes of both releases beside each other, and the feature once none of the older one lives
    ("mixed", (0, 1), {}, {"upgraded": 5, "downgraded": 1, "switched_on": 0}, ()),
    # every object that a restored catalog names exists, no earlier process writes to it, and it has what owners did
    ("lost", (1, 2, 9), {}, {"restored": 0, "deeds: revoke": 0}, ("the restore is confirmed",)),
    # services go on after each fault of the KMS, over plain and sealed objects
    ("sealed", (3, 6), {}, {"sealed": 30, "rotated": 3, "kms_faults": 3, "not_opened": 2}, ()),
    # a restored changefeed writes again what it wrote since the export, and leaves no key behind
    ("lost_keys", (31,), {"without": NO_BOUNDS}, {"restored": 0, "written": 10}, ("the restore is confirmed",)),
    ("upkeep", (1,), {"without": NO_BOUNDS}, {}, ("an operator moves the tenant to PAUSED",)),
]


@pytest.mark.parametrize(
    ("profile", "seed", "more", "counts", "story"),
    [(profile, seed, *of) for profile, seeds, *of in SHOWN for seed in seeds],
)
def test_a_scenario_shows_what_it_is_about(
    profile: str, seed: int, more: dict[str, Any], counts: dict[str, int], story: tuple[str, ...]
) -> None:
    outcome = run(seed, profile, **more)
    assert outcome.violations == ()
    assert {name for name, least in counts.items() if outcome.counts[name] <= least} == set()
    assert [words for words in story if not any(words in line for line in outcome.story)] == []


def test_every_mutant_names_a_scenario() -> None:
    assert {mutant.scenario for mutant in MUTANTS.values()} <= PROFILES.keys()
