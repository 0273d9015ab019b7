"""The opened roots of a process: one request a minute, none when idle, nothing after the minute."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
import structlog

from tests.kit.manual_clock import ManualClock
from tistream.errors import CatalogUnavailable, CorruptObject, TiStreamError
from tistream.ids import Tenant
from tistream.sealing.keyring import Keyring
from tistream.sealing.kms.protocol import Answer, KeyRefused, KmsUnavailable

MINE, OTHER = Tenant(1, 1), Tenant(1, 2)


class Asked:
    """A KMS whose answers a test sets; `asked` counts the requests."""

    def __init__(self) -> None:
        self.error: TiStreamError | None = None
        self.asked: Counter[tuple[Tenant, int]] = Counter()
        self.refuses: Tenant | None = None

    def __call__(self, tenant: Tenant, root_no: int) -> Answer:
        self.asked[tenant, root_no] += 1
        if self.refuses == tenant:
            raise KeyRefused("the KMS refuses the key: DisabledException", kms_code="DisabledException")
        if self.error is not None:
            raise self.error
        return Answer(root=root_of(tenant, root_no), wrapped=b"w", request_id="r-1")


def root_of(tenant: Tenant, root_no: int) -> bytes:
    return bytes([tenant.tenant_id, root_no]) * 16


@pytest.fixture
def kms() -> Asked:
    return Asked()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def keyring(kms: Asked, clock: ManualClock) -> Keyring:
    return Keyring(kms, clock)


def test_an_hour_of_use_is_one_request_each_45_seconds(keyring: Keyring, kms: Asked, clock: ManualClock) -> None:
    for _ in range(3600):
        assert keyring.root(MINE, 1) == root_of(MINE, 1)
        keyring.refresh()
        clock.advance(1)
    assert kms.asked == {(MINE, 1): 80}


def test_an_idle_tenant_costs_nothing(keyring: Keyring, kms: Asked, clock: ManualClock) -> None:
    keyring.root(MINE, 1)
    for _ in range(600):
        clock.advance(1)
        keyring.refresh()
    assert kms.asked == {(MINE, 1): 1}


def test_a_refusal_ends_the_root_within_the_minute_and_a_grant_brings_it_back(
    keyring: Keyring, kms: Asked, clock: ManualClock
) -> None:
    keyring.root(MINE, 1)
    kms.refuses = MINE
    opened = []
    for second in range(200):
        try:
            keyring.root(MINE, 1)
            opened.append(second)
        except KeyRefused as e:
            assert e.facts["kms_code"] == "DisabledException"  # noqa: PT017 - not every second has it
        assert keyring.root(OTHER, 1) == root_of(OTHER, 1)
        clock.advance(1)
        keyring.refresh()
    assert opened == list(range(45))  # the refresh is refused, and nothing is opened from then on
    assert {t: r.since_s for t, r in keyring.refused().items()} == {MINE: 45.0}
    assert kms.asked[MINE, 1] < 20
    kms.refuses = None
    for _ in range(16):
        clock.advance(1)
        keyring.refresh()
    assert keyring.refused() == {}
    assert keyring.root(MINE, 1) == root_of(MINE, 1)


def test_without_the_background_thread_a_root_ends_all_the_same(
    keyring: Keyring, kms: Asked, clock: ManualClock
) -> None:
    keyring.root(MINE, 1)
    kms.refuses = MINE
    clock.advance(59.9)
    assert keyring.root(MINE, 1) == root_of(MINE, 1)
    clock.advance(0.1)
    with pytest.raises(KeyRefused):
        keyring.root(MINE, 1)


@pytest.mark.parametrize("error", [KmsUnavailable("slow"), CatalogUnavailable(determinate=True, cause="away")])
def test_a_kms_that_is_away_is_not_asked_by_every_caller(
    keyring: Keyring, kms: Asked, clock: ManualClock, error: TiStreamError
) -> None:
    keyring.root(MINE, 1)
    kms.error = error
    clock.advance(60)
    for _ in range(500):
        with pytest.raises((KmsUnavailable, type(error))):
            keyring.root(MINE, 1)
    assert kms.asked[MINE, 1] == 2
    assert keyring.refused() == {}
    clock.advance(1)
    kms.error = None
    assert keyring.root(MINE, 1) == root_of(MINE, 1)


def test_callers_wait_for_one_request(clock: ManualClock) -> None:
    inside, asked = threading.Event(), Counter[str]()

    def unwrap(tenant: Tenant, root_no: int) -> Answer:
        asked["requests"] += 1
        inside.wait(20)
        return Answer(root=root_of(tenant, root_no), wrapped=b"w", request_id="")

    keyring = Keyring(unwrap, clock)
    with ThreadPoolExecutor(16) as pool:
        roots = [pool.submit(keyring.root, MINE, 1) for _ in range(16)]
        inside.set()
        assert {root.result(20) for root in roots} == {root_of(MINE, 1)}
    assert asked["requests"] == 1


def test_callers_that_wait_get_the_refusal(clock: ManualClock) -> None:
    inside = threading.Event()

    def unwrap(tenant: Tenant, root_no: int) -> Answer:
        inside.wait(20)
        raise KeyRefused("no")

    keyring = Keyring(unwrap, clock)
    with ThreadPoolExecutor(8) as pool:
        roots = [pool.submit(keyring.root, MINE, 1) for _ in range(8)]
        inside.set()
        assert {type(root.exception(20)) for root in roots} == {KeyRefused}


def test_a_tenant_is_forgotten_at_once(keyring: Keyring, kms: Asked) -> None:
    """As when another process was refused."""
    for tenant in (MINE, OTHER):
        keyring.root(tenant, 1)
    kms.refuses = MINE
    keyring.forget(MINE)
    with pytest.raises(KeyRefused):
        keyring.root(MINE, 1)
    assert keyring.root(OTHER, 1) == root_of(OTHER, 1)
    assert kms.asked[OTHER, 1] == 1


def test_a_request_that_began_before_the_tenant_was_forgotten_opens_nothing(clock: ManualClock) -> None:
    asked = Counter[str]()

    def unwrap(tenant: Tenant, root_no: int) -> Answer:
        asked["requests"] += 1
        if asked["requests"] == 1:
            roots.forget(tenant)  # another thread, while the KMS answers
            return Answer(root=bytes(32), wrapped=b"w", request_id="")
        raise KeyRefused("no")

    roots = Keyring(unwrap, clock)
    with pytest.raises(KeyRefused):
        roots.root(MINE, 1)
    assert asked["requests"] == 2


def test_a_kms_that_is_slow_takes_nothing_from_the_minute_of_others(clock: ManualClock) -> None:
    asked_s: list[float] = []

    def unwrap(tenant: Tenant, root_no: int) -> Answer:
        if tenant == OTHER:
            asked_s.append(clock.monotonic())
        elif clock.monotonic() > 0:
            clock.advance(14)
            raise KmsUnavailable("slow")
        return Answer(root=root_of(tenant, root_no), wrapped=b"w", request_id="")

    keyring = Keyring(unwrap, clock)
    for tenant in (MINE, OTHER):
        keyring.root(tenant, 1)
    clock.advance(45)
    for tenant in (MINE, OTHER):
        keyring.root(tenant, 1)
    keyring.refresh()
    assert asked_s == [0, 59]
    clock.advance(59)
    keyring.root(OTHER, 1)
    assert asked_s == [0, 59]  # its minute began with its own request


def test_a_defect_with_one_root_leaves_others_to_be_asked_for(clock: ManualClock) -> None:
    asked: Counter[Tenant] = Counter()

    def unwrap(tenant: Tenant, root_no: int) -> Answer:
        asked[tenant] += 1
        if tenant == MINE and asked[tenant] > 1:
            raise RuntimeError("a defect")
        return Answer(root=root_of(tenant, root_no), wrapped=b"w", request_id="")

    keyring = Keyring(unwrap, clock)
    for tenant in (MINE, OTHER):
        keyring.root(tenant, 1)
    clock.advance(45)
    for tenant in (MINE, OTHER):
        keyring.root(tenant, 1)
    with pytest.raises(RuntimeError):
        keyring.refresh()
    keyring.refresh()
    assert asked == {MINE: 2, OTHER: 2}


def test_a_damaged_wrap_is_damage_for_every_caller(keyring: Keyring, kms: Asked) -> None:
    kms.error = CorruptObject("a wrapped root is damaged", object="keys/cluster-1/tenant-1/000001.json")
    for _ in range(3):
        with pytest.raises(CorruptObject, match=r"000001\.json"):
            keyring.root(MINE, 1)
    assert kms.asked[MINE, 1] == 1
    assert keyring.refused() == {}


def test_a_defect_in_asking_is_no_hang(clock: ManualClock) -> None:
    def unwrap(tenant: Tenant, root_no: int) -> Answer:
        raise RuntimeError("a defect")

    keyring = Keyring(unwrap, clock)
    with pytest.raises(RuntimeError):
        keyring.root(MINE, 1)
    with pytest.raises(KmsUnavailable, match="defect"):
        keyring.root(MINE, 1)


def test_no_root_is_in_what_is_logged_or_shown(keyring: Keyring, kms: Asked) -> None:
    with structlog.testing.capture_logs() as logs:
        root = keyring.root(MINE, 1)
        kms.refuses = OTHER
        with pytest.raises(KeyRefused) as error:
            keyring.root(OTHER, 1)
    answer = Answer(root=root, wrapped=b"w", request_id="")
    said = f"{logs} {answer!r} {keyring.refused()!r} {list(keyring._entries.values())!r} {error.value!r}"
    assert repr(root)[2:-1] not in said
    assert root.hex() not in said
    assert [line["event"] for line in logs] == ["root opened", "root not opened"]
