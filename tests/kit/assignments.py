"""Gives one task or one store to a worker, by the call with which the elected owner gives many."""

from __future__ import annotations

from contextlib import suppress

from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.tasks import Assignment
from tistream.catalog.work.stores import StoreAssignment, assign_stores
from tistream.catalog.work.tasks import assign_tasks, get_task
from tistream.errors import NotFound
from tistream.ids import Tenant


def assign_task(catalog: Catalog, task_id: int, *, worker_id: str, seen_epoch: int, leader_epoch: int) -> int | None:
    """The task's new epoch; None when it was not assigned."""
    tenant: Tenant | None = None
    with suppress(NotFound):  # that it is gone is for the call itself to notice
        tenant = get_task(catalog, task_id).tenant
    assignments = [Assignment(task_id, worker_id, seen_epoch, tenant)]
    return seen_epoch + 1 if assign_tasks(catalog, assignments, leader_epoch=leader_epoch) else None


def assign_store(
    catalog: Catalog, tenant: Tenant, store_id: int, *, worker_id: str, seen_epoch: int, leader_epoch: int
) -> int | None:
    """The store's new epoch; None when it was not assigned."""
    assignments = [StoreAssignment(tenant, store_id, worker_id, seen_epoch)]
    return seen_epoch + 1 if assign_stores(catalog, assignments, leader_epoch=leader_epoch) else None
