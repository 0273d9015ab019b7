"""Who gets what: placing what has no owner, and evening out."""

from __future__ import annotations

import time
from collections import Counter
from typing import TypeAlias

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from metaserver.core.assign import APART, ITEM_BYTES_PER_S, SLACK, UNOWNED, Fleet, Move, improve, place

UNIT = ITEM_BYTES_PER_S


def fleet(
    owner: list[int],
    workers: int,
    *,
    bytes_per_s: list[float] | None = None,
    group: list[int] | None = None,
    held: list[float] | None = None,
    closed: tuple[int, ...] = (),
) -> Fleet:
    """`closed` are workers that receive nothing."""
    count = len(owner)
    receives = np.ones(workers, bool)
    receives[list(closed)] = False
    return Fleet.of(
        owner=np.array(owner, np.int64),
        bytes_per_s=np.array(bytes_per_s or [0.0] * count),
        open_rows=np.zeros(count),
        held=np.array(held or [0.0] * count),
        group=np.array(group or [-1] * count, np.int64),
        receives=receives,
    )


def orphans(of: Fleet) -> np.ndarray:
    return np.flatnonzero(of.owner == UNOWNED)


def after(of: Fleet, moves: list[Move]) -> list[int]:
    owner: list[int] = of.owner.tolist()
    for move in moves:
        owner[move.item] = move.to
    return owner


def potential(of: Fleet, owner: list[int]) -> float:
    """As the module's docstring has it, computed the plain way."""
    loads: Counter[int] = Counter()
    groups: Counter[tuple[int, int]] = Counter()
    sizes = Counter(g for g in of.group.tolist() if g >= 0)
    for item, worker in enumerate(owner):
        loads[worker] += of.weight[item]
        if sizes[of.group[item]] > 1:
            groups[worker, int(of.group[item])] += of.weight[item]
    return sum(v * v for v in loads.values()) + APART * sum(v * v for v in groups.values())


def all_of(of: Fleet) -> np.ndarray:
    return np.ones(len(of.owner), bool)


def test_the_least_loaded_gets_the_next_and_ties_go_by_name() -> None:
    workers = fleet([1, UNOWNED, UNOWNED, UNOWNED], 2)
    assert after(workers, place(workers, orphans(workers))) == [1, 0, 0, 1]


def test_the_heaviest_goes_first() -> None:
    workers = fleet([UNOWNED] * 4, 2, bytes_per_s=[10 * UNIT, 20 * UNIT, 30 * UNIT, 0])
    assert after(workers, place(workers, orphans(workers))) == [1, 1, 0, 0]


def test_nothing_is_given_to_who_receives_nothing() -> None:
    workers = fleet([UNOWNED, 0, UNOWNED], 3, closed=(0, 2))
    assert after(workers, place(workers, orphans(workers))) == [1, 0, 1]
    shut = fleet([UNOWNED], 1, closed=(0,))
    assert place(shut, orphans(shut)) == []


def test_the_warm_tasks_of_a_tenant_are_kept_apart() -> None:
    warm = 100 * UNIT
    # 0 and 1 are a tenant's, 2 and 3 another's; each worker could have both of one
    workers = fleet([0, 1, UNOWNED, UNOWNED], 2, bytes_per_s=[warm] * 4, group=[7, 8, 7, 8])
    assert after(workers, place(workers, orphans(workers))) == [0, 1, 1, 0]
    together = fleet([0, 0, 1, 1], 2, bytes_per_s=[warm] * 4, group=[7, 7, 8, 8])
    assert improve(together, all_of(together), 9) == [], "one move alone would make the loads uneven"
    crowded = fleet([0, 0, 0, 1, 1], 3, bytes_per_s=[warm] * 5, group=[7, 7, 8, 8, 9])
    (move,) = improve(crowded, all_of(crowded), 9)
    assert (move.item, move.to) == (0, 2)


def test_a_worker_that_joins_gets_a_share() -> None:
    workers = fleet([0, 0, 0, 1, 1, 1], 3)
    moves = improve(workers, all_of(workers), 9)
    assert sorted(Counter(after(workers, moves)).values()) == [2, 2, 2]
    assert {move.to for move in moves} == {2}


def test_one_hot_item_does_not_chase_the_others_away() -> None:
    workers = fleet([0] * 11 + [1] * 10, 2, bytes_per_s=[1000 * UNIT] + [0.0] * 20)
    assert improve(workers, all_of(workers), 99) == []


def test_what_holds_much_stays_unless_it_gains_much() -> None:
    light = fleet([0, 0, 0, 1], 2)
    assert len(improve(light, all_of(light), 9)) == 1
    heavy = fleet([0, 0, 0, 1], 2, held=[300 * UNIT] * 4)
    assert improve(heavy, all_of(heavy), 9) == []


def test_no_worker_gives_or_takes_more_than_it_may() -> None:
    workers = fleet([0] * 40 + [1] * 40, 3)
    moves = improve(workers, all_of(workers), 5)
    assert len(moves) == 5
    assert improve(workers, ~all_of(workers), 5) == []


Shape: TypeAlias = tuple[int, list[tuple[int, float, int, float]], set[int]]  #: workers, items, closed workers
SHAPES: st.SearchStrategy[Shape] = st.integers(1, 5).flatmap(
    lambda workers: st.tuples(
        st.just(workers),
        st.lists(
            st.tuples(
                st.integers(UNOWNED, workers - 1),
                st.sampled_from([0.0, 0.0, 1.0, 5.0, 40.0, 300.0]),
                st.integers(-1, 2),
                st.sampled_from([0.0, 0.0, 50.0]),
            ),
            max_size=25,
        ),
        st.sets(st.integers(0, workers - 1)),
    )
)


def built(shape: Shape) -> Fleet:
    workers, items, closed = shape
    return fleet(
        [i[0] for i in items],
        workers,
        bytes_per_s=[i[1] * UNIT for i in items],
        group=[i[2] for i in items],
        held=[i[3] * UNIT for i in items],
        closed=tuple(closed),
    )


@given(SHAPES)
def test_every_item_ends_with_a_worker_that_lives_and_only_the_ownerless_move(shape: Shape) -> None:
    workers = built(shape)
    moves = place(workers, orphans(workers))
    assert moves == place(workers, orphans(workers))
    if workers.receives.any():
        assert sorted(move.item for move in moves) == orphans(workers).tolist()
        assert all(workers.receives[move.to] for move in moves)


@settings(max_examples=200)
@given(SHAPES, st.integers(1, 4))
def test_under_a_constant_load_it_comes_to_rest_and_each_move_is_a_gain(shape: Shape, per_worker: int) -> None:
    workers = built(shape)
    owner = after(workers, place(workers, orphans(workers)))
    moved = 0
    for _ in range(200):
        now = Fleet(
            owner=np.array(owner, np.int64),
            weight=workers.weight,
            held=workers.held,
            group=workers.group,
            receives=workers.receives,
        )
        moves = improve(now, all_of(now), per_worker)
        if not moves:
            break
        for move in moves:
            assert workers.receives[move.to]
            assert workers.receives[owner[move.item]]
            before = potential(workers, owner)
            owner[move.item] = move.to
            assert potential(workers, owner) < before
        moved += len(moves)
    else:
        raise AssertionError("it never rests")
    assert moved <= 2 * len(owner)


@given(st.integers(2, 6), st.integers(0, 60))
def test_equal_items_end_nearly_even(workers: int, count: int) -> None:
    even = fleet([0] * count, workers)
    owner = after(even, improve(even, all_of(even), count))
    loads = Counter(owner)
    mean = count / workers
    assert max(loads.values(), default=0) - min(loads[w] for w in range(workers)) <= 1 + SLACK * mean


def test_a_hundred_thousand_items_of_a_hundred_workers() -> None:
    rand = np.random.default_rng(1)
    count = 100_000
    large = Fleet.of(
        owner=np.where(rand.random(count) < 0.5, UNOWNED, rand.integers(0, 100, count)),
        bytes_per_s=np.where(rand.random(count) < 0.1, rand.random(count) * 1e6, 0.0),
        open_rows=np.zeros(count),
        held=np.zeros(count),
        group=rand.integers(0, 1000, count),
        receives=np.ones(100, bool),
    )
    before = time.process_time()
    moves = place(large, orphans(large))
    improve(large, all_of(large), 10)
    assert len(moves) == len(orphans(large))
    assert time.process_time() - before < 5, "an idle machine needs less than one"
