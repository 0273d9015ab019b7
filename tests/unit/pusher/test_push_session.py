"""Renewal of session credentials, on a manual clock."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from pusher.control import ControlUnavailable, PushCredentials
from pusher.push_session import MARGIN_S, NEW_S, TRY_AGAIN_S, CredentialState, PushSession, credential_state
from tests.kit.manual_clock import ManualClock
from tistream.errors import InvalidInput, TiStreamError
from tistream.objectstore.session import SessionCredentials

VALID_S = 900.0


class Service:
    """Numbers what it issues."""

    def __init__(self) -> None:
        self.issued, self.error = 0, None

    error: TiStreamError | None

    def fetch(self) -> PushCredentials:
        self.issued += 1
        if self.error is not None:
            raise self.error
        named = SessionCredentials(access_key_id=f"id-{self.issued}", secret_access_key="hush", session_token="hush")
        return PushCredentials(session=named, valid_s=VALID_S, kms_key_arn="")


class World:
    """A session between a service and a clock."""

    def __init__(self) -> None:
        self.service, self.clock = Service(), ManualClock()
        self.session = PushSession(self.service.fetch, self.clock)

    def now(self) -> str:
        return self.session.current().session.access_key_id


@pytest.mark.parametrize(
    ("age_s", "stands"),
    [(0, "good"), (599.9, "good"), (600, "due"), (884.9, "due"), (885, "over"), (900, "over"), (1e9, "over")],
)
def test_good_then_due_then_over(age_s: float, stands: str) -> None:
    assert credential_state(age_s, VALID_S) == CredentialState(stands)
    assert MARGIN_S == 15


def test_due_credentials_are_renewed_and_good_ones_kept() -> None:
    world = World()
    assert [world.now(), world.now()] == ["id-1", "id-1"]
    world.clock.advance(599)
    assert world.now() == "id-1"
    world.clock.advance(1)
    assert [world.now(), world.now()] == ["id-2", "id-2"]


def test_during_an_outage_due_credentials_are_used_and_expired_ones_are_not() -> None:
    world = World()
    world.now()
    world.clock.advance(600)
    world.service.error = ControlUnavailable("away")
    assert [world.now(), world.now()] == ["id-1", "id-1"]
    assert world.service.issued == 2, "not with every put"
    world.clock.advance(TRY_AGAIN_S)
    assert world.now() == "id-1"
    assert world.service.issued == 3
    world.clock.advance(VALID_S - MARGIN_S - 600 - TRY_AGAIN_S)
    with pytest.raises(ControlUnavailable):
        world.now()
    world.service.error = None
    assert world.now() == "id-5"


def test_final_errors_are_raised_at_once() -> None:
    world = World()
    world.now()
    world.clock.advance(600)
    world.service.error = InvalidInput("the key was revoked")
    with pytest.raises(InvalidInput, match="revoked"):
        world.now()


def test_refused_ones_are_replaced_unless_they_are_new() -> None:
    world = World()
    first = world.session.current()
    world.session.refused(first)
    assert world.now() == "id-1"
    world.clock.advance(NEW_S)
    world.session.refused(first)
    assert world.now() == "id-2"
    world.clock.advance(NEW_S)
    world.session.refused(first)  # an upload that began with the old ones
    assert world.now() == "id-2"


def test_while_one_thread_renews_others_use_valid_credentials() -> None:
    world = World()
    world.now()
    begun, answer = threading.Event(), threading.Event()
    fetch = world.service.fetch

    def slow() -> PushCredentials:
        begun.set()
        assert answer.wait(60)
        return fetch()

    session = world.session = PushSession(slow, world.clock)
    with ThreadPoolExecutor(8) as pool:
        first = [pool.submit(session.current) for _ in range(4)]
        answer.set()
        assert {each.result(60).session.access_key_id for each in first} == {"id-2"}, "all wait for the first ones"
        begun.clear()
        answer.clear()
        world.clock.advance(600)
        renewing = pool.submit(session.current)
        assert begun.wait(60)
        assert [world.now() for _ in range(3)] == ["id-2"] * 3
        answer.set()
        assert renewing.result(60).session.access_key_id == "id-3"


def test_repr_shows_no_secret() -> None:
    assert "hush" not in repr(World().session.current())
