"""Merges: which neighbour a task is to be merged with."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from tistream.catalog.database.steps import add_column

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    number = sa.BigInteger().with_variant(mysql.BIGINT(unsigned=True), "mysql", "mariadb")
    add_column("tasks", sa.Column("merge_with", number, nullable=True))
