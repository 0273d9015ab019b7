"""Which batch files may be deleted."""

from __future__ import annotations

from dispatcher.core.ack import EVERYTHING, Reclaim, reclaimable


def test_files_between_reclaimed_and_floor_may_go() -> None:
    assert reclaimable({1: 7}, {1: 3}, newest=1) == [Reclaim(incarnation=1, after_seq=3, upto_seq=7)]


def test_nothing_at_or_below_what_is_gone() -> None:
    assert reclaimable({1: 3, 2: 0}, {1: 3, 2: 0}, newest=2) == []


def test_a_floor_that_fell_back_takes_nothing_and_fails_nothing() -> None:
    assert reclaimable({1: 2}, {1: 3}, newest=1) == []


def test_an_incarnation_that_all_closed_goes_whole() -> None:
    assert reclaimable({1: EVERYTHING, 2: 4}, {1: 5}, newest=2) == [
        Reclaim(incarnation=1, after_seq=5, upto_seq=EVERYTHING, whole=True),
        Reclaim(incarnation=2, after_seq=0, upto_seq=4),
    ]


def test_one_that_went_whole_is_not_taken_again() -> None:
    assert reclaimable({1: EVERYTHING}, {1: EVERYTHING}, newest=2) == []


def test_the_newest_incarnation_never_goes_whole() -> None:
    assert reclaimable({2: EVERYTHING}, {}, newest=2) == []


def test_an_incarnation_issued_meanwhile_is_left_alone() -> None:
    assert reclaimable({3: 5}, {}, newest=2) == []
