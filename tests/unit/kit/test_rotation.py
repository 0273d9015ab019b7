"""The parts of the rotation together are all tests, and a suite over its budget fails the run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.kit.rotation import BUDGETS, PARTS, commit_number, left_out
from tests.kit.suites import Suites

MUTANTS = "tests/sim/test_mutants.py::test_a_broken_rule_is_noticed"
FILES = [f"tests/{path}" for path in BUDGETS["rotation"]["files"]]
IN_EVERY_RUN = ["tests/test_docs.py::test_links", "tests/sim/test_mutants.py::test_the_document_speaks"]
OF_FILES = [f"{path}::{name}" for path in FILES for name in ("test_one", "test_two")]
OF_MUTANTS = [f"{MUTANTS}[{n}]" for n in range(2 * PARTS + 5)]
ALL = [*IN_EVERY_RUN, *OF_FILES, *OF_MUTANTS]


def test_the_parts_are_disjoint_and_together_all() -> None:
    parts = [[nodeid for nodeid in ALL if nodeid not in left_out(ALL, str(part))] for part in range(PARTS)]
    assert all(part[:2] == IN_EVERY_RUN for part in parts)
    rotating = [nodeid for part in parts for nodeid in part[2:]]
    assert sorted(rotating) == sorted([*OF_FILES, *OF_MUTANTS])
    assert {sum(nodeid in OF_MUTANTS for nodeid in part) for part in parts} == {2, 3}


def test_a_file_is_in_one_part() -> None:
    for part in range(PARTS):
        others = left_out(ALL, str(part))
        assert all((f"{path}::test_one" in others) is (f"{path}::test_two" in others) for path in FILES)


def test_a_run_by_hand_leaves_nothing_out_and_a_soak_only_what_is_in_every_run() -> None:
    assert left_out(ALL, "all") == set()
    assert left_out(ALL, "only") == set(IN_EVERY_RUN)
    assert left_out(ALL, "commit") == left_out(ALL, str(commit_number() % PARTS))


@pytest.mark.parametrize("rotation", [str(PARTS), "-1", "some"])
def test_what_is_no_part_is_refused(rotation: str) -> None:
    with pytest.raises(ValueError, match=r"rotation|invalid literal"):
        left_out(ALL, rotation)


@pytest.mark.parametrize(("rotation", "tests", "cpu_s", "fails"), [
    ("commit", 9000, 1.01, True), ("commit", 9000, 0.99, False), ("commit", 5, 1.01, False), ("all", 9000, 1.01, False),
])  # fmt: skip
def test_a_suite_over_its_budget_fails_the_run(rotation: str, tests: int, cpu_s: float, fails: bool) -> None:
    suites = Suites(rotation)
    suites.spent["unit"].tests, suites.spent["unit"].cpu_s = tests, BUDGETS["cpu_s"]["unit"] * cpu_s
    assert _ends(suites) == (pytest.ExitCode.TESTS_FAILED if fails else pytest.ExitCode.OK)


@pytest.mark.parametrize(("slower", "cpu_s", "fails"), [(2.0, 1.9, False), (2.0, 2.1, True), (0.5, 0.9, False)])
def test_a_slow_machine_may_take_longer_and_a_fast_one_as_long(slower: float, cpu_s: float, fails: bool) -> None:
    suites = Suites("commit", loops_ms=[BUDGETS["loop_ms"] * slower])
    suites.spent["unit"].tests, suites.spent["unit"].cpu_s = 9000, BUDGETS["cpu_s"]["unit"] * cpu_s
    assert _ends(suites) == (pytest.ExitCode.TESTS_FAILED if fails else pytest.ExitCode.OK)


def _ends(suites: Suites) -> pytest.ExitCode:
    """How a run ends whose tests all passed."""
    session: Any = SimpleNamespace(exitstatus=pytest.ExitCode.OK, config=SimpleNamespace())
    suites.pytest_sessionfinish(session)
    return pytest.ExitCode(session.exitstatus)
