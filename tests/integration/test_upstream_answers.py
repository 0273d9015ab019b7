"""Each request of a push, answered by each error of its protocol, by unknown ones, by silence and by nonsense.

The push stays alive, says what is wrong, goes on once the answer is well again, and loses no row. It ends only where a
refusal is known to be final. The cluster is served over gRPC, the control plane over HTTP; whoever waits by the push's
clock waits a tenth as long.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from importlib.resources import files
from pathlib import Path

import grpc
import httpx2
import pytest

from pusher.control import ControlUnavailable, HttpControl
from pusher.tenant_store import TenantStore
from pusher.tikv.source import SourceOptions
from simulator.capture import Capture
from simulator.serve.content import recorded_cluster
from simulator.serve.served import CLUSTER_ID, ServedCluster
from tests.kit import upstream_answers as grpc_faults
from tests.kit.control_http import ControlHttp, HttpFault, hang_up, page, problem
from tests.kit.control_http import silence as http_silence
from tests.kit.push_bench import TENANT, PushBench, a_bench, complete
from tests.kit.served_recording import RecordedClock
from tests.kit.upstream_answers import (
    FEED,
    GRPC_FAULTS,
    TSO,
    GrpcFault,
    HastyClock,
    Upstream,
    header_error,
    key_error,
    region_error,
    registration_error,
    said,
    status,
)
from tistream import ts
from tistream.codec.protobuf import message, octets, uint
from tistream.codec.seed_file import manifest_key, read_manifest
from tistream.errors import Fenced, InvalidInput, NotAllowed, NotFound, TenantDeleted, TiStreamError, Unauthenticated
from tistream.tikv.core.kv_messages import KvRefused
from tistream.tikv.pd import PdClient
from tistream.tikv.pd_channel import PdChannel

RECORDING = Path(str(files("simulator") / "recording"))
RECORDED_S = 470613530891255808
S = ts.compose(int(time.time() * 1000) - 60_000)
NAMED_S = 60.0  #: so soon on a busy machine a push says what is wrong
JUDGE_S = 0.2
PD = "/pdpb.PD/"
KV_SCAN = "/tikvpb.Tikv/KvScan"
MEMBERS, STORES, REGION, REGIONS, HOLD = (
    PD + name for name in ("GetMembers", "GetAllStores", "GetRegion", "BatchScanRegions", "SetGCBarrier")
)
HEAD = message(1, uint(1, CLUSTER_ID))
SILENT = grpc_faults.silence("Deadline Exceeded")
NO_MESSAGE = said(b"<html>502</html>", "a message is damaged")
FOREIGN_TYPE = said(HEAD + uint(2, 7) + uint(3, 7) + uint(4, 7), "wrong wire type")
NO_CLUSTER = said(b"", "no cluster id")
HEADERS = [header_error(kind, f"error {kind} of a header") for kind in (*range(1, 12), 99)]
PD_FAULTS = [*GRPC_FAULTS, *HEADERS, SILENT, NO_MESSAGE, FOREIGN_TYPE, NO_CLUSTER]
PD_POINTS: dict[str, list[GrpcFault]] = {
    MEMBERS: [*GRPC_FAULTS, *HEADERS, SILENT, NO_MESSAGE],
    TSO: [
        *GRPC_FAULTS,
        *HEADERS,
        grpc_faults.silence("no answer on the timestamp stream"),
        NO_MESSAGE,
        said(b"", "invalid timestamps"),
    ],
    STORES: [*PD_FAULTS, said(HEAD, "no store"), said(HEAD + message(2, octets(2, b"x:1")), "without an id")],
    REGION: [*PD_FAULTS, said(HEAD, "knows no leader")],
    REGIONS: [*PD_FAULTS, said(HEAD, "lists no region"), said(HEAD + message(2, message(1, b"")), "without an id")],
    HOLD: PD_FAULTS,
}
#: it cannot be told from a right one before there was another
FALLEN = said(HEAD + uint(2, 1) + message(3, uint(1, 1)), "returned before")
REGION_ERRORS = dict(
    enumerate(
        (
            *("not_leader", "region_not_found", "key_not_in_region", "epoch_not_match", "server_is_busy"),
            *("stale_command", "store_not_match", "raft_entry_too_large", "max_timestamp_not_synced"),
            *("read_index_not_ready", "proposal_in_merging_mode", "data_is_not_ready", "region_not_initialized"),
            *("disk_full", "recovery_in_progress", "flashback_in_progress", "flashback_not_prepared", "is_witness"),
            *("mismatch_peer_id", "bucket_version_not_match", "undetermined_result"),
        ),
        2,
    )
)
SCAN_FAULTS = [
    *GRPC_FAULTS,
    *(region_error(kind, f"words of {name}") for kind, name in REGION_ERRORS.items()),
    region_error(99, "words of an error that is not known"),
    key_error(2, "retryable, says a store"),
    key_error(3, "abort, says a store"),
    *(key_error(kind, "unknown reason", is_text=False) for kind in (4, 5, 8, 99)),
    SILENT,
    NO_MESSAGE,
    said(HEAD, "wrong wire type"),
    said(message(2, octets(2, b"zzz") + octets(3, b"v")), "not requested"),
]
FEED_FAULTS = [
    *GRPC_FAULTS,
    *(
        registration_error(kind, name)
        for kind, name in (
            (1, "NOT_LEADER"),
            (2, "REGION_NOT_FOUND"),
            (3, "EPOCH_NOT_MATCH"),
            (4, "DUPLICATE_REQUEST"),
            (7, "SERVER_IS_BUSY"),
            (8, "CONGESTED"),
            (99, "OTHER"),
        )
    ),
    NO_MESSAGE,
    grpc_faults.silence("makes no progress"),
]
STATUSES = (302, 400, 401, 403, 404, 408, 409, 410, 429, 500, 502, 503, 520, 599)
HTTP_FAULTS: list[HttpFault] = [
    *(page(code, b"<html>not the service</html>") for code in STATUSES),
    page(200, b"<html>starting</html>", "invalid answer"),
    page(200, b"", "invalid answer"),
    page(200, b"5", "invalid answer"),
    page(200, b'{"items": 7, "there": 7, "credentials": 7}', "invalid answer"),
    page(200, b"{", "invalid answer", Content_Encoding="gzip"),
    problem(400, "TS-9999", "a code that is not known"),
    problem(500, "TS-1000", "a defect of the service"),
    problem(503, "TS-1040", "the catalog is away"),
    hang_up(),
    hang_up(b"SSH-2.0-OpenSSH\r\n"),
    http_silence(),
]
HTTP_POINTS = (
    "push",
    "begin",
    "schemas",
    "schema",
    "credentials",
    "issue",
    "frontier",
    "has_seed",
    "add_seed",
    "newest",
    "wanted_seeds",
)


class World:
    """A served cluster and a control plane over HTTP, a push, and faults."""

    def __init__(self, bench: PushBench, upstream: Upstream, http: ControlHttp, patch: pytest.MonkeyPatch) -> None:
        self.bench, self.upstream, self.http = bench, upstream, http
        patch.setattr(HttpControl, "timeout_s", 1.0)
        control = self.control = HttpControl(http.url, TENANT, token="x")
        bench.push_control, bench.clock = control, HastyClock()
        patch.setattr("pusher.tenant_store.open_session", lambda *_: bench.store)
        bench.open_store = lambda url: TenantStore(url, control, bench.clock)
        bench.options |= {"flush_interval_s": 3.0}

    def close(self) -> None:
        self.bench.stop()
        self.control.close()

    def arm(self, point: str, fault: GrpcFault | HttpFault | None) -> None:
        if isinstance(fault, HttpFault):
            self.http.faults[point] = fault
        elif isinstance(fault, GrpcFault):
            self.upstream.arm(point, fault)
        else:
            self.http.faults.pop(point, None)
            self.upstream.disarm(point)

    def endure(self, faults: Mapping[str, Sequence[GrpcFault | HttpFault]]) -> None:
        """Each point gives its faults one after another, each until the push has named it."""
        left: dict[str, list[GrpcFault | HttpFault]] = {point: list(given) for point, given in faults.items()}
        for point, given in left.items():
            self.arm(point, given[0])
        judge_at, deadline = 0.0, time.monotonic() + NAMED_S
        while left:
            for point, given in list(left.items()):
                if self.hits(point) and any(given[0].words in text for text in list(self.bench.problems)):
                    given.pop(0)
                    self.bench.problems.clear()
                    self.arm(point, given[0] if given else None)
                    deadline = time.monotonic() + NAMED_S
            left = {point: given for point, given in left.items() if given}
            if self.bench.error is not None:
                raise self.bench.error
            assert time.monotonic() < deadline, (next(iter(left.items())), self.bench.problems, self.bench.seen)
            if time.monotonic() >= judge_at:
                judge_at = time.monotonic() + JUDGE_S
                self.bench.activate()
                if self.bench.control.entries:
                    self.bench.judge()
            time.sleep(0.005)

    def hits(self, point: str) -> int:
        return self.upstream.hits[point] + self.http.hits[point]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Short timeouts and intervals of a push."""
    for name, value in (
        ("pusher.tikv_push._PD_PATIENCE_S", 0.0),
        ("pusher.tikv_push._BARRIER_S", 1.0),
        ("pusher.tikv_push._STORES_S", 1.0),
        ("tistream.tikv.pd_channel._CALL_S", 0.2),
        ("tistream.tikv.pd_tso._ANSWER_S", 0.2),
        ("tistream.tikv.kv_scan._CALL_S", 0.2),
        ("tistream.tikv.kv_scan.BUSY_S", 0.5),
        ("pusher.tikv.core.scans.STALLED_S", 3.0),
        ("tistream.tikv.region_cache._GAP_SHOWN_S", 1.0),
        ("pusher.store_push._SHOWN_S", 1.0),
        ("pusher.tikv_push.SourceOptions", partial(SourceOptions, failures_shown=2)),
    ):
        monkeypatch.setattr(name, value, raising=False)
    region_cache = __import__("tistream.tikv.region_cache", fromlist=["RegionCache"]).RegionCache
    monkeypatch.setattr("pusher.tikv_push.RegionCache", partial(region_cache, refresh_s=1.0))
    return monkeypatch


@pytest.fixture
def beginning(quick: pytest.MonkeyPatch) -> Iterator[World]:
    """A tenant that begins with the rows of a recorded cluster."""
    upstream = Upstream()
    cluster = recorded_cluster(RECORDING, floor_ts=RECORDED_S, regions=12)
    with ServedCluster(cluster, clock=RecordedClock(), resolved_s=0.1, interceptors=[upstream]) as served:
        bench = PushBench(served, RECORDED_S, start_ts=RECORDED_S, seed=True)
        with ControlHttp(bench.control, bench.store) as http:
            world = World(bench, upstream, http, quick)
            yield world
            world.close()


@pytest.fixture
def living(quick: pytest.MonkeyPatch) -> Iterator[World]:
    """A push that follows a cluster with a workload."""
    upstream = Upstream()
    for bench in a_bench(S, interceptors=[upstream]):
        with ControlHttp(bench.control, bench.store) as http:
            world = World(bench, upstream, http, quick)
            bench.start()
            bench.until(lambda b=bench: b.watermark > S)  # type: ignore[misc]
            yield world
            world.close()


def seeded_rows(bench: PushBench) -> int:
    name = str(manifest_key(TENANT, RECORDED_S, 0))
    return read_manifest(name, bench.store.get(name), TENANT, RECORDED_S, 0).rows


def begins(world: World) -> None:
    """The tenant begins, its seed is whole, and its log is complete up to now."""
    bench = world.bench
    bench.until(lambda: (RECORDED_S, 0) in bench.control.seeds)
    now = bench.served.tso()
    bench.until(lambda: bench.watermark >= now)
    truth = [line["key"] for _, line in Capture(RECORDING).snapshot() if line["key"].startswith("74")]
    assert seeded_rows(bench) == sum(key[18:22] == "5f72" for key in truth) > 100
    assert len(bench.snapshots()) == 1
    bench.stop()
    assert bench.error is None


def test_a_beginning_outlives_every_answer_of_pd_and_stores(beginning: World) -> None:
    beginning.bench.start()
    points = {point: PD_POINTS[point] for point in (MEMBERS, TSO, STORES, REGION, HOLD)}
    beginning.endure({**points, KV_SCAN: SCAN_FAULTS})
    begins(beginning)


def test_a_beginning_outlives_every_answer_of_the_control_plane(beginning: World) -> None:
    beginning.bench.start()
    beginning.endure(dict.fromkeys(HTTP_POINTS, HTTP_FAULTS))
    begins(beginning)


@pytest.mark.parametrize("point", [TSO, STORES, REGIONS, HOLD, FEED])
def test_a_push_outlives_every_answer_of_pd_and_stores(living: World, point: str) -> None:
    if point == FEED:
        with living.bench.served.changing():
            living.bench.served.streams.cut_all()
    living.endure({point: {**PD_POINTS, TSO: [*PD_POINTS[TSO], FALLEN], FEED: FEED_FAULTS}[point]})
    complete(living.bench)


@pytest.mark.parametrize("point", ["frontier", "newest"])
def test_a_push_outlives_every_answer_of_the_control_plane(living: World, point: str) -> None:
    living.endure({point: HTTP_FAULTS})
    complete(living.bench)


FINAL: list[tuple[str, GrpcFault | HttpFault, type[TiStreamError]]] = [
    ("push", problem(401, "TS-1080", "no valid key"), Unauthenticated),
    ("push", problem(403, "TS-1081", "may not push"), NotAllowed),
    ("push", problem(404, "TS-1010", "no such tenant"), NotFound),
    ("push", problem(410, "TS-1016", "the tenant is deleted"), TenantDeleted),
    ("frontier", problem(410, "TS-1016", "the tenant is deleted"), TenantDeleted),
    ("issue", problem(409, "TS-1050", "somebody else"), Fenced),
    ("newest", page(200, b'{"incarnation": 77}', "another pusher"), Fenced),
    (STORES, status(grpc.StatusCode.FAILED_PRECONDITION, "mismatch cluster id, need 1 but got 2"), InvalidInput),
    (KV_SCAN, key_error(3, "Error(ApiVersionNotMatched { cmd: scan })"), KvRefused),
    (FEED, registration_error(5, "compatibility"), InvalidInput),
    (FEED, registration_error(6, "cluster id"), InvalidInput),
]


@pytest.mark.parametrize(("point", "fault", "kind"), FINAL)
def test_final_errors_end_a_push(
    beginning: World, point: str, fault: GrpcFault | HttpFault, kind: type[TiStreamError]
) -> None:
    beginning.arm(point, fault)
    beginning.bench.start()
    assert type(beginning.bench.until_it_fails()) is kind


def _old_judge(_: PdChannel, method: str, error: grpc.RpcError) -> str:
    """Whatever is not known to pass is final."""
    if error.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED):
        return str(error.details())
    raise InvalidInput("PD refused", method=method)


def _old_problem(url: str, response: httpx2.Response) -> TiStreamError:
    """The status decides, whoever sent it."""
    passes = response.status_code in (429, 502, 503, 504)
    return (ControlUnavailable if passes else InvalidInput)(f"answered {response.status_code}", url=url)


def _old_nonsense(url: str, cause: str) -> TiStreamError:
    return TiStreamError("the control plane sent an invalid answer", url=url, cause=cause)


def _old_read(_: PdClient, read: Callable[[bytes], object], answer: bytes) -> object:
    """No answer is doubted: an empty one means that there is nothing, or that it was done."""
    return read(answer)


def _old_refusal(*_: object) -> InvalidInput:
    """Each error of a registration is final."""
    return InvalidInput("the store refuses")


MUTANTS: list[tuple[str, object, str, GrpcFault | HttpFault]] = [
    ("tistream.tikv.pd_channel.PdChannel._judge", _old_judge, STORES, GRPC_FAULTS[1]),
    ("tistream.tikv.pd_channel.PdChannel._judge", _old_judge, TSO, GRPC_FAULTS[2]),
    ("tistream.tikv.pd.PdClient._read", _old_read, STORES, NO_MESSAGE),
    ("tistream.tikv.pd.PdClient._read", _old_read, HOLD, NO_CLUSTER),
    ("pusher.control._problem", _old_problem, "frontier", page(404, b"default backend - 404")),
    ("pusher.control._problem", _old_problem, "newest", page(520, b"")),
    ("pusher.control._invalid_answer", _old_nonsense, "frontier", page(200, b"<html>", "invalid answer")),
    ("pusher.tikv.core.feed.refusal", _old_refusal, FEED, registration_error(99, "OTHER")),
]


@pytest.mark.parametrize(("name", "mutant", "point", "fault"), MUTANTS)
def test_a_mutant_is_noticed(
    living: World, monkeypatch: pytest.MonkeyPatch, name: str, mutant: object, point: str, fault: GrpcFault | HttpFault
) -> None:
    monkeypatch.setattr(name, mutant)
    monkeypatch.setattr("tests.integration.test_upstream_answers.NAMED_S", 3.0)
    if point == FEED:
        with living.bench.served.changing():
            living.bench.served.streams.cut_all()
    with pytest.raises((TiStreamError, AssertionError)):  # often enough for each caller of `point` to meet it
        living.endure({point: [fault] * 10})
