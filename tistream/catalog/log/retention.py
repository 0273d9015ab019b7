"""The floor of a tenant's log, and retirement of what lies below it.

`raise_floor` is one transaction:

    lock the tenant's row; is the floor still the one the caller saw?
    no consumer, changefeed, safe point or quarantine is lower than the new floor
    floor_ts = the new floor
    delete bases and seeds below it; objects without a segment -> superseded, under the next replacement number

After its COMMIT nothing may depend on the log at or below the floor. Then `retire_below_floor` removes the segments
that lie entirely below, some objects at a time:

    lock the objects, in order of key; delete their segments at or below the floor
    objects without a segment -> superseded, under the next replacement number

Readers list segments and check the floor afterwards (`check_listing`): a reader that missed a retired segment sees a
floor above its position. What it did list stays while its read lease is live, as with a compaction.

Rows of DDL tasks stay: they are few, and every schema history is made of them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import BindParameter, Connection, bindparam, func, select

from tistream import ts as tso
from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.engine import now_ms as database_ms
from tistream.catalog.database.tables import (
    base_segments,
    bases,
    objects,
    of_asked_tenant,
    safe_points,
    seed_segments,
    seeds,
    segments,
    tasks,
    tenant_ids,
    tenants,
)
from tistream.catalog.log.objects import replace_unnamed
from tistream.catalog.rows.bases import KEY_RANGE
from tistream.catalog.rows.kinds import TenantKind
from tistream.catalog.rows.tenants import TaskKind
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.tenancy.consumers import CONSUMERS
from tistream.catalog.tenancy.served import good_ts_of_asked_tenant
from tistream.catalog.tenancy.tenants import GIVEN_UP, given_up, lock_tenant
from tistream.errors import BeyondQuarantine, NotFound, TenantDeleted, TsExpired, invariant
from tistream.ids import Tenant

OBJECTS_AT_ONCE = 200

_o, _s = objects.c, segments.c
_FLOOR = select(tenants.c.floor_ts).where(of_asked_tenant(tenants))
_LISTED = select(
    tenants.c.floor_ts,
    tenants.c.state,
    tenants.c.reason,
    good_ts_of_asked_tenant().scalar_subquery().label("good_ts"),
).where(of_asked_tenant(tenants))
_KIND = select(tenants.c.kind).where(of_asked_tenant(tenants))
_BASE_OF_KEYS = select(bases.c.ts).where(
    of_asked_tenant(bases), bases.c.table_id == KEY_RANGE, bases.c.ts == bindparam("at_ts")
)
_EDGE = select(func.min(tasks.c.durable_ts)).where(of_asked_tenant(tasks))
_LOWEST_POINT = select(func.min(safe_points.c.safe_ts)).where(
    of_asked_tenant(safe_points), safe_points.c.expires_ms > now_ms()
)
_GOOD_TS = good_ts_of_asked_tenant()
_RAISE = tenants.update().where(of_asked_tenant(tenants)).values(floor_ts=bindparam("to_ts"))
_BELOW: BindParameter[int] = bindparam("to_ts", type_=tenants.c.floor_ts.type)
_HELD = {
    segments_of: (
        select(segments_of.c.object_key).where(of_asked_tenant(segments_of), segments_of.c.ts < _BELOW).distinct(),
        segments_of.delete().where(of_asked_tenant(segments_of), segments_of.c.ts < _BELOW),
        rows_of.delete().where(of_asked_tenant(rows_of), rows_of.c.ts < _BELOW),
    )
    for segments_of, rows_of in ((base_segments, bases), (seed_segments, seeds))
}
_MANIFESTS = select(seeds.c.manifest_key).where(of_asked_tenant(seeds), seeds.c.ts < _BELOW)
_RETIRED = (of_asked_tenant(segments), _s.kind == TaskKind.DATA, _s.hi_ts <= bindparam("floor_ts"))
_CANDIDATES = (  # along an index: what lies lowest, as many rows as are asked for, however many there are
    select(_s.object_key).where(*_RETIRED).order_by(_s.hi_ts).limit(bindparam("at_most"))
)
_LOCK_OBJECTS = (
    select(_o.object_key)
    .where(_o.object_key.in_(bindparam("asked_keys", expanding=True)))
    .order_by(_o.object_key)
    .with_for_update()
)
_RETIRE = segments.delete().where(*_RETIRED, _s.object_key.in_(bindparam("asked_keys", expanding=True)))


class HoldKind(StrEnum):
    """What keeps a log longer than its retention."""

    CONSUMER = "consumer"
    CHANGEFEED = "changefeed"
    SAFE_POINT = "safe_point"
    TABLE = "table"
    KEYS = "keys"
    SCHEMA = "schema"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """A reason to keep the log above a timestamp."""

    ts: int
    kind: HoldKind
    name: str
    who: str  #: kind and name in a sentence
    release: str  #: what ends it


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """The result of one round."""

    objects: int  #: objects processed; 0 when none is left
    segments: int


def database_time_ms(catalog: Catalog) -> int:
    """Unix milliseconds by the database's clock."""
    with catalog.reading() as conn:
        return database_ms(conn)


def check_listing(catalog: Catalog, tenant: Tenant, after_ts: int, upto_ts: int) -> None:
    """Raise unless a listing made before this call is complete and final in (after_ts, upto_ts]: TsExpired when
    retention may have removed some of it, TenantDeleted when the tenant's deletion may have, BeyondQuarantine when a
    quarantined store may still change some of it."""
    with catalog.reading() as conn:
        row = conn.execute(_LISTED, tenant_ids(tenant)).one_or_none()
    if row is None:
        return
    if row.state in GIVEN_UP:
        raise given_up(tenant, row.reason)
    if after_ts < row.floor_ts:
        raise expired(after_ts, int(row.floor_ts))
    if row.good_ts is not None and upto_ts > row.good_ts:
        raise beyond_quarantine(upto_ts, int(row.good_ts))


def beyond_quarantine(asked_ts: int, good_ts: int, **facts: object) -> BeyondQuarantine:
    """The error of a read above the last timestamp known to be good."""
    return BeyondQuarantine(
        f"A store of this tenant is quarantined: nothing above {good_ts} is served, and {asked_ts} was asked for.",
        good_ts=str(good_ts),
        good_time=tso.to_text(good_ts),
        **facts,
    )


def expired(asked_ts: int, earliest_ts: int) -> TsExpired:
    """The error of a read below the start of the log."""
    return TsExpired(
        f"The log of this tenant begins at {tso.described(earliest_ts)}; it is not complete above "
        f"{tso.described(asked_ts)}.",
        earliest_ts=str(earliest_ts),
        earliest_time=tso.to_text(earliest_ts) if earliest_ts < 1 << 62 else "",
    )


def raise_floor(catalog: Catalog, tenant: Tenant, *, seen_floor: int, to_ts: int) -> bool:
    """Raise the floor to `to_ts`. False, without effect, when the floor is not `seen_floor`, a consumer, changefeed,
    safe point or quarantine is lower, a tenant without tables has no base there any more, or the tenant was deleted."""
    parameters = tenant_ids(tenant)
    with catalog.transaction() as conn:
        try:
            start_ts, floor_ts = lock_tenant(conn, tenant)
        except (NotFound, TenantDeleted):
            return False
        if floor_ts != seen_floor or to_ts <= max(start_ts, floor_ts):
            return False
        edge = int(conn.execute(_EDGE, parameters).scalar() or 0)
        invariant(to_ts <= edge, "the floor lies at or below the watermark", floor_ts=to_ts, durable_ts=edge)
        if any(ts < to_ts for ts in _lowest(conn, tenant)) or not _can_begin(conn, tenant, to_ts):
            return False
        conn.execute(_RAISE, {**parameters, "to_ts": to_ts})
        below = {**parameters, "to_ts": to_ts}
        keys = set(conn.execute(_MANIFESTS, below).scalars())
        for listed, delete_segments, delete_rows in _HELD.values():
            keys.update(conn.execute(listed, below).scalars())
            conn.execute(delete_segments, below)
            conn.execute(delete_rows, below)
        _replace(conn, keys)
    return True


def retire_below_floor(catalog: Catalog, tenant: Tenant, *, limit: int = OBJECTS_AT_ONCE) -> Retired:
    """Delete segments at or below the floor, of at most `limit` objects: those that end first. The cost of a call does
    not depend on how many there are."""
    with catalog.transaction() as conn:
        parameters = {**tenant_ids(tenant), "floor_ts": int(conn.execute(_FLOOR, tenant_ids(tenant)).scalar() or 0)}
        keys = sorted(set(conn.execute(_CANDIDATES, {**parameters, "at_most": limit}).scalars()))
        if not keys:
            return Retired(objects=0, segments=0)
        conn.execute(_LOCK_OBJECTS, {"asked_keys": keys}).all()
        gone = conn.execute(_RETIRE, {**parameters, "asked_keys": keys}).rowcount
        _replace(conn, keys)
        return Retired(objects=len(keys), segments=gone)


def _can_begin(conn: Connection, tenant: Tenant, ts: int) -> bool:
    """Whether the keys of a tenant without tables are known at `ts`; true of one with tables."""
    parameters = {**tenant_ids(tenant), "at_ts": ts}
    if TenantKind(conn.execute(_KIND, parameters).scalar_one()).is_keyspace:
        return conn.execute(_BASE_OF_KEYS, parameters).first() is not None
    return True


def _lowest(conn: Connection, tenant: Tenant) -> list[int]:
    """The lowest consumer, changefeed and safe point, and where a quarantine ends pulls."""
    lowest = CONSUMERS.lowest, CHANGEFEEDS.lowest, _LOWEST_POINT, _GOOD_TS
    floors = [conn.execute(statement, tenant_ids(tenant)).scalar() for statement in lowest]
    return [int(ts) for ts in floors if ts is not None]


def _replace(conn: Connection, keys: Iterable[str]) -> None:
    replace_unnamed(conn, keys, *(table.c.object_key for table in (segments, base_segments, seed_segments)))
