"""Cases for tests of the catalog: two tenants, their tasks and files, and threads that start together."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import pytest
from sqlalchemy import Column, ColumnElement, select, update

from tistream.catalog.database import tables
from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.committed import TaskAdvance, commit_flush
from tistream.catalog.log.snapshots import NewSnapshot, switch_snapshot
from tistream.catalog.rows.compaction import Output
from tistream.catalog.rows.segments import SegmentRow
from tistream.catalog.rows.tenants import NewTask
from tistream.catalog.tenancy.tenants import activate_tenant, register_tenant
from tistream.catalog.work.leader import acquire_leadership, get_leader, renew_leadership
from tistream.catalog.work.tasks import list_tasks
from tistream.codec.compacted_file import Footer
from tistream.codec.seed_file import FILES_PER_SEED_MAX, SeedManifest, SeedSegment
from tistream.codec.segment_file import SegmentInfo
from tistream.errors import CatalogUnavailable
from tistream.ids import Position, Tenant
from tistream.keyrange import KeyRange

R = TypeVar("R")
AnyCatalog = TypeVar("AnyCatalog", bound=Catalog)

#: The simulator's connection has no Alembic and no events of SQLAlchemy.
ON_SQLALCHEMY = pytest.mark.parametrize(
    "backend", ["sqlite", pytest.param("mariadb", marks=pytest.mark.mariadb)], indirect=True
)

T = Tenant(7, 0)  # zero is a legal tenant
OTHER = Tenant(7, 1)
START = 449_000_000_000_000_000  # a TSO of today's size
EDGE = START + 40  #: where the log of `grown_log` ends
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


def info(number: int, table_id: int, start: bytes = LOW.start, rows: int = 7, **places: int) -> SegmentInfo:
    """A segment of one table in a file; `places` are its offset and its length."""
    at: dict[str, Any] = {"offset": 8, "length": 90, "raw_length": 200, "crc": 0xFFFF_FFFF, **places}
    span: dict[str, Any] = {"table_lo": table_id, "table_hi": table_id, "lo_ts": START, "hi_ts": START}
    return SegmentInfo(number=number, kind="seed", rows=rows, start_key=start, end_key=start + b"\xff", **span, **at)


def output(key: str, task_id: int, rows: int) -> Output:
    """A compacted file of one row group."""
    group = info(0, 1, long_key(b"t\x00"), rows, offset=4, length=896)
    group = replace(group, kind="compacted", task_id=task_id, lo_ts=START + 1, hi_ts=START + 30)
    footer = Footer(offset=900, length=50, crc=7)
    return Output(object_key=key, object_bytes=950, task_id=task_id, groups=(group,), footer=footer)


def seed(ts: int = START, table_id: int = 0) -> SeedManifest:
    """A seed of two files; table 5 has rows in both, and those of the second file come first in key order."""
    first = table_id * FILES_PER_SEED_MAX + 1
    places = ((first, 0, 4, b"a", b"b"), (first, 1, 5, b"e\x00", b"f"), (first + 1, 0, 5, b"c", b"d\xff"))
    at = {"rows": 7, "offset": 8, "length": 90, "crc": 0xFFFF_FFFF}
    segments = tuple(
        SeedSegment(n=n, segment_no=no, table_id=table, start_key=long_key(start), end_key=long_key(end), **at)
        for n, no, table, start, end in places
    )
    return SeedManifest(tenant=T, ts=ts, table_id=table_id, file_bytes={first: 1000, first + 1: 500}, segments=segments)


HALVES = (KeyRange(b"", b"m"), KeyRange(b"m", b""))


def new_catalog(folder: Path) -> Catalog:
    """A migrated catalog in a file of the folder; empty, unless the folder has one."""
    return catalog_of(Catalog, folder)


def catalog_of(kind: Callable[[str], AnyCatalog], folder: Path) -> AnyCatalog:
    """As `new_catalog`, of a class of one's own."""
    path = folder / "catalog.db"
    if not path.exists():
        path.write_bytes(_migrated())
    return kind(f"sqlite:///{path}")


@cache
def _migrated() -> bytes:
    """The file of an empty catalog: to migrate one takes longer than many a test."""
    with tempfile.TemporaryDirectory() as folder:
        catalog = Catalog(f"sqlite:///{folder}/catalog.db")
        catalog.migrate()
        catalog.close()
        return (Path(folder) / "catalog.db").read_bytes()


def begin(catalog: Catalog, tenant: Tenant, start_ts: int, *ranges: KeyRange) -> None:
    """An active tenant with a data task for each range; without ranges, one task."""
    register_tenant(catalog, tenant)
    assert activate_tenant(catalog, tenant, start_ts, [NewTask(kind="data", range=r) for r in ranges or [KeyRange()]])


def activate(catalog: Catalog, tenant: Tenant = T, start_ts: int = START) -> list[int]:
    """A tenant with two data tasks and one DDL task, all unassigned; their ids in that order."""
    register_tenant(catalog, tenant)
    tasks = [NewTask(kind="data", range=LOW), NewTask(kind="data", range=HIGH), NewTask(kind="ddl", range=DDL)]
    assert activate_tenant(catalog, tenant, start_ts, tasks)
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


def silence_leader(catalog: Catalog, age_ms: int) -> None:
    """Make the leader's last heartbeat this old."""
    with catalog.transaction() as conn:
        conn.execute(tables.leader.update().values(heartbeat_ms=now_ms() - age_ms))


def shift(catalog: Catalog, column: Column[int], by_ms: int, *where: ColumnElement[bool]) -> None:
    """Move a time of the catalog, in these rows or in all that have one."""
    with catalog.transaction() as conn:
        conn.execute(update(column.table).where(column > 0, *where).values({column: column + by_ms}))


def advance(task_id: int, seen: int, new: int, *segments: SegmentRow, epoch: int = 0) -> TaskAdvance:
    """A task's advance from the durable timestamp `seen` to `new`."""
    return TaskAdvance(task_id=task_id, epoch=epoch, seen_durable_ts=seen, new_durable_ts=new, segments=segments)


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


def grown_log(catalog: Catalog) -> list[int]:
    """Two files, each with a segment of both data tasks and one of the DDL task: up to START + 20, up to EDGE."""
    tasks = activate(catalog)
    for key, seen, new in (("f/1", START, START + 20), ("f/2", START + 20, EDGE)):
        segments = [segment(n, seen + 1, new - n) for n in range(2)]
        advances = [advance(task, seen, new, *segments[n : n + 1]) for n, task in enumerate(tasks)]
        assert flush(catalog, key, *advances) == set(tasks)
    return tasks


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
    """Call `act(0..count-1)` from as many threads at once; the results, or the first error. As services do, a call is
    repeated whose wait for a lock ran out: on a busy machine that takes no fault."""
    barrier = threading.Barrier(count)

    def one(i: int) -> R:
        barrier.wait(30)
        return ended(lambda: act(i))

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
