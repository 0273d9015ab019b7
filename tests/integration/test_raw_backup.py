"""Backups of clusters that answer over gRPC, while their regions change, stores die and streams are cut."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from backup.cluster import ClusterBackup, back_up_cluster
from backup.core.manifest import Manifest
from backup.files import read_file
from backup.job import open_backup
from simulator.raw_workload import RawProfile, RawRow, RawWorkload, raw_cluster
from simulator.serve.faults import STORM
from simulator.serve.served import ServedCluster
from tests.kit.waiting import eventually
from tistream import ts as tso
from tistream.clock import SystemClock
from tistream.errors import InvalidInput
from tistream.keyrange import KeyRange
from tistream.objectstore.local import LocalStore
from tistream.tikv.core.api_versions import Api
from tistream.tikv.pd import PdClient

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


def back_up(served: ServedCluster, folder: Path, wanted: ClusterBackup) -> tuple[Manifest, Pairs]:
    folder.mkdir(exist_ok=True)
    with closing(PdClient([served.pd_address])) as pd:
        back_up_cluster(pd, LocalStore(folder), wanted, clock=CLOCK, stop=threading.Event())
    manifest = open_backup(LocalStore(folder))
    tables = [block for file in manifest.files for block in read_file(LocalStore(folder), file)]
    rows = pa.concat_tables(tables).to_pylist()
    found = {row["key"]: (row["value"], row["expire_ts"]) for row in rows}
    assert [*found] == sorted(row["key"] for row in rows)
    return manifest, found


def alive(versions: list[RawRow], now_s: float) -> tuple[bytes, int] | None:
    newest = versions[-1]
    if newest.value is None or 0 < newest.expire_ts <= now_s:
        return None
    return newest.value, newest.expire_ts


def test_each_key_is_no_older_than_backup_ts_and_a_quiet_cluster_is_backed_up_as_it_is(
    stormy: tuple[ServedCluster, RawWorkload], tmp_path: Path
) -> None:
    served, workload = stormy
    wanted = ClusterBackup(keyspace="app", safe_interval_s=2, threads=3)
    manifest, found = back_up(served, tmp_path / "moving", wanted)
    served.settle()
    keys = {key: versions for key, versions in workload.versions.items() if key.startswith(PREFIX)}
    assert found.keys() <= {key.removeprefix(PREFIX) for key in keys}
    for key, versions in keys.items():
        before = [v for v in versions if v.commit_ts <= manifest.backup_ts]
        possible = [before[-1:] or [RawRow(0, key, 2, None, 0)], *[[v] for v in versions if v not in before]]  # type: ignore[arg-type]
        states = [(v.value, v.expire_ts) for (v,) in possible]
        gone = any(value is None or expire_ts for value, expire_ts in states)
        shown = found.get(key.removeprefix(PREFIX))
        assert shown in states or (shown is None and gone), (key, shown, states)
    began_s = CLOCK.unix_ms() / 1000
    manifest, found = back_up(served, tmp_path / "quiet", replace(wanted, range=KeyRange(b"k00000010", b"k00000050")))
    ended_s = CLOCK.unix_ms() / 1000
    inside = [v for k, v in keys.items() if b"k00000010" <= k.removeprefix(PREFIX) < b"k00000050"]
    then, now = (
        {v[-1].key.removeprefix(PREFIX): state for v in inside if (state := alive(v, at))} for at in (began_s, ended_s)
    )
    assert now.items() <= found.items() <= then.items()
    assert len(now) > 10
    assert manifest.expiring.pairs == sum(1 for _, expire_ts in found.values() if expire_ts) > 0
    assert (manifest.lasting + manifest.expiring).bytes == sum(len(k) + len(v) for k, (v, _) in found.items())
    assert (manifest.keyspace_id, manifest.api, manifest.made_from) == (1, Api.V2, "cluster")
    with pytest.raises(InvalidInput, match="must be empty"):
        back_up(served, tmp_path / "quiet", wanted)


def test_a_served_watermark_is_the_backup_ts_and_nothing_is_held_afterwards(tmp_path: Path) -> None:
    profile = RawProfile()
    cluster = raw_cluster(profile, floor_ts=tso.compose(CLOCK.unix_ms() - 3_600_000))
    with ServedCluster(cluster, raw=RawWorkload(5, cluster, profile), api=Api.V2) as served:
        asked: list[int] = []
        watermark = served.tso()

        def of(keyspace_id: int) -> int:
            asked.append(keyspace_id)
            return watermark

        (tmp_path / "data").mkdir()
        with closing(PdClient([served.pd_address])) as pd:
            wanted = ClusterBackup(keyspace="1", watermark=of)
            store, stop = LocalStore(tmp_path / "data"), threading.Event()
            made = back_up_cluster(pd, store, wanted, clock=CLOCK, stop=stop)
            (tmp_path / "v1").mkdir()
            store, wanted = LocalStore(tmp_path / "v1"), replace(wanted, api=Api.V1)
            with pytest.raises(InvalidInput, match="API V2 cannot be one of API V1"):
                back_up_cluster(pd, store, wanted, clock=CLOCK, stop=stop)
        assert (made.backup_ts, asked, made.files) == (watermark, [1], ())
        assert served.pd.holds == {}
