"""What a replay gives to its workers, what lies above the positions, and how far a batch of it will reach."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backfill import survey
from backfill.core.plan import ReplayPlanRow, ReplayRead, cut, own_steps, plan
from backfill.survey import Batch, Survey, find_backlog
from sorter.core.watermark import RangeWatermarkMap
from tests.kit.assignments import assign_store
from tests.kit.catalog_cases import new_catalog
from tistream import ts as tso
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.tenants import TaskKind
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.catalog.work.leader import acquire_leadership
from tistream.catalog.work.stores import issue_incarnation, set_reclaimed
from tistream.clock import SystemClock
from tistream.codec.batch_file import encode_batch_file
from tistream.codec.wire import decode, encode
from tistream.errors import FeedGap
from tistream.ids import Position, Tenant
from tistream.keyrange import KeyRange
from tistream.model.change import REGIONS, ROWS
from tistream.model.positions import Positions
from tistream.objectstore.layout import BatchKey
from tistream.objectstore.memory import MemoryStore
from tistream.runtime.service_time import ServiceTime

keys = st.binary(min_size=1, max_size=3)
weights = st.dictionaries(keys, st.integers(0, 1000), max_size=30).map(lambda rows_by_key: sorted(rows_by_key.items()))


@given(weights, st.integers(1, 8))
def test_parts_tile_the_range_and_are_no_more_than_asked_for(weights: list[tuple[bytes, int]], partitions: int) -> None:
    whole = KeyRange(weights[0][0] if weights else b"", b"")
    parts = cut(whole, weights, partitions)
    assert len(parts) <= partitions
    assert (parts[0].start, parts[-1].end) == (whole.start, whole.end)
    assert all(a.end == b.start for a, b in pairwise(parts))
    assert {part.start for part in parts[1:]} <= {start for start, _ in weights}


def test_parts_have_about_as_many_rows() -> None:
    regions = [(bytes([n]), 100 if n < 50 else 300) for n in range(100)]
    parts = cut(KeyRange(), regions, 4)
    rows = [sum(n for start, n in regions if start in part) for part in parts]
    assert all(abs(n - 5000) <= 300 for n in rows), rows
    assert len(rows) == 4


def test_one_heavy_region_is_a_part_by_itself() -> None:
    assert cut(KeyRange(b"a", b"z"), [(b"a", 1), (b"b", 1000), (b"c", 1)], 3) == [
        KeyRange(b"a", b"c"),
        KeyRange(b"c", b"z"),
    ]


STEPS = [
    ReplayRead(store_id=1, incarnation=1, seq=4),
    ReplayRead(store_id=1, incarnation=1, seq=5),
    ReplayRead(store_id=1, incarnation=1, seq=5, closes=True),
    ReplayRead(store_id=1, incarnation=2, seq=1),
]


def test_a_task_does_what_it_has_not_done() -> None:
    assert own_steps(STEPS, {}) == tuple(STEPS)
    assert own_steps(STEPS, {1: {1: Position(seq=4)}}) == tuple(STEPS[1:])
    assert own_steps(STEPS, {1: {1: Position(seq=5)}}) == tuple(STEPS[2:])
    assert own_steps(STEPS, {1: {1: Position(seq=3, closed=True)}}) == (STEPS[3],)


def task(task_id: int, start: bytes, end: bytes) -> TaskRow:
    return TaskRow(
        task_id=task_id,
        tenant=Tenant(1, 2),
        kind=TaskKind.DATA,
        range=KeyRange(start, end),
        start_ts=10,
        durable_ts=20,
        epoch=3,
        owner="replay-1-2",
        snapshot_key="snapshots/x",
        snapshot_no=4,
        resubscribe_id=0,
        error=None,
    )


def test_larger_tasks_get_more_parts_and_all_parts_of_a_task_have_the_same_work() -> None:
    tasks = [task(1, b"", b"m"), task(2, b"m", b"")]
    heavy = [(bytes([ord("m") + n]), 100) for n in range(10)]
    positions = {1: {1: {1: Position(seq=4)}}, 2: {}}
    rows = plan(tasks, positions, STEPS, {1: 30, 2: 40}, {1: [(b"", 10)], 2: heavy}, partitions=5)
    assert [row.partition for row in rows] == list(range(len(rows)))
    assert [row.task_id for row in rows] == [1, 2, 2, 2, 2, 2]
    assert {(row.upto, row.steps) for row in rows} == {(30, tuple(STEPS[1:])), (40, tuple(STEPS))}
    assert [decode(ReplayPlanRow, encode(row)) for row in rows] == rows


T = Tenant(1, 1)
START = 10
REGION = {"region_id": 1, "version": 1, "subscription_open_ts": 5, "subscription_ready_ts": 6, "checkpoint_ts": START}
ROW = {"kind": 1, "op": 1, "key": b"k", "start_ts": 11, "commit_ts": 0, "generation": 0, "value": b"v" * 500}
ROW |= {"old_value": None, "expire_ts": 0, "flags": 0}


class Bucket:
    """Stores whose regions are [b"", m) for store 1 and [m, b"") for store 2."""

    def __init__(self, folder: Path) -> None:
        self.catalog = new_catalog(folder)
        self.store = MemoryStore()
        register_tenant(self.catalog, T)
        for store_id in (1, 2):
            issue_incarnation(self.catalog, T, store_id)

    def put(self, store_id: int, seq: int, *, cut_ts: int, incarnation: int = 1, rows: int = 1) -> None:
        start, end = ((b"", b"m"), (b"m", b""))[store_id - 1]
        mark = {**REGION, "start_key": start, "end_key": end, "resolved_ts": cut_ts, "row_offset": 0, "row_count": rows}
        key = BatchKey(tenant=T, store_id=store_id, incarnation=incarnation, seq=seq)
        data = encode_batch_file(
            key,
            cut_ts=cut_ts,
            rows=pa.RecordBatch.from_pylist([ROW] * rows, schema=ROWS),
            regions=pa.RecordBatch.from_pylist([mark], schema=REGIONS),
            write_id="w",
        )
        self.store.put(str(key), data)

    def backlog(self, *positions: Positions) -> dict[int, list[tuple[int, int, int, bool]]]:
        streams_of = find_backlog(self.catalog, self.store, T, dict(enumerate(positions or ({},))))
        return {
            store_id: [(s.incarnation, s.after_seq, len(s.sizes), s.closes) for s in streams]
            for store_id, streams in streams_of.items()
        }

    def batches(
        self, bytes_max: int = 1 << 30, until: int | None = None, now_ms: int = 1_700_000_000_000, **tasks: KeyRange
    ) -> list[Batch]:
        """Of tasks that have done nothing yet; their ids are the ends of their names."""
        ranges = {int(name[1:]): range_ for name, range_ in (tasks or {"t1": KeyRange()}).items()}
        backlog = find_backlog(self.catalog, self.store, T, {task_id: {} for task_id in ranges})
        with ThreadPoolExecutor(2) as pool:
            time = ServiceTime(SystemClock(), skew_max_ms=1000)
            time.note(now_ms)
            survey = Survey(self.store, T, backlog, pool, time)
            for task_id, range_ in ranges.items():
                survey.add(task_id, RangeWatermarkMap(range_, START), {})
            return list(iter(lambda: survey.take(bytes_max, until), None))


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[Bucket]:
    new_bucket = Bucket(tmp_path)
    yield new_bucket
    new_bucket.catalog.close()


def steps(batch: Batch) -> list[tuple[int, int, int, bool]]:
    return [(s.store_id, s.incarnation, s.seq, s.closes) for s in batch.steps]


def test_files_count_up_to_the_first_that_is_missing(bucket: Bucket) -> None:
    for seq in (1, 2, 4):
        bucket.put(1, seq, cut_ts=20 + seq)
    assert bucket.backlog() == {1: [(1, 0, 2, False)], 2: [(1, 0, 0, False)]}


def test_the_task_that_is_furthest_behind_says_where_it_begins(bucket: Bucket) -> None:
    for seq in (2, 3, 4):
        bucket.put(1, seq, cut_ts=20 + seq)
    ahead, behind = {1: {1: Position(seq=3)}}, {1: {1: Position(seq=1)}}
    assert bucket.backlog(ahead, behind)[1] == [(1, 1, 3, False)]


def test_an_older_life_ends_at_its_last_file_unless_all_have_closed_it(bucket: Bucket) -> None:
    issue_incarnation(bucket.catalog, T, 1)
    bucket.put(1, 1, cut_ts=21)
    bucket.put(1, 1, cut_ts=22, incarnation=2)
    assert bucket.backlog()[1] == [(1, 0, 1, True), (2, 0, 1, False)]
    closed = {1: {1: Position(seq=1, closed=True)}}
    assert bucket.backlog(closed, {})[1][0] == (1, 0, 1, True)
    assert bucket.backlog(closed, closed)[1] == [(2, 0, 1, False)]


def test_files_that_were_given_up_before_a_task_had_them_are_an_error(bucket: Bucket) -> None:
    epoch = acquire_leadership(bucket.catalog, "m", starts=True)
    assert epoch is not None
    dispatcher_epoch = assign_store(bucket.catalog, T, 1, worker_id="d", seen_epoch=0, leader_epoch=epoch)
    assert dispatcher_epoch is not None
    assert set_reclaimed(bucket.catalog, T, 1, 1, 5, dispatcher_epoch=dispatcher_epoch)
    with pytest.raises(FeedGap, match="reclaimed"):
        bucket.backlog({1: {1: Position(seq=4)}})
    assert bucket.backlog({1: {1: Position(seq=5)}})[1] == [(1, 5, 0, False)]


def test_the_stores_are_taken_in_the_order_of_time(bucket: Bucket) -> None:
    issue_incarnation(bucket.catalog, T, 1)
    bucket.put(1, 1, cut_ts=20)
    bucket.put(2, 1, cut_ts=30)
    bucket.put(1, 1, cut_ts=40, incarnation=2)
    bucket.put(2, 2, cut_ts=50)
    (batch,) = bucket.batches()
    assert steps(batch) == [(1, 1, 1, False), (1, 1, 1, True), (2, 1, 1, False), (1, 2, 1, False), (2, 1, 2, False)]
    assert (batch.files, batch.upto) == (4, {1: 40})


def test_a_store_counts_up_to_its_first_file_ahead_of_the_time(bucket: Bucket) -> None:
    issue_incarnation(bucket.catalog, T, 1)
    bucket.put(1, 1, cut_ts=tso.compose(5_000))
    bucket.put(1, 2, cut_ts=tso.compose(3_600_000))
    bucket.put(1, 3, cut_ts=tso.compose(6_000))
    bucket.put(1, 1, cut_ts=tso.compose(7_000), incarnation=2)
    bucket.put(2, 1, cut_ts=tso.compose(9_000))
    (batch,) = bucket.batches(now_ms=10_000)
    assert steps(batch) == [(1, 1, 1, False), (2, 1, 1, False)]
    assert batch.upto == {1: tso.compose(5_000)}
    (batch,) = bucket.batches(now_ms=3_600_000)
    assert batch.files == 5


def test_a_leg_reaches_what_its_lowest_slice_does_for_each_task(bucket: Bucket) -> None:
    bucket.put(1, 1, cut_ts=20, rows=3)
    bucket.put(2, 1, cut_ts=30, rows=5)
    low, high = KeyRange(b"", b"c"), KeyRange(b"c", b"")
    (batch,) = bucket.batches(t1=low, t2=high, t3=KeyRange(b"x", b""))
    assert batch.upto == {1: 20, 2: 20, 3: 30}
    assert batch.weights == {1: [(b"", 3)], 2: [(b"c", 3), (b"m", 5)], 3: [(b"x", 5)]}


def test_legs_end_at_their_bytes_and_all_files_come_once(bucket: Bucket) -> None:
    for seq in range(1, 6):
        bucket.put(1, seq, cut_ts=20 + seq)
        bucket.put(2, seq, cut_ts=20 + seq)
    batches = bucket.batches(bytes_max=1)
    assert [batch.files for batch in batches] == [1] * 10
    assert [batch.upto[1] for batch in batches] == [0, 21, 21, 22, 22, 23, 23, 24, 24, 25]


def test_legs_end_where_all_tasks_have_reached_the_end(bucket: Bucket) -> None:
    for seq in range(1, 6):
        bucket.put(1, seq, cut_ts=20 + 10 * seq)
        bucket.put(2, seq, cut_ts=20 + 10 * seq)
    (batch,) = bucket.batches(until=45)
    assert (batch.files, batch.upto) == (6, {1: 45})


def test_promises_of_a_file_whose_end_is_long_are_read_from_the_whole(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("backfill.survey.END_BYTES", 100)
    bucket.put(1, 1, cut_ts=20)
    bucket.put(2, 1, cut_ts=30)
    (batch,) = bucket.batches()
    assert batch.upto == {1: 20}


def test_a_batch_of_many_files_keeps_one_row_for_each_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three regions with rows and 997 idle ones in each of fifty files."""
    monkeypatch.setattr(survey, "WEIGHED_ROWS_MAX", 10)
    weights = survey._Weights()
    starts = [b"%04d" % n for n in range(1000)]
    for n in range(50):
        counts = [1 if at in (7, 500, 900) else 0 for at in range(1000)]
        columns = {"start_key": starts, "end_key": [*starts[1:], b""], "row_count": counts}
        fields = [REGIONS.field(name) for name in columns]
        weights.add(pa.RecordBatch.from_pydict(columns, schema=pa.schema(fields)))
        assert weights.rows_held <= 3 + 10 + 3, n
    assert weights.of(KeyRange()) == [(b"0007", 50), (b"0500", 50), (b"0900", 50)]
    assert weights.of(KeyRange(b"05005", b"09")) == [(b"05005", 50)]
