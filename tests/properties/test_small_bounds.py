"""What a sorter writes does not depend on its size bounds: under histories of a small TiKV, with some bounds so small
that a few rows of a few bytes reach them."""

from __future__ import annotations

import random

import pytest

from simulator.dst.bounds import BOUNDS, TOGETHER, drawn, lowered, small
from simulator.dst.profiles import PROFILES
from tests.kit.merge_run import MergeRun
from tests.kit.parted_run import PartedRun
from tests.kit.sorter_run import RANGES, SorterRun

STEPS = 90


def play(run: SorterRun, rand: random.Random) -> None:
    for step in range(STEPS):
        run.random_step(rand)
        if step % 6 == 5:
            run.snapshot(rand.choice(sorted(run.ranges)))
        if step % 18 == 17 and not isinstance(run, MergeRun):
            run.restart(rand.choice(list(RANGES)))
    run.finish()


@pytest.mark.parametrize("seed", range(6))
def test_a_history_holds_whatever_the_bounds_are(seed: int) -> None:
    rand = random.Random(seed)
    kind = (SorterRun, MergeRun, lambda: PartedRun(rand))[seed % 3]
    with lowered(small(random.Random(f"{seed}/bounds"))):
        run = kind()
        play(run, rand)
    assert run.rows > 0


def test_every_bound_is_there_and_is_put_back() -> None:
    every = {f"{home}.{name}": values[0] for home, bounds in BOUNDS.items() for name, values in bounds.items()}
    assert TOGETHER.keys() <= every.keys()
    with lowered(every):
        from sorter.core import conflicts
        from sorter.rows import run

        copied = vars(conflicts)  # it imports the bound by name
        assert run.SEGMENT_BYTES == copied["SEGMENT_BYTES"] == every["sorter.rows.run.SEGMENT_BYTES"]
    assert run.SEGMENT_BYTES == copied["SEGMENT_BYTES"] > 1 << 20


def test_some_seeds_of_each_scenario_have_small_bounds_and_each_bound_is_small_in_some() -> None:
    bounds_made: set[str] = set()
    for profile in PROFILES:
        of_profile = [drawn(seed, profile) for seed in range(40)]
        assert 3 <= sum(map(bool, of_profile)) <= 20
        bounds_made |= set().union(*of_profile)
    assert bounds_made >= {f"{home}.{name}" for home, bounds in BOUNDS.items() for name in bounds}
