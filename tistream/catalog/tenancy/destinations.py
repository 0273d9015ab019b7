"""Destinations: where changefeeds write, each with its owner. A row outlives the changefeed.

    claim      when a changefeed is created, resumed or sent elsewhere: it owns the destination, or is refused
    release    when it is removed, finished or sent elsewhere: another one may claim the destination

A destination cannot fence, and a worker that has not heard of the end of its changefeed writes until its lease ends
(`tistream.catalog.work.lanes`). So who claims a destination that had an owner waits as a new owner of a lane does, with
epochs above all that were used there. It also learns what was attempted there: up to that the destination may have
more than the new changefeed has written.

`released_ms` is 0 while a changefeed owns the destination; else it is shown: until about when the former owner could
write, by the database's clock. All claims wait for each other, so that of two at the same moment one is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from sqlalchemy import Connection, and_, bindparam, case, func, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.tables import destinations, lanes, next_numbers, of_asked_tenant, tenant_ids, tenant_of
from tistream.errors import TiStreamError
from tistream.ids import Tenant
from tistream.limits import LANE_LEASE_MS


class Wanted(NamedTuple):
    """A destination that a changefeed claims."""

    root_hash: str  #: equal for all that could overlap: at most 64 characters of ASCII
    location: str  #: as text
    overlaps: Callable[[str], bool]  #: whether it and this location have something in common


class Claimed(NamedTuple):
    """A destination that a changefeed owns now."""

    is_free: bool = True  #: no owner before can write there
    epoch: int = 0  #: the highest that was used there
    attempted_ts: int = 0  #: up to here an earlier changefeed of the tenant may have written


_d, _l = destinations.c, lanes.c
_OF_ROOT = (
    select(destinations).where(_d.root_hash == bindparam("asked_root")).order_by(_d.destination_id).with_for_update()
)
_IS_OWNED = _d.released_ms == 0
_LANES = and_(_l.cluster_id == _d.cluster_id, _l.tenant_id == _d.tenant_id, _l.changefeed_id == _d.changefeed_id)
_EPOCH = select(func.coalesce(func.max(_l.epoch), 0) + 1).where(_LANES).scalar_subquery()
_ATTEMPTED = select(func.coalesce(func.max(_l.attempted_ts), 0)).where(_LANES).scalar_subquery()
_RELEASE = (
    destinations.update()
    .where(of_asked_tenant(destinations), _IS_OWNED)
    .values(
        released_ms=now_ms() + LANE_LEASE_MS,
        epoch=case((_d.epoch > _EPOCH, _d.epoch), else_=_EPOCH),
        attempted_ts=case((_d.attempted_ts > _ATTEMPTED, _d.attempted_ts), else_=_ATTEMPTED),
    )
)
_RELEASE_ONE = _RELEASE.where(_d.changefeed_id == bindparam("asked_id"))


def claim(
    conn: Connection,
    tenant: Tenant,
    changefeed_id: str,
    claimed: Wanted | None,
    refusal: Callable[[Tenant, str], TiStreamError],
    *,
    take: bool = True,
) -> Claimed:
    """Make the changefeed the owner; it releases the destination that it had. `refusal`: the error for one that another
    changefeed (tenant, name) owns. None is an unknown destination: nothing is claimed. Without `take` it is only
    refused or not."""
    if claimed is None:
        return Claimed()
    next_numbers(conn, "lane", 0)  # its row is the lock
    owned = [row for row in _overlapping(conn, claimed) if not row.released_ms]
    for row in owned:
        if (tenant_of(row), row.changefeed_id) != (tenant, changefeed_id):
            raise refusal(tenant_of(row), row.changefeed_id)
    if not take or any(row.location == claimed.location for row in owned):
        return Claimed()
    release(conn, tenant, changefeed_id)
    overlapping = _overlapping(conn, claimed)
    owner = {"cluster_id": tenant.cluster_id, "tenant_id": tenant.tenant_id, "changefeed_id": changefeed_id}
    former = next((row for row in overlapping if row.location == claimed.location), None)
    if former is None:
        (destination_id,) = next_numbers(conn, "lane", 1)
        fresh = {
            "destination_id": destination_id,
            "root_hash": claimed.root_hash,
            "location": claimed.location,
            **owner,
        }
        conn.execute(destinations.insert(), {**fresh, "epoch": 0, "attempted_ts": 0, "released_ms": 0})
    else:
        attempted_ts = former.attempted_ts if tenant_of(former) == tenant else 0  # of another tenant it means nothing
        taken = destinations.update().where(_d.destination_id == former.destination_id)
        conn.execute(taken.values(**owner, attempted_ts=attempted_ts, released_ms=0))
    return Claimed(
        is_free=not overlapping,
        epoch=max((row.epoch for row in overlapping), default=0),
        attempted_ts=max((row.attempted_ts for row in overlapping if tenant_of(row) == tenant), default=0),
    )


def owned_at(conn: Connection, root_hash: str) -> list[Any]:
    """The rows of this root that changefeeds own."""
    return [row for row in conn.execute(_OF_ROOT, {"asked_root": root_hash}) if not row.released_ms]


def release(conn: Connection, tenant: Tenant, changefeed_id: str | None = None) -> None:
    """The changefeed, or all of the tenant, writes no longer: before its lanes are deleted."""
    if changefeed_id is None:
        conn.execute(_RELEASE, tenant_ids(tenant))
    else:
        conn.execute(_RELEASE_ONE, {**tenant_ids(tenant), "asked_id": changefeed_id})


def repeats(above: int, upto: int) -> dict[str, str]:
    """For an event: changes in (above, upto] may be written a second time. Nothing when there are none."""
    return {"repeats_above": str(above), "repeats_upto": str(upto)} if upto > above else {}


def _overlapping(conn: Connection, claimed: Wanted) -> list[Any]:
    """The rows of all destinations that have something in common with it."""
    return [row for row in conn.execute(_OF_ROOT, {"asked_root": claimed.root_hash}) if claimed.overlaps(row.location)]
