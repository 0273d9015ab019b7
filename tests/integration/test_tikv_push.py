"""A living cluster through the whole push, with a plain judge behind the bucket: beginnings, stores, history, seeds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import orjson
import pytest
import zstandard

from pusher.schema_push import empty_snapshot, put_schema_snapshot
from schemas.snapshot import parse_pushed
from simulator import ddl, jobs, transactions
from simulator.capture import Capture
from simulator.core.mvcc import Version
from simulator.profiles import DEFAULT
from simulator.serve.content import cluster_of, recorded_cluster, recorded_versions
from simulator.serve.core.kv import KvReads
from simulator.serve.faults import STORM
from simulator.serve.served import CLUSTER_ID, ServedCluster
from simulator.workload import Workload
from tests.kit.oracle import batch_files
from tests.kit.push_bench import TENANT, PushBench, a_bench, complete
from tests.kit.served_recording import RecordedClock
from tistream import ts
from tistream.codec.seed_file import SEED, manifest_key, read_manifest
from tistream.codec.segment_file import SegmentFile
from tistream.errors import InvalidInput, TsExpired
from tistream.model.change import Op
from tistream.objectstore.layout import SchemaSnapKey
from tistream.tikv.core.api_versions import Api

RECORDING = Path(str(files("simulator") / "recording"))
RECORDED_S = 470613530891255808
S = ts.compose(int(time.time() * 1000) - 60_000)  #: a minute ago, by the served PD's clock
HOLD = "tistream-"
PREFIX = b"x\0\0\7"


@pytest.fixture
def bench() -> Iterator[PushBench]:
    yield from a_bench(S)


def test_a_cluster_is_followed_and_its_history_held(bench: PushBench) -> None:
    bench.start()
    bench.until(lambda: bench.watermark > S)
    assert bench.seen.stores == (1, 2, 3)
    assert bench.held() == [S]
    assert bench.control.upstream_id == CLUSTER_ID
    complete(bench)
    bench.stop()
    assert bench.seen.phase == "stopped"
    assert bench.error is None
    assert bench.seen.rows > 50


def test_a_push_that_is_started_again_goes_on_at_the_frontier(bench: PushBench) -> None:
    for _ in range(3):
        bench.start()
        seen = bench.watermark
        bench.until(lambda at=seen: bench.watermark > at)  # type: ignore[misc]
        bench.stop()
        time.sleep(0.2)
    bench.start()
    complete(bench)
    assert set(bench.control.incarnations.values()) == {4}
    assert len(bench.snapshots()) == 1


def test_a_storm_with_a_push_that_is_started_again() -> None:
    for bench in a_bench(S, STORM):
        for _ in range(2):
            bench.start()
            soon = time.monotonic() + 1.2
            bench.until(lambda at=soon: time.monotonic() > at)  # type: ignore[misc]
            bench.stop()
        bench.start()
        complete(bench)


def test_stores_join_and_leave(bench: PushBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pusher.tikv_push._STORES_S", 0.2)
    listed = bench.served.pd._store_addresses
    assert isinstance(listed, dict)
    address = listed.pop(3)
    bench.start()
    bench.until(lambda: bench.seen.stores == (1, 2))
    listed[3] = address
    bench.until(lambda: bench.seen.stores == (1, 2, 3) and bench.watermark > S)
    with bench.served.changing() as cluster:
        cluster.start_stores()  # the workload kills some of its own accord
        for region in cluster.regions(3):
            cluster.move_leader(region.region_id, 1)
        del listed[3]
    bench.until(lambda: bench.seen.stores == (1, 2))
    listed[3] = address
    bench.until(lambda: bench.control.incarnations[3] == 2)
    complete(bench)


def test_only_the_stores_that_were_named(bench: PushBench) -> None:
    bench.start(store_ids=frozenset({2}))
    bench.until(lambda: bool(batch_files(bench.store)))
    assert {store for store, _ in batch_files(bench.store)} == {2}
    with bench.served.changing():
        assert [name for name in bench.served.pd.holds if name.endswith(b"-store-2")]
    bench.stop()
    bench.start(store_ids=frozenset({2}), seed=True)
    assert isinstance(bench.until_it_fails(), InvalidInput)


def test_a_tenant_that_waits_with_a_snapshot_takes_no_other(bench: PushBench) -> None:
    bench.start()
    while not bench.snapshots():
        time.sleep(0.02)
    bench.stop()  # nobody has taken it in yet
    bench.start(schema_snapshot=empty_snapshot(S + 5))
    bench.until(lambda: bench.watermark > S)
    assert len(bench.snapshots()) == 1


def test_a_snapshot_that_was_refused_is_replaced_by_a_later_one(bench: PushBench) -> None:
    """And the push goes by the one with which the tenant began, not by the first in the bucket."""
    refused, later = b'{"ts": "%d", "dbs": [null], "tables": []}' % S, S + 1000
    put_schema_snapshot(bench.store, SchemaSnapKey(tenant=TENANT, ts=S), refused)
    bench.control.snapshot_refused = True
    snapshot = bench.options["schema_snapshot"]
    assert isinstance(snapshot, bytes)
    good = orjson.loads(snapshot)
    bench.start(schema_snapshot=orjson.dumps({**good, "ts": str(later)}))
    while len(bench.snapshots()) < 2:
        time.sleep(0.02)
        assert bench.error is None
    bench.control.snapshot_refused, bench.control.start_ts = False, later
    bench.until(lambda: bench.watermark > later)


def test_history_that_is_gone_ends_it_before_anything_is_registered(bench: PushBench) -> None:
    with bench.served.changing():
        bench.served.pd.collect_garbage(S + 1)
    bench.start()
    error = bench.until_it_fails()
    assert isinstance(error, TsExpired)
    assert "tistream tenant reseed" in error.hint
    assert not bench.snapshots()


def test_a_tenant_that_stands_beyond_the_cap_is_refused(bench: PushBench) -> None:
    bench.start(cap_s=60.0)
    error = bench.until_it_fails()
    assert isinstance(error, TsExpired)
    assert "--history-cap" in error.hint
    assert not bench.held()


def test_the_hold_moves_up_with_the_frontier(bench: PushBench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pusher.tikv_push._BARRIER_S", 0.2)
    bench.start()
    bench.until(lambda: bench.held()[:1] > [S])
    (barrier_ts,) = bench.held()
    assert barrier_ts <= bench.watermark
    bench.judging = False  # the service stands still
    frontier = min(e.durable_ts for e in bench.control.entries)
    bench.until(lambda: bench.held() == [frontier])
    time.sleep(0.6)
    assert bench.held() == [frontier]


def test_rows_that_lived_are_seeded() -> None:
    cluster = recorded_cluster(RECORDING, floor_ts=RECORDED_S, regions=12)
    with ServedCluster(cluster, clock=RecordedClock()) as served:
        bench = PushBench(served, RECORDED_S, start_ts=RECORDED_S, seed=True)
        bench.start()
        bench.until(lambda: (RECORDED_S, 0) in bench.control.seeds)
        bench.stop()
        text = bench.store.get(str(SchemaSnapKey(tenant=TENANT, ts=RECORDED_S)))
        schema = orjson.loads(zstandard.ZstdDecompressor().stream_reader(text).read())
        assert schema == orjson.loads((RECORDING / "schema_snapshot.json").read_bytes())
        tables = [t for t in parse_pushed(schema).snapshot.tables.values() if t.kind == "table"]
        ids = {i for table in tables for i in table.physical_ids}
        truth = {
            bytes.fromhex(line["key"]): bytes.fromhex(line["value"])
            for _, line in Capture(RECORDING).snapshot()
            if line["key"].startswith("74") and line["key"][18:22] == "5f72"
        }
        name = str(manifest_key(TENANT, RECORDED_S, 0))
        manifest = read_manifest(name, bench.store.get(name), TENANT, RECORDED_S, 0)
        pairs: dict[bytes, bytes] = {}
        for n in manifest.file_bytes:
            file = SegmentFile.open(manifest.key_of(n), bench.store.get(manifest.key_of(n)))
            for i in range(len(file.segments)):
                rows = file.read(i, SEED)
                pairs.update(zip(rows["key"].to_pylist(), rows["value"].to_pylist(), strict=True))
        assert pairs == truth
        assert len(pairs) == manifest.rows == bench.seen.seed_rows > 100
        assert {s.table_id for s in manifest.segments} <= ids
        assert not [name for name in served.pd.holds if name.endswith(b"-seed")]


def test_a_seed_that_was_interrupted_meets_its_own_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pusher.seed_scan._PIECE_BYTES", 2000)
    monkeypatch.setattr("tistream.codec.seed_file.COMMITTED_FILE_BYTES_TARGET", 500)
    cluster = recorded_cluster(RECORDING, floor_ts=RECORDED_S, regions=12)
    with ServedCluster(cluster, clock=RecordedClock()) as served:
        bench = PushBench(served, RECORDED_S, start_ts=RECORDED_S)
        bench.start()
        bench.until(lambda: bool(bench.control.entries))
        bench.stop()
        bench.start(seed=True, rate_bytes_s=500)
        bench.until(lambda: len(list(bench.store.list("seeds/"))) > 1)
        bench.stop()
        assert not bench.control.seeds
        before = {info.key: bench.store.get(info.key) for info in bench.store.list("seeds/")}
        with served.changing():  # the same keys in other regions
            for i, region in enumerate(cluster.regions()[:4]):
                cluster.move_leader(region.region_id, region.store_id % 3 + 1)
                keys = [b"t\x80\0\0\0\0\0\0\x76_r\x80\0\0\0\0\0\0" + bytes([i + 3])]
                if keys[0] in region.range and keys[0] > region.range.start:
                    cluster.split(region.region_id, keys, [900 + i])
        bench.start(seed=True)
        bench.until(lambda: (RECORDED_S, 0) in bench.control.seeds)
        bench.stop()
        assert bench.error is None
        assert {key: bench.store.get(key) for key in before} == before


def in_keyspace(patch: pytest.MonkeyPatch) -> None:
    """Let the model's TiDB live in a keyspace: its keys have the prefix in the stores."""
    for module, name in ((jobs, "record_key"), (transactions, "record_key"), (ddl, "database_key"), (ddl, "table_key")):
        plain = getattr(module, name)
        patch.setattr(module, name, lambda *args, plain=plain: PREFIX + plain(*args))
    for module in (ddl, jobs):
        patch.setattr(module, "SCHEMA_VERSION_KEY", PREFIX + ddl.SCHEMA_VERSION_KEY.removeprefix(PREFIX))


def test_a_keyspace_is_followed_as_if_it_were_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    in_keyspace(monkeypatch)
    plain = tuple((name, weight) for name, weight in DEFAULT.transactions if name != "pipelined")
    profile = replace(DEFAULT, transactions=plain)
    others = [(b"t" + bytes(8) + b"_r" + bytes(8), Version(1, 2, Op.PUT, b"not ours", None))]
    cluster = cluster_of(others, floor_ts=S, regions=1)
    cluster.split(1, [b"x", PREFIX + b"n", PREFIX + b"t\x80", b"x\0\0\x09"], [91, 92, 93, 94])
    workload = Workload(7, cluster, profile)
    with ServedCluster(
        cluster, workload=workload, steps_per_s=150, resolved_s=0.2, keyspaces={"one": 7, "two": 8}, api=Api.V2
    ) as served:
        snapshot = {**workload.schema_snapshot(), "ts": str(S)}
        bench = PushBench(served, S, schema_snapshot=orjson.dumps(snapshot), keyspace="one")
        bench.start()
        bench.until(lambda: bench.watermark > S)
        bench.stop()
        for other in (None, "two"):
            bench.start(keyspace=other)
            assert "another keyspace" in str(bench.until_it_fails())
            bench.stop()
        bench.error = None
        bench.start()
        bench.until(lambda: len(workload.committed) > 50)
        assert all(row.key.startswith(PREFIX) for row in workload.committed)
        end_ts = served.settle()
        bench.until(lambda: bench.watermark >= end_ts)
        bench.stop()
        changes = bench.changes
        truth = {(row.key.removeprefix(PREFIX), row.commit_ts): row for row in workload.committed}
        assert changes.keys() == truth.keys()
        for place, change in changes.items():
            assert (change.start_ts, change.value) == (truth[place].start_ts, truth[place].value)


def test_the_schema_of_a_keyspace_is_read_and_its_rows_are_seeded() -> None:
    content = [(PREFIX + key, version) for key, version in recorded_versions(RECORDING) if key[:1] in (b"m", b"t")]
    cluster = cluster_of(content, floor_ts=RECORDED_S, regions=12)
    with ServedCluster(cluster, clock=RecordedClock(), keyspaces={"one": 7}, api=Api.V2) as served:
        bench = PushBench(served, RECORDED_S, start_ts=RECORDED_S, seed=True, keyspace="one")
        bench.start()
        bench.until(lambda: (RECORDED_S, 0) in bench.control.seeds)
        bench.stop()
        text = bench.store.get(str(SchemaSnapKey(tenant=TENANT, ts=RECORDED_S)))
        schema = orjson.loads(zstandard.ZstdDecompressor().stream_reader(text).read())
        recorded = orjson.loads((RECORDING / "schema_snapshot.json").read_bytes())
        assert schema.pop("followed") == {"names": [], "index_keys": True, "left_out": [], "keyspace_id": 7}
        tables = {t["info"]["id"]: t for t in recorded.pop("tables")}
        assert {t["info"]["id"]: t for t in schema.pop("tables")} == tables
        assert schema == recorded
        name = str(manifest_key(TENANT, RECORDED_S, 0))
        manifest = read_manifest(name, bench.store.get(name), TENANT, RECORDED_S, 0)
        records = [key for key, _ in content if key[4:5] == b"t" and key[13:15] == b"_r"]
        assert manifest.rows == len(records) > 100


def test_a_keyspace_that_is_not_there_is_refused() -> None:
    with ServedCluster(cluster_of([], floor_ts=S), keyspaces={"one": 7}) as served:
        bench = PushBench(served, S, schema_snapshot=empty_snapshot(S), keyspace="two")
        bench.start()
        assert "keyspace does not exist" in str(bench.until_it_fails())


@pytest.mark.parametrize("given", [{"start_ts": 0}, {"schema_snapshot": b""}])
def test_a_start_in_the_future_is_refused_at_once(monkeypatch: pytest.MonkeyPatch, given: dict[str, object]) -> None:
    """A read above PD's newest timestamp moves a store's largest one, and may end the store."""
    read_at: list[int] = []
    plain = KvReads.scan
    monkeypatch.setattr(KvReads, "scan", lambda *args: read_at.append(1) or plain(*args))  # type: ignore[func-returns-value]
    future = S + (400 * 24 * 3_600_000 << 18)
    with ServedCluster(cluster_of([], floor_ts=S)) as served:
        bench = PushBench(served, S, **{k: future if k == "start_ts" else empty_snapshot(future) for k in given})
        bench.start()
        assert "future" in str(bench.until_it_fails())
        assert not read_at
        assert not bench.snapshots()
        assert not bench.held()


def test_history_that_is_gone_ends_no_push_that_lives(bench: PushBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service was away for longer than history is held, and reads what lies in the bucket since."""
    monkeypatch.setattr("pusher.tikv_push._BARRIER_S", 0.1)
    bench.start()
    workload = bench.served.workload
    assert workload is not None
    bench.until(lambda: len(workload.committed) > 50)
    settled = bench.served.settle()  # nothing has to be registered any more
    bench.until(lambda: bench.watermark >= settled)
    frontier = min(e.durable_ts for e in bench.control.entries)
    bench.judging = False
    with bench.served.changing():
        bench.served.pd.holds.clear()  # its time to live is over
        bench.served.pd.collect_garbage(frontier + 1)  # and what is committed since is there
    kept_from = bench.served.pd.kept_from_ts
    bench.until(lambda: any("GC has collected" in p for p in bench.seen.problems))
    assert frontier < kept_from
    bench.judging = True
    bench.until(lambda: bench.watermark > kept_from and bench.held()[:1] > [kept_from])
    bench.until(lambda: not any("GC has collected" in p for p in bench.seen.problems))
    complete(bench)
    assert bench.error is None


def test_a_push_below_pds_safe_point_waits_for_the_frontier(bench: PushBench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.start()
    bench.until(lambda: bench.watermark > S)
    bench.stop()
    with bench.served.changing() as cluster:
        cluster.start_stores()
        bench.served.pd.holds.clear()
        bench.served.pd.collect_garbage(min(e.durable_ts for e in bench.control.entries) + 1)
    bench.judging = False
    bench.start()
    bench.until(lambda: any("GC has collected" in p for p in bench.seen.problems))
    entries = bench.control.entries
    bench.control.entries = [
        replace(e, durable_ts=bench.served.pd.kept_from_ts + 1) for e in entries
    ]  # a sorter went on
    bench.until(lambda: bench.seen.phase == "pushing")
    assert bench.error is None
    bench.stop()
    monkeypatch.setattr("pusher.tikv_push._FRONTIER_STALL_S", 0.5)
    bench.control.entries = entries
    bench.start()
    assert isinstance(bench.until_it_fails(), TsExpired)
