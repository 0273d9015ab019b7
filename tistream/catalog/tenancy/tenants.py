"""Tenants: registration, activation and state.

    AWAITING_SNAPSHOT --activate_tenant, begin_tenant--> ACTIVE <--change_state--> PAUSED
    any of them --delete_tenant (see `deletion`)--> DELETING --finish_deletion--> DELETED

A tenant that awaits its schema snapshot has no tasks, hence no frontier and no watermark; its batch files wait.
Activation happens once: `start_ts`, the state and all tasks appear together. A raw or txn tenant needs no snapshot: it
is active, at 0, as soon as the id of its keyspace is known. A recording moves its start before anything is pushed.

DELETING is irreversible, and the row of a DELETED tenant stays as a tombstone for late writers. Ids are therefore never
reused: no object key, cursor or API key ever refers to another tenant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, and_, bindparam, literal_column, select

from tistream import ts as tso
from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_event
from tistream.catalog.database.journaled import Journaled, journaled
from tistream.catalog.database.records import record_of
from tistream.catalog.database.tables import (
    ensure_row,
    jobs,
    next_numbers,
    of_asked_tenant,
    of_tenant,
    stores,
    tasks,
    tenant_ids,
    tenant_of,
    tenants,
)
from tistream.catalog.rows.journal import EntryKind
from tistream.catalog.rows.kinds import Keyspace, TenantKind, stored_range
from tistream.catalog.rows.tenants import NewTask, Successor, TaskKind, TenantRow, TenantState
from tistream.errors import InvalidInput, NotFound, StateForbids, TenantDeleted
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.limits import INT_MAX, RAW_RETENTION_HOURS

_NO_KEYSPACE = Keyspace()
_EVERYTHING = KeyRange()
GIVEN_UP = (TenantState.DELETING, TenantState.DELETED)  #: no data is accepted or read

_EVENT_OF = {TenantState.ACTIVE: EventKind.TENANT_RESUMED, TenantState.PAUSED: EventKind.TENANT_PAUSED}
_ONE = select(tenants).where(of_asked_tenant(tenants))
_TASKS = select(tasks).where(of_asked_tenant(tasks)).order_by(tasks.c.task_id)
_ALL = select(tenants).order_by(tenants.c.cluster_id, tenants.c.tenant_id)
_IN_STATE = _ALL.where(tenants.c.state == bindparam("asked_state"))
_NOT_DELETED = _ALL.where(tenants.c.state != TenantState.DELETED)
_GIVE_BACK = (  # under a new epoch: its executor learns it at its next renewal, and the lease counts as no try
    jobs.update()
    .where(of_asked_tenant(jobs), jobs.c.state == literal_column("'running'"))
    .values(state="queued", epoch=jobs.c.epoch + 1, tries=jobs.c.tries - 1, due_ms=now_ms())
)
_LOCK = (
    select(tenants.c.start_ts, tenants.c.floor_ts, tenants.c.state, tenants.c.reason)
    .where(of_asked_tenant(tenants))
    .with_for_update()
)


def register_tenant(
    catalog: Catalog,
    tenant: Tenant,
    *,
    kind: TenantKind = TenantKind.TIDB,
    keyspace: Keyspace = _NO_KEYSPACE,
    user_keys: KeyRange = _EVERYTHING,
    actor: str = "",
) -> TenantRow:
    """Register the tenant; idempotent, returns the existing row. A raw or txn tenant is a keyspace, or a range of its
    user keys, and is active at once if the id of the keyspace is known. StateForbids when the tenant is deleted, or was
    registered as something else."""
    for name, value in (("cluster_id", tenant.cluster_id), ("tenant_id", tenant.tenant_id)):
        if not 0 <= value <= INT_MAX:
            raise InvalidInput(f"{name} must lie in 0..2**63-1", value=value)
    keys = _keys_of(kind, keyspace, user_keys)
    with journaled(catalog, EntryKind.TENANT, actor) as deed:
        conn = deed.conn
        note_tenant(deed, tenant)
        # Two racing callers may both record the event.
        is_new = conn.execute(_ONE, tenant_ids(tenant)).one_or_none() is None
        ensure_row(
            conn,
            tenants,
            timed="created_ms",
            cluster_id=tenant.cluster_id,
            tenant_id=tenant.tenant_id,
            kind=kind,
            keyspace_id=keyspace.id,
            keyspace_name=keyspace.name,
            state=TenantState.AWAITING_SNAPSHOT,
            reason="",
            start_ts=0,
            start_key=keys.start,
            end_key=keys.end,
        )
        row = _tenant_row(conn.execute(_ONE, tenant_ids(tenant)).one())
        if row.state in GIVEN_UP:
            raise StateForbids(f"Tenant {tenant} was deleted: its id cannot be reused.", state=row.state)
        _refuse_another(row, kind, keyspace, keys)
        begins = kind.is_keyspace and row.state is TenantState.AWAITING_SNAPSHOT and keyspace.id is not None
        if begins:
            _activate(conn, tenant, 0, [NewTask(kind=TaskKind.DATA, range=row.range)])
            row = _tenant_row(conn.execute(_ONE, tenant_ids(tenant)).one())
        if is_new:
            record_event(conn, EventKind.TENANT_REGISTERED, tenant, tenant=tenant)
        if begins:
            _record_activated(conn, tenant, 0, 1)
        return row


def begin_tenant(
    catalog: Catalog, tenant: Tenant, keyspace_id: int | None, start_ts: int = 0, upstream_id: int | None = None
) -> TenantRow:
    """First contact of a tenant's pusher, which knows PD's id of the cluster. That of a raw or txn tenant knows the id
    of the keyspace, too, and for a recording where the log begins. Idempotent; once a pusher has an incarnation the
    start stays as it is. InvalidInput when the tenant has another keyspace, or none because it is one of TiDB."""
    with journaled(catalog, EntryKind.TENANT) as deed:
        conn = deed.conn
        lock_tenant(conn, tenant)
        row, begins = _tenant_row(conn.execute(_ONE, tenant_ids(tenant)).one()), False
        if not row.kind.is_keyspace:
            if keyspace_id is not None or start_ts:
                raise InvalidInput(f"Tenant {tenant} is one of TiDB: it begins with a schema snapshot.")
        elif keyspace_id is None:
            raise InvalidInput(f"Tenant {tenant} is keyspace {row.keyspace}, and its pusher names none.")
        elif row.keyspace.id is None:
            range_ = stored_range(row.kind, keyspace_id, row.range)
            bound = {"keyspace_id": keyspace_id, "start_key": range_.start, "end_key": range_.end}
            conn.execute(tenants.update().where(of_tenant(tenants, tenant)).values(**bound))
            begins = _activate(conn, tenant, start_ts, [NewTask(kind=TaskKind.DATA, range=range_)])
        elif row.keyspace.id != keyspace_id:
            raise InvalidInput(
                f"Tenant {tenant} is keyspace {row.keyspace.id}, and its pusher has keyspace {keyspace_id}.",
                keyspace_id=keyspace_id,
            )
        elif start_ts > row.start_ts == 0 and not _has_pushed(conn, tenant):
            conn.execute(tenants.update().where(of_tenant(tenants, tenant)).values(start_ts=start_ts))
            moved = {"start_ts": start_ts, "durable_ts": start_ts, "epoch": tasks.c.epoch + 1, "owner": None}
            conn.execute(tasks.update().where(of_tenant(tasks, tenant)).values(**moved))
        if upstream_id is not None:
            conn.execute(tenants.update().where(of_tenant(tenants, tenant)).values(upstream_id=upstream_id))
        begun = _tenant_row(conn.execute(_ONE, tenant_ids(tenant)).one())
        if begun != row:
            note_tenant(deed, tenant)
        if begins:
            _record_activated(conn, tenant, start_ts, 1)
        return begun


def _keys_of(kind: TenantKind, keyspace: Keyspace, user_keys: KeyRange) -> KeyRange:
    """The range to store. InvalidInput when kind and keyspace do not fit each other."""
    if not kind.is_keyspace:
        if keyspace != _NO_KEYSPACE or user_keys != _EVERYTHING:
            raise InvalidInput("A tidb tenant has no keyspace and no key range: tistream push --keyspace names it.")
        return user_keys
    if keyspace == _NO_KEYSPACE:
        raise InvalidInput(f"A {kind} tenant needs a keyspace.")
    return user_keys if keyspace.id is None else stored_range(kind, keyspace.id, user_keys)


def _refuse_another(row: TenantRow, kind: TenantKind, keyspace: Keyspace, keys: KeyRange) -> None:
    """StateForbids when the tenant is not what is asked for."""
    same_keyspace = keyspace.id == row.keyspace.id if keyspace.name is None else keyspace.name == row.keyspace.name
    asked = keys if keyspace.id is not None or row.keyspace.id is None or not kind.is_keyspace else None
    if asked is None:  # the name is bound by now
        asked = stored_range(kind, row.keyspace.id or 0, keys)
    if row.kind is not kind or not same_keyspace or asked != row.range:
        what = f"kind {row.kind}" + (f", keyspace {row.keyspace}" if row.kind.is_keyspace else "")
        raise StateForbids(f"Tenant {row.tenant} is registered already, as another one: {what}.")


def _has_pushed(conn: Connection, tenant: Tenant) -> bool:
    """Whether any pusher of the tenant was ever given an incarnation."""
    return conn.execute(select(stores.c.store_id).where(of_tenant(stores, tenant)).limit(1)).first() is not None


def get_tenant(catalog: Catalog, tenant: Tenant) -> TenantRow:
    """The tenant. NotFound with a hint how to register; TenantDeleted when it is deleted."""
    row = look_up_tenant(catalog, tenant)
    if row.state in GIVEN_UP:
        raise given_up(tenant, row.reason)
    return row


def look_up_tenant(catalog: Catalog, tenant: Tenant) -> TenantRow:
    """The tenant in any state. NotFound with a hint how to register."""
    with catalog.reading() as conn:
        row = conn.execute(_ONE, tenant_ids(tenant)).one_or_none()
    if row is None:
        raise not_registered(tenant)
    return _tenant_row(row)


def given_up(tenant: Tenant, reason: str) -> TenantDeleted:
    """The error for a deleted tenant. With a successor it says how its readers continue, also to those who knew the
    tenant while it lived."""
    successor = Successor.of_reason(reason)
    if successor is None:
        return TenantDeleted(f"Tenant {tenant} was deleted.", tenant=str(tenant))
    start_ts, after_ts = successor.start_ts, successor.after_ts
    error = TenantDeleted(
        f"Tenant {tenant} was replaced by tenant {successor.tenant}. What was committed between "
        f"{tso.described(after_ts)} and {tso.described(start_ts)} is in no log.",
        tenant=str(tenant),
        successor=str(successor.tenant),
        successor_start_ts=str(start_ts),
        served_upto_ts=str(after_ts),
    )
    error.hint = (
        f"Read the tables of tenant {successor.tenant} as of {start_ts}, put them in the place of yours, and follow "
        f"its changes from start_ts={start_ts} on."
    )
    return error


def lock_tenant(conn: Connection, tenant: Tenant) -> tuple[int, int]:
    """(start_ts, floor_ts) of a tenant, which stays as it is until the transaction ends. NotFound, TenantDeleted."""
    row = conn.execute(_LOCK, tenant_ids(tenant)).one_or_none()
    if row is None:
        raise not_registered(tenant)
    if row.state in GIVEN_UP:
        raise given_up(tenant, row.reason)
    return row.start_ts, row.floor_ts


def not_registered(tenant: Tenant) -> NotFound:
    """There is no such tenant. Also the answer to a key that may not see it."""
    return NotFound(
        f"tenant {tenant} is not registered; register it with POST /v1/tenants or with "
        f"tistream tenant register -c {tenant.cluster_id} -t {tenant.tenant_id}",
        cluster_id=tenant.cluster_id,
        tenant_id=tenant.tenant_id,
    )


def list_tenants(catalog: Catalog, state: TenantState | None = None) -> list[TenantRow]:
    """All tenants that are not DELETED, or those in one state, ordered by id."""
    with catalog.reading() as conn:
        rows = conn.execute(_NOT_DELETED) if state is None else conn.execute(_IN_STATE, {"asked_state": state})
        return [_tenant_row(row) for row in rows]


def every_tenant(catalog: Catalog) -> list[TenantRow]:
    """All tenants there ever were, ordered by id."""
    with catalog.reading() as conn:
        return [_tenant_row(row) for row in conn.execute(_ALL)]


def activate_tenant(catalog: Catalog, tenant: Tenant, start_ts: int, new_tasks: Sequence[NewTask]) -> bool:
    """Start the tenant's log at `start_ts` with these tasks. False when it does not await its snapshot."""
    with journaled(catalog, EntryKind.TENANT) as deed:
        if not _activate(deed.conn, tenant, start_ts, new_tasks):
            return False
        note_tenant(deed, tenant)
        _record_activated(deed.conn, tenant, start_ts, len(new_tasks))
        return True


def note_tenant(deed: Journaled, tenant: Tenant) -> None:
    """Note the tenant's row and its tasks for the journal."""
    deed.note(tenants, _ONE, tenant_ids(tenant))
    deed.note(tasks, _TASKS, tenant_ids(tenant))


def _record_activated(conn: Connection, tenant: Tenant, start_ts: int, task_count: int) -> None:
    record_event(conn, EventKind.TENANT_ACTIVATED, tenant, tenant=tenant, start_ts=str(start_ts), tasks=task_count)


def _activate(conn: Connection, tenant: Tenant, start_ts: int, new_tasks: Sequence[NewTask]) -> bool:
    """False when the tenant does not await its beginning. The caller records the event, as the last it does."""
    switched = conn.execute(
        tenants.update()
        .where(of_tenant(tenants, tenant), tenants.c.state == TenantState.AWAITING_SNAPSHOT)
        .values(state=TenantState.ACTIVE, start_ts=start_ts, reason="")
    )
    if switched.rowcount != 1:
        return False
    task_ids = next_numbers(conn, "task", len(new_tasks))
    rows = [
        {
            "task_id": task_id,
            "cluster_id": tenant.cluster_id,
            "tenant_id": tenant.tenant_id,
            "kind": TaskKind(task.kind),
            "start_key": task.range.start,
            "end_key": task.range.end,
            "start_ts": start_ts,
            "durable_ts": start_ts,
            "epoch": 0,
            "snapshot_no": 0,
            "resubscribe_id": 0,
        }
        for task_id, task in zip(task_ids, new_tasks, strict=True)
    ]
    if rows:
        conn.execute(tasks.insert(), rows)
    return True


def change_state(
    catalog: Catalog, tenant: Tenant, *, seen: TenantState, to: TenantState, reason: str, actor: str = ""
) -> bool:
    """Move a tenant from the state the caller saw to another; False when it was no longer in that state. Pausing gives
    its running maintenance jobs back, see `tistream.catalog.work.jobs`."""
    if not {seen, to} <= _EVENT_OF.keys():
        raise InvalidInput("only ACTIVE and PAUSED can be set", seen=seen, to=to)
    with catalog.transaction() as conn:
        moved = conn.execute(
            tenants.update().where(of_tenant(tenants, tenant), tenants.c.state == seen).values(state=to, reason=reason)
        )
        if moved.rowcount != 1:
            return False
        if to is TenantState.PAUSED:
            conn.execute(_GIVE_BACK, tenant_ids(tenant))
        record_event(conn, _EVENT_OF[to], tenant, tenant=tenant, actor=actor, was=seen, reason=reason)
        return True


def kept_s(row: TenantRow, default_hours: float) -> int:
    """Seconds of the tenant's log to keep; 0 = all. Without a retention of its own, RawKV keeps at most the lifetime
    that API V2 gives deletions."""
    if row.retention_s is not None:
        return row.retention_s
    hours = min(default_hours, RAW_RETENTION_HOURS) if row.kind is TenantKind.RAW else default_hours
    return int(hours * 3600)


def note_schema_snapshot(catalog: Catalog, tenant: Tenant) -> bool:
    """A notification says that the tenant's schema snapshot was pushed. False when it does not wait for one."""
    waits = and_(of_asked_tenant(tenants), tenants.c.state == TenantState.AWAITING_SNAPSHOT)
    with catalog.transaction() as conn:
        noted = conn.execute(
            tenants.update().where(waits).values(schema_hints=tenants.c.schema_hints + 1), tenant_ids(tenant)
        )
        return noted.rowcount == 1


def set_retention(catalog: Catalog, tenant: Tenant, retention_s: int | None) -> bool:
    """Set the tenant's retention; 0 = all, None = the setting. False when the tenant does not exist; TenantDeleted when
    it was deleted."""
    with catalog.transaction() as conn:
        try:
            lock_tenant(conn, tenant)
        except NotFound:
            return False
        conn.execute(tenants.update().where(of_tenant(tenants, tenant)).values(retention_s=retention_s))
        return True


def _tenant_row(row: Any) -> TenantRow:
    return record_of(
        TenantRow,
        row,
        tenant=tenant_of(row),
        kind=TenantKind(row.kind),
        keyspace=Keyspace(id=row.keyspace_id, name=row.keyspace_name),
        state=TenantState(row.state),
        range=KeyRange(row.start_key, row.end_key),
    )
