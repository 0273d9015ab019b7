"""Garbage collection of random histories of a few keys: no read as of the safe point or later changes, however often,
of whatever files and in whatever order it is done; and each rule broken once is noticed.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compactor.core import collection
from compactor.core.collection import KEY_VERSIONS_MAX, Versions, counted, is_worth_collecting
from simulator.dst.mutants import reworded
from tests.kit.key_history import Row, answer, table, write
from tistream import ts as tso

KEYS, STEPS, SEEDS = 3, 12, 60


class Run:
    """One history, in files that overlap, and what collecting has left of it."""

    def __init__(self, rand: random.Random) -> None:
        self.rand, self.all, self.safe_ts, self.ts = rand, list[Row](), 0, tso.compose(1000)
        self.files: list[list[Row]] = []

    def step(self) -> None:
        """Write a file, or collect some."""
        if len(self.files) < 2 or self.rand.random() < 0.6:
            self.write()
        else:
            self.collect()

    def write(self) -> None:
        rows, self.ts = write(self.rand, self.ts, self.rand.randint(1, 6), KEYS, 700)
        self.all += rows
        cut = self.rand.randint(0, len(rows))  # rows of one time in two files
        self.rand.shuffle(rows)
        self.files += [part for part in (rows[:cut], rows[cut:]) if part]

    def collect(self) -> None:
        """Merge some files. The bottom is where no other file has an older row."""
        self.safe_ts = max(self.safe_ts, self.rand.choice(self.all).commit_ts - self.rand.choice([0, 1]))
        chosen = self.rand.sample(range(len(self.files)), self.rand.randint(1, len(self.files)))
        rows = [row for n in chosen for row in self.files[n]]
        others = [row for n, file in enumerate(self.files) if n not in chosen for row in file]
        top = max((row.commit_ts for row in rows if row.commit_ts <= self.safe_ts), default=0)
        bottom = all(row.commit_ts > top for row in others)
        keep = collection.kept(table(rows), self.safe_ts, bottom=bottom)
        self.files = [file for n, file in enumerate(self.files) if n not in chosen]
        self.files.append([row for row, stays in zip(rows, keep.tolist(), strict=True) if stays])
        if bottom:  # nothing is left that no read needs
            below = [row for row in self.files[-1] if row.commit_ts < self.safe_ts]
            assert all(answer([row], row.key, self.safe_ts).value is not None for row in below)
            assert len({row.key for row in below}) == len(below)

    def check(self) -> None:
        """Every read from the safe point on is what it was."""
        left = [row for file in self.files for row in file]
        moments = {self.safe_ts, self.ts, *(row.commit_ts for row in self.all), *(row.start_ts for row in self.all)}
        moments |= {tso.compose(row.expire_ts * 1000) - early for row in self.all for early in (0, 1) if row.expire_ts}
        for as_of in sorted(ts for ts in moments if ts >= self.safe_ts):
            for key in {row.key for row in self.all}:
                assert answer(left, key, as_of) == answer(self.all, key, as_of), (key, as_of)


def run(rand: random.Random) -> None:
    world = Run(rand)
    for _ in range(STEPS):
        world.step()
        world.check()


def run_seeds() -> None:
    for seed in range(SEEDS):
        run(random.Random(seed))


@settings(max_examples=20)
@given(rand=st.randoms(use_true_random=False))
def test_reads_from_the_safe_point_on_stay_as_they_were(rand: random.Random) -> None:
    run(rand)


MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "the newest version is collected": partial(
        reworded, collection, "kept", ("keep[places] = is_newest", "keep[places] = False")
    ),
    "an older version is brought back": partial(
        reworded,
        collection,
        "kept",
        ("keep[places] = is_newest", "keep[places] = is_newest | (bottom & ~ended(rows, safe_ts)[places])"),
    ),
    "an older version stays for the newest": partial(
        reworded, collection, "_at_or_below", ("sort_keys=_NEWEST_FIRST", 'sort_keys=[("key", "ascending")]')
    ),
    "expired by now": partial(
        reworded, collection, "expired", ("tso.physical_ms(ts) // 1000", "tso.physical_ms(1 << 62) // 1000")
    ),
    "a deletion goes above the bottom": partial(reworded, collection, "kept", ("if bottom:", "if True:")),
    "a deletion at the safe point goes": partial(
        reworded, collection, "ended", ("< np.uint64(safe_ts)", "<= np.uint64(safe_ts)")
    ),
    "a version above the safe point goes": partial(
        reworded, collection, "_at_or_below", ("<= np.uint64(safe_ts)", "<= np.uint64(safe_ts + 1)")
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_noticed(name: str) -> None:
    with MUTANTS[name](), pytest.raises(AssertionError):
        run_seeds()


def test_the_rules_as_they_are_pass() -> None:
    run_seeds()


def test_the_newest_goes_with_all_older_versions_or_not_at_all() -> None:
    ts = tso.compose(5000)
    rows = [Row(b"k", ts - 2, ts - 2, b"old", 0), Row(b"k", ts - 1, ts - 1, b"v", 5), Row(b"k", ts + 1, 9, b"new", 0)]
    assert collection.kept(table(rows), ts, bottom=True).tolist() == [False, False, True]
    assert collection.kept(table(rows), ts, bottom=False).tolist() == [False, True, True]
    assert collection.kept(table(rows), ts - 1, bottom=True).tolist() == [False, True, True]  # 4 s: it has not expired
    assert not len(collection.kept(table([]), ts, bottom=True))


def test_the_counts_of_a_file_are_those_at_or_below_the_safe_point() -> None:
    rows = [Row(b"%d" % (n % 3), n, n, b"", 0) for n in range(1, 11)]
    assert counted(table(rows), 7) == Versions(total=10, obsolete=4, of_one_key=3)
    assert counted(table(rows), 0) == Versions(total=10)
    assert counted(table([]), 7) == Versions()


def test_a_merge_collects_when_the_paper_says_so() -> None:
    tenth, more = Versions(total=100, obsolete=10, of_one_key=2), Versions(total=100, obsolete=11, of_one_key=2)
    hot = Versions(total=1_000_000, obsolete=KEY_VERSIONS_MAX, of_one_key=KEY_VERSIONS_MAX + 1)
    assert not tenth.is_due
    assert more.is_due
    assert hot.is_due
    assert not Versions(total=1_000_000, obsolete=KEY_VERSIONS_MAX - 1, of_one_key=KEY_VERSIONS_MAX).is_due
    large = Versions(total=10_000)
    assert is_worth_collecting([large], bottom=True)
    assert not is_worth_collecting([large], bottom=False)
    assert not is_worth_collecting([more, large], bottom=False)  # half of the files, and 0.1 % of all
    assert is_worth_collecting([more, more, large], bottom=False)  # more than half
    assert is_worth_collecting([more, large, hot], bottom=False)  # the sum: one key has many
    assert not is_worth_collecting([tenth] * 3, bottom=False)
    assert not is_worth_collecting([], bottom=False)
