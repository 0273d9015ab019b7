"""Pages and counts of tasks, for screens and lists of 100,000 of them.

Pages continue after an immutable key (`task_id`, or the start of a range): a page costs one index range however far it
is from the first, and a created or deleted task moves no other to another page.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlalchemy import and_, case, exists, func, or_, select
from sqlalchemy.sql.elements import ColumnElement

from tistream.catalog.database.columns import WORKER_NAME_MAX
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.names import is_name
from tistream.catalog.database.tables import of_tenant, stores, tasks, tenants
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.tenants import TaskKind, TenantState
from tistream.catalog.work.tasks import task_row
from tistream.ids import Tenant


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCounts:
    """The number of tasks by state."""

    total: int
    stopped: int
    waiting: int  #: without an owner


def page_tasks(
    catalog: Catalog,
    *,
    limit: int,
    after_id: int = 0,
    tenant: Tenant | None = None,
    owner: str | None = None,
    stopped: bool = False,
) -> list[TaskRow]:
    """The next `limit` tasks by id, optionally of one tenant, of one owner, or only stopped ones."""
    if owner is not None and not is_name(owner, WORKER_NAME_MAX):
        return []  # not a valid worker name
    conditions: list[ColumnElement[bool]] = [tasks.c.task_id > after_id]
    if tenant is not None:
        conditions.append(of_tenant(tasks, tenant))
    if owner is not None:
        conditions.append(tasks.c.owner == owner)
    if stopped:
        conditions.append(tasks.c.error.is_not(None))
    with catalog.reading() as conn:
        rows = conn.execute(select(tasks).where(*conditions).order_by(tasks.c.task_id).limit(limit))
        return [task_row(row) for row in rows]


def page_ranges(
    catalog: Catalog, tenant: Tenant, *, limit: int, after: tuple[bytes, int] | None = None
) -> list[TaskRow]:
    """The next `limit` tasks of a tenant in key order; `after` is (start_key, task_id) of the last one seen."""
    conditions = [of_tenant(tasks, tenant)]
    if after is not None:
        key, task_id = after
        same = and_(tasks.c.start_key == key, tasks.c.task_id > task_id)
        conditions.append(or_(tasks.c.start_key > key, same))
    with catalog.reading() as conn:
        rows = conn.execute(select(tasks).where(*conditions).order_by(tasks.c.start_key, tasks.c.task_id).limit(limit))
        return [task_row(row) for row in rows]


def neighbours(catalog: Catalog, row: TaskRow) -> list[TaskRow]:
    """The running data tasks (at most two, in key order) with which a data task may be merged: those that adjoin it."""
    if row.kind is not TaskKind.DATA or row.error is not None:
        return []
    edges = []
    if row.range.start:
        edges.append(tasks.c.end_key == row.range.start)
    if row.range.end:
        edges.append(tasks.c.start_key == row.range.end)
    if not edges:
        return []
    alike = and_(of_tenant(tasks, row.tenant), tasks.c.kind == TaskKind.DATA, tasks.c.start_ts == row.start_ts)
    with catalog.reading() as conn:
        rows = conn.execute(
            select(tasks).where(alike, tasks.c.error.is_(None), or_(*edges)).order_by(tasks.c.start_key)
        )
        return [task_row(each) for each in rows]


def count_tasks(catalog: Catalog, tenant: Tenant | None = None) -> TaskCounts:
    """Count the tasks of a tenant, or of all."""
    query = select(
        func.count(),
        func.count(case((tasks.c.error.is_not(None), 1))),
        func.count(case((and_(tasks.c.owner.is_(None), tasks.c.error.is_(None)), 1))),
    ).select_from(tasks)
    if tenant is not None:
        query = query.where(of_tenant(tasks, tenant))
    with catalog.reading() as conn:
        total, stopped, waiting = conn.execute(query).one()
        return TaskCounts(total=total, stopped=stopped, waiting=waiting)


def tasks_per_owner(catalog: Catalog) -> Mapping[str, int]:
    """Worker id -> number of tasks that it owns."""
    with catalog.reading() as conn:
        counts = conn.execute(
            select(tasks.c.owner, func.count()).where(tasks.c.owner.is_not(None)).group_by(tasks.c.owner)
        )
        return {str(owner): int(count) for owner, count in counts}


def stores_per_dispatcher(catalog: Catalog) -> Mapping[str, int]:
    """Worker id -> number of stores that it dispatches."""
    dispatcher = stores.c.dispatcher
    with catalog.reading() as conn:
        counts = conn.execute(select(dispatcher, func.count()).where(dispatcher.is_not(None)).group_by(dispatcher))
        return {str(worker): int(count) for worker, count in counts}


def tasks_by_id(catalog: Catalog, task_ids: Collection[int]) -> list[TaskRow]:
    """The existing tasks among these ids, ordered by id."""
    with catalog.reading() as conn:
        rows = conn.execute(select(tasks).where(tasks.c.task_id.in_(task_ids)).order_by(tasks.c.task_id))
        return [task_row(row) for row in rows]


def idle_tasks(
    catalog: Catalog, *, limit: int, tenant: Tenant | None = None, resting: Collection[TenantState] = ()
) -> list[TaskRow]:
    """Up to `limit` tasks by id that are stopped, or have no owner and a tenant in none of the `resting` states."""
    rests = exists().where(
        tenants.c.cluster_id == tasks.c.cluster_id,
        tenants.c.tenant_id == tasks.c.tenant_id,
        tenants.c.state.in_(resting),
    )
    unowned = and_(tasks.c.owner.is_(None), ~rests)
    conditions: list[ColumnElement[bool]] = [or_(tasks.c.error.is_not(None), unowned)]
    if tenant is not None:
        conditions.append(of_tenant(tasks, tenant))
    with catalog.reading() as conn:
        rows = conn.execute(select(tasks).where(*conditions).order_by(tasks.c.task_id).limit(limit))
        return [task_row(row) for row in rows]
