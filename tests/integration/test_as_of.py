"""Tables as of a timestamp over HTTP: at every recorded moment they are what TiDB itself answered."""

from __future__ import annotations

import io
import mmap
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from reading.asof import read
from reading.log import memory
from simulator.capture import Capture, captured_rows
from tests.kit import replica
from tests.kit.api_world import ApiWorld, api_world, arrow_of, events_of, rows_path
from tests.kit.log_builder import TENANT, recording_end, with_broken_value
from tests.kit.made_rows import with_columns
from tests.kit.recording import EXPECTED, RECORDING, committed_rows, recorded_history, replayed
from tistream.codec.newest import Run
from tistream.codec.seed_file import manifest_key
from tistream.errors import InvalidInput
from tistream.log import table_rows
from tistream.model import change
from tistream.objectstore.memory import MemoryStore

END = recording_end()
MOMENTS = replica.moments(EXPECTED)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    with api_world(tmp_path_factory.mktemp("asof")) as new_world:
        new_world.log.build(40).seed()
        yield new_world


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    """The same log without a seed."""
    with api_world(tmp_path_factory.mktemp("bare")) as new_world:
        new_world.log.build(10)
        yield new_world


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda m: m.label)
def test_every_table_is_what_tidb_answered(world: ApiWorld, moment: replica.Moment) -> None:
    compared = 0
    for table in moment.tables:
        if table["kind"] != "table":
            continue
        lines = events_of(world.ok(rows_path(table["db"], table["table"]), as_of=moment.ts))
        assert {(line["database"], line["table"]) for line in lines} <= {(table["db"], table["table"])}
        replica.same_rows(moment, table, [line["columns"] for line in lines])
        compared += 1
    assert compared == len([t for t in moment.tables if t["kind"] == "table"]) > 0


def test_spilled_runs_give_the_same_bytes(world: ApiWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = [("shop", name) for name in ("acct", "customers", "p_range", "k_int")]
    whole = [world.ok(rows_path(*name)).content for name in names]
    named: list[list[Path]] = []
    monkeypatch.setattr(table_rows, "RUN_BYTES_MAX", 3000)
    monkeypatch.setattr(table_rows, "BLOCK_BYTES", 1000)
    true_blocks = table_rows._blocks

    def counted(file: mmap.mmap) -> Run:
        named.append(list(tmp_path.iterdir()))
        return true_blocks(file)

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(table_rows, "_blocks", counted)
    assert [world.ok(rows_path(*name)).content for name in names] == whole
    assert len(named) > 3
    assert not any(named), "a process that is killed leaves no temporary files"


def test_rows_come_in_key_order(world: ApiWorld) -> None:
    ids = [line["columns"]["id"] for line in events_of(world.ok(rows_path("shop", "k_int")))]
    assert len(ids) > 20
    assert ids == sorted(ids)


def test_all_forms_hold_the_same_rows(world: ApiWorld) -> None:
    path = rows_path("shop", "t_times")
    lines = events_of(world.ok(path))
    table = arrow_of(world.ok(path, format="arrow"))
    parquet = pq.read_table(io.BytesIO(world.ok(path, format="parquet").content))
    assert table["id"].to_pylist() == parquet["id"].to_pylist() == [line["columns"]["id"] for line in lines]
    assert table["ts6"].to_pylist() == parquet["ts6"].to_pylist()
    assert table["ti6"].cast(pa.int64()).to_pylist() == parquet["ti6"].to_pylist()
    records = world.ok(path, format="csv").content.split(b"\r\n")
    assert len(records) == len(lines) + 2
    assert records[0].startswith(b'"id","d","dt","dt1"')
    sql = world.ok(path, format="sql").content
    assert sql.count(b"\n(") == len(lines)
    for fmt, media in (("arrow", "vnd.apache.arrow.stream"), ("csv", "text/csv"), ("parquet", "vnd.apache.parquet")):
        assert media in world.ok(path, format=fmt).headers["content-type"]


def test_accept_chooses_the_form_and_unknown_ones_are_refused(world: ApiWorld) -> None:
    url = "/v1/clusters/1/tenants/1" + rows_path("shop", "acct")
    assert "csv" in world.http.get(url, headers={"Accept": "text/csv"}).headers["content-type"]
    assert world.http.get(url, headers={"Accept": "image/png"}).status_code == 406
    assert world.get(rows_path("shop", "acct"), format="xml").json()["code"] == "TS-1001"


@pytest.mark.parametrize(("db", "name", "kind"), [("shop", "v_keep", "view"), ("shop_arch", "seq1", "sequence")])
def test_a_view_and_a_sequence_have_no_rows_and_that_is_said(world: ApiWorld, db: str, name: str, kind: str) -> None:
    for path in (rows_path(db, name), rows_path(db, name).replace("/rows", "/definition")):
        answer = world.get(path)
        problem = answer.json()
        assert (answer.status_code, problem["code"], problem["facts"]) == (400, "TS-1001", {"kind": kind})
        assert f"{db}.{name} is a {kind}" in problem["detail"]


def test_headers_say_what_was_read(world: ApiWorld) -> None:
    answer = world.ok(rows_path("shop", "acct"), as_of="latest")
    assert answer.headers["TiStream-As-Of"] == answer.headers["TiStream-Resolved-Ts"] == str(END)
    assert int(answer.headers["TiStream-Base-Ts"]) >= world.log.start_ts


def test_times_that_cannot_be_are_refused(world: ApiWorld) -> None:
    path = rows_path("shop", "acct")
    early = world.get(path, as_of=world.log.start_ts - 1)
    assert (early.status_code, early.json()["facts"]["earliest_ts"]) == (410, str(world.log.start_ts))
    late = world.get(path, as_of=END + 1)
    assert (late.status_code, late.json()["code"]) == (409, "TS-1007")
    assert late.json()["facts"]["resolved_ts"] == str(END)
    assert world.get(path, as_of="yesterday").status_code == 400
    unknown = world.get(rows_path("shop", "acctt"))
    assert (unknown.status_code, unknown.json()["facts"]["did_you_mean"][0]) == (404, "acct")


def test_a_read_waits_for_the_watermark(fresh: ApiWorld) -> None:
    fresh.log.activate().seed()
    middle = fresh.log.cuts(4)[1]
    fresh.log.flush(middle)
    path = rows_path("shop", "customers")
    assert fresh.get(path, as_of=middle).status_code == 200
    assert fresh.get(path, as_of=middle + 1, wait=0.3).status_code == 409


def test_without_a_seed_old_tables_are_refused_and_new_ones_are_whole(bare: ApiWorld, world: ApiWorld) -> None:
    first = MOMENTS[0]
    old = {(t["db"], t["table"]) for t in first.tables if t["kind"] == "table"}
    last = MOMENTS[-1]
    history = recorded_history()
    refused = 0
    for table in last.tables:
        if table["kind"] != "table":
            continue
        answer = bare.get(rows_path(table["db"], table["table"]), as_of=last.ts)
        ids = history.find(table["db"], table["table"], last.ts).physical_ids
        if any(history.table_at(i, history.start_ts) is not None for i in ids):
            assert (answer.status_code, answer.json()["code"]) == (409, "TS-1011"), table["table"]
            refused += 1
        else:
            assert answer.content == world.ok(rows_path(table["db"], table["table"]), as_of=last.ts).content
    assert 0 < refused <= len(old)


def test_a_seed_without_its_manifest_is_never_used(tmp_path: Path) -> None:
    store = MemoryStore()
    with api_world(tmp_path, store) as api:
        api.log.build(3)

        class Interrupted(MemoryStore):
            def put(self, key: str, data: bytes | memoryview) -> None:
                if key == str(manifest_key(TENANT, api.log.start_ts, 0)):
                    raise InvalidInput("the writer died here")
                store.put(key, data)

        api.log.store = Interrupted()
        with pytest.raises(InvalidInput):
            api.log.seed()
        assert api.get(rows_path("shop", "customers")).json()["code"] == "TS-1011"
        api.log.store = store
        api.log.seed()
        api.log.seed()  # again: nothing changes
        assert len(events_of(api.ok(rows_path("shop", "customers")))) > 10


def test_a_seed_of_one_table_serves_that_table_only(fresh: ApiWorld, world: ApiWorld) -> None:
    fresh.log.build(3)
    history = recorded_history()
    customers = history.find("shop", "customers", history.start_ts)
    rows = pa.concat_tables(list(captured_rows(Capture(RECORDING))))
    rows_of_table = rows.filter(pc.starts_with(rows["key"], pattern=b"t" + (customers.id | 1 << 63).to_bytes(8, "big")))
    fresh.log.seed(rows_of_table, table_id=customers.id)
    path = rows_path("shop", "customers")
    assert fresh.ok(path, as_of=END).content == world.ok(path, as_of=END).content
    others = [t.name for t in history.tables("shop", history.start_ts) if t.name != "customers"]
    assert {fresh.get(rows_path("shop", n), as_of=history.start_ts).status_code for n in others} == {409}


def test_a_seed_taken_later_replaces_what_is_below_it(tmp_path: Path, world: ApiWorld) -> None:
    """A table seed in the middle: earlier moments are refused with 410, later ones come from it and the log above."""
    middle = next(m for m in MOMENTS if m.label == "m-mix1")
    history = recorded_history()
    table = history.find("shop", "customers", middle.ts)
    with api_world(tmp_path) as api:
        api.log.build(3)
        state = replayed(table.id, middle.ts)
        api.log.seed(state, ts=middle.ts, table_id=table.id)
        path = rows_path("shop", "customers")
        early = api.get(path, as_of=middle.ts - 1)
        assert (early.status_code, early.json()["facts"]["earliest_ts"]) == (410, str(middle.ts))
        for moment in MOMENTS:
            if moment.ts >= middle.ts:
                answer = api.ok(path, as_of=moment.ts)
                assert answer.content == world.ok(path, as_of=moment.ts).content
                assert answer.headers["TiStream-Base-Ts"] == str(middle.ts)


@pytest.mark.parametrize(
    ("path", "params"),
    [
        (rows_path("shop", "customers"), {"as_of": str(END)}),
        ("/databases/shop/tables/customers/changes", {"snapshot": "true", "format": "ndjson"}),
    ],
)
def test_memory_is_admitted_before_segments_are_fetched(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch, path: str, params: dict[str, str]
) -> None:
    reader, small = world.services.reader, memory.ReadMemory(2, wait_s=0.01)
    monkeypatch.setattr(reader, "memory", small)
    whole = world.get(path, **params).content
    assert small.taken == 0, "a read that is alone fits, and gives all of it back"
    with small.held(TENANT) as other:
        other.take(1)
        world.store.gets.clear()  # type: ignore[attr-defined]
        refused = world.get(path, **params)
        assert (refused.status_code, refused.json()["code"]) == (429, "TS-1118")
        assert not world.store.gets, "nothing was fetched for it"  # type: ignore[attr-defined]
    again = world.get(path, **params)
    assert (again.status_code, again.content) == (200, whole)
    assert small.taken == 0


def test_a_read_that_is_left_early_gives_its_memory_back(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, own = world.services.reader, memory.ReadMemory(1 << 30)
    monkeypatch.setattr(reader, "memory", own)
    monkeypatch.setattr(read, "_HELD_BYTES", 1)
    request = read.RowsRequest(tenant=TENANT, database="shop", table="customers", as_of=str(END), format="ndjson")
    with own.held(TENANT) as outer:
        outer.take(1)
        content = read.read_rows(world.services, request).content
        next(content)
        assert own.taken > 1
        del content
        assert own.taken == 1


def test_rows_that_are_no_changes_count_here_and_are_not_pulled(tmp_path: Path, world: ApiWorld) -> None:
    rows = committed_rows()
    history = recorded_history()
    table = history.find("shop", "k_int", END)
    of_table = pc.equal(rows["table_id"], table.id)
    flags = pc.if_else(of_table, pa.scalar(change.FLAG_NOT_A_CHANGE, pa.uint8()), rows["flags"])
    with api_world(tmp_path, rows=with_columns(rows, flags=flags)) as api:
        api.log.build(3).seed()
        path = rows_path("shop", "k_int")
        assert api.ok(path).content == world.ok(path).content
        assert [e for e in api.events("/databases/shop/tables/k_int/changes") if e["type"] != "ddl"][:-1] == []


def test_a_row_that_cannot_be_decoded_is_never_left_out(tmp_path: Path) -> None:
    rows = committed_rows()
    table = recorded_history().find("shop", "k_int", END)
    at = [n for n, i in enumerate(rows["table_id"].to_pylist()) if i == table.id][-1]
    with api_world(tmp_path, rows=with_broken_value(rows, at)) as api:
        api.log.build(3).seed()
        answer = api.get(rows_path("shop", "k_int"))
        assert (answer.status_code, answer.json()["code"]) == (500, "TS-1021")
        assert answer.json()["facts"]["key"] == rows["key"][at].as_py().hex()
