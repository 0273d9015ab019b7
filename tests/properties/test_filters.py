"""Random schemas, changes and filters: what passes is what a slow reference lets pass after a full pull. Each rule is
broken once, and must be noticed."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reading.filters import select
from reading.filters.core import evaluate, rules
from reading.filters.core.evaluate import _Evaluation
from reading.filters.core.rules import TableRules
from reading.filters.select import _TableSelection
from simulator.dst.mutants import reworded
from tests.kit.filter_cases import check
from tistream.errors import TiStreamError

QUIET = settings(
    deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@QUIET
@given(rand=st.randoms(use_true_random=False))
def test_a_filter_lets_pass_what_the_reference_lets_pass(rand: Random) -> None:
    check(rand)


SEEDS = 8
PARTS = ((), ("where",), ("where", "changed"), ("where", "ops"), ("event_filters",))

#: Name -> the owner of a function, its name, and (text as it is, text instead).
MUTANTS: dict[str, tuple[Any, str, tuple[str, str]]] = {
    "unknown is true": (_TableSelection, "_true", ("pc.fill_null(mask, False)", "pc.fill_null(mask, True)")),
    "AND forgets the unknown": (_Evaluation, "of", ("pc.and_kleene", "pc.and_")),
    "OR forgets the unknown": (_Evaluation, "of", ("pc.or_kleene", "pc.or_")),
    "the first rule decides": (TableRules, "matches", ("reversed(self.rules)", "self.rules")),
    "an exclusion includes": (rules, "_includes", ("return False", "return True")),
    "a fraction is cut": (evaluate, "compare", ("exact = floor == scaled", "exact = True")),
    "a constant beyond the type is never larger": (
        evaluate,
        "_bounded",
        ('op != "=" and (wanted > high) == (op == "<=")', "False"),
    ),
    "IN forgets its NULL": (
        _Evaluation,
        "_memberships",
        ("masks.append(self._all(None))", "masks.append(self._all(False))"),
    ),
    "an update that enters stays an update": (
        _TableSelection,
        "_moved",
        ("enters = (kind == UPDATE) & new & ~old", "enters = new & False"),
    ),
    "an update that leaves is dropped": (
        _TableSelection,
        "_moved",
        ("return new | old,", "return new | ((kind == DELETE) & old),"),
    ),
    "ops are asked before the expression": (_TableSelection, "_possible", ("raw & {INSERT, DELETE}", "False")),
    "ops are not asked after the expression": (
        _TableSelection,
        "of",
        ("keep &= np.isin(final, sorted(self._kinds))", "pass"),
    ),
    "what left counts as unchanged": (_TableSelection, "of", ("| enters | leaves |", "|")),
    "an unknown old row did not pass": (
        _TableSelection,
        "_moved",
        ("& (kind != INSERT)) | unknown", "& (kind != INSERT))"),
    ),
    "the key decides nothing": (_TableSelection, "_is_decided_by_key", ("<= held", "<= set()")),
    "an event filter is of every table": (
        _TableSelection,
        "__init__",
        ("if each.matcher.matches(table.db, table.name)", "if True"),
    ),
    "the old value is asked for the new one": (
        _TableSelection,
        "_ignored_rows",
        ("images[rule.image]", 'images["after"]'),
    ),
    "a deleted row keeps its value": (select, "_without_images", ('("value", leaving)', '("value", leaving & False)')),
}


def noticed() -> bool:
    """Whether one of the comparisons goes wrong."""
    for seed in range(SEEDS):
        try:
            for parts in PARTS:
                check(Random(seed), *parts)
        except (AssertionError, TiStreamError):
            return True
    return False


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_rule_is_noticed(mutant: str) -> None:
    with reworded(*MUTANTS[mutant]):
        assert noticed()


def test_the_rules_as_they_are_pass() -> None:
    assert not noticed()
