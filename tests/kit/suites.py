"""How the tests are run side by side: which stay together, which begin, and what each suite may take.

Tests of one file run in one process, one after the other, so that what they share is made once. What fails most often
begins, then what takes longest, so that no process is left with a long file at the end. CPU time counts for budgets, of
a test's process and of the processes that it waited for: unlike wall time it hardly depends on what runs beside it.
"""

from __future__ import annotations

import os
import tomllib
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

BUDGETS = tomllib.loads((Path(__file__).parents[1] / "budgets.toml").read_text("utf-8"))
_SUITES: dict[str, str] = {part: suite for suite, parts in BUDGETS["suites"].items() for part in parts}
_RANK: dict[str, int] = {path: n for n, path in enumerate(BUDGETS["order"]["first"])}
_GROUPS: dict[str, str] = {path: name for name, paths in BUDGETS["order"]["together"].items() for path in paths}
_APART: tuple[str, ...] = tuple(BUDGETS["order"]["apart"])


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0].removeprefix("tests/")


def suite(nodeid: str) -> str:
    """The suite of a test."""
    return _SUITES[_file(nodeid).partition("/")[0]]


def scope(nodeid: str) -> str:
    """What stays in one process with this test: its file, or files that share something dear, or the test alone."""
    path = _file(nodeid)
    return nodeid if path.startswith(_APART) else _GROUPS.get(path, path)


class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
    """xdist's scheduler for scopes, with ours, in the order of the collection."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)


@dataclass
class _Spent:
    tests: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0


@dataclass(eq=False)  # pytest keeps plugins in sets
class Suites:
    """The plugin: order of tests, and what they took."""

    began_s: float = field(default_factory=monotonic)
    mark_s: float = 0.0
    spent: dict[str, _Spent] = field(default_factory=lambda: defaultdict(_Spent))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """What fails often and what takes long begins; the rest keeps its order."""
        first: dict[str, int] = {}
        for item in items:
            kept = scope(item.nodeid)
            first[kept] = min(first.get(kept, len(_RANK)), _RANK.get(_file(item.nodeid), len(_RANK)))
        items.sort(key=lambda item: first[scope(item.nodeid)])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Scheduler:
        """Used wherever there are several processes."""
        return Scheduler(config, log)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Any:
        """Count the CPU time since the phase before."""
        report = yield
        now_s = sum(os.times()[:4])
        report.cpu_s, self.mark_s = now_s - self.mark_s, now_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase of a test to its suite."""
        spent = self.spent[suite(report.nodeid)]
        spent.tests += report.when == "call"
        spent.cpu_s += report.__dict__["cpu_s"]
        spent.wall_s += report.duration

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """What each suite took, beside its budget. A suite above it is marked; nothing fails by it."""
        if sum(spent.tests for spent in self.spent.values()) < BUDGETS["shown_from_tests"]:
            return
        lines = [f"{'suite':12}{'tests':>7}{'CPU s':>8}{'budget':>8}{'wall s, summed':>16}"]
        for name, spent in sorted(self.spent.items()):
            budget = BUDGETS["cpu_s"][name]
            over = "  over budget" if spent.cpu_s > budget else ""
            lines.append(f"{name:12}{spent.tests:>7}{spent.cpu_s:>8.0f}{budget:>8}{spent.wall_s:>16.0f}{over}")
        lines.append(f"{(monotonic() - self.began_s) / 60:.1f} minutes of {BUDGETS['minutes']} for all suites together")
        terminalreporter.section("budgets")
        terminalreporter.write_line("\n".join(lines))
