"""Seeds: the rows that existed at a timestamp, and where those of each table lie."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from tistream.catalog.database.steps import create_index, create_table

revision = "0003"
down_revision = "0002"

_MYSQL = ("mysql", "mariadb")
_UINT = sa.BigInteger().with_variant(mysql.BIGINT(unsigned=True), *_MYSQL)
_KEY = sa.LargeBinary(9216).with_variant(mysql.VARBINARY(9216), *_MYSQL)


def _name(length: int) -> sa.String:
    return sa.String(length).with_variant(mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), *_MYSQL)


def _uints(*names: str, key: bool = False) -> list[sa.Column[int]]:
    return [sa.Column(name, _UINT, primary_key=key, nullable=False, autoincrement=False) for name in names]


def upgrade() -> None:
    create_table(
        "seeds",
        *_uints("cluster_id", "tenant_id", "ts", "table_id", key=True),
        sa.Column("state", _name(32), nullable=False),
        sa.Column("manifest_key", _name(512), nullable=False),
        *_uints("row_count", "bytes", "created_ms"),
    )
    create_table(
        "seed_segments",
        sa.Column("object_key", _name(512), primary_key=True),
        sa.Column("segment_no", sa.Integer, primary_key=True, autoincrement=False),
        *_uints("cluster_id", "tenant_id", "ts", "seed_table_id", "table_id"),
        sa.Column("start_key", _KEY, nullable=False),
        sa.Column("end_key", _KEY, nullable=False),
        *_uints("row_count", "byte_offset", "byte_length", "crc"),
    )
    create_index(
        "seed_segments_of_table", "seed_segments", ["cluster_id", "tenant_id", "ts", "seed_table_id", "table_id"]
    )
