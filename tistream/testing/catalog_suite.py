"""What every catalog database must do, as a suite: subclass it and say where a fresh, empty database is.

    class TestCatalogOnMine(CatalogSuite):
        @pytest.fixture
        def url(self) -> str: ...

Each guard of the catalog is tried from the losing side. Concurrent callers are threads that start together; time is
moved by writing old heartbeats into the database, never by waiting.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import select

from tistream.catalog import tables
from tistream.catalog.committed import NewSegment, TaskAdvance, commit_flush, find_segments, uppers
from tistream.catalog.engine import Catalog
from tistream.catalog.objects import stored_bytes, superseded_objects, tombstone
from tistream.catalog.owner import acquire_owner, get_owner, renew_owner
from tistream.catalog.schema_versions import add_schema_version, latest_schema_version
from tistream.catalog.snapshots import ALL_CONSUMED, durable_floor, positions, switch_snapshot
from tistream.catalog.stores import (
    assign_store,
    issue_incarnation,
    list_stores,
    note_cut_ts,
    reclaimed,
    set_reclaimed,
    stores_of_dispatcher,
)
from tistream.catalog.tasks import (
    FrontierRow,
    assign_task,
    clear_task_error,
    frontier,
    get_task,
    list_tasks,
    raise_reopen,
    served_watermark,
    stop_task,
    tasks_owned_by,
)
from tistream.catalog.tenants import (
    NewTask,
    TenantState,
    activate_tenant,
    change_state,
    get_tenant,
    list_tenants,
    register_tenant,
)
from tistream.catalog.workers import drain_worker, heartbeat, list_workers, register_worker, retire_worker
from tistream.errors import Fenced, InvalidInput, NotFound, TiStreamError
from tistream.ids import Position, Tenant
from tistream.keyrange import KeyRange
from tistream.limits import LEASE_MS
from tistream.ts import TS_MAX

T = Tenant(7, 0)  # zero is a legal tenant
OTHER = Tenant(7, 1)
START = 449_000_000_000_000_000  # a TSO of today's size
LOW, HIGH, DDL = KeyRange(b"n", b"t\x80"), KeyRange(b"t\x80"), KeyRange(b"m", b"n")


def segment(no: int = 0, lo: int = START + 1, hi: int = START + 10, tables: tuple[int, int] = (1, 1)) -> NewSegment:
    """A segment with the given timestamps and table ids."""
    return NewSegment(
        segment_no=no,
        start_key=b"t\x00\xff",
        end_key=b"t\xff\x00",
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


def flush(catalog: Catalog, key: str | None, *advances: TaskAdvance) -> frozenset[int]:
    """A flush of tenant T."""
    return commit_flush(catalog, tenant=T, object_key=key, object_bytes=1000, advances=advances)


def snapshot(catalog: Catalog, task_id: int, n: int, at: dict[int, dict[int, Position]], epoch: int = 0) -> bool:
    """Switch to snapshot `n`."""
    key = f"snapshots/{task_id}/{epoch}-{n}"
    return switch_snapshot(
        catalog, task_id, epoch=epoch, snapshot_key=key, snapshot_n=n, object_bytes=10, positions=at
    )


def together[R](count: int, act: Callable[[int], R]) -> list[R]:
    """Call `act(0..count-1)` from as many threads at once; the results, or the first error."""
    barrier = threading.Barrier(count)

    def one(i: int) -> R:
        barrier.wait(30)
        return act(i)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))
