"""The first tables, and the rows that are never inserted later: the counters, the unelected leader, and the release.

A migration is history: it names its own types and never imports the metadata, which changes.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from tistream.catalog.database.steps import create_index, create_table, insert_rows

revision = "0001"
down_revision = None
min_release = "0.1.0"  # the lowest release that may run on these tables; each migration names it

_MYSQL = ("mysql", "mariadb")
_UINT = sa.BigInteger().with_variant(mysql.BIGINT(unsigned=True), *_MYSQL)
_KEY = sa.LargeBinary(9216).with_variant(mysql.VARBINARY(9216), *_MYSQL)
_BYTES = sa.LargeBinary().with_variant(mysql.MEDIUMBLOB(), *_MYSQL)
_LONG_TEXT = sa.Text().with_variant(mysql.MEDIUMTEXT(), *_MYSQL)
_COUNTERS = (
    *("task", "replacement", "compaction", "first key", "event", "stopped item"),
    *("job", "job bytes", "job requests saved", "lane"),
)

_TENANT = ("cluster_id", "tenant_id")
_FILE_PART = ("row_count", "byte_offset", "byte_length", "crc")


def upgrade() -> None:
    _tenants_and_tasks()
    _stores_and_workers()
    _log()
    _table_snapshots()
    _readers()
    _log_readers()
    _access()
    _history()
    _jobs()
    _releases()
    create_table("counters", _name("name", 32, key=True), *_uints("value"))
    insert_rows("counters", [{"name": name, "value": 0} for name in _COUNTERS], key="name")


def _ascii(length: int) -> sa.String:
    return sa.String(length).with_variant(mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), *_MYSQL)


def _name(name: str, length: int, *, key: bool = False, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, _ascii(length), primary_key=key, nullable=nullable)


def _words(*names: str) -> list[sa.Column[str]]:
    return [_name(name, 32) for name in names]


def _uints(*names: str, key: bool = False, nullable: bool = False) -> list[sa.Column[int]]:
    return [sa.Column(name, _UINT, primary_key=key, nullable=nullable, autoincrement=False) for name in names]


def _with_default(name: str, value: str) -> sa.Column[int]:
    return sa.Column(name, _UINT, nullable=False, server_default=value)


def _number_in_file() -> sa.Column[int]:
    return sa.Column("segment_no", sa.Integer, primary_key=True, autoincrement=False)


def _range() -> list[sa.Column[bytes]]:
    return [sa.Column(name, _KEY, nullable=False) for name in ("start_key", "end_key")]


def _text(name: str, *, nullable: bool = False) -> sa.Column[str]:
    return sa.Column(name, sa.Text, nullable=nullable)


def _tenants_and_tasks() -> None:
    create_table(
        "tenants",
        *_uints(*_TENANT, key=True),
        *_words("kind"),
        *_uints("keyspace_id", nullable=True),
        _text("keyspace_name", nullable=True),
        *_uints("upstream_id", nullable=True),
        *_words("state"),
        _text("reason"),
        *_uints("start_ts"),
        *_range(),
        *_uints("created_ms"),
        _with_default("floor_ts", "0"),
        *_uints("retention_s", nullable=True),
        _with_default("schema_hints", "0"),
    )
    create_table(
        "tasks",
        *_uints("task_id", key=True),
        *_uints(*_TENANT),
        *_words("kind"),
        *_range(),
        *_uints("start_ts", "durable_ts", "epoch"),
        _name("owner", 128, nullable=True),
        _name("snapshot_key", 512, nullable=True),
        *_uints("snapshot_no", "resubscribe_id"),
        _text("error", nullable=True),
        *_uints("merge_with", nullable=True),
    )
    create_index("tasks_of_tenant", "tasks", _TENANT)
    create_index("tasks_of_owner", "tasks", ["owner"])
    create_table(
        "snapshot_positions",
        *_uints("task_id", "store_id", "incarnation", key=True),
        *_uints("seq"),
        sa.Column("closed", sa.Boolean, nullable=False),
    )
    create_table("snapshot_objects", *_uints("task_id", key=True), _name("object_key", 512, key=True))
    create_index("snapshot_objects_by_key", "snapshot_objects", ["object_key"])


def _stores_and_workers() -> None:
    create_table(
        "stores",
        *_uints(*_TENANT, "store_id", key=True),
        *_uints("incarnation", "max_cut_ts"),
        _name("dispatcher", 128, nullable=True),
        *_uints("dispatcher_epoch"),
        _with_default("end_ts", "0"),
    )
    create_index("stores_of_dispatcher", "stores", ["dispatcher"])
    create_table(
        "store_incarnations",
        *_uints(*_TENANT, "store_id", "incarnation", key=True),
        *_uints("reclaimed_seq"),
    )
    create_table(
        "quarantines",
        *_uints(*_TENANT, "store_id", "incarnation", "seq", "task_id", key=True),
        _name("object_key", 512),
        *_uints("good_ts", "served_ts", "row_count"),
        _text("sample"),
        *_words("state"),
        *_uints("since_ms", "decided_ms"),
        _name("decided_by", 128),
    )
    create_index("quarantines_by_state", "quarantines", ["state"])
    create_table(
        "workers",
        _name("worker_id", 128, key=True),
        *_words("kind"),
        sa.Column("address", sa.String(255), nullable=False),
        *_uints("release_no", "incarnation"),
        *_words("state"),
        *_uints("heartbeat_ms"),
        sa.Column("report", _LONG_TEXT),
    )
    create_table(
        "leader",
        *_uints("id", key=True),
        _name("name", 128),
        *_uints("release_no", "epoch", "heartbeat_ms"),
        sa.Column("report", _LONG_TEXT),
    )
    insert_rows("leader", [{"id": 1, "name": "", "release_no": 0, "epoch": 0, "heartbeat_ms": 0}], key="id")


def _log() -> None:
    create_table(
        "objects",
        _name("object_key", 512, key=True),
        *_uints(*_TENANT),
        *_words("kind", "state"),
        *_uints("bytes", "changed_ms"),
        _with_default("replacement_no", "0"),
    )
    create_index("objects_of_tenant", "objects", [*_TENANT, "state", "kind"])
    create_table(
        "segments",
        _name("object_key", 512, key=True),
        _number_in_file(),
        *_uints(*_TENANT),
        *_words("kind"),
        *_uints("task_id"),
        *_range(),
        sa.Column("table_lo", sa.BigInteger, nullable=False),
        sa.Column("table_hi", sa.BigInteger, nullable=False),
        *_uints("lo_ts", "hi_ts", *_FILE_PART),
        sa.Column("format", _ascii(32), nullable=False, server_default="segment"),
        *(_with_default(name, "0") for name in ("footer_offset", "footer_length", "footer_crc", "raw_length")),
        _with_default("span_class", "15"),
    )
    create_index("segments_by_hi_ts", "segments", [*_TENANT, "kind", "hi_ts"])
    create_index("segments_in_order", "segments", [*_TENANT, "kind", "lo_ts", "hi_ts", "object_key", "segment_no"])
    create_index("segments_by_span", "segments", [*_TENANT, "kind", "span_class", "lo_ts"])
    create_table("schema_versions", *_uints(*_TENANT, "ts", key=True), _name("object_key", 512))


def _table_snapshots() -> None:
    create_table(
        "seeds",
        *_uints(*_TENANT, "ts", "table_id", key=True),
        *_words("state"),
        _name("manifest_key", 512),
        *_uints("row_count", "bytes", "created_ms"),
    )
    create_table(
        "seed_segments",
        _name("object_key", 512, key=True),
        _number_in_file(),
        *_uints(*_TENANT, "ts", "seed_table_id", "table_id"),
        *_range(),
        *_uints(*_FILE_PART),
    )
    create_index("seed_segments_of_table", "seed_segments", [*_TENANT, "ts", "seed_table_id", "table_id"])
    create_table(
        "bases",
        *_uints(*_TENANT, "table_id", "ts", key=True),
        *_uints("seed_ts", "row_count", "bytes", "created_ms"),
    )
    create_table(
        "base_segments",
        _name("object_key", 512, key=True),
        _number_in_file(),
        *_uints(*_TENANT, "table_id", "ts"),
        *_range(),
        *_uints(*_FILE_PART),
    )
    create_index("base_segments_of_table", "base_segments", [*_TENANT, "table_id", "ts"])


def _readers() -> None:
    create_table("read_leases", _name("lease_id", 32, key=True), *_uints("replacements_seen", "expires_ms"))
    create_table("excluded_objects", _name("object_key", 512, key=True), *_uints(*_TENANT, "since_ms"))
    create_index("excluded_objects_of_tenant", "excluded_objects", [*_TENANT])
    create_table("builds", *_uints("build_id", key=True), *_uints("cluster_id", "tenant_id", "renewed_ms"))
    create_table("allowed_targets", *_uints(*_TENANT, key=True), _name("target", 512, key=True))
    create_table(
        "safe_points",
        *_uints(*_TENANT, key=True),
        _name("service_id", 128, key=True),
        *_uints("safe_ts", "expires_ms"),
    )


def _log_readers() -> None:
    create_table(
        "changefeeds",
        *_uints(*_TENANT, key=True),
        _name("changefeed_id", 128, key=True),
        *_words("state"),
        *_uints("start_ts", "checkpoint_ts", "target_ts", "created_ms", "last_active_ms", "idle_limit_ms"),
        *_uints("dead_letters"),
        *map(_text, ("filters", "sink_uri", "options")),
        _text("error", nullable=True),
    )
    create_table(
        "lanes",
        *_uints("lane_id", key=True),
        *_uints(*_TENANT),
        _name("changefeed_id", 128),
        *_uints("number"),
        sa.Column("scope", _LONG_TEXT, nullable=False),
        *_uints("checkpoint_ts", "attempted_ts", "catch_up_ts", "record_ts"),
        sa.Column("record", _LONG_TEXT, nullable=False),
        *_uints("epoch"),
        _name("owner", 128, nullable=True),
        *_uints("writable_ms", "advanced_ms", "rows_done", "bytes_done", "tries"),
        _text("error", nullable=True),
    )
    create_index("lanes_of_changefeed", "lanes", [*_TENANT, "changefeed_id", "number"])
    create_index("lanes_of_owner", "lanes", ["owner"])
    create_table(
        "destinations",
        *_uints("destination_id", key=True),
        _name("root_hash", 64),
        _text("location"),
        *_uints(*_TENANT),
        _name("changefeed_id", 128),
        *_uints("epoch", "attempted_ts", "released_ms"),
    )
    create_index("destinations_of_root", "destinations", ["root_hash"])
    create_index("destinations_of_changefeed", "destinations", [*_TENANT, "changefeed_id"])
    create_table(
        "consumers",
        *_uints(*_TENANT, key=True),
        _name("consumer_id", 128, key=True),
        *_words("state"),
        *_uints(
            "start_ts", "checkpoint_ts", "target_ts", "created_ms", "last_active_ms", "idle_limit_ms", "last_epoch"
        ),
        _text("filters"),
    )
    create_table(
        "consumer_partitions",
        *_uints(*_TENANT, key=True),
        _name("consumer_id", 128, key=True),
        *_uints("number", key=True),
        *_uints("checkpoint_ts", "epoch"),
        _name("member", 128, nullable=True),
        _text("commit_position", nullable=True),
    )
    create_table(
        "consumer_members",
        *_uints(*_TENANT, key=True),
        _name("consumer_id", 128, key=True),
        _name("member", 128, key=True),
        *_uints("session", "expires_ms"),
    )


def _access() -> None:
    create_table(
        "api_keys",
        _name("key_id", 32, key=True),
        _name("secret_hash", 64),
        sa.Column("name", sa.String(255), nullable=False),
        *_words("role"),
        *_uints(*_TENANT, nullable=True),
        sa.Column("tables", sa.Text()),
        *_words("created_by"),
        _name("replaced_by", 32, nullable=True),
        *_uints("created_ms", "expires_ms", "last_used_ms", "revoked_ms"),
    )
    create_index("api_keys_of_tenant", "api_keys", _TENANT)
    create_table("logins", _name("token_hash", 64, key=True), *_words("kind", "key_id"), *_uints("expires_ms"))
    create_index("logins_by_expiry", "logins", ["expires_ms"])
    create_table(
        "idempotency_keys",
        _name("key_hash", 64, key=True),
        _name("request_hash", 64),
        *_words("attempt"),
        sa.Column("status", sa.Integer, nullable=False),
        sa.Column("media_type", sa.String(128), nullable=False),
        sa.Column("body", _BYTES, nullable=False),
        *_uints("started_ms"),
    )
    create_index("idempotency_keys_by_age", "idempotency_keys", ["started_ms"])
    create_table("service_tokens", *_uints("token_no", key=True), _name("secret", 64), *_uints("created_ms"))


def _history() -> None:
    create_table(
        "events",
        *_uints("event_id", key=True),
        *_uints("at_ms"),
        *_words("kind"),
        *_uints(*_TENANT, nullable=True),
        _name("subject", 128),
        _name("actor", 128),
        _text("detail"),
    )
    create_table(
        "stopped_items",
        *_uints("item_id", key=True),
        _name("role", 128),
        _name("item", 128),
        *_words("scope"),
        *_uints(*_TENANT, nullable=True),
        *_words("code"),
        _text("message"),
        _text("object"),
        *_uints("since_ms", "last_failed_ms", "tries"),
        sa.Column("resumed", sa.Boolean, nullable=False),
    )
    create_index("stopped_items_by_item", "stopped_items", ["role", "item"], unique=True)


def _jobs() -> None:
    create_table(
        "jobs",
        *_uints("job_id", key=True),
        *_uints(*_TENANT),
        *_words("kind"),
        _name("scope", 128),
        *_words("executor", "state"),
        _name("open_key", 256, nullable=True),
        *_uints("epoch"),
        _name("holder", 128, nullable=True),
        *_uints("tries"),
        _text("limits"),
        _text("reason"),
        *_uints("estimated_bytes", "estimated_objects", "parts_done", "parts_total"),
        *_uints("created_ms", "due_ms", "started_ms", "renewed_ms", "ended_ms"),
        *_words("outcome", "code"),
        _text("error"),
        *_uints("bytes_read", "bytes_written", "objects_before", "objects_after", "requests_saved"),
    )
    create_index("jobs_by_key", "jobs", ["open_key"], unique=True)
    create_index("jobs_by_state", "jobs", ["state", "job_id"])
    create_index("jobs_of_tenant", "jobs", [*_TENANT, "kind", "scope", "job_id"])


def _releases() -> None:
    create_table("catalog_release", *_uints("id", key=True), *_uints("migrated_by", "min_release"))
    insert_rows("catalog_release", [{"id": 1, "migrated_by": 1000, "min_release": 1000}], key="id")
    create_table("features", _name("name", 32, key=True), *_uints("release_no", "enabled_ms"))
