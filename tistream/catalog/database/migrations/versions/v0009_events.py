"""Events: what happened to tasks, stores, workers and tenants."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from tistream.catalog.database.steps import create_table, insert_rows

revision = "0009"
down_revision = "0008"

_MYSQL = ("mysql", "mariadb")


def _name(length: int) -> sa.types.TypeEngine[str]:
    ascii_name = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    return sa.String(length).with_variant(ascii_name, *_MYSQL)


def upgrade() -> None:
    number = sa.BigInteger().with_variant(mysql.BIGINT(unsigned=True), *_MYSQL)
    create_table(
        "events",
        sa.Column("event_id", number, primary_key=True, autoincrement=False),
        sa.Column("at_ms", number, nullable=False),
        sa.Column("kind", _name(32), nullable=False),
        sa.Column("cluster_id", number, nullable=True),
        sa.Column("tenant_id", number, nullable=True),
        sa.Column("subject", _name(128), nullable=False),
        sa.Column("actor", _name(128), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
    )
    insert_rows("counters", [{"name": "event", "value": 0}], key="name")
