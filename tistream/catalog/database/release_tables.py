"""The tables that say which releases and which generation the catalog belongs to, and what it was exported to."""

from __future__ import annotations

from sqlalchemy import Column, Table

from tistream.catalog.database.columns import ObjectName, Word, id_, metadata, uints, with_default

catalog_release = Table(
    "catalog_release",
    metadata,
    id_("id"),
    *uints("migrated_by", "min_release"),
    with_default("generation", "1"),
    Column("state", Word, nullable=False, server_default="ready"),
    *(with_default(name, "0") for name in ("identity", "exports_begun", "exports_verified", "exports_on")),
    Column("exports_key", Word, nullable=False, server_default=""),
)
catalog_exports = Table(
    "catalog_exports",
    metadata,
    id_("export_no"),
    Column("object_key", ObjectName, nullable=False),
    *uints("snapshot_ms", "row_count", "bytes", "verified_ms"),
)
features = Table("features", metadata, Column("name", Word, primary_key=True), *uints("release_no", "enabled_ms"))
