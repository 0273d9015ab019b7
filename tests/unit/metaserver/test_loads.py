"""What the owner of assignment believes about loads."""

from __future__ import annotations

from metaserver.core.loads import FORGET_S, SETTLING_S, Load, Loads, store_loads, task_loads
from tistream.catalog.rows.reports import StoreReport, TaskReport, WorkerReport
from tistream.ids import Tenant

HOT, COLD = Load(1e6, 10.0, 5e6), Load(1.0, 0.0, 0.0)


def test_the_newest_report_counts_and_is_forgotten_after_a_while() -> None:
    loads = Loads()
    loads.learn([(1, COLD), (2, COLD)], 0.0)
    loads.learn([(1, HOT)], 2.0)
    assert dict(loads.items()) == {1: HOT, 2: COLD}
    loads.learn([(1, HOT)], FORGET_S + 1)
    assert dict(loads.items()) == {1: HOT}


def test_after_a_move_the_belief_from_before_stays_for_a_while() -> None:
    loads = Loads()
    loads.learn([(1, HOT)], 0.0)
    loads.note_move(1, 1.0)
    loads.learn([(1, COLD)], SETTLING_S - 1)
    assert dict(loads.items()) == {1: HOT}
    loads.learn([(1, COLD)], SETTLING_S + 2)
    assert dict(loads.items()) == {1: COLD}


def test_a_worker_is_believed_about_what_it_has() -> None:
    tasks = (TaskReport(task_id=1, epoch=3, bytes_per_s=9.0, open_rows=2, held_bytes=7), TaskReport(task_id=2, epoch=1))
    owners = {1: "s1", 2: "s2"}
    assert list(task_loads("s1", WorkerReport(tasks=tasks), owners.get)) == [(1, Load(9.0, 2.0, 7.0))]  # type: ignore[arg-type]
    tenant = Tenant(1, 2)
    report = WorkerReport(stores=(StoreReport(tenant=tenant, store_id=4, bytes_per_s=5.0),))
    assert list(store_loads("d1", report, {(tenant, 4): "d1"}.get)) == [((tenant, 4), Load(5.0, 0.0, 0.0))]  # type: ignore[arg-type]
    assert list(store_loads("d2", report, {(tenant, 4): "d1"}.get)) == []  # type: ignore[arg-type]
