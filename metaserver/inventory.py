"""One kind of item and its workers: read from the catalog, balanced, written back.

There may be very many tasks, so all are read only when `tasks_stamp` shows a change by another process, or after
REREAD_S: this process knows by how much its own assignments move the stamp. So it is with MANY_ROWS stores or more.
Assignments are written in transactions of CHUNK; one that fails its guard is found again in the next round.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import structlog

from metaserver.core.assign import I64, UNOWNED, Fleet, Mask, Move
from metaserver.core.balance import Balancer
from metaserver.core.loads import Load, Loads, store_loads, task_loads
from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.reports import WorkerReport
from tistream.catalog.rows.tasks import Assignment, TaskPlace
from tistream.catalog.rows.tenants import TaskKind
from tistream.catalog.work.lanes import LaneAssignment, LanePlace, assign_lanes, lane_places
from tistream.catalog.work.stores import StoreAssignment, StorePlace, assign_stores, store_places, stores_stamp
from tistream.catalog.work.tasks import assign_tasks, task_places, tasks_stamp
from tistream.ids import Tenant

log = structlog.get_logger(__name__)

REREAD_S = 30.0
MANY_ROWS = 100  #: from this many stores on, the stamp is read first
CHUNK = 500
LOGGED_MAX = 20  #: moves of a round that are logged individually


@dataclass(frozen=True, slots=True, kw_only=True)
class Workers:
    """The live workers of one kind."""

    names: tuple[str, ...]  #: in order
    receives: tuple[bool, ...]  #: whether it may be given items
    leaving: tuple[bool, ...]  #: whether its items must move away


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """All items of one kind."""

    rows: Sequence[Any]  #: as read from the catalog
    keys: Sequence[Hashable]
    owners: Sequence[str | None]
    group: I64
    index: Mapping[Hashable, int]  #: key -> position in the columns


class Items(Protocol):
    """One kind of item in the catalog."""

    what: str

    def read(self, now_s: float) -> Columns:
        """All items; the same object as before when nothing has changed."""
        ...

    def write(self, columns: Columns, moves: Sequence[tuple[int, str]], leader_epoch: int) -> int:
        """Assign (position in the columns, worker), each guarded; the number assigned."""
        ...

    def loads(
        self, worker: str, report: WorkerReport, owner_of: Callable[[Hashable], str | None]
    ) -> Iterable[tuple[Hashable, Load]]:
        """The loads that a worker reports of its own items."""
        ...


class TaskItems:
    """Tasks. A tenant's data tasks are kept apart; its DDL tasks are small and may lie anywhere."""

    what = "task"
    loads = staticmethod(task_loads)

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._stamp: tuple[int, ...] | None = None
        self._columns: Columns | None = None
        self._read_s = 0.0

    def read(self, now_s: float) -> Columns:
        stamp = tasks_stamp(self._catalog)  # before the rows: later changes are read again
        if self._columns is None or stamp != self._stamp or now_s - self._read_s >= REREAD_S:
            rows = task_places(self._catalog)
            groups = [row.tenant if row.kind is TaskKind.DATA else None for row in rows]
            self._columns = _columns(rows, [row.task_id for row in rows], [row.owner for row in rows], groups)
            self._stamp, self._read_s = stamp, now_s
        return self._columns

    def known(self) -> Columns | None:
        """The latest columns with later assignments of this process; None when they must be read again."""
        return self._columns

    def write(self, columns: Columns, moves: Sequence[tuple[int, str]], leader_epoch: int) -> int:
        rows: Sequence[TaskPlace] = columns.rows
        assignments = [Assignment(rows[i].task_id, to, rows[i].epoch, rows[i].tenant) for i, to in moves]
        done = assign_tasks(self._catalog, assignments, leader_epoch=leader_epoch)
        self._columns = self._after(moves, done)
        return done

    def _after(self, moves: Sequence[tuple[int, str]], done: int) -> Columns | None:
        """The columns after these moves; None, to read them again, when not all were done. The stamp becomes what it
        must be if no other process has changed anything."""
        before, stamp = self._columns, self._stamp
        if before is None or stamp is None or done != len(moves):
            return None
        rows, owners = list(before.rows), list(before.owners)
        for i, to in moves:
            rows[i] = rows[i]._replace(owner=to, epoch=rows[i].epoch + 1)
            owners[i] = to
        count, largest, epochs = stamp
        self._stamp = count, largest, epochs + done
        return replace(before, rows=rows, owners=owners)


class StoreItems:
    """Stores."""

    what = "store"
    loads = staticmethod(store_loads)

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._columns: Columns | None = None
        self._stamp: tuple[int, ...] = ()
        self._read_s = 0.0

    def read(self, now_s: float) -> Columns:
        if self._columns is not None and len(self._columns.rows) >= MANY_ROWS:
            stamp = stores_stamp(self._catalog)  # before the rows: later changes are read again
            if stamp == self._stamp and now_s - self._read_s < REREAD_S:
                return self._columns
            self._stamp, self._read_s = stamp, now_s
        rows = store_places(self._catalog)
        if self._columns is None or rows != self._columns.rows:
            keys, owners = [(row.tenant, row.store_id) for row in rows], [row.dispatcher for row in rows]
            self._columns = _columns(rows, keys, owners, [row.tenant for row in rows])
        return self._columns

    def write(self, columns: Columns, moves: Sequence[tuple[int, str]], leader_epoch: int) -> int:
        rows: Sequence[StorePlace] = columns.rows
        assignments = [StoreAssignment(rows[i].tenant, rows[i].store_id, to, rows[i].epoch) for i, to in moves]
        return assign_stores(self._catalog, assignments, leader_epoch=leader_epoch)


class LaneItems:
    """Lanes of changefeeds. They report no loads: each weighs the same."""

    what = "lane"

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._columns: Columns | None = None

    def read(self, now_s: float) -> Columns:
        rows = lane_places(self._catalog)
        if self._columns is None or rows != self._columns.rows:
            keys, owners = [row.lane_id for row in rows], [row.owner for row in rows]
            self._columns = _columns(rows, keys, owners, [row.tenant for row in rows])
        return self._columns

    def write(self, columns: Columns, moves: Sequence[tuple[int, str]], leader_epoch: int) -> int:
        rows: Sequence[LanePlace] = columns.rows
        assignments = [
            LaneAssignment(rows[i].lane_id, to, rows[i].epoch, rows[i].tenant, rows[i].name) for i, to in moves
        ]
        return assign_lanes(self._catalog, assignments, leader_epoch=leader_epoch)

    def loads(
        self, worker: str, report: WorkerReport, owner_of: Callable[[Hashable], str | None]
    ) -> Iterable[tuple[Hashable, Load]]:
        return ()


def _columns(
    rows: Sequence[Any], keys: Sequence[Hashable], owners: Sequence[str | None], groups: Sequence[Tenant | None]
) -> Columns:
    """`groups`: the tenant whose items are kept apart, per item; None = none."""
    numbers = {tenant: i for i, tenant in enumerate(sorted({tenant for tenant in groups if tenant is not None}))}
    group = (-1 if tenant is None else numbers[tenant] for tenant in groups)
    index = {key: i for i, key in enumerate(keys)}
    return Columns(rows=rows, keys=keys, owners=owners, group=np.fromiter(group, np.int64, len(rows)), index=index)


class Inventory:
    """One kind of item, as one leader assigns it."""

    def __init__(self, items: Items) -> None:
        self._items = items
        self._balancer = Balancer()
        self._loads = Loads()
        self._loads_version = 0
        self._fleet: tuple[tuple[object, ...], Fleet] | None = None

    def forget(self) -> None:
        """Drop all state: another leader was elected meanwhile."""
        self._balancer, self._loads = Balancer(), Loads()

    def learn(self, reports: Iterable[tuple[str, WorkerReport]], now_s: float) -> None:
        """Take the newest reports of the live workers."""
        columns = self._items.read(now_s)

        def owner_of(key: Hashable) -> str | None:
            at = columns.index.get(key)
            return None if at is None else columns.owners[at]

        self._loads.learn(
            (load for worker, report in reports for load in self._items.loads(worker, report, owner_of)), now_s
        )
        self._loads_version += 1

    def assign(self, workers: Workers, leader_epoch: int, now_s: float) -> None:
        """One round: decide and write moves."""
        columns = self._items.read(now_s)
        fleet = self._fleet_of(columns, workers)
        leaving: Mask = np.array(workers.leaving, bool)
        moves = self._balancer.decide(columns.keys, fleet, leaving, now_s)
        done = 0
        for at in range(0, len(moves), CHUNK):
            chunk = moves[at : at + CHUNK]
            done += self._items.write(columns, [(move.item, workers.names[move.to]) for move in chunk], leader_epoch)
        for move in moves:
            if fleet.owner[move.item] != UNOWNED:
                self._loads.note_move(columns.keys[move.item], now_s)
        self._log(columns, workers, moves, done)

    def _fleet_of(self, columns: Columns, workers: Workers) -> Fleet:
        """The columns as numbers; the same object while nothing has changed."""
        state = (columns, workers, self._loads_version)
        if self._fleet is not None and self._fleet[0][0] is columns and self._fleet[0][1:] == state[1:]:
            return self._fleet[1]
        count = len(columns.keys)
        numbers = {name: i for i, name in enumerate(workers.names)}
        owner = np.fromiter((numbers.get(name or "", UNOWNED) for name in columns.owners), np.int64, count)
        measured = np.zeros((3, count))
        for key, load in self._loads.items():
            at = columns.index.get(key)
            if at is not None:
                measured[:, at] = load
        fleet = Fleet.of(
            owner=owner,
            bytes_per_s=measured[0],
            open_rows=measured[1],
            held=measured[2],
            group=columns.group,
            receives=np.array(workers.receives, bool),
        )
        self._fleet = (state, fleet)
        return fleet

    def _log(self, columns: Columns, workers: Workers, moves: Sequence[Move], done: int) -> None:
        for move in moves[:LOGGED_MAX]:
            was, to = columns.owners[move.item], workers.names[move.to]
            log.info("assigned", what=self._items.what, item=str(columns.keys[move.item]), was=was, to=to)
        if done != len(moves) or len(moves) > LOGGED_MAX:
            log.info("assignments", what=self._items.what, decided=len(moves), done=done)
