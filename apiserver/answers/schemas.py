"""Answers about databases and tables: as of a timestamp, their DDL, what has changed, and how to create them."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, Field

from apiserver.answers.fields import NextCursor, Time, Tso
from apiserver.answers.reading import DatabaseName, TableName


class Database(BaseModel):
    """A database."""

    database: DatabaseName
    db_id: int
    charset: str = Field(examples=["utf8mb4"])
    collate: str = Field(examples=["utf8mb4_bin"])


class DatabaseList(BaseModel):
    """The databases of a tenant."""

    items: list[Database]
    at_ts: Tso


class ListedColumn(BaseModel):
    """A column of a table."""

    name: str = Field(examples=["id"])
    type: str = Field(examples=["bigint(20) unsigned"])
    nullable: bool


class ListedTable(BaseModel):
    """A table, a view or a sequence."""

    table: TableName
    table_id: int
    kind: Literal["table", "view", "sequence"]
    partition_ids: list[int] = Field(description="empty = not partitioned")
    columns: list[ListedColumn]
    primary_key: list[str] = Field(examples=[["id"]])


class TableList(BaseModel):
    """The tables of a database."""

    database: DatabaseName
    items: list[ListedTable]
    at_ts: Tso


class DdlEvent(BaseModel):
    """A DDL statement."""

    commit_ts: Tso = Field(description="where it takes effect")
    commit_time: Time
    finished_ts: Tso | None = Field(description="when its job finished; null if that was long after")
    job_id: int
    kind: str = Field(examples=["add column"])
    database: DatabaseName
    table: TableName | None
    table_id: int | None
    query: str = Field(examples=["ALTER TABLE `shop`.`customers` ADD COLUMN `born` DATE"])
    schema_version: int


class DdlPage(BaseModel):
    """A page of DDL, the newest first."""

    items: list[DdlEvent]
    total: int
    next_cursor: NextCursor
    start_ts: Tso = Field(description="where the known history begins")
    resolved_ts: Tso


class ColumnChange(BaseModel):
    """A column that differs; of a table that was created or dropped every one."""

    name: str = Field(examples=["born"])
    change: Literal["created", "added", "dropped", "changed"]
    before: str | None = Field(examples=["date"])
    after: str | None = Field(examples=["date not null"])


class TableChange(BaseModel):
    """A table that differs."""

    database: DatabaseName
    table: TableName
    change: Literal["created", "dropped", "changed"]
    was: str | None = Field(description="its name before, if it was renamed", examples=["shop.clients"])
    new_ids: bool = Field(description="its rows have other keys, as after TRUNCATE")
    columns: list[ColumnChange]


class SchemaDiff(BaseModel):
    """What has changed between two timestamps."""

    from_ts: Tso
    to_ts: Tso
    databases_added: list[DatabaseName]
    databases_dropped: list[DatabaseName]
    tables: list[TableChange]


class ColumnShape(BaseModel):
    """A column, for writers of rows."""

    id: int
    name: str = Field(examples=["id"])
    tp: int = Field(description="MySQL's number of the type", examples=[8])
    unsigned: bool
    not_null: bool
    flen: int = Field(description="display length; digits of a DECIMAL, bits of a BIT, bytes of a BINARY")
    decimal: int = Field(description="fraction digits; -1 = unspecified")
    binary: bool = Field(description="bytes, not text")
    elems: list[str] = Field(description="labels of ENUM and SET", examples=[["new", "paid"]])
    zerofill: bool
    charset: str = Field(examples=["utf8mb4"])
    version: int = Field(description="from 1 on defaults of TIMESTAMP are in UTC")


class TableShape(BaseModel):
    """A table, for writers of rows."""

    table_id: int
    physical_ids: list[int] = Field(description="ids in record keys: the table's, or those of its partitions")
    columns: list[ColumnShape]
    int_handle: int | None = Field(description="id of the column that is the integer row key")
    common_handle: list[int] = Field(description="ids of the columns of the clustered primary key, in its order")
    key_is_whole: bool = Field(description="the columns determine the record key")


class TableDefinition(BaseModel):
    """How to create a table as of a timestamp, and load it."""

    database: DatabaseName
    table: TableName
    as_of: Tso
    create_database: str = Field(examples=["CREATE DATABASE IF NOT EXISTS `shop` DEFAULT CHARACTER SET utf8mb4"])
    create_table: str = Field(examples=["CREATE TABLE `shop`.`customers` (\n  `id` bigint(20) NOT NULL\n)"])
    load_csv: str = Field(
        description="what follows LOAD DATA ... INFILE for the table's CSV",
        examples=["INTO TABLE `shop`.`customers` FIELDS TERMINATED BY ','"],
    )
    notes: list[str] = Field(
        description="what the dialect cannot say", examples=[["TTL is left out: the server has none"]]
    )
    shape: TableShape
