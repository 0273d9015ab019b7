"""Tasks that are split and merged under a sorter that runs: rows wait, replies are lost, owners change."""

from __future__ import annotations

import pytest

from sorter.worker import merging
from tests.kit.sorter_bench import TENANT, Bench, change, expected
from tests.kit.sorter_oracle import C, P, Row
from tests.kit.waiting import WAIT_S
from tistream.catalog.log.snapshots import positions
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.work.reshape import request_merge, split_task
from tistream.catalog.work.tasks import list_tasks
from tistream.ids import Position
from tistream.keyrange import KeyRange


def rows_of(bench: Bench) -> list[TaskRow]:
    return list_tasks(bench.catalog, TENANT)


def asked_to_merge(bench: Bench) -> None:
    left, right = rows_of(bench)
    assert request_merge(bench.catalog, left.task_id, right.task_id, seen_epochs=(left.epoch, right.epoch))


def test_a_task_is_split_while_rows_wait_and_both_parts_write_theirs(bench: Bench) -> None:
    bench.assigned("s1")
    late = Row(kind=C, key=b"b", start_ts=15, commit_ts=25)
    bench.put(1, *change(b"a", 11, 12, b"1"), Row(kind=P, key=b"b", start_ts=15, value=b"2"), upto=20)
    bench.wait_for_durable_ts(20)
    bench.wait(lambda: positions(bench.catalog, 1) == {1: {1: Position(seq=1)}}, "a snapshot")
    parts = split_task(bench.catalog, 1, b"b", seen_epoch=bench.row(1).epoch)
    assert parts is not None
    bench.tasks = [*parts, 2]
    bench.put(2, late, *change(b"a", 21, 22, b"3"), upto=30)
    bench.wait_for_durable_ts(30)
    rows = [expected(b"a", 11, 12, b"1"), expected(b"a", 21, 22, b"3"), expected(b"b", 15, 25, b"2")]
    assert bench.served() == rows


def test_two_tasks_become_one_while_rows_wait(bench: Bench) -> None:
    worker = bench.assigned("s1")
    waiting = [Row(kind=P, key=key, start_ts=15, value=b"w") for key in (b"b", b"y")]
    bench.put(1, *change(b"a", 11, 12, b"1"), *change(b"x", 11, 12, b"2"), *waiting, upto=20)
    bench.wait_for_durable_ts(20)
    asked_to_merge(bench)
    bench.wait(lambda: len(rows_of(bench)) == 1, "the merge")
    (row,) = rows_of(bench)
    assert (row.range, row.durable_ts, row.owner) == (KeyRange(b"", b""), 20, "s1")
    bench.tasks = [row.task_id]
    bench.put(2, *(Row(kind=C, key=key, start_ts=15, commit_ts=25) for key in (b"b", b"y")), upto=30)
    bench.wait_for_durable_ts(30)
    early = [expected(b"a", 11, 12, b"1"), expected(b"x", 11, 12, b"2")]
    assert bench.served() == [*early, expected(b"b", 15, 25, b"w"), expected(b"y", 15, 25, b"w")]
    assert worker.problems() == []


@pytest.mark.parametrize("fault", ["the reply is lost", "the catalog is away", "the sorter is replaced"])
def test_a_merge_that_goes_wrong_leaves_two_tasks_or_one(bench: Bench, fault: str) -> None:
    bench.assigned("s1", snapshot_interval_s=1000.0)
    bench.put(1, *change(b"a", 11, 12, b"1"), *change(b"x", 13, 14, b"2"), upto=20)
    bench.wait_for_durable_ts(20)
    match fault:
        case "the reply is lost":
            bench.catalog.lost_replies_of = "merge_tasks"
        case "the catalog is away":
            bench.catalog.lost_before_of = "merge_tasks"
        case _:
            assert bench.worker("s2").wait_until_ready(WAIT_S)  # to register raises the epochs of what it has
            bench.assign("s2")
    asked_to_merge(bench)
    bench.wait(lambda: len(rows_of(bench)) == 1, "the merge")
    bench.tasks = [row.task_id for row in rows_of(bench)]
    bench.put(2, *change(b"a", 21, 22, b"3"), upto=30)
    bench.wait_for_durable_ts(30)
    early = [expected(b"a", 11, 12, b"1"), expected(b"x", 13, 14, b"2")]
    assert bench.served() == [*early, expected(b"a", 21, 22, b"3")]


def test_two_tasks_that_do_not_come_together_go_on(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "PATIENCE_S", 0.0)
    monkeypatch.setattr(merging, "FIRST_PAUSE_S", 0.3)
    bench.assigned("s1")
    bench.put(1, *change(b"a", 11, 12, b"1"), upto=20)
    bench.wait_for_durable_ts(20)
    asked_to_merge(bench)
    bench.put(2, *change(b"x", 21, 22, b"2"), upto=30)
    bench.wait_for_durable_ts(30)
    assert bench.served() == [expected(b"a", 11, 12, b"1"), expected(b"x", 21, 22, b"2")]
    assert len(rows_of(bench)) == 2
    monkeypatch.setattr(merging, "PATIENCE_S", 60.0)
    bench.wait(lambda: len(rows_of(bench)) == 1, "the merge")
