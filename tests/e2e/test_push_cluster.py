"""A living cluster, followed by `tistream push --pd` as an operator starts it, pulled as that TiDB answered."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import orjson
import pytest
import zstandard

from simulator.chaos.servers.processes import TiStreamProcess, Up, pull_all, register
from tests.kit.replica import compare
from tests.kit.served_recording import ServedRecording
from tests.kit.ticdc import CANAL, compare_canal
from tests.kit.waiting import eventually

pytestmark = pytest.mark.slow


def push(cluster: ServedRecording, url: str, folder: Path, *more: str) -> TiStreamProcess:
    """A pusher of the whole cluster, not started yet."""
    args = ("push", "--pd", cluster.pd_address, "--url", url, "--cluster", "1", "--tenant", "1")
    return TiStreamProcess(*args, "--start-ts", str(cluster.start_ts), *more, log=folder / "push.log")


def test_a_cluster_is_pulled_as_tidb_answered_though_its_pusher_is_killed(
    tmp_path: Path, recording: Path, expected: Path, last_resolved_ts: int
) -> None:
    with ServedRecording(recording) as cluster, Up(tmp_path) as up:
        register(up.url)
        with push(cluster, up.url, tmp_path, "--seed-rows") as pusher:
            playing = threading.Thread(target=lambda: cluster.play(speed=6))
            playing.start()
            for _ in range(2):
                time.sleep(2.5)
                pusher.kill()
                pusher.start()
            playing.join()
            rows = pull_all(up.url, last_resolved_ts, format="ndjson")
            assert pusher.alive, pusher.output()
            assert pusher.stop() == 0, pusher.output()
        assert "pushing: stores 1, 2, 3" in pusher.output()
        assert compare(expected, (json.loads(line) for line in rows.splitlines())) > 400
        body = pull_all(up.url, last_resolved_ts, format="canal-json", **CANAL)
        assert compare_canal(expected, body.splitlines()) > 12_000
        (snapshot,) = (tmp_path / "data").rglob("schema_snap/*.json.zst")
        text = zstandard.ZstdDecompressor().stream_reader(snapshot.read_bytes()).read()
        assert orjson.loads(text) == orjson.loads((recording / "schema_snapshot.json").read_bytes())


def test_chosen_tables_alone_are_pulled_and_what_is_created_later(
    tmp_path: Path, recording: Path, expected: Path, last_resolved_ts: int
) -> None:
    with ServedRecording(recording) as cluster, Up(tmp_path) as up:
        register(up.url)
        with push(cluster, up.url, tmp_path, "--table", "shop.customers", "--no-index-keys") as pusher:
            eventually(lambda: "pushing: stores 1, 2, 3" in pusher.output())
            cluster.play(speed=12)
            rows = [json.loads(line) for line in pull_all(up.url, last_resolved_ts, format="ndjson").splitlines()]
            assert pusher.alive, pusher.output()
        infos = {
            t["info"]["id"]: t["info"]
            for t in orjson.loads((recording / "schema_snapshot.json").read_bytes())["tables"]
        }
        of_tables = {row["table_id"] for row in rows if "table_id" in row}
        assert [infos[i]["name"]["L"] for i in of_tables & infos.keys()] == ["customers"]
        assert compare(expected, rows) > 400  # tables that were created later are whole
        with push(cluster, up.url, tmp_path, "--table", "shop.tags") as other:
            assert other.wait(60) == 2
        assert "The tables of a tenant cannot be changed" in other.output()
