"""A task over one table whose watermark has stalled, and the region that a store reports for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tistream.catalog.rows.reports import StuckReport
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.tenants import TaskKind
from tistream.catalog.rows.workers import WorkerKind, WorkerRow, WorkerState
from tistream.codec.table_key import table_prefix
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.release import THIS_RELEASE

ORDERS = KeyRange(table_prefix(100), table_prefix(101))
STUCK = StuckReport(
    start_key=ORDERS.start, end_key=ORDERS.end, watermark=5, region_id=12, version=7, store_id=3, file="1/88"
)


def task_of(tenant: Tenant, **more: Any) -> TaskRow:
    """Task 7 of the tenant, owned by the sorter s1, with `more` instead."""
    row = TaskRow(
        task_id=7, tenant=tenant, kind=TaskKind.DATA, range=ORDERS, start_ts=1, durable_ts=5, epoch=3, owner="s1",
        snapshot_key=None, snapshot_no=0, resubscribe_id=0, error=None,
    )  # fmt: skip
    return replace(row, **more)


def worker(name: str, kind: WorkerKind, age_ms: int = 0) -> WorkerRow:
    """A worker whose last heartbeat is `age_ms` old."""
    return WorkerRow(
        worker_id=name,
        kind=kind,
        address="",
        release=THIS_RELEASE,
        incarnation=1,
        state=WorkerState.UP,
        heartbeat_age_ms=age_ms,
    )
