"""Who gets what."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from metaserver.assign import Move, Owned, moves

NAMES = st.sampled_from(["a", "b", "c", "d"])


def owned(*owners: str | None) -> list[Owned[int]]:
    return [Owned(item=i, owner=owner) for i, owner in enumerate(owners)]


def test_the_least_loaded_gets_the_next_and_ties_go_by_name() -> None:
    assert moves(owned("b", None, None, None), ["b", "a"]) == [
        Move(item=1, to="a"),
        Move(item=2, to="a"),
        Move(item=3, to="b"),
    ]


def test_what_has_a_living_owner_stays_even_when_loads_differ() -> None:
    assert moves(owned("a", "a", "a", "a"), ["a", "b"]) == []


def test_only_the_dead_ones_items_move() -> None:
    assert moves(owned("dead", "a", "dead"), ["a", "b"]) == [Move(item=0, to="b"), Move(item=2, to="a")]


def test_without_workers_nothing_moves() -> None:
    assert moves(owned("dead", None), []) == []


@given(st.lists(st.one_of(st.none(), NAMES), max_size=20), st.sets(NAMES, min_size=1))
def test_every_item_ends_with_one_living_owner_and_loads_are_as_even_as_staying_allows(
    owners: list[str | None], alive: set[str]
) -> None:
    made = moves(owned(*owners), alive)
    assert made == moves(owned(*owners), sorted(alive))
    moved = {move.item: move.to for move in made}
    assert len(moved) == len(made)
    after = [moved.get(i, owner) for i, owner in enumerate(owners)]
    assert all(owner in alive for owner in after)
    assert all(after[i] == owner for i, owner in enumerate(owners) if owner in alive)
    load = Counter(after)
    assert all(load[to] - 1 <= min(load[name] for name in alive) for to in moved.values())
