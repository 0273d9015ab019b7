"""What a restore of the catalog needs: its generation, the exports, and in which export a deletion was decided."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from tistream.catalog.database.steps import add_column, create_index, create_table, insert_rows, number_at_random

revision = "0003"
down_revision = "0002"
min_release = "0.1.0"

_UINT = sa.BigInteger().with_variant(mysql.BIGINT(unsigned=True), "mysql", "mariadb")


def _number(name: str, default: str = "0") -> sa.Column[int]:
    return sa.Column(name, _UINT, nullable=False, server_default=default)


def _name(name: str, length: int, default: str | None = None) -> sa.Column[str]:
    binary = mysql.VARCHAR(length, charset="ascii", collation="ascii_bin")
    of_length = sa.String(length).with_variant(binary, "mysql", "mariadb")
    return sa.Column(name, of_length, nullable=False, server_default=default)


def upgrade() -> None:
    add_column("catalog_release", _number("generation", "1"))
    add_column("catalog_release", _name("state", 32, "ready"))
    for name in ("identity", "exports_begun", "exports_verified", "exports_on"):
        add_column("catalog_release", _number(name))
    add_column("catalog_release", _name("exports_key", 32, ""))
    number_at_random("catalog_release", "identity")
    for table in ("objects", "store_incarnations", "tenants"):
        add_column(table, _number("decided_no"))
    create_index("objects_by_decision", "objects", ["state", "decided_no", "bytes"])
    insert_rows("counters", [{"name": "export wanted", "value": 0}], key="name")
    create_table(
        "catalog_exports",
        sa.Column("export_no", _UINT, primary_key=True, autoincrement=False),
        _name("object_key", 512),
        *(sa.Column(name, _UINT, nullable=False) for name in ("snapshot_ms", "row_count", "bytes", "verified_ms")),
    )
