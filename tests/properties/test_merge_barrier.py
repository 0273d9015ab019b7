"""Tasks that are split at any moment, and merged at a barrier, write what was committed: under the histories
that a small TiKV can make."""

from __future__ import annotations

import functools
import inspect
import random

import pytest

from simulator.dst.mutants import reworded
from sorter.core.prewrite_buffer import PrewriteBuffer
from sorter.state import merge_barrier
from sorter.state.merge_barrier import furthest, has_reached, is_beyond
from tests.kit.merge_run import MergeRun
from tests.kit.sorter_world import File, feed_batch
from tistream.errors import TiStreamError
from tistream.feed.protocol import FeedBatch
from tistream.ids import Position

SEEDS = 8
STEPS = 100


def play(seed: int) -> MergeRun:
    rand, run = random.Random(seed), MergeRun()
    for _ in range(STEPS):
        run.random_step(rand)
    run.finish()
    return run


def play_all() -> None:
    for seed in range(SEEDS):
        play(seed)


played = functools.cache(play)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_run_with_splits_and_merges_writes_what_was_committed(seed: int) -> None:
    assert played(seed).rows > 0


def test_the_histories_have_what_they_are_about() -> None:
    runs = [played(seed) for seed in range(SEEDS)]
    assert min(sum(run.splits for run in runs), sum(run.merges for run in runs)) >= 10
    assert sum(run.read_on for run in runs) >= 10, "halves had to read on"
    assert sum(run.held for run in runs) >= 10, "there were rows to put together"


def batch(seq: int, *, store: int = 1, incarnation: int = 1, closes: bool = False) -> FeedBatch:
    return feed_batch(
        File(store_id=store, incarnation=incarnation, seq=seq, cut_ts=1, rows=(), marks=(), closes=closes)
    )


def test_the_barrier_is_where_the_one_that_is_further_has_arrived() -> None:
    left = {1: {1: Position(seq=5, closed=True), 2: Position(seq=3)}}
    right = {1: {1: Position(seq=6), 2: Position(seq=4)}, 2: {1: Position(seq=1)}}
    until = furthest(left, right)
    assert until == {1: {2: Position(seq=4)}, 2: {1: Position(seq=1)}}, "incarnation 1 has ended"
    assert not has_reached(left, until)
    assert not has_reached(right, until)
    left = {1: {1: Position(seq=5, closed=True), 2: Position(seq=4)}, 2: {1: Position(seq=1)}}
    right = {1: {1: Position(seq=6, closed=True), 2: Position(seq=4)}, 2: {1: Position(seq=1)}}
    assert has_reached(left, until)
    assert has_reached(right, until), "it has seen the end too, after a file that came late"
    assert not has_reached({**right, 3: {1: Position(seq=1)}}, until)
    assert not has_reached({**right, 2: {1: Position(seq=2)}}, until)


def test_what_is_beyond_the_barrier_is_left_out() -> None:
    until = {1: {1: Position(seq=5, closed=True), 2: Position(seq=4)}}
    inside = [batch(6), batch(6, closes=True), batch(4, incarnation=2)]
    beyond = [batch(5, incarnation=2), batch(4, incarnation=2, closes=True), batch(1, incarnation=3), batch(1, store=2)]
    for barrier in (until, {1: {2: Position(seq=4)}}):
        assert [is_beyond(b, barrier) for b in inside + beyond] == [False] * 3 + [True] * 4


def test_prewrites_told_apart_by_a_number_of_the_half_are_noticed() -> None:
    """Halves number the rows that are cut for them, each from the same number on: a `row_no` names no prewrite."""
    change = ("matched(due, open_)", 'matched(due, open_.unique("row_no"))')
    with reworded(PrewriteBuffer, "_resolve", change), pytest.raises((AssertionError, TiStreamError)):
        play_all()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("key=lambda p: (p.closed, p.seq)", "key=lambda p: (-p.closed, -p.seq)"),
        ("batch.closes or batch.seq > at.seq", "batch.closes or batch.seq >= at.seq"),
    ],
    ids=["the smaller position", "one file short"],
)
def test_a_mutant_is_noticed(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source = inspect.getsource(merge_barrier)
    assert old in source
    mutated = dict(vars(merge_barrier))
    exec(compile(source.replace(old, new), merge_barrier.__file__, "exec"), mutated)
    for name in ("furthest", "has_reached", "is_beyond", "at_barrier"):
        monkeypatch.setattr(f"tests.kit.merge_run.{name}", mutated[name])
    with pytest.raises((AssertionError, TiStreamError)):
        play_all()
