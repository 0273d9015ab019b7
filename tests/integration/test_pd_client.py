"""The PD client against servers that lead, follow, die, hang and refuse."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest

from tests.kit.certificates import both_sides, listening
from tests.kit.waiting import eventually
from tistream import ts
from tistream.codec.protobuf import BYTES, VARINT, merged, message, octets, uint
from tistream.errors import ErrorKind, InvalidInput, NotFound, StoreUnavailable, TsExpired
from tistream.tikv.core.pd_messages import PdRefused
from tistream.tikv.pd import PdClient

CLUSTER = 7
REGION = message(1, uint(1, 2) + octets(3, b"m") + message(4, uint(1, 1) + uint(2, 38))) + message(2, uint(2, 4))


def head(error: int = 0, text: str = "") -> bytes:
    return message(1, uint(1, CLUSTER) + (message(2, uint(1, error) + octets(2, text.encode())) if error else b""))


@dataclass(slots=True)
class Pds:
    """What the servers share: who leads, and the clock."""

    leader: str = ""
    addresses: list[str] = field(default_factory=list)
    now: int = ts.compose(1_700_000_000_000)
    answers: dict[str, bytes] = field(default_factory=dict)  #: by method
    counts: list[int] = field(default_factory=list)  #: of timestamps asked for at once
    cluster_id: int = CLUSTER
    lock: threading.Lock = field(default_factory=threading.Lock)
    slow_tso_s: float = 0.0
    closing: threading.Event = field(default_factory=threading.Event)


class Pd(grpc.GenericRpcHandler):  # type: ignore[misc]  # untyped base
    """One PD server."""

    def __init__(self, pds: Pds, credentials: grpc.ServerCredentials | None = None) -> None:
        self._pds = pds
        self.server = grpc.server(ThreadPoolExecutor(16), handlers=[self])
        self.address = listening(self.server, credentials)
        pds.addresses.append(self.address)
        pds.leader = pds.leader or self.address

    def service(self, details: Any) -> grpc.RpcMethodHandler | None:
        method = details.method.rsplit("/", 1)[1]
        if method == "GetMembers":
            return grpc.unary_unary_rpc_method_handler(lambda _, __: self._members())
        if method == "Tso":
            return grpc.stream_stream_rpc_method_handler(self._tso)
        if method in self._pds.answers:
            return grpc.unary_unary_rpc_method_handler(lambda _, context: self._answer(method, context))
        return None

    def _members(self) -> bytes:
        member: Callable[[str], bytes] = lambda a: octets(4, f"http://{a}".encode())  # noqa: E731
        answer = message(1, uint(1, self._pds.cluster_id))
        answer += b"".join(message(2, member(a)) for a in self._pds.addresses)
        return answer + (message(3, member(self._pds.leader)) if self._pds.leader else b"")

    def _check(self, context: Any) -> None:
        if self._pds.leader != self.address:
            context.abort(grpc.StatusCode.UNAVAILABLE, "not leader")

    def _answer(self, method: str, context: Any) -> bytes:
        self._check(context)
        return self._pds.answers[method]

    def _tso(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        for request in requests:
            self._check(context)
            said = merged(request, {1: BYTES, 2: VARINT})
            assert merged(said[1], {1: VARINT}) == {1: CLUSTER}
            with self._pds.lock:
                self._pds.counts.append(said[2])
                self._pds.now += said[2]
                now = self._pds.now
            self._pds.closing.wait(self._pds.slow_tso_s)
            yield head() + uint(2, said[2]) + message(3, uint(1, ts.physical_ms(now)) + uint(2, ts.logical(now)))


@pytest.fixture
def pds() -> Pds:
    return Pds()


@pytest.fixture
def servers(pds: Pds) -> Iterator[list[Pd]]:
    out = [Pd(pds), Pd(pds)]
    yield out
    pds.closing.set()
    for server in out:
        server.server.stop(None).wait()


def client(pds: Pds, **options: Any) -> PdClient:
    return PdClient(pds.addresses, **{"rand": random.Random(1), "patience_s": 10.0, **options})


@pytest.fixture
def pd(pds: Pds, servers: list[Pd]) -> Iterator[PdClient]:
    new_client = client(pds)
    yield new_client
    new_client.close()


def test_timestamps_rise_and_callers_share_a_request(pds: Pds, servers: list[Pd], pd: PdClient) -> None:
    timestamps_of: list[list[int]] = [[] for _ in range(8)]
    pds.slow_tso_s = 0.005

    def take(timestamps: list[int]) -> None:
        for _ in range(50):
            timestamps.append(pd.tso())

    threads = [threading.Thread(target=take, args=(timestamps,)) for timestamps in timestamps_of]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(timestamps == sorted(set(timestamps)) for timestamps in timestamps_of)
    assert len({t for timestamps in timestamps_of for t in timestamps}) == 8 * 50
    assert sum(pds.counts) == 8 * 50
    assert len(pds.counts) < 200


def test_a_client_that_rests_has_no_threads(pds: Pds, servers: list[Pd], pd: PdClient) -> None:
    def reads() -> bool:
        return any(thread.name == "pd-tso" for thread in threading.enumerate())

    first = pd.tso()
    assert reads()
    pd.rest()
    eventually(lambda: not reads())
    assert pd.tso() > first


def test_an_old_server_is_asked_in_the_old_form(pds: Pds, servers: list[Pd], pd: PdClient) -> None:
    region = merged(REGION, {1: BYTES, 2: BYTES})
    pds.answers["ScanRegions"] = head() + message(2, region[1]) + message(3, region[2])
    pds.answers["UpdateServiceGCSafePoint"] = head() + octets(2, b"gc_worker") + uint(4, 100)
    assert [r.id for r in pd.scan_regions(b"", b"", 10)] == [2]
    assert [r.leader_store_id for r in pd.scan_regions(b"", b"", 10)] == [4]
    pd.hold_history("tistream", 100, 60)
    with pytest.raises(TsExpired):
        pd.hold_history("tistream", 99, 60)


def test_history_that_is_gone_cannot_be_held(pds: Pds, servers: list[Pd], pd: PdClient) -> None:
    error = "[PD:gc:ErrGCBarrierTSBehindTxnSafePoint]trying to set a GC barrier"
    pds.answers["SetGCBarrier"] = head(1, error)
    with pytest.raises(TsExpired):
        pd.hold_history("tistream", 99, 60)
    pds.answers["SetGCBarrier"] = head(1, "[PD:common:ErrInvalidArgument]")
    with pytest.raises(PdRefused):
        pd.hold_history("tistream", 99, 60)
    pds.answers["LoadKeyspace"] = head(9, "keyspace does not exist")
    with pytest.raises(NotFound):
        pd.keyspace("ks")
    pds.answers["LoadKeyspace"] = head() + message(2, uint(1, 4242) + octets(2, b"ks"))
    assert (pd.keyspace("ks").id, pd.keyspace("ks").state) == (4242, 0)


def test_a_keyspace_is_found_by_its_id(pds: Pds, servers: list[Pd], pd: PdClient) -> None:
    with closing(client(pds)) as early:
        assert early.keyspace_of_id(8) is None, "an older server has no such method"
    pds.answers["GetAllKeyspaces"] = head() + message(2, uint(1, 9) + octets(2, b"later") + uint(3, 1))
    with pytest.raises(NotFound):
        pd.keyspace_of_id(8)
    keyspace = pd.keyspace_of_id(9)
    assert keyspace is not None
    assert (keyspace.name, keyspace.state) == ("later", 1)
    pds.answers["GetAllKeyspaces"] = head()
    with pytest.raises(NotFound):
        pd.keyspace_of_id(9)


def test_no_leader_and_no_server_is_unavailable_in_time(pds: Pds, servers: list[Pd]) -> None:
    pds.leader = ""
    pd = client(pds, patience_s=0.5)
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        pd.tso()
    for server in servers:
        server.server.stop(None).wait()
    with pytest.raises(StoreUnavailable):
        pd.stores()
    assert time.monotonic() - began < 20
    pd.close()
    with pytest.raises(StoreUnavailable):
        pd.tso()


def test_a_stream_that_says_nothing_is_given_up(pds: Pds, servers: list[Pd], pd: PdClient) -> None:
    pds.slow_tso_s = 30.0

    def wake_up() -> None:
        pds.slow_tso_s = 0.0

    timer = threading.Timer(1.0, wake_up)  # while the first request hangs
    timer.start()
    began = time.monotonic()
    assert pd.tso() > 0
    assert 1.0 < time.monotonic() - began < 20
    timer.join()


def test_another_cluster_is_refused(pds: Pds, servers: list[Pd], pd: PdClient) -> None:
    pd.tso()
    pds.cluster_id = CLUSTER + 1
    pds.leader = servers[1].address
    with pytest.raises(InvalidInput):
        pd.tso()


def test_a_method_that_a_server_lacks_for_a_while_is_asked_for_again(pds: Pds, servers: list[Pd], pd: PdClient) -> None:
    with pytest.raises(PdRefused, match="does not have the method") as e:
        pd.stores()
    assert e.value.kind is ErrorKind.RETRY
    pds.answers["GetAllStores"] = head()
    assert pd.stores() == []


#: what PD servers say that start, stop, lose their lead, or wait for etcd; the last one no version says
PASSING = [
    (grpc.StatusCode.UNAVAILABLE, "not leader"),
    (grpc.StatusCode.UNKNOWN, "[PD:tso:ErrGenerateTimestamp]timestamp in memory isn't initialized"),
    (grpc.StatusCode.UNKNOWN, "[PD:tso:ErrGenerateTimestamp]requested pd is not leader of cluster anymore"),
    (grpc.StatusCode.UNKNOWN, "[PD:etcd:ErrEtcdKVGet]etcdserver: request timed out"),
    (grpc.StatusCode.UNKNOWN, "Stream removed"),
    (grpc.StatusCode.INTERNAL, "received RST_STREAM"),
    (grpc.StatusCode.RESOURCE_EXHAUSTED, "rate limit exceeded"),
    (grpc.StatusCode.UNAUTHENTICATED, "token expired"),
    (grpc.StatusCode.DATA_LOSS, "it is Tuesday"),
]


@pytest.mark.parametrize(("code", "text"), PASSING)
def test_pd_errors_are_retried_at_the_leader(
    pds: Pds, servers: list[Pd], pd: PdClient, code: grpc.StatusCode, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each server says the error until it leads; the lead moves while streams and connections are open."""

    def check(self: Pd, context: Any) -> None:
        if pds.leader != self.address:
            context.abort(code, text)

    monkeypatch.setattr(Pd, "_check", check)
    pds.answers["BatchScanRegions"] = head() + message(2, REGION)
    first = pd.tso()
    pds.leader = servers[1].address
    assert pd.tso() > first
    assert [r.id for r in pd.scan_regions(b"", b"m", 10)] == [2]
    pds.leader = servers[0].address
    assert [r.id for r in pd.scan_regions(b"", b"m", 10)] == [2]
    assert pd.newest_tso == pd.tso() - 1


def test_timestamps_that_fall_are_not_taken(pds: Pds, servers: list[Pd]) -> None:
    pd = client(pds, patience_s=0.2)
    first = pd.tso()
    pds.now -= 1000
    with pytest.raises(StoreUnavailable, match="returned before"):
        pd.tso()
    pds.now += 2000
    assert pd.tso() > first
    pd.close()


def test_a_member_that_belongs_to_another_cluster_is_passed_over(pds: Pds, servers: list[Pd]) -> None:
    """An address that was a PD server's may be another cluster's a day later."""
    strangers = Pds(cluster_id=CLUSTER + 1)
    stranger = Pd(strangers)
    pds.addresses.insert(0, stranger.address)
    pds.addresses.remove(servers[1].address)
    pd = PdClient([servers[0].address, stranger.address], rand=random.Random(1))
    pd.tso()
    pds.leader = ""
    moved = threading.Timer(0.3, setattr, (pds, "leader", servers[0].address))
    moved.start()
    servers[1].server.stop(None).wait()
    assert pd.tso() > 0
    moved.join()
    pd.close()
    stranger.server.stop(None).wait()


@pytest.mark.parametrize("answer", [b"", b"<html>404</html>", message(1, b""), head(2, "cluster is not bootstrapped")])
def test_invalid_members_are_retried(
    pds: Pds, servers: list[Pd], answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Pd._members
    monkeypatch.setattr(Pd, "_members", lambda _: answer)
    pd = client(pds, patience_s=0.1)
    with pytest.raises(StoreUnavailable):
        pd.tso()
    monkeypatch.setattr(Pd, "_members", plain)
    assert pd.tso() > 0
    assert pd.cluster_id == CLUSTER
    pd.close()


def test_tls(pds: Pds, tmp_path: Path) -> None:
    both, own, strangers = both_sides(tmp_path)
    server = Pd(pds, both)
    with closing(client(pds, tls=own)) as pd, closing(client(pds, tls=strangers, patience_s=0.3)) as stranger:
        assert pd.tso() == pds.now
        with pytest.raises(StoreUnavailable):
            stranger.tso()
    server.server.stop(None).wait()
