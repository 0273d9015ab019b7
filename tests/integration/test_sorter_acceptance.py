"""Rows of a quarantined store are accepted: merged into the log once, at their place in commit order, or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kit.sorter_bench import TENANT, Bench, change, expected
from tests.kit.sorter_oracle import C, D, Mark, P, Row
from tests.kit.sorter_world import File, feed_batch
from tistream.catalog.database.events import list_events
from tistream.catalog.log.amendments import Amendment, list_amendments
from tistream.catalog.log.retention import check_listing
from tistream.catalog.log.snapshots import positions
from tistream.catalog.tenancy.served import QuarantineState
from tistream.catalog.work.acceptance import accept_store
from tistream.catalog.work.quarantines import list_quarantines, reject_store
from tistream.catalog.work.tasks import served_edge
from tistream.errors import BeyondQuarantine, CatalogUnavailable, NotFound
from tistream.ids import Position

MARK = Mark(region_id=1, start=b"", end=b"", checkpoint_ts=10, resolved_ts=0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    made.assigned("s1")
    yield made
    made.stop()


def file(bench: Bench, seq: int, *rows: Row, upto: int, marks: tuple[Mark, ...] = (MARK,)) -> None:
    marks = tuple(replace(mark, resolved_ts=mark.resolved_ts or upto) for mark in marks)
    made = File(store_id=1, incarnation=1, seq=seq, cut_ts=upto, rows=rows, marks=marks)
    bench.feed.put(feed_batch(made))


def whole(key: bytes, start_ts: int, commit_ts: int, value: bytes = b"1") -> Row:
    return Row(kind=D, key=key, start_ts=start_ts, commit_ts=commit_ts, value=value)


def states(bench: Bench) -> set[QuarantineState]:
    return {row.state for row in list_quarantines(bench.catalog)}


def wait_for(bench: Bench, state: QuarantineState) -> None:
    bench.wait(lambda: states(bench) == {state}, f"every quarantine is {state}")


def contradict(bench: Bench) -> None:
    """Both tasks have written up to 20; then the store brings older rows for both, and one in its time. The task that
    looks first quarantines the store; the other one meets its row when the file is accepted."""
    file(bench, 1, *change(b"a1", 12, 14, b"1"), *change(b"z1", 12, 19, b"1"), upto=20)
    bench.wait_for_durable_ts(20)
    file(bench, 2, whole(b"a2", 15, 17), *change(b"z2", 16, 18, b"2"), whole(b"a5", 24, 25), upto=30)
    bench.wait(lambda: bool(list_quarantines(bench.catalog)), "a quarantine")


MERGED = [
    expected(b"a1", 12, 14, b"1"),
    expected(b"a2", 15, 17, b"1"),
    expected(b"z2", 16, 18, b"2"),
    expected(b"z1", 12, 19, b"1"),
    expected(b"a5", 24, 25, b"1"),
]


def check_merged(bench: Bench) -> None:
    wait_for(bench, QuarantineState.ACCEPTED)
    bench.wait_for_durable_ts(30)
    assert bench.served() == MERGED, "each row once, in commit order"
    made = Amendment(number=1, from_ts=16, to_ts=18, rows=2, store_id=1, decided_by="ops")
    assert list_amendments(bench.catalog, TENANT) == (made,)
    kinds = [event.kind for event in list_events(bench.catalog, limit=100)]
    assert kinds.count("store.amended") == 1


def test_accepted_rows_are_merged_at_their_place_and_the_log_is_served_on(bench: Bench) -> None:
    contradict(bench)
    with pytest.raises(NotFound):
        accept_store(bench.catalog, TENANT, 2, actor="ops")
    decided = accept_store(bench.catalog, TENANT, 1, actor="ops")
    check_merged(bench)
    assert served_edge(bench.catalog, TENANT) == (30, None, None, 1)
    (event,) = list_events(bench.catalog, limit=100, kind="store.accepted")
    assert (event.actor, event.detail["rows"]) == ("ops", sum(row.rows for row in decided))
    assert event.detail["good_ts"] == str(min(row.good_ts for row in decided))
    file(bench, 3, *change(b"a6", 31, 32, b"1"), upto=40)
    bench.wait_for_durable_ts(40)
    (worker,) = bench.workers
    bench.wait(lambda: not [p for p in worker.problems() if p.code == "TS-1068"], "no problem is left")
    with pytest.raises(NotFound):
        accept_store(bench.catalog, TENANT, 1)


def test_nothing_is_served_above_until_every_task_has_taken_the_file(bench: Bench) -> None:
    contradict(bench)
    bench.workers.pop().stop()
    accept_store(bench.catalog, TENANT, 1, actor="ops")
    bench.tasks = [1]
    bench.assigned("s2")
    bench.wait(lambda: positions(bench.catalog, 1)[1] == {1: Position(seq=2)}, "one task has taken it")
    assert expected(b"a2", 15, 17, b"1") in bench.served()
    assert served_edge(bench.catalog, TENANT)[:2] == (16, 16)
    assert list_amendments(bench.catalog, TENANT) == ()
    with pytest.raises(BeyondQuarantine):
        check_listing(bench.catalog, TENANT, 10, 17)
    bench.tasks = [2]
    bench.assigned("s3")
    bench.tasks = [1, 2]
    check_merged(bench)


@pytest.mark.parametrize("fault", ["lost_before_of", "lost_replies_of"])
@pytest.mark.parametrize("step", ["amend", "_finish"])
def test_a_step_whose_reply_is_lost_takes_effect_once(bench: Bench, step: str, fault: str) -> None:
    contradict(bench)
    setattr(bench.catalog, fault, step)
    accept_store(bench.catalog, TENANT, 1, actor="ops")
    check_merged(bench)
    assert getattr(bench.catalog, fault) == "", "the fault was met"


def test_a_command_whose_reply_is_lost_was_given(bench: Bench) -> None:
    contradict(bench)
    bench.workers.pop().stop()
    bench.catalog.lost_replies_of = "accept_store"
    with pytest.raises(CatalogUnavailable):
        accept_store(bench.catalog, TENANT, 1, actor="ops")
    with pytest.raises(NotFound):
        accept_store(bench.catalog, TENANT, 1, actor="ops")
    bench.assigned("s2")
    check_merged(bench)


def test_a_sorter_that_has_lost_its_tasks_merges_nothing(bench: Bench) -> None:
    contradict(bench)
    (first,) = bench.workers
    first.crash()
    bench.assigned("s2")
    accept_store(bench.catalog, TENANT, 1, actor="ops")
    check_merged(bench)


def test_rows_that_are_not_durable_yet_take_their_usual_way(bench: Bench) -> None:
    low, rest = replace(MARK, end=b"b"), replace(MARK, region_id=2, start=b"b", resolved_ts=15)
    file(bench, 1, *change(b"a1", 12, 14, b"1"), upto=20, marks=(low, rest))
    bench.wait_for_durable_ts(15)
    higher = (low, replace(rest, resolved_ts=0))
    file(bench, 2, whole(b"a2", 15, 17), *change(b"a3", 15, 18, b"2"), upto=30, marks=higher)
    bench.wait(lambda: bool(list_quarantines(bench.catalog)), "a quarantine")
    accept_store(bench.catalog, TENANT, 1, actor="ops")
    wait_for(bench, QuarantineState.ACCEPTED)
    bench.wait_for_durable_ts(30)
    assert bench.served() == [
        expected(b"a1", 12, 14, b"1"),
        expected(b"a2", 15, 17, b"1"),
        expected(b"a3", 15, 18, b"2"),
    ]
    assert list_amendments(bench.catalog, TENANT) == (), "no reader has passed them"


def test_a_prewrite_that_came_before_is_used(bench: Bench) -> None:
    file(bench, 1, Row(kind=P, key=b"a2", start_ts=15, value=b"early"), upto=20)
    bench.wait_for_durable_ts(20)
    file(bench, 2, Row(kind=C, key=b"a2", start_ts=15, commit_ts=17), upto=30)
    bench.wait(lambda: bool(list_quarantines(bench.catalog)), "a quarantine")
    accept_store(bench.catalog, TENANT, 1, actor="ops")
    wait_for(bench, QuarantineState.ACCEPTED)
    assert bench.served() == [expected(b"a2", 15, 17, b"early")]


def test_a_commit_whose_value_is_not_there_leaves_the_store_quarantined(bench: Bench) -> None:
    file(bench, 1, upto=20)
    bench.wait_for_durable_ts(20)
    file(bench, 2, Row(kind=C, key=b"a2", start_ts=15, commit_ts=17), whole(b"z2", 15, 18), upto=30)
    bench.wait(lambda: bool(list_quarantines(bench.catalog)), "a quarantine")
    accept_store(bench.catalog, TENANT, 1, actor="ops")
    bench.wait(lambda: any(row.error for row in list_quarantines(bench.catalog)), "the reason is recorded")
    assert states(bench) == {QuarantineState.QUARANTINED}
    (event,) = list_events(bench.catalog, limit=100, kind="store.not_accepted")
    assert b"a2".hex() in event.detail["error"]
    assert "start_ts 15" in event.detail["error"]
    assert served_edge(bench.catalog, TENANT).good_ts is not None
    assert positions(bench.catalog, 1)[1] == {1: Position(seq=1)}, "its files are kept"
    (worker,) = bench.workers
    said = [p.message for p in worker.problems() if p.code == "TS-1068"]
    assert any("could not be accepted" in message and "start_ts 15" in message for message in said)
    merged = expected(b"z2", 15, 18, b"1") in bench.served()
    reject_store(bench.catalog, TENANT, 1, actor="ops")
    found = [(made.from_ts, made.rows) for made in list_amendments(bench.catalog, TENANT)]
    assert found == ([(17, 1)] if merged else []), "what the other task has merged has a number"


def test_a_version_with_other_bytes_is_never_in_the_log_twice(bench: Bench) -> None:
    file(bench, 1, *change(b"a1", 12, 14, b"1"), upto=20)
    bench.wait_for_durable_ts(20)
    file(bench, 2, whole(b"a1", 12, 14, b"other"), upto=30)
    bench.wait(lambda: bool(list_quarantines(bench.catalog)), "a quarantine")
    accept_store(bench.catalog, TENANT, 1, actor="ops")
    bench.wait(lambda: any(row.error for row in list_quarantines(bench.catalog)), "the reason is recorded")
    assert states(bench) == {QuarantineState.QUARANTINED}
    assert bench.served() == [expected(b"a1", 12, 14, b"1")]
