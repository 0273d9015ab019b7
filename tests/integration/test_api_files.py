"""The log as files over HTTP: listings, ranges, and tools that read Parquet from an address."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from compactor.core.plan import PlanSettings
from compactor.job import JobSettings, compact_tenant
from compactor.local import LocalExecutor
from metaserver.collect import Collector
from tests.kit.api_world import ApiWorld, arrow_of
from tests.kit.log_builder import TENANT, recording_end
from tests.kit.recording import committed_rows
from tests.kit.served_log import ServedLog, served_log
from tistream.catalog.database import tables
from tistream.client import connect
from tistream.clock import SystemClock
from tistream.codec.table_key import DDL_JOB_TABLE_ID
from tistream.model import change

FLUSHES = 12
COMPACT = JobSettings(lag_ms=0, plan=PlanSettings(inputs_min=2))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedLog]:
    """Compacted up to its middle, then five more flushes; a real server."""
    with served_log(tmp_path_factory.mktemp("files")) as new_log:
        cuts = new_log.log.cuts(12)
        new_log.log.build(12, cuts[6])
        compact_tenant(new_log.catalog, TENANT, LocalExecutor(new_log.store), COMPACT, SystemClock())
        for ts in [*cuts[7:], recording_end()]:
            new_log.log.flush(ts)
        yield new_log


@pytest.fixture(scope="module")
def one(served: ServedLog) -> dict[str, Any]:
    """The largest Parquet file."""
    with connect(served.url) as client:
        return max(client.tenant(1, 1).files()["items"], key=lambda item: int(item["bytes"]))


def data_rows() -> pa.Table:
    """The changes of the recording; the queue of DDL jobs belongs to other tasks."""
    rows = committed_rows()
    rows = rows.filter(pc.not_equal(rows["table_id"], DDL_JOB_TABLE_ID))
    return rows.filter(pc.equal(pc.bit_wise_and(rows["flags"], change.FLAG_NOT_A_CHANGE), 0))


def in_order(table: pa.Table) -> pa.Table:
    return table.sort_by([(name, "ascending") for name in ("commit_ts", "start_ts", "key")])


def test_parquet_files_and_a_pull_behind_them_are_the_whole_log(served: ServedLog) -> None:
    with connect(served.url) as client:
        listed = client.tenant(1, 1).files()
        joint = int(listed["parquet_upto_ts"])
        assert served.log.start_ts < joint < recording_end()
        assert {item["format"] for item in listed["items"]} == {"parquet"}
        files = pl.concat([pl.read_parquet(item["url"]) for item in listed["items"]])
        assert files.height == sum(item["rows"] for item in listed["items"])
        below = files.filter((pl.col("commit_ts") <= joint) & (pl.col("flags") & change.FLAG_NOT_A_CHANGE == 0))
        assert below.height > 1000
        expected = in_order(data_rows())
        rows_read = in_order(below.to_arrow().cast(change.COMMITTED))
        assert rows_read.equals(expected.filter(pc.less_equal(expected["commit_ts"], pa.scalar(joint, pa.uint64()))))
        page = client.tenant(1, 1).page(start=joint, format="raw-arrow", limit=200_000).arrow()
        named = client.tenant(1, 1).page(format="raw-arrow", limit=200_000).arrow()
    after = named.filter(pc.greater(named["commit_ts"], pa.scalar(joint, pa.uint64())))
    assert page.num_rows > 1000
    assert page.equals(after), "and the pull goes on where the files end"


def test_tools_read_a_file_from_its_address(served: ServedLog, one: dict[str, Any]) -> None:
    key = next(path for path in Path(served.store_url[7:]).rglob("*.parquet") if one["name"].endswith(path.name))
    whole = pq.read_table(key)
    lazy = pl.scan_parquet(one["url"]).filter(pl.col("commit_ts") > int(one["lo_ts"])).select("table_id", "commit_ts")
    expected = whole.filter(pc.greater(whole["commit_ts"], pa.scalar(int(one["lo_ts"]), pa.uint64())))
    assert lazy.collect()["commit_ts"].sum() == pc.sum(expected["commit_ts"]).as_py() % (1 << 64)
    assert len(pd.read_parquet(one["url"])) == whole.num_rows == one["rows"]
    (from_memory,) = [pq.read_table(io.BytesIO(httpx2.get(one["url"]).content))]
    assert from_memory.equals(whole)
    assert from_memory.schema.equals(change.COMMITTED)


def test_ranges(one: dict[str, Any]) -> None:
    url, size = one["url"], one["bytes"]
    with httpx2.Client() as http:
        whole = http.get(url)
        assert (whole.status_code, len(whole.content)) == (200, size)
        assert whole.headers["accept-ranges"] == "bytes"
        tag = whole.headers["etag"]
        for range_, a, b in (("bytes=0-3", 0, 4), ("bytes=-8", size - 8, size), (f"bytes={size - 1}-", size - 1, size)):
            part = http.get(url, headers={"Range": range_})
            assert (part.status_code, part.content) == (206, whole.content[a:b])
            assert part.headers["content-range"] == f"bytes {a}-{b - 1}/{size}"
            assert part.headers["etag"] == tag
        head = http.head(url)
        assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", str(size))
        part = http.head(url, headers={"Range": "bytes=0-3"})
        assert (part.status_code, part.headers["content-length"]) == (206, "4")
        assert http.get(url, headers={"Range": "bytes=0-3", "If-Range": tag}).status_code == 206
        assert http.get(url, headers={"Range": "bytes=0-3", "If-Range": '"x"'}).content == whole.content
        assert http.get(url, headers={"If-None-Match": tag}).status_code == 304
        beyond = http.get(url, headers={"Range": f"bytes={size}-"})
        assert (beyond.status_code, beyond.headers["content-range"]) == (416, f"bytes */{size}")
        assert beyond.json()["code"] == "TS-1001"


def test_a_file_that_is_no_file_of_the_tenant(served: ServedLog, one: dict[str, Any]) -> None:
    for name in ("nothing", "compacted/../../x.parquet", "compacted/1/2.parquet", "schemas/x", "committed/"):
        assert httpx2.get(f"{served.base}/files/{name}").status_code == 404
    other = one["url"].replace("/tenants/1/", "/tenants/2/")
    assert httpx2.get(other).status_code == 404


def test_tables_choose_files_and_times_do(served: ServedLog) -> None:
    with connect(served.url) as client:
        everything = client.tenant(1, 1).files(format="all")
        assert {item["format"] for item in everything["items"]} == {"parquet", "segment"}
        of_table = client.tenant(1, 1).table("shop_arch.bulk5k").files(format="all")
        assert of_table["table_ids"] == [270]
        assert 0 < len(of_table["items"]) < len(everything["items"])
        assert all(item["table_lo"] <= 270 <= item["table_hi"] for item in of_table["items"])
        late = client.tenant(1, 1).files(start=everything["parquet_upto_ts"], format="segment")
        assert late["items"]
        assert all(int(item["hi_ts"]) > int(everything["parquet_upto_ts"]) for item in late["items"])
        assert client.tenant(1, 1).files(start="latest", format="all")["items"] == []
        of_db = client.tenant(1, 1).database("shop_arch").files(format="all")
        assert len(of_table["items"]) <= len(of_db["items"]) <= len(everything["items"])


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/databases/shop/tables/nothing/files", 404, "TS-1010"),
        ("/files?start_ts=5", 410, "TS-1005"),
        ("/files?format=xml", 400, "TS-1001"),
    ],
)
def test_refusals(served: ServedLog, path: str, status: int, code: str) -> None:
    answer = httpx2.get(served.base + path)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_what_was_listed_outlives_compaction_and_collector(fresh: ApiWorld) -> None:
    """For as long as the listing says; then the address is gone, and says so."""
    cuts = fresh.log.cuts(20)
    fresh.log.build(20, cuts[2])
    compact_tenant(fresh.catalog, TENANT, LocalExecutor(fresh.store), COMPACT, SystemClock())
    listed = fresh.ok("/files").json()["items"]
    for ts in [*cuts[3:], recording_end()]:
        fresh.log.flush(ts)
    before = [fresh.http.get(item["url"]).content for item in listed]
    compact_tenant(fresh.catalog, TENANT, LocalExecutor(fresh.store), COMPACT, SystemClock())
    collector = Collector(fresh.catalog, fresh.store, SystemClock(), grace_ms=0)
    collector.step()
    assert [fresh.http.get(item["url"]).content for item in listed] == before
    with fresh.catalog.transaction() as conn:
        conn.execute(tables.read_leases.delete())
    collector.step()
    gone = {item["name"] for item in listed if fresh.http.get(item["url"]).status_code == 404}
    still_there = {item["name"] for item in fresh.ok("/files").json()["items"]}
    assert gone
    assert gone == {item["name"] for item in listed} - still_there


def pieces(world: ApiWorld, path: str, **params: Any) -> list[pa.Table]:
    """A pull of each part of a plan, and of the plans behind it."""
    results: list[pa.Table] = []
    plan = world.ok(path + "/changes/splits", start_ts="earliest", **params).json()
    while True:
        bounds = [part["start_ts"] for part in plan["parts"]] + [plan["end_ts"]]
        assert bounds == [plan["start_ts"]] + [part["end_ts"] for part in plan["parts"]] if plan["parts"] else True
        for part in plan["parts"]:
            pages = world.pages(path + "/changes", cursor=part["cursor"], end_ts=part["end_ts"], format="raw-arrow")
            results.append(pa.concat_tables([arrow_of(page) for page in pages]))
        if not plan["has_more"]:
            return results
        plan = world.ok(path + "/changes/splits", cursor=plan["next_cursor"], **params).json()


@pytest.mark.parametrize("path", ["", "/databases/shop", "/databases/shop_arch/tables/bulk5k"])
@pytest.mark.parametrize("how", ['{"parts": 7, "part_bytes": 1}', '{"rows": 900}', '{"rows": 700, "parts": 3}'])
def test_parts_of_a_plan_are_the_pull(world: ApiWorld, path: str, how: str) -> None:
    params = json.loads(how)
    whole = arrow_of(world.ok(path + "/changes", format="raw-arrow", limit=200_000))
    parts = pieces(world, path, **params)
    assert pa.concat_tables(parts).equals(whole)
    if "rows" in params:
        most = max(pc.max(pc.struct_field(pc.value_counts(t["commit_ts"]), 1)).as_py() for t in parts if t.num_rows)
        assert max(t.num_rows for t in parts) < params["rows"] + most, "a part ends with a whole commit_ts"
    elif not path:
        assert 3 < len(parts) <= 7, "one transaction is a third of all rows"


def test_a_plan_of_nothing_has_no_parts(world: ApiWorld) -> None:
    plan = world.ok("/changes/splits", start_ts="latest").json()
    assert (plan["parts"], plan["has_more"], plan["rows"]) == ([], False, 0)
    assert plan["cursor"] == plan["next_cursor"]
    assert world.get("/changes/splits").status_code == 400
    assert world.get("/changes/splits", start_ts="earliest", parts=0).status_code == 400
    assert world.get("/databases/shop/tables/none/changes/splits", start_ts="earliest").status_code == 404
