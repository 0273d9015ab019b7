"""A task over one table whose watermark has stalled, and the region that a store reports for it."""

from __future__ import annotations

from tistream.catalog.tenancy.tenants import TaskKind
from tistream.catalog.work.reports import StuckReport
from tistream.catalog.work.tasks import TaskRow
from tistream.catalog.work.workers import WorkerKind, WorkerRow, WorkerState
from tistream.codec.table_key import table_prefix
from tistream.ids import Tenant
from tistream.keyrange import KeyRange

ORDERS = KeyRange(table_prefix(100), table_prefix(101))
STUCK = StuckReport(
    start_key=ORDERS.start, end_key=ORDERS.end, watermark=5, region_id=12, version=7, store_id=3, file="1/88"
)


def task_of(tenant: Tenant) -> TaskRow:
    """Task 7 of the tenant, owned by the sorter s1."""
    return TaskRow(
        task_id=7, tenant=tenant, kind=TaskKind.DATA, range=ORDERS, start_ts=1, durable_ts=5, epoch=3, owner="s1",
        snapshot_key=None, snapshot_n=0, resubscribe_id=0, error=None,
    )  # fmt: skip


def worker(name: str, kind: WorkerKind, age_ms: int = 0) -> WorkerRow:
    """A worker whose last heartbeat is `age_ms` old."""
    return WorkerRow(
        worker_id=name, kind=kind, address="", incarnation=1, state=WorkerState.UP, heartbeat_age_ms=age_ms
    )
