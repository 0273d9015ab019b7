"""Reports: what a worker says about its load with a heartbeat."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from tistream.catalog.database.steps import add_column

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    text = sa.Text().with_variant(mysql.MEDIUMTEXT(), "mysql", "mariadb")
    add_column("workers", sa.Column("report", text, nullable=True))
