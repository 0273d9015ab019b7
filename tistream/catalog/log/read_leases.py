"""Read leases: they keep listed objects from collection until the reader has fetched them.

    reader      open_lease (COMMIT) -> list segments -> fetch them, renewing -> drop_lease
    compaction  in one transaction: take the next replacement number, mark the replaced objects with it
    collector   deletes what replacement n replaced only when no live lease has seen fewer than n replacements

A lease stores the number of replacements that its reader had seen, not a time, so no clock decides what it protects.
Their numbers are committed in order (the counter's row is locked until COMMIT); a listing begins after its lease's
COMMIT. If a later replacement n replaces a listed object, n was not committed when the lease was opened: the lease has
seen fewer than n and exists when the collector checks. A lease opened after that check belongs to a reader that lists
after the commit and never sees the object.

The database's clock only ends the leases of readers that died. A reader that slept past the end of its lease finds the
object gone and lists again (`reading.log.reader`): leases save work, correctness does not depend on them.
"""

from __future__ import annotations

from sqlalchemy import bindparam, func, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import counters, read_leases

_c = read_leases.c
_IS_ASKED = _c.lease_id == bindparam("asked_lease")
_IS_EXPIRED = _c.expires_ms <= now_ms()
_OPEN = read_leases.insert().from_select(
    ["lease_id", "replacements_seen", "expires_ms"],
    select(bindparam("lease_id", type_=_c.lease_id.type), counters.c.value, now_ms() + bindparam("ttl_ms")).where(
        counters.c.name == "replacement"
    ),
)
_RENEW = read_leases.update().where(_IS_ASKED, ~_IS_EXPIRED).values(expires_ms=now_ms() + bindparam("ttl_ms"))
_DROP = read_leases.delete().where(_IS_ASKED)
_COUNT_EXPIRED = select(func.count()).select_from(read_leases).where(_IS_EXPIRED)
_DROP_EXPIRED = read_leases.delete().where(_IS_EXPIRED)


def open_lease(catalog: Catalog, lease_id: str, ttl_ms: int) -> None:
    """Keep every object that a later listing shows for `ttl_ms`. A `lease_id` is never used again."""
    with catalog.transaction() as conn:
        conn.execute(_OPEN, {"lease_id": lease_id, "ttl_ms": ttl_ms})


def renew_lease(catalog: Catalog, lease_id: str, ttl_ms: int) -> bool:
    """Extend the lease to `ttl_ms` from now. False when it has ended: list again under a new lease."""
    with catalog.transaction() as conn:
        return conn.execute(_RENEW, {"asked_lease": lease_id, "ttl_ms": ttl_ms}).rowcount == 1


def drop_lease(catalog: Catalog, lease_id: str) -> None:
    """End a lease early."""
    with catalog.transaction() as conn:
        conn.execute(_DROP, {"asked_lease": lease_id})


def expired_leases(catalog: Catalog) -> int:
    """The number of leases that were not renewed in time."""
    with catalog.reading() as conn:
        return int(conn.execute(_COUNT_EXPIRED).scalar_one())


def drop_expired_leases(catalog: Catalog) -> int:
    """Delete the leases of readers that died; the number deleted."""
    with catalog.transaction() as conn:
        return conn.execute(_DROP_EXPIRED).rowcount
