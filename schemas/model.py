"""Databases, tables, columns and DDL events, reduced from TiDB's meta to what decoding and serving need.

Built from the JSON that TiDB keeps in its meta range (DBInfo, TableInfo; names are `{"O":..., "L":...}`). Unknown
fields are ignored, missing ones take zero values, non-public columns (state != 5) are kept apart.
"""

from __future__ import annotations

from dataclasses import dataclass

from schemas.restore import restored

STATE_PUBLIC = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    id: int  #: stable; the number in stored rows
    name: str
    offset: int  #: place in the table
    tp: int  #: MySQL type number
    flag: int  #: MySQL column flags
    flen: int
    decimal: int  #: fraction digits or fsp; -1 = unspecified
    charset: str
    collate: str
    elems: tuple[str, ...] = ()  #: ENUM and SET labels
    origin_default: object = None  #: value of rows written before the column existed: str, number or None
    origin_default_bit: bytes | None = None
    default: object = None
    default_bit: bytes | None = None
    default_is_expr: bool = False
    generated: bool = False
    generated_stored: bool = False
    generated_expr: str = ""  #: expression of a generated column
    hidden: bool = False
    state: int = STATE_PUBLIC
    version: int = 0
    comment: str = ""

    @property
    def unsigned(self) -> bool:
        return bool(self.flag & 32)

    @property
    def not_null(self) -> bool:
        return bool(self.flag & 1)

    @property
    def primary(self) -> bool:
        return bool(self.flag & 2)

    @property
    def binary(self) -> bool:
        """Bytes rather than text: decided by the charset, never by the Binary flag."""
        return self.charset == "binary"

    @property
    def visible(self) -> bool:
        """Whether it is delivered: public, not hidden, and either ordinary or a stored generated column."""
        return self.state == STATE_PUBLIC and not self.hidden and (not self.generated or self.generated_stored)


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexColumn:
    """A column of an index; `length` -1 = the whole column."""

    name: str
    offset: int  #: into Table.columns
    length: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    id: int
    name: str
    columns: tuple[IndexColumn, ...]
    unique: bool
    primary: bool
    state: int = STATE_PUBLIC


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """One version of a table: immutable, shared by every timestamp at which it was in force."""

    id: int
    db_id: int
    db: str  #: original spelling
    name: str  #: original spelling
    charset: str
    collate: str
    columns: tuple[Column, ...]  #: all columns in offset order, non-public ones included
    indexes: tuple[Index, ...]
    pk_is_handle: bool  #: the single integer primary key is the row key
    is_common_handle: bool  #: the clustered primary key's datums are the row key
    common_handle_version: int = 0
    partition_ids: tuple[int, ...] = ()  #: physical ids; empty = not partitioned
    partition_names: tuple[str, ...] = ()
    update_ts: int = 0  #: TableInfo.update_timestamp
    kind: str = "table"  #: table, view or sequence
    mode: str = ""  #: IMPORT INTO or restore, while TiDB fills it past the change feed
    comment: str = ""

    @property
    def physical_ids(self) -> tuple[int, ...]:
        """Table ids that its record keys carry."""
        return self.partition_ids or (self.id,)

    @property
    def visible_columns(self) -> tuple[Column, ...]:
        """What is delivered, in table order."""
        return tuple(c for c in self.columns if c.visible)


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    id: int
    name: str
    charset: str = ""
    collate: str = ""
    state: int = STATE_PUBLIC


@dataclass(frozen=True, slots=True, kw_only=True)
class DdlEvent:
    """A DDL at the commit_ts at which it took effect. A job over several tables gives one event per table."""

    commit_ts: int  #: from here on the upstream's sessions read the result
    finished_ts: int = 0  #: when the job was done: `commit_ts`, or later for a partition DDL; 0 = not known then
    start_ts: int
    job_id: int
    schema_version: int
    type: int  #: action type number
    kind: str  #: its name, for example "add column"
    query: str
    db: str
    table: str  #: "" for database DDL
    db_id: int
    table_id: int
    sub: int = 0  #: index within a job over several tables
    version: Table | None = None  #: after the DDL, or the dropped one; EXCHANGE PARTITION: the partitioned one
    old_db: str = ""  #: RENAME: the name it had before
    old_table: str = ""
    exchanged: Table | None = None  #: EXCHANGE PARTITION: the plain table
    job_query: str = ""  #: the user's own text, which may name several tables
    as_written: bool = False  #: `query` is the user's text, or the part of it for this table
    sql_mode: int = 0  #: of the session
    charset: str = ""  #: of the session; "" = utf8mb4
    view_select: str = ""  #: CREATE VIEW: the SELECT as TiDB stored it, with the databases of all tables

    @property
    def statement(self) -> str:
        """The statement for consumers: as TiDB's parser restores it where `schemas.restore` can."""
        if not self.as_written:
            return self.query
        return restored(
            self.query, sql_mode=self.sql_mode, charset=self.charset, schema=self.db, view_select=self.view_select
        )
