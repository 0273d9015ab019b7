"""The main job in one process: push a recording of a real TiDB, pull what that TiDB and TiCDC answered."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator.chaos.servers.processes import TiStreamProcess, Up, client, pull_all, register, wait_until_ready
from tests.kit.replica import compare
from tests.kit.ticdc import CANAL, compare_canal
from tests.kit.waiting import eventually
from tistream import ts as tso

#: rounds of retention, maintenance and reclaiming each second; bases a little below the recording's end, and no merges
OFTEN = {
    "TISTREAM_EXPORTS_INTERVAL_S": "2",
    "TISTREAM_DISPATCHER_RECLAIM_INTERVAL_MS": "1000",
    "TISTREAM_SORTER_SNAPSHOT_INTERVAL_MS": "2000",
    "TISTREAM_META_RETENTION_INTERVAL_S": "1",
    "TISTREAM_MAINTENANCE_INTERVAL_S": "1",
    "TISTREAM_MAINTENANCE_LAG_S": "1.5",
    "TISTREAM_MAINTENANCE_MERGE_FILES_MIN": "1000000",
}


def push(recording: Path, url: str, folder: Path) -> TiStreamProcess:
    """A pusher of the recording at full speed, not started yet."""
    args = ("push", "--capture", str(recording), "--url", url, "--cluster", "1", "--tenant", "1", "--speed", "max")
    return TiStreamProcess(*args, log=folder / "push.log")


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory, recording: Path) -> Iterator[Up]:
    """A service that holds the whole recording."""
    folder = tmp_path_factory.mktemp("up")
    with Up(folder, env=OFTEN) as up:
        register(up.url)
        with push(recording, up.url, folder) as pusher:
            assert pusher.wait(240) == 0, pusher.output()
        yield up


def test_canal_json_equals_ticdcs_own_messages(pushed: Up, expected: Path, last_resolved_ts: int) -> None:
    body = pull_all(pushed.url, last_resolved_ts, format="canal-json", **CANAL)
    assert compare_canal(expected, body.splitlines()) > 12_000


def test_a_replica_of_the_ndjson_equals_what_tidb_answered(pushed: Up, expected: Path, last_resolved_ts: int) -> None:
    body = pull_all(pushed.url, last_resolved_ts, format="ndjson", limit=1000)
    assert compare(expected, (json.loads(line) for line in body.splitlines())) > 400


def test_the_watermark_arrives_without_further_ticks(pushed: Up, last_resolved_ts: int) -> None:
    with client(pushed.url) as c:
        page = c.tenant(1, 1).page(start=last_resolved_ts)
    assert (page.content, page.has_more, page.resolved_ts) == (b"", False, last_resolved_ts)


def test_only_the_http_port_is_open(pushed: Up) -> None:
    listening = {
        fields[9]: int(fields[1].rpartition(":")[2], 16)
        for name in ("tcp", "tcp6")
        for line in Path(f"/proc/{pushed.pid}/net/{name}").read_text().splitlines()[1:]
        if (fields := line.split())[3] == "0A"
    }  # inode -> port, of the whole machine
    links = [os.readlink(link) for link in Path(f"/proc/{pushed.pid}/fd").iterdir()]
    ports = {listening.get(link.removeprefix("socket:[").removesuffix("]")) for link in links} - {None}
    assert ports == {int(pushed.url.rpartition(":")[2])}


def test_it_has_not_imported_pandas(pushed: Up) -> None:
    assert "/pandas/" not in Path(f"/proc/{pushed.pid}/maps").read_text()


def test_consumed_batch_files_are_reclaimed(pushed: Up) -> None:
    folder = Path(pushed.args[2]) / "bucket" / "data_change_buffer" / "cluster-1" / "tenant-1"
    deadline = time.monotonic() + 45
    while (left := len(list(folder.rglob("file-*.seg")))) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert left == 0


def test_pushing_again_delivers_nothing_twice(
    pushed: Up, recording: Path, tmp_path: Path, expected: Path, last_resolved_ts: int
) -> None:
    with push(recording, pushed.url, tmp_path) as pusher:
        assert pusher.wait(240) == 0, pusher.output()
    body = pull_all(pushed.url, last_resolved_ts, format="canal-json", **CANAL)
    assert compare_canal(expected, body.splitlines()) > 12_000


def test_retention_advances_past_created_tables_by_itself(pushed: Up) -> None:
    """A table that was created needs the log from there on, until maintenance has built its base."""
    path = "/v1/clusters/1/tenants/1"
    with client(pushed.url) as c:

        def kept() -> dict[str, Any]:
            retention: dict[str, Any] = c.get(f"{path}/retention")
            return retention

        c.send("PATCH", path, {"retention_s": 1})
        policy_ts = int(kept()["policy_ts"])
        upto_ts = tso.compose(tso.physical_ms(policy_ts) - 1000)  # bases lie a little below the end
        ddl = c.get(f"{path}/ddl", limit="1000")["items"]
        created = [int(job["commit_ts"]) for job in ddl if job["kind"] == "create table"]
        newest = max(ts for ts in created if ts < upto_ts)
        eventually(lambda: newest < int(kept()["earliest_ts"]) <= policy_ts, kept)
        assert {job["kind"] for job in c.get("/v1/jobs")["items"]} == {"retire_seeds"}


@pytest.mark.parametrize("seed", [1])
def test_the_service_is_killed_ten_times_while_the_recording_is_pushed(
    seed: int, tmp_path: Path, recording: Path, expected: Path, last_resolved_ts: int
) -> None:
    rand = random.Random(seed)
    with Up(tmp_path) as up:
        register(up.url)
        with push(recording, up.url, tmp_path) as pusher:
            for _ in range(10):
                time.sleep(rand.uniform(0.1, 2.5))
                up.kill()
                up.start()
            wait_until_ready(up)
            assert pusher.wait(240) == 0, pusher.output()
        body = pull_all(up.url, last_resolved_ts, format="canal-json", **CANAL)
        assert compare_canal(expected, body.splitlines()) > 12_000
        rows = pull_all(up.url, last_resolved_ts, format="ndjson")
        assert compare(expected, (json.loads(line) for line in rows.splitlines())) > 400


def test_the_pusher_is_killed_and_started_again(
    tmp_path: Path, recording: Path, expected: Path, last_resolved_ts: int
) -> None:
    rand = random.Random(7)
    with Up(tmp_path) as up:
        register(up.url)
        pusher = push(recording, up.url, tmp_path)
        for _ in range(4):
            pusher.start()
            time.sleep(rand.uniform(1.0, 3.5))
            pusher.kill()
        with pusher:
            assert pusher.wait(240) == 0, pusher.output()
        body = pull_all(up.url, last_resolved_ts, format="canal-json", **CANAL)
        assert compare_canal(expected, body.splitlines()) > 12_000


def test_ctrl_c_and_start_again_resumes(tmp_path: Path) -> None:
    with Up(tmp_path) as up:
        register(up.url)
        assert up.stop() == 0
        up.start()
        wait_until_ready(up)
        with client(up.url) as c:
            assert [t["state"] for t in c.get("/v1/tenants")["items"]] == ["AWAITING_SNAPSHOT"]
