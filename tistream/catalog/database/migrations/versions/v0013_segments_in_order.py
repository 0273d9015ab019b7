"""Segments have an index in the order of pages, and a class of their time span, so that a page reads only its own rows.

Segments from before are in the widest class, which is right for any span.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.dialects import mysql

from tistream.catalog.database.steps import add_column, create_index, drop_index

revision = "0013"
down_revision = "0012"

_OWNER = ["cluster_id", "tenant_id", "kind"]


def upgrade() -> None:
    number = sa.BigInteger().with_variant(mysql.BIGINT(unsigned=True), "mysql", "mariadb")
    add_column("segments", sa.Column("span_class", number, nullable=False, server_default="15"))
    create_index("segments_in_order", "segments", [*_OWNER, "lo_ts", "hi_ts", "object_key", "segment_no"])
    create_index("segments_by_span", "segments", [*_OWNER, "span_class", "lo_ts"])
    drop_index("segments_by_lo_ts", "segments")
