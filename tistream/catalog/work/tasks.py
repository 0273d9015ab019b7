"""Tasks: contiguous key ranges of a tenant, the unit of ownership and of progress.

- `durable_ts` never falls; only the owner with the newest `epoch` moves it (see `committed`).
- `epoch` rises by one with each assignment, including removal of the owner. Epochs fence; leases only time takeovers.
- An assignment needs the leader's current epoch: both epochs are tested in one transaction.
- `tasks_stamp` repeats only while no task was added, removed or assigned: ids are never reused and epochs never fall:
  an equal count and largest id mean equal tasks, and an equal sum of epochs means equal owners.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Select, Update, and_, bindparam, case, exists, func, select, tuple_

from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_assignments, record_event
from tistream.catalog.database.records import record_of
from tistream.catalog.database.tables import (
    leader,
    of_asked_tenant,
    of_tenant,
    quarantines,
    tasks,
    tenant_ids,
    tenant_of,
    tenants,
)
from tistream.catalog.rows.tasks import Assignment, FrontierRow, TaskPlace, TaskRow
from tistream.catalog.rows.tenants import TaskKind, TenantState
from tistream.catalog.tenancy import served
from tistream.catalog.tenancy.served import Edge
from tistream.catalog.work.workers import is_newest_incarnation
from tistream.errors import NotFound
from tistream.ids import Tenant
from tistream.keyrange import KeyRange

_TENANTS_NAMED_MAX = 500  # in one statement; for more tenants it reads all
_ERROR_CHARS_MAX = 8000  # a TEXT column holds 64 KiB of UTF-8


_ALL = select(tasks).order_by(tasks.c.task_id)
_ONE = _ALL.where(tasks.c.task_id == bindparam("asked_task"))
_IS_SEEN = and_(tasks.c.task_id == bindparam("asked_task"), tasks.c.epoch == bindparam("seen_epoch"))
_SEEN = select(tasks).where(_IS_SEEN).with_for_update()
_FREE = (
    select(tasks.c.task_id, tasks.c.epoch)
    .where(tasks.c.task_id.in_(bindparam("asked_tasks", expanding=True)))
    .order_by(tasks.c.task_id)
    .with_for_update(skip_locked=True)
)
_GIVE = _STOP = _RETRY = tasks.update().where(_IS_SEEN)
_OF_TENANT = _ALL.where(of_asked_tenant(tasks))
_RUNS = exists().where(
    tenants.c.cluster_id == tasks.c.cluster_id,
    tenants.c.tenant_id == tasks.c.tenant_id,
    tenants.c.state == TenantState.ACTIVE,
)
_HELD_BY = tasks.c.owner == bindparam("asked_worker")
_OF_WORKER = _ALL.where(_HELD_BY, is_newest_incarnation(), _RUNS)
_OWNED_STAMP = (
    select(
        func.count(),
        func.sum(tasks.c.task_id),
        func.sum(tasks.c.epoch),
        func.sum(tasks.c.task_id * tasks.c.epoch),
        func.sum(case((tasks.c.error.is_not(None), tasks.c.task_id))),
        func.sum(tasks.c.task_id * tasks.c.merge_with),
    )
    .select_from(tasks)
    .where(_HELD_BY, is_newest_incarnation(), _RUNS)
)
_COUNT_OF_WORKER = select(func.count()).select_from(tasks).where(_HELD_BY)
_ELECTED = select(leader.c.epoch).where(leader.c.id == 1).with_for_update(read=True)
_PLACES = select(
    tasks.c.task_id, tasks.c.cluster_id, tasks.c.tenant_id, tasks.c.kind, tasks.c.epoch, tasks.c.owner
).order_by(tasks.c.task_id)
_STAMP = select(func.count(), func.max(tasks.c.task_id), func.sum(tasks.c.epoch)).select_from(tasks)
_FRONTIER = (
    select(tasks.c.start_key, tasks.c.end_key, tasks.c.durable_ts, tasks.c.resubscribe_id)
    .where(of_asked_tenant(tasks))
    .order_by(tasks.c.start_key, tasks.c.task_id)
)


def list_tasks(catalog: Catalog, tenant: Tenant | None = None) -> list[TaskRow]:
    """The tasks of a tenant, or of all, ordered by id."""
    return _read(catalog, _ALL, {}) if tenant is None else _read(catalog, _OF_TENANT, tenant_ids(tenant))


def tasks_of_tenants(catalog: Catalog, tenants: Collection[Tenant]) -> list[TaskRow]:
    """The tasks of several tenants, by tenant and id; one statement per _TENANTS_NAMED_MAX tenants."""
    wanted, rows = sorted(tenants), list[TaskRow]()
    for at in range(0, len(wanted), _TENANTS_NAMED_MAX):
        ids = [(tenant.cluster_id, tenant.tenant_id) for tenant in wanted[at : at + _TENANTS_NAMED_MAX]]
        query = select(tasks).where(tuple_(tasks.c.cluster_id, tasks.c.tenant_id).in_(ids))
        rows += _read(catalog, query.order_by(tasks.c.cluster_id, tasks.c.tenant_id, tasks.c.task_id), {})
    return rows


def tasks_owned_by(catalog: Catalog, worker_id: str, incarnation: int) -> list[TaskRow]:
    """The tasks of ACTIVE tenants assigned to this incarnation of the worker, by id. Empty when a newer one has
    registered: an old incarnation must never learn the epochs that fence it."""
    return _read(catalog, _OF_WORKER, {"asked_worker": worker_id, "asked_incarnation": incarnation})


def owned_stamp(catalog: Catalog, worker_id: str, incarnation: int) -> tuple[int, ...]:
    """Changes when `tasks_owned_by` returns other tasks, epochs, errors or merges; not with their progress. Collisions
    are very unlikely, not impossible: callers also reread periodically."""
    with catalog.reading() as conn:
        parameters = {"asked_worker": worker_id, "asked_incarnation": incarnation}
        return tuple(int(number or 0) for number in conn.execute(_OWNED_STAMP, parameters).one())


def count_tasks_of(catalog: Catalog, worker_id: str) -> int:
    """The number of tasks assigned to this id, including those of paused tenants."""
    with catalog.reading() as conn:
        return int(conn.execute(_COUNT_OF_WORKER, {"asked_worker": worker_id}).scalar_one())


def get_task(catalog: Catalog, task_id: int) -> TaskRow:
    """The task. NotFound when it does not exist."""
    rows = _read(catalog, _ONE, {"asked_task": task_id})
    if not rows:
        raise NotFound(f"task {task_id} not found", task_id=task_id)
    return rows[0]


def holds_leadership(conn: Connection, leader_epoch: int) -> bool:
    """Whether this is the leader's epoch; locks the election until the transaction ends. Epoch 0, before the first
    election, is never valid."""
    return leader_epoch != 0 and conn.execute(_ELECTED).scalar() == leader_epoch


def give_task(conn: Connection, task_id: int, worker_id: str, seen_epoch: int) -> TaskRow | None:
    """Set this owner and the next epoch; the previous row. None when its epoch is not `seen_epoch`."""
    seen = {"asked_task": task_id, "seen_epoch": seen_epoch}
    row = conn.execute(_SEEN, seen).one_or_none()
    if row is None:
        return None
    conn.execute(_GIVE, {**seen, "owner": worker_id, "epoch": seen_epoch + 1})
    return task_row(row)


def task_places(catalog: Catalog) -> list[TaskPlace]:
    """The owner of each task of all tenants, by id."""
    kinds = {str(kind): kind for kind in TaskKind}
    known: dict[tuple[int, int], Tenant] = {}
    with catalog.reading() as conn:
        return [
            TaskPlace(
                task_id, known.setdefault((cluster, tenant), Tenant(cluster, tenant)), kinds[kind], epoch, owned_by
            )
            for task_id, cluster, tenant, kind, epoch, owned_by in conn.execute(_PLACES)
        ]


def tasks_stamp(catalog: Catalog) -> tuple[int, ...]:
    """Changes when a task is added, removed or assigned."""
    with catalog.reading() as conn:
        return tuple(int(number or 0) for number in conn.execute(_STAMP).one())


def assign_tasks(catalog: Catalog, assignments: Sequence[Assignment], *, leader_epoch: int) -> int:
    """Assign tasks to workers in one transaction, each by its own guard; the number assigned. 0 when `leader_epoch` is
    not the leader's.

    Rows locked by a flush or a lost host are skipped until the next call, so they delay no other task. The number of
    statements does not depend on the number of tasks."""
    if not assignments:
        return 0
    assignment_of = {a.task_id: a for a in assignments}
    with catalog.transaction() as conn:
        if not holds_leadership(conn, leader_epoch):
            return 0
        rows = conn.execute(_FREE, {"asked_tasks": sorted(assignment_of)})
        given = [assignment_of[task_id] for task_id, epoch in rows if assignment_of[task_id].seen_epoch == epoch]
        if given:
            conn.execute(_assigning(given))
            assigned = [(a.task_id, a.tenant, a.worker_id) for a in given]
            record_assignments(conn, EventKind.TASK_ASSIGNED, assigned, leader_epoch=leader_epoch)
        return len(given)


def _assigning(given: Sequence[Assignment]) -> Update:
    owners = case({a.task_id: a.worker_id for a in given}, value=tasks.c.task_id)
    ids = [a.task_id for a in given]
    return tasks.update().where(tasks.c.task_id.in_(ids)).values(owner=owners, epoch=tasks.c.epoch + 1)


def stop_task(catalog: Catalog, task_id: int, *, epoch: int, error: str) -> bool:
    """Stop the task with this error; it keeps its owner, progress and files. False when the epoch is stale."""
    with catalog.transaction() as conn:
        seen = {"asked_task": task_id, "seen_epoch": epoch}
        row = conn.execute(_SEEN, seen).one_or_none()
        if row is None:
            return False
        conn.execute(_STOP, {**seen, "error": error[:_ERROR_CHARS_MAX]})
        record_event(conn, EventKind.TASK_STOPPED, task_id, tenant=tenant_of(row), owner=row.owner, error=error)
        return True


def retry_task(catalog: Catalog, task_id: int, *, epoch: int, actor: str = "") -> bool:
    """Restart a stopped task and resubscribe its range. False when the epoch is stale."""
    with catalog.transaction() as conn:
        seen = {"asked_task": task_id, "seen_epoch": epoch}
        row = conn.execute(_SEEN, seen).one_or_none()
        if row is None:
            return False
        conn.execute(_RETRY, {**seen, "error": None, "resubscribe_id": row.resubscribe_id + 1})
        record_event(conn, EventKind.TASK_RETRIED, task_id, tenant=tenant_of(row), actor=actor, error=row.error)
        return True


def raise_resubscribe(catalog: Catalog, task_id: int, *, epoch: int) -> bool:
    """Ask the pushers to resubscribe the task's range. False when the epoch is stale."""
    return _update(catalog, task_id, epoch, resubscribe_id=tasks.c.resubscribe_id + 1)


def frontier(catalog: Catalog, tenant: Tenant) -> list[FrontierRow]:
    """The progress of all tasks of the tenant, in key order; empty before activation."""
    with catalog.reading() as conn:
        return [
            FrontierRow(range=KeyRange(start_key, end_key), durable_ts=durable_ts, resubscribe_id=resubscribe_id)
            for start_key, end_key, durable_ts, resubscribe_id in conn.execute(_FRONTIER, tenant_ids(tenant))
        ]


def served_edge(catalog: Catalog, tenant: Tenant) -> Edge:
    """Up to where the log may be read: the lowest `durable_ts` of all tasks, or less while a store of the tenant is
    quarantined.

    0 without a data task, as before activation. It falls only when a quarantine begins: no `durable_ts` does, and a
    paused tenant keeps its tasks.
    """
    edge = served.limits(of_tasks=of_tenant(tasks, tenant), of_stores=of_tenant(quarantines, tenant))
    with catalog.reading() as conn:
        return served.edge_of(conn.execute(select(*served.edge_columns(edge))).one())


def served_watermark(catalog: Catalog, tenant: Tenant) -> int:
    """The timestamp of `served_edge`."""
    return served_edge(catalog, tenant).ts


def served_edges(catalog: Catalog, tenants: Collection[Tenant]) -> dict[Tenant, Edge]:
    """`served_edge` of several tenants in one statement; tenants without tasks are missing."""
    wanted = set(tenants)
    edges = served.limits()
    if len(wanted) <= _TENANTS_NAMED_MAX:
        ids = [(tenant.cluster_id, tenant.tenant_id) for tenant in wanted]
        edges = served.limits(
            of_tasks=tuple_(tasks.c.cluster_id, tasks.c.tenant_id).in_(ids),
            of_stores=tuple_(quarantines.c.cluster_id, quarantines.c.tenant_id).in_(ids),
        )
    c = edges.c
    query = select(c.cluster_id, c.tenant_id, *served.edge_columns(edges)).group_by(c.cluster_id, c.tenant_id)
    with catalog.reading() as conn:
        return {tenant: served.edge_of(row) for row in conn.execute(query) if (tenant := tenant_of(row)) in wanted}


def _update(catalog: Catalog, task_id: int, epoch: int, **values: Any) -> bool:
    with catalog.transaction() as conn:
        changed = conn.execute(
            tasks.update().where(tasks.c.task_id == task_id, tasks.c.epoch == epoch).values(**values)
        )
        return changed.rowcount == 1


def _read(catalog: Catalog, query: Select[Any], parameters: dict[str, Any]) -> list[TaskRow]:
    with catalog.reading() as conn:
        return [task_row(row) for row in conn.execute(query, parameters)]


def task_row(row: Any) -> TaskRow:
    """Convert a row of the table."""
    return record_of(
        TaskRow, row, tenant=tenant_of(row), kind=TaskKind(row.kind), range=KeyRange(row.start_key, row.end_key)
    )
