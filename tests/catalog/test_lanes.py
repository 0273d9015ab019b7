"""Lanes of replications in the catalog: owners and epochs, attempts and checkpoints, isolation, rebalance."""

from __future__ import annotations

import random
import time
from typing import Any

import pytest

from destinations.protocol import Destination
from reading.deps import Services
from replicator.core.lane import LATE_S
from replicator.lane_run import LaneRun
from tests.kit.catalog_cases import EDGE, START, T, elected, grown_log
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.changefeeds import FeedState, get_changefeed, remove_changefeed, switch_changefeed
from tistream.catalog.work import lanes
from tistream.catalog.work.core.lane_scope import KeyScope, covers, parse_scope
from tistream.catalog.work.lanes import LaneAssignment, LaneJob, lane_places, lanes_of, list_lanes
from tistream.catalog.work.replications import create_replication, fail_replication, resume_replication
from tistream.catalog.work.workers import register_worker
from tistream.clock import SystemClock
from tistream.errors import Fenced, StateForbids
from tistream.keyrange import KeyRange
from tistream.limits import LANE_LEASE_MS
from tistream.objectstore.memory import MemoryStore

LOW, HIGH = KeyScope(range=KeyRange(b"", b"m")), KeyScope(range=KeyRange(b"m", b""))
FEED = "dr"


@pytest.fixture(autouse=True)
def created(catalog: Catalog) -> None:
    grown_log(catalog)
    create(catalog)
    for name in ("a", "b"):
        register_worker(catalog, name, "replicate", "")


def create(catalog: Catalog, target_ts: int = 0) -> bool:
    return create_replication(
        catalog, T, FEED, START, sink_uri="tikv://pd:2379", options="{}", filters="{}", scopes=[LOW, HIGH],
        target_ts=target_ts, hold_ms=86_400_000,
    )  # fmt: skip


def give(catalog: Catalog, worker: str) -> list[LaneJob]:
    """All lanes to this worker; those that it owns then."""
    wanted = [LaneAssignment(place.lane_id, worker, place.epoch, place.tenant) for place in lane_places(catalog)]
    assert lanes.assign_lanes(catalog, wanted, leader_epoch=elected(catalog)) == len(wanted)
    return owned(catalog, worker)


def never_opened(job: LaneJob) -> Destination:
    raise AssertionError("nothing is written")


def owned(catalog: Catalog, worker: str, incarnation: int = 1) -> list[LaneJob]:
    return lanes_of(catalog, worker, incarnation)


def finish(catalog: Catalog, job: LaneJob, upto: int) -> int:
    return lanes.finish_stretch(catalog, job.lane, upto, rows=2, size=10, amended=0)


def test_the_checkpoint_of_a_changefeed_is_the_lowest_of_its_lanes(catalog: Catalog) -> None:
    assert not create(catalog), "safe to repeat"
    low, high = give(catalog, "a")
    assert (low.lane.scope, high.lane.scope, low.lanes) == (LOW, HIGH, 2)
    assert finish(catalog, low, START + 9) == START
    assert finish(catalog, high, START + 4) == START + 4
    assert get_changefeed(catalog, T, FEED).checkpoint_ts == START + 4
    first = list_lanes(catalog, T, FEED)[0]
    assert (first.checkpoint_ts, first.attempted_ts, first.rows_done, first.bytes_done) == (START + 9, START + 9, 2, 10)


def test_a_new_owner_waits_until_the_one_before_can_no_longer_write(catalog: Catalog) -> None:
    low, high = give(catalog, "a")
    assert low.lane.is_free, "there was no owner before"
    lanes.attempt_stretch(catalog, low.lane, START + 7, "record")
    again, other = give(catalog, "b")
    assert not again.lane.is_free
    assert 0 < again.lane.free_in_ms <= LANE_LEASE_MS
    assert (again.lane.redo_ts, again.lane.record, again.lane.record_ts) == (START + 7, "record", START + 7)
    for late in (
        lambda: lanes.attempt_stretch(catalog, low.lane, START + 9, ""),
        lambda: finish(catalog, low, START + 7),
        lambda: lanes.fail_stretch(catalog, low.lane, {"code": "x"}),
    ):
        with pytest.raises(Fenced):
            late()
    lanes.give_up_lane(catalog, low.lane)
    assert owned(catalog, "b")[0].lane.is_free, "the owner before has stopped writing"
    assert not owned(catalog, "b")[1].lane.is_free
    lanes.give_up_lane(catalog, high.lane)
    assert other.lane.epoch == owned(catalog, "b")[1].lane.epoch


def test_a_transaction_that_takes_long_does_not_shorten_the_wait(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until its COMMIT the owner before reads that the lane is its own, and may write for a lease from then on."""
    clock = SystemClock()
    services = Services.create(catalog, MemoryStore(), clock)

    def run_of(worker: str) -> LaneRun:
        asked_s = clock.monotonic()
        job = owned(catalog, worker)[0]
        run = LaneRun(services, clock, job, never_opened, random.Random(1))
        assert run.seen(job, asked_s, clock.monotonic())
        return run

    before: list[LaneRun] = []
    real = lanes.record_assignments

    def slowly(*args: Any, **named: Any) -> None:
        time.sleep(2 * LATE_S)
        before.append(run_of("a"))
        real(*args, **named)

    give(catalog, "a")
    monkeypatch.setattr(lanes, "record_assignments", slowly)
    give(catalog, "b")
    after = run_of("b")
    now_s = clock.monotonic()
    ends_s = now_s + before[0].core.allowed_s(now_s)
    assert ends_s > now_s
    assert after.core.waits(ends_s), "both may write"
    lanes.attempt_stretch(catalog, after.lane, START + 1, "")
    assert owned(catalog, "b")[0].lane.is_free, "it has begun to write, so it has waited"


def test_giving_up_a_lane_says_nothing_of_the_owners_before(catalog: Catalog) -> None:
    give(catalog, "a")
    second, _ = give(catalog, "b")
    lanes.give_up_lane(catalog, second.lane, waited=True)
    third = give(catalog, "a")[0]
    assert not third.lane.is_free, "the first may still write"
    give(catalog, "b")
    lanes.give_up_lane(catalog, third.lane, waited=True)
    assert not owned(catalog, "b")[0].lane.is_free


def test_a_process_that_starts_under_the_same_name_waits_as_well(catalog: Catalog) -> None:
    low, _ = give(catalog, "a")
    assert register_worker(catalog, "a", "replicate", "") == 2
    assert owned(catalog, "a") == [], "an old incarnation never learns the new epochs"
    again = owned(catalog, "a", 2)[0]
    assert again.lane.epoch == low.lane.epoch + 1
    assert not again.lane.is_free
    with pytest.raises(Fenced):
        finish(catalog, low, START + 7)


def test_rebalanced_lanes_start_at_the_least_checkpoint_that_they_cover(catalog: Catalog) -> None:
    low, high = give(catalog, "a")
    lanes.attempt_stretch(catalog, low.lane, START + 9, "")
    finish(catalog, low, START + 9)
    lanes.attempt_stretch(catalog, high.lane, START + 20, "")
    cuts = [KeyRange(b"", b"c"), KeyRange(b"c", b"p"), KeyRange(b"p", b"")]
    lanes.replace_lanes(catalog, T, FEED, [KeyScope(range=part) for part in cuts])
    found = list_lanes(catalog, T, FEED)
    assert [lane.checkpoint_ts for lane in found] == [START + 9, START, START]
    assert [lane.redo_ts for lane in found] == [START + 9, START + 20, START + 20]
    assert all(lane.owner is None and not lane.is_free for lane in found)
    with pytest.raises(Fenced):
        finish(catalog, high, START + 20)
    assert covers([lane.scope.range for lane in found if isinstance(lane.scope, KeyScope)], KeyRange())
    assert not covers([KeyRange(b"", b"c"), KeyRange(b"d", b"")], KeyRange())
    assert not covers([KeyRange(b"", b"d"), KeyRange(b"c", b"")], KeyRange())


def test_dead_letters_are_counted_with_the_checkpoint_and_outlive_the_lanes(catalog: Catalog) -> None:
    low, high = give(catalog, "a")
    lanes.finish_stretch(catalog, low.lane, START + 9, rows=1, size=1, amended=0, letters=2)
    lanes.finish_stretch(catalog, high.lane, START + 5, rows=1, size=1, amended=0, letters=3)
    assert get_changefeed(catalog, T, FEED).dead_letters == 5
    lanes.replace_lanes(catalog, T, FEED, [KeyScope(range=KeyRange())])
    with pytest.raises(Fenced):
        lanes.finish_stretch(catalog, low.lane, START + 10, rows=1, size=1, amended=0, letters=4)
    assert get_changefeed(catalog, T, FEED).dead_letters == 5


def test_a_refused_key_stops_alone_and_is_tried_again_or_left_out(catalog: Catalog) -> None:
    low, high = give(catalog, "a")
    lanes.attempt_stretch(catalog, low.lane, START + 9, "files")
    rest, alone = low.lane.scope.isolate(b"k1".hex())
    lanes.isolate(catalog, low.lane, rest, alone, {"code": "TS-1101", "key": b"k1".hex(), "commit_ts": str(START + 3)})
    found = list_lanes(catalog, T, FEED)
    assert [lane.is_stopped for lane in found] == [False, False, True]
    assert parse_scope(found[0].scope.text()) == found[0].scope == rest
    stopped = found[2]
    assert stopped.scope == alone
    assert (stopped.attempted_ts, stopped.redo_ts) == (START + 9, START + 9), "the key may have been written"
    assert (stopped.record, stopped.record_ts) == ("files", START + 9)
    assert stopped.error is not None
    assert stopped.error["commit_ts"] == str(START + 3)
    finish(catalog, low, START + 20)
    finish(catalog, high, START + 20)
    assert get_changefeed(catalog, T, FEED).checkpoint_ts == START, "it waits for the stopped key"
    lanes.rescope(catalog, stopped, lanes.parse_scope(stopped.scope.text()))
    assert not list_lanes(catalog, T, FEED)[2].is_stopped
    with pytest.raises(Fenced):
        lanes.rescope(catalog, stopped, stopped.scope)


def test_paused_failed_and_finished_changefeeds_are_not_written(catalog: Catalog) -> None:
    low, high = give(catalog, "a")
    switch_changefeed(catalog, T, FEED, FeedState.STOPPED)
    assert owned(catalog, "a") == []
    resume_replication(catalog, T, FEED)
    fail_replication(catalog, low.lane, {"code": "TS-1005", "message": "gone"})
    failed = get_changefeed(catalog, T, FEED)
    assert (failed.state, failed.holds_log, failed.error) == (
        FeedState.FAILED, True, {"code": "TS-1005", "message": "gone"},
    )  # fmt: skip
    resume_replication(catalog, T, FEED, to_ts=START + 1)
    assert [lane.checkpoint_ts for lane in list_lanes(catalog, T, FEED)] == [START + 1] * 2
    with pytest.raises(Fenced):
        finish(catalog, high, START + 4)
    assert remove_changefeed(catalog, T, FEED)
    assert list_lanes(catalog, T) == lane_places(catalog) == []
    create(catalog, target_ts=EDGE)
    for job in give(catalog, "a"):
        finish(catalog, job, EDGE)
    assert get_changefeed(catalog, T, FEED).state is FeedState.FINISHED
    with pytest.raises(StateForbids):
        resume_replication(catalog, T, FEED)
