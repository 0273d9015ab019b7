"""Moves a task to a sorter that an operator names.

Any process may request a move. It uses the same guard as the leader's assignments: in one transaction the task's epoch
rises by one from the value seen, while the election and the receiver's row are locked. The leader then finds a task
with a live owner and leaves it there.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import bindparam, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_event
from tistream.catalog.database.tables import leader, tasks, workers
from tistream.catalog.rows.workers import WorkerKind, WorkerState
from tistream.catalog.work.tasks import give_task
from tistream.errors import StateForbids
from tistream.limits import LEASE_MS

_ELECTED = select(leader.c.epoch).where(leader.c.id == 1).with_for_update(read=True)
_RECEIVER = (
    select(workers.c.kind, workers.c.state, workers.c.heartbeat_ms, now_ms().label("now_ms"))
    .where(workers.c.worker_id == bindparam("asked_worker"))
    .with_for_update(read=True)
)
_HOLDER = (
    select(workers.c.kind, workers.c.state, workers.c.heartbeat_ms, now_ms().label("now_ms"))
    .select_from(tasks.join(workers, workers.c.worker_id == tasks.c.owner))
    .where(tasks.c.task_id == bindparam("asked_task"))
)


def move_task(catalog: Catalog, task_id: int, *, worker_id: str, seen_epoch: int, actor: str = "") -> int | None:
    """Assign the task to this sorter; its new epoch, or None when it was reassigned since `seen_epoch`. StateForbids
    when the sorter is not up with a recent heartbeat, or a live replay holds the task."""
    with catalog.transaction() as conn:
        leader_epoch = int(conn.execute(_ELECTED).scalar_one())
        to = conn.execute(_RECEIVER, {"asked_worker": worker_id}).one_or_none()
        if to is None or to.kind != WorkerKind.SORTER:
            raise StateForbids(f"Sorter '{worker_id}' not found.", worker_id=worker_id)
        if to.state != WorkerState.UP or _is_suspected(to):
            raise StateForbids(f"Sorter {worker_id} is not up and cannot be assigned tasks.", worker_id=worker_id)
        held = conn.execute(_HOLDER, {"asked_task": task_id}).one_or_none()
        if held is not None and held.kind == WorkerKind.REPLAY and not _is_suspected(held):
            raise StateForbids("A replay holds this task until it ends.", task_id=task_id)
        was = give_task(conn, task_id, worker_id, seen_epoch)
        if was is None:
            return None
        record_event(
            conn, EventKind.TASK_MOVED, task_id, tenant=was.tenant, actor=actor,
            was=was.owner, to=worker_id, epoch=seen_epoch + 1, leader_epoch=leader_epoch,
        )  # fmt: skip
        return seen_epoch + 1


def _is_suspected(worker: Any) -> bool:
    return bool(abs(worker.now_ms - worker.heartbeat_ms) > LEASE_MS)  # in the future: the clock was set back
