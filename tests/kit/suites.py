"""The pytest plugin of this repository: which tests a run takes, in which order and process, and what they may cost.

Tests of one file run in one process, one after the other, so that what they share is made once. What fails most often
begins, then what takes longest, so that no process is left with a long file at the end. CPU time counts for budgets, of
a test's process and of the processes that it waited for. It depends on the machine and on what runs beside the test, so
budgets are in seconds of the machine that `loop_ms` of `tests/budgets.toml` was measured on: each process repeats one
loop during the run, and where that takes longer, all suites may. `tests.kit.rotation` says which tests `--rotation`
leaves out.
"""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field
from statistics import fmean
from time import monotonic, thread_time
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from tests.kit.rotation import BUDGETS, left_out, path_of

_SUITES: dict[str, str] = {part: suite for suite, parts in BUDGETS["suites"].items() for part in parts}
_RANK: dict[str, int] = {path: n for n, path in enumerate(BUDGETS["order"]["first"])}
_GROUPS: dict[str, str] = {path: name for name, paths in BUDGETS["order"]["together"].items() for path in paths}
_APART: tuple[str, ...] = tuple(BUDGETS["order"]["apart"])
_SERVICES: tuple[str, ...] = tuple(BUDGETS["order"]["services"])
_FILES_SHOWN = 12
_LOOP_EVERY_S = 10.0


def suite(nodeid: str) -> str:
    """The suite of a test."""
    return _SUITES[path_of(nodeid).partition("/")[0]]


def scope(nodeid: str) -> str:
    """What stays in one process with this test: its file, files that share something expensive, or the test alone."""
    path = path_of(nodeid)
    return nodeid if path.startswith(_APART) else _GROUPS.get(path, path)


class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
    """xdist's scheduler for scopes, with ours, in the order of the collection."""

    def __init__(self, config: pytest.Config, log: Any) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return scope(nodeid)

    def _assign_work_unit(self, node: Any) -> None:
        """Whole services go to half of the processes while there is anything else: four at once, each of ten
        processes, keep two processors from everything that has a time limit."""
        nodes = list(self.assigned_work)
        takes_services = nodes.index(node) < len(nodes) / 2
        units = (unit for unit in self.workqueue if unit.startswith(_SERVICES) == takes_services)
        if (fitting := next(units, None)) is not None:
            self.workqueue.move_to_end(fitting, last=False)
        super()._assign_work_unit(node)


def loop_ms() -> float:
    """The CPU milliseconds that a fixed loop takes here and now: how fast the machine is, with its present load."""
    began_s = thread_time()
    seen: dict[int, str] = {}
    for number in range(50_000):
        seen[number % 997] = str(number)
    return (thread_time() - began_s) * 1e3


@dataclass
class _Spent:
    tests: int = 0
    cpu_s: float = 0.0
    wall_s: float = 0.0


@dataclass(eq=False)  # pytest keeps plugins in sets
class Suites:
    """Which tests, in which order, and what they took."""

    rotation: str
    began_s: float = field(default_factory=monotonic)
    mark_s: float = 0.0
    looped_s: float = 0.0
    loops_ms: list[float] = field(default_factory=list)  #: what the loop took, of all processes
    spent: dict[str, _Spent] = field(default_factory=lambda: defaultdict(_Spent))  #: by suite
    by_file: dict[str, _Spent] = field(default_factory=lambda: defaultdict(_Spent))

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        """What fails often and what takes long begins; the rest keeps its order. What another run takes is left out."""
        others = left_out((item.nodeid for item in items), self.rotation)
        if others:
            config.hook.pytest_deselected(items=[item for item in items if item.nodeid in others])
            items[:] = [item for item in items if item.nodeid not in others]
        first: dict[str, int] = {}
        for item in items:
            group = scope(item.nodeid)
            first[group] = min(first.get(group, len(_RANK)), _RANK.get(path_of(item.nodeid), len(_RANK)))
        items.sort(key=lambda item: first[scope(item.nodeid)])

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: Any) -> Scheduler:
        """Used wherever there are several processes."""
        return Scheduler(config, log)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Any:
        """Count the CPU time since the phase before; now and then, what the loop takes."""
        report = yield
        report.cpu_s = sum(os.times()[:4]) - self.mark_s
        if monotonic() - self.looped_s > _LOOP_EVERY_S:
            report.loop_ms, self.looped_s = loop_ms(), monotonic()
        self.mark_s = sum(os.times()[:4])
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add a phase of a test to its suite and its file."""
        for spent in (self.spent[suite(report.nodeid)], self.by_file[path_of(report.nodeid)]):
            spent.tests += report.when == "call"
            spent.cpu_s += report.__dict__.get("cpu_s", 0.0)  # none of a test whose process has died
            spent.wall_s += report.duration
        if "loop_ms" in report.__dict__:
            self.loops_ms.append(report.__dict__["loop_ms"])

    @property
    def slower(self) -> float:
        """How many times as long as on the budgets' machine the loop took; 1 where it took less."""
        return max(1.0, fmean(self.loops_ms) / BUDGETS["loop_ms"]) if self.loops_ms else 1.0

    def budget_s(self, name: str) -> float:
        """What a suite may take on this machine, in CPU seconds."""
        return float(BUDGETS["cpu_s"][name]) * self.slower

    @property
    def over_budget(self) -> list[str]:
        """The suites that took more than they may. Budgets are for one part of the rotation, all suites together."""
        if self.rotation in ("all", "only") or sum(s.tests for s in self.spent.values()) < BUDGETS["counts_from_tests"]:
            return []
        return [name for name, spent in sorted(self.spent.items()) if spent.cpu_s > self.budget_s(name)]

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A suite over its budget fails the run."""
        if self.over_budget and session.exitstatus == pytest.ExitCode.OK and not hasattr(session.config, "workerinput"):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """What each suite took, beside its budget, and which files took most."""
        if sum(spent.tests for spent in self.spent.values()) < BUDGETS["counts_from_tests"]:
            return
        over = self.over_budget
        lines = [f"{'suite':12}{'tests':>7}{'CPU s':>8}{'budget':>8}{'wall s, summed':>16}"]
        for name, spent in sorted(self.spent.items()):
            mark = "  OVER BUDGET" if name in over else ""
            lines.append(
                f"{name:12}{spent.tests:>7}{spent.cpu_s:>8.0f}{self.budget_s(name):>8.0f}{spent.wall_s:>16.0f}{mark}"
            )
        lines.append(f"{self.slower:.2f} times as slow as the machine that the budgets are for")
        lines.append(f"{(monotonic() - self.began_s) / 60:.1f} minutes of {BUDGETS['minutes']} for all suites together")
        most = sorted(self.by_file.items(), key=lambda item: -item[1].cpu_s)[:_FILES_SHOWN]
        lines += ["", "files that took most"]
        lines += [f"{spent.cpu_s:6.0f} CPU s  {spent.tests:5} tests  {path}" for path, spent in most]
        terminalreporter.section("budgets")
        terminalreporter.write_line("\n".join(lines))
