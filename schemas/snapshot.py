"""The whole schema of a tenant at one timestamp, and the JSON form in which a tenant pushes it.

    {"ts": ..., "schema_version": ..., "dbs": [DBInfo ...], "tables": [{"db_id": ..., "info": TableInfo} ...]}

Of system databases only ids are kept, because their rows are never delivered. The DDL job table is kept, too: its
rows carry every later schema change.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from schemas import fields, tidb_json
from schemas.ids import SYSTEM
from schemas.model import Database, Table
from schemas.partitions import named_ids
from tistream.codec.table_key import DDL_JOB_TABLE_ID
from tistream.errors import CorruptObject

SYSTEM_DATABASES = frozenset(
    {
        "mysql",
        "information_schema",
        "performance_schema",
        "sys",
        "metrics_schema",
        "tidb_cdc",
        "lightning_task_info",
        "workload_schema",
    }
)


def is_system_database(name: str) -> bool:
    return name.lower() in SYSTEM_DATABASES


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSnapshot:
    """Databases and tables in force at `ts`, by their ids."""

    ts: int
    databases: Mapping[int, Database]
    tables: Mapping[int, Table]
    schema_version: int = 0
    named: Mapping[int, int] = field(default_factory=dict)  #: physical ids that no table reads (see `schemas.ids`)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedSchema:
    """The document that a tenant pushes before its first change: the schema at S and the DDL job table."""

    snapshot: SchemaSnapshot
    job_table: Table


def parse_pushed(data: object) -> PushedSchema:
    """The pushed JSON document. CorruptObject with the place of the fault, or when it lacks the DDL job table."""
    try:
        return _parsed(data)
    except fields.WrongField as error:
        raise CorruptObject("the pushed schema snapshot is not of the agreed form", reason=str(error)) from error


def _parsed(data: object) -> PushedSchema:
    if not isinstance(data, Mapping):
        raise fields.WrongField("it is not an object of JSON")
    ts = fields.integer(data, "ts", least=0, needed=True)
    schema_version = fields.integer(data, "schema_version")
    databases = {found.id: found for found in map(tidb_json.database, fields.mappings(data, "dbs"))}
    found = [_table(n, entry, databases) for n, entry in enumerate(fields.mappings(data, "tables"))]
    tables, named = [table for table, _ in found], {(table.id, i) for table, ids in found for i in ids}
    job_table = next((t for t in tables if t.id == DDL_JOB_TABLE_ID), None)
    if job_table is None:
        raise CorruptObject("the pushed schema snapshot has no mysql.tidb_ddl_job: later DDL could not be read", ts=ts)
    kept = {db_id: db for db_id, db in databases.items() if not is_system_database(db.name)}
    shown = {t.id: t for t in tables if t.db_id in kept}
    read = {i for t in shown.values() for i in t.physical_ids}
    snapshot = SchemaSnapshot(
        ts=ts,
        schema_version=schema_version,
        databases=MappingProxyType(kept),
        tables=MappingProxyType(shown),
        named=MappingProxyType({i: of if of in shown else SYSTEM for of, i in sorted(named) if i not in read}),
    )
    return PushedSchema(snapshot=snapshot, job_table=job_table)


def _table(n: int, entry: Mapping[str, Any], databases: Mapping[int, Database]) -> tuple[Table, set[int]]:
    """The table, and the physical ids that its definition names."""
    try:
        db_id = fields.integer(entry, "db_id", needed=True)
        if db_id not in databases:
            raise fields.WrongField(f"db_id: there is no database {db_id}")
        table = tidb_json.table(fields.mapping(entry, "info"), db_id=db_id, db=databases[db_id].name)
        return table, named_ids(entry["info"])
    except fields.WrongField as error:
        raise error.inside(f"tables[{n}]") from error
