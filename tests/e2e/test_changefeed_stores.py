"""A changefeed to a recovery cluster, while stores of the main cluster join, die for good and restart.

The main cluster is modelled and followed by a real pusher over gRPC. After the changefeed was created, no command is
given.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from simulator.chaos.servers.processes import TiStreamProcess, Up
from simulator.profiles import weights
from simulator.raw_workload import RawProfile, RawWorkload, raw_cluster
from simulator.serve.served import CLUSTER_ID, ServedCluster
from tests.kit.lane_feed import raw_client, scanned
from tests.kit.waiting import eventually
from tistream import ts as tso
from tistream.clock import SystemClock
from tistream.codec.raw.keys import KeyMode, keyspace_prefix
from tistream.tikv.core.api_versions import Api
from tistream.tikv.core.raw_messages import RawSpace

KEYSPACE, REGIONS = 1, 6
FAR_S = 10**9  #: entries have times to live, and none ends within the test
PROFILE = RawProfile(keyspaces=(KEYSPACE,), keys=200, expiry_max_s=FAR_S, actions=weights("put 8, apply 2"))
TENANT = ("-c", "1", "-t", "1")
PATH = "/v1/clusters/1/tenants/1/changefeeds"


@contextmanager
def main_cluster() -> Iterator[ServedCluster]:
    """It is written to all the time, and some writes stay in flight for a while."""
    model = raw_cluster(PROFILE, floor_ts=tso.compose(SystemClock().unix_ms()), regions=REGIONS)
    names = {"app": KEYSPACE}
    with ServedCluster(
        model, raw=RawWorkload(11, model, PROFILE), api=Api.V2, steps_per_s=60, resolved_s=0.3, keyspaces=names
    ) as served:
        yield served


@contextmanager
def recovery_cluster() -> Iterator[ServedCluster]:
    model = raw_cluster(PROFILE, floor_ts=tso.compose(SystemClock().unix_ms()), regions=REGIONS)
    with ServedCluster(model, api=Api.V2, cluster_id=CLUSTER_ID + 1, keyspaces={"app": KEYSPACE}) as served:
        yield served


def run(*args: str, log: Path) -> str:
    """What a command prints."""
    with TiStreamProcess(*args, log=log) as process:
        assert process.wait(120) == 0, process.output()
        return process.output()


def pairs(served: ServedCluster) -> dict[bytes, bytes]:
    """What a client finds in the keyspace."""
    with raw_client(served, RawSpace(Api.V2, KEYSPACE)) as client:
        return scanned(client)


def newest(served: ServedCluster) -> dict[bytes, bytes]:
    """What the workload knows to be in its keyspace."""
    assert served.raw is not None
    assert served.raw.disorder == ""
    prefix = keyspace_prefix(KeyMode.RAW, KEYSPACE)
    last = {key.removeprefix(prefix): rows[-1].value for key, rows in served.raw.versions.items()}
    return {key: value for key, value in last.items() if value is not None}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_changefeed_continues_by_itself_whatever_happens_to_the_stores_of_the_main_cluster(tmp_path: Path) -> None:
    push_log = tmp_path / "push.log"
    with Up(tmp_path) as up, main_cluster() as main, recovery_cluster() as recovery:

        def feed() -> dict[str, Any]:
            return dict(httpx2.get(f"{up.url}{PATH}/dr").json())

        def passes(ts: int) -> None:
            """The checkpoint moves past this, and no operator is needed."""
            eventually(lambda: int(feed()["checkpoint_ts"]) > ts, lambda: f"{feed()}\n{push_log.read_text()[-2000:]}")
            assert feed()["state"] == "normal"

        def registered(store_id: int) -> set[int]:
            """Regions of the keyspace whose changes the store sends to the pusher."""
            with main.changing() as cluster:
                return {r.region_id for r in cluster.regions(store_id) if cluster.subscribed(r.region_id)}

        run("tenant", "register", *TENANT, "--url", up.url, "--kind", "raw", "--keyspace", "app", log=tmp_path / "r")
        new = {"changefeed_id": "dr", "start_ts": "earliest", "sink_uri": f"tikv://{recovery.pd_address}"}
        made = httpx2.post(up.url + PATH, json=new)
        assert made.status_code == 201, made.text
        with TiStreamProcess("push", "--pd", main.pd_address, *TENANT, "--url", up.url, log=push_log):
            passes(main.tso())

            joined = main.add_store()
            with main.changing() as cluster:
                moved = [region.region_id for region in cluster.regions()][::2]
            for region_id in moved:
                main.move_leader(region_id, joined)
            passes(main.tso())
            assert registered(joined), "the pusher follows the new store"

            main.kill_store(1)
            passes(main.tso())
            main.remove_store(1)
            eventually(lambda: "stores 2, 3, 4" in push_log.read_text())
            passes(main.tso())

            main.restart_stores(away_s=1.0)
            passes(main.tso())

            passes(main.settle())
        verified = run("changefeed", "verify", "dr", *TENANT, "--url", up.url, "--format", "json", log=tmp_path / "v")
        assert json.loads(verified[verified.index("{") :])["equal"], verified
        assert pairs(recovery) == newest(main)
        assert len(newest(main)) > 100
