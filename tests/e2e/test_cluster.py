"""A process per role on MariaDB and an S3 server: the same answers as in one process."""

from __future__ import annotations

import json
import time
from pathlib import Path

from simulator.chaos.servers.mariadb import mariadb, new_database
from simulator.chaos.servers.ports import free_port
from simulator.chaos.servers.processes import TiStreamProcess, client, pull_all, register, running, wait_until_ready
from simulator.chaos.servers.s3server import CREDENTIALS, s3_server
from tests.kit.replica import compare
from tests.kit.ticdc import compare_canal


def test_separate_processes_and_a_sorter_killed_on_the_way(
    tmp_path: Path, recording: Path, expected: Path, last_resolved_ts: int
) -> None:
    with mariadb() as database, s3_server() as s3:
        s3.create_bucket("tistream")
        where = ("--catalog", new_database(database, "e2e"), "--object-store", s3.url("tistream", "e2e"))
        meta_port, api_port = free_port(), free_port()

        def process(name: str, *args: str) -> TiStreamProcess:
            return TiStreamProcess(*args, log=tmp_path / f"{name}.log", env=CREDENTIALS)

        meta = process("meta", "meta", "--name", "meta-1", "--port", str(meta_port), *where)
        api = process("api", "serve", "--port", str(api_port), *where)
        sorters = [process(f"sorter-{n}", "sort", "--name", f"sorter-{n}", *where) for n in (1, 2)]
        dispatcher = process("dispatcher", "dispatch", "--name", "dispatcher-1", *where)
        control, pull = f"http://127.0.0.1:{meta_port}", f"http://127.0.0.1:{api_port}"
        with running([meta, api, dispatcher, *sorters]):
            wait_until_ready(meta, control)
            wait_until_ready(api, pull)
            register(control)
            args = ("push", "--capture", str(recording), "--url", control, "-c", "1", "-t", "1", "--speed", "max")
            with process("push", *args) as pusher:
                time.sleep(6)
                sorters[1].kill()
                sorters[1].start()
                assert pusher.wait(240) == 0, pusher.output()
            canal = pull_all(pull, last_resolved_ts, format="canal-json", **{"enable-tidb-extension": "true"})
            assert compare_canal(expected, canal.splitlines()) > 12_000
            rows = pull_all(pull, last_resolved_ts, format="ndjson")
            assert compare(expected, (json.loads(line) for line in rows.splitlines())) > 400
            with client(pull) as c:
                tasks = c.get("/v1/clusters/1/tenants/1")["tasks"]
            assert {t["owner"] for t in tasks} == {"sorter-1", "sorter-2"}
            assert sorted(t["kind"] for t in tasks) == ["data", "data", "ddl", "ddl"]
