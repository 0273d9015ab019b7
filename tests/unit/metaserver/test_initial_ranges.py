"""The tasks of a new tenant."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from metaserver.initial_ranges import lay_out
from schemas.history import History
from schemas.snapshot import parse_pushed
from tistream.catalog.rows.tenants import TaskKind
from tistream.keyrange import KeyRange, gaps

JOB_TABLE = 281474976710654
#: the documented table prefix 748000ffffffffff(ff)fe without its group marker, and "_r"
JOBS_START = bytes.fromhex("748000fffffffffffe5f72")


def table(table_id: int, db_id: int = 2, name: str = "x", partitions: tuple[int, ...] = ()) -> dict[str, Any]:
    names = {"O": name, "L": name}
    info: dict[str, Any] = {"id": table_id, "name": names, "state": 5, "cols": [], "index_info": []}
    if partitions:
        parts = [{"id": i, "name": {"O": f"p{i}", "L": f"p{i}"}} for i in partitions]
        info["partition"] = {"type": 1, "enable": True, "definitions": parts}
    return {"db_id": db_id, "info": info}


def tasks(data_tasks: int, *tables: dict[str, Any]) -> tuple[list[KeyRange], list[KeyRange]]:
    names = {1: "mysql", 2: "shop"}
    dbs = [{"id": i, "db_name": {"O": n, "L": n}, "state": 5} for i, n in names.items()]
    job = table(JOB_TABLE, 1, "tidb_ddl_job")
    pushed = parse_pushed({"ts": "9", "dbs": dbs, "tables": [job, table(4, 1, "user"), *tables]})
    laid_out = lay_out(History(pushed.snapshot, pushed.job_table), data_tasks)
    ddl = [task.range for task in laid_out if task.kind is TaskKind.DDL]
    return ddl, [task.range for task in laid_out if task.kind is TaskKind.DATA]


def prefix(table_id: int) -> bytes:
    return b"t" + (table_id + (1 << 63)).to_bytes(8, "big")


def test_the_meta_range_and_the_job_tables_records_are_ddl() -> None:
    ddl, data = tasks(1)
    assert ddl == [KeyRange(b"m", b"n"), KeyRange(JOBS_START, JOBS_START[:-1] + b"s")]
    assert data == [KeyRange(b"t", JOBS_START)]


def test_user_tables_are_shared_out_evenly() -> None:
    _, data = tasks(2, table(100), table(102), table(104), table(106))
    assert data == [KeyRange(b"t", prefix(104)), KeyRange(prefix(104), JOBS_START)]


def test_partitions_count_as_tables_and_the_partitioned_table_itself_does_not() -> None:
    _, data = tasks(3, table(100, partitions=(101, 102, 103)))
    assert data == [KeyRange(b"t", prefix(102)), KeyRange(prefix(102), prefix(103)), KeyRange(prefix(103), JOBS_START)]


def test_tables_of_the_system_do_not_count() -> None:
    _, data = tasks(2, table((1 << 48) - 5, 2, "odd"), table(50, 1, "stats"))
    assert data == [KeyRange(b"t", JOBS_START)]


@pytest.mark.parametrize("data_tasks", [1, 2, 3, 7, 50])
def test_tiles_touch_and_cover_everything_from_t_to_the_jobs(data_tasks: int) -> None:
    _, data = tasks(data_tasks, *(table(i) for i in range(100, 120)))
    assert len(data) == min(data_tasks, 21)
    assert gaps(KeyRange(b"t", JOBS_START), data) == []
    assert all(a.end == b.start for a, b in itertools.pairwise(data))
