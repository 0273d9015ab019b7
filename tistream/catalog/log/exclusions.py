"""Objects of the log that could not be merged: missing, damaged, or of a group on which the code fails.

Merges leave them alone for EXCLUDED_MS, and so do the counts of what could be merged; neighbours are merged up to them.
Else each job would try the same objects first, and with as many as one job may read nothing else would ever be merged.
After that time they are tried again: they may have been restored. A merge that an operator starts tries them at once.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import bindparam, literal_column, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import excluded_objects, of_asked_tenant, tenant_ids
from tistream.catalog.log.objects import in_chunks
from tistream.ids import Tenant

EXCLUDED_MS = 24 * 3_600_000

_c = excluded_objects.c
#: of an exclusion that counts
COUNTS = _c.since_ms > now_ms() - literal_column(str(EXCLUDED_MS))
_LISTED = select(_c.object_key).where(of_asked_tenant(excluded_objects), COUNTS)
_FORGET = excluded_objects.delete().where(_c.object_key.in_(bindparam("asked_keys", expanding=True)))
_FORGET_ALL = excluded_objects.delete().where(of_asked_tenant(excluded_objects))
_NOTE = excluded_objects.insert().values(since_ms=now_ms())
_DROP_OLD = excluded_objects.delete().where(~COUNTS)


def exclude(catalog: Catalog, tenant: Tenant, object_keys: Collection[str]) -> None:
    """Leave these objects alone from now on."""
    place = {"cluster_id": tenant.cluster_id, "tenant_id": tenant.tenant_id}
    for some in in_chunks(sorted(object_keys)):
        with catalog.transaction() as conn:
            conn.execute(_FORGET, {"asked_keys": some})
            conn.execute(_NOTE, [{"object_key": key, **place} for key in some])


def excluded(catalog: Catalog, tenant: Tenant) -> frozenset[str]:
    """The objects of the tenant that are left alone now."""
    with catalog.reading() as conn:
        return frozenset(conn.execute(_LISTED, tenant_ids(tenant)).scalars())


def forget_exclusions(catalog: Catalog, tenant: Tenant) -> None:
    """Let the next merge try all objects of the tenant."""
    with catalog.transaction() as conn:
        conn.execute(_FORGET_ALL, tenant_ids(tenant))


def drop_old_exclusions(catalog: Catalog) -> int:
    """Delete those that count no more; the number deleted."""
    with catalog.transaction() as conn:
        return conn.execute(_DROP_OLD).rowcount
