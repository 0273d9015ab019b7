"""Splits and merges tasks: replaces their rows in one transaction.

    split_task      [a, z)            ->  [a, key), [key, z)     at any time, by any caller that knows the newest epoch
    request_merge   two neighbours of one owner, each names the other
    merge_tasks     [a, m), [m, z)    ->  [a, z)                 by that owner, once both are aligned

New tasks have new ids, and the old rows are deleted with their epochs: no later guard of a flush, snapshot or hand-over
matches them. Readers see no change: each key has the same `durable_ts`, `start_ts` and protected batch files before and
after, and segments carry key ranges.

- A part inherits `durable_ts`, `start_ts`, `resubscribe_id`, error, owner, snapshot and positions. It loads its range
  from the snapshot; both parts refer to the objects. Positions are those of the snapshot, so the batch files that a
  part reads again still exist, and the part protects them from the first moment.
- A merged task has the common `durable_ts`, and a state that its owner has merged. Its positions are at or behind those
  of the halves' snapshots.
- Tasks held by a replay and DDL tasks are never split or merged.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, select

from tistream.catalog.database.engine import Catalog, GuardFailed
from tistream.catalog.database.events import EventKind, record_event
from tistream.catalog.database.tables import next_numbers, snapshot_objects, tasks, tenant_of, workers
from tistream.catalog.log.objects import ObjectKind, insert_all_live, release
from tistream.catalog.log.snapshots import NewSnapshot, add_positions, drop_positions, positions_in
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.tenants import TaskKind
from tistream.catalog.rows.workers import WorkerKind
from tistream.catalog.work.tasks import holds_leadership, task_row
from tistream.errors import InvalidInput, NotFound, invariant
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.model.positions import Positions, first_regression


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """A task to be merged, as its owner knows it."""

    task_id: int
    epoch: int
    durable_ts: int
    snapshot_no: int  #: of the newest snapshot that the owner has switched to or loaded


_r, _t = snapshot_objects.c, tasks.c
_LOCK = tasks.update().where(_t.task_id == bindparam("asked_task")).values(epoch=_t.epoch)
_ROW = select(tasks).where(_t.task_id == bindparam("asked_task"))
_REPLAYS = select(workers.c.worker_id).where(
    workers.c.worker_id.in_(bindparam("asked_workers", expanding=True)), workers.c.kind == WorkerKind.REPLAY
)
_REFERS = select(_r.object_key).where(_r.task_id == bindparam("asked_task")).order_by(_r.object_key)
_DROP_TASK = tasks.delete().where(_t.task_id == bindparam("asked_task"))
_WITHDRAW = (
    tasks.update()
    .where(_t.task_id == bindparam("asked_task"), _t.merge_with == bindparam("asked_other"))
    .values(merge_with=None)
)
_MERGING = select(_t.cluster_id, _t.tenant_id).where(_t.merge_with.is_not(None)).distinct()
_GIVE = tasks.update().where(_t.task_id == bindparam("asked_task"))


def split_task(
    catalog: Catalog, task_id: int, key: bytes, *, seen_epoch: int, leader_epoch: int | None = None, actor: str = ""
) -> tuple[int, int] | None:
    """Replace a task by two, below `key` and from `key` on; their ids, in key order.

    None when the caller lost: the task was reassigned since `seen_epoch`, a replay holds it, or `leader_epoch` is not
    the leader's (None: an operator's request, no election). NotFound when the task does not exist; InvalidInput when
    the key is not inside its range, or is its start, or it is a DDL task.
    """
    with suppress(GuardFailed), catalog.transaction() as conn:
        _check_election(conn, leader_epoch)
        (row,) = _locked(conn, task_id)
        if key not in row.range or key == row.range.start:
            raise InvalidInput(
                "split key must lie inside the task's range, above its start",
                task_id=task_id,
                key=key.hex(),
                range=str(row.range),
            )
        _check_kind(row)
        if row.epoch != seen_epoch:
            raise GuardFailed
        _check_replays(conn, row)
        parts = KeyRange(row.range.start, key), KeyRange(key, row.range.end)
        low, high = next_numbers(conn, "task", 2)
        _add_task(conn, low, row, range_=parts[0], epoch=row.epoch + 1)
        _add_task(conn, high, row, range_=parts[1], epoch=row.epoch + 1)
        positions, refers = positions_in(conn, task_id), _refers(conn, task_id)
        for part in (low, high):
            _add_state(conn, part, positions, refers)
        _withdraw(conn, row)
        _drop(conn, task_id, refers)
        at = {"key": key.hex(), "parts": [low, high]}
        record_event(conn, EventKind.TASK_SPLIT, task_id, tenant=row.tenant, actor=actor, **at)
        return low, high
    return None


def request_merge(
    catalog: Catalog,
    left_id: int,
    right_id: int,
    *,
    seen_epochs: tuple[int, int],
    leader_epoch: int | None = None,
    actor: str = "",
) -> bool:
    """Ask the owner of the left task (of the right one, when the left has none) to merge two neighbours.

    That worker becomes the owner of both and merges them when they are aligned. Until then each row names the other in
    `merge_with`. Repeating the request is harmless; it reunites tasks that were assigned apart. An event records the
    `actor`.

    False when the caller lost: see `split_task`. NotFound; InvalidInput unless both are running data tasks of one
    tenant that adjoin and have one `start_ts`.
    """
    with suppress(GuardFailed), catalog.transaction() as conn:
        _check_election(conn, leader_epoch)
        left, right = _locked(conn, left_id, right_id)
        _check_neighbours(left, right)
        if (left.epoch, right.epoch) != seen_epochs:
            raise GuardFailed
        _check_replays(conn, left, right)
        owner = left.owner or right.owner
        for row, other in ((left, right_id), (right, left_id)):
            if row.merge_with != other:
                _withdraw(conn, row)
            moved = {} if row.owner == owner else {"owner": owner, "epoch": row.epoch + 1}
            conn.execute(_GIVE, {"asked_task": row.task_id, "merge_with": other, **moved})
        if actor:
            asked = {"right": right_id, "to": owner}
            record_event(conn, EventKind.TASK_MERGE_ASKED, left_id, tenant=left.tenant, actor=actor, **asked)
        return True
    return False


def cancel_merge(catalog: Catalog, task_id: int, *, seen_epoch: int, leader_epoch: int | None = None) -> bool:
    """Withdraw a merge request from both rows. False when the caller lost: see `split_task`. NotFound when the task
    does not exist."""
    with suppress(GuardFailed), catalog.transaction() as conn:
        _check_election(conn, leader_epoch)
        (row,) = _locked(conn, task_id)
        if row.epoch != seen_epoch:
            raise GuardFailed
        _withdraw(conn, row)
        conn.execute(_GIVE, {"asked_task": task_id, "merge_with": None})
        return True
    return False


def merging_tenants(catalog: Catalog) -> frozenset[Tenant]:
    """The tenants with requested merges."""
    with catalog.reading() as conn:
        return frozenset(tenant_of(row) for row in conn.execute(_MERGING))


def merge_tasks(catalog: Catalog, left: Half, right: Half, snapshot: NewSnapshot) -> int | None:
    """Replace two tasks by one; its id. `snapshot` is its state; `snapshot.keeps` are objects of the halves' snapshots.

    None, without effect, when the owner lost: a half has another epoch, `durable_ts` or snapshot than it knows, no
    longer exists, is no longer to be merged with the other, or does not refer to an object in `keeps`. Fenced when a
    new key already has a row.
    """
    invariant(left.durable_ts == right.durable_ts, "halves of one durable watermark are merged", left=left, right=right)
    with suppress(GuardFailed, NotFound), catalog.transaction() as conn:
        rows = _locked(conn, left.task_id, right.task_id)
        for row, half, other in zip(rows, (left, right), (right, left), strict=True):
            seen = (half.epoch, half.durable_ts, half.snapshot_no, other.task_id)
            if (row.epoch, row.durable_ts, row.snapshot_no, row.merge_with) != seen:
                raise GuardFailed
        _check_neighbours(*rows)
        refers = [_refers(conn, row.task_id) for row in rows]
        if not snapshot.keeps <= refers[0].union(refers[1]):
            raise GuardFailed
        for row in rows:
            _check_positions(row.task_id, positions_in(conn, row.task_id), snapshot.positions)
        (task_id,) = next_numbers(conn, "task", 1)
        _add_task(
            conn,
            task_id,
            rows[0],
            range_=KeyRange(rows[0].range.start, rows[1].range.end),
            epoch=max(row.epoch for row in rows) + 1,
            snapshot_key=snapshot.key,
            snapshot_no=snapshot.n,
            resubscribe_id=max(row.resubscribe_id for row in rows),
        )
        insert_all_live(conn, rows[0].tenant, snapshot.objects, ObjectKind.SNAPSHOT)
        _add_state(conn, task_id, snapshot.positions, snapshot.keeps | snapshot.objects.keys())
        for row, of_row in zip(rows, refers, strict=True):
            _drop(conn, row.task_id, of_row)
        halves = [left.task_id, right.task_id]
        record_event(conn, EventKind.TASK_MERGED, task_id, tenant=rows[0].tenant, halves=halves, owner=rows[0].owner)
        return task_id
    return None


def _check_election(conn: Connection, leader_epoch: int | None) -> None:
    if leader_epoch is not None and not holds_leadership(conn, leader_epoch):
        raise GuardFailed


def _locked(conn: Connection, *task_ids: int) -> list[TaskRow]:
    """The rows in the given order, locked until the transaction ends. Locks are taken by id, as flushes do."""
    rows: dict[int, TaskRow] = {}
    for task_id in sorted(task_ids):
        parameters = {"asked_task": task_id}
        conn.execute(_LOCK, parameters)  # changes nothing
        row = conn.execute(_ROW, parameters).first()
        if row is None:
            raise NotFound(f"task {task_id} not found", task_id=task_id)
        rows[task_id] = task_row(row)
    return [rows[task_id] for task_id in task_ids]


def _check_kind(row: TaskRow) -> None:
    if row.kind is not TaskKind.DATA:
        raise InvalidInput("DDL tasks are never split or merged", task_id=row.task_id)


def _check_neighbours(left: TaskRow, right: TaskRow) -> None:
    for row in (left, right):
        _check_kind(row)
        if row.error is not None:
            raise InvalidInput("a stopped task cannot be merged", task_id=row.task_id)
    touching = bool(left.range.end) and left.range.end == right.range.start
    if not touching or (left.tenant, left.start_ts) != (right.tenant, right.start_ts):
        raise InvalidInput(
            "only adjoining tasks of one tenant can be merged",
            left=f"task {left.task_id} {left.range}",
            right=f"task {right.task_id} {right.range}",
        )


def _check_replays(conn: Connection, *rows: TaskRow) -> None:
    owners = sorted({row.owner for row in rows if row.owner is not None})
    if owners and conn.execute(_REPLAYS, {"asked_workers": owners}).first() is not None:
        raise GuardFailed


def _check_positions(task_id: int, old: Positions, new: Positions) -> None:
    for store_id, was in old.items():
        now = new.get(store_id, {})
        # a closed incarnation counts as read wherever either half saw its end: a late file may lie between
        falls = first_regression(was, now) is not None
        invariant(not falls, "a position never falls", task_id=task_id, store_id=store_id, was=was, now=now)


def _add_task(conn: Connection, task_id: int, like: TaskRow, *, range_: KeyRange, epoch: int, **other: Any) -> None:
    values: dict[str, Any] = {
        "task_id": task_id,
        "cluster_id": like.tenant.cluster_id,
        "tenant_id": like.tenant.tenant_id,
        "kind": like.kind,
        "start_key": range_.start,
        "end_key": range_.end,
        "start_ts": like.start_ts,
        "durable_ts": like.durable_ts,
        "epoch": epoch,
        "owner": like.owner,
        "snapshot_key": like.snapshot_key,
        "snapshot_no": like.snapshot_no,
        "resubscribe_id": like.resubscribe_id,
        "error": like.error,
    }
    conn.execute(tasks.insert(), {**values, **other})


def _add_state(conn: Connection, task_id: int, positions: Positions, refers: frozenset[str]) -> None:
    add_positions(conn, task_id, positions)
    if refers:
        conn.execute(snapshot_objects.insert(), [{"task_id": task_id, "object_key": key} for key in sorted(refers)])


def _drop(conn: Connection, task_id: int, refers: frozenset[str]) -> None:
    """Delete the task, and supersede objects without a reference."""
    parameters = {"asked_task": task_id}
    drop_positions(conn, task_id)
    release(conn, task_id, refers)
    conn.execute(_DROP_TASK, parameters)


def _withdraw(conn: Connection, row: TaskRow) -> None:
    """Withdraw the merge request from the neighbour's row."""
    if row.merge_with is not None:
        conn.execute(_WITHDRAW, {"asked_task": row.merge_with, "asked_other": row.task_id})


def _refers(conn: Connection, task_id: int) -> frozenset[str]:
    return frozenset(conn.execute(_REFERS, {"asked_task": task_id}).scalars())
