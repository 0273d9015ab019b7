"""Hands a tenant's tasks to a replay, and commits its results.

    take_tasks   owner and epoch of each task, in one transaction: later writes of its sorter are refused
    hand_over    `durable_ts`, objects, segments, snapshot and positions of one task, all or nothing

A replay is a worker with an incarnation and a lease, like a sorter. It needs no election: assignments decided before
the tasks were taken carry an old epoch. When the replay ends or its lease expires, the tasks are assigned again under
new epochs, and a replay that still runs is refused.

Of a paused tenant neither has an effect: its log is not written.

A partial hand-over (a flush without its snapshot) would be correct, since it is replayed, but a reader of the catalog
could not tell whether the work is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from sqlalchemy import Connection, select

from tistream.catalog.database.engine import Catalog, GuardFailed
from tistream.catalog.database.tables import of_asked_tenant, of_tenant, tasks, tenant_ids, tenants, workers
from tistream.catalog.log.committed import TaskAdvance, flush_in
from tistream.catalog.log.snapshots import NewSnapshot, switch_in
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.work.tasks import list_tasks
from tistream.errors import Fenced, StateForbids
from tistream.ids import Tenant

_STATE = select(tenants.c.state).where(of_asked_tenant(tenants)).with_for_update(read=True)


def take_tasks(catalog: Catalog, tenant: Tenant, worker_id: str, incarnation: int) -> list[TaskRow]:
    """Make this incarnation of a worker the owner of the tenant's running tasks; the tasks, by id.

    Fenced when a newer incarnation has registered; StateForbids when the tenant is paused."""
    with catalog.transaction() as conn:
        _check_not_paused(conn, tenant)
        newest = select(workers.c.incarnation).where(workers.c.worker_id == worker_id).with_for_update(read=True)
        if conn.execute(newest).scalar() != incarnation:
            raise Fenced("another replay of this tenant has started", worker_id=worker_id, incarnation=incarnation)
        conn.execute(
            tasks.update()
            .where(of_tenant(tasks, tenant), tasks.c.error.is_(None))
            .values(owner=worker_id, epoch=tasks.c.epoch + 1)
        )
    return [row for row in list_tasks(catalog, tenant) if row.owner == worker_id and row.error is None]


def hand_over(
    catalog: Catalog, tenant: Tenant, *, objects: Mapping[str, int], advance: TaskAdvance, snapshot: NewSnapshot
) -> bool:
    """Advance a task: `commit_flush` and `switch_snapshot` in one transaction.

    With `new_durable_ts == seen_durable_ts` only the state is switched. False, without effect, when a guard does not
    match. Fenced when an object was collected as an orphan meanwhile; StateForbids when the tenant is paused.
    """
    with suppress(GuardFailed), catalog.transaction() as conn:
        _check_not_paused(conn, tenant)
        if advance.new_durable_ts != advance.seen_durable_ts and not flush_in(conn, tenant, objects, [advance]):
            raise GuardFailed
        if not switch_in(conn, advance.task_id, advance.epoch, snapshot):
            raise GuardFailed
        return True
    return False


def _check_not_paused(conn: Connection, tenant: Tenant) -> None:
    """Until the end of the transaction it stays so."""
    if conn.execute(_STATE, tenant_ids(tenant)).scalar() == TenantState.PAUSED:
        raise StateForbids(
            f"Tenant {tenant} is paused: its backlog is not replayed. Resume it first: tistream tenant resume.",
            tenant=tenant,
        )
