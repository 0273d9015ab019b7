"""GC barriers: what they protect and until when."""

from __future__ import annotations

import pytest

from pusher.frontier import FrontierEntry
from pusher.tikv.history import GcBarrier, HeldFrontier
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_control import MemoryControl
from tistream import ts
from tistream.errors import StoreUnavailable, TsExpired
from tistream.ids import Tenant
from tistream.keyrange import KeyRange

T0 = ts.compose(1_700_000_000_000)
HOUR = ts.compose(3_600_000)
CAP_S = 24 * 3600


class Pd:
    """Holds with their ends, and garbage collection."""

    def __init__(self) -> None:
        self.now = T0
        self.kept_from = 0
        self.holds: dict[str, tuple[int, int]] = {}
        self.away = False
        self.newest_tso = 0

    def tso(self) -> int:
        if self.away:
            raise StoreUnavailable("PD does not answer")
        self.newest_tso = self.now
        return self.now

    def hold_history(self, name: str, ts: int, ttl_s: int) -> None:
        if ts < self.kept_from:
            raise TsExpired("PD has collected history above the timestamp")
        self.holds[name] = (ts, ttl_s)

    def release_history(self, name: str) -> None:
        if self.away:
            raise StoreUnavailable("PD does not answer")
        self.holds.pop(name, None)


def control_at(durable_ts: int) -> MemoryControl:
    entry = FrontierEntry(range=KeyRange(), durable_ts=durable_ts, resubscribe_id=0)
    return MemoryControl(Tenant(1, 1), [entry])


@pytest.fixture
def pd() -> Pd:
    return Pd()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def barrier(pd: Pd, clock: ManualClock) -> GcBarrier:
    return GcBarrier(pd, "me", clock=clock)


def test_a_hold_ends_when_its_history_reaches_the_cap(pd: Pd, barrier: GcBarrier) -> None:
    barrier.renew(T0 - 5 * HOUR)
    assert pd.holds == {"me": (T0 - 5 * HOUR, 19 * 3600)}
    assert barrier.held_ts == T0 - 5 * HOUR
    assert barrier.covers(T0 - 5 * HOUR)
    assert barrier.covers(T0)
    assert not barrier.covers(T0 - 5 * HOUR - 1)


def test_it_counts_as_over_before_pd_ends_it(pd: Pd, barrier: GcBarrier, clock: ManualClock) -> None:
    barrier.renew(T0 - 23 * HOUR)
    clock.advance(3500.0)
    assert barrier.covers(T0)
    clock.advance(80.0)
    assert pd.holds["me"][1] == 3600
    assert (barrier.covers(T0), barrier.held_ts) == (False, 0)


def test_beyond_the_cap_nothing_is_held_and_a_problem_is_reported(pd: Pd, barrier: GcBarrier) -> None:
    barrier.renew(T0)
    pd.now += 25 * HOUR
    barrier.renew(T0)
    assert pd.holds["me"] == (T0, CAP_S)  # which ended by itself an hour ago
    assert not barrier.covers(T0)
    assert "1 d 1 h behind" in barrier.problem
    barrier.renew(T0 + 24 * HOUR)
    assert barrier.covers(T0 + 24 * HOUR)
    assert not barrier.problem


def test_collected_history_is_an_error_with_a_hint(pd: Pd, barrier: GcBarrier) -> None:
    barrier.renew(T0)
    pd.kept_from = T0 + 1
    with pytest.raises(TsExpired) as e:
        barrier.renew(T0)
    assert "tistream tenant reseed" in e.value.hint
    assert not barrier.covers(T0)


def test_without_pd_the_old_hold_is_valid_until_its_end(pd: Pd, barrier: GcBarrier, clock: ManualClock) -> None:
    barrier.renew(T0)
    pd.away = True
    with pytest.raises(StoreUnavailable):
        barrier.renew(T0 + HOUR)
    assert barrier.held_ts == T0
    barrier.release()  # PD is unavailable, which is no error: the barrier expires
    assert barrier.held_ts == 0


def test_a_frontier_that_is_not_held_is_hidden(pd: Pd, barrier: GcBarrier, clock: ManualClock) -> None:
    control = control_at(T0 - HOUR)
    frontier = HeldFrontier(control, clock, barrier)
    assert frontier.read() == ()
    assert frontier.lowest == T0 - HOUR
    barrier.renew(T0 - HOUR)
    assert [e.durable_ts for e in frontier.read()] == [T0 - HOUR]
    barrier.renew(T0)  # too high: a pusher still uses the old frontier
    assert frontier.read() == ()
    control.entries = control_at(T0).entries
    clock.advance(1.0)
    assert [e.durable_ts for e in frontier.read()] == [T0]


def test_a_machine_that_was_suspended_does_not_trust_its_own_clock(pd: Pd, barrier: GcBarrier) -> None:
    """While it sleeps its monotonic clock stops, and PD's does not."""
    frontier = HeldFrontier(control_at(T0 - 5000), ManualClock(), barrier)
    barrier.renew(T0 - 5000)
    assert frontier.read()
    pd.now += 26 * HOUR
    pd.tso()  # as before each registration
    assert not barrier.covers(T0)
    assert frontier.read() == ()


def test_nothing_is_held_or_registered_in_the_future(pd: Pd, barrier: GcBarrier, clock: ManualClock) -> None:
    with pytest.raises(StoreUnavailable, match="above PD"):
        barrier.renew(T0 + HOUR)
    barrier.renew(T0 - HOUR)
    frontier = HeldFrontier(control_at(T0 + HOUR), clock, barrier)
    assert frontier.read() == ()
    assert "future" in str(frontier.error)


def test_history_is_held_again_once_the_frontier_passes_the_collected_part(pd: Pd, barrier: GcBarrier) -> None:
    """The service was away for longer than the cap, and reads what lies in the bucket since."""
    barrier.renew(T0)
    pd.now += 25 * HOUR
    barrier.renew(T0)
    pd.kept_from = T0 + 24 * HOUR
    with pytest.raises(TsExpired):
        barrier.renew(T0 + 2 * HOUR)
    assert "GC has collected" in barrier.problem
    barrier.renew(T0 + 25 * HOUR - 1)
    assert barrier.covers(T0 + 25 * HOUR)
    assert not barrier.problem
