"""Positions name the incarnations at work; those below the lowest entry have ended."""

from __future__ import annotations

from tistream.ids import Position
from tistream.model.positions import first_regression, position_of, without_ended

END, AT = Position(seq=9, closed=True), Position(seq=4)


def test_those_below_the_lowest_entry_have_ended() -> None:
    assert position_of({3: AT}, 2).closed
    assert position_of({3: AT}, 3) == AT
    assert position_of({3: AT}, 4) == Position(seq=0)
    assert position_of({}, 1) == Position(seq=0)


def test_only_ended_ones_are_dropped_and_one_entry_stays() -> None:
    assert without_ended({1: END, 2: END, 3: AT}) == {3: AT}
    assert without_ended({1: END, 2: AT, 3: END, 4: AT}) == {2: AT, 3: END, 4: AT}
    assert without_ended({1: END, 2: END}) == {2: END}
    assert without_ended({}) == {}


def test_dropping_them_changes_no_position_that_is_open() -> None:
    for incarnations in ({1: END, 2: END, 3: AT}, {1: END, 2: AT, 3: END}, {1: END}):
        open_ones = without_ended(incarnations)
        for incarnation in range(1, 6):
            was, now = position_of(incarnations, incarnation), position_of(open_ones, incarnation)
            assert now == was or (now.closed and was.closed)


def test_an_ended_incarnation_is_never_open_again() -> None:
    assert first_regression({2: AT}, {3: AT}) is None, "2 has ended since"
    assert first_regression({3: AT}, {2: AT, 3: AT}) == 2
    assert first_regression({2: AT}, {}) == 2
    assert first_regression({1: END, 2: AT}, {2: AT}) is None
    assert first_regression({2: AT}, {2: Position(seq=3)}) == 2
