"""The source over gRPC on loopback: a store that says what it is told to, a PD in memory, a pusher behind it."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from pusher.core.source import (
    Resolved,
    Rows,
    SourceEvent,
    SubscriptionClosed,
    SubscriptionOpened,
    SubscriptionReady,
    Tick,
)
from pusher.flush_schedule import FlushSchedule
from pusher.tikv.source import SourceOptions, TikvSource
from tests.kit import change_data as wire
from tests.kit.certificates import both_sides, listening
from tistream.clock import SystemClock
from tistream.codec.protobuf import parse
from tistream.errors import StoreUnavailable
from tistream.keyrange import KeyRange
from tistream.tikv.core.pd_messages import Region, Store
from tistream.tikv.core.regions import region_form
from tistream.tikv.core.wire import ChangeDataRequest
from tistream.tikv.region_cache import RegionCache

TABLES = KeyRange(b"t", b"u")
PATIENCE_S = 20.0
_SECOND = 1000 << 18


class FakeStore:
    """`cdcpb.ChangeData/EventFeedV2` on loopback. `say` sends on the newest stream."""

    def __init__(self, credentials: grpc.ServerCredentials | None = None) -> None:
        self.asked: queue.SimpleQueue[ChangeDataRequest] = queue.SimpleQueue()
        self.metadata: list[dict[str, Any]] = []
        self.streams = 0
        self.over = threading.Event()  #: the client has ended a stream
        self._said: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._server = grpc.server(ThreadPoolExecutor(8))
        handler = grpc.stream_stream_rpc_method_handler(self._feed)
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("cdcpb.ChangeData", {"EventFeedV2": handler})]
        )
        self.address = listening(self._server, credentials)

    def say(self, *messages: bytes) -> None:
        for message in messages:
            self._said.put(message)

    def next_request(self) -> ChangeDataRequest:
        return self.asked.get(timeout=PATIENCE_S)

    def stop(self) -> None:
        self._said.put(None)
        self._server.stop(None).wait()

    def _feed(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        self.metadata.append(dict(context.invocation_metadata()))
        self.streams += 1
        said: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._said = said

        def ended() -> None:
            said.put(None)
            self.over.set()

        context.add_callback(ended)
        threading.Thread(target=self._listen, args=(requests,), daemon=True).start()
        while (message := said.get()) is not None:
            yield message

    def _listen(self, requests: Iterator[bytes]) -> None:
        try:
            for request in requests:
                self.asked.put(parse(ChangeDataRequest, request))
        except grpc.RpcError:
            return  # the stream is over


@dataclass
class MemoryPd:
    """Regions and stores as they were put here; time that always moves."""

    cluster_id: int = 77
    regions: list[Region] = field(default_factory=list)
    addresses: dict[int, str] = field(default_factory=dict)
    away: bool = False
    now_ts: int = 1000 * _SECOND

    def _check(self) -> None:
        if self.away:
            raise StoreUnavailable("PD is away")

    def tso(self) -> int:
        self._check()
        self.now_ts += _SECOND
        return self.now_ts

    def scan_regions(self, start: bytes, end: bytes, limit: int) -> list[Region]:
        self._check()
        overlapping = [r for r in self.regions if (not r.end or r.end > start) and (not end or r.start < end)]
        return sorted(overlapping, key=lambda r: r.start)[:limit]

    def stores(self) -> list[Store]:
        self._check()
        return [Store(id=n, address=address) for n, address in self.addresses.items()]


def region(id_: int, start: bytes, end: bytes, *, version: int = 1, leader: int = 1) -> Region:
    return Region(
        id=id_, conf_ver=1, version=version, start=region_form(start), end=region_form(end), leader_store_id=leader
    )


class Rig:
    """A store, a PD and the source between them, polled by the test's thread."""

    def __init__(self, store: FakeStore, pd: MemoryPd, region_cache: RegionCache, source: TikvSource) -> None:
        self.store, self.pd, self.region_cache, self.source = store, pd, region_cache, source
        self.events: list[SourceEvent] = []
        self.checkpoint_ts = 5
        self.refused: list[StoreUnavailable] = []

    def poll_until(self, done: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not done():
            assert time.monotonic() < deadline, self.events
            try:
                self.events += self.source.poll(0.05, lambda _: self.checkpoint_ts)
            except StoreUnavailable as e:
                self.refused.append(e)

    def got(self, kind: type[SourceEvent]) -> list[Any]:
        return [e for e in self.events if isinstance(e, kind)]

    def poll_until_asked(self) -> ChangeDataRequest:
        self.poll_until(lambda: not self.store.asked.empty())
        return self.store.next_request()

    def make_ready(self) -> None:
        self.poll_until_asked()
        self.store.say(wire.event(7, 1, wire.INITIALIZED))
        self.poll_until(lambda: self.got(SubscriptionReady))


def source_of(store_id: int, pd: MemoryPd, region_cache: RegionCache, **options: Any) -> TikvSource:
    clock = SystemClock()
    return TikvSource(
        store_id,
        SourceOptions(**options),
        pd=pd,
        region_cache=region_cache,
        ranges=[TABLES],
        clock=clock,
        schedule=FlushSchedule(clock, flush_s=0.1),
    )


@contextmanager
def rig(*, region_id: int = 7, credentials: grpc.ServerCredentials | None = None, **options: Any) -> Iterator[Rig]:
    store, clock = FakeStore(credentials), SystemClock()
    pd = MemoryPd(regions=[region(region_id, b"t", b"u")], addresses={1: store.address})
    region_cache = RegionCache(pd, [TABLES], clock=clock, refresh_s=0.2)
    source = source_of(1, pd, region_cache, **options)
    region_cache.start()
    try:
        yield Rig(store, pd, region_cache, source)
    finally:
        source.close()
        region_cache.stop()
        store.stop()


def test_rows_and_promises_arrive() -> None:
    with rig() as r:
        sent = r.poll_until_asked()
        assert (sent.request_id, sent.region_id, sent.checkpoint_ts, sent.header.cluster_id) == (1, 7, 5, 77)
        assert r.store.metadata[0]["features"] == "stream-multiplexing"
        (opened,) = r.got(SubscriptionOpened)
        r.store.say(wire.event(7, 1, wire.committed(b"ta", 6, 8), wire.INITIALIZED), wire.resolved(1, [7], 9))
        r.poll_until(lambda: r.got(Resolved))
        order = [type(e) for e in r.events if not isinstance(e, Tick)]
        assert order == [SubscriptionOpened, Rows, SubscriptionReady, Resolved]
        (ready,) = r.got(SubscriptionReady)
        assert opened.open_ts < ready.ready_ts
        cuts = [e.cut_ts for e in r.got(Tick)]
        assert cuts == sorted(set(cuts))
        assert ready.ready_ts in cuts


def test_more_than_fits_drops_the_stream_not_the_store() -> None:
    with rig(inbox_bytes_max=100_000) as r:
        r.make_ready()
        row = wire.event(7, 1, wire.committed(b"ta", 6, 8, b"v" * 1000))
        r.store.say(*[row] * 300)  # nobody polls
        assert r.store.over.wait(PATIENCE_S), "the store was made to wait"
        r.poll_until(lambda: r.got(SubscriptionClosed))
        assert sum(e.rows.num_rows for e in r.got(Rows)) < 300
        assert r.poll_until_asked().request_id == 1
        assert r.store.streams == 2


def test_without_pd_nothing_is_taken_and_nothing_is_lost() -> None:
    with rig() as r:
        r.make_ready()
        r.pd.away = True
        r.poll_until(lambda: r.refused)
        r.store.say(wire.event(7, 1, wire.committed(b"ta", 6, 8)))
        before, until = len(r.refused), time.monotonic() + 0.3
        r.poll_until(lambda: time.monotonic() > until)
        assert len(r.refused) > before
        assert r.got(Rows) == []
        r.pd.away = False
        r.poll_until(lambda: r.got(Rows))
        assert r.got(SubscriptionClosed) == []


def test_a_region_that_moves_is_followed_by_its_new_store() -> None:
    with rig() as r:
        other = FakeStore()
        r.pd.addresses[2] = other.address
        second = source_of(2, r.pd, r.region_cache)
        try:
            r.poll_until_asked()
            assert [type(e) for e in second.poll(0.01, lambda _: 5)] in ([], [Tick])
            r.store.say(wire.event(7, 1, error=wire.not_leader(7, 2)))
            r.pd.regions = []  # PD does not know yet
            r.poll_until(lambda: r.got(SubscriptionClosed))
            deadline = time.monotonic() + PATIENCE_S
            while other.asked.empty():
                assert time.monotonic() < deadline
                second.poll(0.05, lambda _: 5)
            assert other.next_request().region_id == 7
        finally:
            second.close()
            other.stop()


def test_tls_on_both_sides(tmp_path: Path) -> None:
    server, own, strangers = both_sides(tmp_path)
    with rig(credentials=server, tls=own) as r:
        r.make_ready()
    with rig(credentials=server, tls=strangers) as r:
        r.poll_until(lambda: r.refused)
        assert r.store.asked.empty()
