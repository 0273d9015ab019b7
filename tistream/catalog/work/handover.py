"""A tenant's tasks in the hands of a replay: taken from their sorters, and handed over further on.

    take_tasks   owner and epoch of each task in one transaction: whatever its sorter still tries is refused hand_over
    `durable_ts`, the log's objects and segments, the snapshot and its positions: of one task, all or nothing

A replay is a worker with a life and a lease like a sorter. It needs no election: an assignment that was decided
before the tasks were taken carries an epoch that is gone. When the replay has ended or its lease has run out, the
tasks are assigned again as those of any worker, under new epochs, and a replay that goes on nevertheless is refused.

A transaction that took place only in part would be right as well (a flush without its snapshot is replayed), but a
reader of the catalog could not tell whether the work is done.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from sqlalchemy import select

from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import of_tenant, tasks, workers
from tistream.catalog.log.committed import TaskAdvance, flush_in
from tistream.catalog.log.snapshots import NewSnapshot, switch_in
from tistream.catalog.work.tasks import TaskRow, list_tasks
from tistream.errors import Fenced
from tistream.ids import Tenant


def take_tasks(catalog: Catalog, tenant: Tenant, worker_id: str, incarnation: int) -> list[TaskRow]:
    """Make this life of a worker the owner of all tasks of the tenant that are not stopped; the tasks, by id.

    Fenced when a newer life of the worker has registered."""
    with catalog.transaction() as conn:
        newest = select(workers.c.incarnation).where(workers.c.worker_id == worker_id).with_for_update(read=True)
        if conn.execute(newest).scalar() != incarnation:
            raise Fenced("another replay of this tenant has begun", worker_id=worker_id, incarnation=incarnation)
        conn.execute(
            tasks.update()
            .where(of_tenant(tasks, tenant), tasks.c.error.is_(None))
            .values(owner=worker_id, epoch=tasks.c.epoch + 1)
        )
    return [row for row in list_tasks(catalog, tenant) if row.owner == worker_id and row.error is None]


def hand_over(
    catalog: Catalog, tenant: Tenant, *, objects: Mapping[str, int], advance: TaskAdvance, snapshot: NewSnapshot
) -> bool:
    """Move a task on: its log as `commit_flush` does and its state as `switch_snapshot` does, in one transaction.

    An `advance` whose `new_durable_ts` is its `seen_durable_ts` moves the state alone. False, and nothing happened,
    when either guard did not match. Fenced when an object was given up as an orphan meanwhile.
    """
    with suppress(_Refused), catalog.transaction() as conn:
        if advance.new_durable_ts != advance.seen_durable_ts and not flush_in(conn, tenant, objects, [advance]):
            raise _Refused
        if not switch_in(conn, advance.task_id, advance.epoch, snapshot):
            raise _Refused
        return True
    return False


class _Refused(Exception):
    """The task is somebody else's: nothing happens."""
