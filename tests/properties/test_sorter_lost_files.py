"""Batch files that were read and written out, and are unreadable when another sorter needs them again.

A pusher is replaced and files of its ended life are lost for whoever has not read them. What they said is in the log
up
to `durable_ts`, and the new subscriptions begin at or below it: the task goes on, and the log stays complete."""

from __future__ import annotations

import random

import pytest

from simulator.dst.mutants import reworded
from sorter.core.slots import Slots
from tests.kit.sorter_run import RANGES, SorterRun
from tistream.errors import TiStreamError

SEEDS = 8


def play(seed: int) -> int:
    """Play a random run that loses files; the number of rows written."""
    rand, run = random.Random(seed), SorterRun()
    for _ in range(3):
        for _ in range(25):
            run.random_step(rand)
        run._drain()  # `durable_ts` is ahead of the snapshots
        for store in run.world.stores:
            if rand.random() < 0.8:
                run.lose_file(rand.choice(list(RANGES)), store)
        for task in RANGES:
            if rand.random() < 0.8:
                run.restart(task)
    run.finish()
    return run.rows


def play_all() -> None:
    for seed in range(SEEDS):
        play(seed)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_task_goes_on_without_files_that_it_had_written_out(seed: int) -> None:
    assert play(seed)


def test_without_what_was_written_out_the_task_never_goes_on() -> None:
    change = ("np.maximum(self.w[slot], self.floor)", "self.w[slot]")
    with reworded(Slots, "reaches", change), pytest.raises((AssertionError, TiStreamError)):
        play_all()
