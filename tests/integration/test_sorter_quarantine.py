"""A store that contradicts its own promise is quarantined: what the sorter records, keeps and takes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.kit.sorter_bench import TENANT, Bench, change, expected
from tests.kit.sorter_oracle import D, Mark, Row
from tests.kit.sorter_world import File, feed_batch
from tistream.catalog.database.events import list_events
from tistream.catalog.log.bases import NewBase, add_bases
from tistream.catalog.log.compaction import lowest_durable_ts
from tistream.catalog.log.retention import check_listing, raise_floor
from tistream.catalog.log.snapshots import positions
from tistream.catalog.tenancy.served import QuarantineState
from tistream.catalog.tenancy.tenants import lock_tenant
from tistream.catalog.work.quarantines import QuarantineRow, list_quarantines, reject_store
from tistream.catalog.work.stores import issue_incarnation, newest_incarnation
from tistream.catalog.work.tasks import served_edge, served_edges, served_watermark
from tistream.errors import BeyondQuarantine, NotFound
from tistream.ids import Position
from tistream.objectstore.layout import BatchKey

MARK = Mark(region_id=1, start=b"", end=b"", checkpoint_ts=10, resolved_ts=0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    made.assigned("s1")
    yield made
    made.stop()


def file(bench: Bench, seq: int, *rows: Row, upto: int, store: int = 1, life: int = 1, mark: Mark = MARK) -> None:
    marks = (replace(mark, resolved_ts=upto),)
    made = File(store_id=store, incarnation=life, seq=seq, cut_ts=upto, rows=rows, marks=marks)
    bench.feed.put(feed_batch(made))


def whole(key: bytes, start_ts: int, commit_ts: int, value: bytes = b"1") -> Row:
    return Row(kind=D, key=key, start_ts=start_ts, commit_ts=commit_ts, value=value)


def quarantined(bench: Bench) -> QuarantineRow:
    bench.wait(lambda: bool(list_quarantines(bench.catalog)), "a quarantine")
    (found,) = list_quarantines(bench.catalog)
    return found


def test_the_store_is_held_its_rows_are_named_and_nothing_above_is_served(bench: Bench) -> None:
    issue_incarnation(bench.catalog, TENANT, 2)
    file(bench, 1, *change(b"a1", 12, 14, b"1"), upto=20)
    file(bench, 1, upto=20, store=2, mark=replace(MARK, region_id=9, version=2))
    bench.wait_for_durable_ts(20)
    file(bench, 2, whole(b"a2", 15, 17), whole(b"a3", 15, 18), upto=30)
    found = quarantined(bench)
    assert (found.store_id, found.incarnation, found.seq, found.rows, found.good_ts) == (1, 1, 2, 2, 16)
    assert found.object_key == str(BatchKey(tenant=TENANT, store_id=1, incarnation=1, seq=2))
    assert [(row["key"], row["commit_ts"], row["promised_ts"]) for row in found.sample] == [
        (b"a2".hex(), "17", "20"),
        (b"a3".hex(), "18", "20"),
    ]
    assert found.served_ts == 20
    assert bench.row(1).durable_ts >= 20, "what is written stays written"
    assert served_watermark(bench.catalog, TENANT) == served_edge(bench.catalog, TENANT).good_ts == 16
    assert served_edges(bench.catalog, [TENANT])[TENANT].ts == lowest_durable_ts(bench.catalog, TENANT) == 16
    check_listing(bench.catalog, TENANT, 10, 16)
    with pytest.raises(BeyondQuarantine):
        check_listing(bench.catalog, TENANT, 10, 17)
    assert not raise_floor(bench.catalog, TENANT, seen_floor=0, to_ts=17), "retention does not pass it"
    with bench.catalog.transaction() as conn:
        start = max(lock_tenant(conn, TENANT))
    assert not add_bases(bench.catalog, TENANT, [_base(20)], {}, log_start_ts=start), "and no base is built above it"
    file(bench, 2, *change(b"z1", 31, 32, b"2"), upto=40, store=2, mark=replace(MARK, region_id=9, version=2))
    bench.wait(lambda: bench.row(2).durable_ts == 40, "the other store is taken on")
    (worker,) = bench.workers
    (problem,) = [p for p in worker.problems() if p.code == "TS-1068"]
    assert found.object_key in problem.message
    assert str(TENANT) in problem.message
    assert bench.row(1).error is None, "no task stops"


def _closed(bench: Bench, task: int) -> bool:
    position = positions(bench.catalog, task).get(1, {}).get(1)
    return position is not None and position.closed


def _base(ts: int) -> NewBase:
    return NewBase(table_id=1, ts=ts, previous=None, rows=0, segments=())


def test_a_restart_knows_the_promise_from_the_state(bench: Bench) -> None:
    file(bench, 1, *change(b"a1", 12, 14, b"1"), upto=20)
    bench.wait_for_durable_ts(20)
    bench.wait(lambda: positions(bench.catalog, 1).get(1) == {1: Position(seq=1)}, "a state checkpoint")
    bench.workers.pop().stop()
    bench.assigned("s2")
    file(bench, 2, whole(b"a2", 15, 17), upto=30)
    assert quarantined(bench).good_ts == 16
    assert positions(bench.catalog, 1)[1] == {1: Position(seq=1)}, "its files are kept"


@pytest.mark.parametrize("fault", ["lost_before_of", "lost_replies_of"])
def test_a_record_whose_reply_is_lost_is_made_once(bench: Bench, fault: str) -> None:
    setattr(bench.catalog, fault, "record_quarantine")
    file(bench, 1, upto=20)
    file(bench, 2, whole(b"a2", 15, 17), upto=30)
    assert quarantined(bench).rows == 1
    kinds = [event.kind for event in list_events(bench.catalog, limit=100)]
    assert kinds.count("store.quarantined") == 1


def test_what_the_log_holds_with_equal_bytes_is_a_repeated_row(bench: Bench) -> None:
    file(bench, 1, *change(b"a1", 12, 14, b"1"), whole(b"z1", 12, 14, b"2"), upto=20)
    bench.wait_for_durable_ts(20)
    file(bench, 2, whole(b"a1", 12, 14, b"1"), *change(b"z1", 12, 14, b"2"), upto=30)
    bench.wait_for_durable_ts(30)
    assert list_quarantines(bench.catalog) == []
    assert bench.served() == [expected(b"a1", 12, 14, b"1"), expected(b"z1", 12, 14, b"2")]
    file(bench, 3, whole(b"a1", 12, 14, b"other"), upto=40)
    assert quarantined(bench).good_ts == 13, "the same version with another value"


def test_a_rejected_store_begins_again_and_brings_what_is_missing(bench: Bench) -> None:
    file(bench, 1, *change(b"a1", 12, 14, b"1"), upto=20)
    bench.wait_for_durable_ts(20)
    file(bench, 2, whole(b"a2", 15, 17), whole(b"a5", 24, 25), upto=30)
    assert quarantined(bench).good_ts == 16
    with pytest.raises(NotFound):
        reject_store(bench.catalog, TENANT, 2)
    (decided,) = reject_store(bench.catalog, TENANT, 1, actor="ops")
    assert newest_incarnation(bench.catalog, TENANT, 1) == 2, "its pusher begins again"
    (kept,) = list_quarantines(bench.catalog, state=QuarantineState.REJECTED)
    assert (kept.sample, kept.decided_by) == (decided.sample, "ops")
    assert served_edge(bench.catalog, TENANT).good_ts is None
    assert served_edge(bench.catalog, TENANT).gap == (16, 20), "served already, and perhaps not complete"
    bench.wait(lambda: all(_closed(bench, task) for task in (1, 2)), "the old incarnation ends in both states")
    again = replace(MARK, checkpoint_ts=20, open_ts=41, ready_ts=42)
    file(bench, 1, whole(b"a5", 24, 25), upto=50, life=2, mark=again)
    bench.wait_for_durable_ts(50)
    assert bench.served() == [expected(b"a1", 12, 14, b"1"), expected(b"a5", 24, 25, b"1")]
    (worker,) = bench.workers
    bench.wait(lambda: not [p for p in worker.problems() if p.code == "TS-1068"], "no problem is left")
    assert [event.actor for event in list_events(bench.catalog, limit=100, kind="store.rejected")] == ["ops"]
