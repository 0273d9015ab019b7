"""Segments say how long they are unpacked, by which compaction bounds what it takes at once."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from tistream.catalog.database.steps import add_column

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    number = sa.BigInteger().with_variant(mysql.BIGINT(unsigned=True), "mysql", "mariadb")
    add_column("segments", sa.Column("raw_length", number, nullable=False, server_default="0"))
