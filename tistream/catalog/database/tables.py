"""The tables as SQLAlchemy Core metadata, and the few SQL expressions that differ between databases.

Queries use the metadata; migrations create the tables. A test compares the two.

- Byte keys are VARBINARY: compared as bytes, by SQLite too, and never part of a primary key.
- Ids and timestamps are unsigned 64-bit numbers below 2**63 (SQLite's limit), never AUTO_INCREMENT, because zero is a
  legal id. Table ids are signed: a negative number marks a segment without a table.
- Names are ASCII with a binary collation: "Sorter-1" and "sorter-1" are two workers. See `names`.
- Ages are computed from `now_ms()`, the database's clock; no worker's clock is stored or compared.
- Frequent queries are built once, with named parameters: building one costs more than running it.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Index,
    Insert,
    Integer,
    String,
    Table,
    and_,
    bindparam,
    select,
)
from sqlalchemy import Text as SqlText
from sqlalchemy.dialects import mysql, sqlite
from sqlalchemy.sql.elements import ColumnElement

from tistream.catalog.database import columns
from tistream.catalog.database import release_tables as _registered  # noqa: F401 - its tables are of the same metadata
from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.columns import (
    AnswerBytes,
    ExactText,
    ObjectName,
    OpenKey,
    ReportText,
    SecretHash,
    UInt,
    Word,
    WorkerName,
)
from tistream.catalog.database.columns import id_ as _id
from tistream.catalog.database.columns import ids as _ids
from tistream.catalog.database.columns import ids_with as _ids_with
from tistream.catalog.database.columns import key_range as _range
from tistream.catalog.database.columns import uint as _uint
from tistream.catalog.database.columns import uints as _uints
from tistream.catalog.database.columns import with_default as _with_default
from tistream.catalog.database.names import Name
from tistream.ids import Tenant

metadata = columns.metadata

tenants = Table(
    "tenants",
    metadata,
    *_ids("cluster_id", "tenant_id"),
    *(Column(name, Word, nullable=False) for name in ("kind", "state")),
    Column("keyspace_id", UInt),
    Column("keyspace_name", SqlText),
    Column("upstream_id", UInt),
    Column("reason", SqlText, nullable=False),
    _uint("start_ts"),
    *_range(),
    _uint("created_ms"),
    _with_default("floor_ts", "0"),
    Column("retention_s", UInt),
    *(_with_default(name, "0") for name in ("schema_hints", "decided_no")),
)

tasks = Table(
    "tasks",
    metadata,
    _id("task_id"),
    *_uints("cluster_id", "tenant_id"),
    Column("kind", Word, nullable=False),
    *_range(),
    *_uints("start_ts", "durable_ts", "epoch"),
    Column("owner", WorkerName),
    Column("snapshot_key", ObjectName),
    *_uints("snapshot_no", "resubscribe_id"),
    Column("error", SqlText),
    Column("merge_with", UInt),
    Index("tasks_of_tenant", "cluster_id", "tenant_id"),
    Index("tasks_of_owner", "owner"),
)

snapshot_positions = Table(
    "snapshot_positions",
    metadata,
    *_ids("task_id", "store_id", "incarnation"),
    _uint("seq"),
    Column("closed", Boolean, nullable=False),
)

snapshot_objects = Table(
    "snapshot_objects",
    metadata,
    _id("task_id"),
    Column("object_key", ObjectName, primary_key=True),
    Index("snapshot_objects_by_key", "object_key"),
)

stores = Table(
    "stores",
    metadata,
    *_ids("cluster_id", "tenant_id", "store_id"),
    *_uints("incarnation", "max_cut_ts"),
    Column("dispatcher", WorkerName),
    _uint("dispatcher_epoch"),
    _with_default("end_ts", "0"),
    Index("stores_of_dispatcher", "dispatcher"),
)

store_incarnations = Table(
    "store_incarnations",
    metadata,
    *_ids("cluster_id", "tenant_id", "store_id", "incarnation"),
    _uint("reclaimed_seq"),
    _with_default("decided_no", "0"),
)

quarantines = Table(
    "quarantines",
    metadata,
    *_ids("cluster_id", "tenant_id", "store_id", "incarnation", "seq", "task_id"),
    Column("object_key", ObjectName, nullable=False),
    *_uints("good_ts", "served_ts", "row_count"),
    Column("sample", SqlText, nullable=False),
    Column("state", Word, nullable=False),
    *_uints("since_ms", "decided_ms"),
    Column("decided_by", WorkerName, nullable=False),
    Index("quarantines_by_state", "state"),
)

workers = Table(
    "workers",
    metadata,
    Column("worker_id", WorkerName, primary_key=True),
    Column("kind", Word, nullable=False),
    Column("address", String(255), nullable=False),
    *_uints("release_no", "incarnation"),
    Column("state", Word, nullable=False),
    _uint("heartbeat_ms"),
    Column("report", ReportText),
)

leader = Table(
    "leader",
    metadata,
    _id("id"),
    Column("name", WorkerName, nullable=False),
    *_uints("release_no", "epoch", "heartbeat_ms"),
    Column("report", ReportText),
)

objects = Table(
    "objects",
    metadata,
    Column("object_key", ObjectName, primary_key=True),
    *_uints("cluster_id", "tenant_id"),
    Column("kind", Word, nullable=False),
    Column("state", Word, nullable=False),
    *_uints("bytes", "changed_ms"),
    *(_with_default(name, "0") for name in ("replacement_no", "decided_no")),
    Index("objects_of_tenant", "cluster_id", "tenant_id", "state", "kind"),
    Index("objects_by_decision", "state", "decided_no", "bytes"),
)

segments = Table(
    "segments",
    metadata,
    Column("object_key", ObjectName, primary_key=True),
    Column("segment_no", Integer, primary_key=True, autoincrement=False),
    *_uints("cluster_id", "tenant_id"),
    Column("kind", Word, nullable=False),
    _uint("task_id"),
    *_range(),
    Column("table_lo", BigInteger, nullable=False),
    Column("table_hi", BigInteger, nullable=False),
    *_uints("lo_ts", "hi_ts", "row_count", "byte_offset", "byte_length", "crc"),
    Column("format", Word, nullable=False, server_default="segment"),
    *(_with_default(name, "0") for name in ("footer_offset", "footer_length", "footer_crc", "raw_length")),
    _with_default("span_class", "15"),
    Index("segments_by_hi_ts", "cluster_id", "tenant_id", "kind", "hi_ts"),
    Index("segments_in_order", "cluster_id", "tenant_id", "kind", "lo_ts", "hi_ts", "object_key", "segment_no"),
    Index("segments_by_span", "cluster_id", "tenant_id", "kind", "span_class", "lo_ts"),
)

read_leases = Table(
    "read_leases", metadata, Column("lease_id", Word, primary_key=True), *_uints("replacements_seen", "expires_ms")
)

excluded_objects = Table(
    "excluded_objects",
    metadata,
    Column("object_key", ObjectName, primary_key=True),
    *_uints("cluster_id", "tenant_id", "since_ms"),
    Index("excluded_objects_of_tenant", "cluster_id", "tenant_id"),
)
builds = Table("builds", metadata, _id("build_id"), *_uints("cluster_id", "tenant_id", "renewed_ms"))

schema_versions = Table(
    "schema_versions",
    metadata,
    *_ids("cluster_id", "tenant_id", "ts"),
    Column("object_key", ObjectName, nullable=False),
)

seeds = Table(
    "seeds",
    metadata,
    *_ids("cluster_id", "tenant_id", "ts", "table_id"),
    Column("state", Word, nullable=False),
    Column("manifest_key", ObjectName, nullable=False),
    *_uints("row_count", "bytes", "created_ms"),
)

seed_segments = Table(
    "seed_segments",
    metadata,
    Column("object_key", ObjectName, primary_key=True),
    Column("segment_no", Integer, primary_key=True, autoincrement=False),
    *_uints("cluster_id", "tenant_id", "ts", "seed_table_id", "table_id"),
    *_range(),
    *_uints("row_count", "byte_offset", "byte_length", "crc"),
    Index("seed_segments_of_table", "cluster_id", "tenant_id", "ts", "seed_table_id", "table_id"),
)

bases = Table(
    "bases",
    metadata,
    *_ids("cluster_id", "tenant_id", "table_id", "ts"),
    *_uints("seed_ts", "row_count", "bytes", "created_ms"),
)

base_segments = Table(
    "base_segments",
    metadata,
    Column("object_key", ObjectName, primary_key=True),
    Column("segment_no", Integer, primary_key=True, autoincrement=False),
    *_uints("cluster_id", "tenant_id", "table_id", "ts"),
    *_range(),
    *_uints("row_count", "byte_offset", "byte_length", "crc"),
    Index("base_segments_of_table", "cluster_id", "tenant_id", "table_id", "ts"),
)
_OF_READER = ("start_ts", "checkpoint_ts", "target_ts", "created_ms", "last_active_ms", "idle_limit_ms")
changefeeds = Table(
    "changefeeds",
    metadata,
    *_ids_with("changefeed_id"),
    Column("state", Word, nullable=False),
    *_uints(*_OF_READER, "dead_letters"),
    *(Column(name, SqlText, nullable=name == "error") for name in ("filters", "sink_uri", "options", "error")),
)
lanes = Table(
    "lanes",
    metadata,
    _id("lane_id"),
    *_uints("cluster_id", "tenant_id"),
    Column("changefeed_id", WorkerName, nullable=False),
    _uint("number"),
    Column("scope", ReportText, nullable=False),
    *_uints("checkpoint_ts", "attempted_ts", "catch_up_ts", "record_ts"),
    Column("record", ReportText, nullable=False),
    _uint("epoch"),
    Column("owner", WorkerName),
    *_uints("writable_ms", "advanced_ms", "rows_done", "bytes_done", "tries"),
    Column("error", SqlText),
    Index("lanes_of_changefeed", "cluster_id", "tenant_id", "changefeed_id", "number"),
    Index("lanes_of_owner", "owner"),
)
destinations = Table(
    "destinations",
    metadata,
    _id("destination_id"),
    Column("root_hash", SecretHash, nullable=False),
    Column("location", SqlText, nullable=False),
    *_uints("cluster_id", "tenant_id"),
    Column("changefeed_id", WorkerName, nullable=False),
    *_uints("epoch", "attempted_ts", "released_ms"),
    Index("destinations_of_root", "root_hash"),
    Index("destinations_of_changefeed", "cluster_id", "tenant_id", "changefeed_id"),
)

consumers = Table(
    "consumers",
    metadata,
    *_ids_with("consumer_id"),
    Column("state", Word, nullable=False),
    *_uints(*_OF_READER, "last_epoch"),
    Column("filters", SqlText, nullable=False),
)
consumer_partitions = Table(
    "consumer_partitions",
    metadata,
    *_ids_with("consumer_id"),
    _id("number"),
    *_uints("checkpoint_ts", "epoch"),
    Column("member", WorkerName),
    Column("commit_position", SqlText),
)
consumer_members = Table(
    "consumer_members",
    metadata,
    *_ids_with("consumer_id"),
    Column("member", WorkerName, primary_key=True),
    *_uints("session", "expires_ms"),
)

allowed_targets = Table(
    "allowed_targets",
    metadata,
    *_ids("cluster_id", "tenant_id"),
    Column("target", ObjectName, primary_key=True),
)

safe_points = Table("safe_points", metadata, *_ids_with("service_id"), *_uints("safe_ts", "expires_ms"))

api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", Word, primary_key=True),
    Column("secret_hash", SecretHash, nullable=False),
    Column("name", String(255), nullable=False),
    Column("role", Word, nullable=False),
    Column("cluster_id", UInt),
    Column("tenant_id", UInt),
    Column("tables", SqlText),  # JSON list of table rules; NULL = all tables
    Column("created_by", Word, nullable=False),
    Column("replaced_by", Word),
    *_uints("created_ms", "expires_ms", "last_used_ms", "revoked_ms"),
    Index("api_keys_of_tenant", "cluster_id", "tenant_id"),
)

logins = Table(
    "logins",
    metadata,
    Column("token_hash", SecretHash, primary_key=True),
    Column("kind", Word, nullable=False),
    Column("key_id", Word, nullable=False),
    _uint("expires_ms"),
    Index("logins_by_expiry", "expires_ms"),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("key_hash", SecretHash, primary_key=True),
    Column("request_hash", SecretHash, nullable=False),
    Column("attempt", Word, nullable=False),
    Column("status", Integer, nullable=False),
    Column("media_type", String(128), nullable=False),
    Column("body", AnswerBytes, nullable=False),
    _uint("started_ms"),
    Index("idempotency_keys_by_age", "started_ms"),
)

service_tokens = Table(
    "service_tokens", metadata, _id("token_no"), Column("secret", Name(64), nullable=False), _uint("created_ms")
)

events = Table(
    "events",
    metadata,
    _id("event_id"),
    _uint("at_ms"),
    Column("kind", Word, nullable=False),
    Column("cluster_id", UInt),
    Column("tenant_id", UInt),
    Column("subject", WorkerName, nullable=False),
    Column("actor", WorkerName, nullable=False),
    Column("detail", SqlText, nullable=False),
)

audit_log = Table(
    "audit_log",
    metadata,
    _id("entry_no"),
    *_uints("at_ms", "last_ms", "times"),
    Column("key_id", Word, nullable=False),
    Column("principal", ExactText, nullable=False),
    Column("role", Word, nullable=False),
    Column("address", ExactText, nullable=False),
    Column("operation", WorkerName, nullable=False),
    Column("cluster_id", UInt),
    Column("tenant_id", UInt),
    Column("target", SqlText, nullable=False),
    Column("result", Word, nullable=False),
    _uint("status"),
    Column("code", Word, nullable=False),
    Column("request_id", Name(64), nullable=False),
    Index("audit_log_by_time", "at_ms", "entry_no"),
    Index("audit_log_of_tenant", "cluster_id", "tenant_id", "at_ms"),
    Index("audit_log_of_principal", "principal", "at_ms"),
    Index("audit_log_of_key", "key_id", "at_ms"),
    Index("audit_log_of_operation", "operation", "at_ms"),
    Index("audit_log_of_result", "result", "at_ms"),
)

stopped_items = Table(
    "stopped_items",
    metadata,
    _id("item_id"),
    Column("role", WorkerName, nullable=False),
    Column("item", WorkerName, nullable=False),
    Column("scope", Word, nullable=False),
    Column("cluster_id", UInt),
    Column("tenant_id", UInt),
    Column("code", Word, nullable=False),
    Column("message", SqlText, nullable=False),
    Column("object", SqlText, nullable=False),
    *_uints("since_ms", "last_failed_ms", "tries"),
    Column("resumed", Boolean, nullable=False),
    Index("stopped_items_by_item", "role", "item", unique=True),
)

jobs = Table(
    "jobs",
    metadata,
    _id("job_id"),
    *_uints("cluster_id", "tenant_id"),
    Column("kind", Word, nullable=False),
    Column("scope", WorkerName, nullable=False),
    Column("executor", Word, nullable=False),
    Column("state", Word, nullable=False),
    Column("open_key", OpenKey),
    _uint("epoch"),
    Column("holder", WorkerName),
    _uint("tries"),
    Column("limits", SqlText, nullable=False),
    Column("reason", SqlText, nullable=False),
    *_uints("estimated_bytes", "estimated_objects", "parts_done", "parts_total"),
    *_uints("created_ms", "due_ms", "started_ms", "renewed_ms", "ended_ms"),
    Column("outcome", Word, nullable=False),
    Column("code", Word, nullable=False),
    Column("error", SqlText, nullable=False),
    *_uints("bytes_read", "bytes_written", "objects_before", "objects_after", "requests_saved"),
    Index("jobs_by_key", "open_key", unique=True),
    Index("jobs_by_state", "state", "job_id"),
    Index("jobs_of_tenant", "cluster_id", "tenant_id", "kind", "scope", "job_id"),
)

counters = Table("counters", metadata, Column("name", Word, primary_key=True), _uint("value"))
_COUNT = counters.update().where(counters.c.name == bindparam("of")).values(value=counters.c.value + bindparam("more"))
_COUNTED = select(counters.c.value).where(counters.c.name == bindparam("of"))


def of_tenant(table: Table, tenant: Tenant) -> ColumnElement[bool]:
    """The rows of one tenant."""
    return and_(table.c.cluster_id == tenant.cluster_id, table.c.tenant_id == tenant.tenant_id)


def of_asked_tenant(table: Table) -> ColumnElement[bool]:
    """The rows of the tenant given by the parameters of `tenant_ids`, for queries built once."""
    return and_(table.c.cluster_id == bindparam("asked_cluster"), table.c.tenant_id == bindparam("asked_tenant"))


def tenant_ids(tenant: Tenant) -> dict[str, Any]:
    """The parameters of `of_asked_tenant`."""
    return {"asked_cluster": tenant.cluster_id, "asked_tenant": tenant.tenant_id}


def tenant_of(row: Any) -> Tenant:
    """The tenant of a row."""
    return Tenant(row.cluster_id, row.tenant_id)


def ensure_row(conn: Connection, table: Table, *, timed: str | None = None, **values: Any) -> None:
    """Insert a row unless its primary key exists; `timed`: a column for the database's time. Racing callers wait."""
    conn.execute(_ensuring(table, timed, conn.dialect.name == "sqlite"), values)


@cache
def _ensuring(table: Table, timed: str | None, is_sqlite: bool) -> Insert:
    """MySQL's plain INSERT leaves a shared lock on a duplicate, so two callers that then update the row deadlock;
    ON DUPLICATE KEY UPDATE takes the exclusive lock at once."""
    now = {} if timed is None else {timed: now_ms()}
    if is_sqlite:
        return sqlite.insert(table).values(**now).on_conflict_do_nothing()
    same = {column.name: table.c[column.name] for column in table.primary_key}
    return mysql.insert(table).values(**now).on_duplicate_key_update(**same)


def next_numbers(conn: Connection, name: str, count: int) -> range:
    """`count` unique numbers, from 1, never reused. The row lock makes concurrent callers wait."""
    conn.execute(_COUNT, {"of": name, "more": count})
    last = conn.execute(_COUNTED, {"of": name}).scalar_one()
    return range(last - count + 1, last + 1)
