"""Evidence that the simulator checks something: each rule is broken once, and must be noticed.

The quick ones only. The others are tried by hand (`tistream sim --mutant NAME`): docs/correctness.md, "Mutants", says
how many seeds each took, and which cannot be noticed and why.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tistream.sim.mutants import MUTANTS
from tistream.sim.run import run

DOC = Path(__file__).parents[2] / "docs" / "correctness.md"
SEEDS = 4  # tried from the recorded one on: a change of the simulator may move what a seed does

#: mutant -> the first seed of its scenario that showed it
QUICK = {
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_fits_the_code_and_is_put_back(name: str) -> None:
    with MUTANTS[name].patch():
        pass
    with MUTANTS[name].patch():  # the code is as it was, so it fits again
        pass


@pytest.mark.parametrize(("name", "first"), QUICK.items())
def test_a_broken_rule_is_noticed(name: str, first: int) -> None:
    mutant = MUTANTS[name]
    with mutant.patch():
        assert any(not run(seed, mutant.scenario).held for seed in range(first, first + SEEDS))


def test_the_document_speaks_of_every_mutant_with_its_scenario() -> None:
    rows = re.findall(r"^\| `([a-z-]+)` \|.*\| (\w+) \| [^|]+ \|$", DOC.read_text(), re.MULTILINE)
    assert dict(rows) == {mutant.name: mutant.scenario for mutant in MUTANTS.values()}
