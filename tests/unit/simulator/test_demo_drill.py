"""The demo's drill, its checker's words and its card, without a service."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from simulator.demo.boxes import Totals, facts, spark
from simulator.demo.drill import Drill, Phase
from simulator.demo.load import Verdict
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.tenants import TaskKind
from tistream.ids import Tenant
from tistream.keyrange import KeyRange


def row(task_id: int, owner: str, epoch: int = 1) -> TaskRow:
    return TaskRow(
        task_id=task_id,
        tenant=Tenant(1, 2),
        kind=TaskKind.DATA,
        range=KeyRange(b"a", b"b"),
        start_ts=1,
        durable_ts=1,
        epoch=epoch,
        owner=owner,
        snapshot_key=None,
        snapshot_no=0,
        resubscribe_id=0,
        error=None,
    )


class Fleet:
    """Sorters that exist as rows alone."""

    def __init__(self, rows: list[TaskRow]) -> None:
        self.rows = rows
        self.killed: list[str] = []

    def tasks(self) -> Sequence[TaskRow]:
        return self.rows

    def kill(self, name: str) -> None:
        self.killed.append(name)


def test_the_one_with_the_most_is_killed_and_told_of_until_all_its_tasks_have_moved() -> None:
    fleet = Fleet([row(1, "s-1"), row(2, "s-1"), row(3, "s-2")])
    said: list[str] = []
    drill = Drill(fleet, said.append)
    drill.step(1.0, 1.0, False)
    drill.step(2.0, 9.0, True)
    assert (drill.phase, fleet.killed) == (Phase.CALM, []), "not while it is late anyway"
    drill.step(3.0, 1.0, True)
    assert (drill.phase, fleet.killed, drill.moved) == (Phase.KILLED, ["s-1"], 2)
    fleet.rows = [row(1, "s-2", 2), row(2, "s-1"), row(3, "s-2")]
    drill.step(9.0, 7.0, True)
    assert drill.phase is Phase.KILLED
    fleet.rows = [row(1, "s-2", 2), row(2, "s-2", 2), row(3, "s-2")]
    drill.step(11.0, 9.5, True)
    assert (drill.phase, drill.takeover_s) == (Phase.TAKEN, 8.0)
    drill.step(13.0, 1.5, True)
    assert (drill.phase, drill.recovered_s, drill.peak_s) == (Phase.OVER, 10.0, 9.5)
    drill.step(20.0, 1.0, True)
    assert fleet.killed == ["s-1"], "once"
    assert drill.calm(0.5) == pytest.approx(1.0)
    assert len(said) == 3


def test_the_only_one_is_not_killed() -> None:
    fleet = Fleet([row(1, "s-1")])
    drill = Drill(fleet, lambda _: None)
    drill.step(1.0, 1.0, True)
    assert not fleet.killed


def test_the_card_says_what_was_wrong() -> None:
    verdict = Verdict(checked=7, lost=1, repeated=0, disorder=2, other=0)
    assert not verdict.held
    totals = Totals(kinds={"insert": 3, "ddl": 2}, tables=4, violations=0)
    card = dict(facts(totals, None, verdict))
    assert card["checker"] == "lost 1, repeated 0, out of order 2"
    assert card["DDL"] == "2"
    assert "takeover" not in card
    assert "cost" not in card, "a toy load has no bill"


def test_a_spark_is_as_high_as_its_largest_value() -> None:
    assert spark([0.0, 10.0]) == "▁█"
    assert not spark([])
