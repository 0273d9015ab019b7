"""Reads a cluster's schema at a timestamp, as the snapshot with which a tenant begins.

    meta range at S -> {"ts": S, "schema_version": n, "dbs": [DBInfo ...], "tables": [{"db_id": n, "info": TableInfo}]}

Definitions go in as TiDB stores them, those of its own databases too, since `mysql.tidb_ddl_job` is among them; in the
order of databases and ids. What is missing or cannot be read is an error: a tenant would begin with a hole.
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
    """Who reads pairs at a timestamp, in key order."""

    def read(self, part: KeyRange, ts: int) -> Iterator[Page]: ...


def read_schema(reader: Reader, ts: int) -> bytes:
    """The schema snapshot of the cluster at `ts`, as JSON. InvalidInput when the cluster has no TiDB that keeps its DDL
    jobs in a table; errors of the reader besides."""
    dbs: dict[int, Any] = {}
    tables: dict[tuple[int, int], Any] = {}
    for page in reader.read(DEFINITIONS, ts):
        for key, value in zip(page.keys, page.values, strict=True):
            where = defined_at(key)
            if where is None:
                continue
            info = _definition(value, key, where[1] or where[0])
            if where[1]:
                tables[where] = info
            else:
                dbs[where[0]] = info
    strangers = sorted({db_id for db_id, _ in tables} - dbs.keys())
    if strangers:
        raise CorruptObject("tables belong to databases that do not exist", databases=str(strangers[:5]), ts=ts)
    if DDL_JOB_TABLE_ID not in {table_id for _, table_id in tables}:
        raise InvalidInput(
            "the cluster has no mysql.tidb_ddl_job: it holds no TiDB, one older than 6.2, or one with keyspaces", ts=ts
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
        found = info["id"]
    except (orjson.JSONDecodeError, KeyError, TypeError) as e:
        raise CorruptObject("the definition of a database or table cannot be read", key=key, cause=repr(e)) from e
    if found != expected_id:
        raise CorruptObject("the definition of a database or table is another one's", key=key, found=found)
    return info


def _version(reader: Reader, ts: int) -> int:
    for page in reader.read(KeyRange(SCHEMA_VERSION_KEY, SCHEMA_VERSION_KEY + b"\0"), ts):
        try:
            return int(page.values[0])
        except ValueError as e:
            raise CorruptObject("the schema version is no number", key=SCHEMA_VERSION_KEY, ts=ts) from e
    return 0
