"""A changefeed to a folder, run by real processes that are killed: what TiCDC's encoder wrote, each change once."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.kit.log_builder import TENANT, LogBuilder, recording_end
from tests.kit.recording import expected
from tests.kit.service_cluster import ServiceCluster
from tests.kit.ticdc import message_text
from tests.kit.waiting import eventually
from tistream.catalog.tenancy.changefeeds import get_changefeed
from tistream.catalog.work.lanes import list_lanes
from tistream.objectstore.factory import open_store

PATH = "/v1/clusters/1/tenants/1/changefeeds"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServiceCluster]:
    folder = tmp_path_factory.mktemp("changefeed")
    with ServiceCluster(folder, f"sqlite:///{folder}/catalog.db") as made:
        LogBuilder(made.catalog, open_store(f"file://{folder}/bucket")).register().build(9)
        made.start("meta-1", "api-1")
        yield made


def rows_in(folder: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """The messages of each table, in the order of versions, dates and numbers."""
    files = [path for path in folder.glob("*/*/*/**/CDC*.json") if path.name != "CDC.index"]
    placed = sorted((path.parts[len(folder.parts) :], path) for path in files)
    found: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for (db, table, version, *_), path in sorted(placed, key=lambda each: (each[0][:2], int(each[0][2]), each[0][3:])):
        assert version.isdigit()
        found[db, table] += [json.loads(line) for line in path.read_bytes().split(b"\r\n")[:-1]]
    return found


def test_workers_that_are_killed_write_each_change_once(cluster: ServiceCluster, tmp_path: Path) -> None:
    uri = f"file://{tmp_path}/lake?protocol=canal-json&enable-tidb-extension=true"
    uri += "&enable-partition-separator=false"
    new = {"changefeed_id": "lake", "start_ts": "earliest", "sink_uri": uri, "target_ts": str(recording_end())}
    made = httpx2.post(cluster.url + PATH, json=new)
    assert made.status_code == 201, made.text
    assert any("Nothing identifies the rows of" in note for note in made.json()["notes"])

    cluster.start("replicate-1", "replicate-2")
    cluster.wait_for("both own a lane", lambda: len({lane.owner for lane in lanes(cluster)}) == 2)
    cluster.wait_for("something is written", lambda: any(lane.rows_done for lane in lanes(cluster)))
    cluster.processes["replicate-1"].kill()
    cluster.wait_for("the other took over", lambda: {lane.owner for lane in lanes(cluster)} == {"replicate-2"})
    cluster.processes["replicate-2"].kill()
    cluster.start("replicate-2", "replicate-1")
    cluster.wait_for("the end", lambda: get_changefeed(cluster.catalog, TENANT, "lake").state == "finished")

    wanted: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for entry in expected("ticdc-canal-json-tidb"):
        if entry["kind"] == "row":
            wanted[entry["db"], entry["table"]].append(json.loads(message_text(entry["msg"])))
    found = rows_in(tmp_path / "lake")
    assert found.keys() == wanted.keys()
    for table, messages in wanted.items():
        for message in (*messages, *found[table]):
            del message["ts"]
        assert found[table] == messages, table
    kept = json.loads((tmp_path / "lake" / "metadata").read_bytes())
    assert kept == {"checkpoint-ts": recording_end()}


def lanes(cluster: ServiceCluster) -> Any:
    """The lanes of the changefeed."""
    return list_lanes(cluster.catalog, TENANT, "lake")


def test_a_destination_that_is_away_is_waited_for_and_shown(cluster: ServiceCluster, tmp_path: Path) -> None:
    folder = tmp_path / "pool"
    new = {"changefeed_id": "pool", "start_ts": "earliest", "sink_uri": f"file://{folder}?protocol=csv"}
    assert httpx2.post(cluster.url + PATH, json=new).status_code == 201
    folder.rename(tmp_path / "elsewhere")
    folder.write_text("a file where the folder was")
    cluster.start("replicate-1")

    def shown() -> dict[str, Any]:
        return dict(httpx2.get(f"{cluster.url}{PATH}/pool").json())

    eventually(lambda: shown()["state"] == "error" and shown()["error"]["code"] == "TS-1100", lambda: str(shown()))
    folder.unlink()
    (tmp_path / "elsewhere").rename(folder)
    end = str(recording_end())
    eventually(lambda: (shown()["state"], shown()["checkpoint_ts"]) == ("normal", end), lambda: str(shown()))
    assert httpx2.delete(f"{cluster.url}{PATH}/pool").status_code == 204
