"""Compaction: segments of Parquet files, which swap replaced an object, and the pins of readers."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from tistream.catalog.database.steps import add_column, create_table, insert_rows

revision = "0004"
down_revision = "0003"

_MYSQL = ("mysql", "mariadb")
_UINT = sa.BigInteger().with_variant(mysql.BIGINT(unsigned=True), *_MYSQL)


def _name(length: int) -> sa.String:
    return sa.String(length).with_variant(mysql.VARCHAR(length, charset="ascii", collation="ascii_bin"), *_MYSQL)


def upgrade() -> None:
    add_column("segments", sa.Column("format", _name(32), nullable=False, server_default="segment"))
    for name in ("footer_offset", "footer_length", "footer_crc"):
        add_column("segments", sa.Column(name, _UINT, nullable=False, server_default="0"))
    add_column("objects", sa.Column("replaced_by", _UINT, nullable=False, server_default="0"))
    create_table(
        "pins",
        sa.Column("pin_id", _name(32), primary_key=True),
        sa.Column("swaps_seen", _UINT, nullable=False),
        sa.Column("expires_ms", _UINT, nullable=False),
    )
    insert_rows("counters", [{"name": "swap", "value": 0}, {"name": "compaction", "value": 0}], key="name")
