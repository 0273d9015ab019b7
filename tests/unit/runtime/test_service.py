"""What supervised threads do with errors, without real time."""

from __future__ import annotations

import random

from tistream.clock import SystemClock
from tistream.errors import CatalogUnavailable, Fenced
from tistream.model.problem import Problem
from tistream.runtime.service import Backoff, Repeating, ServiceGroup


def test_pauses_double_up_to_a_bound_and_start_small_again() -> None:
    backoff = Backoff(first_s=1, max_s=5)
    assert [backoff.next_s() for _ in range(4)] == [1, 2, 4, 5]
    backoff.reset()
    assert backoff.next_s() == 1


def test_spread_pauses_stay_in_their_durable_ts_half() -> None:
    backoff = Backoff(first_s=8, max_s=8, rand=random.Random(1))
    pauses = [backoff.next_s() for _ in range(100)]
    assert all(4 <= pause <= 8 for pause in pauses)
    assert len(set(pauses)) > 50


class Steps:
    """Raises what the script says, then succeeds."""

    def __init__(self, *script: Exception) -> None:
        self.script = list(script)
        self.calls = 0

    def __call__(self) -> None:
        self.calls += 1
        if self.script:
            raise self.script.pop(0)


def run(step: Steps) -> Repeating:
    thread = Repeating("part", step, interval_s=0.01, clock=SystemClock())
    thread.start()
    return thread


def test_a_step_that_may_be_retried_is_retried_and_forgotten() -> None:
    step = Steps(CatalogUnavailable(cause="a"), CatalogUnavailable(cause="b"))
    thread = run(step)
    assert thread.wait_until_ready(10)
    assert step.calls >= 3
    assert thread.problems() == []
    thread.stop()
    thread.stop()


def test_what_is_not_for_retry_ends_the_thread_and_stays_visible() -> None:
    for error, code in ((Fenced("replaced", worker="w"), Fenced.code), (KeyError("x"), "TS-1000")):
        step = Steps(error)
        thread = run(step)
        assert not thread.wait_until_ready(10)
        thread.stop()
        (problem,) = thread.problems()
        assert (problem.source, problem.code, problem.fatal) == ("part", code, True)
        assert step.calls == 1


def test_no_error_ends_a_lasting_thread() -> None:
    step = Steps(Fenced("replaced"), KeyError("x"), CatalogUnavailable(cause="a"))
    thread = Repeating("part", step, interval_s=0.01, clock=SystemClock(), lasting=True)
    thread.start()
    assert thread.wait_until_ready(10)
    assert step.calls >= 4
    assert (thread.crashed, thread.problems()) == (False, [])
    thread.stop()


def test_a_lasting_thread_shows_a_defect_that_ends_nothing() -> None:
    thread = Repeating("part", Steps(KeyError("x")), interval_s=1.0, clock=SystemClock(), lasting=True)
    thread._run_step()
    (problem,) = thread.problems()
    assert (problem.fatal, problem.contained, problem.ends_process) == (True, True, False)


def test_a_thread_that_worked_and_then_broke_is_not_ready() -> None:
    step = Steps()
    thread = run(step)
    assert thread.wait_until_ready(10)
    step.script.append(RuntimeError("broken"))
    thread.wake()
    assert thread._thread is not None
    thread._thread.join(100)
    assert not thread.wait_until_ready(0)
    assert thread.crashed


def test_a_group_is_ready_when_all_are_and_shows_all_problems() -> None:
    good, bad = run(Steps()), run(Steps(Fenced()))
    group = ServiceGroup("group", [good, bad], SystemClock())
    assert not group.wait_until_ready(10)
    assert [problem.code for problem in group.problems()] == [Fenced.code]
    group.stop()


def test_a_problem_keeps_the_facts_of_our_errors_and_the_text_of_others() -> None:
    ours = Problem.of("s", Fenced("gone", worker="w"))
    assert (ours.code, ours.message, ours.facts) == (Fenced.code, "gone", {"worker": "w"})
    assert Problem.of("s", ValueError("odd")).message == "ValueError: odd"
