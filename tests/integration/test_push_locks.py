"""Locks of lost clients hold a resolved ts back until the push ends them, as the cluster's protocol has it."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson
import pytest

from pusher.schema_push import empty_snapshot
from pusher.tikv.checks import check_cluster
from pusher.tikv.core.effects import HeldBack
from pusher.tikv.locks import LockResolver
from simulator.core.mvcc import Lock, Version
from simulator.profiles import STEADY
from simulator.serve.content import cluster_of, workload_cluster
from simulator.serve.core.kv import AsyncLock
from simulator.serve.served import ServedCluster
from simulator.workload import Workload
from sorter.core.reporting import Reporter
from sorter.core.task_core import TaskCore
from sorter.core.traffic import Traffic
from tests.kit import upstream_answers as grpc_faults
from tests.kit.core_run import Trouble, prepare, run_tasks
from tests.kit.oracle import batch_files
from tests.kit.push_bench import KEYS, TENANT, PushBench
from tests.kit.stalled_task import task_of, worker
from tests.kit.upstream_answers import HastyClock, Upstream
from tistream import ts
from tistream.admin.core.lag_sentence import Late, lag_sentence
from tistream.admin.core.watermark_gaps import Known, WatermarkGap, watermark_gaps_of
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.workers import WorkerKind
from tistream.clock import SystemClock
from tistream.codec.protobuf import message, octets
from tistream.codec.table_key import record_key
from tistream.diagnostics.findings import Severity
from tistream.keyrange import KeyRange
from tistream.model.change import Op
from tistream.tikv.core.ranges import whole_cluster
from tistream.tikv.pd import PdClient

S = ts.compose(int(time.time() * 1000) - 60_000)
START = S + (1000 << 18)  #: 59 s ago
PRIMARY, SECONDARY, OTHER = (record_key(100, n) for n in (1, 500, 900))
COMMIT = START + 9
CALM = Trouble(lag=0, again=0, snapshot=0, restart=0, unknown=0)


@dataclass
class _Task:
    """A task as a sorter has it."""

    row: TaskRow
    traffic: Traffic
    core: TaskCore

    def held_bytes(self) -> int:
        return 0


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
        new_bench = PushBench(served, S, schema_snapshot=empty_snapshot(S))
        yield new_bench
        new_bench.stop()


def lock(bench: PushBench, *keys: bytes) -> None:
    """A transaction whose client is lost behind its prewrites."""
    with bench.served.changing() as cluster:
        for key in keys:
            cluster.prewrite(key, Lock(START, Op.PUT, b"new", b"old"))
            bench.served.reads.primaries[key] = PRIMARY


def is_complete(bench: PushBench) -> None:
    """Wait until the watermark passes now: no lock holds it back, and no problem is left."""
    now = bench.served.tso()
    bench.until(lambda: bench.watermark >= now)
    bench.until(lambda: not bench.seen.problems)
    with bench.served.changing() as cluster:
        assert not cluster.held()


def served_rows(bench: PushBench) -> dict[bytes, tuple[int, bytes | None]]:
    rows = {key: (at, change.value) for (key, at), change in bench.changes.items()}
    assert bench.error is None
    return rows


ALL = (PRIMARY, SECONDARY, OTHER)
BOTH = dict.fromkeys((PRIMARY, SECONDARY), (COMMIT, b"new"))


@pytest.mark.parametrize(
    ("prewritten", "primary_commits", "rows"),
    [((PRIMARY, SECONDARY), False, {}), ((PRIMARY, SECONDARY), True, BOTH), ((SECONDARY,), False, {})],
    ids=["rolled back", "committed like its primary", "without a primary"],
)
def test_a_transaction_whose_client_is_gone_ends_as_its_primary_lock_says(
    bench: PushBench, prewritten: Sequence[bytes], primary_commits: bool, rows: dict[bytes, tuple[int, bytes]]
) -> None:
    lock(bench, *prewritten)
    if primary_commits:
        with bench.served.changing() as cluster:
            cluster.commit(PRIMARY, start_ts=START, commit_ts=COMMIT)
    bench.start()
    is_complete(bench)
    assert served_rows(bench) == rows


@pytest.mark.parametrize("missing", [None, *ALL])
def test_an_async_commit_is_committed_if_all_of_its_locks_are_there(bench: PushBench, missing: bytes | None) -> None:
    """At the largest min_commit_ts of them; else its client cannot write the missing one any more."""
    lock(bench, *(key for key in ALL if key != missing))
    with bench.served.changing():
        for n, key in enumerate(ALL):
            others = (SECONDARY, OTHER) if key == PRIMARY else ()
            bench.served.reads.asynchronous[key, START] = AsyncLock(min_commit_ts=COMMIT + n, secondaries=others)
    bench.start()
    is_complete(bench)
    assert served_rows(bench) == (dict.fromkeys(ALL, (COMMIT + 2, b"new")) if missing is None else {})
    assert missing is None or (missing, START) in bench.served.reads.refused


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


def gaps(bench: PushBench, ranges: Sequence[KeyRange]) -> list[WatermarkGap]:
    """What is known of tasks over these ranges when their watermarks have stalled for 40 s, from what was pushed."""
    files = [file for of_store in batch_files(bench.store).values() for file in of_store]
    runs = run_tasks(prepare(files), dict(enumerate(ranges)), S, random.Random(1), CALM)
    tasks = [
        _Task(replace(task_of(TENANT), task_id=n, range=run.range), Traffic(n), run.core) for n, run in runs.items()
    ]
    report = Reporter().look(tasks, dict.fromkeys(runs, 40.0), [], 0.0)
    facts = Known(
        workers={"s1": worker("s1", WorkerKind.SORTER), "d1": worker("d1", WorkerKind.DISPATCHER)},
        tasks={task.task_id: replace(task, epoch=3) for task in report.tasks},
        stores={},
        dispatchers={(TENANT, n): "d1" for n in (1, 2, 3)},
        unix_ms=int(time.time() * 1000),
    )
    return [gap for task in tasks for gap in watermark_gaps_of(task.row, facts, lambda _: None)]


def test_the_sentence_of_the_lag_names_the_transaction(bench: PushBench) -> None:
    """A store announces one resolved ts for a group of its regions: those without a lock stand where it began too."""
    lock(bench, OTHER)
    with bench.served.changing() as cluster:
        for region in list(cluster.regions()):
            cluster.move_leader(region.region_id, 1)
    bench.start(resolve_locks=False)
    bench.until(lambda: bench.oracles[1].watermark == START and bool(bench.seen.problems))
    shown = gaps(bench, [KeyRange(KEYS[1].start, OTHER), KeyRange(OTHER, KEYS[1].end)])
    assert {gap.region_id for gap in shown if not gap.start_ts}, "regions stand too, of a task without a lock as well"
    assert {gap.task.task_id for gap in shown if gap.task and not gap.start_ts} == {0, 1}
    for listed in (shown, shown[::-1]):
        said = lag_sentence(Late(tenant=TENANT, state="ACTIVE", lag_s=59.0, since="then", gaps=listed))
        assert f"waits for transaction {START}, which began " in said
        assert f"(key {OTHER.hex()})" in said
        assert "region" not in said


def test_a_large_transaction_is_resolved_by_one_check_and_named_meanwhile(
    bench: PushBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It left more locks than a scan returns."""
    monkeypatch.setattr("pusher.tikv.locks.LOCKS_MAX", 3)
    named, resolved = list[str](), list[int]()
    settle, check = LockResolver._settle, LockResolver.check

    def settling(resolver: LockResolver, *args: Any) -> str:
        named.extend(resolver.problems)
        return settle(resolver, *args)

    def checking(resolver: LockResolver, parts: Sequence[HeldBack]) -> None:
        check(resolver, parts)
        resolved.append(resolver.resolved)

    monkeypatch.setattr(LockResolver, "_settle", settling)
    monkeypatch.setattr(LockResolver, "check", checking)
    lock(bench, *(record_key(100, n) for n in range(501, 541)))
    bench.start()
    is_complete(bench)
    assert set(resolved) <= {0, 40}
    assert len(named) > 10
    assert all(f"transaction {START}" in text and text.endswith("it is being resolved") for text in named)


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

    def look() -> tuple[Severity, str]:
        findings = check_cluster(pd, whole_cluster(), tls=None, clock=SystemClock())
        return next((f.verdict, f.words) for f in findings if f.name == "locks")

    assert look()[0] is Severity.OK
    lock(bench, SECONDARY)
    verdict, words = look()
    assert verdict is Severity.WARN
    assert SECONDARY.hex() in words
    assert f"transaction {START}" in words
    pd.close()


@pytest.mark.parametrize("seconds", [0, 60])
def test_doctor_counts_unchecked_regions(bench: PushBench, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr("pusher.tikv.checks._LOCKS_S", seconds)
    pd = PdClient([bench.served.pd_address])
    findings = check_cluster(pd, whole_cluster(), tls=None, clock=SystemClock())
    pd.close()
    locks = next(f for f in findings if f.name == "locks")
    with bench.served.changing() as cluster:
        every = len(list(cluster.regions()))
    looked = 1 if seconds == 0 else every
    assert (locks.facts["regions"], locks.facts["regions_left_out"]) == (looked, every - looked)
    assert f"in {looked} of {every} regions" in locks.words
    assert ("time limit" in locks.words) == (looked < every)


def test_a_slow_workload_renews_its_locks(monkeypatch: pytest.MonkeyPatch) -> None:
    """With `sim --serve-tikv --rate 3` a transaction outlives the TTL of a lock that is not renewed."""
    monkeypatch.setattr("pusher.tikv_push._LOCK_CHECK_S", 0.1)
    cluster = workload_cluster(STEADY, floor_ts=S, regions=3)
    workload = Workload(1, cluster, STEADY, whole_meta=True)
    with ServedCluster(cluster, stores=STEADY.stores, workload=workload, resolved_s=0.1) as served:
        with served.changing():
            while len(locks := cluster.locks(KeyRange(), 1 << 62)) < 3:
                workload.step()
            starts = {lock.start_ts for _, lock in locks}
            workload.advance_to(ts.compose(int(time.time() * 1000) + 60_000))
        bench = PushBench(served, S, schema_snapshot=orjson.dumps({**workload.schema_snapshot(), "ts": str(S)}))
        bench.start()
        bench.until(lambda: any(f"transaction {start}" in p for p in bench.seen.problems for start in starts))
        time.sleep(0.3)
        served.settle()
        is_complete(bench)
        bench.stop()
