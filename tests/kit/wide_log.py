"""Logs that are expensive to read: tables of a thousand columns with rows of many kilobytes, and large keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from tests.kit.api_world import ApiWorld, api_world
from tests.kit.entry_log import Entry, EntryLog, entry_rows
from tests.kit.log_builder import LogBuilder
from tests.kit.recording import RECORDING
from tests.kit.row_encoder import encode_v2, record_key
from tistream.codec.seed_file import SEED
from tistream.ids import Tenant
from tistream.model import change

DATABASE, TABLE = "wide", "t"
KEYS = Tenant(1, 3)  # the raw tenant; the other one has tables
KEY = b"k" * 4000  # with many versions
COLUMNS = 1000
ROWS = 480
_ROW_MS = 1 << 20  # between two commits
_TABLE_ID, _DATABASE_ID = 60_000, 70_000
_BIGINT = {"Tp": 8, "Flag": 0, "Flen": 20, "Decimal": -1, "Charset": "binary", "Collate": "binary"}
_TEXT = {"Tp": 15, "Flag": 0, "Flen": 100, "Decimal": -1, "Charset": "utf8mb4", "Collate": "utf8mb4_bin"}
_ESCAPED = b'\x01\x02"' * 7  # in JSON and its kin each byte is written as up to six


@contextmanager
def wide_world(folder: Path) -> Iterator[ApiWorld]:
    """Tenant 1/1 with the wide table, and KEYS with large keys and values; both built, with what reads as of need."""
    rows = wide_rows()
    meta = change.COMMITTED.empty_table()
    with api_world(folder, rows=rows, builder=partial(LogBuilder, meta=meta, schema=_schema())) as world:
        world.log.build(4)
        world.log.seed(SEED.empty_table())
        EntryLog(world.catalog, world.store, tenant=KEYS, rows=large_entries()).register().build(1, upto=1_000_000)
        yield world


def wide_rows() -> pa.Table:
    """An insert and then updates of half of the rows, one commit each."""
    start = int(json.loads(_schema())["ts"])
    cells = {n + 2: _ESCAPED if n % 2 else (n * 1_000_003).to_bytes(8, "little") for n in range(COLUMNS)}
    image = encode_v2(cells | dict.fromkeys(range(5, COLUMNS, 4)))
    rows = []
    for n in range(ROWS):
        ts = start + (n + 1) * _ROW_MS
        stamps = {"start_ts": ts - 1, "commit_ts": ts, "expire_ts": 0, "flags": 0}
        images = {"value": image, "old_value": image if n % 2 else None}
        key = record_key(_TABLE_ID, n // 2)
        rows.append({"table_id": _TABLE_ID, "op": int(change.Op.PUT), "key": key, **images, **stamps})
    return pa.Table.from_pylist(rows, schema=change.COMMITTED)


def large_entries() -> pa.Table:
    """Large keys with values larger yet, and many versions of one."""
    many = [Entry(1000 + n, b"%04d" % n + b"\xff" * 4000, b"\x00v" * 10_000) for n in range(400)]
    versions = [Entry(5000 + n, KEY, b"\x00v" * 10_000) for n in range(400)]
    return entry_rows([*many, *versions])


def _schema() -> bytes:
    schema = json.loads((RECORDING / "schema_snapshot.json").read_bytes())
    text = {"charset": "utf8mb4", "collate": "utf8mb4_bin", "state": 5}
    schema["dbs"].append({"id": _DATABASE_ID, "db_name": {"O": DATABASE, "L": DATABASE}, **text})
    key = {**_column(1, "id", 0, _BIGINT | {"Flag": 3})}
    others = [_column(n + 2, f"列{n:04d}_".ljust(64, "x"), n + 1, _TEXT if n % 2 else _BIGINT) for n in range(COLUMNS)]
    info = {"id": _TABLE_ID, "name": {"O": TABLE, "L": TABLE}, "cols": [key, *others], "pk_is_handle": True}
    schema["tables"].append({"db_id": _DATABASE_ID, "info": {**info, "index_info": [], **text}})
    return json.dumps(schema).encode()


def _column(number: int, name: str, offset: int, kind: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": number, "name": {"O": name, "L": name}, "offset": offset, "state": 5, "version": 2,
        "comment": "c" * 200, "type": {**kind, "Elems": None},
    }  # fmt: skip
