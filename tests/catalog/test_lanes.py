"""Lanes of replications in the catalog: owners and epochs, attempts and checkpoints, isolation, rebalance."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import orjson
import pytest

from reading.served.services import Services
from replicator.core.lane import LATE_S
from replicator.lane_run import LaneRun
from tests.kit.catalog_cases import EDGE, START, T, elected, grown_log
from tistream import ts as tso
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import record_assignments
from tistream.catalog.database.tables import next_numbers
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.tenancy.consumers import add_consumer
from tistream.catalog.tenancy.log_readers import ReaderState
from tistream.catalog.work import changefeeds, lanes
from tistream.catalog.work.changefeeds import (
    create_changefeed,
    decide_refusal,
    end_changefeed,
    fail_changefeed,
    remove_changefeed,
    resume_changefeed,
)
from tistream.catalog.work.core.lane_scope import (
    ISOLATED_MAX,
    TEXT_MAX,
    KeyScope,
    LaneScope,
    change_key,
    covers,
    may_isolate,
    parse_scope,
    skip,
    with_skipped,
)
from tistream.catalog.work.lanes import LaneAssignment, LaneJob, lane_places, lanes_of, list_lanes
from tistream.catalog.work.renumber import raise_numbers
from tistream.catalog.work.workers import register_worker
from tistream.clock import SystemClock
from tistream.errors import Fenced, StateForbids, TsOutOfRange
from tistream.keyrange import KeyRange
from tistream.limits import CLOCK_SKEW_MAX_MS, LANE_LEASE_MS
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
    return create_changefeed(
        catalog, T, FEED, START, sink_uri="tikv://pd:2379", options="{}", filters="{}", scopes=[LOW, HIGH],
        target_ts=target_ts, hold_ms=86_400_000,
    )  # fmt: skip


def give(catalog: Catalog, worker: str) -> list[LaneJob]:
    """All lanes to this worker; those that it owns then."""
    wanted = [LaneAssignment(place.lane_id, worker, place.epoch, place.tenant) for place in lane_places(catalog)]
    assert lanes.assign_lanes(catalog, wanted, leader_epoch=elected(catalog)) == len(wanted)
    return owned(catalog, worker)


def never_opened(*_: object) -> Any:
    raise AssertionError("nothing is written")


def owned(catalog: Catalog, worker: str, incarnation: int = 1) -> list[LaneJob]:
    return lanes_of(catalog, worker, incarnation)


def finish(catalog: Catalog, job: LaneJob, upto: int) -> int:
    return lanes.finish_stretch(catalog, job.lane, upto, rows=2, size=10)


def test_the_checkpoint_of_a_changefeed_is_the_lowest_of_its_lanes(catalog: Catalog) -> None:
    assert not create(catalog), "safe to repeat"
    low, high = give(catalog, "a")
    assert (low.lane.scope, high.lane.scope, low.lanes) == (LOW, HIGH, 2)
    assert finish(catalog, low, START + 9) == START
    assert finish(catalog, high, START + 4) == START + 4
    assert CHANGEFEEDS.get(catalog, T, FEED).checkpoint_ts == START + 4
    first = list_lanes(catalog, T, FEED)[0]
    assert (first.checkpoint_ts, first.attempted_ts, first.rows_done, first.bytes_done) == (START + 9, START + 9, 2, 10)


def test_after_a_restore_lanes_of_keys_continue_at_the_lowest(catalog: Catalog) -> None:
    """They may have been cut anew since the export, and have written keys again from there on."""
    low, high = give(catalog, "a")
    lanes.attempt_stretch(catalog, low.lane, START + 20, "record")
    finish(catalog, low, START + 9)
    finish(catalog, high, START + 4)
    (again, _) = owned(catalog, "a")
    lanes.attempt_stretch(catalog, again.lane, START + 30, "of another stretch")
    with catalog.transaction() as conn:
        raise_numbers(conn, now_ts=START + 100)
    rows = list_lanes(catalog, T, FEED)
    assert [(row.checkpoint_ts, row.record, row.record_ts) for row in rows] == [(START + 4, "", 0)] * 2
    assert {row.catch_up_ts for row in rows} == {START + 100}


def test_a_new_owner_waits_until_the_one_before_can_no_longer_write(catalog: Catalog) -> None:
    low, high = give(catalog, "a")
    assert low.lane.is_free, "there was no owner before"
    lanes.attempt_stretch(catalog, low.lane, START + 7, "record")
    again, other = give(catalog, "b")
    assert not again.lane.is_free
    assert 0 < again.lane.writable_in_ms <= LANE_LEASE_MS
    assert (again.lane.catch_up_ts, again.lane.record, again.lane.record_ts) == (START + 7, "record", START + 7)
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
        run = LaneRun(services, clock, job, never_opened, never_opened, random.Random(1))
        assert run.seen(job, asked_s, clock.monotonic())
        return run

    before: list[LaneRun] = []
    real = record_assignments

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
    assert [lane.catch_up_ts for lane in found] == [START + 9, START + 20, START + 20]
    assert all(lane.owner is None and not lane.is_free for lane in found)
    with pytest.raises(Fenced):
        finish(catalog, high, START + 20)
    assert covers([lane.scope.range for lane in found if isinstance(lane.scope, KeyScope)], KeyRange())
    assert not covers([KeyRange(b"", b"c"), KeyRange(b"d", b"")], KeyRange())
    assert not covers([KeyRange(b"", b"d"), KeyRange(b"c", b"")], KeyRange())


def test_dead_letters_are_counted_with_the_checkpoint_and_outlive_the_lanes(catalog: Catalog) -> None:
    low, high = give(catalog, "a")
    lanes.finish_stretch(catalog, low.lane, START + 9, rows=1, size=1, letters=2)
    lanes.finish_stretch(catalog, high.lane, START + 5, rows=1, size=1, letters=3)
    assert CHANGEFEEDS.get(catalog, T, FEED).dead_letters == 5
    lanes.replace_lanes(catalog, T, FEED, [KeyScope(range=KeyRange())])
    with pytest.raises(Fenced):
        lanes.finish_stretch(catalog, low.lane, START + 10, rows=1, size=1, letters=4)
    assert CHANGEFEEDS.get(catalog, T, FEED).dead_letters == 5


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
    assert (stopped.attempted_ts, stopped.catch_up_ts) == (START + 9, START + 9), "the key may have been written"
    assert (stopped.record, stopped.record_ts) == ("files", START + 9)
    assert stopped.error is not None
    assert stopped.error["commit_ts"] == str(START + 3)
    finish(catalog, low, START + 20)
    finish(catalog, high, START + 20)
    assert CHANGEFEEDS.get(catalog, T, FEED).checkpoint_ts == START, "it waits for the stopped key"
    lanes.rescope(catalog, stopped, parse_scope(stopped.scope.text()))
    assert not list_lanes(catalog, T, FEED)[2].is_stopped
    with pytest.raises(Fenced):
        lanes.rescope(catalog, stopped, stopped.scope)


def test_paused_failed_and_finished_changefeeds_are_not_written(catalog: Catalog) -> None:
    low, high = give(catalog, "a")
    CHANGEFEEDS.switch(catalog, T, FEED, ReaderState.STOPPED)
    assert owned(catalog, "a") == []
    assert lane_places(catalog) == [], "nor do they count where lanes are shared out"
    resume_changefeed(catalog, T, FEED)
    assert len(lane_places(catalog)) == 2
    fail_changefeed(catalog, low.lane, {"code": "TS-1005", "message": "gone"})
    failed = CHANGEFEEDS.get(catalog, T, FEED)
    assert (failed.state, failed.holds_log, failed.error) == (
        ReaderState.FAILED, True, {"code": "TS-1005", "message": "gone"},
    )  # fmt: skip
    assert lane_places(catalog) == []
    resume_changefeed(catalog, T, FEED, to_ts=START + 1)
    assert [lane.checkpoint_ts for lane in list_lanes(catalog, T, FEED)] == [START + 1] * 2
    with pytest.raises(Fenced):
        finish(catalog, high, START + 4)
    assert remove_changefeed(catalog, T, FEED)
    assert list_lanes(catalog, T) == []
    assert lane_places(catalog) == []
    create(catalog, target_ts=EDGE)
    for job in (jobs := give(catalog, "a")):
        assert not end_changefeed(catalog, job.lane), "some lane is below the target"
        finish(catalog, job, EDGE)
    assert CHANGEFEEDS.get(catalog, T, FEED).state is ReaderState.NORMAL, "its destination has to know first"
    assert end_changefeed(catalog, jobs[0].lane)
    assert CHANGEFEEDS.get(catalog, T, FEED).state is ReaderState.FINISHED
    assert lane_places(catalog) == []
    with pytest.raises(StateForbids):
        resume_changefeed(catalog, T, FEED)


def test_no_checkpoint_lies_in_the_future(catalog: Catalog) -> None:
    """Nothing would be read until that time has come, and the lag would show as none. A backup of now is accepted,
    although the watermark is not there yet."""
    now_ts = tso.compose(SystemClock().unix_ms())
    ahead = tso.compose(SystemClock().unix_ms() + 2 * CLOCK_SKEW_MAX_MS)
    CHANGEFEEDS.switch(catalog, T, FEED, ReaderState.STOPPED)
    for late_ts in (ahead, EDGE * 10):
        with pytest.raises(TsOutOfRange):
            resume_changefeed(catalog, T, FEED, to_ts=late_ts)
        with pytest.raises(TsOutOfRange):
            add_consumer(catalog, T, "reader", late_ts)
        with pytest.raises(TsOutOfRange):
            create_changefeed(
                catalog, T, "other", late_ts, sink_uri="tikv://pd:2379", options="{}", filters="{}", scopes=[LOW],
                target_ts=0, hold_ms=1,
            )  # fmt: skip
    before = CHANGEFEEDS.get(catalog, T, FEED)
    assert (before.state, before.checkpoint_ts) == (ReaderState.STOPPED, START)
    assert [row.name for row in CHANGEFEEDS.of_tenant(catalog, T)] == [FEED]
    resume_changefeed(catalog, T, FEED, to_ts=now_ts)
    assert CHANGEFEEDS.get(catalog, T, FEED).checkpoint_ts == now_ts


def test_a_decision_names_its_change_and_is_safe_to_repeat(catalog: Catalog) -> None:
    """Also of a long key. What was left out stays left out when the lanes are cut anew."""
    low = give(catalog, "a")[0]
    long = b"a" * 9000
    key = change_key(long)
    rest, alone = low.lane.scope.isolate(long.hex())
    refused = {"code": "TS-1101", "key": key, "item": key, "message": "m" * 99_999, "commit_ts": str(START + 3)}
    lanes.isolate(catalog, low.lane, rest, alone, refused)
    with pytest.raises(StateForbids, match="another change"):
        decide_refusal(catalog, T, FEED, 2, leave_out=True, change=(key, START + 2))
    for _ in range(2):
        decide_refusal(catalog, T, FEED, 2, leave_out=True, change=(key, START + 3))
    stopped = list_lanes(catalog, T, FEED)[2]
    assert (stopped.is_stopped, stopped.scope.skipped) == (False, ((key, START + 3),))
    lanes.replace_lanes(catalog, T, FEED, [LOW, HIGH])
    assert [lane.scope.skipped for lane in list_lanes(catalog, T, FEED)] == [((key, START + 3),)] * 2


def test_a_lane_leaves_out_so_many_changes_and_forgets_those_that_it_has_passed() -> None:
    scope: LaneScope = LOW
    for number in range(29):
        scope = skip(scope, change_key(b"%0999d" % number), 100 + number, 0)
    assert TEXT_MAX - 2100 < len(scope.text()) <= TEXT_MAX
    with pytest.raises(StateForbids, match="no place for more"):
        skip(scope, change_key(b"k" * 1000), 999, 0)
    passed_ts = 100 + len(scope.skipped) - 5
    assert [ts for _, ts in skip(scope, "7a" * 1000, 999, passed_ts).skipped] == [
        passed_ts + n for n in range(1, 5)
    ] + [999]
    with pytest.raises(StateForbids):
        with_skipped(LOW, [scope, skip(LOW, change_key(b"k" * 1000), 999, 0)], 0)


def test_only_so_many_keys_of_a_lane_get_lanes_of_their_own() -> None:
    scope: KeyScope = LOW
    for number in range(ISOLATED_MAX):
        scope, _ = scope.isolate((b"k%d" % number).hex())
        assert may_isolate(scope)
    assert not may_isolate(scope.isolate(b"l".hex())[0])
    assert not may_isolate(LOW.isolate((b"k" * 20_000).hex())[0]), "the catalog has no place for it"


@pytest.mark.parametrize("cut", ["isolated", "replaced"])
def test_a_resume_and_new_lanes_lock_in_one_order(catalog: Catalog, monkeypatch: pytest.MonkeyPatch, cut: str) -> None:
    """Else each waits for what the other one has, and MariaDB fails one of them."""
    location = orjson.dumps(
        {"location": {"cluster_id": 1, "keyspace_id": None, "range": ["", ""]}, "keys": {}}
    ).decode()
    create_changefeed(
        catalog, T, "placed", START, sink_uri="tikv://pd:2379", options=location, filters="{}", scopes=[LOW, HIGH],
        target_ts=0, hold_ms=1,
    )  # fmt: skip
    low = next(job for job in give(catalog, "a") if job.lane.changefeed_id == "placed")
    rest, alone = low.lane.scope.isolate(b"a".hex())
    both = threading.Barrier(2)

    def meeting(real: Callable[..., Any]) -> Callable[..., Any]:
        def meet(*args: Any) -> Any:
            with suppress(threading.BrokenBarrierError):  # the other one waits for a lock
                both.wait(0.5)
            return real(*args)

        return meet

    monkeypatch.setattr(lanes, "next_numbers", meeting(next_numbers))  # the lanes are locked, or nothing yet
    monkeypatch.setattr(changefeeds, "retry_lanes", meeting(lanes.retry_lanes))  # the counter is locked

    def act(number: int) -> None:
        if number == 0:
            resume_changefeed(catalog, T, "placed")
        elif cut == "isolated":
            lanes.isolate(catalog, low.lane, rest, alone, {"code": "TS-1101", "message": "no"})
        else:
            lanes.replace_lanes(catalog, T, "placed", [LOW, HIGH])

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(act, range(2)))
