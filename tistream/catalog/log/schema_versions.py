"""Saved schema histories: timestamp -> object with the history up to it."""

from __future__ import annotations

from sqlalchemy import Connection, select

from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import of_asked_tenant, of_tenant, schema_versions, tenant_ids
from tistream.catalog.log.objects import ObjectKind, insert_live
from tistream.errors import Fenced
from tistream.ids import Tenant

_LATEST = (
    select(schema_versions.c.ts, schema_versions.c.object_key)
    .where(of_asked_tenant(schema_versions))
    .order_by(schema_versions.c.ts.desc())
    .limit(1)
)


def add_schema_version(catalog: Catalog, tenant: Tenant, ts: int, object_key: str, object_bytes: int) -> None:
    """Publish the history up to `ts`; idempotent, also between processes. Fenced when `ts` has another object, or the
    object was tombstoned."""
    try:
        _add(catalog, tenant, ts, object_key, object_bytes)
    except Fenced:  # another process may have added the same one between the check and the insert
        with catalog.reading() as conn:
            if _object_of(conn, tenant, ts) != object_key:
                raise


def _add(catalog: Catalog, tenant: Tenant, ts: int, object_key: str, object_bytes: int) -> None:
    with catalog.transaction() as conn:
        known = _object_of(conn, tenant, ts)
        if known == object_key:
            return
        if known is not None:
            raise Fenced("this schema version has another object", object_key=object_key, known=known, ts=ts)
        insert_live(conn, tenant, object_key, ObjectKind.SCHEMAS, object_bytes)
        conn.execute(
            schema_versions.insert().values(
                cluster_id=tenant.cluster_id, tenant_id=tenant.tenant_id, ts=ts, object_key=object_key
            )
        )


def _object_of(conn: Connection, tenant: Tenant, ts: int) -> str | None:
    v = schema_versions.c
    return conn.execute(select(v.object_key).where(of_tenant(schema_versions, tenant), v.ts == ts)).scalar()


def has_schema_version(catalog: Catalog, tenant: Tenant, ts: int) -> bool:
    """Whether the history up to exactly `ts` is published."""
    with catalog.reading() as conn:
        return _object_of(conn, tenant, ts) is not None


def latest_schema_version(catalog: Catalog, tenant: Tenant) -> tuple[int, str] | None:
    """(ts, object key) of the newest history; None when there is none."""
    with catalog.reading() as conn:
        row = conn.execute(_LATEST, tenant_ids(tenant)).one_or_none()
    return None if row is None else (row.ts, row.object_key)
