"""The source over gRPC on loopback: a store that says what it is told to, a PD in memory, a pusher behind it."""

from __future__ import annotations

import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from pusher.core.cdcpb import read_change_data
from pusher.core.source import (
    Resolved,
    Rows,
    SourceEvent,
    SubscriptionClosed,
    SubscriptionOpened,
    SubscriptionReady,
    Tick,
)
from pusher.tikv.source import TikvSource
from tests.kit import change_data as wire
from tests.kit.real_tikv import lines
from tistream.clock import SystemClock
from tistream.codec.protobuf import parse
from tistream.errors import InvalidInput, StoreUnavailable
from tistream.keyrange import KeyRange
from tistream.tikv.channels import Tls
from tistream.tikv.core.pd_messages import Region, Store
from tistream.tikv.core.regions import region_form
from tistream.tikv.core.wire import ChangeDataRequest
from tistream.tikv.region_cache import RegionCache

DATA = Path(__file__).parents[1] / "data" / "real_tikv"
TABLES = KeyRange(b"t", b"u")
PATIENCE_S = 20.0
_SECOND = 1000 << 18


@dataclass(slots=True)
class Asked:
    """A request that the store received."""

    request_id: int
    region_id: int
    checkpoint_ts: int
    deregister: bool
    cluster_id: int


class FakeStore:
    """`cdcpb.ChangeData/EventFeedV2` on loopback. `say` sends on the newest stream."""

    def __init__(self, credentials: grpc.ServerCredentials | None = None) -> None:
        self.asked: queue.SimpleQueue[Asked] = queue.SimpleQueue()
        self.metadata: list[dict[str, Any]] = []
        self.streams = 0
        self.over = threading.Event()  #: the client has ended a stream
        self._said: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._server = grpc.server(ThreadPoolExecutor(8))
        handler = grpc.stream_stream_rpc_method_handler(self._feed)
        self._server.add_generic_rpc_handlers(
            [grpc.method_handlers_generic_handler("cdcpb.ChangeData", {"EventFeedV2": handler})]
        )
        if credentials is None:
            self.port = self._server.add_insecure_port("127.0.0.1:0")
        else:
            self.port = self._server.add_secure_port("127.0.0.1:0", credentials)
        self._server.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def say(self, *messages: bytes) -> None:
        for message in messages:
            self._said.put(message)

    def hang_up(self) -> None:
        self._said.put(None)

    def next_request(self) -> Asked:
        return self.asked.get(timeout=PATIENCE_S)

    def stop(self) -> None:
        self.hang_up()
        self._server.stop(None).wait()

    def _feed(self, requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        self.metadata.append(dict(context.invocation_metadata()))
        self.streams += 1
        self._said = said = queue.SimpleQueue()
        context.add_callback(lambda: (said.put(None), self.over.set()))
        threading.Thread(target=self._listen, args=(requests,), daemon=True).start()
        while (message := said.get()) is not None:
            yield message

    def _listen(self, requests: Iterator[bytes]) -> None:
        try:
            for request in requests:
                asked = parse(ChangeDataRequest, request)
                self.asked.put(
                    Asked(
                        request_id=asked.request_id,
                        region_id=asked.region_id,
                        checkpoint_ts=asked.checkpoint_ts,
                        deregister=asked.HasField("deregister"),
                        cluster_id=asked.header.cluster_id,
                    )
                )
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
        found = [r for r in self.regions if (not r.end or r.end > start) and (not end or r.start < end)]
        return sorted(found, key=lambda r: r.start)[:limit]

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

    def poll_until_asked(self) -> Asked:
        self.poll_until(lambda: not self.store.asked.empty())
        return self.store.next_request()

    def make_ready(self) -> None:
        self.poll_until_asked()
        self.store.say(wire.event(7, 1, wire.INITIALIZED))
        self.poll_until(lambda: self.got(SubscriptionReady))


@contextmanager
def rig(*, region_id: int = 7, credentials: grpc.ServerCredentials | None = None, **options: Any) -> Iterator[Rig]:
    store, clock = FakeStore(credentials), SystemClock()
    pd = MemoryPd(regions=[region(region_id, b"t", b"u")], addresses={1: store.address})
    region_cache = RegionCache(pd, [TABLES], clock=clock, refresh_s=0.2)
    source = TikvSource(
        1, pd=pd, region_cache=region_cache, wanted=[TABLES], clock=clock, flush_interval_s=0.1, **options
    )
    region_cache.start()
    try:
        yield Rig(store, pd, region_cache, source)
    finally:
        source.close()
        region_cache.stop()
        store.stop()


def test_rows_and_promises_arrive() -> None:
    with rig() as r:
        asked = r.poll_until_asked()
        assert asked == Asked(request_id=1, region_id=7, checkpoint_ts=5, deregister=False, cluster_id=77)
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


def test_recorded_bytes_of_a_real_store() -> None:
    """The messages of txn_quiet's first stream, as they are: rows and the last promise."""
    recorded = [line for line in lines(DATA / "txn_quiet" / "stream.ndjson.zst") if line.get("stream") == 2]
    first = next(line for line in recorded if line["dir"] == "send")
    messages = [bytes.fromhex(line["msg_hex"]) for line in recorded if line["dir"] == "recv"]
    id_, request = first["region_id"], first["request_id"]
    expected, promised = [], 0
    for message in messages:
        said = read_change_data(message)
        for event in said.events:
            if event.request_id == request:
                assert (event.region_id, event.error) == (id_, None)
                expected += event.rows.to_pylist() if event.rows is not None else []
        if said.resolved is not None and said.resolved.request_id == request:
            promised = max(promised, said.resolved.ts)
    with rig(region_id=id_) as r:
        r.pd.now_ts = promised
        assert r.poll_until_asked().region_id == id_
        r.store.say(*messages)
        r.poll_until(lambda: r.got(Resolved) and r.got(Resolved)[-1].resolved_ts.tolist() == [promised])
        assert [row for e in r.got(Rows) for row in e.rows.to_pylist()] == expected
        assert len(expected) > 50


def test_a_stream_that_ends_is_opened_again() -> None:
    with rig() as r:
        r.make_ready()
        r.store.hang_up()
        r.checkpoint_ts = 6
        again = r.poll_until_asked()
        assert (again.request_id, again.checkpoint_ts) == (1, 6)
        r.poll_until(lambda: r.got(SubscriptionClosed))
        assert r.store.streams == 2
        assert r.refused == []


def test_a_store_that_cannot_be_reached() -> None:
    with rig() as r:
        r.make_ready()
        r.store.stop()
        r.poll_until(lambda: r.refused)
        assert r.refused[0].facts["store"] == 1
        ticks = len(r.got(Tick))
        r.poll_until(lambda: len(r.got(Tick)) > ticks)


def test_resubscribe_drop_and_resume() -> None:
    with rig() as r:
        r.poll_until_asked()
        r.source.resubscribe([1])
        asked = [r.poll_until_asked(), r.poll_until_asked()]
        assert [(a.request_id, a.deregister) for a in asked] == [(1, True), (2, False)]
        r.poll_until(lambda: r.got(SubscriptionClosed))
        r.source.drop()
        r.events.clear()
        ticks = time.monotonic() + 0.3
        r.poll_until(lambda: time.monotonic() > ticks)
        assert {type(e) for e in r.events} == {Tick}
        r.source.resume()
        assert r.poll_until_asked().request_id == 1
        assert r.got(SubscriptionOpened)[-1].subscription == 3


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


def test_damage_is_survived() -> None:
    with rig() as r:
        r.poll_until_asked()
        r.store.say(b"\x0a\x02\xff\xff")
        assert r.poll_until_asked().request_id == 1
        r.store.say(wire.event(7, 1, wire.INITIALIZED))
        r.poll_until(lambda: r.got(SubscriptionReady))
        assert r.store.streams == 2


def test_another_cluster_is_refused() -> None:
    with rig() as r:
        r.poll_until_asked()
        r.store.say(wire.event(7, 1, error=wire.cluster_id_mismatch(5, 77)))
        with pytest.raises(InvalidInput, match="belongs to cluster 5, not 77"):
            r.poll_until(lambda: False)


def test_a_region_that_fails_again_and_again_is_a_problem_to_see() -> None:
    with rig(failures_shown=3) as r:
        for _ in range(3):
            r.poll_until_asked()
            assert r.source.problems() == []
            r.store.say(wire.event(7, 1, error=wire.region_not_found(7)))
        r.poll_until(r.source.problems)
        (problem,) = r.source.problems()
        assert problem.facts["region"] == 7
        assert problem.facts["reason"] == "REGION_NOT_FOUND"


def test_a_region_that_moves_is_followed_by_its_new_store() -> None:
    with rig() as r:
        other = FakeStore()
        r.pd.addresses[2] = other.address
        second = TikvSource(
            2, pd=r.pd, region_cache=r.region_cache, wanted=[TABLES], clock=SystemClock(), flush_interval_s=0.1
        )
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
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True)
    pair = (key.read_bytes(), certificate.read_bytes())
    server = grpc.ssl_server_credentials([pair], root_certificates=pair[1], require_client_auth=True)
    mine = Tls(ca=pair[1], certificate=pair[1], key=pair[0])
    with rig(credentials=server, tls=mine) as r:
        r.make_ready()
    with rig(credentials=server, tls=Tls(ca=pair[1])) as r:
        r.poll_until(lambda: r.refused)
        assert r.store.asked.empty()
