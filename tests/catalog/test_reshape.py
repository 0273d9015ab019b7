"""Split and merge of tasks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kit.assignments import assign_task
from tests.kit.catalog_cases import (
    HIGH,
    LOW,
    START,
    T,
    activate,
    advance,
    elected,
    ended,
    flush,
    long_key,
    referred,
    segment,
    snapshot,
    together,
)
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.committed import durable_timestamps, find_segments
from tistream.catalog.log.objects import ObjectState, object_states
from tistream.catalog.log.snapshots import NewSnapshot, durable_floor, positions
from tistream.catalog.work.handover import take_tasks
from tistream.catalog.work.leader import acquire_leadership
from tistream.catalog.work.reshape import Half, cancel_merge, merge_tasks, merging_tenants, request_merge, split_task
from tistream.catalog.work.stores import issue_incarnation
from tistream.catalog.work.tasks import (
    frontier,
    get_task,
    list_tasks,
    raise_resubscribe,
    retry_task,
    served_watermark,
    stop_task,
    tasks_owned_by,
)
from tistream.catalog.work.workers import register_worker
from tistream.errors import Fenced, InvalidInput, NotFound, TiStreamError
from tistream.ids import Position
from tistream.keyrange import KeyRange
from tistream.ts import TS_MAX

KEY = long_key(b"t")  # inside of LOW
AT = {1: {1: Position(seq=5), 2: Position(seq=1)}, 2: {1: Position(seq=3, closed=True)}}
LATER = {1: {1: Position(seq=9), 2: Position(seq=1)}, 2: {1: Position(seq=3, closed=True)}}


def owned(catalog: Catalog) -> tuple[int, int, int]:
    """Two neighbours of one sorter at epoch 1, with snapshots of their own at AT; and the sorter's life."""
    low, high, _ddl = activate(catalog)
    life = register_worker(catalog, "s1", "sorter", "")
    for task in (low, high):
        assert assign_task(catalog, task, worker_id="s1", seen_epoch=0, leader_epoch=elected(catalog)) == 1
        assert snapshot(catalog, task, 3, AT, 1, more=[f"snapshots/{task}/rows"])
    return low, high, life


def wanted(catalog: Catalog) -> tuple[Half, Half]:
    """Two neighbours of one sorter that are to be merged."""
    low, high, _ = owned(catalog)
    assert request_merge(catalog, low, high, seen_epochs=(1, 1))
    first = Half(task_id=low, epoch=1, durable_ts=START, snapshot_no=3)
    return first, replace(first, task_id=high)


def split(catalog: Catalog, task_id: int, key: bytes = KEY, epoch: int = 1) -> tuple[int, int]:
    parts = split_task(catalog, task_id, key, seen_epoch=epoch)
    assert parts is not None
    return parts


def state(*keeps: str) -> NewSnapshot:
    key = "snapshots/joined"
    return NewSnapshot(key=key, n=4, objects={key: 10}, keeps=frozenset(keeps), positions=LATER)


class TestReshape:
    def test_both_parts_take_over_what_the_task_had(self, catalog: Catalog) -> None:
        low, high, life = owned(catalog)
        assert flush(catalog, "c/1", advance(low, START, START + 10, segment(), epoch=1)) == {low}
        assert raise_resubscribe(catalog, low, epoch=1)
        was, others = get_task(catalog, low), [get_task(catalog, high)]
        parts = split_task(catalog, low, KEY, seen_epoch=1, leader_epoch=elected(catalog))
        assert parts is not None
        rows = [get_task(catalog, part) for part in parts]
        ranges = KeyRange(LOW.start, KEY), KeyRange(KEY, LOW.end)
        expected = zip(parts, ranges, strict=True)
        assert rows == [replace(was, task_id=part, range=range_, epoch=2) for part, range_ in expected]
        assert [positions(catalog, part) for part in parts] == [AT, AT]
        assert [referred(catalog, part) for part in parts] == [{was.snapshot_key, f"snapshots/{low}/rows"}] * 2
        assert tasks_owned_by(catalog, "s1", life) == [*others, *rows]
        with pytest.raises(NotFound):
            get_task(catalog, low)
        assert (positions(catalog, low), referred(catalog, low)) == ({}, set())

    def test_whoever_reads_sees_no_difference(self, catalog: Catalog) -> None:
        low, high, _ = owned(catalog)
        assert flush(catalog, "c/1", advance(low, START, START + 10, segment(), epoch=1)) == {low}
        issue_incarnation(catalog, T, 1)
        before = served_watermark(catalog, T), durable_floor(catalog, T, 1), _everywhere(catalog)
        split(catalog, low)
        assert (served_watermark(catalog, T), durable_floor(catalog, T, 1), _everywhere(catalog)) == before
        segments = find_segments(catalog, T, after_ts=0, upto_ts=TS_MAX, limit=9)
        assert [(s.object_key, s.task_id) for s in segments] == [("c/1", low)], "a segment keeps who wrote it"
        assert get_task(catalog, high).durable_ts == START

    def test_a_part_holds_the_files_that_its_task_held(self, catalog: Catalog) -> None:
        low, high, ddl = activate(catalog)
        issue_incarnation(catalog, T, 1)
        for task, seq in ((low, 4), (high, 7), (ddl, 8)):
            assert snapshot(catalog, task, 1, {1: {1: Position(seq=seq)}})
        assert durable_floor(catalog, T, 1) == {1: 4}
        parts = split(catalog, low, epoch=0)
        assert snapshot(catalog, parts[0], 2, {1: {1: Position(seq=6)}}, 1)
        assert durable_floor(catalog, T, 1) == {1: 4}
        assert snapshot(catalog, parts[1], 2, {1: {1: Position(seq=9)}}, 1)
        assert durable_floor(catalog, T, 1) == {1: 6}

    def test_a_shared_object_stays_until_both_parts_let_it_go(self, catalog: Catalog) -> None:
        low, *_ = owned(catalog)
        old = get_task(catalog, low).snapshot_key
        assert old is not None
        parts = split(catalog, low)
        assert object_states(catalog, [old]) == {old: ObjectState.LIVE}
        assert snapshot(catalog, parts[0], 4, AT, 2)
        assert object_states(catalog, [old]) == {old: ObjectState.LIVE}
        assert snapshot(catalog, parts[1], 4, AT, 2, keeps=[f"snapshots/{low}/rows"])
        states = {old: ObjectState.SUPERSEDED, f"snapshots/{low}/rows": ObjectState.LIVE}
        assert object_states(catalog, states) == states

    def test_the_owner_of_a_task_that_was_split_can_do_nothing(self, catalog: Catalog) -> None:
        low, *_ = owned(catalog)
        parts = split(catalog, low)
        rows = list_tasks(catalog)
        assert flush(catalog, "c/1", advance(low, START, START + 10, segment(), epoch=1)) == frozenset()
        assert not snapshot(catalog, low, 9, LATER, 1)
        assert not raise_resubscribe(catalog, low, epoch=1)
        assert not stop_task(catalog, low, epoch=1, error="broken")
        assert durable_timestamps(catalog, [low]) == {}
        assert assign_task(catalog, low, worker_id="s2", seen_epoch=1, leader_epoch=elected(catalog)) is None
        for part in parts:
            advances = (advance(part, START, START + 10, segment(key="c/1"), epoch=1),)
            assert flush(catalog, "c/1", *advances) == frozenset(), "an epoch of the task that was split"
        assert list_tasks(catalog) == rows
        assert find_segments(catalog, T, after_ts=0, upto_ts=TS_MAX, limit=9) == []

    def test_a_stopped_task_without_owner_and_state_is_split_too(self, catalog: Catalog, low: int) -> None:
        assert stop_task(catalog, low, epoch=0, error="broken")
        parts = split(catalog, low, epoch=0)
        assert [(get_task(catalog, p).owner, get_task(catalog, p).error) for p in parts] == [(None, "broken")] * 2
        assert [positions(catalog, part) for part in parts] == [{}, {}]

    @pytest.mark.parametrize("fault", ["epoch", "election", "replay"])
    def test_a_split_is_refused_to_who_has_lost(self, catalog: Catalog, low: int, fault: str) -> None:
        epoch, leader_epoch = 0, elected(catalog)
        match fault:
            case "epoch":
                epoch = 1
            case "election":
                leader_epoch += 1
            case _:
                epoch = take_tasks(catalog, T, "r", register_worker(catalog, "r", "replay", ""))[0].epoch
        rows = list_tasks(catalog)
        assert split_task(catalog, low, KEY, seen_epoch=epoch, leader_epoch=leader_epoch) is None
        assert list_tasks(catalog) == rows

    def test_a_split_that_makes_no_sense_is_refused(self, catalog: Catalog) -> None:
        low, _high, ddl = activate(catalog)
        rows = list_tasks(catalog)
        for key in (LOW.start, LOW.end, HIGH.end, HIGH.start + b"x", b"a"):
            with pytest.raises(InvalidInput):
                split_task(catalog, low, key, seen_epoch=0)
        with pytest.raises(InvalidInput):
            split_task(catalog, ddl, long_key(b"m\x01"), seen_epoch=0)
        with pytest.raises(NotFound):
            split_task(catalog, ddl + 9, KEY, seen_epoch=0)
        assert list_tasks(catalog) == rows

    def test_of_two_splits_at_once_one_happens(self, catalog: Catalog, low: int) -> None:

        def attempt(_: int) -> tuple[int, int] | None:
            try:
                return ended(lambda: split_task(catalog, low, KEY, seen_epoch=0))
            except NotFound:
                return None

        done = [parts for parts in together(4, attempt) if parts is not None]
        assert len(done) == 1
        assert {row.task_id for row in list_tasks(catalog, T)} >= set(done[0])
        assert len(list_tasks(catalog, T)) == 4

    def test_both_belong_to_one_owner_until_they_are_merged(self, catalog: Catalog) -> None:
        low, high, _ = owned(catalog)
        leader_epoch = elected(catalog)
        assert assign_task(catalog, high, worker_id="s2", seen_epoch=1, leader_epoch=leader_epoch) == 2
        assert request_merge(catalog, low, high, seen_epochs=(1, 2), leader_epoch=leader_epoch)
        rows = [get_task(catalog, task) for task in (low, high)]
        assert [(row.owner, row.epoch, row.merge_with) for row in rows] == [("s1", 1, high), ("s1", 3, low)]
        assert request_merge(catalog, low, high, seen_epochs=(1, 3))
        assert merging_tenants(catalog) == {T}
        assert [get_task(catalog, task) for task in (low, high)] == rows, "asking again changes nothing"
        assert cancel_merge(catalog, high, seen_epoch=3, leader_epoch=leader_epoch)
        assert [get_task(catalog, task).merge_with for task in (low, high)] == [None, None]
        assert merging_tenants(catalog) == set()

    def test_who_lost_the_election_or_the_task_cancels_no_merge(self, catalog: Catalog) -> None:
        low, high, _ = owned(catalog)
        old = elected(catalog, "meta-1")
        assert request_merge(catalog, low, high, seen_epochs=(1, 1), leader_epoch=old)
        new = acquire_leadership(catalog, "meta-1", starts=True)
        assert new == old + 1
        assert not cancel_merge(catalog, high, seen_epoch=1, leader_epoch=old)
        assert not cancel_merge(catalog, high, seen_epoch=0, leader_epoch=new)
        assert [get_task(catalog, task).merge_with for task in (low, high)] == [high, low]
        assert cancel_merge(catalog, high, seen_epoch=1, leader_epoch=new)
        with pytest.raises(NotFound):
            cancel_merge(catalog, 404, seen_epoch=0)

    def test_a_task_is_merged_with_one_neighbour_only(self, catalog: Catalog) -> None:
        low, high, _ = owned(catalog)
        parts = split(catalog, high, long_key(b"t\x81"))
        assert request_merge(catalog, low, parts[0], seen_epochs=(1, 2))
        assert request_merge(catalog, *parts, seen_epochs=(2, 2))
        named = {row.task_id: row.merge_with for row in list_tasks(catalog, T)}
        assert {named[low], named[parts[0]], named[parts[1]]} == {None, *parts}
        split(catalog, parts[1], long_key(b"t\x82"), epoch=2)
        assert {row.merge_with for row in list_tasks(catalog, T)} == {None}, "what is split is merged with nobody"

    @pytest.mark.parametrize("fault", ["epoch", "election", "replay"])
    def test_a_merge_is_refused_to_who_has_lost(self, catalog: Catalog, fault: str) -> None:
        low, high, _ddl = activate(catalog)
        epochs, leader_epoch = (0, 0), elected(catalog)
        match fault:
            case "epoch":
                epochs = (0, 1)
            case "election":
                leader_epoch += 1
            case _:
                tasks = take_tasks(catalog, T, "r", register_worker(catalog, "r", "replay", ""))
                epochs = tasks[0].epoch, tasks[1].epoch
        rows = list_tasks(catalog)
        assert not request_merge(catalog, low, high, seen_epochs=epochs, leader_epoch=leader_epoch)
        assert list_tasks(catalog) == rows

    def test_a_merge_that_makes_no_sense_is_refused(self, catalog: Catalog) -> None:
        low, high, ddl = activate(catalog)
        rows = list_tasks(catalog)
        for pair in ((high, low), (low, low), (ddl, low), (low, ddl)):
            with pytest.raises(InvalidInput):
                request_merge(catalog, *pair, seen_epochs=(0, 0))
        with pytest.raises(NotFound):
            request_merge(catalog, low, ddl + 9, seen_epochs=(0, 0))
        assert list_tasks(catalog) == rows
        assert stop_task(catalog, high, epoch=0, error="broken")
        with pytest.raises(InvalidInput):
            request_merge(catalog, low, high, seen_epochs=(0, 0))
        assert retry_task(catalog, high, epoch=0)
        assert request_merge(catalog, low, high, seen_epochs=(0, 0))

    def test_one_task_stands_in_the_place_of_two(self, catalog: Catalog) -> None:
        left, right = wanted(catalog)
        for _ in range(2):
            assert raise_resubscribe(catalog, right.task_id, epoch=1)
        upto = START + 10
        advances = (advance(left.task_id, START, upto, epoch=1), advance(right.task_id, START, upto, epoch=1))
        assert flush(catalog, None, *advances) == {left.task_id, right.task_id}
        before = served_watermark(catalog, T)
        rows = f"snapshots/{left.task_id}/rows", f"snapshots/{right.task_id}/rows"
        old = [get_task(catalog, half.task_id).snapshot_key or "" for half in (left, right)]
        task = merge_tasks(catalog, replace(left, durable_ts=upto), replace(right, durable_ts=upto), state(*rows))
        assert task is not None
        row = get_task(catalog, task)
        assert (row.range, row.durable_ts, row.start_ts) == (KeyRange(LOW.start, HIGH.end), upto, START)
        assert (row.owner, row.epoch, row.resubscribe_id, row.merge_with) == ("s1", 2, 2, None)
        assert (row.snapshot_key, row.snapshot_no, positions(catalog, task)) == ("snapshots/joined", 4, LATER)
        assert referred(catalog, task) == {*rows, "snapshots/joined"}
        assert object_states(catalog, [*old, *rows, "snapshots/joined"]) == {
            **dict.fromkeys(old, ObjectState.SUPERSEDED),
            **dict.fromkeys([*rows, "snapshots/joined"], ObjectState.LIVE),
        }
        assert [r.task_id for r in list_tasks(catalog, T) if r.kind == "data"] == [task]
        assert served_watermark(catalog, T) == before
        assert snapshot(catalog, task, 5, LATER, 2, keeps=rows), "it goes on"

    @pytest.mark.parametrize(
        "fault", ["epoch", "durable_ts", "snapshot", "not wanted", "what it keeps was let go", "gone", "an orphan"]
    )
    def test_a_merge_that_is_not_what_its_owner_knows_does_not_happen(self, catalog: Catalog, fault: str) -> None:
        left, right = wanted(catalog)
        joined = state(f"snapshots/{left.task_id}/rows")
        parts: tuple[int, ...] = (right.task_id,)
        match fault:
            case "epoch":
                assert register_worker(catalog, "s1", "sorter", "") == 2
            case "durable_ts":
                assert flush(catalog, None, advance(right.task_id, START, START + 1, epoch=1)) == {right.task_id}
            case "snapshot":
                assert snapshot(catalog, left.task_id, 4, AT, 1, keeps=[f"snapshots/{left.task_id}/rows"])
            case "not wanted":
                assert cancel_merge(catalog, left.task_id, seen_epoch=left.epoch)
            case "gone":
                parts = split(catalog, right.task_id, long_key(b"t\x81"))
            case "an orphan":
                key = get_task(catalog, left.task_id).snapshot_key or ""
                joined = replace(joined, key=key, objects={key: 1})
            case _:
                joined = state("snapshots/elsewhere")
        rows = list_tasks(catalog)
        if fault == "an orphan":
            with pytest.raises(Fenced):
                merge_tasks(catalog, left, right, joined)
        else:
            assert merge_tasks(catalog, left, right, joined) is None
        assert list_tasks(catalog) == rows
        assert [positions(catalog, task) for task in (left.task_id, *parts)] == [AT] * (1 + len(parts))

    def test_halves_of_two_durable_timestamps_and_positions_that_fall_are_a_fault(self, catalog: Catalog) -> None:
        left, right = wanted(catalog)
        rows = list_tasks(catalog)
        with pytest.raises(TiStreamError):
            merge_tasks(catalog, left, replace(right, durable_ts=START + 1), state())
        behind = {1: {1: Position(seq=4), 2: Position(seq=1)}, 2: {1: Position(seq=3, closed=True)}}
        for fallen in (behind, {1: AT[1]}, {**AT, 2: {1: Position(seq=3)}}):
            with pytest.raises(TiStreamError):
                merge_tasks(catalog, left, right, replace(state(), positions=fallen))
        assert list_tasks(catalog) == rows

    def test_a_flush_and_a_merge_at_once_do_not_both_happen(self, catalog: Catalog) -> None:
        left, right = wanted(catalog)
        assert elected(catalog)

        def act(i: int) -> object:
            if i:
                return ended(lambda: flush(catalog, None, advance(right.task_id, START, START + 5, epoch=1)))
            return ended(lambda: merge_tasks(catalog, left, right, state()))

        merged, flushed = together(2, act)
        assert (merged is None) == (flushed == {right.task_id})


def _everywhere(catalog: Catalog) -> list[tuple[int, int]]:
    """What the frontier says of some keys."""
    rows = frontier(catalog, T)
    keys = [long_key(end) for end in (b"m", b"n", b"s", b"t", b"t\x7f", b"t\x80", b"u")]
    return [(row.durable_ts, row.resubscribe_id) for key in keys for row in rows if key in row.range]
