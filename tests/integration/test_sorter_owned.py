"""Very many tasks of a sorter are not read over and over, and nothing that others decide is missed for it."""

from __future__ import annotations

import pytest

from sorter.worker import owned
from sorter.worker.owned import REREAD_S, Owned
from tests.kit.assignments import assign_task
from tests.kit.catalog_cases import START, activate, advance, elected, flush
from tests.kit.manual_clock import ManualClock
from tistream.catalog.database.engine import Catalog
from tistream.catalog.work.tasks import stop_task
from tistream.catalog.work.workers import register_worker


@pytest.fixture
def tasks(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """Three tasks of one sorter, which is very many here."""
    monkeypatch.setattr(owned, "MANY_TASKS", 3)
    rows = activate(catalog)
    assert register_worker(catalog, "s", "sorter", "") == 1
    for task in rows:
        assert assign_task(catalog, task, worker_id="s", seen_epoch=0, leader_epoch=elected(catalog)) == 1
    low, high, ddl = rows
    return low, high, ddl


def move(catalog: Catalog, task: int, durable_ts: int, to: int) -> None:
    assert flush(catalog, None, advance(task, durable_ts, to, epoch=1)) == {task}


def test_progress_is_not_read_again_before_its_time(catalog: Catalog, tasks: tuple[int, int, int]) -> None:
    clock = ManualClock()
    looked, low = Owned(catalog, clock), tasks[0]
    assert {id_: row.epoch for id_, row in looked.look("s", 1, is_here=lambda _: False).items()} == dict.fromkeys(
        tasks, 1
    )
    assert looked.look("s", 1, is_here=lambda _: True)[low].durable_ts == START
    move(catalog, low, START, START + 5)
    assert looked.look("s", 1, is_here=lambda _: True)[low].durable_ts == START
    clock.advance(REREAD_S)
    assert looked.look("s", 1, is_here=lambda _: True)[low].durable_ts == START + 5


def test_the_row_of_a_task_that_is_not_here_is_new(catalog: Catalog, tasks: tuple[int, int, int]) -> None:
    looked, low = Owned(catalog, ManualClock()), tasks[0]
    looked.look("s", 1, is_here=lambda _: True)
    move(catalog, low, START, START + 5)
    assert looked.look("s", 1, is_here=lambda task: task != low)[low].durable_ts == START + 5


def test_what_others_decide_is_seen_at_once(catalog: Catalog, tasks: tuple[int, int, int]) -> None:
    looked, (low, high, ddl) = Owned(catalog, ManualClock()), tasks
    looked.look("s", 1, is_here=lambda _: True)
    looked.look("s", 1, is_here=lambda _: True)
    assert stop_task(catalog, high, epoch=1, error="broken")
    assert looked.look("s", 1, is_here=lambda _: True)[high].error == "broken"
    assert assign_task(catalog, low, worker_id="other", seen_epoch=1, leader_epoch=elected(catalog)) == 2
    assert looked.look("s", 1, is_here=lambda _: True).keys() == {high, ddl}
