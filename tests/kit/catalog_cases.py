"""What the catalog's suites are played with: two tenants, their tasks, and threads that start together."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

from sqlalchemy import select

from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.committed import TaskAdvance, commit_flush
from tistream.catalog.log.segments import SegmentRow
from tistream.catalog.log.snapshots import NewSnapshot, switch_snapshot
from tistream.catalog.tenancy.tenants import NewTask, activate_tenant, register_tenant
from tistream.catalog.work.leader import acquire_leadership, get_leader, renew_leadership
from tistream.catalog.work.tasks import list_tasks
from tistream.errors import CatalogUnavailable
from tistream.ids import Position, Tenant
from tistream.keyrange import KeyRange

R = TypeVar("R")

T = Tenant(7, 0)  # zero is a legal tenant
OTHER = Tenant(7, 1)
START = 449_000_000_000_000_000  # a TSO of today's size
STEM = b"s" * 3000  #: how all keys of the suites begin: a clustered string key is as long, and its neighbours as alike


def long_key(end: bytes) -> bytes:
    """A key that differs from its neighbours only in its last bytes: a database has to compare all of it."""
    return STEM + end


LOW = KeyRange(long_key(b"n"), long_key(b"t\x80"))
HIGH = KeyRange(long_key(b"t\x80"))
DDL = KeyRange(long_key(b"m"), long_key(b"n"))


def segment(
    no: int = 0, lo: int = START + 1, hi: int = START + 10, tables: tuple[int, int] = (1, 1), key: str = ""
) -> SegmentRow:
    """A segment with the given timestamps and table ids; without a key it lies in the only object of its flush."""
    return SegmentRow(
        object_key=key,
        number=no,
        kind="committed",
        start_key=long_key(b"t\x00\xff"),
        end_key=long_key(b"t\xff\x00"),
        table_lo=tables[0],
        table_hi=tables[1],
        lo_ts=lo,
        hi_ts=hi,
        rows=3,
        offset=8,
        length=100,
        crc=0xFFFF_FFFF,
    )


def activate(catalog: Catalog, tenant: Tenant = T) -> list[int]:
    """A tenant with two data tasks and one DDL task, all unassigned; their ids in that order."""
    register_tenant(catalog, tenant)
    wanted = [NewTask(kind="data", range=LOW), NewTask(kind="data", range=HIGH), NewTask(kind="ddl", range=DDL)]
    assert activate_tenant(catalog, tenant, START, wanted)
    return [task.task_id for task in list_tasks(catalog, tenant)]


def elected(catalog: Catalog, me: str = "meta-1") -> int:
    """The epoch of a leader that was just elected, or still is."""
    row = get_leader(catalog)
    if row is not None and row.name == me:
        renew_leadership(catalog, me, row.epoch)
        return row.epoch
    epoch = acquire_leadership(catalog, me)
    assert epoch is not None
    return epoch


def flush(catalog: Catalog, key: str | None, *advances: TaskAdvance) -> frozenset[int]:
    """A flush of tenant T, with one object or none."""
    placed = [
        replace(a, segments=tuple(replace(s, object_key=s.object_key or key or "") for s in a.segments))
        for a in advances
    ]
    objects = {s.object_key: 1000 for a in placed for s in a.segments}
    if key is not None:
        objects.setdefault(key, 1000)
    return commit_flush(catalog, tenant=T, objects=objects, advances=placed)


def snapshot(
    catalog: Catalog,
    task_id: int,
    n: int,
    at: Mapping[int, Mapping[int, Position]],
    epoch: int = 0,
    *,
    more: Collection[str] = (),
    keeps: Collection[str] = (),
) -> bool:
    """Switch to snapshot `n`, whose rows lie in `more` new objects and in those that it keeps."""
    key = f"snapshots/{task_id}/{epoch}-{n}"
    objects = dict.fromkeys([key, *more], 10)
    new = NewSnapshot(key=key, n=n, objects=objects, keeps=frozenset(keeps), positions=at)
    return switch_snapshot(catalog, task_id, epoch, new)


def referred(catalog: Catalog, task_id: int) -> set[str]:
    """The objects to which the task's snapshot refers."""
    refers = tables.snapshot_objects.c
    with catalog.reading() as conn:
        return set(conn.execute(select(refers.object_key).where(refers.task_id == task_id)).scalars())


def share(catalog: Catalog, task_id: int, object_key: str) -> None:
    """Another task refers to an object too, as one that takes over a part of a range would."""
    with catalog.transaction() as conn:
        conn.execute(tables.snapshot_objects.insert().values(task_id=task_id, object_key=object_key))


def together(count: int, act: Callable[[int], R]) -> list[R]:
    """Call `act(0..count-1)` from as many threads at once; the results, or the first error."""
    barrier = threading.Barrier(count)

    def one(i: int) -> R:
        barrier.wait(30)
        return act(i)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def ended(act: Callable[[], R]) -> R:
    """What it comes to, tried again as services do: a database may end a circle of waiting by refusing one of them."""
    while True:
        try:
            return act()
        except CatalogUnavailable as e:
            if not e.determinate:
                raise
