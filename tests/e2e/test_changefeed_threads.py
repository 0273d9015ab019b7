"""A replication worker needs as many threads for 1,000 tables and 64 lanes as for a few tables and 2 lanes."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from benchmarks.load.feed import FIRST_TABLE_ID, schema
from simulator.raw_workload import RawProfile, raw_cluster
from simulator.serve.served import ServedCluster
from tests.kit.entry_log import PREFIX, Entry, EntryLog, entry_rows
from tests.kit.log_builder import LogBuilder
from tests.kit.made_rows import table_of
from tests.kit.row_encoder import encode_v2
from tests.kit.service_cluster import ServiceCluster
from tistream import ts as tso
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.clock import SystemClock
from tistream.codec.table_key import record_key
from tistream.ids import Tenant
from tistream.model.change import COMMITTED, Op
from tistream.objectstore.factory import open_store
from tistream.tikv.core.api_versions import Api

BEGIN_TS = tso.compose(1_800_000_000_000)
ROWS, KEYS = 3, 640
EXPIRE_TS = 4_000_000_000
MORE = 24  #: threads of pools of a fixed size, which start when there is more to do; a third of the lanes' number


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceCluster]:
    folder = tmp_path_factory.mktemp("threads")
    with ServiceCluster(folder, f"sqlite:///{folder}/catalog.db") as made:
        made.start("meta-1", "api-1", "replicate-1")
        yield made


def build_tables(cluster: ServiceCluster, tenant: Tenant, tables: int) -> int:
    """A log with ROWS inserts into each of the tables; its end."""
    ids = range(FIRST_TABLE_ID, FIRST_TABLE_ID + tables)
    rows = [(n, table_id) for n in range(ROWS) for table_id in ids]
    stamps = [BEGIN_TS + 10 * at for at in range(1, len(rows) + 1)]
    inserts = table_of(
        COMMITTED,
        table_id=[table_id for _, table_id in rows],
        op=Op.PUT,
        key=[record_key(table_id, n) for n, table_id in rows],
        start_ts=[ts - 1 for ts in stamps],
        commit_ts=stamps,
        value=[encode_v2({2: b"%d of %d" % (n, table_id)}) for n, table_id in rows],
    )
    log = LogBuilder(
        cluster.catalog,
        open_store(f"file://{cluster.folder}/bucket"),
        tenant=tenant,
        rows=inserts,
        meta=COMMITTED.empty_table(),
        schema=schema(BEGIN_TS, ids),
    )
    log.build(1, upto=stamps[-1])
    return stamps[-1]


def build_keys(cluster: ServiceCluster, tenant: Tenant) -> int:
    """A log with a put to each of KEYS keys, of entries that expire; its end."""
    entries = [Entry(BEGIN_TS + 10 * n, b"k%08d" % n, b"%d" % n, EXPIRE_TS) for n in range(1, KEYS)]
    log = EntryLog(
        cluster.catalog, open_store(f"file://{cluster.folder}/bucket"), tenant=tenant, rows=entry_rows(entries)
    )
    log.register().flush(entries[-1].ts)
    return entries[-1].ts


def threads_of_a_changefeed(cluster: ServiceCluster, tenant: Tenant, uri: str, lanes: int, end_ts: int) -> int:
    """Run one to its end; the most threads that the worker has meanwhile."""
    path = f"{cluster.url}/v1/clusters/1/tenants/{tenant.tenant_id}/changefeeds"
    new = {"changefeed_id": "feed", "start_ts": "earliest", "sink_uri": uri, "target_ts": str(end_ts), "lanes": lanes}
    made = httpx2.post(path, json=new)
    assert made.status_code == 201, made.text
    assert len(made.json()["lanes"]) == lanes
    tasks, most = Path(f"/proc/{cluster.processes['replicate-1'].pid}/task"), 0

    def is_finished() -> bool:
        nonlocal most
        most = max(most, len(os.listdir(tasks)))
        return CHANGEFEEDS.get(cluster.catalog, tenant, "feed").state == "finished"

    cluster.wait_for("the changefeed is finished", is_finished)
    return most


def written(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """(id, text) of each table's messages in their order."""
    found = defaultdict(list)
    for path in sorted(folder.glob("load/*/*/**/CDC*.json")):
        for line in path.read_bytes().splitlines():
            (row,) = json.loads(line)["data"]
            found[path.relative_to(folder).parts[1]].append((row["id"], row["c2"]))
    return dict(found)


def test_a_table_and_a_lane_of_a_folder_cost_no_thread(cluster: ServiceCluster, tmp_path: Path) -> None:
    most = {}
    for tenant_id, tables, lanes in ((1, 10, 2), (2, 1000, 64)):
        tenant, folder = Tenant(1, tenant_id), tmp_path / str(tables)
        end_ts = build_tables(cluster, tenant, tables)
        uri = f"file://{folder}?protocol=canal-json"
        most[tables] = threads_of_a_changefeed(cluster, tenant, uri, lanes, end_ts)
        wanted = {
            f"t{i}": [(str(n), f"{n} of {i}") for n in range(ROWS)]
            for i in range(FIRST_TABLE_ID, FIRST_TABLE_ID + tables)
        }
        assert written(folder) == wanted
    assert most[1000] <= most[10] + MORE, most


def test_a_lane_of_a_recovery_cluster_costs_no_thread(cluster: ServiceCluster) -> None:
    profile, most = RawProfile(keyspaces=(1,), keys=KEYS), {}
    for tenant_id, lanes in ((3, 2), (4, 64)):
        tenant = Tenant(1, tenant_id)
        end_ts = build_keys(cluster, tenant)
        model = raw_cluster(profile, floor_ts=tso.compose(SystemClock().unix_ms()), regions=64)
        with ServedCluster(model, api=Api.V2, keyspaces={"app": 1}) as served:
            uri = f"tikv://{served.pd_address}?concurrency=8&batch-size=2"
            most[lanes] = threads_of_a_changefeed(cluster, tenant, uri, lanes, end_ts)
            with served.changing():
                assert [model.read(PREFIX + b"k%08d" % n, model.now_ts) for n in range(1, KEYS)] == [
                    b"%d" % n for n in range(1, KEYS)
                ]
    assert most[64] <= most[2] + MORE, most
