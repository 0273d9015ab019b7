"""Who gets rows from a dispatcher's Flight port: tokens, their rotation, certificates, and the owner of a task."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pyarrow.flight as fl
import pytest
import structlog

from dispatcher import flight_server, port_access, task_owners
from dispatcher.flight_server import FlightDispatcher
from dispatcher.tail import TailTiming
from dispatcher.task_owners import TaskOwners
from dispatcher.worker import DispatcherWorker
from simulator.dst.mutants import reworded
from tests.kit.assignments import assign_store
from tests.kit.awaited import Awaited, next_seqs, subscribed
from tests.kit.batch_files import batch_bytes
from tests.kit.catalog_cases import begin, elected, new_catalog
from tests.kit.certificates import certificate
from tests.kit.feed_port import catalog_feed, flight_dispatcher, make_token, owned, request_of
from tests.kit.waiting import eventually
from tistream.catalog.work.service_tokens import ServiceToken, accepted_tokens, rotate_service_token
from tistream.catalog.work.stores import issue_incarnation
from tistream.clock import SystemClock
from tistream.errors import ConfigError, FeedUnavailable, Fenced, ServiceRefused, TiStreamError
from tistream.feed.flight import FlightFeed, locate_by_catalog
from tistream.feed.protocol import FeedRequest, FeedStream
from tistream.feed.tls import FeedTlsFiles
from tistream.feed.wire import FEED_COMMAND, of_flight
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.objectstore.layout import BatchKey
from tistream.objectstore.memory import MemoryStore
from tistream.runtime import metrics
from tistream.runtime.tls import not_after

T, OTHER = Tenant(1, 1), Tenant(1, 2)
BOUND_S = 5.0  #: a replaced owner's stream ends within


class World:
    """A dispatcher with one store; task 1 has all keys of the tenant below "m", task 2 the rest."""

    def __init__(self, path: Path, tls: FeedTlsFiles | None = None) -> None:
        self.catalog = new_catalog(path)
        begin(self.catalog, T, 1, KeyRange(b"a", b"m"), KeyRange(b"m", b"z"))
        begin(self.catalog, OTHER, 1, KeyRange(b"a", b"m"))
        self.epoch = elected(self.catalog)
        for task_id in (1, 2, 3):
            owned(self.catalog, task_id, self.epoch)
        make_token(self.catalog, self.epoch)
        issue_incarnation(self.catalog, T, 7)
        self.store, self.count = MemoryStore(), 0
        timing = TailTiming(poll_s=0.02, retry_s=0.1)
        worker = DispatcherWorker(self.catalog, self.store, SystemClock(), "d1", timing=timing)
        self.dispatcher: FlightDispatcher = flight_dispatcher(self.catalog, worker, tls)
        self.dispatcher.start()
        assert self.dispatcher.wait_until_ready(10)
        assert assign_store(self.catalog, T, 7, worker_id="d1", seen_epoch=0, leader_epoch=self.epoch)
        self.feeds: list[FlightFeed] = []

    def put(self) -> None:
        self.count += 1
        key = BatchKey(tenant=T, store_id=7, incarnation=1, seq=self.count)
        self.store.put(str(key), batch_bytes(key, [(b"a", b"z", [b"b%d" % self.count])]))

    def rotate(self) -> None:
        assert rotate_service_token(self.catalog, rotate_ms=0, leader_epoch=self.epoch) is not None

    def request(self, task_id: int = 1) -> FeedRequest:
        return request_of(self.catalog, task_id, 7)

    def feed(self, bearer: Callable[[], str] | None = None, tls: FeedTlsFiles | None = None) -> FlightFeed:
        new_feed = catalog_feed(self.catalog, tls)
        if bearer is not None:
            new_feed = FlightFeed(locate_by_catalog(self.catalog), bearer, tls=tls)
        self.feeds.append(new_feed)
        return new_feed

    def close(self) -> None:
        for feed in self.feeds:
            feed.close()
        self.dispatcher.stop()
        self.catalog.close()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setattr(flight_server, "LOOK_S", 0.1)
    monkeypatch.setattr(port_access, "REREAD_S", 0.1)
    new_world = World(tmp_path)
    yield new_world
    new_world.close()


def error_of(stream: Awaited[FeedStream]) -> TiStreamError | None:
    """What a subscription answers before its first batch; None when it is served."""
    try:
        for _ in range(600):
            if stream.next(0.1) is not None:
                return None
    except TiStreamError as e:
        return e
    finally:
        stream.close()
    raise AssertionError("neither rows nor an error")


def refused(reason: str) -> float:
    return float(metrics.FEED_REFUSED.labels(reason)._value.get())


def call(world: World, *headers: bytes) -> TiStreamError | None:
    """A Flight call with these authorization headers; the dispatcher's own error."""
    options = fl.FlightCallOptions(headers=[(b"authorization", header) for header in headers])
    with fl.FlightClient(world.dispatcher.address) as client:
        try:
            _, reader = client.do_exchange(fl.FlightDescriptor.for_command(FEED_COMMAND), options)
            reader.read_chunk()
        except fl.FlightError as e:
            return of_flight(e)
        reader.cancel()
    return None


def without_a_valid_token(world: World) -> list[str]:
    """The calls that the port answers although their token is missing, wrong or outdated."""
    tokens = []
    for _ in range(3):
        world.rotate()
        world.dispatcher._tokens.refresh()
        tokens.append(accepted_tokens(world.catalog)[0].secret)
    outdated, before, current = tokens
    assert call(world, b"Bearer " + before.encode()) is None
    assert call(world, b"Bearer " + current.encode()) is None
    headers = {
        "none": (),
        "wrong": (b"Bearer " + b"ab" * 32,),
        "outdated": (b"Bearer " + outdated.encode(),),
        "part": (b"Bearer " + current[:-1].encode(),),
        "another scheme": (b"Basic " + current.encode(),),
        "two": (b"Bearer " + current.encode(), b"Bearer " + before.encode()),
    }
    return [name for name, given in headers.items() if not isinstance(call(world, *given), ServiceRefused)]


def served_to_others(world: World) -> list[str]:
    """The subscriptions that get rows although the task is not theirs."""
    world.put()
    own = world.request()
    owned(world.catalog, 1, world.epoch, "s2")
    theirs = world.request()
    wrong = {
        "a replaced owner": (own, Fenced),
        "the old owner with the new epoch": (replace(own, epoch=theirs.epoch), Fenced),
        "an epoch to come": (replace(theirs, epoch=theirs.epoch + 1), Fenced),
        "a task that does not exist": (replace(theirs, task_id=99), Fenced),
        "a task of another tenant": (replace(theirs, task_id=3), Fenced),
        "the range of another task": (replace(theirs, range=KeyRange(b"m", b"z")), FeedUnavailable),
        "all keys": (replace(theirs, range=KeyRange()), FeedUnavailable),
    }
    feed = world.feed()
    names = [name for name, (wish, error) in wrong.items() if not isinstance(error_of(subscribed(feed, wish)), error)]
    assert error_of(subscribed(feed, theirs)) is None
    return names


def test_a_call_without_a_valid_token_is_refused_counted_and_logged(world: World) -> None:
    before = refused("no_token"), refused("wrong_token")
    with structlog.testing.capture_logs() as logs:
        assert without_a_valid_token(world) == []
    assert (refused("no_token") - before[0], refused("wrong_token") - before[1]) == (3, 3)
    lines = [entry for entry in logs if entry["event"] == "refused a call of the Flight port"]
    assert len(lines) == 6
    secrets = [token.secret for token in accepted_tokens(world.catalog)]
    assert not any(secret[:-1] in str(line) or "ab" * 32 in str(line) for line in lines for secret in secrets)


def test_rows_of_a_task_go_to_its_present_owner_alone(world: World) -> None:
    before = refused("not_owner")
    assert served_to_others(world) == []
    assert refused("not_owner") - before >= 7


def test_a_tenant_admitted_while_the_dispatcher_looks_around_is_not_forgotten(world: World) -> None:
    owners, request = TaskOwners(world.catalog), world.request()
    for _ in range(2):  # the first time it is new, then it is known
        owners.admit(request)
        owners.refresh(())  # listed before the subscription was there
        owners.check(request)
    owners.refresh(())
    with pytest.raises(Fenced):
        owners.check(request)


def test_the_open_stream_of_a_replaced_owner_ends_in_time(world: World) -> None:
    world.put()
    stream = subscribed(world.feed(), world.request())
    assert next_seqs(stream, 1) == [1]
    owned(world.catalog, 1, world.epoch, "s2")
    error = None
    for _ in range(round(BOUND_S / 0.1)):  # turns instead of seconds: a busy machine makes them longer
        try:
            stream.next(0.1)
        except TiStreamError as e:
            error = e
            break
    assert isinstance(error, Fenced)
    world.put()
    assert next_seqs(subscribed(world.feed(), world.request()), 2) == [1, 2]


def test_a_rotation_cuts_no_stream_and_an_outdated_one_continues_where_it_was(world: World) -> None:
    stream = subscribed(world.feed(), world.request())
    opened: list[object] = []
    for _ in range(6):
        world.put()
        assert next_seqs(stream, 1) == [world.count]
        (exchange,) = world.dispatcher._server._exchanges
        opened.append(exchange)
        world.rotate()
        time.sleep(0.3)
    assert opened[0] is opened[1], "a token that was replaced once is still accepted"
    assert len({id(exchange) for exchange in opened}) in (3, 4), "an exchange ends at the second rotation"
    world.put()
    assert next_seqs(stream, 1) == [7]


def test_wrong_tokens_make_the_dispatcher_read_the_catalog_at_a_bounded_rate() -> None:
    reads: list[int] = []

    def read() -> tuple[ServiceToken, ...]:
        reads.append(1)
        return (ServiceToken(number=1, secret="a" * 64),)

    tokens = port_access.AcceptedTokens(read, SystemClock())
    assert [tokens.number("b" * 64) for _ in range(1000)] == [None] * 1000
    assert len(reads) <= 3
    assert tokens.number("a" * 64) == 1


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certificate(tmp_path_factory.mktemp("tls"), "authority")


def files(authority: Path, name: str, *, of: str = "IP:127.0.0.1", peer_name: str = "") -> FeedTlsFiles:
    """A certificate of the authority, for this name."""
    certificate_file = certificate(authority.parent, name, of=of, ca=authority)
    return FeedTlsFiles(certificate_file, certificate_file.with_suffix(".key"), authority, peer_name)


@pytest.fixture
def secured(tmp_path: Path, authority: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """A port with a certificate, for callers whose certificate is of a sorter."""
    monkeypatch.setattr(flight_server, "LOOK_S", 0.1)
    new_world = World(tmp_path, files(authority, "dispatcher", of="IP:127.0.0.1", peer_name="sorter"))
    new_world.put()
    yield new_world
    new_world.close()


def test_both_sides_check_the_certificate_of_the_other(secured: World, authority: Path, tmp_path: Path) -> None:
    assert secured.dispatcher.address.startswith("grpc+tls://")
    good = files(authority, "sorter", of="DNS:sorter")
    assert error_of(subscribed(secured.feed(tls=good), secured.request())) is None
    elsewhere = certificate(tmp_path, "elsewhere", of="DNS:sorter")
    wrong = {
        "no certificate": None,
        "of another authority": replace(good, certificate=elsewhere, key=elsewhere.with_suffix(".key")),
        "the dispatcher has another name": replace(good, peer_name="dispatcher-of-another"),
        "the dispatcher is of another authority": replace(good, ca=elsewhere),
    }
    for name, tls in wrong.items():
        error = error_of(subscribed(secured.feed(tls=tls), secured.request()))
        assert isinstance(error, FeedUnavailable), name
    pusher = files(authority, "pusher", of="DNS:pusher")
    assert isinstance(error_of(subscribed(secured.feed(tls=pusher), secured.request())), ServiceRefused)
    assert isinstance(error_of(subscribed(secured.feed(lambda: "x", good), secured.request())), ServiceRefused)


def test_a_service_with_certificates_sends_its_token_to_no_port_without(world: World, authority: Path) -> None:
    world.put()
    error = error_of(subscribed(world.feed(tls=files(authority, "sorter", of="DNS:sorter")), world.request()))
    assert isinstance(error, FeedUnavailable)
    assert "the dispatcher has not" in error.message


def test_renewed_files_are_used_and_a_wrong_one_is_shown_and_not_used(
    secured: World, authority: Path, tmp_path: Path
) -> None:
    good = files(authority, "sorter", of="DNS:sorter")
    stream = subscribed(secured.feed(tls=good), secured.request())
    assert next_seqs(stream, 1) == [1]
    address, own = secured.dispatcher.address, authority.parent / "dispatcher.pem"
    shown_end = metrics.CERTIFICATE_NOT_AFTER.labels("flight")._value
    assert shown_end.get() == not_after(own.read_bytes())
    certificate_bytes = own.read_bytes()
    own.write_text("no certificate")
    eventually(lambda: [p.code for p in secured.dispatcher.problems()] == [ConfigError.code])
    secured.put()
    assert next_seqs(stream, 1) == [2]
    own.write_bytes(certificate_bytes)
    eventually(lambda: secured.dispatcher.problems() == [])
    second = certificate(tmp_path, "second")  # another authority signs from now on, for both sides
    for name, of in (("dispatcher", "IP:127.0.0.1"), ("sorter", "DNS:sorter")):
        certificate_file = certificate(tmp_path, name, of=of, ca=second)
        for suffix in (".pem", ".key"):
            shutil.copy(certificate_file.with_suffix(suffix), authority.parent / f"{name}{suffix}")
    shutil.copy(second, authority)
    for _ in range(3):
        secured.put()
        assert next_seqs(stream, 1) == [secured.count]
        time.sleep(0.3)
    assert secured.dispatcher.address == address
    assert shown_end.get() == not_after(own.read_bytes())
    assert next_seqs(subscribed(secured.feed(tls=good), secured.request()), 5) == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("judge", "mutant"),
    [
        pytest.param(
            without_a_valid_token,
            lambda: reworded(port_access.TokenCheck, "_accepted", ("if number is None:", "if number is Ellipsis:")),
            id="any token is accepted",
        ),
        pytest.param(
            without_a_valid_token,
            lambda: reworded(
                port_access.AcceptedTokens,
                "_read",
                ("self._tokens = self._read_tokens()", "self._tokens += self._read_tokens()"),
            ),
            id="an outdated token stays accepted",
        ),
        pytest.param(
            served_to_others,
            lambda: reworded(
                task_owners.TaskOwners,
                "check",
                ("(row.owner, row.epoch) != (request.worker_id, request.epoch)", "row.owner != request.worker_id"),
            ),
            id="the epoch is not compared",
        ),
        pytest.param(
            served_to_others,
            lambda: reworded(
                task_owners.TaskOwners,
                "check",
                ("(row.owner, row.epoch) != (request.worker_id, request.epoch)", "row.epoch != request.epoch"),
            ),
            id="the worker is not compared",
        ),
        pytest.param(
            served_to_others,
            lambda: reworded(task_owners.TaskOwners, "check", ("row.range != request.range", "False")),
            id="the range is not compared",
        ),
    ],
)
def test_a_rule_that_is_broken_is_noticed(
    world: World,
    judge: Callable[[World], list[str]],
    mutant: Callable[[], AbstractContextManager[None]],
) -> None:
    with mutant():
        assert judge(world) != []
