"""Amendments of a tenant's log: rows that an operator has accepted at or below what had been served.

The rows of an amendment are ordinary segments. They are inserted while the tenant is not served above `from_ts`
(`tistream.catalog.work.acceptance`), so no reader sees a part of them. `publish_in` is a part of the transaction that
serves the log on:

    insert the amendment under the next number of the tenant, whose row is locked
    delete the bases above `from_ts`: they lack the rows

A cursor carries the number of the newest amendment that its reader has seen. Above the `from_ts` of a newer one it is
refused with the place from where to read again. Amendments stay as a record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, bindparam, func, select

from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import (
    amendments,
    base_segments,
    bases,
    ensure_row,
    next_numbers,
    of_asked_tenant,
    tenant_ids,
)
from tistream.catalog.log.objects import replacing_unnamed
from tistream.ids import Tenant

_a, _s = amendments.c, base_segments.c
_LISTED = select(amendments).where(of_asked_tenant(amendments)).order_by(_a.number)
_LOWEST_SINCE = select(func.min(_a.from_ts)).where(of_asked_tenant(amendments), _a.number > bindparam("seen_number"))
_ABOVE = bindparam("from_ts", type_=_a.from_ts.type)
_OBJECTS = select(_s.object_key).where(of_asked_tenant(base_segments), _s.ts > _ABOVE).distinct()
_DROP = [table.delete().where(of_asked_tenant(table), table.c.ts > _ABOVE) for table in (base_segments, bases)]
_REPLACE = replacing_unnamed(_s.object_key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Amendment:
    """Rows of a store that were added to the log in (from_ts, to_ts]."""

    number: int  #: of the tenant, from 1 on
    from_ts: int
    to_ts: int
    rows: int
    store_id: int
    decided_by: str


def newest_of_asked_tenant() -> Select[Any]:
    """The number of the newest amendment of the tenant of `tenant_ids`; None without any."""
    return select(func.max(_a.number)).where(of_asked_tenant(amendments))


_NEWEST = newest_of_asked_tenant()


def list_amendments(catalog: Catalog, tenant: Tenant) -> tuple[Amendment, ...]:
    """The amendments of the tenant's log, by number."""
    with catalog.reading() as conn:
        return tuple(_row(row) for row in conn.execute(_LISTED, tenant_ids(tenant)))


def newest_amendment(catalog: Catalog, tenant: Tenant) -> int:
    """The number of the tenant's newest amendment; 0 without any."""
    with catalog.reading() as conn:
        return newest_in(conn, tenant)


def newest_in(conn: Connection, tenant: Tenant) -> int:
    """`newest_amendment` within a transaction."""
    return int(conn.execute(_NEWEST, tenant_ids(tenant)).scalar() or 0)


def lowest_since(conn: Connection, tenant: Tenant, seen: int) -> int | None:
    """The lowest `from_ts` of the amendments after number `seen`; None when there is none."""
    found = conn.execute(_LOWEST_SINCE, {**tenant_ids(tenant), "seen_number": seen}).scalar()
    return None if found is None else int(found)


def publish_in(
    conn: Connection, tenant: Tenant, *, from_ts: int, to_ts: int, rows: int, store_id: int, actor: str
) -> int:
    """Record an amendment whose segments are in the log; its number. The caller has locked the tenant's row."""
    asked, number = tenant_ids(tenant), newest_in(conn, tenant) + 1
    ensure_row(
        conn, amendments, timed="at_ms", cluster_id=tenant.cluster_id, tenant_id=tenant.tenant_id, number=number,
        from_ts=from_ts, to_ts=to_ts, row_count=rows, store_id=store_id, decided_by=actor,
    )  # fmt: skip
    above = {**asked, "from_ts": from_ts}
    keys = sorted(conn.execute(_OBJECTS, above).scalars())
    for drop in _DROP:
        conn.execute(drop, above)
    if keys:
        swap_no = next_numbers(conn, "swap", 1)[0]
        for key in keys:
            conn.execute(_REPLACE, {"asked_key": key, "swap_no": swap_no})
    return number


def _row(row: Any) -> Amendment:
    return Amendment(
        number=int(row.number),
        from_ts=int(row.from_ts),
        to_ts=int(row.to_ts),
        rows=int(row.row_count),
        store_id=int(row.store_id),
        decided_by=row.decided_by,
    )
