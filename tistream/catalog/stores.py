"""Pushing stores of a tenant: incarnations, who dispatches them, what has been reclaimed.

Incarnations are issued here, dense from 1, never twice: two processes that believe to be the same store get different
ones, and the older is closed. `max_cut_ts` and `reclaimed_seq` never fall.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, select
from sqlalchemy.sql.elements import ColumnElement

from tistream.catalog.engine import Catalog
from tistream.catalog.tables import ensure_row, incarnations, of_tenant, stores, tenant_of
from tistream.catalog.tasks import holds_ownership
from tistream.catalog.workers import lives
from tistream.ids import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreRow:
    """A pushing store as the catalog has it."""

    tenant: Tenant
    store_id: int
    incarnation: int  #: the newest that was issued
    max_cut_ts: int  #: the largest cut_ts seen in its files; an incarnation may not start below it
    dispatcher: str | None  #: worker id
    dispatcher_epoch: int  #: rises with each assignment


def issue_incarnation(catalog: Catalog, tenant: Tenant, store_id: int) -> tuple[int, int]:
    """Start a new life of a pusher: (its incarnation, the largest cut_ts known of the store). New stores are added."""
    with catalog.transaction() as conn:
        key = {"cluster_id": tenant.cluster_id, "tenant_id": tenant.tenant_id, "store_id": store_id}
        ensure_row(conn, stores, **key, incarnation=0, max_cut_ts=0, dispatcher=None, dispatcher_epoch=0)
        mine = _is_store(tenant, store_id)
        conn.execute(stores.update().where(mine).values(incarnation=stores.c.incarnation + 1))
        row = conn.execute(select(stores.c.incarnation, stores.c.max_cut_ts).where(mine)).one()
        conn.execute(incarnations.insert().values(**key, incarnation=row.incarnation, reclaimed_seq=0))
        return row.incarnation, row.max_cut_ts


def list_stores(catalog: Catalog, tenant: Tenant | None = None) -> list[StoreRow]:
    """The stores of a tenant, or of all, ordered by id."""
    return _read(catalog, *(() if tenant is None else (of_tenant(stores, tenant),)))


def stores_of_dispatcher(catalog: Catalog, worker_id: str, incarnation: int) -> list[StoreRow]:
    """The stores that are assigned to this life of the dispatcher, ordered by id. None when a newer life has
    registered."""
    return _read(catalog, stores.c.dispatcher == worker_id, lives(worker_id, incarnation))


def assign_store(
    catalog: Catalog, tenant: Tenant, store_id: int, *, worker_id: str | None, seen_epoch: int, owner_epoch: int
) -> int | None:
    """Give the store to a dispatcher, or to nobody. Returns its new epoch; None when the caller lost: the store was
    assigned by somebody else since `seen_epoch`, or `owner_epoch` is not the elected owner's any more."""
    with catalog.transaction() as conn:
        if not holds_ownership(conn, owner_epoch):
            return None
        changed = conn.execute(
            stores.update()
            .where(_is_store(tenant, store_id), stores.c.dispatcher_epoch == seen_epoch)
            .values(dispatcher=worker_id, dispatcher_epoch=seen_epoch + 1)
        )
        return seen_epoch + 1 if changed.rowcount == 1 else None


def note_cut_ts(catalog: Catalog, tenant: Tenant, store_id: int, cut_ts: int) -> None:
    """Remember the largest cut_ts; a smaller one changes nothing."""
    with catalog.transaction() as conn:
        conn.execute(
            stores.update().where(_is_store(tenant, store_id), stores.c.max_cut_ts < cut_ts).values(max_cut_ts=cut_ts)
        )


def reclaimed(catalog: Catalog, tenant: Tenant, store_id: int) -> dict[int, int]:
    """incarnation -> the seq at or below which files may be gone, for every incarnation issued."""
    i = incarnations.c
    query = (
        select(i.incarnation, i.reclaimed_seq)
        .where(of_tenant(incarnations, tenant), i.store_id == store_id)
        .order_by(i.incarnation)
    )
    with catalog.reading() as conn:
        return {row.incarnation: row.reclaimed_seq for row in conn.execute(query)}


def set_reclaimed(
    catalog: Catalog, tenant: Tenant, store_id: int, incarnation: int, seq: int, *, dispatcher_epoch: int
) -> bool:
    """Say that files at or below `seq` may be gone, before any is deleted. False when the caller does not dispatch this
    store any more or the incarnation does not exist. A value below what is recorded changes nothing."""
    with catalog.transaction() as conn:
        held = conn.execute(
            select(stores.c.dispatcher_epoch).where(_is_store(tenant, store_id)).with_for_update(read=True)
        ).scalar()
        if held != dispatcher_epoch:
            return False
        i = incarnations.c
        mine = and_(of_tenant(incarnations, tenant), i.store_id == store_id, i.incarnation == incarnation)
        known = conn.execute(select(i.reclaimed_seq).where(mine).with_for_update()).scalar()
        if known is not None and known < seq:
            conn.execute(incarnations.update().where(mine).values(reclaimed_seq=seq))
        return known is not None


def _is_store(tenant: Tenant, store_id: int) -> ColumnElement[bool]:
    return and_(of_tenant(stores, tenant), stores.c.store_id == store_id)


def _read(catalog: Catalog, *where: ColumnElement[bool]) -> list[StoreRow]:
    query = select(stores).where(*where).order_by(stores.c.cluster_id, stores.c.tenant_id, stores.c.store_id)
    with catalog.reading() as conn:
        return [_store_row(row) for row in conn.execute(query)]


def _store_row(row: Any) -> StoreRow:
    return StoreRow(
        tenant=tenant_of(row),
        store_id=row.store_id,
        incarnation=row.incarnation,
        max_cut_ts=row.max_cut_ts,
        dispatcher=row.dispatcher,
        dispatcher_epoch=row.dispatcher_epoch,
    )
