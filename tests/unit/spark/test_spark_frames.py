"""One frame over pages from before and after DDL: each value stays in the column that it was written to."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest

from reading.pages import arrow
from reading.rows.scope import Scope
from schemas import ddl, tidb_json
from schemas.history import History
from schemas.model import Database
from schemas.snapshot import SchemaSnapshot
from tests.kit.row_encoder import encode_v2, record_key
from tistream.client.frames import joined
from tistream.ids import Tenant
from tistream.model import change
from tistream.spark.columns import Conform, like, own_name, spark_schema

SCOPE = Scope(tenant=Tenant(1, 1), database="d", table="t")
NAMES = ["a", "b", "_op", "__op", "_commit_ts", "_old"]
START, STEP = 100, 100
ADD, DROP, MODIFY, TRUNCATE = 5, 6, 12, 11  # TiDB's numbers of these DDL


def _info(table_id: int, columns: list[tuple[int, str]]) -> dict[str, Any]:
    def column(offset: int, id_: int, name: str) -> dict[str, Any]:
        type_ = {
            "Tp": 8,
            "Flag": 3 if id_ == 1 else 0,
            "Flen": 20,
            "Decimal": 0,
            "Charset": "binary",
            "Collate": "binary",
        }
        return {"id": id_, "name": {"O": name, "L": name}, "offset": offset, "type": type_, "state": 5, "version": 2}

    cols = [column(n, id_, name) for n, (id_, name) in enumerate(columns)]
    name = {"O": "t", "L": "t"}
    more = {"pk_is_handle": True, "index_info": [], "charset": "utf8mb4", "collate": "utf8mb4_bin"}
    return {"id": table_id, "name": name, "cols": cols, "state": 5, **more}


@dataclass
class World:
    """A table that goes through DDL, with rows written in between; the truth is by column identity."""

    rng: random.Random
    table_id: int = 9
    next_id: int = 2
    columns: list[tuple[int, str]] = field(default_factory=lambda: [(1, "id")])
    versions: list[tuple[int, list[tuple[int, str]]]] = field(default_factory=list)
    rows: list[tuple[int, int, int, dict[int, int]]] = field(default_factory=list)  # table, handle, commit_ts, values

    def play(self, steps: int) -> History:
        self.change_columns(["add"])
        first = tidb_json.table(_info(self.table_id, self.columns), db_id=1, db="d")
        history = History(SchemaSnapshot(ts=START, databases={1: Database(id=1, name="d")}, tables={9: first}), first)
        self.versions.append((START, list(self.columns)))
        self.write(START)
        for n in range(1, steps + 1):
            ts = START + n * STEP
            old = self.table_id
            kind = self.change_columns(["add", "drop", "rename", "swap", "truncate"])
            self.table_id += kind == TRUNCATE
            job = {"id": 1000 + n, "type": kind, "state": 4, "schema_id": 1, "table_id": old, "schema_name": "d"}
            binlog = {"SchemaVersion": n, "TableInfo": _info(self.table_id, self.columns)}
            history.apply(ddl.parse_job({**job, "query": "", "binlog": binlog}, start_ts=ts - 1, commit_ts=ts))
            self.versions.append((ts, list(self.columns)))
            self.write(ts)
        history.advance(1 << 40)
        return history

    def change_columns(self, kinds: list[str]) -> int:
        kind = self.rng.choice(kinds)
        there = [name for _, name in self.columns]
        free = [name for name in NAMES if name not in there]
        if kind == "drop" and len(self.columns) > 2:
            del self.columns[self.rng.randrange(1, len(self.columns))]
            return DROP
        if kind == "rename" and free:
            n = self.rng.randrange(1, len(self.columns))
            self.columns[n] = (self.columns[n][0], self.rng.choice(free))
            return MODIFY
        if kind == "swap" and len(self.columns) > 2:
            a, b = self.rng.sample(range(1, len(self.columns)), 2)
            (id_a, name_a), (id_b, name_b) = self.columns[a], self.columns[b]
            self.columns[a], self.columns[b] = (id_a, name_b), (id_b, name_a)
            return MODIFY
        if kind == "add" and free:
            self.columns.append((self.next_id, self.rng.choice(free)))
            self.next_id += 1
            return ADD
        return TRUNCATE

    def write(self, ts: int) -> None:
        for n in range(1, 3):
            values = {id_: self.rng.randrange(1, 120) for id_, _ in self.columns[1:]}
            self.rows.append((self.table_id, ts + n, ts + n, values))

    def pages(self, history: History, schema_ts: int | None = None) -> list[pa.Table]:
        records = [
            {
                "table_id": table, "op": 1, "key": record_key(table, handle), "start_ts": ts - 1, "commit_ts": ts,
                "value": encode_v2({id_: bytes([value]) for id_, value in values.items()}), "old_value": None,
                "expire_ts": 0, "flags": 0,
            }
            for table, handle, ts, values in self.rows
        ]  # fmt: skip
        rows, tables, at, end = pa.Table.from_pylist(records, schema=change.COMMITTED), [], 0, self.rows[-1][2]
        target = None if schema_ts is None else arrow.target_of(history, SCOPE, schema_ts)
        while at < len(records):
            page = arrow.native_page(history, rows.slice(at), SCOPE, end, target=target)
            assert page.quarantined == 0
            tables.append(pa.ipc.open_stream(page.content).read_all())
            at += page.rows
        return tables


@pytest.mark.parametrize("seed", range(40))
def test_a_value_stays_in_its_column(seed: int) -> None:
    world = World(random.Random(seed))
    history = world.play(8)
    at, columns = world.versions[-1] if seed % 2 else world.rng.choice(world.versions)
    pages = world.pages(history, at)
    assert len(pages) == 1, "no page ends where columns change"
    schema_found = arrow.no_rows(arrow.target_of(history, SCOPE, at)).schema
    schema = spark_schema(schema_found)
    if seed % 3 == 0:  # as a user may give it: names and types only
        schema = like(type(schema).fromJson({**schema.jsonValue(), "fields": _bare(schema.jsonValue())}), schema_found)
    conform = Conform(schema, None)
    rows = {r[own_name(schema, "_commit_ts")]: r for p in pages for b in conform.batches(p) for r in b.to_pylist()}
    by_id = {id_: name for id_, name in columns if id_ != 1}
    assert len(rows) == len(world.rows)
    for _, handle, ts, values in world.rows:
        row = rows[ts]
        assert (row["id"], row[own_name(schema, "_op")]) == (handle, "insert")
        assert {name: row[name] for name in by_id.values()} == {name: values.get(id_) for id_, name in by_id.items()}


def _bare(schema: dict[str, Any]) -> list[dict[str, Any]]:
    return [{**f, "metadata": {}} for f in schema["fields"]]


@pytest.mark.parametrize("seed", range(12))
def test_joined_pages_never_mix_our_columns_with_the_tables(seed: int) -> None:
    world = World(random.Random(seed))
    pages = world.pages(world.play(8))
    table = joined(pages)
    (op,) = [f.name for f in table.schema if (f.metadata or {}).get(change.OWN_COLUMN) == b"_op"]
    assert table[op].to_pylist() == ["insert"] * len(world.rows)
