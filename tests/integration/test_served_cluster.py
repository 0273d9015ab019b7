"""The modelled cluster over gRPC, through storms: what the real pushers bring to the bucket is what it committed."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pusher.schema_push import empty_snapshot
from pusher.worker import PusherWorker
from simulator.core.mvcc import Lock
from simulator.profiles import DDL, DEFAULT, PIPELINED, STEADY, TOPOLOGY_STORM, WorkloadProfile
from simulator.serve.content import cluster_of, workload_cluster
from simulator.serve.faults import CALM, STORM
from simulator.serve.served import ServedCluster
from simulator.workload import Workload
from tests.kit.core_run import prepare, run_tasks
from tests.kit.oracle import Change, batch_files, interleaved
from tests.kit.push_bench import KEYS, PushBench, complete
from tistream import ts
from tistream.clock import SystemClock
from tistream.model.change import Op
from tistream.objectstore.memory import MemoryStore
from tistream.tikv.pd import PdClient

ROW = ("key", "commit_ts", "start_ts", "op", "value", "old_value")


def now_ts() -> int:
    return ts.compose(SystemClock().unix_ms())


@contextmanager
def a_push(
    served: ServedCluster, start_ts: int, store: MemoryStore | None = None, **options: object
) -> Iterator[PushBench]:
    """A push of everything, from `start_ts` on."""
    bench = PushBench(served, start_ts, schema_snapshot=empty_snapshot(start_ts), resolve_locks=False, **options)
    bench.store = store or bench.store
    bench.start()
    yield bench
    bench.stop()
    assert bench.error is None


def written_by_cores(push: PushBench, start_ts: int, end_ts: int, seed: int) -> list[tuple[object, ...]]:
    """The rows that sorters write, whatever the order in which the files of the stores arrive."""
    streams = batch_files(push.store)
    newest = {store: max(i for s, i in streams if s == store) for store, _ in streams}
    ended = {(s, i): len(files) for (s, i), files in streams.items() if i < newest[s]}
    rand = random.Random(seed)
    arrivals = prepare(interleaved(streams.values(), rand))
    tasks = run_tasks(arrivals, dict(enumerate(KEYS, 1)), start_ts, rand, ended=ended)
    for task in tasks.values():
        assert task.durable_ts >= end_ts, [str(slice_) for slice_ in task.core.explain()]
        assert any(push.resubscribe_ids) or task.resubscribes == []
    rows = pa.concat_tables([task.rows() for task in tasks.values()])
    return list(zip(*(rows[name].to_pylist() for name in ROW), strict=True))


@pytest.mark.parametrize(
    ("seed", "profile"),
    [(1, TOPOLOGY_STORM), (2, PIPELINED), (3, replace(DEFAULT, stores=2)), (4, DDL)],
    ids=["topology", "pipelined", "usual", "ddl"],
)
def test_everything_committed_in_a_storm_is_pushed_once_and_the_watermark_moves(
    seed: int, profile: WorkloadProfile
) -> None:
    cluster = workload_cluster(profile, floor_ts=now_ts(), regions=12)
    workload = Workload(seed, cluster, profile)
    with (
        ServedCluster(
            cluster, stores=profile.stores, workload=workload, steps_per_s=250, resolved_s=0.1, faults=STORM, seed=seed
        ) as served,
        a_push(served, cluster.floor_ts) as push,
    ):
        soon = time.monotonic() + 2.5
        push.until(lambda: time.monotonic() > soon)
        end_ts = complete(push)
        assert served.feed.counts["refused"]
        assert not any(oracle.waiting for oracle in push.oracles)
        written = written_by_cores(push, cluster.floor_ts, end_ts, seed)
        rows = [(r.key, r.commit_ts, r.start_ts, int(r.op), r.value, r.old_value) for r in workload.committed]
        assert sorted(written) == sorted(rows)


def test_a_lock_holds_its_region_and_not_those_of_other_stores() -> None:
    with ServedCluster(cluster_of([], floor_ts=now_ts()), resolved_s=0.1) as served:
        with served.changing() as cluster:
            cluster.split(1, [b"t5"], [2])  # the left part is the new region
            cluster.move_leader(2, 2)
        start_ts = served.tso()
        with served.changing() as cluster:
            cluster.prewrite(b"t1", Lock(start_ts, Op.PUT, b"v", None))
        with a_push(served, start_ts - 1) as push:
            tables = push.oracles[1]
            later = served.tso()
            push.until(lambda: tables.w_at(b"t6") >= later)
            push.until(lambda: tables.w_at(b"t1") == start_ts)
            commit_ts = served.tso()
            with served.changing() as cluster:
                cluster.commit(b"t1", start_ts=start_ts, commit_ts=commit_ts)
            push.until(lambda: push.watermark >= commit_ts)
            assert push.changes == {(b"t1", commit_ts): Change(start_ts, Op.PUT, b"v", None)}


class GatedStore(MemoryStore):
    """A bucket that answers while its gate is open."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()
        self.gate.set()

    def put(self, key: str, data: bytes | memoryview) -> None:
        self.gate.wait()
        super().put(key, data)


def test_a_bucket_that_does_not_answer_costs_a_gap_and_no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """The queue is bounded by so little that each of the pushers drops its stream, and comes back."""
    cluster = workload_cluster(STEADY, floor_ts=now_ts(), regions=30)
    workload = Workload(7, cluster, STEADY)
    store, workers = GatedStore(), list[PusherWorker]()

    def with_a_small_queue(**options: Any) -> PusherWorker:
        workers.append(PusherWorker(**options, queue_bytes_max=20_000))
        return workers[-1]

    monkeypatch.setattr("pusher.tikv_push.PusherWorker", with_a_small_queue)
    with (
        ServedCluster(cluster, workload=workload, steps_per_s=300, resolved_s=0.1) as served,
        a_push(served, cluster.floor_ts, store) as push,
    ):
        push.until(lambda: push.watermark > cluster.floor_ts)
        store.gate.clear()
        push.until(lambda: all(worker.stalled for worker in workers))
        push.until(lambda: len(served.feed) == 0)
        store.gate.set()
        complete(push)
        assert {incarnation for _, incarnation in push.taken} >= {1, 2}


def test_a_store_that_dies_and_comes_back() -> None:
    profile = replace(STEADY, stores=2)
    cluster = workload_cluster(profile, floor_ts=now_ts())
    workload = Workload(6, cluster, profile)
    with (
        ServedCluster(cluster, stores=2, workload=workload, steps_per_s=100, resolved_s=0.1, faults=CALM) as served,
        a_push(served, cluster.floor_ts) as push,
    ):
        push.until(lambda: push.watermark > cluster.floor_ts)
        with served.changing():
            cluster.kill_store(1, {r.region_id: 2 for r in cluster.regions(1)})
        dead_ts = served.tso()
        push.until(lambda: push.watermark >= dead_ts)
        with served.changing():
            cluster.start_store(1)
            for region in cluster.regions(2)[::2]:
                cluster.move_leader(region.region_id, 1)
        complete(push)


def test_all_stores_restart_and_lose_every_stream_and_registration() -> None:
    cluster = workload_cluster(STEADY, floor_ts=now_ts())
    workload = Workload(7, cluster, STEADY)
    with (
        ServedCluster(cluster, workload=workload, steps_per_s=100, resolved_s=0.1, faults=CALM) as served,
        a_push(served, cluster.floor_ts) as push,
    ):
        begun_ts = served.tso()
        push.until(lambda: push.watermark >= begun_ts)
        registered = served.feed.counts["registered"]
        served.restart_stores(away_s=0.3)
        assert len(served.feed) == 0
        assert all(served.is_away(store_id) for store_id in served.store_ids)
        back_ts = served.tso()
        push.until(lambda: push.watermark >= back_ts)
        assert served.feed.counts["registered"] >= 2 * registered
        complete(push)


def test_stores_join_and_leave_the_list_of_pd() -> None:
    cluster = cluster_of([], floor_ts=now_ts())
    with ServedCluster(cluster, resolved_s=0.1) as served, closing(PdClient([served.pd_address])) as pd:
        joined = served.add_store()
        served.move_leader(1, joined)
        assert [store.id for store in pd.stores()] == [1, 2, 3, joined]
        with a_push(served, cluster.floor_ts) as push:
            now = served.tso()
            push.until(lambda: push.watermark >= now)
        served.kill_store(joined)
        served.remove_store(joined)
        assert served.is_away(joined)
        assert [store.id for store in pd.stores()] == [1, 2, 3]
        (region,) = pd.scan_regions(b"", b"", 10)
        assert region.leader_store_id in (1, 2, 3)
