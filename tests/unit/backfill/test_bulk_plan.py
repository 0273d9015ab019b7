"""What a replay gives to its workers, and how it travels."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from backfill.core.plan import PlanRow, Step, cut, own_steps, plan
from backfill.replay import PartitionResult
from tistream.catalog.log.segments import SegmentRow
from tistream.catalog.tenancy.tenants import TaskKind
from tistream.catalog.work.tasks import TaskRow
from tistream.codec.wire import decode, encode
from tistream.ids import Position, Tenant
from tistream.keyrange import KeyRange

keys = st.binary(min_size=1, max_size=3)
weights = st.dictionaries(keys, st.integers(0, 1000), max_size=30).map(lambda found: sorted(found.items()))


@given(weights, st.integers(1, 8))
def test_parts_tile_the_range_and_are_no_more_than_asked_for(weights: list[tuple[bytes, int]], partitions: int) -> None:
    whole = KeyRange(weights[0][0] if weights else b"", b"")
    found = cut(whole, weights, partitions)
    assert len(found) <= partitions
    assert (found[0].start, found[-1].end) == (whole.start, whole.end)
    assert all(a.end == b.start for a, b in pairwise(found))
    assert {part.start for part in found[1:]} <= {start for start, _ in weights}


def test_parts_have_about_as_many_rows() -> None:
    regions = [(bytes([n]), 100 if n < 50 else 300) for n in range(100)]
    found = cut(KeyRange(), regions, 4)
    rows = [sum(n for start, n in regions if start in part) for part in found]
    assert all(abs(n - 5000) <= 300 for n in rows), rows
    assert len(rows) == 4


def test_one_heavy_region_is_a_part_by_itself() -> None:
    assert cut(KeyRange(b"a", b"z"), [(b"a", 1), (b"b", 1000), (b"c", 1)], 3) == [
        KeyRange(b"a", b"c"),
        KeyRange(b"c", b"z"),
    ]


STEPS = [
    Step(store_id=1, incarnation=1, seq=4),
    Step(store_id=1, incarnation=1, seq=5),
    Step(store_id=1, incarnation=1, seq=5, closes=True),
    Step(store_id=1, incarnation=2, seq=1),
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
        snapshot_n=4,
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
    assert [decode(PlanRow, encode(row)) for row in rows] == rows


def test_a_result_travels_as_it_is() -> None:
    segment = SegmentRow(
        object_key="committed/x",
        number=0,
        kind="committed",
        start_key=b"\x00\xff",
        end_key=b"\xff",
        table_lo=-1,
        table_hi=2,
        lo_ts=21,
        hi_ts=1 << 62,
        rows=3,
        offset=8,
        length=9,
        crc=1 << 31,
    )
    result = PartitionResult(
        partition=0,
        task_id=1,
        reached=30,
        log_objects={"committed/x": 7},
        segments=(segment,),
        state_key="snapshots/y",
        state_objects={"snapshots/z": 5},
        keeps=("snapshots/x",),
        files=1,
        bytes=2,
        rows=3,
        seconds=0.5,
    )
    assert decode(PartitionResult, encode(result)) == result
