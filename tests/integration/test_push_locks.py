"""Locks of lost clients hold a resolved ts back until the push ends them, as the cluster's protocol has it."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from pusher.schema_push import empty_snapshot
from pusher.tikv.checks import check_cluster
from simulator.core.mvcc import Lock, Version
from simulator.serve.content import cluster_of
from simulator.serve.served import ServedCluster
from tests.kit import upstream_answers as grpc_faults
from tests.kit.push_bench import PushBench
from tests.kit.upstream_answers import HastyClock, Upstream
from tistream import ts
from tistream.clock import SystemClock
from tistream.codec.protobuf import message, octets
from tistream.codec.table_key import record_key
from tistream.diagnostics.findings import Verdict
from tistream.model.change import Op
from tistream.tikv.core.ranges import whole_cluster
from tistream.tikv.pd import PdClient

S = ts.compose(int(time.time() * 1000) - 60_000)
START = S + (1000 << 18)  #: 59 s ago
PRIMARY, SECONDARY, OTHER = (record_key(100, n) for n in (1, 500, 900))
COMMIT = START + 9


@pytest.fixture
def upstream() -> Upstream:
    return Upstream()


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch, upstream: Upstream) -> Iterator[PushBench]:
    """Three keys in three regions, of three stores."""
    monkeypatch.setattr("pusher.tikv_push._LOCK_CHECK_S", 0.1)
    versions = [(key, Version(S - 9, S - 8, Op.PUT, b"old", None)) for key in (PRIMARY, SECONDARY, OTHER)]
    cluster = cluster_of(versions, floor_ts=S, regions=3)
    with ServedCluster(cluster, resolved_s=0.1, interceptors=[upstream]) as served:
        made = PushBench(served, S, schema_snapshot=empty_snapshot(S))
        yield made
        made.stop()


def lock(bench: PushBench, *keys: bytes) -> None:
    """A transaction whose client is lost behind its prewrites."""
    with bench.served.changing() as cluster:
        for key in keys:
            cluster.prewrite(key, Lock(START, Op.PUT, b"new", b"old"))
            bench.served.reads.primaries[key] = PRIMARY


def is_complete(bench: PushBench) -> None:
    """No lock holds anything back."""
    now = bench.served.tso()
    bench.until(lambda: bench.watermark >= now)
    bench.until(lambda: not bench.seen.problems)
    with bench.served.changing() as cluster:
        assert not cluster.held()


def served_rows(bench: PushBench) -> dict[bytes, tuple[int, bytes | None]]:
    found = {key: (at, change.value) for oracle in bench.oracles for (key, at), change in oracle.served.items()}
    assert bench.error is None
    return found


def test_a_transaction_whose_client_is_gone_is_rolled_back(bench: PushBench) -> None:
    lock(bench, PRIMARY, SECONDARY)
    bench.start()
    is_complete(bench)
    assert served_rows(bench) == {}
    with bench.served.changing() as cluster:
        assert [cluster.versions(key)[0].value for key in (PRIMARY, SECONDARY)] == [b"old", b"old"]


def test_a_secondary_of_a_committed_transaction_is_committed_with_it(bench: PushBench) -> None:
    lock(bench, PRIMARY, SECONDARY)
    with bench.served.changing() as cluster:
        cluster.commit(PRIMARY, start_ts=START, commit_ts=COMMIT)
    bench.start()
    is_complete(bench)
    assert served_rows(bench) == {PRIMARY: (COMMIT, b"new"), SECONDARY: (COMMIT, b"new")}


def test_a_secondary_whose_primary_was_never_written_is_rolled_back(bench: PushBench) -> None:
    lock(bench, SECONDARY)
    bench.start()
    is_complete(bench)
    assert served_rows(bench) == {}


def test_a_transaction_that_lives_is_named_and_left_alone(bench: PushBench) -> None:
    """Its client renews the primary lock; a secondary keeps the time to live that it began with."""
    lock(bench, PRIMARY, SECONDARY)
    bench.served.reads.renewed_ms[START] = 3_600_000
    bench.start()
    bench.until(lambda: sum(f"transaction {START}" in p for p in bench.seen.problems) == 2)
    of_primary, of_secondary = (next(p for p in bench.seen.problems if key.hex() in p) for key in (PRIMARY, SECONDARY))
    assert "s old, holds its resolved ts back: its time to live has not expired" in of_primary
    assert "holds its resolved ts back: its client is alive" in of_secondary
    assert of_primary.startswith("region ")
    time.sleep(0.3)
    with bench.served.changing() as cluster:
        assert cluster.lock(PRIMARY)
        assert cluster.lock(SECONDARY)
        cluster.commit(PRIMARY, start_ts=START, commit_ts=COMMIT)
        cluster.commit(SECONDARY, start_ts=START, commit_ts=COMMIT)
    is_complete(bench)
    assert served_rows(bench) == {PRIMARY: (COMMIT, b"new"), SECONDARY: (COMMIT, b"new")}


def test_a_transaction_that_commits_asynchronously_is_named_and_left_alone(bench: PushBench) -> None:
    """It may be committed though no lock says so: all of them together decide."""
    lock(bench, PRIMARY, SECONDARY)
    bench.served.reads.asynchronous.add(START)
    bench.start()
    bench.until(lambda: sum("async commit" in p for p in bench.seen.problems) == 2)
    with bench.served.changing() as cluster:
        assert cluster.lock(PRIMARY)
        assert cluster.lock(SECONDARY)


FAULTS = [
    *grpc_faults.GRPC_FAULTS,
    grpc_faults.region_error(2, "NOT_LEADER"),
    grpc_faults.region_error(5, "EPOCH_NOT_MATCH"),
    grpc_faults.region_error(6, "SERVER_IS_BUSY"),
    grpc_faults.region_error(99, "OTHER"),
    grpc_faults.said(message(2, octets(3, b"abort, says a store")), "abort, says a store"),
    grpc_faults.said(message(2, b""), "unknown reason"),
    grpc_faults.said(b"<html>502</html>", "a message is damaged"),
    grpc_faults.silence("Deadline Exceeded"),
]


@pytest.mark.parametrize("method", ["KvScanLock", "KvCheckTxnStatus", "KvResolveLock"])
def test_failing_lock_checks_do_not_end_a_push(
    bench: PushBench, upstream: Upstream, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    monkeypatch.setattr("pusher.tikv.locks._CALL_S", 0.2)
    lock(bench, SECONDARY)
    bench.clock = HastyClock()
    bench.start(flush_interval_s=1.0)
    for fault in FAULTS:
        upstream.arm(f"/tikvpb.Tikv/{method}", fault)
        bench.until(lambda words=fault.words: any(words in p for p in bench.seen.problems))  # type: ignore[misc]
    upstream.disarm(f"/tikvpb.Tikv/{method}")
    is_complete(bench)
    assert served_rows(bench) == {}


def test_a_setting_lets_every_lock_be(bench: PushBench) -> None:
    lock(bench, PRIMARY)
    bench.start(resolve_locks=False)
    bench.until(lambda: any("--no-resolve-locks" in p for p in bench.seen.problems))
    time.sleep(0.3)
    with bench.served.changing() as cluster:
        assert cluster.lock(PRIMARY)
    assert bench.watermark <= START


def test_a_lock_is_ended_after_its_region_has_moved(bench: PushBench) -> None:
    lock(bench, PRIMARY, SECONDARY)
    bench.start()
    with bench.served.changing() as cluster:
        for region in list(cluster.regions()):
            cluster.move_leader(region.region_id, region.store_id % 3 + 1)
    is_complete(bench)


def test_doctor_names_the_oldest_lock(bench: PushBench) -> None:
    pd = PdClient([bench.served.pd_address])

    def look() -> tuple[Verdict, str]:
        found = check_cluster(pd, whole_cluster(), tls=None, clock=SystemClock())
        return next((f.verdict, f.words) for f in found if f.name == "locks")

    assert look()[0] is Verdict.OK
    lock(bench, SECONDARY)
    verdict, words = look()
    assert verdict is Verdict.WARN
    assert SECONDARY.hex() in words
    assert f"transaction {START}" in words
    pd.close()


@pytest.mark.parametrize("seconds", [0, 60])
def test_doctor_counts_unchecked_regions(bench: PushBench, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr("pusher.tikv.checks._LOCKS_S", seconds)
    pd = PdClient([bench.served.pd_address])
    found = check_cluster(pd, whole_cluster(), tls=None, clock=SystemClock())
    pd.close()
    locks = next(f for f in found if f.name == "locks")
    with bench.served.changing() as cluster:
        every = len(list(cluster.regions()))
    looked = 1 if seconds == 0 else every
    assert (locks.facts["regions"], locks.facts["regions_left_out"]) == (looked, every - looked)
    assert f"in {looked} of {every} regions" in locks.words
    assert ("time limit" in locks.words) == (looked < every)
