"""The decisions about a lane: its lease, its stretches, failures, and the statements at which lanes meet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from replicator.core.lane import LATE_S, Attempt, Barriers, Finish, Keep, LaneCore, Read, Stop, Wait
from replicator.stretch import concerns
from tistream.catalog.work.core.lane_scope import TableScope
from tistream.errors import TiStreamError

LEASE_S = 6.0


def core(**more: object) -> LaneCore:
    lane = LaneCore(**{"checkpoint_ts": 10, "record": "", "record_ts": 0, "target_ts": 0, "lease_s": LEASE_S, **more})  # type: ignore[arg-type]
    lane.confirmed(0.0)
    lane.owned(0.0, is_free=True)
    return lane


def test_a_stretch_is_recorded_written_and_then_finished() -> None:
    lane = core()
    assert lane.next(25, 1.0) == Read(after=10, upto=25, exact=False, record="")
    assert lane.planned(20, "files", is_empty=False) == Attempt(upto=20, record="files")
    lane.attempted()
    assert lane.checkpoint_ts == 10
    assert lane.written() == Finish(upto=20)
    lane.finished(20)
    assert lane.next(25, 1.0) == Read(after=20, upto=25, exact=False, record="")
    assert lane.planned(25, "", is_empty=True) == Finish(upto=25), "nothing to write"


def test_what_was_recorded_is_tried_again_as_it_was() -> None:
    lane = core()
    lane.next(25, 1.0)
    lane.planned(20, "files", is_empty=False)
    lane.attempted()
    pause_s = lane.failed(1.0, 0.5)
    assert lane.next(99, 1.0) == Wait(seconds=pause_s)
    assert lane.next(99, 1.0 + pause_s) == Read(after=10, upto=20, exact=True, record="files")
    assert core(record="files", record_ts=20).next(99, 1.0) == Read(after=10, upto=20, exact=True, record="files")
    assert core(record="", record_ts=20).next(99, 1.0) == Read(after=10, upto=20, exact=True, record="")
    pauses = [lane.failed(1.0, 0.0) for _ in range(12)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == 15.0


def test_the_second_stretch_waits_for_the_first() -> None:
    lane = core()
    lane.planned(20, "", is_empty=False)
    with pytest.raises(TiStreamError, match="one stretch at a time"):
        lane.planned(30, "", is_empty=False)


def test_an_owner_writes_only_while_no_other_can() -> None:
    lane = core()
    assert lane.allowed_s(1.0) == LEASE_S - LATE_S - 1.0
    assert lane.allowed_s(LEASE_S) < 0
    assert isinstance(lane.next(99, LEASE_S), Wait)
    lane.confirmed(4.0)
    assert lane.allowed_s(LEASE_S) == 4.0 - LATE_S
    late = LaneCore(checkpoint_ts=10, record="", record_ts=0, target_ts=0, lease_s=LEASE_S)
    assert late.allowed_s(0.0) <= 0, "before the catalog was asked"
    late.confirmed(0.0)
    late.owned(3.0, is_free=False)
    assert late.waits(3.0 + LEASE_S - 0.1), (
        "it counts from the catalog's answer, which may come long after the question"
    )
    late.confirmed(8.9)
    late.owned(8.9, is_free=False)
    assert late.allowed_s(8.9) == 0.0
    assert isinstance(late.next(99, 8.9), Wait)
    assert late.allowed_s(3.0 + LEASE_S) > 0, "the first answer counts"
    given = LaneCore(checkpoint_ts=10, record="", record_ts=0, target_ts=0, lease_s=LEASE_S)
    given.confirmed(0.0)
    given.owned(0.0, is_free=False)
    given.owned(1.0, is_free=True)
    assert given.allowed_s(1.0) > 0, "the owner before has given it up"


def test_a_lane_ends_at_its_target() -> None:
    lane = core(target_ts=15)
    assert lane.next(99, 1.0) == Read(after=10, upto=15, exact=False, record="")
    lane.planned(15, "", is_empty=True)
    lane.finished(15)
    assert lane.is_finished
    assert isinstance(lane.next(99, 1.0), Wait)


@given(
    st.lists(st.integers(2, 40), unique=True, max_size=5).map(sorted),
    st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), max_size=300),
)
def test_lanes_meet_at_each_statement(ddl: list[int], turns: list[tuple[int, int]]) -> None:
    """Whatever the order of turns: below a statement until all are there, at it until all have passed it."""
    lanes = [core(checkpoint_ts=0) for _ in range(3)]
    for number, most in [*turns, *((n, 50) for _ in range(4 * len(ddl) + 4) for n in range(3))]:
        lane = lanes[number]
        others = min(other.checkpoint_ts for other in lanes if other is not lane)
        ahead = [ts for ts in ddl if ts >= lane.checkpoint_ts]
        step = lane.next(50, 1.0, Barriers(ddl=ahead, others_ts=others))
        if isinstance(step, Wait):
            continue
        upto = min(step.upto, step.after + most)
        lane.planned(upto, "", is_empty=True)
        lane.finished(upto)
        places = [other.checkpoint_ts for other in lanes]
        for ts in ddl:
            assert not (max(places) >= ts > min(places) + 1), (places, ts)
            assert not (max(places) > ts > min(places)), (places, ts)
    assert all(lane.checkpoint_ts == 50 for lane in lanes)


def test_refused_changes_have_their_letters_before_the_checkpoint_moves() -> None:
    lane = core(keeps_letters=True)
    lane.planned(20, "", is_empty=False)
    lane.attempted()
    assert lane.refused(2) == Keep(count=2)
    assert lane.planned(20, "", is_empty=False) == Attempt(upto=20, record=""), "the rest is planned anew"
    lane.attempted()
    lane.kept(1)
    with pytest.raises(TiStreamError, match="has its dead letter"):
        lane.written()
    lane.kept(1)
    assert lane.written() == Finish(upto=20, letters=2)
    lane.finished(20)
    assert lane.planned(30, "", is_empty=True) == Finish(upto=30), "those of the stretch before are counted once"
    with pytest.raises(TiStreamError, match="of a refused change"):
        lane.kept(1)


def test_a_stretch_of_nothing_but_letters_is_attempted() -> None:
    lane = core(keeps_letters=True)
    assert lane.refused(3) == Keep(count=3)
    lane.kept(3)
    assert lane.planned(20, "", is_empty=True) == Attempt(upto=20, record=""), "the attempt is what guards the count"
    lane.attempted()
    assert lane.written() == Finish(upto=20, letters=3)


def test_a_failed_try_forgets_its_letters() -> None:
    """The next one finds the same changes refused."""
    lane = core(keeps_letters=True)
    lane.refused(2)
    lane.kept(1)
    lane.failed(1.0, 0.0)
    lane.planned(20, "", is_empty=False)
    assert lane.written() == Finish(upto=20)


def test_an_operator_decides_without_letters_and_about_what_is_not_named() -> None:
    assert core().refused(1) == Stop()
    assert core(keeps_letters=True).refused(0) == Stop()


def test_a_statement_waits_for_a_stopped_lane_of_its_table() -> None:
    """And for no other stopped lane."""
    lane = core(checkpoint_ts=10)
    free = Barriers(ddl=[20, 30], others_ts=29, held={30: 12})
    assert lane.next(50, 1.0, free) == Read(after=10, upto=19, exact=False, record="")
    lane.planned(29, "", is_empty=True)
    lane.finished(29)
    assert isinstance(lane.next(50, 1.0, free), Wait), "the stopped lane is at 12"
    assert lane.next(50, 1.0, Barriers(ddl=[30], others_ts=29)) == Read(after=29, upto=30, exact=False, record="")
    of_table, share = TableScope(only="db.t"), TableScope(number=0, of=1, without=("db.t",))
    statements: tuple[set[str], ...] = ({"db.t", "db.u"}, {"db.u", "db.v"}, {"db", "db.*"}, {"x", "x.*"})
    assert [concerns(of_table, names) for names in statements] == [True, False, True, False]
    assert not concerns(share, {"db.t"})
    assert concerns(share, {"db.t", "db.u"})
