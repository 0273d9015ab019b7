"""Reads a cluster's schema at a timestamp, as the snapshot that a tenant starts with.

    meta range at S -> {"ts": S, "schema_version": n, "dbs": [DBInfo ...], "tables": [{"db_id": n, "info": TableInfo}]}

Definitions are kept as TiDB stores them, ordered by database and id, system databases included (`mysql.tidb_ddl_job` is
needed). A missing or unreadable definition is an error: the tenant would start with a gap.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import orjson

from schemas.meta import DEFINITIONS, SCHEMA_VERSION_KEY, defined_at
from tistream.codec.table_key import DDL_JOB_RANGE, DDL_JOB_TABLE_ID
from tistream.errors import CorruptObject, InvalidInput
from tistream.keyrange import KeyRange
from tistream.tikv.core.kv_messages import Page


class Reader(Protocol):
    """Reads pairs at a timestamp, in key order."""

    def read(self, part: KeyRange, ts: int) -> Iterator[Page]: ...


def read_schema(reader: Reader, ts: int) -> bytes:
    """The schema snapshot of the cluster at `ts`, as JSON. InvalidInput when TiDB does not keep its DDL jobs in a
    table; errors of the reader."""
    dbs: dict[int, Any] = {}
    tables: dict[tuple[int, int], Any] = {}
    for page in reader.read(DEFINITIONS, ts):
        for key, value in zip(page.keys, page.values, strict=True):
            place = defined_at(key)
            if place is None:
                continue
            info = _definition(value, key, place[1] or place[0])
            if place[1]:
                tables[place] = info
            else:
                dbs[place[0]] = info
    unknown = sorted({db_id for db_id, _ in tables} - dbs.keys())
    if unknown:
        raise CorruptObject("tables belong to databases that do not exist", databases=str(unknown[:5]), ts=ts)
    if DDL_JOB_TABLE_ID not in {table_id for _, table_id in tables}:
        raise InvalidInput(
            "the cluster has no mysql.tidb_ddl_job: no TiDB, TiDB older than 6.2, or TiDB with keyspaces", ts=ts
        )
    entries = [{"db_id": db_id, "info": tables[db_id, table_id]} for db_id, table_id in sorted(tables)]
    return orjson.dumps(
        {
            "ts": str(ts),
            "schema_version": str(_version(reader, ts)),
            "dbs": [dbs[db_id] for db_id in sorted(dbs)],
            "tables": entries,
        }
    )


def read_jobs(reader: Reader, ts: int) -> list[bytes]:
    """The rows of the queue of DDL jobs at `ts`, as TiDB stores them."""
    return [value for page in reader.read(DDL_JOB_RANGE, ts) for value in page.values]


def _definition(value: bytes, key: bytes, expected_id: int) -> Any:
    try:
        info = orjson.loads(value)
        id_ = info["id"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as e:
        raise CorruptObject("the definition of a database or table cannot be read", key=key, cause=repr(e)) from e
    if id_ != expected_id:
        raise CorruptObject("the definition of a database or table has another id", key=key, found=id_)
    return info


def _version(reader: Reader, ts: int) -> int:
    for page in reader.read(KeyRange(SCHEMA_VERSION_KEY, SCHEMA_VERSION_KEY + b"\0"), ts):
        try:
            return int(page.values[0])
        except ValueError as e:
            raise CorruptObject("the schema version is not a number", key=SCHEMA_VERSION_KEY, ts=ts) from e
    return 0
