"""Tables as they were as Parquet files with ranges: for tools, over a real server; the same bytes from every server."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import httpx2
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
from starlette.testclient import TestClient

from apiserver.app import create_app
from apiserver.table_files import KEPT_MS, TableFiles
from compactor.core.plan import PlanSettings
from compactor.job import JobSettings, compact_tenant
from compactor.local import LocalExecutor
from reading.asof.read import RowsRequest
from reading.served.services import Services
from tests.kit import replica
from tests.kit.api_world import BASE, ApiWorld, api_world, arrow_of
from tests.kit.log_builder import TENANT, recording_end
from tests.kit.overheard import overheard
from tests.kit.recording import EXPECTED
from tests.kit.served_log import ServedLog, served_log
from tistream.clock import SystemClock
from tistream.errors import InvalidInput

END = recording_end()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedLog]:
    with served_log(tmp_path_factory.mktemp("tables")) as new_log:
        new_log.log.build(12).seed()
        yield new_log


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ApiWorld]:
    with api_world(tmp_path) as new_world:
        new_world.log.build(9).seed()
        yield new_world


def path_of(db: str, table: str, ts: object = END) -> str:
    return f"/databases/{db}/tables/{table}/rows/{ts}.parquet"


def request_of(db: str, table: str) -> RowsRequest:
    return RowsRequest(tenant=TENANT, database=db, table=table, as_of=str(END), format="arrow")


def test_tools_read_a_table_from_its_address(served: ServedLog) -> None:
    url = served.base + path_of("shop_arch", "bulk5k")
    lazy = pl.scan_parquet(url).filter(pl.col("id") < 100).select("id", "b")
    whole = pl.read_parquet(url)
    assert lazy.collect().rows() == whole.filter(pl.col("id") < 100).select("id", "b").rows()
    moment = replica.moments(EXPECTED)[-1]
    assert len(pd.read_parquet(url)) == whole.height == len(moment.rows["shop_arch", "bulk5k"])
    assert sorted(str(id_) for id_ in whole["id"]) == sorted(row["id"] for row in moment.rows["shop_arch", "bulk5k"])
    with httpx2.Client() as http:
        content = http.get(url).content
        head = http.head(url)
        assert (head.content, int(head.headers["content-length"])) == (b"", len(content))
        part = http.get(url, headers={"Range": "bytes=4-99", "If-Range": head.headers["etag"]})
        assert (part.status_code, part.content) == (206, content[4:100])
        assert http.get(url, headers={"Range": "bytes=-4"}).content == b"PAR1"


def test_the_bytes_are_the_same_from_every_server_and_layout(world: ApiWorld) -> None:
    names = [("shop_arch", "bulk5k"), ("shop", "t_times"), ("shop", "t_strings"), ("shop", "k_enm"), ("shop", "p_list")]
    first = [world.ok(path_of(*name)) for name in names]
    settings = JobSettings(lag_ms=0, plan=PlanSettings(inputs_min=2))
    compact_tenant(world.catalog, TENANT, LocalExecutor(world.store), settings, SystemClock())
    other = create_app(Services.create(world.catalog, world.store, world.clock))
    with TestClient(other) as http:
        second = [http.get(BASE + path_of(*name)) for name in names]
    assert [a.content for a in first] == [b.content for b in second]
    assert [a.headers["etag"] for a in first] == [b.headers["etag"] for b in second]
    assert len({a.headers["etag"] for a in first}) == len(names)


def test_it_holds_what_the_rows_are(world: ApiWorld) -> None:
    for name in (("shop", "t_ints"), ("shop", "t_bins"), ("shop", "customers"), ("shop", "gtt")):
        file = pq.read_table(io.BytesIO(world.ok(path_of(*name)).content))
        rows = arrow_of(world.ok(f"/databases/{name[0]}/tables/{name[1]}/rows", format="arrow"))
        assert file.to_pylist() == rows.to_pylist()
        assert file.schema.names == rows.schema.names


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (path_of("shop", "acct", "latest"), 400),
        (path_of("shop", "acct", "-15m"), 400),
        (path_of("shop", "acct", END + (1 << 18)), 409),
        (path_of("shop", "acct", 5), 410),
        (path_of("shop", "nothing"), 404),
    ],
)
def test_refusals(world: ApiWorld, path: str, status: int) -> None:
    for _ in range(2):
        assert world.get(path).status_code == status


def test_a_file_is_made_once_for_all_and_kept_a_while(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    files = TableFiles(world.services)
    files_made: list[object] = []
    monkeypatch.setattr(files, "_make", overheard(files._make, files_made))
    with ThreadPoolExecutor(6) as pool:
        files_served = list(pool.map(files.get, [request_of("shop", "acct")] * 6))
    assert len(files_made) == 1
    assert len({id(file) for file in files_served}) == 1
    world.clock.advance(KEPT_MS / 1000 - 1)
    files.get(request_of("shop", "acct"))
    world.clock.advance(KEPT_MS / 1000 - 1)
    files.get(request_of("shop", "acct"))
    assert len(files_made) == 1, "each use keeps it"
    world.clock.advance(KEPT_MS / 1000 + 1)
    again = files.get(request_of("shop", "acct"))
    assert len(files_made) == 2
    assert again.etag == files_served[0].etag
    assert files_served[0].read(0, 4) == b"PAR1", "who reads it still has it"


def test_each_timestamp_has_a_file_and_few_stay_open(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apiserver.table_files.ROWS_FILES_MAX", 5)
    files, before = TableFiles(world.services), len(os.listdir("/proc/self/fd"))
    for n in range(12):
        files.get(replace(request_of("shop", "acct"), as_of=str(END - n)))
    assert len(os.listdir("/proc/self/fd")) - before <= 5


def test_files_that_are_too_many_or_too_large(world: ApiWorld) -> None:
    small = TableFiles(world.services, bytes_max=20_000)
    with pytest.raises(InvalidInput, match="as a stream"):
        small.get(request_of("shop_arch", "bulk5k"))
    for name in ("acct", "t_ints", "t_times", "t_strings", "k_int", "k_chr"):
        assert small.get(request_of("shop", name)).read(0, 4) == b"PAR1"
    sizes = [future.result().size for _, future in small._made.values()]
    assert sum(sizes[:-1]) <= 20_000
    assert len(sizes) < 6
