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
from tests.kit.awaited import Awaited, next_seqs, subscribed
from tests.kit.feed_port import BEARER, bare_feed, bare_server
from tests.kit.made_stores import MadeStore, MadeStores, View
from tests.kit.waiting import eventually
from tistream.errors import CorruptObject, FeedUnavailable, TiStreamError
from tistream.feed.protocol import FeedRequest, FeedStream, Wake
from tistream.feed.wire import FEED_COMMAND, Subscribe, Taken, encode_command
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.limits import FEED_QUEUE_BATCHES_MAX, FEED_QUEUE_BYTES_MAX
from tistream.model.change import ROWS

T = Tenant(1, 2)
LONG_S = 60.0


class World:
    """A dispatcher's port behind a proxy, and a sorter's feed."""

    def __init__(self, proxied: bool = True) -> None:
        self.server = bare_server()
        self.proxy = Proxy(self.server.port)
        self.proxy.__enter__()
        self.port = self.proxy.port
        self.feed = bare_feed(lambda tenant, store: f"grpc://127.0.0.1:{self.port}")
        self.streams: list[Awaited[FeedStream]] = []
        self.others: list[FlightFeedServer] = []

    def subscribe(self, store_id: int, task_id: int = 5) -> Awaited[FeedStream]:
        request = FeedRequest(
            tenant=T, store_id=store_id, task_id=task_id, epoch=1, worker_id="s1", range=KeyRange(b"a", b"z")
        )
        self.streams.append(subscribed(self.feed, request))
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
    new_world = World()
    yield new_world
    new_world.close()


def trouble(stream: Awaited[FeedStream]) -> TiStreamError:
    """The error that the next looks at the stream raise."""
    deadline = time.monotonic() + LONG_S
    while time.monotonic() < deadline:
        try:
            assert stream.next(0.1) is None
        except TiStreamError as e:
            return e
    raise AssertionError("nothing is in the way")


def test_all_subscriptions_share_one_exchange(world: World) -> None:
    stores = [MadeStore(n, 3) for n in range(50)]
    world.server.source = MadeStores(*stores)
    streams = [world.subscribe(n) for n in range(50)]
    assert [next_seqs(stream, 3) for stream in streams] == [[1, 2, 3]] * 50
    assert len(world.server._exchanges) == 1
    assert world.server.subscriptions == 50
    for store in stores:
        store.grow(4)
    assert [next_seqs(stream, 1) for stream in streams] == [[4]] * 50


def test_who_does_not_take_holds_up_nobody_and_is_sent_no_more_than_its_credit(world: World) -> None:
    slow, quick = MadeStore(7, 100, 1 << 20), MadeStore(8, 200, 1 << 10)
    world.server.source = MadeStores(slow, quick)
    lazy, eager = world.subscribe(7), world.subscribe(8)
    assert next_seqs(lazy, 1) == [1]
    assert next_seqs(eager, 200) == list(range(1, 201))
    eventually(lambda: len(slow.sent) >= FEED_QUEUE_BATCHES_MAX)
    quick.grow(201)
    assert next_seqs(eager, 1) == [201]
    assert len(slow.sent) <= FEED_QUEUE_BATCHES_MAX + 1
    assert next_seqs(lazy, 99) == list(range(2, 101))


def test_credit_counts_bytes_too(world: World) -> None:
    size = FEED_QUEUE_BYTES_MAX * 2 // 5
    large, small = MadeStore(7, 6, size), MadeStore(8, 1)
    world.server.source = MadeStores(large, small)
    stream, other = world.subscribe(7), world.subscribe(8)
    assert stream.next(LONG_S) is not None
    eventually(lambda: len(large.sent) >= 4)  # one is taken, two and the one that reaches beyond are not
    assert next_seqs(other, 1) == [1]
    small.grow(2)
    assert next_seqs(other, 1) == [2]
    assert len(large.sent) == 4
    assert next_seqs(stream, 5) == [2, 3, 4, 5, 6]


def test_when_it_is_cut_all_go_on_where_they_were(world: World) -> None:
    stores = [MadeStore(n, 40) for n in range(5)]
    world.server.source = MadeStores(*stores)
    streams = [world.subscribe(n) for n in range(5)]
    seqs_read: list[list[int]] = [next_seqs(stream, n) for n, stream in enumerate(streams)]
    for at in range(1, 4):
        world.proxy.cut()
        for seqs, stream in zip(seqs_read, streams, strict=True):
            seqs += next_seqs(stream, 8)
        for store in stores:
            store.grow(40 + at)
    for n, (seqs, stream) in enumerate(zip(seqs_read, streams, strict=True)):
        assert seqs + next_seqs(stream, 43 - 24 - n) == list(range(1, 44))
    eventually(lambda: world.server.subscriptions == 5)
    eventually(lambda: all(len(store.wakes) == 1 for store in stores))


def test_a_peer_that_hangs_is_left_by_both(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("dispatcher.exchange.SILENT_S", "tistream.feed.exchange.SILENT_S"):
        monkeypatch.setattr(name, 1.0)
    monkeypatch.setattr(dispatcher.exchange, "IDLE_S", 0.1)
    store = MadeStore(7, 1)
    world.server.source = MadeStores(store)
    client = fl.FlightClient(f"grpc://127.0.0.1:{world.server.port}")
    writer, reader = client.do_exchange(fl.FlightDescriptor.for_command(FEED_COMMAND), BEARER)
    request = FeedRequest(tenant=T, store_id=7, task_id=1, epoch=1, worker_id="s1", range=KeyRange())
    writer.write_metadata(encode_command(Subscribe(sub=1, request=request, batches=1, nbytes=1)))
    eventually(lambda: len(store.wakes) == 1)
    eventually(lambda: not store.wakes)
    reader.cancel()
    client.close()
    stream = world.subscribe(7)
    assert next_seqs(stream, 1) == [1]
    world.proxy.trouble = Trouble.HANG
    assert isinstance(trouble(stream), FeedUnavailable)
    eventually(lambda: not store.wakes)
    world.proxy.trouble = Trouble.PASS
    store.grow(2)
    assert next_seqs(stream, 1) == [2]


def test_a_client_that_is_gone_leaves_nothing_behind(world: World) -> None:
    stores = [MadeStore(n, 1) for n in range(5)]
    world.server.source = MadeStores(*stores)
    for n in range(5):
        assert next_seqs(world.subscribe(n), 1) == [1]
    assert world.server.subscriptions == 5
    world.proxy.trouble = Trouble.REFUSE
    eventually(lambda: world.server.subscriptions == 0)
    assert not any(store.wakes for store in stores)


def test_who_unsubscribes_is_forgotten_and_the_others_go_on(world: World) -> None:
    left, stays = MadeStore(7, 1), MadeStore(8, 1)
    world.server.source = MadeStores(left, stays)
    first, second = world.subscribe(7), world.subscribe(8)
    assert (next_seqs(first, 1), next_seqs(second, 1)) == ([1], [1])
    first.close()
    eventually(lambda: world.server.subscriptions == 1)
    assert not left.wakes
    left.grow(2)
    stays.grow(2)
    assert next_seqs(second, 1) == [2]
    assert left.sent == [1]
    again = world.subscribe(7)
    assert next_seqs(again, 2) == [1, 2]


def test_trouble_is_told_to_those_whom_it_concerns(world: World) -> None:
    bad, good = MadeStore(7), MadeStore(8)
    world.server.source = MadeStores(bad, good)
    concerned, other = world.subscribe(7), world.subscribe(8)
    assert other.next(0) is None
    bad.trouble = CorruptObject("torn", object="file-1")
    bad.grow(0)
    error = trouble(concerned)
    assert isinstance(error, CorruptObject)
    assert error.facts == {"object": "file-1"}
    for seq in (1, 2, 3):
        good.grow(seq)
        assert next_seqs(other, 1) == [seq]
    bad.trouble = None
    bad.grow(1)
    assert next_seqs(concerned, 1) == [1]


def test_a_defect_in_one_store_ends_its_subscription_only(world: World) -> None:
    class Broken(MadeStores):
        def open(self, request: FeedRequest, wake: Wake) -> View:
            if request.store_id == 9:
                raise ZeroDivisionError("a defect")
            return super().open(request, wake)

    good = MadeStore(8, 1)
    world.server.source = Broken(good)
    other, bad = world.subscribe(8), world.subscribe(9)
    assert next_seqs(other, 1) == [1]
    with pytest.raises(TiStreamError, match="a defect"):
        bad.next(LONG_S)
    good.grow(2)
    assert next_seqs(other, 1) == [2]
    assert world.server.subscriptions == 1


def test_a_store_that_moved_is_followed_and_the_others_stay(world: World) -> None:
    moves, stays = MadeStore(7, 2), MadeStore(8, 1)
    world.server.source = MadeStores(moves, stays)
    first, second = world.subscribe(7), world.subscribe(8)
    assert (next_seqs(first, 1), next_seqs(second, 1)) == ([1], [1])
    other = bare_server()
    world.others.append(other)
    there = MadeStore(7, 3)
    other.source = MadeStores(there)
    world.port = other.port
    moves.served = False
    assert next_seqs(first, 2) == [2, 3]
    assert there.starts == [2] or there.starts == [1]
    stays.grow(2)
    assert next_seqs(second, 1) == [2]
    assert world.server.subscriptions == 1


def test_a_dispatcher_that_stops_is_left_and_the_next_one_found(world: World) -> None:
    world.server.source = MadeStores(MadeStore(7, 1))
    stream = world.subscribe(7)
    assert next_seqs(stream, 1) == [1]
    other = bare_server()
    world.others.append(other)
    other.source = MadeStores(MadeStore(7, 2))
    world.port = other.port
    world.server.shutdown()
    assert next_seqs(stream, 1) == [2]


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
    store = MadeStore(8, 1)
    world.server.source = MadeStores(store)
    stream = world.subscribe(8)
    assert next_seqs(stream, 1) == [1]
    with pytest.raises(fl.FlightServerError) as raised:
        _speak(world.server.port, hostile)
    assert orjson.loads(raised.value.extra_info)["class"] == "InvalidInput"
    eventually(lambda: len(world.server._exchanges) == 1)
    store.grow(2)
    assert next_seqs(stream, 1) == [2]


def test_numbers_that_make_no_sense_are_refused(world: World) -> None:
    world.server.source = MadeStores(MadeStore(8, 1))
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
    world.server.source = MadeStores()
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
        error = trouble(stream)
        assert isinstance(error, FeedUnavailable)
        assert "invalid feed message" in str(error)
