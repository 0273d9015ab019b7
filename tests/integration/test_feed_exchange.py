"""One exchange between two processes, shared by many subscriptions: apart, bounded, never in doubt."""

from __future__ import annotations

import time
from collections.abc import Iterator

import orjson
import pyarrow as pa
import pyarrow.flight as fl
import pytest

import dispatcher.exchange
from dispatcher.flight_server import FlightFeedServer
from simulator.chaos.servers.proxy import Proxy, Trouble
from tests.kit.batch_files import subscriptions_of
from tests.kit.feed_port import BEARER, bare_feed, bare_server
from tests.kit.waiting import eventually
from tistream.errors import CorruptObject, FeedUnavailable, TiStreamError
from tistream.feed.flight import FlightStream
from tistream.feed.protocol import FeedBatch, FeedRequest, NoBatch, Wake
from tistream.feed.wire import FEED_COMMAND, Subscribe, Taken, encode_command
from tistream.ids import Position, Tenant
from tistream.keyrange import KeyRange
from tistream.limits import FEED_QUEUE_BATCHES_MAX, FEED_QUEUE_BYTES_MAX
from tistream.model.change import ROWS

T = Tenant(1, 2)
LONG_S = 60.0


class Store:
    """A store whose files are made up as they are asked for, up to `last`."""

    def __init__(self, store_id: int, last: int = 0, value_bytes: int = 0) -> None:
        self.store_id, self.last = store_id, last
        self.value = pa.array([bytes(value_bytes)], pa.binary())
        self.sent: list[int] = []
        self.starts: list[int] = []
        self.trouble: TiStreamError | None = None
        self.served = True
        self.wakes: set[Wake] = set()

    def grow(self, last: int) -> None:
        """More files; who listens is woken."""
        self.last = last
        for wake in list(self.wakes):
            wake.set()

    def batch(self, seq: int) -> FeedBatch:
        rows, regions = subscriptions_of([(b"a", b"z", [b"b"])])
        rows = rows.set_column(rows.schema.get_field_index("value"), ROWS.field("value"), self.value)
        return FeedBatch(store_id=self.store_id, incarnation=1, seq=seq, cut_ts=1000 + seq, rows=rows, regions=regions)


class View:
    """A subscription to a Store."""

    def __init__(self, store: Store, request: FeedRequest, wake: Wake) -> None:
        self._store, self._wake = store, wake
        self._seq = request.positions.get(1, Position(seq=0)).seq
        store.starts.append(self._seq)
        store.wakes.add(wake)

    def check(self) -> None:
        if not self._store.served:
            raise FeedUnavailable(store=self._store.store_id)

    def look(self) -> FeedBatch | NoBatch:
        self.check()
        if self._store.trouble is not None:
            return self._store.trouble, float("inf")
        if self._seq >= self._store.last:
            return None, float("inf")
        self._seq += 1
        self._store.sent.append(self._seq)
        return self._store.batch(self._seq)

    def close(self) -> None:
        self._store.wakes.discard(self._wake)


class Stores:
    """A Source of several."""

    def __init__(self, *stores: Store) -> None:
        self.stores = {store.store_id: store for store in stores}

    def open(self, request: FeedRequest, wake: Wake) -> View:
        store = self.stores.get(request.store_id)
        if store is None or not store.served:
            raise FeedUnavailable(store=request.store_id)
        return View(store, request, wake)


class World:
    """A dispatcher's port behind a proxy, and a sorter's feed."""

    def __init__(self, proxied: bool = True) -> None:
        self.server = bare_server()
        self.proxy = Proxy(self.server.port)
        self.proxy.__enter__()
        self.port = self.proxy.port
        self.feed = bare_feed(lambda tenant, store: f"grpc://127.0.0.1:{self.port}")
        self.streams: list[FlightStream] = []
        self.others: list[FlightFeedServer] = []

    def subscribe(self, store_id: int, task_id: int = 5) -> FlightStream:
        request = FeedRequest(
            tenant=T, store_id=store_id, task_id=task_id, epoch=1, worker_id="s1", range=KeyRange(b"a", b"z")
        )
        self.streams.append(self.feed.subscribe(request))
        return self.streams[-1]

    def close(self) -> None:
        self.proxy.trouble = Trouble.PASS
        for stream in self.streams:
            stream.close()
        self.feed.close()
        for server in [self.server, *self.others]:
            server.shutdown()
        self.proxy.__exit__()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def take(stream: FlightStream, count: int) -> list[int]:
    """The seqs of the next batches, waiting out a dispatcher that cannot be reached."""
    found: list[int] = []
    deadline = time.monotonic() + LONG_S
    while len(found) < count:
        assert time.monotonic() < deadline, f"not in time: {found}"
        try:
            batch = stream.next(0.2)
        except FeedUnavailable:
            continue
        found += [batch.seq] if batch is not None else []
    return found


def trouble(stream: FlightStream) -> TiStreamError:
    """What it raises."""
    deadline = time.monotonic() + LONG_S
    while time.monotonic() < deadline:
        try:
            assert stream.next(0.1) is None
        except TiStreamError as e:
            return e
    raise AssertionError("nothing is in the way")


def test_all_subscriptions_share_one_exchange(world: World) -> None:
    stores = [Store(n, 3) for n in range(50)]
    world.server.source = Stores(*stores)
    streams = [world.subscribe(n) for n in range(50)]
    assert [take(stream, 3) for stream in streams] == [[1, 2, 3]] * 50
    assert len(world.server._exchanges) == 1
    assert world.server.subscriptions == 50
    for store in stores:
        store.grow(4)
    assert [take(stream, 1) for stream in streams] == [[4]] * 50


def test_who_does_not_take_holds_up_nobody_and_is_sent_no_more_than_its_credit(world: World) -> None:
    slow, quick = Store(7, 100, 1 << 20), Store(8, 200, 1 << 10)
    world.server.source = Stores(slow, quick)
    lazy, eager = world.subscribe(7), world.subscribe(8)
    assert take(lazy, 1) == [1]
    assert take(eager, 200) == list(range(1, 201))
    eventually(lambda: len(slow.sent) >= FEED_QUEUE_BATCHES_MAX)
    quick.grow(201)
    assert take(eager, 1) == [201]
    assert len(slow.sent) <= FEED_QUEUE_BATCHES_MAX + 1
    assert take(lazy, 99) == list(range(2, 101))


def test_credit_counts_bytes_too(world: World) -> None:
    size = FEED_QUEUE_BYTES_MAX * 2 // 5
    large, small = Store(7, 6, size), Store(8, 1)
    world.server.source = Stores(large, small)
    stream, other = world.subscribe(7), world.subscribe(8)
    assert stream.next(LONG_S) is not None
    eventually(lambda: len(large.sent) >= 4)  # one is taken, two and the one that reaches beyond are not
    assert take(other, 1) == [1]
    small.grow(2)
    assert take(other, 1) == [2]
    assert len(large.sent) == 4
    assert take(stream, 5) == [2, 3, 4, 5, 6]


def test_when_it_is_cut_all_go_on_where_they_were(world: World) -> None:
    stores = [Store(n, 40) for n in range(5)]
    world.server.source = Stores(*stores)
    streams = [world.subscribe(n) for n in range(5)]
    found: list[list[int]] = [take(stream, n) for n, stream in enumerate(streams)]
    for at in range(1, 4):
        world.proxy.cut()
        for seqs, stream in zip(found, streams, strict=True):
            seqs += take(stream, 8)
        for store in stores:
            store.grow(40 + at)
    for n, (seqs, stream) in enumerate(zip(found, streams, strict=True)):
        assert seqs + take(stream, 43 - 24 - n) == list(range(1, 44))
    eventually(lambda: world.server.subscriptions == 5)
    eventually(lambda: all(len(store.wakes) == 1 for store in stores))


def test_a_peer_that_hangs_is_left_by_both(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("dispatcher.exchange.SILENT_S", "tistream.feed.exchange.SILENT_S"):
        monkeypatch.setattr(name, 1.0)
    monkeypatch.setattr(dispatcher.exchange, "IDLE_S", 0.1)
    store = Store(7, 1)
    world.server.source = Stores(store)
    client = fl.FlightClient(f"grpc://127.0.0.1:{world.server.port}")
    writer, reader = client.do_exchange(fl.FlightDescriptor.for_command(FEED_COMMAND), BEARER)
    request = FeedRequest(tenant=T, store_id=7, task_id=1, epoch=1, worker_id="s1", range=KeyRange())
    writer.write_metadata(encode_command(Subscribe(sub=1, request=request, batches=1, nbytes=1)))
    eventually(lambda: len(store.wakes) == 1)
    eventually(lambda: not store.wakes)
    reader.cancel()
    client.close()
    stream = world.subscribe(7)
    assert take(stream, 1) == [1]
    world.proxy.trouble = Trouble.HANG
    assert isinstance(trouble(stream), FeedUnavailable)
    eventually(lambda: not store.wakes)
    world.proxy.trouble = Trouble.PASS
    store.grow(2)
    assert take(stream, 1) == [2]


def test_a_client_that_is_gone_leaves_nothing_behind(world: World) -> None:
    stores = [Store(n, 1) for n in range(5)]
    world.server.source = Stores(*stores)
    for n in range(5):
        assert take(world.subscribe(n), 1) == [1]
    assert world.server.subscriptions == 5
    world.proxy.trouble = Trouble.REFUSE
    eventually(lambda: world.server.subscriptions == 0)
    assert not any(store.wakes for store in stores)


def test_who_unsubscribes_is_forgotten_and_the_others_go_on(world: World) -> None:
    gone, stays = Store(7, 1), Store(8, 1)
    world.server.source = Stores(gone, stays)
    first, second = world.subscribe(7), world.subscribe(8)
    assert (take(first, 1), take(second, 1)) == ([1], [1])
    first.close()
    eventually(lambda: world.server.subscriptions == 1)
    assert not gone.wakes
    gone.grow(2)
    stays.grow(2)
    assert take(second, 1) == [2]
    assert gone.sent == [1]
    again = world.subscribe(7)
    assert take(again, 2) == [1, 2]


def test_trouble_is_told_to_those_whom_it_concerns(world: World) -> None:
    bad, good = Store(7), Store(8)
    world.server.source = Stores(bad, good)
    concerned, other = world.subscribe(7), world.subscribe(8)
    assert other.next(0) is None
    bad.trouble = CorruptObject("torn", object="file-1")
    bad.grow(0)
    told = trouble(concerned)
    assert isinstance(told, CorruptObject)
    assert told.facts == {"object": "file-1"}
    for seq in (1, 2, 3):
        good.grow(seq)
        assert take(other, 1) == [seq]
    bad.trouble = None
    bad.grow(1)
    assert take(concerned, 1) == [1]


def test_a_defect_in_one_store_ends_its_subscription_only(world: World) -> None:
    class Broken(Stores):
        def open(self, request: FeedRequest, wake: Wake) -> View:
            if request.store_id == 9:
                raise ZeroDivisionError("a defect")
            return super().open(request, wake)

    good = Store(8, 1)
    world.server.source = Broken(good)
    other, bad = world.subscribe(8), world.subscribe(9)
    assert take(other, 1) == [1]
    with pytest.raises(TiStreamError, match="a defect"):
        bad.next(LONG_S)
    good.grow(2)
    assert take(other, 1) == [2]
    assert world.server.subscriptions == 1


def test_a_store_that_moved_is_followed_and_the_others_stay(world: World) -> None:
    moves, stays = Store(7, 2), Store(8, 1)
    world.server.source = Stores(moves, stays)
    first, second = world.subscribe(7), world.subscribe(8)
    assert (take(first, 1), take(second, 1)) == ([1], [1])
    other = bare_server()
    world.others.append(other)
    there = Store(7, 3)
    other.source = Stores(there)
    world.port = other.port
    moves.served = False
    assert take(first, 2) == [2, 3]
    assert there.starts == [2] or there.starts == [1]
    stays.grow(2)
    assert take(second, 1) == [2]
    assert world.server.subscriptions == 1


def test_a_dispatcher_that_stops_is_left_and_the_next_one_found(world: World) -> None:
    world.server.source = Stores(Store(7, 1))
    stream = world.subscribe(7)
    assert take(stream, 1) == [1]
    other = bare_server()
    world.others.append(other)
    other.source = Stores(Store(7, 2))
    world.port = other.port
    world.server.shutdown()
    assert take(stream, 1) == [2]


@pytest.mark.parametrize(
    "hostile",
    [
        [b"\x00" * 100],
        [b"{}"],
        [b'{"do":"subscribe","sub":1}'],
        [encode_command(Taken(1, 1)), b"[]"],
        [b'{"do":"unsubscribe","sub":"x"}'],
        [b'{"do":"subscribe"' + b" " * (17 << 20)],
    ],
)
def test_what_cannot_be_understood_ends_the_exchange_with_a_reason(world: World, hostile: list[bytes]) -> None:
    store = Store(8, 1)
    world.server.source = Stores(store)
    stream = world.subscribe(8)
    assert take(stream, 1) == [1]
    with pytest.raises(fl.FlightServerError) as raised:
        _speak(world.server.port, hostile)
    assert orjson.loads(raised.value.extra_info)["class"] == "InvalidInput"
    eventually(lambda: len(world.server._exchanges) == 1)
    store.grow(2)
    assert take(stream, 1) == [2]


def test_numbers_that_make_no_sense_are_refused(world: World) -> None:
    world.server.source = Stores(Store(8, 1))
    request = FeedRequest(tenant=T, store_id=8, task_id=1, epoch=1, worker_id="s1", range=KeyRange())
    once = encode_command(Subscribe(sub=1, request=request, batches=1, nbytes=1))
    for hostile in (
        [once, once],
        [encode_command(Subscribe(sub=1, request=request, batches=0, nbytes=1))],
        [once, encode_command(Taken(1, 1000))],
    ):
        with pytest.raises(fl.FlightServerError) as raised:
            _speak(world.server.port, hostile)
        assert orjson.loads(raised.value.extra_info)["class"] == "InvalidInput"
    eventually(lambda: world.server.subscriptions == 0)


def test_another_command_is_refused(world: World) -> None:
    world.server.source = Stores()
    with pytest.raises(fl.FlightServerError) as raised:
        _speak(world.server.port, [b"{}"], command=b"tistream-feed-1")
    assert orjson.loads(raised.value.extra_info)["class"] == "InvalidInput"


def _speak(port: int, words: list[bytes], command: bytes = FEED_COMMAND) -> None:
    """Say this on an exchange of its own and read until it ends."""
    with fl.FlightClient(f"grpc://127.0.0.1:{port}") as client:
        writer, reader = client.do_exchange(fl.FlightDescriptor.for_command(command), BEARER)
        try:
            for word in words:
                writer.write_metadata(word)
        except (pa.ArrowException, OSError):
            pass  # it may have ended meanwhile: the reason comes with the next read
        try:
            while True:
                reader.read_chunk()
        except StopIteration:
            return


def test_a_server_that_says_nonsense_is_left_with_a_reason(world: World) -> None:
    class Nonsense(fl.FlightServerBase):  # type: ignore[misc]
        def do_exchange(self, context: object, descriptor: object, reader: object, writer: object) -> None:
            writer.begin(ROWS)  # type: ignore[attr-defined]
            writer.write_metadata(b"\x05\x00\x00\x00hello")  # type: ignore[attr-defined]
            try:
                while True:
                    reader.read_chunk()  # type: ignore[attr-defined]
            except (StopIteration, pa.ArrowException):
                return  # the client has left

    with Nonsense("grpc://127.0.0.1:0") as server:
        world.port = server.port
        stream = world.subscribe(7)
        told = trouble(stream)
        assert isinstance(told, FeedUnavailable)
        assert "invalid feed message" in str(told)
