"""A task replayed in parts is the task replayed whole, under every history that a small TiKV can make."""

from __future__ import annotations

import functools
import inspect
import random

import pytest

from sorter.state import join_snapshots
from tests.kit.parted_run import PartedRun
from tests.kit.sorter_run import RANGES
from tistream.errors import TiStreamError

SEEDS = (1, 3, 4, 9, 12, 13)
STEPS = 90


@pytest.fixture(autouse=True)
def objects_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of objects this small the frame is the largest part: a part of a task would let go of each."""
    monkeypatch.setattr("sorter.state.saving.LOOSE", 1 << 40)


def play(seed: int) -> PartedRun:
    rand = random.Random(seed)
    run = PartedRun(rand)
    for step in range(STEPS):
        run.random_step(rand)
        if step % 15 == 14:
            run.restart(rand.choice(list(RANGES)))
    run.finish()
    return run


def play_all() -> None:
    for seed in SEEDS:
        play(seed)


played = functools.cache(play)


@pytest.mark.parametrize("seed", SEEDS)
def test_parts_write_and_keep_what_one_core_does(seed: int) -> None:
    assert played(seed).rows > 0


def test_the_histories_have_what_they_are_about() -> None:
    runs = [played(seed) for seed in SEEDS]
    assert sum(run.replays for run in runs) > 10, "parts wrote rows"
    assert sum(run.shared for run in runs) > 10, "parts shared groups of rows"
    assert sum(run.waited for run in runs) > 1, "watermark rows waited"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("groups[at] = group, alive | run.alive", "groups[at] = group, run.alive"),
        ("getattr(state, kind))", "getattr(state, kind) if kind != 'open')"),
        ("max(state.next_row_no for state in states)", "0"),
        ("[state.waiting for state in states]", "[state.waiting.slice(0, 0) for state in states]"),
        ("[state.slices for state in states]", "[states[0].slices]"),
    ],
    ids=["rows of one part only", "open prewrites forgotten", "numbers again", "waiting rows lost", "slices lost"],
)
def test_a_mutant_is_noticed(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = inspect.getsource(join_snapshots)
    assert old in source
    mutated = dict(vars(join_snapshots))
    exec(compile(source.replace(old, new), join_snapshots.__file__, "exec"), mutated)
    monkeypatch.setattr("tests.kit.parted_run.joined", mutated["joined"])
    with pytest.raises((AssertionError, TiStreamError)):
        play_all()
