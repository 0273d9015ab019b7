"""Series of seeds: what is kept of them, how they go on, and how a failing one is made smaller."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from simulator.dst.results import Results
from simulator.dst.run import Outcome
from simulator.dst.shrink import smaller
from tistream.errors import InvalidInput


def outcome(seed: int = 0, *violations: str, labels: tuple[str, ...] = ()) -> Outcome:
    return Outcome(
        seed=seed,
        profile="usual",
        trace_hash=f"trace of {seed}",
        events=10,
        violations=violations,
        story=(),
        simulated_s=1.5,
        counts={"events": 10, "pulls": seed},
        labels=labels,
        seconds=0.25,
        boundaries=(),
        struck=(),
    )


def play(results: Results, piece: range) -> None:
    results.add(piece, "", [outcome(seed) for seed in piece])


def test_a_series_is_cut_at_the_hundreds_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    results = Results(tmp_path / "series" / "results.jsonl")
    pieces = results.missing(range(150, 420), "")
    assert pieces == [range(150, 200), range(200, 300), range(300, 400), range(400, 420)]
    for piece in pieces[:2]:
        play(results, piece)
    again = Results(results.path)
    assert again.lines == results.lines
    assert again.missing(range(150, 420), "") == pieces[2:]
    assert again.missing(range(140, 310), "") == [range(140, 150), range(300, 310)]
    assert again.missing(range(150, 200), "calm") == [range(150, 200)], "another scenario"


def test_a_line_says_what_its_seeds_came_to(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl")
    line = results.add(range(7, 9), "", [outcome(7), outcome(8, "pull: a row is missing")])
    (text,) = results.path.read_text().splitlines()
    assert json.loads(text)["seeds"] == [7, 9]
    assert (line.simulated_s, line.cpu_s, line.counts) == (3.0, 0.5, {"events": 20, "pulls": 15})
    assert line.violations == [{"seed": 8, "profile": "usual", "what": ["pull: a row is missing"]}]
    shown = "\n".join(results.summary())
    assert "2 seeds, 1 failed" in shown
    assert "seed 8 (usual): ['pull: a row is missing']" in shown


def test_the_trace_of_a_line_depends_on_every_run_and_on_their_order(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl")
    both = [outcome(0), outcome(1)]
    traces = [results.add(range(2), "", of).trace for of in (both, both, both[::-1], [both[0], both[0]])]
    assert traces[0] == traces[1]
    assert len(set(traces)) == 3


def test_a_torn_line_is_taken_away_and_its_seeds_are_played_again(tmp_path: Path) -> None:
    results = Results(tmp_path / "results.jsonl")
    play(results, range(100))
    play(results, range(100, 200))
    whole = results.path.read_bytes()
    results.path.write_bytes(whole[:-20])
    again = Results(results.path)
    assert again.missing(range(200), "") == [range(100, 200)]
    play(again, range(100, 200))
    assert results.path.read_bytes() == whole


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    path.write_text("seed 1 held\n")
    with pytest.raises(InvalidInput, match="not a file of results"):
        Results(path)


def test_a_failing_run_is_made_smaller_as_long_as_it_fails_in_the_same_way() -> None:
    labels = ("put_lost", "crash#0", "crash#1", "pause#2")
    tried: list[tuple[int | None, frozenset[str]]] = []

    def again(actions: int | None, without: frozenset[str]) -> Outcome:
        tried.append((actions, without))
        failing = outcome(3, labels=labels)
        if "crash#1" in without:
            return replace(failing, violations=("rest: something else",))
        needed = 100 if "pause#2" not in without else 20  # a pause makes it last longer
        return failing if actions is not None and actions < needed else replace(failing, violations=("pull: a row",))

    first = again(None, frozenset())
    outcome_found, actions, without = smaller(first, again, None, frozenset())
    assert (outcome_found.violations, actions) == (("pull: a row",), 20)
    assert without == {"put_lost", "crash#0", "pause#2"}
    assert len(tried) < 30
