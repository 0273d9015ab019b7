"""Metrics of a sorter's work, per round of a task and per flush of a tenant."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sorter.worker.runner import Absorbed
from tistream import ts
from tistream.clock import Clock
from tistream.ids import Tenant
from tistream.model.task_state import TaskState
from tistream.runtime import metrics
from tistream.runtime.metrics import Metric

_MATCH, _WATERMARK_GAP, _FLUSH = (metrics.STAGE.labels(stage) for stage in ("match", "watermark_gap_wait", "flush"))
_FILE_AGE = metrics.FILE_AGE.labels("absorbed")
_ROWS_IN, _BYTES_IN = metrics.ROWS.labels("sorter", "in"), metrics.BYTES.labels("sorter", "in")


def absorbed(took: Absorbed, cut_timestamps: Mapping[int, int], *, seconds: float, clock: Clock) -> None:
    """Count the batches a task took. `cut_timestamps`: store -> cut_ts of its newest file."""
    _ROWS_IN.inc(took.rows)
    _BYTES_IN.inc(took.nbytes)
    _MATCH.observe(seconds)
    if cut_timestamps:
        _FILE_AGE.observe(_age_s(max(cut_timestamps.values()), clock))


def flushed(tasks: Sequence[tuple[int, Mapping[int, int]]], *, seconds: float, clock: Clock) -> None:
    """Count a flush. `tasks`: (new durable_ts, cut_ts per store). The gap wait of a task is the distance from its
    durable watermark to the lowest cut_ts of its stores."""
    metrics.FLUSHES.inc()
    _FLUSH.observe(seconds)
    for durable_ts, cut_timestamps in tasks:
        metrics.COMMIT_TO_FLUSH.observe(_age_s(durable_ts, clock))
        if cut_timestamps:
            _WATERMARK_GAP.observe(
                max(0, ts.physical_ms(min(cut_timestamps.values())) - ts.physical_ms(durable_ts)) / 1000
            )


def collect(reports: Iterable[TaskState], clock: Clock, ends: Mapping[Tenant, int]) -> list[Metric]:
    """Sums over the tasks of this process, and the lag of its tenants. `ends`: where the streams of tenants end that
    do."""
    tasks = list(reports)
    sums = {
        "tistream_sorter_tasks": len(tasks),
        "tistream_sorter_open_rows": sum(t.open_rows for t in tasks),
        "tistream_sorter_ready_rows": sum(t.ready_rows for t in tasks),
        "tistream_sorter_held_bytes": sum(t.held_bytes for t in tasks),
        "tistream_sorter_spill_bytes": sum(t.spill_bytes for t in tasks),
        "tistream_sorter_inbox_bytes": sum(t.inbox_bytes for t in tasks),
        "tistream_sorter_watermark_gaps": sum(t.watermark_gaps for t in tasks),
    }
    now_ms, lowest = clock.unix_ms(), dict[Tenant, int]()
    for t in tasks:
        at = t.durable_ts if t.watermark is None else max(t.watermark, t.durable_ts)
        lowest[t.tenant] = min(at, lowest.get(t.tenant, at))
    family = metrics.collected("tistream_resolved_ts_lag_seconds")
    lags = {tenant: ts.lag_ms(at, now_ms, ends.get(tenant)) for tenant, at in lowest.items() if at}
    for tenant, lag_ms in sorted(lags.items(), key=lambda each: -each[1])[: metrics.TENANTS_SHOWN_MAX]:
        family.add_metric([str(tenant.cluster_id), str(tenant.tenant_id)], lag_ms / 1000)
    return [*(metrics.single(name, value) for name, value in sums.items()), family]


def _age_s(at_ts: int, clock: Clock) -> float:
    return max(0.0, (clock.unix_ms() - ts.physical_ms(at_ts)) / 1000)
