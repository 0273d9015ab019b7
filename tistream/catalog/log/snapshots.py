"""Snapshots of task state, and the batch files that no snapshot needs.

The snapshot pointer, the positions and the set of referenced objects switch together or not at all: state = snapshot +
replay from its positions. For each (store, incarnation) of a task `seq` never falls and `closed` is final; incarnations
below the lowest one listed for a store are closed (`tistream.model.positions`).

A snapshot refers to the object of its pointer and to those that hold its rows, from this save or earlier ones. It may
keep objects of the previous snapshot only: a released object may be gone.

`durable_floor` reads these positions only, not what a sorter reports as received.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import Connection, Select, Update, and_, bindparam, case, func, or_, select

from tistream.catalog.database.engine import Catalog, GuardFailed
from tistream.catalog.database.tables import (
    of_asked_tenant,
    snapshot_objects,
    snapshot_positions,
    store_incarnations,
    tasks,
    tenant_ids,
    tenant_of,
)
from tistream.catalog.log.objects import ObjectKind, insert_live, release
from tistream.errors import invariant
from tistream.ids import Position, Tenant
from tistream.limits import INT_MAX
from tistream.model.positions import Positions, first_regression


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSnapshot:
    """The next state of a task: see `switch_snapshot`."""

    key: str
    n: int
    objects: Mapping[str, int]  #: new ones -> bytes, including `key`
    keeps: frozenset[str] = frozenset()  #: objects of the previous snapshot that it also refers to
    positions: Positions  #: all positions of the task
    seen_n: int | None = None  #: number of the previous one, as the caller knows it; None: any lower one


ALL_CONSUMED = INT_MAX  #: the floor of an incarnation that every task has closed: all its files may be deleted


_p = snapshot_positions.c
_POSITIONS = (
    select(_p.store_id, _p.incarnation, _p.seq, _p.closed)
    .where(_p.task_id == bindparam("asked_task"))
    .order_by(_p.store_id, _p.incarnation)
)
_DROP_POSITIONS = snapshot_positions.delete().where(_p.task_id == bindparam("asked_task"))
_ADD_POSITIONS = snapshot_positions.insert()
_OBJECTS = select(snapshot_objects.c.object_key).where(snapshot_objects.c.task_id == bindparam("asked_task"))
_ADD_OBJECTS = snapshot_objects.insert()
_TENANT = select(tasks.c.cluster_id, tasks.c.tenant_id).where(tasks.c.task_id == bindparam("asked_task"))


def positions(catalog: Catalog, task_id: int) -> dict[int, dict[int, Position]]:
    """store id -> incarnation -> position of the task's durable snapshot."""
    with catalog.reading() as conn:
        return positions_in(conn, task_id)


def switch_snapshot(catalog: Catalog, task_id: int, epoch: int, new: NewSnapshot) -> bool:
    """Make a new snapshot the task's state. Objects of the previous snapshot that it does not keep are released.

    False when the epoch is stale, or the current snapshot has a number at or above `new.n`, is not number `new.seen_n`,
    or does not refer to all of `new.keeps`. Without `seen_n` a reloaded task that misses a late switch would continue
    from a replaced state. Fenced when a new key already has a row.
    """
    with suppress(GuardFailed), catalog.transaction() as conn:
        if not switch_in(conn, task_id, epoch, new):
            raise GuardFailed
        return True
    return False


def switch_in(conn: Connection, task_id: int, epoch: int, new: NewSnapshot) -> bool:
    """`switch_snapshot` as a part of a larger transaction, which must be rolled back when this is False."""
    invariant(new.key in new.objects, "a snapshot without its object", task_id=task_id, snapshot_key=new.key)
    parameters = {"asked_task": task_id}
    lowest, highest = (0, new.n - 1) if new.seen_n is None else (new.seen_n, new.seen_n)
    seen = {"my_epoch": epoch, "new_n": new.n, "lowest_n": lowest, "highest_n": highest}
    pointer = {"snapshot_key": new.key, "snapshot_no": new.n}
    if conn.execute(_switching(), {**parameters, **seen, **pointer}).rowcount != 1:
        return False
    referred = frozenset(conn.execute(_OBJECTS, parameters).scalars())  # under the lock of the update
    if not referred.issuperset(new.keeps):
        return False
    _check_positions(task_id, positions_in(conn, task_id), new.positions)
    drop_positions(conn, task_id)
    add_positions(conn, task_id, new.positions)
    tenant = tenant_of(conn.execute(_TENANT, parameters).one())
    for key, size in new.objects.items():
        insert_live(conn, tenant, key, ObjectKind.SNAPSHOT, size)
    conn.execute(_ADD_OBJECTS, [{"task_id": task_id, "object_key": key} for key in new.objects])
    release(conn, task_id, referred.difference(new.keeps))
    return True


@cache
def _switching() -> Update:
    return tasks.update().where(
        tasks.c.task_id == bindparam("asked_task"),
        tasks.c.epoch == bindparam("my_epoch"),
        tasks.c.snapshot_no < bindparam("new_n"),
        tasks.c.snapshot_no.between(bindparam("lowest_n"), bindparam("highest_n")),
    )


def durable_floor(catalog: Catalog, tenant: Tenant, store_id: int) -> dict[int, int]:
    """Incarnation -> the seq up to which every task has durably consumed it.

    A task without a position counts as 0, one that has closed the incarnation as ALL_CONSUMED; 0 when the tenant has
    no tasks yet. One statement: a new task is either counted or finds nothing reclaimed beyond its inherited
    positions.
    """
    with catalog.reading() as conn:
        rows = conn.execute(_floors(), {**tenant_ids(tenant), "asked_store": store_id})
        return {incarnation: int(floor) for incarnation, floor in rows}


@cache
def _floors() -> Select[Any]:
    p = snapshot_positions.c
    named = snapshot_positions.alias("named")
    lowest = (
        select(func.min(named.c.incarnation))
        .where(named.c.task_id == tasks.c.task_id, named.c.store_id == bindparam("asked_store"))
        .scalar_subquery()
    )
    ended = or_(p.closed, lowest > store_incarnations.c.incarnation)
    consumed = case((ended, ALL_CONSUMED), else_=func.coalesce(p.seq, 0))
    joined = store_incarnations.outerjoin(
        tasks,
        and_(
            tasks.c.cluster_id == store_incarnations.c.cluster_id, tasks.c.tenant_id == store_incarnations.c.tenant_id
        ),
    ).outerjoin(
        snapshot_positions,
        and_(
            p.task_id == tasks.c.task_id,
            p.store_id == store_incarnations.c.store_id,
            p.incarnation == store_incarnations.c.incarnation,
        ),
    )
    return (
        select(store_incarnations.c.incarnation, func.min(consumed))
        .select_from(joined)
        .where(of_asked_tenant(store_incarnations), store_incarnations.c.store_id == bindparam("asked_store"))
        .group_by(store_incarnations.c.incarnation)
        .order_by(store_incarnations.c.incarnation)
    )


def add_positions(conn: Connection, task_id: int, positions: Positions) -> None:
    """Insert the positions of a task that has none."""
    rows = [
        {"task_id": task_id, "store_id": store_id, "incarnation": incarnation, "seq": p.seq, "closed": p.closed}
        for store_id, of_store in positions.items()
        for incarnation, p in of_store.items()
    ]
    if rows:
        conn.execute(_ADD_POSITIONS, rows)


def drop_positions(conn: Connection, task_id: int) -> None:
    """Delete the positions of a task."""
    conn.execute(_DROP_POSITIONS, {"asked_task": task_id})


def positions_in(conn: Connection, task_id: int) -> dict[int, dict[int, Position]]:
    """`positions` within a transaction."""
    by_task: dict[int, dict[int, Position]] = {}
    for store_id, incarnation, seq, closed in conn.execute(_POSITIONS, {"asked_task": task_id}):
        by_task.setdefault(store_id, {})[incarnation] = Position(seq=seq, closed=bool(closed))
    return by_task


def _check_positions(task_id: int, old: Positions, new: Positions) -> None:
    for store_id, was in old.items():
        now = new.get(store_id, {})
        kept = first_regression(was, now) is None and all(now.get(n, at) == at for n, at in was.items() if at.closed)
        invariant(kept, "a position never falls", task_id=task_id, store_id=store_id, was=was, now=now)
