"""Replays: tasks that are taken over and handed back further on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kit.assignments import assign_task
from tests.kit.catalog_cases import OTHER, START, T, activate, advance, elected, referred, segment, snapshot
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.committed import TaskAdvance, durable_timestamps, find_segments
from tistream.catalog.log.snapshots import NewSnapshot, positions
from tistream.catalog.work.handover import hand_over, take_tasks
from tistream.catalog.work.tasks import get_task, stop_task
from tistream.catalog.work.workers import register_worker
from tistream.errors import Fenced
from tistream.ids import Position
from tistream.ts import TS_MAX

AT = {1: {1: Position(seq=5)}}
OF_REPLAY = segment(key="committed/r")


def state(n: int, keeps: frozenset[str] = frozenset()) -> NewSnapshot:
    key = f"snapshots/r-{n}"
    return NewSnapshot(key=key, n=n, objects={key: 10, f"{key}-rows": 20}, keeps=keeps, positions=AT)


def given(catalog: Catalog, advance: TaskAdvance, snapshot: NewSnapshot) -> bool:
    return hand_over(catalog, T, objects={"committed/r": 100}, advance=advance, snapshot=snapshot)


class TestHandover:
    def test_all_tasks_of_a_tenant_are_taken_but_those_that_are_stopped(self, catalog: Catalog) -> None:
        low, high, ddl = activate(catalog)
        others = activate(catalog, OTHER)
        assert assign_task(catalog, high, worker_id="s1", seen_epoch=0, leader_epoch=elected(catalog)) == 1
        assert stop_task(catalog, ddl, epoch=0, error="broken")
        life = register_worker(catalog, "r", "replay", "")
        tasks = take_tasks(catalog, T, "r", life)
        assert [(row.task_id, row.owner, row.epoch) for row in tasks] == [(low, "r", 1), (high, "r", 2)]
        assert tasks == [get_task(catalog, low), get_task(catalog, high)]
        assert [get_task(catalog, task).owner for task in (ddl, *others)] == [None] * 4

    def test_a_later_life_takes_the_tasks_from_an_earlier_one(self, catalog: Catalog) -> None:
        activate(catalog)
        old = register_worker(catalog, "r", "replay", "")
        before = take_tasks(catalog, T, "r", old)
        new = register_worker(catalog, "r", "replay", "")
        with pytest.raises(Fenced):
            take_tasks(catalog, T, "r", old)
        after = take_tasks(catalog, T, "r", new)
        assert [row.epoch for row in after] == [row.epoch + 2 for row in before]

    def test_a_hand_over_moves_log_and_state_together(self, catalog: Catalog, low: int) -> None:
        assert snapshot(catalog, low, 1, {}, more=["snapshots/kept", "snapshots/left"])
        assert given(catalog, advance(low, START, START + 10, OF_REPLAY), state(2, frozenset({"snapshots/kept"})))
        assert durable_timestamps(catalog, [low]) == {low: (0, START + 10)}
        assert [s.object_key for s in find_segments(catalog, T, after_ts=0, upto_ts=TS_MAX, limit=9)] == ["committed/r"]
        row = get_task(catalog, low)
        assert (row.snapshot_key, row.snapshot_no, positions(catalog, low)) == ("snapshots/r-2", 2, AT)
        assert referred(catalog, low) == {"snapshots/r-2", "snapshots/r-2-rows", "snapshots/kept"}

    def test_a_state_moves_alone(self, catalog: Catalog, low: int) -> None:
        assert given(catalog, advance(low, START, START), state(1))
        assert durable_timestamps(catalog, [low]) == {low: (0, START)}
        assert positions(catalog, low) == AT

    @pytest.mark.parametrize(
        "fault",
        ["another epoch", "another durable watermark", "a newer snapshot", "what it keeps was let go", "an orphan"],
    )
    def test_nothing_happens_when_one_guard_does_not_match(self, catalog: Catalog, low: int, fault: str) -> None:
        assert snapshot(catalog, low, 3, {})
        before = get_task(catalog, low)
        advances, new = advance(low, START, START + 10, OF_REPLAY), state(4)
        match fault:
            case "another epoch":
                advances = advance(low, START, START + 10, OF_REPLAY, epoch=1)
            case "another durable watermark":
                advances = advance(low, START - 1, START + 10, OF_REPLAY)
            case "a newer snapshot":
                new = state(3)
            case "what it keeps was let go":
                new = state(4, frozenset({"snapshots/gone"}))
            case _:
                key = f"snapshots/{low}/0-3"
                new = replace(state(4), key=key, objects={key: 1})
        if fault == "an orphan":
            with pytest.raises(Fenced):
                given(catalog, advances, new)
        else:
            assert not given(catalog, advances, new)
        assert get_task(catalog, low) == before
        assert positions(catalog, low) == {}
        assert find_segments(catalog, T, after_ts=0, upto_ts=TS_MAX, limit=9) == []
