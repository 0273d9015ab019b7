"""The first tables.

A migration is history: it names its own types and never imports the metadata, which moves on.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from tistream.catalog.database.steps import create_index, create_table, insert_rows

revision = "0001"
down_revision = None

_MYSQL = ("mysql", "mariadb")
_UINT = sa.BigInteger().with_variant(mysql.BIGINT(unsigned=True), *_MYSQL)
_KEY = sa.LargeBinary(9216).with_variant(mysql.VARBINARY(9216), *_MYSQL)


def _name(length: int) -> sa.String:
    return sa.String(length).with_variant(mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), *_MYSQL)


def _uints(*names: str, key: bool = False) -> list[sa.Column[int]]:
    return [sa.Column(name, _UINT, primary_key=key, nullable=False, autoincrement=False) for name in names]


def _keys() -> list[sa.Column[bytes]]:
    return [sa.Column(name, _KEY, nullable=False) for name in ("start_key", "end_key")]


def _word(name: str) -> sa.Column[str]:
    return sa.Column(name, _name(32), nullable=False)


def upgrade() -> None:
    _tenants_and_tasks()
    _stores()
    _processes()
    _published()
    create_table(
        "counters",
        sa.Column("name", _name(32), primary_key=True),
        *_uints("value"),
    )
    insert_rows("counters", [{"name": "task", "value": 0}], key="name")


def _tenants_and_tasks() -> None:
    create_table(
        "tenants",
        *_uints("cluster_id", "tenant_id", key=True),
        _word("state"),
        sa.Column("reason", sa.Text, nullable=False),
        *_uints("start_ts"),
        *_keys(),
        *_uints("created_ms"),
    )
    create_table(
        "tasks",
        *_uints("task_id", key=True),
        *_uints("cluster_id", "tenant_id"),
        _word("kind"),
        *_keys(),
        *_uints("start_ts", "durable_ts", "epoch"),
        sa.Column("owner", _name(128)),
        sa.Column("snapshot_key", _name(512)),
        *_uints("snapshot_n", "resubscribe_id"),
        sa.Column("error", sa.Text),
    )
    create_index("tasks_of_tenant", "tasks", ["cluster_id", "tenant_id"])
    create_index("tasks_of_owner", "tasks", ["owner"])
    create_table(
        "positions",
        *_uints("task_id", "store_id", "incarnation", key=True),
        *_uints("seq"),
        sa.Column("closed", sa.Boolean, nullable=False),
    )


def _stores() -> None:
    create_table(
        "stores",
        *_uints("cluster_id", "tenant_id", "store_id", key=True),
        *_uints("incarnation", "max_cut_ts"),
        sa.Column("dispatcher", _name(128)),
        *_uints("dispatcher_epoch"),
    )
    create_index("stores_of_dispatcher", "stores", ["dispatcher"])
    create_table(
        "incarnations",
        *_uints("cluster_id", "tenant_id", "store_id", "incarnation", key=True),
        *_uints("reclaimed_seq"),
    )


def _processes() -> None:
    create_table(
        "workers",
        sa.Column("worker_id", _name(128), primary_key=True),
        _word("kind"),
        sa.Column("address", sa.String(255), nullable=False),
        *_uints("incarnation"),
        _word("state"),
        *_uints("heartbeat_ms"),
    )
    create_table(
        "owner",
        *_uints("id", key=True),
        sa.Column("owner", _name(128), nullable=False),
        *_uints("epoch", "heartbeat_ms"),
    )
    insert_rows("owner", [{"id": 1, "owner": "", "epoch": 0, "heartbeat_ms": 0}], key="id")


def _published() -> None:
    create_table(
        "objects",
        sa.Column("object_key", _name(512), primary_key=True),
        *_uints("cluster_id", "tenant_id"),
        _word("kind"),
        _word("state"),
        *_uints("bytes", "changed_ms"),
    )
    create_index("objects_of_tenant", "objects", ["cluster_id", "tenant_id", "state", "kind"])
    create_table(
        "segments",
        sa.Column("object_key", _name(512), primary_key=True),
        sa.Column("segment_no", sa.Integer, primary_key=True, autoincrement=False),
        *_uints("cluster_id", "tenant_id"),
        _word("kind"),
        *_uints("task_id"),
        *_keys(),
        sa.Column("table_lo", sa.BigInteger, nullable=False),
        sa.Column("table_hi", sa.BigInteger, nullable=False),
        *_uints("lo_ts", "hi_ts", "row_count", "byte_offset", "byte_length", "crc"),
    )
    for bound in ("hi_ts", "lo_ts"):
        create_index(f"segments_by_{bound}", "segments", ["cluster_id", "tenant_id", "kind", bound])
    create_table(
        "schema_versions",
        *_uints("cluster_id", "tenant_id", "ts", key=True),
        sa.Column("object_key", _name(512), nullable=False),
    )
