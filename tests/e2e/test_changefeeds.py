"""Changefeeds run by real processes that are killed and paused: to a folder, what TiCDC's encoder wrote, each change
once; to another TiKV cluster, the keys of the main one."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pyarrow as pa
import pytest

from simulator.chaos.servers.processes import TiStreamProcess
from simulator.raw_workload import RawProfile, RawWorkload, raw_cluster
from simulator.serve.core.raw import Applied
from simulator.serve.faults import STORM
from simulator.serve.served import ServedCluster
from tests.kit.dead_letters import ACCT, CANAL, broken, letters_in, messages_but, messages_in, places_of
from tests.kit.entry_log import Entry, EntryLog, entry_rows
from tests.kit.lane_feed import raw_client, scanned
from tests.kit.log_builder import TENANT, LogBuilder, recording_end
from tests.kit.service_cluster import ServiceCluster
from tests.kit.ticdc import compare_lake
from tests.kit.waiting import eventually
from tistream import ts as tso
from tistream.catalog.rows.workers import WorkerKind
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.work.lanes import list_lanes
from tistream.catalog.work.workers import list_workers
from tistream.clock import SystemClock
from tistream.ids import Tenant
from tistream.objectstore.factory import open_store
from tistream.tikv.core.api_versions import Api
from tistream.tikv.core.raw_messages import RawSpace

get, post = partial(httpx2.get, timeout=60), partial(httpx2.post, timeout=60)
delete = partial(httpx2.delete, timeout=60)
PATH = "/v1/clusters/1/tenants/1/changefeeds"
KEYSPACE = Tenant(1, 2)
RAW_PATH = "/v1/clusters/1/tenants/2/changefeeds"
BEGIN_S = 1_800_000_000
KEYS, WRITES = 200, 3000


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceCluster]:
    folder = tmp_path_factory.mktemp("changefeed")
    with ServiceCluster(folder, f"sqlite:///{folder}/catalog.db") as made:
        LogBuilder(made.catalog, open_store(f"file://{folder}/bucket")).register().build(9)
        made.start("meta-1", "api-1")
        yield made


@pytest.mark.timeout(600)
def test_workers_that_are_killed_write_each_change_once(cluster: ServiceCluster, tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/lake?protocol=canal-json&enable-tidb-extension=true"
    uri += "&enable-partition-separator=false"
    new = {"changefeed_id": "lake", "start_ts": "earliest", "sink_uri": uri, "target_ts": str(recording_end())}
    made = post(cluster.url + PATH, json=new)
    assert made.status_code == 201, made.text
    assert any("Nothing identifies the rows of" in note for note in made.json()["notes"])

    assert post(f"{cluster.url}{PATH}/lake:pause").status_code == 200  # else the first of them may write it all
    run(cluster, "replicate-1", "replicate-2")
    cluster.wait_for("both are up", lambda: len(list_workers(cluster.catalog, WorkerKind.REPLICATE)) == 2)
    assert post(f"{cluster.url}{PATH}/lake:resume").status_code == 200
    cluster.wait_for("both own a lane", lambda: len({lane.owner for lane in lanes(cluster)}) == 2)
    cluster.wait_for("something is written", lambda: any(lane.rows_done for lane in lanes(cluster)))
    cluster.processes["replicate-1"].kill()
    cluster.wait_for("the other took over", lambda: {lane.owner for lane in lanes(cluster)} == {"replicate-2"})
    cluster.processes["replicate-2"].kill()
    run(cluster, "replicate-2", "replicate-1")
    cluster.wait_for("the end", lambda: CHANGEFEEDS.get(cluster.catalog, TENANT, "lake").state == "finished")

    compare_lake(tmp_path / "lake")
    kept = json.loads((tmp_path / "lake" / "metadata").read_bytes())
    assert kept == {"checkpoint-ts": recording_end()}


def run(cluster: ServiceCluster, *names: str) -> None:
    """Start the workers that do not run."""
    known = cluster.processes
    cluster.start(*(name for name in names if name not in known or not known[name].alive))


def lanes(cluster: ServiceCluster) -> Any:
    """The lanes of the changefeed."""
    return list_lanes(cluster.catalog, TENANT, "lake")


def at(step: int) -> int:
    """The timestamp of a write."""
    return tso.compose(BEGIN_S * 1000 + step * 10)


def written() -> list[Entry]:
    """Puts and deletes of a main cluster; the value says which write it is."""
    dice = random.Random(30)
    return [
        Entry(at(step), b"k%05d" % dice.randrange(KEYS), b"%d" % step if dice.random() < 0.8 else None)
        for step in range(1, WRITES + 1)
    ]


@contextmanager
def recovery() -> Iterator[ServedCluster]:
    """Another cluster, whose regions and leaders move, and whose stores die and refuse."""
    profile = RawProfile(keyspaces=(1,), keys=KEYS)
    model = raw_cluster(profile, floor_ts=tso.compose(SystemClock().unix_ms()), regions=6)
    moves = tuple((name, n) for name, n in profile.actions if name not in ("put", "pd_away"))
    driver = RawWorkload(5, model, RawProfile(keyspaces=(1,), keys=KEYS, actions=moves))
    spaces = {"app": 1}
    with ServedCluster(model, raw=driver, api=Api.V2, steps_per_s=10, faults=STORM, seed=3, keyspaces=spaces) as served:
        yield served


@pytest.mark.timeout(600)
def test_a_recovery_cluster_has_the_keys_of_the_main_one(cluster: ServiceCluster) -> None:
    """Workers are killed and paused beyond their leases, lanes are cut anew, and the stores there are in a storm."""
    entries = written()
    store = open_store(f"file://{cluster.folder}/bucket")
    log = EntryLog(cluster.catalog, store, tenant=KEYSPACE, rows=entry_rows(entries)).register()
    log.flush(at(WRITES // 3))
    newest: dict[bytes, int] = {}
    back: list[bytes] = []

    def note(write: Applied) -> None:
        if write.value is not None:
            step = int(write.value)
            if step < newest.get(write.key, 0):
                back.append(write.key)
            newest[write.key] = step

    def feed() -> dict[str, Any]:
        return dict(get(f"{cluster.url}{RAW_PATH}/dr").json())

    def reached(step: int) -> None:
        eventually(lambda: int(feed()["checkpoint_ts"]) >= at(step), lambda: str(feed()))

    with recovery() as served:
        served.raw_kv.on_write = note
        uri = f"tikv://{served.pd_address}?batch-size=16&backoff-base=10ms&backoff-max=200ms"
        new = {"changefeed_id": "dr", "start_ts": "earliest", "sink_uri": uri, "target_ts": str(at(WRITES))}
        made = post(cluster.url + RAW_PATH, json=new)
        assert made.status_code == 201, made.text
        assert len(made.json()["lanes"]) == 2
        run(cluster, "replicate-1", "replicate-2")
        reached(WRITES // 3)
        assert back == [], "within one ownership of a lane no key goes back"
        cluster.processes["replicate-1"].kill()
        log.flush(at(WRITES // 2))
        reached(WRITES // 2)
        cluster.processes["replicate-2"].pause()
        run(cluster, "replicate-1")
        log.flush(at(2 * WRITES // 3))
        reached(2 * WRITES // 3)
        cluster.processes["replicate-2"].resume()
        cut = post(f"{cluster.url}{RAW_PATH}/dr:rebalance", json={"lanes": 3})
        assert cut.status_code == 200, cut.text
        log.flush(at(WRITES))
        eventually(lambda: feed()["state"] == "finished", lambda: str(feed()))
        served.settle()
        with raw_client(served, RawSpace(Api.V2, 1)) as there:
            found = scanned(there)
            assert verified(cluster) == (0, True)
            served.raw_kv.on_write = lambda write: None
            there.batch_put(pa.array([b"k00007"], pa.binary()), pa.array([b"another"], pa.binary()))
            assert verified(cluster) == (1, False), "another client wrote there"
    wanted = {entry.key: entry.value for entry in entries}
    assert found == {key: value for key, value in wanted.items() if value is not None}


def verified(cluster: ServiceCluster) -> tuple[int, bool]:
    """(exit status, what it says) of `tistream changefeed verify`."""
    asked = ("changefeed", "verify", "dr", "-c", "1", "-t", "2", "--url", cluster.url, "--format", "json")
    with TiStreamProcess(*asked, log=cluster.folder / "verify.log") as process:
        status = process.wait(120)
        said = process.output()
    assert "{" in said, said
    return status, json.JSONDecoder().raw_decode(said, said.rindex("{"))[0]["equal"]


def test_a_destination_that_is_away_is_waited_for_and_shown(cluster: ServiceCluster, tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    new = {"changefeed_id": "pool", "start_ts": "earliest", "sink_uri": f"file://{folder}?protocol=csv"}
    assert post(cluster.url + PATH, json=new).status_code == 201
    folder.rename(tmp_path / "elsewhere")
    folder.write_text("a file where the folder was")
    run(cluster, "replicate-1")

    def shown() -> dict[str, Any]:
        return dict(get(f"{cluster.url}{PATH}/pool").json())

    eventually(lambda: shown()["state"] == "error" and shown()["error"]["code"] == "TS-1100", lambda: str(shown()))
    folder.unlink()
    (tmp_path / "elsewhere").rename(folder)
    end = str(recording_end())
    eventually(lambda: (shown()["state"], shown()["checkpoint_ts"]) == ("normal", end), lambda: str(shown()))
    assert delete(f"{cluster.url}{PATH}/pool").status_code == 204


@pytest.mark.timeout(600)
def test_a_worker_that_is_killed_behind_dead_letters_leaves_each_once(cluster: ServiceCluster, tmp_path: Path) -> None:
    """The rows that cannot be decoded are in the folder of dead letters, and the rest cannot be written. Another worker
    passes them when it can."""
    tenant, lake, dead = Tenant(1, 3), tmp_path / "lake", tmp_path / "dead"
    rows, bad = broken()
    LogBuilder(cluster.catalog, open_store(f"file://{cluster.folder}/bucket"), tenant=tenant, rows=rows).build(3)
    path = cluster.url + PATH.replace("tenants/1", "tenants/3")
    new = {"changefeed_id": "acct", "start_ts": "earliest", "lanes": 1, "filters": ACCT}
    made = post(path, json={**new, "sink_uri": f"file://{lake}?{CANAL}", "dead_letter": f"file://{dead}"})
    assert made.status_code == 201, made.text
    (lake / "shop").write_text("a file where the folder of the database will be")
    run(cluster, "replicate-1")

    def shown() -> dict[str, Any]:
        return dict(get(f"{path}/acct").json())

    eventually(lambda: sorted(places_of(letters_in(dead))) == sorted(bad), lambda: str(shown()))
    eventually(lambda: (shown()["error"] or {}).get("code") == "TS-1100", lambda: str(shown()))
    cluster.processes["replicate-1"].kill()
    assert int(shown()["checkpoint_ts"]) < min(ts for _, ts in bad)
    assert shown()["dead_letters"] == 0
    before = {file: (file.stat().st_ino, file.read_bytes()) for file in dead.glob("**/*.json")}
    (lake / "shop").unlink()
    run(cluster, "replicate-2")
    end = str(recording_end())
    eventually(lambda: (shown()["state"], shown()["checkpoint_ts"]) == ("normal", end), lambda: str(shown()))
    assert {file: (file.stat().st_ino, file.read_bytes()) for file in dead.glob("**/*.json")} == before
    assert messages_in(lake) == messages_but(bad)
    assert (shown()["dead_letters"], shown()["dead_letter"]) == (len(bad), f"file://{dead}")
    assert delete(f"{path}/acct").status_code == 204
