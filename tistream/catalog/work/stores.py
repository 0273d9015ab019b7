"""Stores of a tenant: their incarnations, dispatchers and reclaimed files.

Incarnations are issued here, dense from 1, never twice: two processes that act as the same store get different ones,
and the older is closed. `max_cut_ts` and `reclaimed_seq` never fall.

An incarnation is forgotten when every task has closed it and its folder was seen empty. Rows are deleted oldest first:
all incarnations below the lowest row are forgotten; the newest number stays in `stores`. A late file of a forgotten
incarnation is garbage: no task has an open position there (`tistream.model.positions`), no dispatcher serves it, and
the next sweep deletes it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Connection, Select, and_, bindparam, exists, func, select, tuple_

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.decisions import begun_no, is_deletable
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_assignments
from tistream.catalog.database.records import record_of
from tistream.catalog.database.tables import (
    ensure_row,
    of_asked_tenant,
    store_incarnations,
    stores,
    tenant_ids,
    tenant_of,
    tenants,
)
from tistream.catalog.tenancy.tenants import GIVEN_UP
from tistream.catalog.work.tasks import holds_leadership
from tistream.catalog.work.workers import is_newest_incarnation
from tistream.errors import StateForbids
from tistream.ids import Tenant
from tistream.limits import INT_MAX, STORES_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRow:
    """A pushing store as the catalog has it."""

    tenant: Tenant
    store_id: int
    incarnation: int  #: the newest issued
    max_cut_ts: int  #: the largest cut_ts seen in its files; an incarnation may not start below it
    dispatcher: str | None  #: worker id
    dispatcher_epoch: int  #: rises with each assignment
    end_ts: int = 0  #: the store has no change above it (`tistream.catalog.work.stream_ends`); 0 = it continues


class AssignedStores(NamedTuple):
    """The stores of a dispatcher."""

    stores: list[StoreRow]  #: by id
    database_ms: int | None  #: the database's clock at the read; None without stores


class StorePlace(NamedTuple):
    """The dispatcher of a store."""

    tenant: Tenant
    store_id: int
    epoch: int
    dispatcher: str | None


class Reclaimed(NamedTuple):
    """The files of an incarnation up to `seq` are not needed; they may be deleted once that is `deletable`."""

    seq: int
    deletable: bool


class StoreAssignment(NamedTuple):
    """Assigns a store to a dispatcher if its epoch is still `seen_epoch`."""

    tenant: Tenant
    store_id: int
    worker_id: str
    seen_epoch: int


_IS_STORE = and_(of_asked_tenant(stores), stores.c.store_id == bindparam("asked_store"))
_IN_STORE = and_(of_asked_tenant(store_incarnations), store_incarnations.c.store_id == bindparam("asked_store"))
_IS_INCARNATION = and_(_IN_STORE, store_incarnations.c.incarnation == bindparam("asked_incarnation"))
_ALL = select(stores).order_by(stores.c.cluster_id, stores.c.tenant_id, stores.c.store_id)
_OF_TENANT = _ALL.where(of_asked_tenant(stores))
_OF_DISPATCHER = _ALL.add_columns(now_ms().label("now_ms")).where(
    stores.c.dispatcher == bindparam("asked_worker"), is_newest_incarnation()
)
_ISSUE = stores.update().where(_IS_STORE).values(incarnation=stores.c.incarnation + 1, end_ts=0)
_NEWEST = select(stores.c.incarnation, stores.c.max_cut_ts).where(_IS_STORE)
_IS_ONE = tuple_(stores.c.cluster_id, stores.c.tenant_id, stores.c.store_id).in_(
    bindparam("asked_stores", expanding=True)
)
_FREE = (
    select(stores.c.cluster_id, stores.c.tenant_id, stores.c.store_id, stores.c.dispatcher_epoch)
    .where(_IS_ONE)
    .order_by(stores.c.cluster_id, stores.c.tenant_id, stores.c.store_id)
    .with_for_update(skip_locked=True)
)
_MOVE = (
    stores.update()
    .where(_IS_ONE)
    .values(dispatcher=bindparam("new_dispatcher"), dispatcher_epoch=stores.c.dispatcher_epoch + 1)
)
_OF_DELETED = exists().where(
    tenants.c.cluster_id == stores.c.cluster_id,
    tenants.c.tenant_id == stores.c.tenant_id,
    tenants.c.state.in_(GIVEN_UP),
)
_PLACES = (
    select(stores.c.cluster_id, stores.c.tenant_id, stores.c.store_id, stores.c.dispatcher_epoch, stores.c.dispatcher)
    .where(~_OF_DELETED)
    .order_by(stores.c.cluster_id, stores.c.tenant_id, stores.c.store_id)
)
_STAMP = (
    select(func.count(), func.sum(stores.c.store_id), func.sum(stores.c.dispatcher_epoch))
    .select_from(stores)
    .where(~_OF_DELETED)
)
_IDS = select(stores.c.cluster_id, stores.c.tenant_id, stores.c.store_id)
_IDS_OF = _IDS.where(stores.c.tenant_id.in_(bindparam("asked_tenants", expanding=True)))
_TENANTS_NAMED_MAX = 100  # in a statement
_HELD_BY = stores.c.dispatcher == bindparam("asked_worker")
_COUNT_OF_DISPATCHER = select(func.count()).select_from(stores).where(_HELD_BY)
_NOTE_CUT_TS = stores.update().where(_IS_STORE, stores.c.max_cut_ts < bindparam("seen_cut_ts"))
_RECLAIMED = (
    select(store_incarnations.c.incarnation, store_incarnations.c.reclaimed_seq)
    .where(_IN_STORE)
    .order_by(store_incarnations.c.incarnation)
)
_RECLAIMS = _RECLAIMED.add_columns(is_deletable(store_incarnations.c.decided_no).label("deletable"))
_DISPATCHER_EPOCH = select(stores.c.dispatcher_epoch).where(_IS_STORE).with_for_update(read=True)
_RECLAIMED_OF_INCARNATION = select(store_incarnations.c.reclaimed_seq).where(_IS_INCARNATION).with_for_update()
_ADD_INCARNATION = store_incarnations.insert()
_HOW_MANY = select(func.count()).select_from(stores).where(of_asked_tenant(stores))
_RECLAIM = store_incarnations.update().where(_IS_INCARNATION).values(decided_no=begun_no())
_NEEDED = (
    select(func.min(store_incarnations.c.incarnation))
    .where(_IN_STORE, store_incarnations.c.reclaimed_seq < INT_MAX)
    .with_for_update()
)
_FORGET = store_incarnations.delete().where(_IN_STORE, store_incarnations.c.incarnation < bindparam("forgotten_below"))


def issue_incarnation(catalog: Catalog, tenant: Tenant, store_id: int) -> tuple[int, int]:
    """Issue an incarnation to a pusher: (incarnation, largest known cut_ts of the store). Adds unknown stores;
    StateForbids for one too many."""
    with catalog.transaction() as conn:
        return _issue(conn, tenant, store_id)


def issue_in(conn: Connection, tenant: Tenant, store_id: int, *, above: int) -> int:
    """Issue an incarnation within a larger transaction, unless the newest is above this one; the newest. The pusher of
    an older one ends and begins again."""
    newest = conn.execute(_NEWEST.with_for_update(), _store(tenant, store_id)).one().incarnation
    return int(newest) if newest > above else _issue(conn, tenant, store_id)[0]


def _issue(conn: Connection, tenant: Tenant, store_id: int) -> tuple[int, int]:
    key: dict[str, Any] = {"cluster_id": tenant.cluster_id, "tenant_id": tenant.tenant_id, "store_id": store_id}
    mine = _store(tenant, store_id)
    is_known = conn.execute(_NEWEST, mine).first() is not None
    if not is_known and conn.execute(_HOW_MANY, tenant_ids(tenant)).scalar_one() >= STORES_MAX:
        raise StateForbids(
            f"The tenant has {STORES_MAX} stores: no cluster of that size is followed.", stores=STORES_MAX
        )
    ensure_row(conn, stores, **key, incarnation=0, max_cut_ts=0, dispatcher=None, dispatcher_epoch=0)
    conn.execute(_ISSUE, mine)
    row = conn.execute(_NEWEST, mine).one()
    conn.execute(_ADD_INCARNATION, {**key, "incarnation": row.incarnation, "reclaimed_seq": 0})
    return row.incarnation, row.max_cut_ts


def newest_incarnation(catalog: Catalog, tenant: Tenant, store_id: int) -> int:
    """The newest incarnation of this store; 0 when the store is unknown."""
    with catalog.reading() as conn:
        row = conn.execute(_NEWEST, _store(tenant, store_id)).first()
        return 0 if row is None else int(row.incarnation)


def list_stores(catalog: Catalog, tenant: Tenant | None = None) -> list[StoreRow]:
    """The stores of a tenant, or of all, ordered by id."""
    return _read(catalog, _ALL, {}) if tenant is None else _read(catalog, _OF_TENANT, tenant_ids(tenant))


def stores_of_tenants(catalog: Catalog, tenants: Collection[Tenant]) -> dict[Tenant, set[int]]:
    """The store ids of each of these tenants that has any; one statement, which reads all stores for many tenants."""
    ids = sorted({tenant.tenant_id for tenant in tenants})
    query, asked = (_IDS_OF, {"asked_tenants": ids}) if len(tenants) <= _TENANTS_NAMED_MAX else (_IDS, {})
    store_ids: dict[Tenant, set[int]] = {}
    with catalog.reading() as conn:
        rows = conn.execute(query, asked).all()
    for cluster_id, tenant_id, store_id in rows:
        tenant = Tenant(cluster_id, tenant_id)
        if tenant in tenants:
            store_ids.setdefault(tenant, set()).add(store_id)
    return store_ids


def stores_of_dispatcher(catalog: Catalog, worker_id: str, incarnation: int) -> AssignedStores:
    """The stores assigned to this incarnation of the dispatcher. Empty when a newer one has registered."""
    with catalog.reading() as conn:
        rows = conn.execute(_OF_DISPATCHER, {"asked_worker": worker_id, "asked_incarnation": incarnation}).all()
    return AssignedStores([_store_row(row) for row in rows], rows[0].now_ms if rows else None)


def store_places(catalog: Catalog) -> list[StorePlace]:
    """The dispatcher of each store of all tenants that are not deleted, by id."""
    with catalog.reading() as conn:
        return [
            StorePlace(Tenant(cluster, tenant), store_id, epoch, dispatcher)
            for cluster, tenant, store_id, epoch, dispatcher in conn.execute(_PLACES)
        ]


def stores_stamp(catalog: Catalog) -> tuple[int, ...]:
    """Changes when a store is added, removed or assigned, except when changes cancel out."""
    with catalog.reading() as conn:
        return tuple(int(number or 0) for number in conn.execute(_STAMP).one())


def count_stores_of(catalog: Catalog, worker_id: str) -> int:
    """The number of stores assigned to this id."""
    with catalog.reading() as conn:
        return int(conn.execute(_COUNT_OF_DISPATCHER, {"asked_worker": worker_id}).scalar_one())


def assign_stores(catalog: Catalog, assignments: Sequence[StoreAssignment], *, leader_epoch: int) -> int:
    """Assign stores to dispatchers in one transaction, each by its own guard; the number assigned. 0 when
    `leader_epoch` is not the leader's. Locked rows are skipped: see `assign_tasks`."""
    if not assignments:
        return 0
    assignment_of = {(a.tenant.cluster_id, a.tenant.tenant_id, a.store_id): a for a in assignments}
    with catalog.transaction() as conn:
        if not holds_leadership(conn, leader_epoch):
            return 0
        rows = conn.execute(_FREE, {"asked_stores": sorted(assignment_of)})
        given = [a for *ids, epoch in rows if (a := assignment_of[tuple(ids)]).seen_epoch == epoch]
        by_worker: dict[str, list[tuple[int, int, int]]] = {}
        for a in given:
            by_worker.setdefault(a.worker_id, []).append((a.tenant.cluster_id, a.tenant.tenant_id, a.store_id))
        for worker_id, keys in by_worker.items():
            conn.execute(_MOVE, {"new_dispatcher": worker_id, "asked_stores": keys})
        assigned = [(a.store_id, a.tenant, a.worker_id) for a in given]
        record_assignments(conn, EventKind.STORE_ASSIGNED, assigned, leader_epoch=leader_epoch)
        return len(given)


def note_cut_ts(catalog: Catalog, tenant: Tenant, store_id: int, cut_ts: int) -> None:
    """Raise the store's `max_cut_ts`; a smaller value has no effect."""
    with catalog.transaction() as conn:
        conn.execute(_NOTE_CUT_TS, {**_store(tenant, store_id), "seen_cut_ts": cut_ts, "max_cut_ts": cut_ts})


def reclaimed(catalog: Catalog, tenant: Tenant, store_id: int) -> dict[int, int]:
    """incarnation -> the seq up to which files may be gone; incarnations below the lowest are forgotten."""
    with catalog.reading() as conn:
        return dict(conn.execute(_RECLAIMED, _store(tenant, store_id)).all())


def reclaims(catalog: Catalog, tenant: Tenant, store_id: int) -> dict[int, Reclaimed]:
    """The same, with whether they may be deleted now (`tistream.catalog.database.decisions`)."""
    with catalog.reading() as conn:
        rows = conn.execute(_RECLAIMS, _store(tenant, store_id))
        return {row.incarnation: Reclaimed(row.reclaimed_seq, bool(row.deletable)) for row in rows}


def set_reclaimed(
    catalog: Catalog, tenant: Tenant, store_id: int, incarnation: int, seq: int, *, dispatcher_epoch: int
) -> bool:
    """Record, before deleting, that files up to `seq` may be gone. False when the caller no longer dispatches the store
    or the incarnation does not exist. A smaller value has no effect."""
    with catalog.transaction() as conn:
        of_store = _store(tenant, store_id)
        if conn.execute(_DISPATCHER_EPOCH, of_store).scalar() != dispatcher_epoch:
            return False
        parameters = {**of_store, "asked_incarnation": incarnation}
        known = conn.execute(_RECLAIMED_OF_INCARNATION, parameters).scalar()
        if known is not None and known < seq:
            conn.execute(_RECLAIM, {**parameters, "reclaimed_seq": seq})
        return known is not None


def forget_incarnations(catalog: Catalog, tenant: Tenant, store_id: int, *, below: int, dispatcher_epoch: int) -> bool:
    """Forget incarnations below `below`, up to the first that still has files and never the newest. The caller has seen
    their folders empty. False when it no longer dispatches this store."""
    with catalog.transaction() as conn:
        of_store = _store(tenant, store_id)
        if conn.execute(_DISPATCHER_EPOCH, of_store).scalar() != dispatcher_epoch:
            return False
        newest = conn.execute(_NEWEST, of_store).one().incarnation
        needed = conn.execute(_NEEDED, of_store).scalar()
        conn.execute(_FORGET, {**of_store, "forgotten_below": min(below, newest, needed or newest)})
        return True


def _store(tenant: Tenant, store_id: int) -> dict[str, Any]:
    return {**tenant_ids(tenant), "asked_store": store_id}


def _read(catalog: Catalog, query: Select[Any], parameters: dict[str, Any]) -> list[StoreRow]:
    with catalog.reading() as conn:
        return [_store_row(row) for row in conn.execute(query, parameters)]


def _store_row(row: Any) -> StoreRow:
    return record_of(StoreRow, row, tenant=tenant_of(row))
