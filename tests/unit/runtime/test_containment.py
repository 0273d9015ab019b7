"""One item's error stops that item only."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from polars.exceptions import PanicException

from tests.kit.manual_clock import ManualClock
from tistream.errors import CorruptObject, Fenced, StoreUnavailable
from tistream.model.problem import Problem
from tistream.runtime.containment import RETRY_MAX_S, STOPPED_FIRST_S, STOPPED_MAX_S, Containment


def _raise(error: BaseException) -> None:
    raise error


def _ok() -> None:
    return


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.mark.parametrize(
    "error",
    [
        CorruptObject("damaged"),
        KeyError("dbs"),
        RecursionError(),
        MemoryError(),
        OverflowError(),
        pa.ArrowInvalid("no"),
        PanicException("a library in Rust"),
    ],
)
def test_an_unexpected_error_stops_its_item_only(clock: ManualClock, error: BaseException) -> None:
    contained = Containment[str]("meta-1/activation", clock)
    assert not contained.run("1/7", lambda: _raise(error))
    assert contained.run("1/8", _ok)
    (problem,) = contained.problems()
    assert problem.source == "meta-1/activation/1/7"
    assert problem.fatal
    assert set(contained.stopped()) == {"1/7"}


def test_the_end_of_a_process_is_no_error_of_an_item(clock: ManualClock) -> None:
    with pytest.raises(KeyboardInterrupt):
        Containment[int]("x", clock).run(1, lambda: _raise(KeyboardInterrupt()))


def test_a_stopped_item_waits_long_and_ever_longer(clock: ManualClock) -> None:
    contained = Containment[int]("x", clock)
    tries: list[float] = []

    def step() -> None:
        tries.append(clock.monotonic())
        raise ValueError("no")

    for _ in range(4000):
        contained.run(1, step)
        clock.advance(1.0)
    pauses = [b - a for a, b in itertools.pairwise(tries)]
    assert pauses[:3] == [STOPPED_FIRST_S, 2 * STOPPED_FIRST_S, 4 * STOPPED_FIRST_S]
    assert max(pauses) == STOPPED_MAX_S


def test_what_may_pass_is_tried_again_soon(clock: ManualClock) -> None:
    contained = Containment[int]("x", clock)
    assert not contained.run(1, lambda: _raise(StoreUnavailable("away")))
    assert not contained.stopped()
    (problem,) = contained.problems()
    assert not problem.fatal
    clock.advance(RETRY_MAX_S)
    assert contained.run(1, _ok)
    assert contained.problems() == []


def test_a_resumed_item_runs_at_once(clock: ManualClock) -> None:
    contained = Containment[int]("x", clock)
    contained.run(1, lambda: _raise(ValueError("no")))
    assert not contained.run(1, _ok)
    contained.resume(1)
    assert contained.run(1, _ok)
    assert contained.problems() == []


def test_a_fenced_item_is_its_callers(clock: ManualClock) -> None:
    contained = Containment[int]("x", clock)
    contained.run(1, lambda: _raise(StoreUnavailable("away")))
    clock.advance(RETRY_MAX_S)
    with pytest.raises(Fenced):
        contained.run(1, lambda: _raise(Fenced()))
    assert contained.problems() == []


def test_a_stop_is_reported_once_and_again_after_a_success(clock: ManualClock) -> None:
    stops: list[tuple[int, Problem]] = []
    contained = Containment[int]("x", clock, on_stop=lambda item, problem: stops.append((item, problem)))
    for step in (lambda: _raise(ValueError("no")), lambda: _raise(ValueError("no")), _ok):
        contained.run(1, step)
        clock.advance(STOPPED_MAX_S)
    assert [item for item, _ in stops] == [1]
    contained.run(1, lambda: _raise(ValueError("no")))
    assert [item for item, _ in stops] == [1, 1]


def test_items_that_are_gone_are_forgotten(clock: ManualClock) -> None:
    contained = Containment[int]("x", clock)
    for item in (1, 2):
        contained.run(item, lambda: _raise(ValueError("no")))
    contained.keep_only({2, 3})
    assert set(contained.stopped()) == {2}
