"""Detection of a newer incarnation, and how often it is checked."""

from __future__ import annotations

import pytest

from pusher.control import ControlUnavailable
from pusher.replaced import ReplacedCheck
from tests.kit.manual_clock import ManualClock
from tests.kit.memory_control import MemoryControl
from tistream.errors import Fenced, NotFound
from tistream.ids import Tenant
from tistream.limits import INCARNATION_CHECK_MS

STORE = 7
EVERY_S = INCARNATION_CHECK_MS / 1000


class Rig:
    def __init__(self) -> None:
        self.clock, self.control = ManualClock(), MemoryControl(Tenant(1, 1))
        self.check = ReplacedCheck(self.control, self.clock, STORE).check
        self.mine = self.control.issue_incarnation(STORE).incarnation
        self.control.requests = 0


@pytest.fixture
def rig() -> Rig:
    return Rig()


def test_the_newest_incarnation_continues_and_checks_periodically(rig: Rig) -> None:
    for _ in range(10):
        rig.check(rig.mine)
        rig.clock.advance(EVERY_S / 4)
    assert rig.control.requests == 3


def test_an_older_incarnation_is_fenced_at_its_next_check(rig: Rig) -> None:
    rig.check(rig.mine)
    newer = rig.control.issue_incarnation(STORE).incarnation
    rig.check(rig.mine)
    rig.clock.advance(EVERY_S)
    with pytest.raises(Fenced) as caught:
        rig.check(rig.mine)
    assert caught.value.facts == {"store": STORE, "incarnation": rig.mine, "newest": newer}
    assert "stop one" in caught.value.hint
    rig.clock.advance(EVERY_S)
    rig.check(newer)


def test_an_incarnation_unknown_to_the_catalog_is_fenced(rig: Rig) -> None:
    rig.control.incarnations[STORE] = rig.mine - 1  # it was restored to an earlier state
    with pytest.raises(Fenced):
        rig.check(rig.mine)


def test_during_an_outage_the_pusher_continues_and_backs_off(rig: Rig) -> None:
    rig.control.issue_incarnation(STORE)
    rig.control.requests, rig.control.away = 0, True
    for _ in range(4):
        rig.check(rig.mine)
    assert rig.control.requests == 1
    rig.control.away = False
    rig.clock.advance(1.0)
    with pytest.raises(Fenced):
        rig.check(rig.mine)


def test_a_control_plane_that_hangs_costs_a_tenth_of_the_time() -> None:
    clock, asked_at = ManualClock(), []

    class Hangs:
        def newest_incarnation(self, store_id: int) -> int:
            asked_at.append(clock.monotonic())
            clock.advance(5.0)
            raise ControlUnavailable

    check = ReplacedCheck(Hangs(), clock, STORE).check
    for _ in range(100):
        check(1)
        clock.advance(1.0)
    assert asked_at == [0.0, 50.0, 100.0]


def test_final_errors_are_raised() -> None:
    class Gone:
        def newest_incarnation(self, store_id: int) -> int:
            raise NotFound("no such tenant")

    with pytest.raises(NotFound):
        ReplacedCheck(Gone(), ManualClock(), STORE).check(1)
