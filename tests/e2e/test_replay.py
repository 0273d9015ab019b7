"""A recorded TiKV cluster, served again and followed by the real client, through the whole service, to what is pulled.

Three stores, splits, merges, leader moves, one store killed, DDL meanwhile. Truths: what that TiDB answered to SELECTs
at six moments, and what MvccGetByKey says of some thousand keys.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator.chaos.servers.processes import TiStreamProcess, Up, pull_all, register, wait_until_ready
from tests.kit.real_tables import moments
from tests.kit.real_tikv import deletes_of_nothing, lines, stored_versions
from tests.kit.replica import Replica, same_rows
from tistream.codec.table_key import table_prefix

TRAFFIC = Path(__file__).parents[1] / "data" / "real_tikv" / "txn_dev"
REWRITES = {12, 61}  #: types of DDL jobs that rewrite rows without a change

pytestmark = pytest.mark.slow


def push(url: str, folder: Path) -> TiStreamProcess:
    """Follows the recorded cluster at full speed, not started yet."""
    args = ("push", "--recording", str(TRAFFIC), "--url", url, "--cluster", "1", "--tenant", "1", "--speed", "max")
    return TiStreamProcess(*args, log=folder / "push.log")


def rewritten() -> list[tuple[int, int]]:
    """(finished_ts, table id) of the DDL that rewrote rows."""
    jobs = [(int(d["finished_ts"]), json.loads(d["job_json"])) for d in lines(TRAFFIC / "ddl.ndjson.zst")]
    return [(ts, job["table_id"]) for ts, job in jobs if job["type"] in REWRITES]


def parts(table: dict[str, Any]) -> list[int]:
    return [int(p["id"]) for p in table["partitions"] or []] or [int(table["table_id"])]


def check(body: bytes) -> None:
    """Tables at each moment, and every version of the keys that were asked for."""
    events: Iterator[dict[str, Any]] = (json.loads(line) for line in body.splitlines())
    replica, pending = Replica(), next(events, None)
    all_moments, seen = moments(TRAFFIC), 0
    for moment in all_moments:
        while pending is not None and int(pending.get("commit_ts") or pending["resolved_ts"]) <= moment.ts:
            replica.apply(pending)
            pending = next(events, None)
        touched = {table_id for ts, table_id in rewritten() if ts <= moment.ts}
        for table in moment.tables:
            if table["table_id"] not in touched:
                our_rows = [row for part in parts(table) for row in replica.rows[part].values()]
                same_rows(moment, table, our_rows)
                seen += 1
    assert seen > 90
    tables = {part for m in all_moments for t in m.tables for part in parts(t)} - {t for _, t in rewritten()}
    prefixes = tuple(table_prefix(t) + b"_r" for t in tables)
    delivered = {(bytes.fromhex(key), int(ts)) for key, ts in replica.delivered}
    first, last = all_moments[0].ts, all_moments[-1].ts
    whole = stored_versions(TRAFFIC)
    stored = {v: w for v, w in whole.items() if v[0].startswith(prefixes) and first < v[1] <= last}
    keys = {key for key, _ in stored}
    assert len(stored) > 5000
    assert not {v for v in delivered if v[0] in keys and first < v[1] <= last} - stored.keys()
    assert stored.keys() - delivered == stored.keys() & deletes_of_nothing(whole)


def pushed_up_to(pusher: TiStreamProcess) -> int:
    return int(pusher.output().rsplit("up to ", 1)[1].split()[0])


def test_a_followed_cluster_is_pulled_as_tidb_answered_though_the_service_is_lost(tmp_path: Path) -> None:
    with Up(tmp_path) as up:
        register(up.url)
        with push(up.url, tmp_path) as pusher:
            for _ in range(3):
                time.sleep(10)
                up.kill()
                time.sleep(1)
                up.start()
                wait_until_ready(up)
            assert pusher.wait(280) == 0, pusher.output()
        last_ts = pushed_up_to(pusher)
        assert last_ts > moments(TRAFFIC)[-1].ts
        check(pull_all(up.url, last_ts, format="ndjson", limit=1000))
