"""What is merged: properties of any plan, and the cases that the rules are about."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from compactor.core.plan import PlanSettings, plan, unfinished
from tistream.catalog.log.compaction import Piece

TARGET = 1000
SETTINGS = PlanSettings(target_bytes=TARGET, inputs_min=3, budget_bytes=1 << 40)


def pieces(*sizes: int, task_id: int = 1, first: int = 1) -> list[Piece]:
    """Neighbours of these stored bytes."""
    return [
        Piece(
            object_key=f"o/{first + n:04d}",
            task_id=task_id,
            segments=1,
            rows=1,
            stored_bytes=size,
            lo_ts=10 * (first + n),
            hi_ts=10 * (first + n) + 9,
        )
        for n, size in enumerate(sizes)
    ]


def sizes(given: list[Piece], settings: PlanSettings = SETTINGS) -> list[list[int]]:
    return [[p.stored_bytes for p in group.pieces] for group in plan(given, settings)]


SIZES = st.lists(st.one_of(st.integers(1, 40), st.integers(1, 2 * TARGET)), max_size=40)


@given(SIZES, SIZES, st.integers(2, 5), st.randoms())
def test_any_plan_merges_neighbours_and_pays(low: list[int], high: list[int], inputs_min: int, rand: object) -> None:
    settings = PlanSettings(target_bytes=TARGET, inputs_min=inputs_min, budget_bytes=1 << 40)
    given = {1: pieces(*low, task_id=1), 2: pieces(*high, task_id=2)}
    mixed = given[1] + given[2]
    rand.shuffle(mixed)  # type: ignore[attr-defined]
    groups = plan(mixed, settings)
    assert groups == plan(given[2] + given[1], settings), "the order in which pieces are listed says nothing"
    taken = [(p.object_key, p.task_id) for group in groups for p in group.pieces]
    assert len(taken) == len(set(taken))
    for group in groups:
        every = given[group.task_id]
        at = every.index(group.pieces[0])
        assert list(group.pieces) == every[at : at + len(group.pieces)], "neighbours of one task"
        held = [p.stored_bytes for p in group.pieces]
        assert inputs_min <= len(held)
        assert sum(held) <= TARGET
        assert 2 * max(held) <= sum(held)


@given(SIZES)
def test_merging_ends_and_leaves_few_pieces(given: list[int]) -> None:
    """Played until there is nothing to do: no byte was written more often than the sizes allow, little is left."""
    alive = [(size, 0) for size in given]  # stored bytes, how often the oldest byte was rewritten
    for _ in range(100):
        groups = plan(pieces(*(size for size, _ in alive)), SETTINGS)
        if not groups:
            break
        for group in reversed(groups):
            first = int(group.pieces[0].object_key[2:]) - 1
            merged = alive[first : first + len(group.pieces)]
            alive[first : first + len(merged)] = [(sum(s for s, _ in merged), 1 + max(n for _, n in merged))]
    else:
        raise AssertionError("it does not end")
    assert all(n <= math.log2(TARGET) for _, n in alive)


def test_small_neighbours_are_merged_up_to_the_target() -> None:
    assert sizes(pieces(*[300] * 7)) == [[300] * 3, [300] * 3]


def test_what_is_large_stays_and_nothing_is_merged_across_it() -> None:
    assert sizes(pieces(10, 10, 500, 10, 10)) == []
    assert sizes(pieces(10, 10, 10, 500, 20, 20, 20)) == [[10] * 3, [20] * 3]


def test_a_large_one_among_small_ones_is_not_written_again_for_them() -> None:
    assert sizes(pieces(400, 10, 10, 10)) == [[10] * 3]
    assert sizes(pieces(10, 10, 10, 400, 5, 5)) == [[10] * 3]
    assert sizes(pieces(400, 150, 150, 150)) == [[400, 150, 150, 150]]


def test_the_budget_takes_the_oldest_and_at_least_one() -> None:
    given = pieces(*[300] * 6) + pieces(*[200] * 3, task_id=2, first=100)
    small = PlanSettings(target_bytes=TARGET, inputs_min=3, budget_bytes=1)
    assert sizes(given, small) == [[300] * 3]
    two = PlanSettings(target_bytes=TARGET, inputs_min=3, budget_bytes=1900)
    assert sizes(given, two) == [[300] * 3, [300] * 3]


def test_what_unpacks_large_is_cut_by_its_unpacked_bytes_and_rows() -> None:
    packed = [replace(p, raw_bytes=300, rows=10) for p in pieces(*[1] * 12)]
    by_bytes = replace(SETTINGS, raw_bytes_max=1000, rows_max=1 << 30)
    assert [len(g.pieces) for g in plan(packed, by_bytes)] == [3, 3, 3, 3]
    by_rows = replace(SETTINGS, raw_bytes_max=1 << 30, rows_max=45)
    assert [len(g.pieces) for g in plan(packed, by_rows)] == [4, 4, 4]
    packed[4] = replace(packed[4], raw_bytes=500)
    assert [[p.raw_bytes for p in g.pieces] for g in plan(packed, by_bytes)] == [[300] * 3] * 3, "it is full"


@given(st.lists(st.tuples(st.integers(1, 600), st.integers(1, 600), st.integers(1, 600)), max_size=40))
def test_no_group_is_over_any_bound(given: list[tuple[int, int, int]]) -> None:
    found = [
        replace(p, raw_bytes=raw, rows=rows)
        for p, (_, raw, rows) in zip(pieces(*[size for size, _, _ in given]), given, strict=True)
    ]
    for group in plan(found, replace(SETTINGS, raw_bytes_max=TARGET, rows_max=TARGET)):
        assert group.stored_bytes <= TARGET
        assert sum(p.raw_bytes for p in group.pieces) <= TARGET
        assert sum(p.rows for p in group.pieces) <= TARGET


@given(SIZES, st.integers(1, 10))
def test_a_log_that_is_looked_at_in_parts_gives_the_groups_that_it_has(given: list[int], part: int) -> None:
    every = pieces(*given)
    carried: list[Piece] = []
    for at in range(0, len(every) + part, part):
        seen = [*carried, *every[at : at + part]]
        if found := plan(seen, SETTINGS):
            assert set(found[0].pieces) <= set(every)
            return
        carried = unfinished(seen, SETTINGS)
    assert plan(every, SETTINGS) == []
