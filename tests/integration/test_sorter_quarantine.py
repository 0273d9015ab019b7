"""A store that contradicts its own promise is quarantined: what the sorter records, keeps and takes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from backfill.job import Replay, ReplayReport, ReplaySettings
from backfill.replay import ThreadsExecutor
from tests.kit.sorter_bench import TENANT, Bench, change, expected
from tests.kit.sorter_oracle import D, Mark, Row
from tests.kit.sorter_world import File, feed_batch
from tistream.catalog.database.events import list_events
from tistream.catalog.log.bases import add_bases
from tistream.catalog.log.compaction import lowest_durable_ts
from tistream.catalog.log.retention import check_listing, raise_floor
from tistream.catalog.log.snapshots import positions
from tistream.catalog.rows.bases import NewBase
from tistream.catalog.tenancy.served import QuarantineState
from tistream.catalog.work.quarantines import QuarantineRow, list_quarantines, reject_store
from tistream.catalog.work.stores import issue_incarnation, newest_incarnation
from tistream.catalog.work.tasks import list_tasks, served_edge, served_edges, served_watermark
from tistream.clock import SystemClock
from tistream.codec.batch_file import encode_batch_file
from tistream.errors import BeyondQuarantine, NotFound, PromiseContradicted
from tistream.ids import Position
from tistream.objectstore.layout import BatchKey

MARK = Mark(region_id=1, start=b"", end=b"", checkpoint_ts=10, resolved_ts=0)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    new_bench = Bench(tmp_path)
    new_bench.assigned("s1")
    yield new_bench
    new_bench.stop()


def file(bench: Bench, seq: int, *rows: Row, upto: int, store: int = 1, life: int = 1, mark: Mark = MARK) -> None:
    marks = (replace(mark, resolved_ts=upto),)
    batch_file = File(store_id=store, incarnation=life, seq=seq, cut_ts=upto, rows=rows, marks=marks)
    bench.feed.put(feed_batch(batch_file))


def stored(bench: Bench, seq: int, *rows: Row, upto: int) -> None:
    """The same as an object of store 1."""
    marks = (replace(MARK, resolved_ts=upto),)
    batch = feed_batch(File(store_id=1, incarnation=1, seq=seq, cut_ts=upto, rows=rows, marks=marks))
    key = BatchKey(tenant=TENANT, store_id=1, incarnation=1, seq=seq)
    data = encode_batch_file(key, cut_ts=upto, rows=batch.rows, regions=batch.regions, write_id=f"w{seq}")
    bench.store.put(str(key), data)


def whole(key: bytes, start_ts: int, commit_ts: int, value: bytes = b"1") -> Row:
    return Row(kind=D, key=key, start_ts=start_ts, commit_ts=commit_ts, value=value)


def quarantined(bench: Bench) -> QuarantineRow:
    bench.wait(lambda: bool(list_quarantines(bench.catalog)), "a quarantine")
    (row,) = list_quarantines(bench.catalog)
    return row


def test_the_store_is_held_its_rows_are_named_and_nothing_above_is_served(bench: Bench) -> None:
    issue_incarnation(bench.catalog, TENANT, 2)
    file(bench, 1, *change(b"a1", 12, 14, b"1"), upto=20)
    file(bench, 1, upto=20, store=2, mark=replace(MARK, region_id=9, version=2))
    bench.wait_for_durable_ts(20)
    file(bench, 2, whole(b"a2", 15, 17), whole(b"a3", 15, 18), upto=30)
    entry = quarantined(bench)
    assert (entry.store_id, entry.incarnation, entry.seq, entry.rows, entry.good_ts) == (1, 1, 2, 2, 16)
    assert entry.object_key == str(BatchKey(tenant=TENANT, store_id=1, incarnation=1, seq=2))
    assert [(row["key"], row["commit_ts"], row["promised_ts"]) for row in entry.sample] == [
        (b"a2".hex(), "17", "20"),
        (b"a3".hex(), "18", "20"),
    ]
    assert entry.served_ts == 20
    assert bench.row(1).durable_ts >= 20, "what is written stays written"
    assert served_watermark(bench.catalog, TENANT) == served_edge(bench.catalog, TENANT).good_ts == 16
    assert served_edges(bench.catalog, [TENANT])[TENANT].ts == lowest_durable_ts(bench.catalog, TENANT) == 16
    check_listing(bench.catalog, TENANT, 10, 16)
    with pytest.raises(BeyondQuarantine):
        check_listing(bench.catalog, TENANT, 10, 17)
    assert not raise_floor(bench.catalog, TENANT, seen_floor=0, to_ts=17), "retention does not pass it"
    assert not add_bases(bench.catalog, TENANT, [_base(20)], {}), "and no base is built above it"
    file(bench, 2, *change(b"z1", 31, 32, b"2"), upto=40, store=2, mark=replace(MARK, region_id=9, version=2))
    bench.wait(lambda: bench.row(2).durable_ts == 40, "the other store is taken on")
    (worker,) = bench.workers
    (problem,) = [p for p in worker.problems() if p.code == "TS-1068"]
    assert entry.object_key in problem.message
    assert str(TENANT) in problem.message
    assert bench.row(1).error is None, "no task stops"


def _closed(bench: Bench, task: int) -> bool:
    position = positions(bench.catalog, task).get(1, {}).get(1)
    return position is not None and position.closed


def _base(ts: int) -> NewBase:
    return NewBase(table_id=1, ts=ts, previous=None, after_ts=ts, rows=0, segments=())


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


def test_a_replay_passes_repeated_rows_as_a_sorter_does(bench: Bench) -> None:
    """It repeats rows of the log before it and of the log that it writes; neither is a contradiction."""
    file(bench, 1, *change(b"a1", 12, 14, b"1"), whole(b"z1", 12, 14, b"2"), upto=20)
    bench.wait_for_durable_ts(20)
    read_up_to = {1: Position(seq=1)}
    bench.wait(lambda: all(positions(bench.catalog, task).get(1) == read_up_to for task in (1, 2)), "state checkpoints")
    bench.workers.pop().stop()
    stored(bench, 2, whole(b"a2", 22, 24, b"3"), whole(b"a1", 12, 14, b"1"), *change(b"z1", 12, 14, b"2"), upto=30)
    stored(bench, 3, whole(b"a2", 22, 24, b"3"), whole(b"a1", 12, 14, b"1"), upto=40)

    def replayed() -> ReplayReport:
        executor = ThreadsExecutor(bench.store)
        return Replay(bench.catalog, bench.store, SystemClock(), TENANT, executor, ReplaySettings()).run()

    report = replayed()
    assert (report.files, report.rows) == (2, 1)
    assert report.repeated >= 3
    assert report.resolved_ts == 40
    before = [expected(b"a1", 12, 14, b"1"), expected(b"z1", 12, 14, b"2")]
    assert bench.served() == [*before, expected(b"a2", 22, 24, b"3")]
    stored(bench, 4, whole(b"a1", 12, 14, b"other"), upto=50)
    with pytest.raises(PromiseContradicted):
        replayed()
    assert len(bench.served()) == 3


def test_the_gap_of_a_rejected_store_holds_what_its_task_had_written_ahead_of_others(bench: Bench) -> None:
    """Not served yet, because another store lags, and never sent again: it will be served without the row."""
    issue_incarnation(bench.catalog, TENANT, 2)
    low, others = replace(MARK, end=b"m"), replace(MARK, region_id=2, start=b"m")
    file(bench, 1, *change(b"a1", 12, 14, b"1"), upto=20, mark=low)
    file(bench, 1, upto=15, store=2, mark=others)
    bench.wait(lambda: sorted(task.durable_ts for task in list_tasks(bench.catalog, TENANT)) == [15, 20], "one lags")
    file(bench, 2, whole(b"a2", 15, 17), upto=30, mark=low)
    assert quarantined(bench).good_ts == 16
    reject_store(bench.catalog, TENANT, 1)
    assert served_edge(bench.catalog, TENANT) == (15, None, (16, 20))
    bench.wait(lambda: all(_closed(bench, task) for task in (1, 2)), "the old incarnation ends in both states")
    again = replace(low, checkpoint_ts=20, open_ts=41, ready_ts=42)
    file(bench, 1, whole(b"a2", 15, 17), upto=50, life=2, mark=again)
    file(bench, 2, upto=50, store=2, mark=others)
    bench.wait_for_durable_ts(50)
    assert bench.served() == [expected(b"a1", 12, 14, b"1")]


def test_a_rejected_store_begins_again_and_brings_what_is_missing(bench: Bench) -> None:
    file(bench, 1, *change(b"a1", 12, 14, b"1"), upto=20)
    bench.wait_for_durable_ts(20)
    file(bench, 2, whole(b"a2", 15, 17), whole(b"a5", 24, 25), upto=30)
    assert quarantined(bench).good_ts == 16
    with pytest.raises(NotFound):
        reject_store(bench.catalog, TENANT, 2)
    (decided,) = reject_store(bench.catalog, TENANT, 1, actor="ops")
    assert newest_incarnation(bench.catalog, TENANT, 1) == 2, "its pusher begins again"
    (quarantine,) = list_quarantines(bench.catalog, state=QuarantineState.REJECTED)
    assert (quarantine.sample, quarantine.decided_by) == (decided.sample, "ops")
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
