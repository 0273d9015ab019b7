"""The audit log: who changed what, from where, when, and with what result."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from tistream.catalog.database.steps import create_index, create_table, insert_rows

revision = "0002"
down_revision = "0001"
min_release = "0.1.0"  # 0.1.0 reads and writes none of it

_MYSQL = ("mysql", "mariadb")
_UINT = sa.BigInteger().with_variant(mysql.BIGINT(unsigned=True), *_MYSQL)
_EXACT = sa.String(255).with_variant(mysql.VARCHAR(255, charset="utf8mb4", collation="utf8mb4_bin"), *_MYSQL)


def upgrade() -> None:
    create_table(
        "audit_log",
        sa.Column("entry_no", _UINT, primary_key=True, autoincrement=False),
        *_uints("at_ms", "last_ms", "times"),
        _name("key_id", 32),
        sa.Column("principal", _EXACT, nullable=False),
        _name("role", 32),
        sa.Column("address", _EXACT, nullable=False),
        _name("operation", 128),
        *_uints("cluster_id", "tenant_id", nullable=True),
        sa.Column("target", sa.Text, nullable=False),
        _name("result", 32),
        *_uints("status"),
        _name("code", 32),
        _name("request_id", 64),
    )
    create_index("audit_log_by_time", "audit_log", ["at_ms", "entry_no"])
    create_index("audit_log_of_tenant", "audit_log", ["cluster_id", "tenant_id", "at_ms"])
    create_index("audit_log_of_principal", "audit_log", ["principal", "at_ms"])
    create_index("audit_log_of_key", "audit_log", ["key_id", "at_ms"])
    create_index("audit_log_of_operation", "audit_log", ["operation", "at_ms"])
    create_index("audit_log_of_result", "audit_log", ["result", "at_ms"])
    insert_rows("counters", [{"name": "audit entry", "value": 0}], key="name")


def _uints(*names: str, nullable: bool = False) -> list[sa.Column[int]]:
    return [sa.Column(name, _UINT, nullable=nullable) for name in names]


def _name(name: str, length: int) -> sa.Column[str]:
    ascii_name = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return sa.Column(name, sa.String(length).with_variant(ascii_name, *_MYSQL), nullable=False)
