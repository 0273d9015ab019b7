"""Evidence that the scenarios and random histories check something: each rule is broken once, and must be noticed."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from simulator.dst.all_mutants import MUTANTS as SIMULATED
from simulator.dst.mutants import reworded
from sorter.core import admission, conflict_rule, conflicts, prewrite_buffer
from sorter.core.slots import Promises, Slots
from sorter.core.task_core import TaskCore
from sorter.core.watermark import RangeWatermarkMap
from sorter.rows import output
from tests.kit.scenario import run_scenario
from tests.kit.sorter_run import SorterRun
from tistream.errors import TiStreamError

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios").glob("*.txt"))
SEEDS = 6
STEPS = 120

#: of the simulator's mutants those that a single core can show
SHARED = (
    "counts-before-ready",
    "dead-by-start-ts",
    "dead-at-cut-ts",
    "dead-while-commit-waits",
    "written-rows-come-again",
    "rollback-beats-commit",
    "fake-wins",
    "earlier-row-wins",
    "undecided-not-held",
    "watermarks-before-data",
    "restore-lifts-w",
    "restore-keeps-written",
    "taken-rows-leave",
)
#: name -> (owner, function, (text, text instead))
OWN: dict[str, tuple[object, str, tuple[str, str]]] = {
    "a row lifts a slice whatever its checkpoint_ts": (
        Promises,
        "place",
        ("~slots.reaches(self._of_pairs(self.checkpoint), self.slot)", "self.slot < 0"),
    ),
    "a row lifts a slice from above the durable watermark": (
        Slots,
        "reaches",
        ("np.maximum(self.w[slot], self.floor)", "np.maximum(self.w[slot], self.floor) + np.uint64(20)"),
    ),
    "a gap counts as covered": (
        RangeWatermarkMap,
        "watermark",
        ("None if self._slots.uncovered else int(self._slots.w.min())", "int(self._slots.w.min())"),
    ),
    "a missing prewrite is ignored": (prewrite_buffer, "raise_violation", ("if rows is not None:", "if False:")),
    "a late commit is accepted": (admission, "raise_violation", ("if rows is not None:", "if False:")),
    "a duplicate counts as a violation": (
        admission,
        "classify",
        ('fresh[~buffers.ready.known(rows.lookup_keys(fresh, "commit_ts"))]', "fresh"),
    ),
    "rollbacks do nothing": (admission, "without_ended", ("if not len(rollbacks):", "if True:")),
    "generations do not matter": (
        admission,
        "merged",
        ('pl.col("generation") == pl.col("generation").max().over(TXN)', "True"),
    ),
    "subscriptions are ordered by arrival": (
        conflict_rule,
        "_is_later",
        ("b.ready_ts != 0 and a.open_ts > b.ready_ts", "a.row_no > b.row_no"),
    ),
    "the commit's own value does not count": (
        conflicts,
        "choose",
        ("return _with_value(latest, commit_value) if commit_value else None", "return None"),
    ),
    "a gap in the feed is accepted": (TaskCore, "_is_next", ("or batch.seq > expected", "")),
    "a repeated file is taken again": (TaskCore, "_is_next", ("if batch.seq < expected:", "if False:")),
    "rows are written in the order of their keys": (
        output,
        "in_order",
        ("radix_order(first)", "radix_order(refs.hashes())"),
    ),
}
MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    **{name: SIMULATED[name].patch for name in SHARED},
    **{name: partial(reworded, *change) for name, change in OWN.items()},
}


def noticed() -> bool:
    """Whether a scenario or a random history goes wrong."""
    for path in SCENARIOS:
        text = path.read_text()
        try:
            if run_scenario(text) != text:
                return True
        except (AssertionError, TiStreamError):
            return True
    for seed in range(SEEDS):
        rand, run = random.Random(seed), SorterRun()
        try:
            for _ in range(STEPS):
                run.random_step(rand)
            run.finish()
        except (AssertionError, TiStreamError):
            return True
    return False


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_noticed(name: str) -> None:
    with MUTANTS[name]():
        assert noticed()


def test_the_rules_as_they_are_pass() -> None:
    assert not noticed()
