"""Crash points: that a process dies where it should and nowhere else, a bounded part of the enumeration, and that it
notices broken rules. The whole of it: `tistream sim --crash-points`, and with `--pairs`."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from simulator.dst.boundaries import LATE_S, Boundary, Point, Side, parse_points
from simulator.dst.crash_points import PAIRS, SCENARIOS, CrashPlan, Failure, enumerate_points, play
from simulator.dst.profiles import PROFILES, profile_of
from simulator.dst.run import Outcome
from tistream.cli.main import command_line
from tistream.errors import InvalidInput

SMALL = replace(PAIRS, pairs=False, seed=2)  # long enough to replace and collect snapshots


@pytest.fixture(scope="module")
def calm() -> Outcome:
    return play(SMALL, ())


def first(calm: Outcome, what: str) -> Boundary:
    """The first boundary of this kind."""
    return next(b for b in calm.boundaries if b.what.startswith(what))


def test_points_are_read_as_they_are_written() -> None:
    points = (Point(17, Side.AFTER), Point(40, Side.BEFORE), Point(41, Side.LATE))
    assert parse_points("17:after,40:before, 41:late") == points
    assert parse_points(",".join(str(p) for p in points)) == points


@pytest.mark.parametrize("text", ["", "17", "17:during", "0:after", "x:after", "4:after,4:before", "9:after,4:after"])
def test_what_is_no_point_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_points(text)


def test_the_scenarios_have_all_kinds_of_boundaries(calm: Outcome) -> None:
    for outcome in (calm, play(CrashPlan(), ())):
        assert outcome.held
        assert outcome.committed > 3
        assert not outcome.labels, "no faults, no events"
        for folder in ("data_change_buffer/", "committed/", "snapshots/"):
            assert first(outcome, f"PUT {folder}")
        for folder in ("data_change_buffer/", "snapshots/"):
            assert first(outcome, f"DELETE {folder}")
        saved = "objects snapshot_objects snapshot_positions tasks"
        for rows in ("objects segments tasks", saved, "store_incarnations stores", "store_incarnations"):
            assert first(outcome, f"COMMIT {rows}")
        assert {b.process[:4] for b in outcome.boundaries} == {"meta", "disp", "sort", "push"}
        assert [b.number for b in outcome.boundaries] == list(range(1, len(outcome.boundaries) + 1))
    assert not any(profile_of(seed).name.startswith("crash") for seed in range(100))
    assert PROFILES.items() < SCENARIOS.items()


@pytest.mark.parametrize("what", ["PUT data_change", "COMMIT objects segments", "DELETE data_change"])
def test_before_it_did_not_happen_after_it_did(calm: Outcome, what: str) -> None:
    boundary = first(calm, what)
    for side in (Side.BEFORE, Side.AFTER):
        outcome = play(SMALL, (Point(boundary.number, side),))
        assert outcome.held
        assert outcome.boundaries[: boundary.number] == calm.boundaries[: boundary.number]
        assert f"{boundary.process} is dead" in "\n".join(outcome.story)
        again = [b for b in outcome.boundaries[boundary.number :] if b.what == boundary.what]
        behind = [b for b in outcome.boundaries[boundary.number :] if b.process == boundary.process]
        assert behind == [], "the dead do nothing"
        if what.startswith("DELETE"):
            assert bool(again) is (side is Side.BEFORE), "its successor deletes what is still there"


def test_a_late_request_arrives_when_its_sender_has_been_replaced(calm: Outcome) -> None:
    boundary = first(calm, "PUT committed/")
    outcome = play(SMALL, (Point(boundary.number, Side.LATE),))
    assert outcome.held
    sorters = [b for b in outcome.boundaries if b.process.startswith("sorter-1/")]
    successor = next(b for b in sorters if b.process != boundary.process)
    assert successor.at < boundary.at + LATE_S
    key = boundary.what.removeprefix("PUT ")
    assert any(b.what == f"DELETE {key}" and b.at > boundary.at + LATE_S for b in outcome.boundaries), "an orphan"


def test_a_point_that_nobody_comes_to_is_a_failure(calm: Outcome) -> None:
    beyond = (Point(len(calm.boundaries) + 1, Side.AFTER),)
    failure = Failure(points=beyond, outcome=play(SMALL, beyond))
    assert failure.violations == (f"no process reached crash point {beyond[0]}",)


PARTS = {"single": replace(SMALL, sides=tuple(Side), signs_of_life=True, every=7), "pairs": replace(PAIRS, every=9)}


@pytest.mark.parametrize("plan", PARTS.values(), ids=PARTS)
def test_a_part_of_the_enumeration_holds(plan: CrashPlan) -> None:
    *_, tally = enumerate_points(plan)
    assert [(f.points, f.violations) for f in tally.failures] == []
    assert tally.singles >= 6
    assert (tally.pairs >= 20) is plan.pairs


def test_several_processes_come_to_the_same(calm: Outcome) -> None:
    plan = replace(PAIRS, every=60)
    *_, alone = enumerate_points(plan)
    *_, shared = enumerate_points(plan, jobs=2)
    assert (alone.singles, alone.pairs) == (shared.singles, shared.pairs)
    assert alone.singles
    assert not shared.failures


@pytest.mark.parametrize("plan", [SMALL, replace(SMALL, scenario="crash", seed=0, every=2)], ids=["one", "several"])
def test_a_broken_rule_that_only_a_crash_shows_is_found(plan: CrashPlan) -> None:
    """The second needs a snapshot of rows that are written before the next one: few seeds have that."""
    mutant = "commit-before-put" if plan is SMALL else "restore-keeps-written"
    plan = replace(plan, sides=(Side.AFTER,), mutant=mutant)
    assert play(plan, ()).held
    *_, tally = enumerate_points(plan, stop_at_first=True)
    (failure,) = tally.failures
    assert len(failure.points) == 1
    assert play(plan, failure.points).violations == failure.outcome.violations


def test_the_command_line_says_what_it_played_and_how_to_repeat_a_failure() -> None:
    runner = CliRunner()
    small = ["sim", "--profile", "crash-pairs", "--seed", "2"]
    good = runner.invoke(command_line(), [*small, "--crash-points", "--every", "60"])
    assert good.exit_code == 0
    assert re.search(r"\d+ boundaries \(\d+ PUT, \d+ DELETE, .*\); \d+ single points, 0 pairs; 0 viol", good.stdout)
    bad = runner.invoke(command_line(), [*small, "--crash-points", "--every", "3", "--mutant", "commit-before-put"])
    assert bad.exit_code == 1
    repeat = re.search(r"^repeat: tistream (.*)$", bad.stdout, re.MULTILINE)
    assert repeat is not None
    assert runner.invoke(command_line(), repeat[1].split()).exit_code == 1
    unbroken = [word for word in repeat[1].split() if word not in ("--mutant", "commit-before-put")]
    assert runner.invoke(command_line(), unbroken).exit_code == 0
