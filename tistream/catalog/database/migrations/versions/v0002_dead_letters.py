"""The number of dead letters of a changefeed."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from tistream.catalog.database.steps import add_column

revision = "0002"
down_revision = "0001"

_UINT = sa.BigInteger().with_variant(mysql.BIGINT(unsigned=True), "mysql", "mariadb")


def upgrade() -> None:
    add_column("changefeeds", sa.Column("dead_letters", _UINT, nullable=False, server_default="0"))
