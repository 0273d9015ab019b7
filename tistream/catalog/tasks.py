"""Tasks: continuous key ranges of a tenant, the unit of ownership and of progress.

- `upper` never falls; only the owner with the newest `epoch` moves it (see `committed`).
- `epoch` rises by one with each assignment, also with "to nobody". It says who is right; leases only say when to
  take over.
- An assignment counts only while its author is still the elected owner: both epochs are tested in one transaction.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Select, and_, bindparam, case, func, or_, select, tuple_
from sqlalchemy.sql.elements import ColumnElement

from tistream.catalog.engine import Catalog
from tistream.catalog.events import EventKind, record_event
from tistream.catalog.tables import of_asked_tenant, of_tenant, owner, tasks, tenant_ids, tenant_of
from tistream.catalog.tenants import TaskKind
from tistream.catalog.workers import asked_life_lives
from tistream.errors import NotFound
from tistream.ids import Tenant
from tistream.keyrange import KeyRange

_TENANTS_NAMED_MAX = 500  # in one statement; beyond that it asks for all of them
_ERROR_CHARS_MAX = 8000  # a TEXT column holds 64 KiB of UTF-8


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRow:
    """A task as the catalog has it."""

    task_id: int
    tenant: Tenant
    kind: TaskKind
    range: KeyRange
    start_ts: int  #: the task's log is complete above this
    upper: int  #: everything at or below it is in the committed log
    epoch: int  #: rises with each assignment
    owner: str | None  #: worker id
    snapshot_key: str | None
    snapshot_n: int  #: number of the newest snapshot; 0 = none yet
    reopen_id: int  #: a pusher that sees a new one opens new tenures in the range
    error: str | None  #: why the task is stopped; None while it runs
    merge_with: int | None = None  #: the neighbour with which its owner is to merge it


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierRow:
    """How far one range is."""

    range: KeyRange
    upper: int
    reopen_id: int


_ALL = select(tasks).order_by(tasks.c.task_id)
_ONE = _ALL.where(tasks.c.task_id == bindparam("asked_task"))
_IS_SEEN = and_(tasks.c.task_id == bindparam("asked_task"), tasks.c.epoch == bindparam("seen_epoch"))
_SEEN = select(tasks).where(_IS_SEEN).with_for_update()
_GIVE = _STOP = _RETRY = tasks.update().where(_IS_SEEN)
_OF_TENANT = _ALL.where(of_asked_tenant(tasks))
_OF_WORKER = _ALL.where(tasks.c.owner == bindparam("asked_worker"), asked_life_lives())
_ELECTED = select(owner.c.epoch).where(owner.c.id == 1).with_for_update(read=True)
_FRONTIER = (
    select(tasks.c.start_key, tasks.c.end_key, tasks.c.upper, tasks.c.reopen_id)
    .where(of_asked_tenant(tasks))
    .order_by(tasks.c.start_key, tasks.c.task_id)
)


def list_tasks(catalog: Catalog, tenant: Tenant | None = None) -> list[TaskRow]:
    """The tasks of a tenant, or of all, ordered by id."""
    return _read(catalog, _ALL, {}) if tenant is None else _read(catalog, _OF_TENANT, tenant_ids(tenant))


def tasks_owned_by(catalog: Catalog, worker_id: str, incarnation: int) -> list[TaskRow]:
    """The tasks that are assigned to this life of the worker, ordered by id. None when a newer life has registered:
    an old one must never learn the epochs that fence it."""
    return _read(catalog, _OF_WORKER, {"asked_worker": worker_id, "asked_incarnation": incarnation})


def get_task(catalog: Catalog, task_id: int) -> TaskRow:
    """The task's row. NotFound when there is none."""
    found = _read(catalog, _ONE, {"asked_task": task_id})
    if not found:
        raise NotFound(f"there is no task {task_id}", task_id=task_id)
    return found[0]


def holds_ownership(conn: Connection, owner_epoch: int) -> bool:
    """Whether the election with this epoch is still in force, and keep it so until the transaction ends. Epoch 0
    is nobody's: it is the one before the first election."""
    return owner_epoch != 0 and conn.execute(_ELECTED).scalar() == owner_epoch


def assign_task(
    catalog: Catalog, task_id: int, *, worker_id: str | None, seen_epoch: int, owner_epoch: int
) -> int | None:
    """Give the task to a worker, or to nobody. Returns its new epoch; None when the caller lost: the task was assigned
    by somebody else since `seen_epoch`, or `owner_epoch` is not the elected owner's any more."""
    with catalog.transaction() as conn:
        if not holds_ownership(conn, owner_epoch):
            return None
        was = give_task(conn, task_id, worker_id, seen_epoch)
        if was is None:
            return None
        record_event(
            conn, EventKind.TASK_ASSIGNED, task_id, tenant=was.tenant,
            was=was.owner, to=worker_id, epoch=seen_epoch + 1, owner_epoch=owner_epoch,
        )  # fmt: skip
        return seen_epoch + 1


def give_task(conn: Connection, task_id: int, worker_id: str | None, seen_epoch: int) -> TaskRow | None:
    """Give the task its next epoch and this owner; the row as it was. None when its epoch is not `seen_epoch`."""
    seen = {"asked_task": task_id, "seen_epoch": seen_epoch}
    row = conn.execute(_SEEN, seen).one_or_none()
    if row is None:
        return None
    conn.execute(_GIVE, {**seen, "owner": worker_id, "epoch": seen_epoch + 1})
    return task_row(row)


def stop_task(catalog: Catalog, task_id: int, *, epoch: int, error: str) -> bool:
    """Record why the task cannot go on; it keeps its owner, progress and files. False when the epoch is stale."""
    with catalog.transaction() as conn:
        seen = {"asked_task": task_id, "seen_epoch": epoch}
        row = conn.execute(_SEEN, seen).one_or_none()
        if row is None:
            return False
        conn.execute(_STOP, {**seen, "error": error[:_ERROR_CHARS_MAX]})
        record_event(conn, EventKind.TASK_STOPPED, task_id, tenant=tenant_of(row), owner=row.owner, error=error)
        return True


def retry_task(catalog: Catalog, task_id: int, *, epoch: int, actor: str = "") -> bool:
    """Let a stopped task try again, with new tenures in its range. False when the epoch is stale."""
    with catalog.transaction() as conn:
        seen = {"asked_task": task_id, "seen_epoch": epoch}
        row = conn.execute(_SEEN, seen).one_or_none()
        if row is None:
            return False
        conn.execute(_RETRY, {**seen, "error": None, "reopen_id": row.reopen_id + 1})
        record_event(conn, EventKind.TASK_RETRIED, task_id, tenant=tenant_of(row), actor=actor, error=row.error)
        return True


def clear_task_error(catalog: Catalog, task_id: int) -> None:
    """Let a stopped task try again: the decision of a person."""
    with catalog.transaction() as conn:
        conn.execute(tasks.update().where(tasks.c.task_id == task_id).values(error=None))


def raise_reopen(catalog: Catalog, task_id: int, *, epoch: int) -> bool:
    """Ask the pushers for new tenures in the task's range. False when the epoch is stale."""
    return _update(catalog, task_id, epoch, reopen_id=tasks.c.reopen_id + 1)


def frontier(catalog: Catalog, tenant: Tenant) -> list[FrontierRow]:
    """How far each range of the tenant is, over all its tasks, in key order; empty before activation."""
    with catalog.reading() as conn:
        return [
            FrontierRow(range=KeyRange(start_key, end_key), upper=upper, reopen_id=reopen_id)
            for start_key, end_key, upper, reopen_id in conn.execute(_FRONTIER, tenant_ids(tenant))
        ]


def served_watermark(catalog: Catalog, tenant: Tenant, range: KeyRange | None = None) -> int:
    """What may be served of a key range: the lowest `upper` of the data tasks that intersect it and of all DDL tasks.

    0 when no data task intersects the range, hence before activation. It never falls: no `upper` does, and a paused
    tenant keeps its tasks.
    """
    wanted = range or KeyRange()
    is_data = tasks.c.kind == TaskKind.DATA
    with catalog.reading() as conn:
        lowest, data_tasks = conn.execute(
            select(func.min(tasks.c.upper), func.count(case((is_data, 1)))).where(
                of_tenant(tasks, tenant), or_(tasks.c.kind == TaskKind.DDL, _intersects(wanted))
            )
        ).one()
    return int(lowest) if data_tasks else 0


def served_watermarks(catalog: Catalog, tenants: Collection[Tenant]) -> dict[Tenant, int]:
    """`served_watermark` of several tenants by one statement; those without tasks are left out."""
    query = select(
        tasks.c.cluster_id,
        tasks.c.tenant_id,
        func.min(tasks.c.upper),
        func.count(case((tasks.c.kind == TaskKind.DATA, 1))),
    ).group_by(tasks.c.cluster_id, tasks.c.tenant_id)
    if len(tenants) <= _TENANTS_NAMED_MAX:
        ids = [(tenant.cluster_id, tenant.tenant_id) for tenant in tenants]
        query = query.where(tuple_(tasks.c.cluster_id, tasks.c.tenant_id).in_(ids))
    wanted = set(tenants)
    with catalog.reading() as conn:
        return {
            tenant: int(lowest) if data_tasks else 0
            for cluster_id, tenant_id, lowest, data_tasks in conn.execute(query)
            if (tenant := Tenant(int(cluster_id), int(tenant_id))) in wanted
        }


def _intersects(wanted: KeyRange) -> ColumnElement[bool]:
    above = or_(tasks.c.end_key == b"", tasks.c.end_key > wanted.start)
    return and_(above, tasks.c.start_key < wanted.end) if wanted.end else above


def _update(catalog: Catalog, task_id: int, epoch: int, **values: Any) -> bool:
    with catalog.transaction() as conn:
        changed = conn.execute(
            tasks.update().where(tasks.c.task_id == task_id, tasks.c.epoch == epoch).values(**values)
        )
        return changed.rowcount == 1


def _read(catalog: Catalog, query: Select[Any], asked: dict[str, Any]) -> list[TaskRow]:
    with catalog.reading() as conn:
        return [task_row(row) for row in conn.execute(query, asked)]


def task_row(row: Any) -> TaskRow:
    """A row of the table as a value."""
    return TaskRow(
        task_id=row.task_id,
        tenant=tenant_of(row),
        kind=TaskKind(row.kind),
        range=KeyRange(row.start_key, row.end_key),
        start_ts=row.start_ts,
        upper=row.upper,
        epoch=row.epoch,
        owner=row.owner,
        snapshot_key=row.snapshot_key,
        snapshot_n=row.snapshot_n,
        reopen_id=row.reopen_id,
        error=row.error,
        merge_with=row.merge_with,
    )
