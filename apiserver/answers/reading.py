"""Answers to readers: pages of changes and of entries, plans of long reads, files, and positions of consumers."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from apiserver.answers.fields import EndKey, HexKey, Seconds, Time, Tso
from tistream.catalog.rows.segments import SegmentFormat

_CURSOR = "MTyFYxRbMSwxLCJzaG9wIixudWxsLDQ3MDYxMzUzMDg5MTI1NTgwOCwwXQ"
Cursor = Annotated[str, Field(description="where a pull continues", examples=[_CURSOR])]
DatabaseName = Annotated[str, Field(examples=["shop"])]
TableName = Annotated[str, Field(examples=["customers"])]
Row = Annotated[
    dict[str, Any],
    Field(description="values by column, as docs/types.md says", examples=[{"id": 128, "name": "Ada", "born": None}]),
]


class RowChange(BaseModel):
    """A row of a table that was written."""

    type: Literal["insert", "update", "delete"]
    database: DatabaseName
    table: TableName
    table_id: int = Field(description="of a partition, if the table has any")
    key: HexKey = Field(description="the record key, which identifies the row")
    commit_ts: Tso
    start_ts: Tso = Field(description="of its transaction")
    commit_time: Time
    columns: Row | None = Field(description="null in a delete")
    old: Row | None = Field(description="null in an insert")


class DdlChange(BaseModel):
    """A DDL statement, where it takes effect."""

    type: Literal["ddl"]
    query: str = Field(examples=["ALTER TABLE `shop`.`customers` ADD COLUMN `born` DATE"])
    database: DatabaseName
    table: TableName = Field(description="empty for a statement about a database")
    commit_ts: Tso
    start_ts: Tso
    commit_time: Time
    kind: str = Field(examples=["add column"])
    finished_ts: Tso | None = Field(description="when its job finished; null if that was long after")


class UndecodedRow(BaseModel):
    """A row that the service cannot decode."""

    type: Literal["error"]
    database: DatabaseName
    table: TableName
    table_id: int
    column: str | None = Field(examples=["born"])
    key: HexKey
    commit_ts: Tso
    commit_time: Time
    offset: int | None = Field(description="in the bytes of the row")
    cause: str = Field(examples=["a date has month 13"])


class Position(BaseModel):
    """Where a page ends, and what is served."""

    next_cursor: Cursor | None = Field(description="null for a member of a consumer that holds no partition")
    has_more: bool = Field(description="more is served than the page holds")
    open_transaction_ts: Tso | None = Field(
        default=None, description="the page has only a part of the changes of this commit_ts"
    )
    resolved_ts: Tso = Field(default="0", description="served watermark: every change at or below it is served")
    resolved_time: Time | None = None
    lag_s: Seconds | None = Field(default=None, description="from now to `resolved_ts`")
    quarantined: int = Field(default=0, description="rows of the page that cannot be decoded")


class ChangePage(Position):
    """A page of changes."""

    items: list[Annotated[RowChange | DdlChange | UndecodedRow, Field(discriminator="type")]]


class Entry(BaseModel):
    """A write to a key. Key and value have the form of `key_format`."""

    op: Literal["put", "delete"]
    key: str = Field(examples=["user:1"])
    value: str | None = Field(description="null in a delete", examples=["Ada"])
    ts: Tso = Field(description="of the write")
    expire_ts: int | None = Field(description="TiKV's name and unit: Unix seconds", examples=[1795248187])
    scanned_from_ts: Tso = Field(
        default_factory=str,
        description="the entry comes from a scan: older versions of the key above this may be missing",
    )


class EntryPage(Position):
    """A page of writes to keys."""

    items: list[Entry]


class PlanPart(BaseModel):
    """A part of a plan: the changes in (`start_ts`, `end_ts`]."""

    cursor: Cursor
    start_ts: Tso
    end_ts: Tso
    rows: int = Field(description="estimated, index entries included")


class Plan(BaseModel):
    """The parts of a long pull, without gaps."""

    parts: list[PlanPart]
    cursor: Cursor = Field(description="of its start")
    start_ts: Tso
    next_cursor: Cursor = Field(description="of its end: the next plan continues there")
    end_ts: Tso
    resolved_ts: Tso
    has_more: bool = Field(description="more is served below the end that was asked for")
    rows: int = Field(description="estimated; 0 only when there is surely no change")


class LogFile(BaseModel):
    """A file of the log."""

    name: str = Field(examples=["committed/sorter-1/000000000001.seg"])
    url: str = Field(
        examples=["http://127.0.0.1:8711/v1/clusters/1/tenants/1/files/committed/sorter-1/000000000001.seg"]
    )
    format: SegmentFormat
    rows: int
    bytes: int
    row_groups: int
    lo_ts: Tso = Field(description="lowest commit_ts")
    hi_ts: Tso = Field(description="highest commit_ts")
    lo_time: Time
    hi_time: Time
    start_key: HexKey = Field(description="lowest key")
    end_key: EndKey = Field(description="highest key")
    table_lo: int = Field(description="lowest id of a table")
    table_hi: int = Field(description="highest id of a table")


class FileList(BaseModel):
    """The files that may hold changes in (`start_ts`, `end_ts`]: each row is in one of them."""

    items: list[LogFile]
    start_ts: Tso
    end_ts: Tso
    resolved_ts: Tso
    parquet_upto_ts: Tso = Field(description="every change at or below it is in a Parquet file: pull the rest")
    table_ids: list[int] | None = Field(description="of the tables and partitions asked for; null = all")
    expires_time: Time = Field(description="until then the files can be fetched")


class Acknowledged(BaseModel):
    """A partition of a consumer, with what is done of it."""

    partition: int
    epoch: int = Field(description="rises with each member that holds it")
    checkpoint_ts: Tso
    checkpoint_time: Time


class Left(BaseModel):
    """A member that has given up its partitions."""

    consumer_id: str = Field(examples=["warehouse"])
    member: str = Field(examples=["loader-1"])


class Reset(BaseModel):
    """A consumer that continues from elsewhere."""

    consumer_id: str = Field(examples=["warehouse"])
    checkpoint_ts: Tso
    checkpoint_time: Time
