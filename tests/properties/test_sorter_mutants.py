"""Evidence that the scenarios and random histories check something: each rule is broken once, and must be noticed."""

from __future__ import annotations

import inspect
import random
import textwrap
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sorter.core import admission, conflict_rule, conflicts, prewrite_buffer, slots, sort_buffer, task_core, watermark
from sorter.core.prewrite_buffer import PrewriteBuffer
from sorter.core.slots import Promises, Slots
from sorter.core.sort_buffer import SortBuffer
from sorter.core.task_core import TaskCore
from sorter.core.watermark import RangeWatermarkMap
from sorter.rows import output
from tests.kit.scenario import run_scenario
from tests.kit.sorter_run import SorterRun
from tistream.errors import TiStreamError

SCENARIOS = sorted((Path(__file__).parents[1] / "scenarios").glob("*.txt"))
SEEDS = 6
STEPS = 120


@dataclass(frozen=True, kw_only=True)
class Mutant:
    name: str
    module: ModuleType
    owner: Any  #: class or module that has the function
    function: str
    old: str
    new: str
    also: tuple[str, str] = ("", "")  #: replaced too


MUTANTS = [
    Mutant(
        name="a row lifts a slice whatever its checkpoint_ts",
        module=slots,
        owner=Promises,
        function="place",
        old="~slots.reaches(self._of_pairs(self.checkpoint), self.slot)",
        new="self.slot < 0",
    ),
    Mutant(
        name="a row lifts a slice from above durable watermark",
        module=slots,
        owner=Slots,
        function="reaches",
        old="np.maximum(self.w[slot], self.floor)",
        new="np.maximum(self.w[slot], self.floor) + np.uint64(20)",
    ),
    Mutant(
        name="a hole counts as covered",
        module=watermark,
        owner=RangeWatermarkMap,
        function="watermark",
        old="None if self._slots.uncovered else int(self._slots.w.min())",
        new="int(self._slots.w.min())",
    ),
    Mutant(
        name="a subscription counts before it is ready",
        module=watermark,
        owner=watermark,
        function="_resolved_of",
        old="np.where(ready, resolved, np.uint64(0))",
        new="resolved.copy()",
    ),
    Mutant(
        name="dead by start_ts",
        module=prewrite_buffer,
        owner=PrewriteBuffer,
        function="_drop_dead",
        old="_past_cut(run, watermarks)",
        new='reached(run, Thresholds(run.ts("start_ts"), 0), watermarks, strictly=True)',
        also=("not may_reach(run, run.least_cut(), watermarks) or not run.live", "not run.live"),
    ),
    Mutant(
        name="dead at cut_ts == W",
        module=prewrite_buffer,
        owner=prewrite_buffer,
        function="_past_cut",
        old="strictly=True",
        new="strictly=False",
    ),
    Mutant(
        name="dead although its commit waits",
        module=prewrite_buffer,
        owner=PrewriteBuffer,
        function="_drop_dead",
        old='gone[~self.commits.known(run.needles(gone, "start_ts"), "start_ts")]',
        new="gone",
    ),
    Mutant(
        name="a missing prewrite is passed over",
        module=admission,
        owner=admission,
        function="raise_violation",
        old="if rows is not None:",
        new="if False:",
    ),
    Mutant(
        name="promise tested before duplicates",
        module=admission,
        owner=admission,
        function="classify",
        old='fresh[~buffers.ready.known(rows.needles(fresh, "commit_ts"))]',
        new="fresh",
    ),
    Mutant(
        name="what was written is not dropped",
        module=admission,
        owner=admission,
        function="classify",
        old="fresh = outcome[above]",
        new="fresh = outcome",
    ),
    Mutant(
        name="a rollback deletes a committed prewrite",
        module=admission,
        owner=admission,
        function="without_ended",
        old="rollbacks[~committing]",
        new="rollbacks",
    ),
    Mutant(
        name="rollbacks do nothing",
        module=admission,
        owner=admission,
        function="without_ended",
        old="if not len(rollbacks):",
        new="if True:",
    ),
    Mutant(
        name="a fake prewrite replaces a full one",
        module=conflicts,
        owner=admission,
        function="merged",
        old='pl.col("full") == pl.col("full").max().over(TXN)',
        new="True",
    ),
    Mutant(
        name="generations do not matter",
        module=conflicts,
        owner=admission,
        function="merged",
        old='pl.col("generation") == pl.col("generation").max().over(TXN)',
        new="True",
    ),
    Mutant(
        name="the first row of a subscription wins",
        module=conflicts,
        owner=admission,
        function="merged",
        old='keep="last"',
        new='keep="first"',
    ),
    Mutant(
        name="subscriptions are ordered by arrival",
        module=conflict_rule,
        owner=conflict_rule,
        function="_is_later",
        old="b.ready_ts != 0 and a.open_ts > b.ready_ts",
        new="a.row_no > b.row_no",
    ),
    Mutant(
        name="the commit's own value is not asked",
        module=conflict_rule,
        owner=conflicts,
        function="choose",
        old="return _with_value(latest, commit_value) if commit_value else None",
        new="return None",
    ),
    Mutant(
        name="an undecided commit does not hold W",
        module=task_core,
        owner=TaskCore,
        function="watermark",
        old="min(w, hold)",
        new="w",
    ),
    Mutant(
        name="watermark rows before data",
        module=task_core,
        owner=TaskCore,
        function="_take_rows",
        old="self._prewrites.take_in(",
        new="self._watermarks.apply(batch.regions, batch.store_id, batch.incarnation, batch.seq)\n"
        "    self._prewrites.take_in(",
    ),
    Mutant(
        name="a gap is accepted",
        module=task_core,
        owner=TaskCore,
        function="_is_next",
        old="or batch.seq > expected",
        new="",
    ),
    Mutant(
        name="a repeated file is taken again",
        module=task_core,
        owner=TaskCore,
        function="_is_next",
        old="if batch.seq < expected:",
        new="if False:",
    ),
    Mutant(
        name="a restored W is lifted to durable watermark",
        module=task_core,
        owner=TaskCore,
        function="restore",
        old="self._positions =",
        new="self._watermarks._slots.w.clip(self._durable_ts, out=self._watermarks._slots.w)\n    self._positions =",
    ),
    Mutant(
        name="restored rows that were written are kept",
        module=sort_buffer,
        owner=SortBuffer,
        function="restore",
        old="self.flushed(durable_ts)",
        new="pass",
    ),
    Mutant(
        name="rows leave when they are taken",
        module=task_core,
        owner=TaskCore,
        function="take",
        old="return self._ready.take(w)",
        new="rows = self._ready.take(w)\n    self._ready.flushed(w)\n    return rows",
    ),
    Mutant(
        name="rows are written in the order of their keys",
        module=output,
        owner=output,
        function="in_order",
        old="radix_order(first)",
        new="radix_order(place.hashes())",
    ),
]


def broken(mutant: Mutant) -> Any:
    """The function with one piece of its text replaced."""
    source = textwrap.dedent(inspect.getsource(getattr(mutant.owner, mutant.function)))
    assert source.count(mutant.old) == 1, f"the mutant no longer fits {mutant.function}"
    space: dict[str, Any] = {}
    source = source.replace(mutant.old, mutant.new)
    if mutant.also[0]:
        assert mutant.also[0] in source
        source = source.replace(*mutant.also)
    exec(source, vars(mutant.module), space)  # the very point of a mutant
    return space[mutant.function]


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


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_a_broken_rule_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutant.owner, mutant.function, broken(mutant))
    assert noticed()


def test_the_rules_as_they_are_pass() -> None:
    assert not noticed()
