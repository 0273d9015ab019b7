"""The feed over real Arrow Flight on loopback: same answers as in-process, typed errors, reconnects, back pressure."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial

import pyarrow as pa
import pytest

from dispatcher.exchange import SubscriptionSource
from dispatcher.flight_server import FlightFeedServer
from tests.kit.awaited import Awaited
from tests.kit.batch_files import subscriptions_of
from tests.kit.feed_port import TOKEN, bare_feed, bare_server
from tests.kit.manual_clock import ManualClock
from tests.kit.waiting import WAIT_S, eventually
from tistream.clock import SystemClock
from tistream.errors import CatalogUnavailable, CorruptObject, FeedGap, FeedUnavailable, TiStreamError
from tistream.feed.exchange import ExchangeClient
from tistream.feed.flight import FORGET_S, FlightFeed, FlightStream, locate_by_catalog
from tistream.feed.protocol import FeedBatch, FeedRequest, NoBatch, Wake
from tistream.ids import Position, Tenant
from tistream.keyrange import KeyRange
from tistream.limits import FEED_QUEUE_BATCHES_MAX
from tistream.model.change import REGIONS, ROWS

T = Tenant(1, 2)
CLOCK = SystemClock()


def batch(seq: int, incarnation: int = 1, *, closes: bool = False, value_bytes: int = 0) -> FeedBatch:
    subscriptions = [] if closes else [(b"a", b"c", [b"b%d" % seq]), (b"c", b"", [])]
    rows, regions = subscriptions_of(subscriptions)
    if value_bytes:
        rows = rows.set_column(
            rows.schema.get_field_index("value"), ROWS.field("value"), pa.array([bytes(value_bytes)])
        )
    return FeedBatch(
        store_id=7,
        incarnation=incarnation,
        seq=seq,
        cut_ts=0 if closes else (1 << 60) + seq,
        rows=rows,
        regions=regions,
        closes=closes,
    )


class Script:
    """A Source that follows a script: batches are sent from the subscriber's position on, errors are told once, and
    that the store is not served ends a subscription."""

    def __init__(self, *steps: FeedBatch | TiStreamError) -> None:
        self.steps = list(steps)
        self.requests: list[FeedRequest] = []
        self.open_count = 0
        self.sent = 0
        self.served = True
        self.trouble: TiStreamError | None = None  # for as long as it lasts

    def open(self, request: FeedRequest, wake: Wake) -> ScriptStream:
        self.requests.append(request)
        self.wake = wake
        return ScriptStream(self, request)


class ScriptStream:
    def __init__(self, script: Script, request: FeedRequest) -> None:
        self._script = script
        self._at = 0
        self._positions = dict(request.positions)
        script.open_count += 1

    def check(self) -> None:
        if not self._script.served:
            raise FeedUnavailable(store=7)

    def look(self) -> FeedBatch | NoBatch:
        if self._script.trouble is not None:
            return self._script.trouble, CLOCK.monotonic() + 0.01
        for step in self._script.steps[self._at :]:
            self._at += 1
            if isinstance(step, FeedUnavailable):
                raise step
            if isinstance(step, TiStreamError):
                return step, CLOCK.monotonic() + 0.05
            if step.seq > self._positions.get(step.incarnation, Position(seq=0)).seq or step.closes:
                self._script.sent += 1
                return step
        return None, CLOCK.monotonic() + 0.01

    def close(self) -> None:
        self._script.open_count -= 1


class World:
    """Servers by name, and a client that is told where to go."""

    def __init__(self) -> None:
        self.servers: list[FlightFeedServer] = []
        self.address: str | None = None
        self.feed = bare_feed(lambda tenant, store: self.address)
        self.streams: list[Awaited[FlightStream]] = []

    def serve(self, script: SubscriptionSource | None) -> FlightFeedServer:
        server = bare_server()
        server.source = script
        self.servers.append(server)
        self.address = f"grpc://127.0.0.1:{server.port}"
        return server

    def subscribe(self, positions: dict[int, Position] | None = None) -> Awaited[FlightStream]:
        request = FeedRequest(
            tenant=T,
            store_id=7,
            task_id=5,
            epoch=3,
            worker_id="s1",
            range=KeyRange(b"\x00a", b"\xff"),
            positions=positions or {},
        )
        stream = Awaited(partial(self.feed.open, request), CLOCK)
        self.streams.append(stream)
        return stream


@pytest.fixture
def world() -> Iterator[World]:
    new_world = World()
    yield new_world
    for stream in new_world.streams:
        stream.close()
    new_world.feed.close()
    for server in new_world.servers:
        server.shutdown()


def same(a: FeedBatch | None, b: FeedBatch) -> bool:
    assert a is not None
    assert (a.rows.schema, a.regions.schema) == (ROWS, REGIONS)
    return (
        (a.store_id, a.incarnation, a.seq, a.cut_ts, a.closes) == (b.store_id, b.incarnation, b.seq, b.cut_ts, b.closes)
        and a.rows.equals(b.rows)
        and a.regions.equals(b.regions)
    )


def test_batches_arrive_as_they_were_sent(world: World) -> None:
    sent = [batch(1), batch(2), batch(2, closes=True), batch(1, 2)]
    script = Script(*sent)
    world.serve(script)
    stream = world.subscribe()
    assert all(same(stream.next(60), expected) for expected in sent)
    assert stream.next(0) is None
    (request,) = script.requests
    assert (request.tenant, request.task_id, request.epoch, request.worker_id) == (T, 5, 3, "s1")
    assert request.range == KeyRange(b"\x00a", b"\xff")


def test_waiting_ends_in_time_whether_or_not_anything_comes(world: World) -> None:
    world.serve(Script())
    stream = world.subscribe()
    began = time.monotonic()
    assert stream.next(0.2) is None
    assert stream.next(0) is None
    assert time.monotonic() - began < WAIT_S


@pytest.mark.parametrize("error", [FeedGap(missing="file-3", seq=3), CorruptObject("torn", object="o", offset=12)])
def test_errors_arrive_typed_with_their_facts_and_the_stream_goes_on(world: World, error: TiStreamError) -> None:
    script = Script(batch(1), error, batch(2))
    world.serve(script)
    stream = world.subscribe()
    assert same(stream.next(60), batch(1))
    with pytest.raises(type(error)) as raised:
        stream.next(60)
    assert raised.value.message == error.message
    assert raised.value.facts == {name: str(value) for name, value in error.facts.items()}
    assert (raised.value.kind, raised.value.code) == (error.kind, error.code)
    assert same(stream.next(60), batch(2))
    assert len(script.requests) == 1


def test_trouble_raises_until_it_is_over_and_not_longer(world: World) -> None:
    script = Script()
    script.trouble = FeedGap(missing="file-1")
    world.serve(script)
    stream = world.subscribe()
    with pytest.raises(FeedGap):
        stream.next(60)
    with pytest.raises(FeedGap):
        stream.next(0.1)
    script.trouble = None
    eventually(lambda: _quiet(stream))
    script.steps.append(batch(1))
    assert same(stream.next(60), batch(1))


def _quiet(stream: Awaited[FlightStream]) -> bool:
    try:
        return stream.next(0.1) is None
    except FeedGap:
        return False


def test_a_moved_store_is_followed_to_its_new_owner_at_the_same_place(world: World) -> None:
    first = Script(batch(1), batch(2), FeedUnavailable(store=7, owner="d2"))
    world.serve(first)
    stream = world.subscribe()
    assert same(stream.next(60), batch(1))
    second = Script(batch(1), batch(2), batch(3))
    world.serve(second)
    assert same(stream.next(60), batch(2))
    assert same(stream.next(60), batch(3))
    assert second.requests[0].positions == {1: Position(seq=2)}


MORTAL = """
import sys, threading
from tests.kit.feed_port import bare_server
from tistream.model.change import REGIONS, ROWS
from tistream.feed.protocol import FeedBatch
import pyarrow as pa

class Feed:
    sent = False
    def open(self, request, wake): return self
    def check(self): pass
    def close(self): pass
    def look(self):
        if self.sent:
            return None, float("inf")
        self.sent = True
        rows, regions = (pa.RecordBatch.from_pylist([], schema=s) for s in (ROWS, REGIONS))
        return FeedBatch(store_id=7, incarnation=1, seq=1, cut_ts=1, rows=rows, regions=regions)

server = bare_server()
server.source = Feed()
print(server.port, flush=True)
server.serve()
"""


def test_a_dispatcher_that_is_killed_is_replaced_without_a_gap_or_a_repeat(world: World) -> None:
    with subprocess.Popen([sys.executable, "-c", MORTAL], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        world.address = f"grpc://127.0.0.1:{int(process.stdout.readline())}"
        stream = world.subscribe()
        first = stream.next(20)
        assert first is not None
        assert first.seq == 1
        world.address = None
        process.kill()
        process.wait()
    for _ in range(2):
        with pytest.raises(FeedUnavailable):
            stream.next(5)
    second = Script(batch(1), batch(2))
    world.serve(second)
    assert same(_patient(stream), batch(2))
    assert second.requests[0].positions == {1: Position(seq=1)}


def _patient(stream: Awaited[FlightStream]) -> FeedBatch | None:
    for _ in range(100):
        try:
            return stream.next(0.1)
        except FeedUnavailable:
            continue
    return None


def test_nobody_there_is_told_at_once_and_overcome_without_a_batch(world: World) -> None:
    stream = world.subscribe()
    with pytest.raises(FeedUnavailable):
        stream.next(5)
    world.address = "grpc://127.0.0.1:1"
    with pytest.raises(FeedUnavailable) as raised:
        stream.next(60)
    assert raised.value.facts["store"] == 7
    world.serve(Script())
    eventually(lambda: _is_calm(stream))


def _is_calm(stream: Awaited[FlightStream]) -> bool:
    try:
        return stream.next(0.1) is None
    except FeedUnavailable:
        return False


def test_a_refused_subscription_says_why(world: World) -> None:
    world.serve(None)
    with pytest.raises(FeedUnavailable, match="starting"):
        world.subscribe().next(WAIT_S)


def test_a_client_that_does_not_read_stops_the_server(world: World) -> None:
    count = FEED_QUEUE_BATCHES_MAX * 6
    script = Script(*(batch(seq, value_bytes=1 << 20) for seq in range(1, count + 1)))
    world.serve(script)
    stream = world.subscribe()
    assert stream.next(60) is not None
    eventually(lambda: script.sent >= FEED_QUEUE_BATCHES_MAX)
    time.sleep(0.5)
    assert script.sent < count
    received = 1
    while received < count:
        assert stream.next(60) is not None
        received += 1


def test_a_client_that_leaves_closes_its_subscription(world: World) -> None:
    script = Script(batch(1))
    world.serve(script)
    stream = world.subscribe()
    assert stream.next(60) is not None
    assert script.open_count == 1
    stream.close()
    eventually(lambda: script.open_count == 0)


def test_a_repeat_or_a_gap_from_the_server_is_refused(world: World) -> None:
    world.serve(Script(batch(1), batch(3)))
    stream = world.subscribe()
    assert stream.next(60) is not None
    with pytest.raises(TiStreamError, match="skipped or repeated a batch"):
        stream.next(60)


def test_dispatchers_that_are_replaced_are_forgotten_and_those_of_now_are_not(world: World) -> None:
    """Each new one has an address of its own."""
    world.serve(Script())
    assert world.address is not None
    clock = ManualClock(0)
    feed = FlightFeed(lambda *_: None, lambda: TOKEN.secret, clock)
    lasting = feed._exchange(world.address)
    for port in range(1, 9):
        replaced = feed._exchange(f"grpc://127.0.0.1:{port}")
        eventually(partial(_has_ended, replaced))
        clock.advance(FORGET_S)
    assert len(feed._peers) == 2, "the one that is there, and the last one"
    assert feed._exchange(world.address) is lasting
    feed.close()


def _has_ended(exchange: ExchangeClient) -> bool:
    return exchange.ended is not None


def none_yet(looked: FeedBatch | NoBatch) -> NoBatch:
    assert not isinstance(looked, FeedBatch)
    return looked


def test_a_look_never_waits_for_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    """Locating the dispatcher hangs, and then it fails; neither holds up a look, nor the end."""
    monkeypatch.setattr("tistream.feed.flight.SLOW_S", 0.05)
    answered, woken = threading.Event(), threading.Event()

    def locate(tenant: Tenant, store_id: int) -> str | None:
        assert answered.wait(WAIT_S)
        raise CatalogUnavailable("timeout")

    feed = FlightFeed(locate, lambda: "token")
    request = FeedRequest(
        tenant=Tenant(1, 1), store_id=7, task_id=1, epoch=1, worker_id="s1", range=KeyRange(b"a", b"z")
    )
    stream = feed.open(request, woken)
    looks = []
    for _ in range(3):
        began = time.monotonic()
        looks.append(none_yet(stream.look()))
        assert time.monotonic() - began < 1.0
        time.sleep(0.06)
    assert looks[0][0] is None
    assert "takes long" in str(looks[-1][0]), "it is shown meanwhile"
    answered.set()
    assert woken.wait(WAIT_S)
    error, again_at = none_yet(stream.look())
    assert isinstance(error, CatalogUnavailable)
    assert again_at > time.monotonic() - 1
    answered.clear()
    stream.look()
    feed.close()
    stream.close()
    answered.set()


def test_a_closed_feed_connects_no_more(world: World) -> None:
    """Its streams may be looked at once more by a worker that stops at the same time."""
    world.serve(Script(batch(1)))
    stream = world.subscribe()
    assert stream.next(WAIT_S) is not None
    world.feed.close()
    connectors = [thread for thread in threading.enumerate() if thread.name == "feed connect"]
    for thread in connectors:
        thread.join(WAIT_S)
    attempt = world.feed.begin(stream.stream._request, threading.Event())
    assert attempt.outcome is None
    assert not [thread for thread in threading.enumerate() if thread.name == "feed connect"]


def test_a_failed_look_at_the_catalog_counts_for_all_subscriptions(monkeypatch: pytest.MonkeyPatch) -> None:
    reads = []

    def away(*_: object) -> list[object]:
        reads.append(1)
        raise CatalogUnavailable("timeout")

    monkeypatch.setattr("tistream.feed.flight.list_workers", away)
    locate = locate_by_catalog(None)  # type: ignore[arg-type]
    for store_id in range(5):
        with pytest.raises(CatalogUnavailable):
            locate(Tenant(1, 1), store_id)
    assert len(reads) == 1
