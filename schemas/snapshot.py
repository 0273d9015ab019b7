"""The whole schema of a tenant at one timestamp, and the JSON form in which a tenant pushes it.

    {"ts": ..., "schema_version": ..., "dbs": [DBInfo ...], "tables": [{"db_id": ..., "info": TableInfo} ...],
     "followed": {"left_out": [[start key, end key] ...]}}

`followed` is there when the tenant does not follow all keys; they are in hexadecimal. Of system databases only ids are
kept, because their rows are never delivered. The DDL job table is kept, too: its
rows carry every later schema change.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Generic, Protocol, TypeVar

from schemas import fields, tidb_json
from schemas.ids import SYSTEM
from schemas.model import Database, Table
from schemas.partitions import named_ids
from tistream.codec.table_key import DDL_JOB_TABLE_ID
from tistream.errors import CorruptObject
from tistream.keyrange import KeyRange
from tistream.limits import SNAPSHOT_PARTITIONS_MAX, SNAPSHOT_TABLES_MAX

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


_NAME_CHARS_MAX = 256  # TiDB's names have 64; every process that reads a history holds those of all tables


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
    left_out: tuple[KeyRange, ...] = ()  #: what the tenant does not follow (see `schemas.followed`)


@dataclass(frozen=True, slots=True, kw_only=True)
class PushedSchema:
    """The document that a tenant pushes before its first change: the schema at S and the DDL job table."""

    snapshot: SchemaSnapshot
    job_table: Table


class OfTable(Protocol):
    """What is kept of a table while a document is read: the table, or less."""

    @property
    def id(self) -> int: ...
    @property
    def db_id(self) -> int: ...
    @property
    def physical_ids(self) -> tuple[int, ...]: ...


T = TypeVar("T", bound=OfTable)


def parse_pushed(data: object) -> PushedSchema:
    """The pushed JSON document. CorruptObject with the place of the fault, or when it lacks the DDL job table."""
    reader = SnapshotReader[Table](lambda table: table)
    try:
        if not isinstance(data, Mapping):
            raise fields.WrongField("it is not an object of JSON")
        for name in ("ts", "schema_version", "followed"):
            reader.take(name, 0, data.get(name))
        for name in ("dbs", "tables"):
            items = data.get(name)
            for n, item in enumerate(items if isinstance(items, list) else [] if items is None else [items]):
                reader.take(name, n, item)
        reader.end()
        return pushed_schema(reader.found())
    except fields.WrongField as error:
        raise CorruptObject("the pushed schema snapshot is not of the agreed form", reason=str(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedSnapshot(Generic[T]):
    """What a document says: of its system databases nothing but the DDL job table."""

    ts: int
    schema_version: int
    databases: dict[int, Database]
    tables: dict[int, T]
    named: dict[int, int]
    left_out: tuple[KeyRange, ...]
    job_table: Table


def pushed_schema(pushed: ParsedSnapshot[Table]) -> PushedSchema:
    """The document's tables, held in memory."""
    snapshot = SchemaSnapshot(
        ts=pushed.ts,
        schema_version=pushed.schema_version,
        databases=MappingProxyType(pushed.databases),
        tables=MappingProxyType(pushed.tables),
        named=MappingProxyType(pushed.named),
        left_out=pushed.left_out,
    )
    return PushedSchema(snapshot=snapshot, job_table=pushed.job_table)


class SnapshotReader(Generic[T]):
    """Reads the members of the document, in any order. WrongField with the place of a fault."""

    def __init__(self, keep: Callable[[Table], T]) -> None:
        """`keep`: what to hold of each table."""
        self._keep = keep
        self.complete = False
        self._numbers: dict[str, Any] = {}
        self._databases: dict[int, Database] = {}
        self._tables: dict[int, T] = {}
        self._job_table: Table | None = None
        self._named: set[tuple[int, int]] = set()
        self._partitions = 0
        self._left_out: tuple[KeyRange, ...] = ()
        self._early = False  # a table came before the databases
        self._listed = False  # the databases are known

    def take(self, name: str, n: int, value: Any) -> None:
        """A member; of a list, item `n`."""
        match name:
            case "ts" | "schema_version":
                self._numbers[name] = value
            case "followed" if value is not None:
                self._left_out = _left_out(_object(name, n, value))
            case "dbs" if not self._listed:
                _check_count(name, n)
                database = tidb_json.database(_object(name, n, value))
                _check_name(f"dbs[{n}]", database.name)
                self._databases[database.id] = database
            case "tables":
                _check_count(name, n)
                self._early = self._early or not self._databases
                if not self._early:
                    self._table(n, _object(name, n, value))

    def end(self) -> None:
        """The end of the document. Not `complete` when it must be read again, now that the databases are known."""
        self.complete, self._early, self._listed = not self._early or not self._databases, False, True

    def _table(self, n: int, entry: Mapping[str, Any]) -> None:
        table, named = _table(n, entry, self._databases)
        _check_name(f"tables[{n}]", table.name)
        if table.id == DDL_JOB_TABLE_ID and self._job_table is None:
            self._job_table = table
        self._tables[table.id] = self._keep(table)
        self._named.update((table.id, i) for i in named)
        self._partitions += len(named)
        if self._partitions > SNAPSHOT_PARTITIONS_MAX:
            raise fields.WrongField(f"tables[{n}]: more than {SNAPSHOT_PARTITIONS_MAX} physical ids in all")

    def found(self) -> ParsedSnapshot[T]:
        """The result, once it is complete."""
        ts = fields.integer(self._numbers, "ts", least=0, needed=True)
        if self._job_table is None:
            raise CorruptObject(
                "the pushed schema snapshot has no mysql.tidb_ddl_job: later DDL could not be read", ts=ts
            )
        kept = {db_id: db for db_id, db in self._databases.items() if not is_system_database(db.name)}
        shown = {table_id: t for table_id, t in self._tables.items() if t.db_id in kept}
        read = {i for t in shown.values() for i in t.physical_ids}
        unread = sorted((of, i) for of, i in self._named if i not in read)
        return ParsedSnapshot(
            ts=ts,
            schema_version=fields.integer(self._numbers, "schema_version"),
            databases=kept,
            tables=shown,
            named={i: of if of in shown else SYSTEM for of, i in unread},
            left_out=self._left_out,
            job_table=self._job_table,
        )


def _check_count(name: str, n: int) -> None:
    if n >= SNAPSHOT_TABLES_MAX:
        raise fields.WrongField(f"{name}: more than {SNAPSHOT_TABLES_MAX} entries")


def _check_name(place: str, name: str) -> None:
    if len(name) > _NAME_CHARS_MAX:
        raise fields.WrongField(f"{place}: a name of {len(name)} characters")


def _left_out(followed: Mapping[str, Any]) -> tuple[KeyRange, ...]:
    parts = followed.get("left_out")
    if not isinstance(parts, list):
        raise fields.WrongField("followed.left_out: it is not a list")
    _check_count("followed.left_out", len(parts) - 1)
    try:
        return tuple(KeyRange(bytes.fromhex(start), bytes.fromhex(end)) for start, end in parts)
    except (TypeError, ValueError) as error:
        raise fields.WrongField("followed.left_out: it is not pairs of keys in hexadecimal") from error


def _object(name: str, n: int, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise fields.WrongField(f"{name}[{n}]: it is not an object")
    return value


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
