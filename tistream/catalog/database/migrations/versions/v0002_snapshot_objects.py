"""Which objects the snapshot of each task refers to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql

from tistream.catalog.database.steps import create_index, create_table

revision = "0002"
down_revision = "0001"

_MYSQL = ("mysql", "mariadb")
_UINT = sa.BigInteger().with_variant(mysql.BIGINT(unsigned=True), *_MYSQL)
_NAME = sa.String(512).with_variant(mysql.VARCHAR(512, charset="ascii", collation="ascii_bin"), *_MYSQL)


def upgrade() -> None:
    create_table(
        "snapshot_objects",
        sa.Column("task_id", _UINT, primary_key=True, nullable=False, autoincrement=False),
        sa.Column("object_key", _NAME, primary_key=True, nullable=False),
    )
    create_index("snapshot_objects_by_key", "snapshot_objects", ["object_key"])
    op.execute(
        "INSERT INTO snapshot_objects (task_id, object_key) "
        "SELECT task_id, snapshot_key FROM tasks WHERE snapshot_key IS NOT NULL "
        "AND NOT EXISTS (SELECT 1 FROM snapshot_objects o WHERE o.task_id = tasks.task_id)"
    )
