"""Tasks that are split and merged: their rows are replaced, each time in one transaction.

    split_task      [a, z)            ->  [a, key), [key, z)     at any time, by anybody who knows the newest epoch
    request_merge   two neighbours of one owner, each names the other
    merge_tasks     [a, m), [m, z)    ->  [a, z)                 by that owner, once both are at one place

The tasks that come have new ids, and those that go are gone with their epochs: no guard of a flush, a snapshot or a
hand-over of theirs matches any more, whoever tries and however late. Where a reader looks nothing changes: for each
key `durable_ts`, `start_ts` and what its batch files are held by are the same before and after, and segments carry
key ranges.

- A part takes over `durable_ts`, `start_ts`, `resubscribe_id`, error, owner, snapshot and positions. It loads of the
  snapshot what lies in its range; both refer to the objects. Positions are those of the snapshot, so the batch files
  that it has to read again are still there, and from the first moment it holds them.
- A merged task has the one `durable_ts` of both, and one state that its owner has put together. It is as far in the
  files as that state says, which is at or behind what the halves' own snapshots had read.
- What a replay holds is left alone, and so are DDL tasks.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, select

from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_event
from tistream.catalog.database.tables import next_numbers, snapshot_objects, tasks, tenant_of, workers
from tistream.catalog.database.tables import positions as positions_table
from tistream.catalog.log.objects import ObjectKind, insert_all_live, release
from tistream.catalog.log.snapshots import NewSnapshot
from tistream.catalog.tenancy.tenants import TaskKind
from tistream.catalog.work.tasks import TaskRow, holds_leadership, task_row
from tistream.catalog.work.workers import WorkerKind
from tistream.errors import InvalidInput, NotFound, invariant
from tistream.ids import Position, Tenant
from tistream.keyrange import KeyRange
from tistream.model.positions import Positions, is_behind


@dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """A task that is to be merged, as its owner knows it."""

    task_id: int
    epoch: int
    durable_ts: int
    snapshot_n: int  #: of the newest snapshot that the owner switched to, or found


_p, _r, _t = positions_table.c, snapshot_objects.c, tasks.c
_LOCK = tasks.update().where(_t.task_id == bindparam("asked_task")).values(epoch=_t.epoch)
_ROW = select(tasks).where(_t.task_id == bindparam("asked_task"))
_REPLAYS = select(workers.c.worker_id).where(
    workers.c.worker_id.in_(bindparam("asked_workers", expanding=True)), workers.c.kind == WorkerKind.REPLAY
)
_POSITIONS = select(_p.store_id, _p.incarnation, _p.seq, _p.closed).where(_p.task_id == bindparam("asked_task"))
_REFERS = select(_r.object_key).where(_r.task_id == bindparam("asked_task")).order_by(_r.object_key)
_DROP_TASK = tasks.delete().where(_t.task_id == bindparam("asked_task"))
_DROP_POSITIONS = positions_table.delete().where(_p.task_id == bindparam("asked_task"))
_UNASK = (
    tasks.update()
    .where(_t.task_id == bindparam("asked_task"), _t.merge_with == bindparam("asked_other"))
    .values(merge_with=None)
)
_MERGING = select(_t.cluster_id, _t.tenant_id).where(_t.merge_with.is_not(None)).distinct()
_GIVE = tasks.update().where(_t.task_id == bindparam("asked_task"))


def split_task(
    catalog: Catalog, task_id: int, key: bytes, *, seen_epoch: int, leader_epoch: int | None = None, actor: str = ""
) -> tuple[int, int] | None:
    """Put two tasks in the place of one: what lies below the key, and the rest. Their ids, in key order.

    None when the caller lost: the task was assigned since `seen_epoch`, a replay holds it, or `leader_epoch` is not the
    elected owner's any more (None: a person decides, without an election). NotFound when there is no such task,
    InvalidInput when the key does not lie inside its range, or is where it begins, or it is a DDL task.
    """
    with suppress(_Lost), catalog.transaction() as conn:
        _check_election(conn, leader_epoch)
        (row,) = _locked(conn, task_id)
        if key not in row.range or key == row.range.start:
            raise InvalidInput(
                "a task is split inside of its range", task_id=task_id, key=key.hex(), range=str(row.range)
            )
        _check_kind(row)
        if row.epoch != seen_epoch:
            raise _Lost
        _check_replays(conn, row)
        parts = KeyRange(row.range.start, key), KeyRange(key, row.range.end)
        low, high = next_numbers(conn, "task", 2)
        _add_task(conn, low, row, range_=parts[0], epoch=row.epoch + 1)
        _add_task(conn, high, row, range_=parts[1], epoch=row.epoch + 1)
        positions, refers = _positions(conn, task_id), _refers(conn, task_id)
        for part in (low, high):
            _add_state(conn, part, positions, refers)
        _unask(conn, row)
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
    """Have two neighbours merged by the owner of the left one (of the right one, when that has none), who is given
    both; it does so when it has brought them to one place. Until then each row names the other in `merge_with`.
    Repeating it changes nothing but the owner, if the two have been given to different ones meanwhile. The `actor` who
    asks for it is told of in an event.

    False when the caller lost: see `split_task`. NotFound, InvalidInput when they are not neighbours of one tenant and
    kind with one `start_ts`, or one of them is a DDL task or stopped.
    """
    with suppress(_Lost), catalog.transaction() as conn:
        _check_election(conn, leader_epoch)
        left, right = _locked(conn, left_id, right_id)
        _check_neighbours(left, right)
        if (left.epoch, right.epoch) != seen_epochs:
            raise _Lost
        _check_replays(conn, left, right)
        owner = left.owner or right.owner
        for row, other in ((left, right_id), (right, left_id)):
            if row.merge_with != other:
                _unask(conn, row)
            moved = {} if row.owner == owner else {"owner": owner, "epoch": row.epoch + 1}
            conn.execute(_GIVE, {"asked_task": row.task_id, "merge_with": other, **moved})
        if actor:
            asked = {"right": right_id, "to": owner}
            record_event(conn, EventKind.TASK_MERGE_ASKED, left_id, tenant=left.tenant, actor=actor, **asked)
        return True
    return False


def cancel_merge(catalog: Catalog, task_id: int, *, seen_epoch: int, leader_epoch: int | None = None) -> bool:
    """Forget that the task is to be merged, in its row and its neighbour's. False when the caller lost: the task was
    assigned since `seen_epoch`, or `leader_epoch` is not the leader's (None: a person decides). NotFound
    when there is no such task."""
    with suppress(_Lost), catalog.transaction() as conn:
        _check_election(conn, leader_epoch)
        (row,) = _locked(conn, task_id)
        if row.epoch != seen_epoch:
            raise _Lost
        _unask(conn, row)
        conn.execute(_GIVE, {"asked_task": task_id, "merge_with": None})
        return True
    return False


def merging_tenants(catalog: Catalog) -> frozenset[Tenant]:
    """The tenants with tasks that are to be merged."""
    with catalog.reading() as conn:
        return frozenset(tenant_of(row) for row in conn.execute(_MERGING))


def merge_tasks(catalog: Catalog, left: Half, right: Half, snapshot: NewSnapshot) -> int | None:
    """Put one task in the place of two; its id. `snapshot` is its state: `keeps` are objects to which the snapshots of
    the two refer.

    None, and nothing happened, when the owner lost: one of the two is at another epoch, `durable_ts` or snapshot than
    it knows, is gone, is not to be merged with the other (any more), or does not refer to what the state would keep.
    Fenced when a new key already has a row.
    """
    invariant(left.durable_ts == right.durable_ts, "halves of one durable watermark are merged", left=left, right=right)
    with suppress(_Lost, NotFound), catalog.transaction() as conn:
        rows = _locked(conn, left.task_id, right.task_id)
        for row, half, other in zip(rows, (left, right), (right, left), strict=True):
            seen = (half.epoch, half.durable_ts, half.snapshot_n, other.task_id)
            if (row.epoch, row.durable_ts, row.snapshot_n, row.merge_with) != seen:
                raise _Lost
        _check_neighbours(*rows)
        refers = [_refers(conn, row.task_id) for row in rows]
        if not snapshot.keeps <= refers[0].union(refers[1]):
            raise _Lost
        for row in rows:
            _check_positions(row.task_id, _positions(conn, row.task_id), snapshot.positions)
        (task_id,) = next_numbers(conn, "task", 1)
        _add_task(
            conn,
            task_id,
            rows[0],
            range_=KeyRange(rows[0].range.start, rows[1].range.end),
            epoch=max(row.epoch for row in rows) + 1,
            snapshot_key=snapshot.key,
            snapshot_n=snapshot.n,
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


class _Lost(Exception):
    """The tasks are somebody else's, or not what the caller knows: nothing happens."""


def _check_election(conn: Connection, leader_epoch: int | None) -> None:
    if leader_epoch is not None and not holds_leadership(conn, leader_epoch):
        raise _Lost


def _locked(conn: Connection, *task_ids: int) -> list[TaskRow]:
    """The rows, in this order. They are locked in the order of ids, as flushes do it, until the transaction ends."""
    found: dict[int, TaskRow] = {}
    for task_id in sorted(task_ids):
        asked = {"asked_task": task_id}
        conn.execute(_LOCK, asked)  # changes nothing
        row = conn.execute(_ROW, asked).first()
        if row is None:
            raise NotFound(f"there is no task {task_id}", task_id=task_id)
        found[task_id] = task_row(row)
    return [found[task_id] for task_id in task_ids]


def _check_kind(row: TaskRow) -> None:
    if row.kind is not TaskKind.DATA:
        raise InvalidInput("tasks of DDL stay as they are", task_id=row.task_id)


def _check_neighbours(left: TaskRow, right: TaskRow) -> None:
    for row in (left, right):
        _check_kind(row)
        if row.error is not None:
            raise InvalidInput("a stopped task is not merged", task_id=row.task_id)
    touching = bool(left.range.end) and left.range.end == right.range.start
    if not touching or (left.tenant, left.start_ts) != (right.tenant, right.start_ts):
        raise InvalidInput(
            "two tasks of a tenant are merged that lie side by side",
            left=f"task {left.task_id} {left.range}",
            right=f"task {right.task_id} {right.range}",
        )


def _check_replays(conn: Connection, *rows: TaskRow) -> None:
    owners = sorted({row.owner for row in rows if row.owner is not None})
    if owners and conn.execute(_REPLAYS, {"asked_workers": owners}).first() is not None:
        raise _Lost


def _check_positions(task_id: int, old: Positions, new: Positions) -> None:
    for store_id, was in old.items():
        now = new.get(store_id, {})
        # a life that has ended counts as read, wherever either half saw its end: a late file may lie between
        invariant(
            is_behind(was, now) is None, "a position never falls", task_id=task_id, store_id=store_id, was=was, now=now
        )


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
        "snapshot_n": like.snapshot_n,
        "resubscribe_id": like.resubscribe_id,
        "error": like.error,
    }
    conn.execute(tasks.insert(), {**values, **other})


def _add_state(conn: Connection, task_id: int, positions: Positions, refers: frozenset[str]) -> None:
    rows = [
        {"task_id": task_id, "store_id": store_id, "incarnation": incarnation, "seq": p.seq, "closed": p.closed}
        for store_id, lives in positions.items()
        for incarnation, p in lives.items()
    ]
    if rows:
        conn.execute(positions_table.insert(), rows)
    if refers:
        conn.execute(snapshot_objects.insert(), [{"task_id": task_id, "object_key": key} for key in sorted(refers)])


def _drop(conn: Connection, task_id: int, refers: frozenset[str]) -> None:
    """The task goes; what nobody refers to any more is replaced."""
    asked = {"asked_task": task_id}
    conn.execute(_DROP_POSITIONS, asked)
    release(conn, task_id, refers)
    conn.execute(_DROP_TASK, asked)


def _unask(conn: Connection, row: TaskRow) -> None:
    """The neighbour names this task no more."""
    if row.merge_with is not None:
        conn.execute(_UNASK, {"asked_task": row.merge_with, "asked_other": row.task_id})


def _positions(conn: Connection, task_id: int) -> dict[int, dict[int, Position]]:
    found: dict[int, dict[int, Position]] = {}
    for store_id, incarnation, seq, closed in conn.execute(_POSITIONS, {"asked_task": task_id}):
        found.setdefault(store_id, {})[incarnation] = Position(seq=seq, closed=bool(closed))
    return found


def _refers(conn: Connection, task_id: int) -> frozenset[str]:
    return frozenset(conn.execute(_REFERS, {"asked_task": task_id}).scalars())
