"""One kind of item and its workers, as the catalog has them: read, decided by the balancer, written back.

Tasks may be very many, so all of them are read only when `tasks_stamp` says that somebody else has changed something,
or after REREAD_S: what this process assigned itself moves the stamp by as much as it knows. So are MANY stores or more.
What was decided is written CHUNK assignments a transaction. An assignment that fails its guard is simply found again in
the next round.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import structlog

from metaserver.core.assign import I64, NOBODY, Fleet, Mask, Move
from metaserver.core.balance import Balancer
from metaserver.core.loads import Load, Loads, store_loads, task_loads
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.tenants import TaskKind
from tistream.catalog.work.reports import WorkerReport
from tistream.catalog.work.stores import StoreAssignment, StorePlace, assign_stores, store_places, stores_stamp
from tistream.catalog.work.tasks import Assignment, TaskPlace, assign_tasks, task_places, tasks_stamp

log = structlog.get_logger(__name__)

REREAD_S = 30.0
MANY = 100  #: stores, from which on the stamp is asked for first
CHUNK = 500
TOLD_MAX = 20  #: moves of a round that are logged one by one


@dataclass(frozen=True, slots=True, kw_only=True)
class Crew:
    """The living workers of one kind."""

    names: tuple[str, ...]  #: in order
    receives: tuple[bool, ...]  #: whether it may be given items
    leaving: tuple[bool, ...]  #: whether its items are to be moved off


@dataclass(frozen=True, slots=True, kw_only=True)
class Columns:
    """All items of one kind at one moment."""

    rows: Sequence[Any]  #: as the catalog gave them
    keys: Sequence[Hashable]
    owners: Sequence[str | None]
    group: I64
    index: Mapping[Hashable, int]  #: key -> its place in the columns


class Items(Protocol):
    """Where one kind of item is kept."""

    what: str

    def read(self, now_s: float) -> Columns:
        """All of them. The same object as before when nothing has changed."""
        ...

    def write(self, columns: Columns, moves: Sequence[tuple[int, str]], leader_epoch: int) -> int:
        """Assign (place in the columns, worker), each guarded; how many took place."""
        ...

    def loads(
        self, worker: str, report: WorkerReport, owner_of: Callable[[Hashable], str | None]
    ) -> Iterable[tuple[Hashable, Load]]:
        """What a worker reports of the items that it has."""
        ...


class TaskItems:
    """The tasks. A tenant's data tasks are kept apart; its DDL tasks are small and may lie anywhere."""

    what = "task"
    loads = staticmethod(task_loads)

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._stamp: tuple[int, ...] | None = None
        self._columns: Columns | None = None
        self._read_s = 0.0

    def read(self, now_s: float) -> Columns:
        stamp = tasks_stamp(self._catalog)  # before the rows: what changes in between is read again
        if self._columns is None or stamp != self._stamp or now_s - self._read_s >= REREAD_S:
            rows = task_places(self._catalog)
            tenants = {tenant: i for i, tenant in enumerate(sorted({row.tenant for row in rows}))}
            groups = (tenants[row.tenant] if row.kind is TaskKind.DATA else -1 for row in rows)
            ids = [row.task_id for row in rows]
            self._columns = Columns(
                rows=rows,
                keys=ids,
                owners=[row.owner for row in rows],
                group=np.fromiter(groups, np.int64, len(rows)),
                index={task_id: i for i, task_id in enumerate(ids)},
            )
            self._stamp, self._read_s = stamp, now_s
        return self._columns

    def known(self) -> Columns | None:
        """As they were read last, and what was assigned here since. None when they are to be read again."""
        return self._columns

    def write(self, columns: Columns, moves: Sequence[tuple[int, str]], leader_epoch: int) -> int:
        rows: Sequence[TaskPlace] = columns.rows
        assignments = [Assignment(rows[i].task_id, to, rows[i].epoch, rows[i].tenant) for i, to in moves]
        done = assign_tasks(self._catalog, assignments, leader_epoch=leader_epoch)
        self._columns = self._after(moves, done)
        return done

    def _after(self, moves: Sequence[tuple[int, str]], done: int) -> Columns | None:
        """The columns after these moves; None, which has them read again, when not all of them took place. The stamp
        is what it must be if nobody else has changed anything."""
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
    """The stores."""

    what = "store"
    loads = staticmethod(store_loads)

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._columns: Columns | None = None
        self._stamp: tuple[int, ...] = ()
        self._read_s = 0.0

    def read(self, now_s: float) -> Columns:
        if self._columns is not None and len(self._columns.rows) >= MANY:
            stamp = stores_stamp(self._catalog)  # before the rows: what changes in between is read again
            if stamp == self._stamp and now_s - self._read_s < REREAD_S:
                return self._columns
            self._stamp, self._read_s = stamp, now_s
        rows = store_places(self._catalog)
        if self._columns is None or rows != self._columns.rows:
            tenants = {tenant: i for i, tenant in enumerate(sorted({row.tenant for row in rows}))}
            keys = [(row.tenant, row.store_id) for row in rows]
            self._columns = Columns(
                rows=rows,
                keys=keys,
                owners=[row.dispatcher for row in rows],
                group=np.fromiter((tenants[row.tenant] for row in rows), np.int64, len(rows)),
                index={key: i for i, key in enumerate(keys)},
            )
        return self._columns

    def write(self, columns: Columns, moves: Sequence[tuple[int, str]], leader_epoch: int) -> int:
        rows: Sequence[StorePlace] = columns.rows
        assignments = [StoreAssignment(rows[i].tenant, rows[i].store_id, to, rows[i].epoch) for i, to in moves]
        return assign_stores(self._catalog, assignments, leader_epoch=leader_epoch)


class Roster:
    """One kind of item under one owner of assignment."""

    def __init__(self, items: Items) -> None:
        self._items = items
        self._balancer = Balancer()
        self._loads = Loads()
        self._loads_version = 0
        self._fleet: tuple[tuple[object, ...], Fleet] | None = None

    def forget(self) -> None:
        """Somebody else was the owner meanwhile: begin anew."""
        self._balancer, self._loads = Balancer(), Loads()

    def learn(self, reports: Iterable[tuple[str, WorkerReport]], now_s: float) -> None:
        """The newest reports of the living workers."""
        columns = self._items.read(now_s)

        def owner_of(key: Hashable) -> str | None:
            at = columns.index.get(key)
            return None if at is None else columns.owners[at]

        self._loads.learn(
            (said for worker, report in reports for said in self._items.loads(worker, report, owner_of)), now_s
        )
        self._loads_version += 1

    def assign(self, crew: Crew, leader_epoch: int, now_s: float) -> None:
        """One round: decide and write."""
        columns = self._items.read(now_s)
        fleet = self._fleet_of(columns, crew)
        leaving: Mask = np.array(crew.leaving, bool)
        moves = self._balancer.decide(columns.keys, fleet, leaving, now_s)
        done = 0
        for at in range(0, len(moves), CHUNK):
            chunk = moves[at : at + CHUNK]
            done += self._items.write(columns, [(move.item, crew.names[move.to]) for move in chunk], leader_epoch)
        for move in moves:
            if fleet.owner[move.item] != NOBODY:
                self._loads.note_move(columns.keys[move.item], now_s)
        self._tell(columns, crew, moves, done)

    def _fleet_of(self, columns: Columns, crew: Crew) -> Fleet:
        """The columns as numbers; the same object while nothing has changed."""
        state = (columns, crew, self._loads_version)
        if self._fleet is not None and self._fleet[0][0] is columns and self._fleet[0][1:] == state[1:]:
            return self._fleet[1]
        count = len(columns.keys)
        numbers = {name: i for i, name in enumerate(crew.names)}
        owner = np.fromiter((numbers.get(name or "", NOBODY) for name in columns.owners), np.int64, count)
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
            receives=np.array(crew.receives, bool),
        )
        self._fleet = (state, fleet)
        return fleet

    def _tell(self, columns: Columns, crew: Crew, moves: Sequence[Move], done: int) -> None:
        for move in moves[:TOLD_MAX]:
            was, to = columns.owners[move.item], crew.names[move.to]
            log.info("assigned", what=self._items.what, item=str(columns.keys[move.item]), was=was, to=to)
        if done != len(moves) or len(moves) > TOLD_MAX:
            log.info("assigned in all", what=self._items.what, decided=len(moves), done=done)
