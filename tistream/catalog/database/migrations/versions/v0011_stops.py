"""Stops: what an unexpected error has stopped, of which everything else goes on."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from tistream.catalog.database.steps import create_index, create_table, insert_rows

revision = "0011"
down_revision = "0010"

_MYSQL = ("mysql", "mariadb")


def _name(length: int) -> sa.types.TypeEngine[str]:
    ascii_name = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return sa.String(length).with_variant(ascii_name, *_MYSQL)


def upgrade() -> None:
    number = sa.BigInteger().with_variant(mysql.BIGINT(unsigned=True), *_MYSQL)
    create_table(
        "stops",
        sa.Column("stop_id", number, primary_key=True, autoincrement=False),
        sa.Column("role", _name(128), nullable=False),
        sa.Column("item", _name(128), nullable=False),
        sa.Column("scope", _name(32), nullable=False),
        sa.Column("cluster_id", number, nullable=True),
        sa.Column("tenant_id", number, nullable=True),
        sa.Column("code", _name(32), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("object", sa.Text(), nullable=False),
        sa.Column("since_ms", number, nullable=False),
        sa.Column("tried_ms", number, nullable=False),
        sa.Column("tries", number, nullable=False),
        sa.Column("resumed", sa.Boolean(), nullable=False),
    )
    create_index("stops_by_item", "stops", ["role", "item"], unique=True)
    insert_rows("counters", [{"name": "stop", "value": 0}], key="name")
