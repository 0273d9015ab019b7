"""Metrics of the whole service from the catalog: tenants, tasks, stops, workers, jobs, consumers and the leader.

Each figure is one aggregate statement, made at most once in CATALOG_LOOK_S. None grows with the number of tables;
lag is read for the TENANTS_SHOWN_MAX slowest tenants, and for the CONSUMERS_SHOWN_MAX consumers that have been idle
for longest; `changefeed_gauges` chooses changefeeds. While the catalog is unavailable only `tistream_catalog_up` 0 is
shown: stale figures would look like good ones.
"""

from __future__ import annotations

import threading
from typing import Any

from sqlalchemy import and_, case, func, select

from tistream import ts
from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.generation import CatalogState
from tistream.catalog.database.tables import consumer_members, consumer_partitions, consumers, tasks, tenants, workers
from tistream.catalog.rows.jobs import OPEN, JobState
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.rows.workers import WorkerState
from tistream.catalog.tenancy.log_readers import ReaderState
from tistream.catalog.work.changefeed_gauges import CHANGEFEEDS, changefeed_metrics
from tistream.catalog.work.exports import export_status
from tistream.catalog.work.job_rows import job_figures
from tistream.catalog.work.leader import get_leader
from tistream.catalog.work.stopped_items import STORED, count_stopped_items
from tistream.catalog.work.stream_ends import ENDED
from tistream.clock import Clock
from tistream.errors import TiStreamError
from tistream.limits import LEASE_MS
from tistream.runtime import metrics
from tistream.runtime.metrics import Metric

_ENDED = ENDED.subquery("ended")
_C, _P, _M, _T = consumers.c, consumer_partitions.c, consumer_members.c, tasks.c
_KEYS = ("cluster_id", "tenant_id", "consumer_id")
_SLOWEST = (
    select(tasks.c.cluster_id, tasks.c.tenant_id, func.min(tasks.c.durable_ts).label("durable_ts"), _ENDED.c.end_ts)
    .join(tenants, and_(tenants.c.cluster_id == tasks.c.cluster_id, tenants.c.tenant_id == tasks.c.tenant_id))
    .outerjoin(_ENDED, and_(_ENDED.c.cluster_id == tasks.c.cluster_id, _ENDED.c.tenant_id == tasks.c.tenant_id))
    .where(tenants.c.state == TenantState.ACTIVE)
    .group_by(tasks.c.cluster_id, tasks.c.tenant_id, _ENDED.c.end_ts)
    .order_by(_ENDED.c.end_ts.is_not(None), func.min(tasks.c.durable_ts))
    .limit(metrics.TENANTS_SHOWN_MAX)
)
_TENANTS = select(tenants.c.state, func.count().label("count")).group_by(tenants.c.state)
_WORKER_STATE = case(
    (and_(workers.c.state != WorkerState.GONE, workers.c.heartbeat_ms + LEASE_MS < now_ms()), "silent"),
    else_=workers.c.state,
).label("shown")
_WORKERS = select(workers.c.kind, _WORKER_STATE, func.count().label("count")).group_by(workers.c.kind, _WORKER_STATE)
_TASKS = select(
    func.count(case((tasks.c.error.is_not(None), 1))).label("stopped"),
    func.count(case((and_(tasks.c.error.is_(None), tasks.c.owner.is_(None)), 1))).label("waiting"),
    func.count(case((and_(tasks.c.error.is_(None), tasks.c.owner.is_not(None)), 1))).label("running"),
)


_SERVED = select(_T.cluster_id, _T.tenant_id, func.min(_T.durable_ts).label("ts")).group_by(_T.cluster_id, _T.tenant_id)
_SERVED_OF = _SERVED.subquery("served")
_READ = and_(*(_M[name] == _P[name] for name in _KEYS), _M.member == _P.member, _M.expires_ms > now_ms())
_PARTS = (
    select(*(_P[name] for name in _KEYS), (func.count() - func.count(_M.member)).label("unread"))
    .select_from(consumer_partitions.outerjoin(consumer_members, _READ))
    .group_by(*(_P[name] for name in _KEYS))
    .subquery("parts")
)
_MEMBERS = (
    select(func.count()).where(*(_M[name] == _C[name] for name in _KEYS), _M.expires_ms > now_ms()).scalar_subquery()
)
_CONSUMERS = (
    select(
        *(_C[name] for name in _KEYS),
        _C.checkpoint_ts,
        _C.idle_limit_ms,
        (now_ms() - _C.last_active_ms).label("idle_ms"),
        _SERVED_OF.c.ts.label("served_ts"),
        _PARTS.c.unread,
        _MEMBERS.label("members"),
    )
    .join(_PARTS, and_(*(_PARTS.c[name] == _C[name] for name in _KEYS)))
    .join(_SERVED_OF, and_(_SERVED_OF.c.cluster_id == _C.cluster_id, _SERVED_OF.c.tenant_id == _C.tenant_id))
    .where(_C.state == ReaderState.NORMAL)
    .order_by(_C.last_active_ms)
    .limit(metrics.CONSUMERS_SHOWN_MAX)
)


class CatalogGauges:
    """A `Collect`. Thread-safe."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog, self._clock = catalog, clock
        self._lock = threading.Lock()
        self._read_s: float | None = None
        self._metrics: list[Metric] = []

    def __call__(self) -> list[Metric]:
        with self._lock:
            now_s = self._clock.monotonic()
            if self._read_s is None or now_s - self._read_s >= metrics.CATALOG_LOOK_S:
                self._metrics, self._read_s = self._read(), now_s
            return self._metrics

    def _read(self) -> list[Metric]:
        try:
            states = {row.state: int(row.count) for row in self._rows(_TENANTS)}
            values = [
                *self._lags(states),
                *self._tasks(),
                self._stops(),
                self._workers(),
                *self._leader(),
                *self._exports(),
                *self._jobs(),
                *self._consumers(),
                *changefeed_metrics(self._rows(CHANGEFEEDS)),
            ]
        except TiStreamError:
            return [metrics.single("tistream_catalog_up", 0)]
        return [metrics.single("tistream_catalog_up", 1), *values]

    def _lags(self, states: dict[str, int]) -> list[Metric]:
        family, now_ms, lags = metrics.collected("tistream_checkpoint_lag_seconds"), self._clock.unix_ms(), [0.0]
        rows = self._rows(_SLOWEST)
        for row in rows:
            if not row.durable_ts:  # a keyspace without a pushed change
                continue
            lags.append(ts.lag_ms(int(row.durable_ts), now_ms, row.end_ts) / 1000)
            family.add_metric([str(row.cluster_id), str(row.tenant_id)], lags[-1])
        counts = metrics.collected("tistream_tenants")
        for state in TenantState:
            counts.add_metric([state], states.get(state, 0))
        hidden = max(0, states.get(TenantState.ACTIVE, 0) - len(rows))
        return [
            family,
            metrics.single("tistream_checkpoint_lag_max_seconds", max(lags)),
            counts,
            metrics.single("tistream_tenants_not_shown", hidden),
        ]

    def _tasks(self) -> list[Metric]:
        family = metrics.collected("tistream_tasks")
        for state, count in self._rows(_TASKS)[0]._asdict().items():
            family.add_metric([str(state)], int(count))
        return [family]

    def _stops(self) -> Metric:
        family, counts = metrics.collected("tistream_stops"), count_stopped_items(self._catalog)
        for scope in STORED:
            family.add_metric([scope], counts.get(scope, 0))
        return family

    def _workers(self) -> Metric:
        family = metrics.collected("tistream_workers")
        for row in self._rows(_WORKERS):
            family.add_metric([str(row.kind), str(row.shown)], int(row.count))
        return family

    def _leader(self) -> list[Metric]:
        row = get_leader(self._catalog)
        if row is None:
            return []
        age_s = row.heartbeat_age_ms / 1000
        return [metrics.single("tistream_owner_age_seconds", age_s), metrics.single("tistream_owner_epoch", row.epoch)]

    def _exports(self) -> list[Metric]:
        status = export_status(self._catalog)
        unconfirmed = metrics.single("tistream_catalog_unconfirmed", status.state is CatalogState.UNCONFIRMED)
        if not status.is_on:
            return [unconfirmed]
        shown: list[Metric] = [unconfirmed, metrics.single("tistream_catalog_waiting_bytes", status.waiting_bytes)]
        if status.newest is not None:
            shown.append(metrics.single("tistream_catalog_export_age_seconds", status.newest.age_ms / 1000))
        return shown

    def _jobs(self) -> list[Metric]:
        figures, family = job_figures(self._catalog), metrics.collected("tistream_jobs")
        for state in (*OPEN, JobState.FAILED):
            family.add_metric([state], figures.by_state.get(state, 0))
        return [
            family,
            metrics.single("tistream_job_oldest_queued_seconds", figures.oldest_queued_ms / 1000),
            metrics.single("tistream_job_bytes_read", figures.bytes_read),
            metrics.single("tistream_job_requests_saved", figures.requests_saved),
        ]

    def _consumers(self) -> list[Metric]:
        families = [metrics.collected(name) for name, _ in metrics.OF_CONSUMERS]
        for row in self._rows(_CONSUMERS):
            lag_s = max(0, ts.physical_ms(int(row.served_ts)) - ts.physical_ms(int(row.checkpoint_ts))) / 1000
            values = lag_s, row.members, row.unread, max(0, row.idle_ms) / 1000, row.idle_limit_ms / 1000
            labels = [str(row.cluster_id), str(row.tenant_id), row.consumer_id]
            for family, value in zip(families, values, strict=True):
                family.add_metric(labels, float(value))
        return list(families)

    def _rows(self, query: Any) -> list[Any]:
        with self._catalog.reading() as conn:
            return list(conn.execute(query))
