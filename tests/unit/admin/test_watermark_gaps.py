"""Why a range is stalled: each cause from the reports of workers, and nothing where all is well."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.kit.stalled_task import ORDERS, STUCK, task_of, worker
from tistream import ts as tso
from tistream.admin.core.watermark_gaps import Cause, Known, WatermarkGap, awaiting, paused, watermark_gaps_of
from tistream.catalog.rows.reports import StoreReport, StuckReport, TaskReport
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.workers import WorkerKind
from tistream.codec.table_key import record_key
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.limits import LEASE_MS

T = Tenant(1, 1)
TASK = task_of(T)


def known(
    report: TaskReport | None = None, silent_s: float | None = 0.5, dispatcher: str | None = "d1", **ages_ms: int
) -> Known:
    return Known(
        workers={
            "s1": worker("s1", WorkerKind.SORTER, ages_ms.get("s1", 0)),
            "d1": worker("d1", WorkerKind.DISPATCHER, ages_ms.get("d1", 0)),
        },
        tasks={} if report is None else {7: report},
        stores={} if silent_s is None else {(T, 3): StoreReport(tenant=T, store_id=3, silent_s=silent_s)},
        dispatchers={(T, 3): dispatcher},
        unix_ms=3_600_000,
    )


def gaps_of(task: TaskRow, facts: Known) -> list[WatermarkGap]:
    return watermark_gaps_of(task, facts, {100: "shop.orders"}.get)


def only(task: TaskRow, facts: Known) -> WatermarkGap:
    (gap,) = gaps_of(task, facts)
    return gap


def report(standing_s: float = 40.0, *stuck: StuckReport) -> TaskReport:
    return TaskReport(task_id=7, epoch=3, standing_s=standing_s, stuck=stuck)


def test_a_task_that_advances_has_no_gap() -> None:
    assert gaps_of(TASK, known()) == []
    assert gaps_of(TASK, known(report(0.0))) == []
    assert gaps_of(TASK, known(report(9.9, STUCK))) == []


def test_a_task_at_the_end_of_its_stream_is_not_stalled() -> None:
    facts = known(report(40.0, STUCK))
    assert gaps_of(TASK, replace(facts, ends={T: TASK.durable_ts})) == []
    assert gaps_of(TASK, replace(facts, ends={T: TASK.durable_ts + 1})) != []
    silent = known(report(40.0, STUCK), s1=LEASE_MS + 1)
    assert only(TASK, replace(silent, ends={T: 1})).cause is Cause.SILENT, "what it lacks is named nevertheless"


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        (known(report(40.0, STUCK), dispatcher=None), "it has no dispatcher"),
        (known(report(40.0, STUCK), silent_s=None), "last file 1/88; the store writes"),
    ],
)
def test_the_probable_cause_is_named(facts: Known, words: str) -> None:
    assert words in only(TASK, facts).sentence


def test_a_watermark_gap_is_reported_at_once_and_names_its_range() -> None:
    part = replace(STUCK, start_key=record_key(100, 5), watermark=None, region_id=0, version=0, store_id=0, file="")
    gap = only(TASK, known(report(0.1, part)))
    assert gap.cause is Cause.WATERMARK_GAP
    assert gap.sentence == (
        "the watermark of [shop.orders, row 5 to its end) waits for a region that no store has reported"
    )
    assert gap.range == KeyRange(record_key(100, 5), ORDERS.end)


def test_the_reason_of_the_sorter_is_appended() -> None:
    assert only(TASK, known(report(40.0, replace(STUCK, reason="a lock of 10:00")))).sentence.endswith(
        "a lock of 10:00"
    )


def test_an_open_lock_is_named_with_its_transaction_and_age() -> None:
    begun = tso.compose(1_000)
    task, key = replace(TASK, durable_ts=begun), record_key(100, 5)
    locked = StuckReport(start_key=key, end_key=key + b"\0", watermark=begun, start_ts=begun, reason="2 are here")
    region, lock = gaps_of(task, known(report(40.0, replace(STUCK, watermark=begun), locked)))
    assert region.region_id == 12
    assert lock.sentence == (
        f"the watermark of shop.orders waits for transaction {begun}, which began 59 min 59 s ago and has a lock on "
        f"shop.orders, row 5 (key {key.hex()}); 2 are here"
    )
    assert (lock.cause, lock.watermark, lock.range) == (Cause.STANDING, begun, KeyRange(key, key + b"\0"))


def test_a_younger_transaction_is_not_what_the_watermark_waits_for() -> None:
    younger = StuckReport(start_key=b"k", end_key=b"k\0", watermark=5, start_ts=7)
    assert only(TASK, known(report(40.0, STUCK, younger))).region_id == 12
    opening = replace(younger, watermark=None, start_ts=1)
    assert only(TASK, known(report(40.0, replace(STUCK, watermark=None), opening))).region_id == 12


def test_a_stalled_watermark_without_a_reported_reason() -> None:
    assert "its sorter did not report why" in only(TASK, known(report(40.0))).sentence


def test_a_task_whose_owner_is_unknown() -> None:
    assert "which has never registered" in only(replace(TASK, owner="s9"), known()).sentence


def test_a_report_of_another_epoch_is_ignored() -> None:
    assert gaps_of(replace(TASK, epoch=4), known(report(40.0, STUCK))) == []


def test_tenants_that_are_paused_or_deleted() -> None:
    assert gaps_of(replace(TASK, owner=None), replace(known(), resting={T})) == []
    assert only(replace(TASK, error="why"), replace(known(), resting={T})).cause is Cause.STOPPED
    assert paused(T, "").sentence == "tenant 1/1 is paused"
    assert paused(T, "a test").sentence == "tenant 1/1 is paused: a test"
    assert "waits for its first schema snapshot" in awaiting(T).sentence
