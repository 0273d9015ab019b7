"""Whether a deployment carries its load: shares of cores, what to add, and maintenance jobs without an executor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tistream.admin.core.capacity import (
    CAPACITY,
    NEAR,
    Capacity,
    Load,
    check_capacity,
    check_jobs,
    cores_for,
    load_of,
    processes_for,
)
from tistream.diagnostics.findings import Finding, Severity

OK, WARN, FAIL = Severity.OK, Severity.WARN, Severity.FAIL
FIGURES = Path(__file__).parents[3] / "docs" / "figures.md"
ROWS = {"meta server": "meta", "dispatcher": "dispatcher", "sorter": "sorter", "MariaDB": "database"}
ROWS["API server, one reader in NDJSON"] = "api"


def worker(
    kind: str, *, rows: float = 0.0, files: float = 0.0, alive: bool = True, address: str = "a"
) -> dict[str, Any]:
    return {"kind": kind, "alive": alive, "rows_per_s": rows, "files_per_s": files, "address": address}


def capacity_of(workers: list[dict[str, Any]], tenants: int) -> dict[str, Finding]:
    return {name.removeprefix("capacity: "): finding for name, finding in check_capacity(workers, tenants)}


def measured() -> dict[str, Capacity]:
    """The table of the figures."""
    table = FIGURES.read_text("utf-8").partition("## What a core carries")[2].partition("\n## ")[0]
    capacities = {}
    for line in table.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if (role := ROWS.get(cells[0])) is not None:
            changes, writing, idle = (c.replace(",", "").replace("not visible", "inf") for c in cells[2:5])
            at_rest = float(cells[1].partition(" %")[0]) / 100
            capacities[role] = Capacity(
                at_rest=round(at_rest, 3), changes=float(changes), writing=float(writing), idle=float(idle)
            )
    return capacities


def test_the_capacities_are_those_of_the_figures() -> None:
    assert measured() == CAPACITY


def test_a_load_is_what_live_workers_report() -> None:
    workers = [
        worker("sorter", rows=8_000), worker("sorter", rows=2_000), worker("sorter", rows=500, alive=False),
        worker("dispatcher", files=6.0), worker("dispatcher", files=2.0), worker("dispatcher", files=9.0, alive=False),
    ]  # fmt: skip
    load = load_of(workers, 10)
    assert load == Load(changes=5_000, files=8.0, tenants=10), "a change arrives as a prewrite and as a commit"
    assert (load.writing, load.idle) == (4, 6)


def test_many_stores_of_few_tenants_leave_none_idle() -> None:
    assert Load(changes=0, files=40.0, tenants=2).idle == 0


def test_shares_of_a_core_add_up() -> None:
    capacity = Capacity(at_rest=0.1, changes=1_000, writing=100, idle=200)
    assert cores_for(capacity, Load(changes=500, files=50.0, tenants=65)) == pytest.approx(0.5 + 0.25 + 0.2)
    assert cores_for(CAPACITY["meta"], Load(changes=10**9, files=0.0, tenants=0)) == 0, "not visible"


@pytest.mark.parametrize(("cores", "processes"), [(0.0, 1), (0.6, 1), (0.61, 2), (1.2, 2), (1.21, 3)])
def test_as_many_processes_as_stay_below_the_bound(cores: float, processes: int) -> None:
    assert processes_for(Capacity(at_rest=0.1, writing=1, idle=1), cores) == processes
    assert cores / processes + 0.1 <= NEAR + 1e-9


def test_short_and_near_say_what_is_missing_and_what_to_add() -> None:
    full = 2 * CAPACITY["sorter"].changes  # rows that fill one sorter
    workers = [worker("dispatcher"), worker("dispatcher"), worker("sorter", rows=full), worker("sorter", rows=full)]
    capacity = capacity_of(workers, 0)["sorter"]
    assert capacity.verdict is WARN
    assert capacity.words.startswith("short: 2 sorters carry 1,780,000 changes a second, or 1,120 tenants that write; ")
    assert "the last 10 s brought 1,780,000 changes" in capacity.words
    assert capacity.words.endswith("103% of each core; add 1: tistream sort")
    assert capacity.facts == {"processes": 2, "cores": 2.0, "share": 1.032, "needed": 3}
    near = capacity_of([*workers[:2], worker("sorter", rows=1.5 * full), worker("sorter")], 0)["sorter"]
    assert near.verdict is WARN
    assert near.words.startswith("near: ")
    assert near.words.endswith("add 1: tistream sort")
    assert near.facts["needed"] == 3


def test_small_tenants_fill_dispatchers_the_meta_server_and_the_database_by_their_files() -> None:
    workers = [worker("dispatcher", files=2 * 300), worker("dispatcher", files=2 * 300)]
    workers += [worker("sorter"), worker("sorter")]
    capacities = capacity_of(workers, 600)
    assert {name: finding.verdict for name, finding in capacities.items()} == {
        "dispatcher": WARN, "sorter": OK, "meta": OK, "database": OK, "api": OK,
    }  # fmt: skip
    assert capacities["dispatcher"].facts["needed"] == 3
    many = capacity_of([worker("dispatcher", files=9_600), *workers], 4_800)
    assert many["meta"].verdict is many["database"].verdict is WARN
    assert many["meta"].words.startswith("short: ")
    assert many["meta"].words.endswith("only the elected meta server works: give it a faster core")


def test_a_single_dispatcher_or_sorter_is_a_warning() -> None:
    capacities = capacity_of([worker("dispatcher"), worker("sorter")], 1)
    assert {capacities["dispatcher"].verdict, capacities["sorter"].verdict} == {WARN}
    assert "run 2, as the chart does" in capacities["sorter"].words
    within = capacity_of([worker("dispatcher", address=""), worker("sorter")], 1)
    assert {within["dispatcher"].verdict, within["sorter"].verdict} == {OK}, "one process has all services"


def test_a_reader_of_everything_is_what_api_servers_are_planned_by() -> None:
    capacity = capacity_of([worker("sorter", rows=380_000)], 0)["api"]
    assert capacity.facts == {"reader": 0.5, "tenants": 0.0}
    assert "fills 50% of a core" in capacity.words


JOBS = [{"executor": "threads"}, {"executor": "spark"}]


@pytest.mark.parametrize(
    ("queued", "up", "verdict", "words"),
    [
        (JOBS, ["maintain", "spark"], OK, "queued: 2; up: 1 maintain, 1 spark"),
        (JOBS, ["maintain"], FAIL, "queued: 2, 1 for Spark, which is not up: start tistream spark"),
        (JOBS[:1], ["spark"], OK, "queued: 1; up: 0 maintain, 1 spark"),
        (JOBS[:1], ["sorter"], FAIL, "queued: 1, and no executor is up: start tistream maintain"),
        ([], [], WARN, "no executor is up: small files stay and retention stops; start tistream maintain"),
    ],
)
def test_jobs_without_an_executor(queued: list[dict[str, Any]], up: list[str], verdict: Severity, words: str) -> None:
    workers = [*map(worker, up), worker("maintain", alive=False), worker("spark", alive=False)]
    finding = check_jobs(queued, workers)
    assert (finding.verdict, finding.words) == (verdict, words)
