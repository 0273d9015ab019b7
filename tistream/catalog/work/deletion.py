"""Deletes a tenant: a tombstone at once, its objects in steps.

`delete_tenant` is one transaction that ends all work of the tenant:

    its row: the state that the caller saw -> DELETING
    its tasks, their positions and snapshot references are deleted
    its stores have no dispatcher, under a new epoch
    its consumers and changefeeds, allowed targets, safe points and quarantines are deleted
    its open maintenance jobs are cancelled
    the keys of its pushers are revoked

`replace_tenant` is the same for a tenant that cannot continue without a gap, once another one has its place: one that
follows the same cluster, whose log is served, and that has a seed of all rows where its log begins. The tombstone names
it, so every reader of the old tenant learns where to begin anew.

No guard of a later flush, snapshot, split or merge matches a deleted task; seeds, bases, changefeeds and safe points
are added under a lock of the tenant's row (`lock_tenant`), which refuses them. Stores and incarnations stay, so no
incarnation is issued twice.

Then `retire_objects` hides objects in batches (live -> superseded, under a replacement number, so that read leases
still protect them), the collector deletes them after its grace period, and `finish_deletion` sets DELETED when no
object is left. Objects that appear later (uploads under way, batch files of an unaware pusher) are retired and
collected too.
"""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.decisions import begun_no, is_deletable
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_event
from tistream.catalog.database.journaled import Journaled, journaled
from tistream.catalog.database.tables import (
    allowed_targets,
    base_segments,
    bases,
    builds,
    changefeeds,
    consumer_members,
    consumer_partitions,
    consumers,
    excluded_objects,
    lanes,
    next_numbers,
    objects,
    of_asked_tenant,
    quarantines,
    safe_points,
    schema_versions,
    seed_segments,
    seeds,
    segments,
    snapshot_objects,
    snapshot_positions,
    stores,
    tasks,
    tenant_ids,
    tenants,
)
from tistream.catalog.log.objects import ObjectState
from tistream.catalog.rows.journal import EntryKind
from tistream.catalog.rows.kinds import TenantKind
from tistream.catalog.rows.tenants import Successor, TenantState
from tistream.catalog.tenancy import destinations
from tistream.catalog.tenancy.keys import revoke_pusher_keys
from tistream.catalog.tenancy.served import edge_of_asked_tenant
from tistream.catalog.tenancy.tenants import GIVEN_UP, lock_tenant
from tistream.catalog.work.jobs import cancel_jobs_of
from tistream.errors import StateForbids
from tistream.ids import Tenant

OBJECTS_AT_ONCE = 200

_o = objects.c
_TOMBSTONE = (
    tenants.update()
    .where(of_asked_tenant(tenants), tenants.c.state == bindparam("seen_state"))
    .values(state=TenantState.DELETING, reason=bindparam("new_reason"), decided_no=begun_no())
)
_TASKS = select(tasks.c.task_id).where(of_asked_tenant(tasks)).order_by(tasks.c.task_id).with_for_update()
_OF_TASKS = [
    table.delete().where(table.c.task_id.in_(bindparam("asked_tasks", expanding=True)))
    for table in (snapshot_positions, snapshot_objects, tasks)
]
_UNDISPATCH = (
    stores.update()
    .where(of_asked_tenant(stores))
    .values(dispatcher=None, dispatcher_epoch=stores.c.dispatcher_epoch + 1)
)
_READERS = (changefeeds, lanes, consumers, consumer_partitions, consumer_members, allowed_targets)
_DROP_HOLDS = [table.delete().where(of_asked_tenant(table)) for table in (*_READERS, safe_points, quarantines)]
_ROW = select(tenants).where(of_asked_tenant(tenants))
_STATE = select(tenants.c.state).where(of_asked_tenant(tenants))
_LOCK = _STATE.with_for_update()
_WHAT = select(tenants.c.kind, tenants.c.upstream_id).where(of_asked_tenant(tenants))
_SEED_AT = select(seeds.c.ts).where(of_asked_tenant(seeds), seeds.c.ts == bindparam("asked_ts"), seeds.c.table_id == 0)
_MAY_EMPTY = select(is_deletable(tenants.c.decided_no)).where(of_asked_tenant(tenants))
_LIVE = (
    select(_o.object_key)
    .where(of_asked_tenant(objects), _o.state == ObjectState.LIVE)
    .order_by(_o.object_key)
    .limit(bindparam("at_most"))
)
_IS_ASKED = _o.object_key.in_(bindparam("asked_keys", expanding=True))
_LOCK_OBJECTS = select(_o.object_key).where(_IS_ASKED).order_by(_o.object_key).with_for_update()
_PARTS = [
    table.delete().where(table.c.object_key.in_(bindparam("asked_keys", expanding=True)))
    for table in (segments, seed_segments, base_segments)
]
_SUPERSEDE = (
    objects.update()
    .where(_IS_ASKED, _o.state == ObjectState.LIVE)
    .values(
        state=ObjectState.SUPERSEDED,
        changed_ms=now_ms(),
        replacement_no=bindparam("replacement_no"),
        decided_no=begun_no(),
    )
)
_LEFT = select(_o.object_key).where(of_asked_tenant(objects), _o.state != ObjectState.DEAD).limit(1)
_REST = [
    table.delete().where(of_asked_tenant(table))
    for table in (segments, seed_segments, seeds, base_segments, bases, schema_versions, builds, excluded_objects)
]
_FINISH = tenants.update().where(of_asked_tenant(tenants)).values(state=TenantState.DELETED)


def delete_tenant(catalog: Catalog, tenant: Tenant, *, seen: TenantState, reason: str = "", actor: str = "") -> bool:
    """Delete the tenant for good. False when its state is no longer the one that the caller saw."""
    if seen in GIVEN_UP:
        raise StateForbids(f"Tenant {tenant} is already deleted.", state=seen)
    with journaled(catalog, EntryKind.DELETION, actor) as deed:
        return _delete(deed, tenant, seen, reason, actor)


def repeat_deletion(catalog: Catalog, tenant: Tenant, *, actor: str = "") -> None:
    """Nothing, but that a deletion whose answer was lost is in the journal."""
    with journaled(catalog, EntryKind.DELETION, actor) as deed:
        if deed.conn.execute(_STATE, tenant_ids(tenant)).scalar() in GIVEN_UP:
            deed.note(tenants, _ROW, tenant_ids(tenant))


def replace_tenant(catalog: Catalog, tenant: Tenant, by: Tenant, *, seen: TenantState, actor: str = "") -> bool:
    """Delete the tenant for good, and name the one `by` which its readers continue. False when its state is no longer
    the one that the caller saw; StateForbids while readers could not begin anew, NotFound, TenantDeleted."""
    if seen in GIVEN_UP:
        raise StateForbids(f"Tenant {tenant} is already deleted.", state=seen)
    with journaled(catalog, EntryKind.DELETION, actor) as deed:
        conn = deed.conn
        conn.execute(_LOCK, tenant_ids(tenant)).all()
        start_ts, floor_ts = lock_tenant(conn, by)
        conn.execute(_TASKS, tenant_ids(tenant)).all()  # none of them advances from here on
        served_ts = int(conn.execute(edge_of_asked_tenant(), tenant_ids(tenant)).scalar() or 0)
        _refuse_successor(conn, tenant, by, served_ts, start_ts, floor_ts)
        reason = Successor(tenant=by, start_ts=start_ts, after_ts=served_ts).reason
        return _delete(deed, tenant, seen, reason, actor)


def _delete(deed: Journaled, tenant: Tenant, seen: TenantState, reason: str, actor: str) -> bool:
    if not delete_here(deed.conn, tenant, seen, reason, actor):
        return False
    deed.note(tenants, _ROW, tenant_ids(tenant))
    return True


def _refuse_successor(
    conn: Connection, tenant: Tenant, by: Tenant, served_ts: int, start_ts: int, floor_ts: int
) -> None:
    """StateForbids unless readers of the tenant can begin anew with the one `by`."""
    of, to = (conn.execute(_WHAT, tenant_ids(each)).one() for each in (tenant, by))
    facts = {"start_ts": str(start_ts), "served_upto_ts": str(served_ts)}
    if tenant == by or of.kind != TenantKind.TIDB or of.kind != to.kind:
        raise StateForbids(f"Tenant {by} cannot replace {tenant}: both are tenants of TiDB, and two of them.")
    if None not in (of.upstream_id, to.upstream_id) and of.upstream_id != to.upstream_id:
        raise StateForbids(f"Tenant {by} follows another cluster than {tenant}.", **facts)
    if not start_ts or int(conn.execute(edge_of_asked_tenant(), tenant_ids(by)).scalar() or 0) < start_ts:
        raise StateForbids(f"Tenant {by} is not active yet: its log has not begun.", **facts)
    if start_ts < served_ts:
        raise StateForbids(f"Tenant {by} begins below what {tenant} has served.", **facts)
    if floor_ts > start_ts or conn.execute(_SEED_AT, {**tenant_ids(by), "asked_ts": start_ts}).first() is None:
        raise StateForbids(
            f"Tenant {by} has no seed of all rows at its beginning: its pusher is started with --seed-rows.", **facts
        )


def delete_here(conn: Connection, tenant: Tenant, seen: TenantState, reason: str, actor: str) -> bool:
    """Delete the tenant in the caller's transaction. False when its state is not the one that the caller saw."""
    asked = tenant_ids(tenant)
    if conn.execute(_TOMBSTONE, {**asked, "seen_state": seen, "new_reason": reason}).rowcount != 1:
        return False
    ended = _end_tasks(conn, tenant)
    conn.execute(_UNDISPATCH, asked)
    destinations.release(conn, tenant)
    for drop in _DROP_HOLDS:
        conn.execute(drop, asked)
    cancel_jobs_of(conn, tenant)
    keys = revoke_pusher_keys(conn, tenant)
    detail = {"was": seen, "reason": reason, "tasks": ended, "keys_revoked": keys}
    record_event(conn, EventKind.TENANT_DELETING, tenant, tenant=tenant, actor=actor, **detail)
    return True


def retire_objects(catalog: Catalog, tenant: Tenant, *, limit: int = OBJECTS_AT_ONCE) -> int:
    """Hide at most `limit` objects of a deleted tenant; the number hidden."""
    asked = tenant_ids(tenant)
    with catalog.transaction() as conn:
        if conn.execute(_STATE, asked).scalar() not in GIVEN_UP:  # no tenant leaves these states
            return 0
        keys = {"asked_keys": list(conn.execute(_LIVE, {**asked, "at_most": limit}).scalars())}
        if not keys["asked_keys"]:
            return 0
        conn.execute(_LOCK_OBJECTS, keys).all()
        for drop in _PARTS:
            conn.execute(drop, keys)
        conn.execute(_SUPERSEDE, {**keys, "replacement_no": next_numbers(conn, "replacement", 1)[0]})
        return len(keys["asked_keys"])


def may_empty(catalog: Catalog, tenant: Tenant) -> bool:
    """Whether what has no row, as batch files, may be deleted: every catalog that can be restored has the deletion."""
    with catalog.reading() as conn:
        return bool(conn.execute(_MAY_EMPTY, tenant_ids(tenant)).scalar())


def finish_deletion(catalog: Catalog, tenant: Tenant) -> bool:
    """Mark a DELETING tenant as DELETED. False while it has an object, or in another state."""
    asked = tenant_ids(tenant)
    with catalog.transaction() as conn:
        if conn.execute(_LOCK, asked).scalar() != TenantState.DELETING:
            return False
        if conn.execute(_LEFT, asked).first() is not None:
            return False
        for drop in _REST:
            conn.execute(drop, asked)
        conn.execute(_FINISH, asked)
        record_event(conn, EventKind.TENANT_DELETED, tenant, tenant=tenant)
        return True


def _end_tasks(conn: Connection, tenant: Tenant) -> int:
    """Delete all tasks; the number deleted. Repeats, to find the parts of a task that is being split."""
    ended = 0
    while task_ids := list(conn.execute(_TASKS, tenant_ids(tenant)).scalars()):
        for drop in _OF_TASKS:
            conn.execute(drop, {"asked_tasks": task_ids})
        ended += len(task_ids)
    return ended
