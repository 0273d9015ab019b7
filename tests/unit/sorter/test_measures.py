"""Metrics of a sorter's work."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sorter.worker import measures
from sorter.worker.runner import Absorbed
from tests.kit.manual_clock import ManualClock
from tistream import ts
from tistream.ids import Tenant
from tistream.model.task_state import TaskState
from tistream.runtime import metrics

NOW = 1_700_000_000_000
ROUNDED = 0.001  # sums may hold ages of decades from tests before
CLOCK = ManualClock(NOW)
ONE = TaskState(
    task_id=1,
    tenant=Tenant(1, 1),
    durable_ts=ts.compose(NOW - 5000),
    watermark=ts.compose(NOW - 2000),
    cut_timestamps={},
    open_rows=1,
    ready_rows=20,
    held_bytes=300,
    spill_bytes=4000,
    inbox_bytes=50_000,
    watermark_gaps=0,
)


def at(ago_ms: int) -> int:
    return ts.compose(NOW - ago_ms)


def value(name: str, **labels: str) -> float:
    return metrics.REGISTRY.get_sample_value(name, labels) or 0.0


def collected(*states: TaskState, ends: dict[Tenant, int] | None = None) -> dict[str, dict[tuple[str, ...], float]]:
    families = measures.collect(states, CLOCK, ends or {})
    return {f.name: {tuple(s.labels.values()): s.value for s in f.samples} for f in families}


def test_tasks_are_summed_and_a_tenant_is_as_far_as_its_slowest_task() -> None:
    gauges = collected(
        ONE,
        replace(ONE, task_id=2, watermark=at(3000), open_rows=2),
        replace(ONE, task_id=3, tenant=Tenant(1, 2), watermark=None, durable_ts=at(7000), watermark_gaps=1),
    )
    assert gauges["tistream_resolved_ts_lag_seconds"] == {("1", "2"): 7.0, ("1", "1"): 3.0}
    sums = {name.removeprefix("tistream_sorter_"): values[()] for name, values in gauges.items() if () in values}
    assert sums == {
        "tasks": 3,
        "open_rows": 4,
        "ready_rows": 60,
        "held_bytes": 900,
        "spill_bytes": 12_000,
        "inbox_bytes": 150_000,
        "watermark_gaps": 1,
    }


def test_the_lag_counts_from_durable_ts_when_the_watermark_is_lower_after_a_start() -> None:
    assert collected(replace(ONE, watermark=at(9000)))["tistream_resolved_ts_lag_seconds"] == {("1", "1"): 5.0}


def test_a_tenant_whose_stream_ends_lags_up_to_its_end() -> None:
    ends = {ONE.tenant: at(1500), Tenant(1, 2): at(7000)}
    sums = collected(ONE, replace(ONE, task_id=2, tenant=Tenant(1, 2), watermark=at(7000)), ends=ends)
    assert sums["tistream_resolved_ts_lag_seconds"] == {("1", "1"): 0.5, ("1", "2"): 0.0}, "the stream ended 1.5 s ago"


def test_only_the_tenants_that_lag_most_are_shown() -> None:
    many = [replace(ONE, tenant=Tenant(1, n), durable_ts=at(n), watermark=at(n)) for n in range(1, 251)]
    shown = collected(*many)["tistream_resolved_ts_lag_seconds"]
    assert len(shown) == metrics.TENANTS_SHOWN_MAX == 100
    assert {int(tenant) for _, tenant in shown} == set(range(151, 251))


def test_a_flush_tells_its_age_and_what_held_it() -> None:
    names = ("flush", "watermark_gap_wait")
    before = {s: value("tistream_stage_seconds_sum", stage=s) for s in names}
    age, flushes = value("tistream_commit_to_flush_seconds_sum"), value("tistream_flushes_total")
    measures.flushed([(at(900), {1: at(100), 2: at(400)}), (at(300), {})], seconds=0.25, clock=CLOCK)
    after = {s: value("tistream_stage_seconds_sum", stage=s) for s in names}
    assert {s: round(after[s] - before[s], 6) for s in names} == {"flush": 0.25, "watermark_gap_wait": 0.5}
    assert value("tistream_commit_to_flush_seconds_sum") - age == pytest.approx(1.2, abs=ROUNDED)
    assert value("tistream_flushes_total") - flushes == 1


def test_what_came_in_is_counted_by_batches_not_by_rows() -> None:
    rows, size = {"service": "sorter", "direction": "in"}, {"service": "sorter", "direction": "in"}
    before = (
        value("tistream_rows_total", **rows),
        value("tistream_bytes_total", **size),
        value("tistream_stage_seconds_count", stage="match"),
        value("tistream_file_age_seconds_sum", point="absorbed"),
    )
    measures.absorbed(
        Absorbed(batches=3, rows=500, nbytes=9000, more=False), {1: at(700), 2: at(200)}, seconds=0.1, clock=CLOCK
    )
    after = (
        value("tistream_rows_total", **rows),
        value("tistream_bytes_total", **size),
        value("tistream_stage_seconds_count", stage="match"),
        value("tistream_file_age_seconds_sum", point="absorbed"),
    )
    assert [a - b for a, b in zip(after, before, strict=True)] == pytest.approx([500, 9000, 1, 0.2], abs=ROUNDED)
