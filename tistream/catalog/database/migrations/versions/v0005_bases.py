"""Bases: the rows of a table at a timestamp as compaction has built them, and where they lie."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from tistream.catalog.database.steps import create_index, create_table

revision = "0005"
down_revision = "0004"

_MYSQL = ("mysql", "mariadb")
_UINT = sa.BigInteger().with_variant(mysql.BIGINT(unsigned=True), *_MYSQL)
_KEY = sa.LargeBinary(9216).with_variant(mysql.VARBINARY(9216), *_MYSQL)


def _name(length: int) -> sa.String:
    return sa.String(length).with_variant(mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), *_MYSQL)


def _uints(*names: str, key: bool = False) -> list[sa.Column[int]]:
    return [sa.Column(name, _UINT, primary_key=key, nullable=False, autoincrement=False) for name in names]


def upgrade() -> None:
    create_table(
        "bases",
        *_uints("cluster_id", "tenant_id", "table_id", "ts", key=True),
        *_uints("seed_ts", "row_count", "bytes", "created_ms"),
    )
    create_table(
        "base_segments",
        sa.Column("object_key", _name(512), primary_key=True),
        sa.Column("segment_no", sa.Integer, primary_key=True, autoincrement=False),
        *_uints("cluster_id", "tenant_id", "table_id", "ts"),
        sa.Column("start_key", _KEY, nullable=False),
        sa.Column("end_key", _KEY, nullable=False),
        *_uints("row_count", "byte_offset", "byte_length", "crc"),
    )
    create_index("base_segments_of_table", "base_segments", ["cluster_id", "tenant_id", "table_id", "ts"])
