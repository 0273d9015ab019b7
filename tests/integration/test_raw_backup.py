"""Backups of clusters that answer over gRPC, while their regions change, stores die and streams are cut."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from backup.cluster import ClusterBackup, back_up_cluster
from backup.core.compare import Fault
from backup.core.manifest import Manifest
from backup.files import read_file
from backup.job import open_backup
from backup.restore import Restore, Restored, restore
from simulator.raw_workload import RawProfile, RawRow, RawWorkload, raw_cluster
from simulator.serve.faults import STORM
from simulator.serve.served import ServedCluster
from tests.kit.lane_feed import raw_client, scanned
from tests.kit.waiting import eventually
from tistream import ts as tso
from tistream.clock import SystemClock
from tistream.errors import CorruptObject, InvalidInput, StoreUnavailable
from tistream.keyrange import KeyRange
from tistream.objectstore.local import LocalStore
from tistream.tikv.core.api_versions import Api
from tistream.tikv.core.raw_messages import RawSpace
from tistream.tikv.pd import PdClient
from tistream.tikv.raw_client import RawClient

KEYSPACE, PREFIX = 1, b"r\0\0\1"
CLOCK = SystemClock()
Pairs = dict[bytes, tuple[bytes, int]]


@pytest.fixture
def stormy() -> Iterator[tuple[ServedCluster, RawWorkload]]:
    storm = RawProfile()
    slower = tuple((name, n * 8 if name in ("put", "apply") else n) for name, n in storm.actions)
    profile = replace(storm, puts=4, keys=60, actions=slower)
    cluster = raw_cluster(profile, floor_ts=tso.compose(CLOCK.unix_ms() - 3_600_000), regions=4)
    workload = RawWorkload(5, cluster, profile)
    with ServedCluster(
        cluster, raw=workload, api=Api.V2, steps_per_s=200, resolved_s=0.1, faults=STORM, seed=5, keyspaces={"app": 1}
    ) as served:
        eventually(lambda: len(workload.committed) > 300)
        yield served, workload


def back_up(served: ServedCluster, folder: Path, backup: ClusterBackup) -> tuple[Manifest, Pairs]:
    folder.mkdir(exist_ok=True)
    with closing(PdClient([served.pd_address])) as pd:
        back_up_cluster(pd, LocalStore(folder), backup, clock=CLOCK, stop=threading.Event())
    manifest = open_backup(LocalStore(folder))
    tables = [block for file in manifest.files for block in read_file(LocalStore(folder), file)]
    rows = pa.concat_tables(tables).to_pylist()
    pairs = {row["key"]: (row["value"], row["expire_ts"]) for row in rows}
    assert [*pairs] == sorted(row["key"] for row in rows)
    return manifest, pairs


def put_back(served: ServedCluster, folder: Path, order: Restore, stop: threading.Event | None = None) -> Restored:
    def progress(done: int, files: int) -> None:
        if stop is not None and done == 2:
            stop.set()

    with closing(PdClient([served.pd_address])) as pd:
        store, stopped = LocalStore(folder), stop or threading.Event()
        return restore(pd, store, order, clock=CLOCK, stop=stopped, progress=progress)


@contextmanager
def cluster(api: Api) -> Iterator[ServedCluster]:
    """An empty one with five regions of keyspaces 0 and 9."""
    profile = RawProfile(keyspaces=(0, 9), keys=80)
    model = raw_cluster(profile, floor_ts=tso.compose(CLOCK.unix_ms() - 3_600_000), regions=5 if api is Api.V2 else 1)
    if api is not Api.V2:
        model.split(model.region_of(b"k").region_id, [b"k%08d" % n for n in (10, 40, 70)], [101, 102, 103])
    with ServedCluster(model, api=api, plain_boundaries=api is not Api.V2) as served:
        yield served


def same_entries(client: RawClient, pairs: Pairs) -> None:
    """The entries are there, each with its expiry within a second, and others only if they expire."""
    there = scanned(client)
    assert {key: there.get(key) for key in pairs} == {key: value for key, (value, _) in pairs.items()}
    assert len(pairs) > 10
    for key, (_, expire_ts) in pairs.items():
        if client.space.has_expiry:
            left = client.get_ttl(key)
            assert left is not None
            assert (left == 0) == (expire_ts == 0)
            assert not expire_ts or abs(CLOCK.unix_ms() / 1000 + left - expire_ts) <= 2, key


def fill(client: RawClient, *, expiring: bool) -> Pairs:
    """Eighty entries; if `expiring`, every third one ends in a thousand seconds."""
    ends = int(CLOCK.unix_ms() / 1000) + 1000
    pairs = {b"k%08d" % n: (b"v%d" % n, ends if expiring and n % 3 == 0 else 0) for n in range(80)}
    expires = np.array([expire_ts for _, expire_ts in pairs.values()], np.uint64)
    client.batch_put(pa.array([*pairs]), pa.array([value for value, _ in pairs.values()]), expires)
    return pairs


@contextmanager
def backed_up(folder: Path) -> Iterator[tuple[Pairs, Manifest]]:
    """The entries of keyspace 9 of a cluster, and a backup of them."""
    with cluster(Api.V2) as served:
        with raw_client(served, RawSpace(Api.V2, 9)) as client:
            wrote = fill(client, expiring=True)
        yield wrote, back_up(served, folder, ClusterBackup(keyspace="9", safe_interval_s=0))[0]


def alive(versions: list[RawRow], now_s: float) -> tuple[bytes, int] | None:
    newest = versions[-1]
    if newest.value is None or 0 < newest.expire_ts <= now_s:
        return None
    return newest.value, newest.expire_ts


def test_each_key_is_no_older_than_backup_ts_and_a_quiet_cluster_is_backed_up_as_it_is(
    stormy: tuple[ServedCluster, RawWorkload], tmp_path: Path
) -> None:
    served, workload = stormy
    backup = ClusterBackup(keyspace="app", safe_interval_s=2, threads=3)
    manifest, pairs = back_up(served, tmp_path / "moving", backup)
    served.settle()
    keys = {key: versions for key, versions in workload.versions.items() if key.startswith(PREFIX)}
    assert pairs.keys() <= {key.removeprefix(PREFIX) for key in keys}
    for key, versions in keys.items():
        before = [v for v in versions if v.commit_ts <= manifest.backup_ts]
        possible = [before[-1:] or [RawRow(0, key, 2, None, 0)], *[[v] for v in versions if v not in before]]  # type: ignore[arg-type]
        states = [(v.value, v.expire_ts) for (v,) in possible]
        may_be_absent = any(value is None or expire_ts for value, expire_ts in states)
        shown = pairs.get(key.removeprefix(PREFIX))
        assert shown in states or (shown is None and may_be_absent), (key, shown, states)
    began_s = CLOCK.unix_ms() / 1000
    manifest, pairs = back_up(served, tmp_path / "quiet", replace(backup, range=KeyRange(b"k00000010", b"k00000050")))
    ended_s = CLOCK.unix_ms() / 1000
    inside = [v for k, v in keys.items() if b"k00000010" <= k.removeprefix(PREFIX) < b"k00000050"]
    then, now = (
        {v[-1].key.removeprefix(PREFIX): state for v in inside if (state := alive(v, at))} for at in (began_s, ended_s)
    )
    assert now.items() <= pairs.items() <= then.items()
    assert len(now) > 10
    assert manifest.expiring.pairs == sum(1 for _, expire_ts in pairs.values() if expire_ts) > 0
    assert (manifest.lasting + manifest.expiring).bytes == sum(len(k) + len(v) for k, (v, _) in pairs.items())
    assert (manifest.keyspace_id, manifest.api, manifest.made_from) == (1, Api.V2, "cluster")
    with pytest.raises(InvalidInput, match="must be empty"):
        back_up(served, tmp_path / "quiet", backup)
    with cluster(Api.V2) as other:
        restored = put_back(other, tmp_path / "quiet", Restore(keyspace="9"))
        assert restored.equal
        assert restored.written + restored.expired == len(pairs)
        with raw_client(other, RawSpace(Api.V2, 9)) as client:
            now_s = CLOCK.unix_ms() / 1000
            same_entries(client, {key: (v, ends) for key, (v, ends) in pairs.items() if not 0 < ends <= now_s + 3})


def test_a_served_watermark_is_the_backup_ts_and_nothing_is_held_afterwards(tmp_path: Path) -> None:
    profile = RawProfile()
    cluster = raw_cluster(profile, floor_ts=tso.compose(CLOCK.unix_ms() - 3_600_000))
    with ServedCluster(cluster, raw=RawWorkload(5, cluster, profile), api=Api.V2) as served:
        asked_of: list[int] = []
        watermark = served.tso()

        def of(keyspace_id: int) -> int:
            asked_of.append(keyspace_id)
            return watermark

        (tmp_path / "data").mkdir()
        with closing(PdClient([served.pd_address])) as pd:
            backup = ClusterBackup(keyspace="1", watermark=of)
            store, stop = LocalStore(tmp_path / "data"), threading.Event()
            manifest = back_up_cluster(pd, store, backup, clock=CLOCK, stop=stop)
            (tmp_path / "v1").mkdir()
            store, backup = LocalStore(tmp_path / "v1"), replace(backup, api=Api.V1)
            with pytest.raises(InvalidInput, match="API V2 cannot be one of API V1"):
                back_up_cluster(pd, store, backup, clock=CLOCK, stop=stop)
        assert (manifest.backup_ts, asked_of, manifest.files) == (watermark, [1], ())
        assert served.pd.holds == {}


@pytest.mark.parametrize("api", [Api.V1, Api.V1TTL])
def test_a_cluster_of_api_v1_becomes_one_of_v2(api: Api, tmp_path: Path) -> None:
    with cluster(api) as served, cluster(Api.V2) as other:
        with raw_client(served, RawSpace(api)) as client:
            wrote = fill(client, expiring=api is Api.V1TTL)
        _, pairs = back_up(served, tmp_path / "v1", ClusterBackup())
        manifest, converted = back_up(served, tmp_path / "v2", ClusterBackup(api=Api.V2))
        assert {key: value for key, (value, _) in pairs.items()} == {key: value for key, (value, _) in wrote.items()}
        assert all(
            abs(pairs[key][1] - ends) <= 1 and (pairs[key][1] == 0) == (ends == 0) for key, (_, ends) in wrote.items()
        )
        assert converted.keys() == pairs.keys()
        assert (manifest.source_api, manifest.api) == (api, Api.V2)
        assert len(manifest.files) == 4
        with pytest.raises(InvalidInput, match="the cluster of API V2"):
            put_back(other, tmp_path / "v1", Restore())
        restored = put_back(other, tmp_path / "v2", Restore())
        assert (restored.equal, restored.keyspace_id, restored.written) == (True, 0, 80)
        with raw_client(other, RawSpace(Api.V2, 0)) as client:
            same_entries(client, wrote)
        assert all(not served.is_away(store) for store in served.store_ids)


def test_an_interrupted_restore_continues_and_what_differs_afterwards_is_named(tmp_path: Path) -> None:
    with backed_up(tmp_path / "data") as (wrote, manifest), cluster(Api.V2) as other:
        assert len(manifest.files) > 3
        with pytest.raises(StoreUnavailable, match="stopped"):
            put_back(other, tmp_path / "data", Restore(), threading.Event())
        restored = put_back(other, tmp_path / "data", Restore())
        assert (restored.files_before, restored.equal) == (2, True)
        assert 0 < restored.written < len(wrote)
        with raw_client(other, RawSpace(Api.V2, 9)) as client:
            same_entries(client, wrote)
        with pytest.raises(InvalidInput, match="has keys in the range"):  # that one is finished
            put_back(other, tmp_path / "data", Restore())
        with raw_client(other, RawSpace(Api.V2, 9)) as client:
            client.batch_delete(pa.array([*wrote]))
        assert put_back(other, tmp_path / "data", Restore()).written == len(wrote)
        with raw_client(other, RawSpace(Api.V2, 9)) as client:
            same_entries(client, wrote)
        with raw_client(other, RawSpace(Api.V2, 0)) as client:
            client.batch_put(pa.array([b"k"]), pa.array([b"not ours"]))
        with pytest.raises(InvalidInput, match="has keys in the range"):
            put_back(other, tmp_path / "data", Restore(keyspace="0"))
        merged = put_back(other, tmp_path / "data", Restore(keyspace="0", allow_existing=True))
        assert (merged.equal, merged.existing) == (True, 1)


def test_what_the_application_writes_during_a_restore_is_kept_and_named(tmp_path: Path) -> None:
    with backed_up(tmp_path / "data") as (wrote, manifest), cluster(Api.V2) as other:
        with pytest.raises(StoreUnavailable, match="stopped"):
            put_back(other, tmp_path / "data", Restore(), threading.Event())
        first, last = manifest.files[0], manifest.files[-1]
        ours = {first.start_key: wrote[first.start_key][0], first.end_key: b"other", last.start_key: b"of today"}
        with raw_client(other, RawSpace(Api.V2, 9)) as client:
            client.batch_delete(pa.array([b"k00000001"]))
            client.batch_put(pa.array([*ours, b"k00000079x"]), pa.array([*ours.values(), b"extra"]))
        done = put_back(other, tmp_path / "data", Restore())
        assert (done.files_before, done.kept, done.equal) == (2, 1, False)
        assert done.comparison is not None
        assert [(each.key, each.fault) for each in done.comparison.differences] == [
            (b"k00000001", Fault.MISSING),
            (first.end_key, Fault.CHANGED),
            (last.start_key, Fault.CHANGED),
            (b"k00000079x", Fault.EXTRA),
        ]
        assert first.start_key in done.wrong_expiries  # the application put the same value without one
        with raw_client(other, RawSpace(Api.V2, 9)) as client:
            assert client.get(last.start_key) == b"of today"


def test_a_value_and_an_expiry_of_a_backup_are_of_the_same_moment(tmp_path: Path) -> None:
    """The application replaces each entry once, before or after its expiry is asked for."""
    with cluster(Api.V1TTL) as served, raw_client(served, RawSpace(Api.V1TTL)) as client:
        wrote = fill(client, expiring=True)
        replaced = set[bytes]()
        real = RawClient.get_ttl

        def meanwhile(self: RawClient, key: bytes) -> int | None:
            answer = real(self, key)
            if key not in replaced:
                replaced.add(key)
                value, ends = wrote[key]
                ends = 0 if ends else int(CLOCK.unix_ms() / 1000) + 5000
                wrote[key] = (value + b", later", ends)
                client.batch_put(pa.array([key]), pa.array([wrote[key][0]]), np.array([ends], np.uint64))
                return real(self, key) if key[-1] % 2 else answer
            return answer

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(RawClient, "get_ttl", meanwhile)
            _, pairs = back_up(served, tmp_path / "v1", ClusterBackup())
        assert len(replaced) == len(wrote)
        assert {key: value for key, (value, _) in pairs.items()} == {key: value for key, (value, _) in wrote.items()}
        assert all(abs(pairs[key][1] - ends) <= 2 for key, (_, ends) in wrote.items())


def test_nothing_is_restored_of_a_damaged_backup(tmp_path: Path) -> None:
    with backed_up(tmp_path / "data") as (_, manifest), cluster(Api.V2) as other:
        path = tmp_path / "data" / manifest.files[-1].name
        path.chmod(0o600)
        data = bytearray(path.read_bytes())
        data[40] ^= 0xFF
        path.write_bytes(data)
        with pytest.raises(CorruptObject) as e:
            put_back(other, tmp_path / "data", Restore())
        assert e.value.facts["object"] == manifest.files[-1].name
        with raw_client(other, RawSpace(Api.V2, 9)) as client:
            assert scanned(client) == {}
