"""Retention: how long a tenant's log is kept and where it begins now, and who still needs what of it."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from tistream.catalog.database.steps import add_column, create_table

revision = "0007"
down_revision = "0006"

_MYSQL = ("mysql", "mariadb")
_UINT = sa.BigInteger().with_variant(mysql.BIGINT(unsigned=True), *_MYSQL)


def _name(length: int) -> sa.String:
    return sa.String(length).with_variant(mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), *_MYSQL)


def _uints(*names: str, key: bool = False) -> list[sa.Column[int]]:
    return [sa.Column(name, _UINT, primary_key=key, nullable=False, autoincrement=False) for name in names]


def upgrade() -> None:
    add_column("tenants", sa.Column("floor_ts", _UINT, nullable=False, server_default="0"))
    add_column("tenants", sa.Column("retention_s", _UINT, nullable=True))
    create_table(
        "changefeeds",
        *_uints("cluster_id", "tenant_id", key=True),
        sa.Column("changefeed_id", _name(128), primary_key=True),
        sa.Column("state", _name(32), nullable=False),
        *_uints("start_ts", "checkpoint_ts", "target_ts"),
        sa.Column("tables", sa.Text, nullable=False),
        *_uints("created_ms", "seen_ms"),
    )
    create_table(
        "safe_points",
        *_uints("cluster_id", "tenant_id", key=True),
        sa.Column("service_id", _name(128), primary_key=True),
        *_uints("safe_ts", "expires_ms"),
    )
