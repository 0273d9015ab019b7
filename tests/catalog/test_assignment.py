"""Assignment of many tasks and stores at once, their stamps, pulses, and tenants that are not active."""

from __future__ import annotations

import pytest

from tests.kit.assignments import assign_store, assign_task
from tests.kit.catalog_cases import OTHER, START, T, activate, advance, elected, flush
from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.reports import WorkerReport
from tistream.catalog.rows.tasks import Assignment, TaskPlace
from tistream.catalog.rows.tenants import TaskKind, TenantState
from tistream.catalog.tenancy.tenants import change_state, register_tenant
from tistream.catalog.work import stores
from tistream.catalog.work.reshape import request_merge
from tistream.catalog.work.tasks import (
    assign_tasks,
    count_tasks_of,
    get_task,
    owned_stamp,
    stop_task,
    task_places,
    tasks_owned_by,
    tasks_stamp,
)
from tistream.catalog.work.workers import drain_worker, heartbeat, list_workers, pulses, register_worker, retire_worker
from tistream.ids import Tenant


class TestAssignment:
    def test_many_tasks_are_assigned_each_by_its_own_guard(self, catalog: Catalog) -> None:
        low, high, ddl = activate(catalog)
        leader_epoch = elected(catalog)
        assert assign_tasks(catalog, [], leader_epoch=leader_epoch) == 0
        assert assign_task(catalog, high, worker_id="sorter-9", seen_epoch=0, leader_epoch=leader_epoch) == 1
        assignments = [Assignment(task_id, "sorter-1", 0) for task_id in (low, high, ddl, 404)]
        assert assign_tasks(catalog, assignments, leader_epoch=leader_epoch + 1) == 0
        assert assign_tasks(catalog, assignments, leader_epoch=0) == 0
        assert assign_tasks(catalog, assignments, leader_epoch=leader_epoch) == 2
        rows = {task_id: get_task(catalog, task_id) for task_id in (low, high, ddl)}
        assert {task_id: (row.owner, row.epoch) for task_id, row in rows.items()} == {
            low: ("sorter-1", 1),
            high: ("sorter-9", 1),
            ddl: ("sorter-1", 1),
        }
        assert count_tasks_of(catalog, "sorter-1") == 2
        assert task_places(catalog)[0] == TaskPlace(low, T, TaskKind.DATA, 1, "sorter-1")

    def test_the_stamp_changes_with_every_assignment_and_every_task(self, catalog: Catalog) -> None:
        stamps = [tasks_stamp(catalog)]
        low, *_ = activate(catalog)
        leader_epoch = elected(catalog)
        stamps.append(tasks_stamp(catalog))
        assert tasks_stamp(catalog) == stamps[-1]
        assign_task(catalog, low, worker_id="sorter-1", seen_epoch=0, leader_epoch=leader_epoch)
        stamps.append(tasks_stamp(catalog))
        register_worker(catalog, "sorter-1", "sorter", "")
        stamps.append(tasks_stamp(catalog))
        activate(catalog, OTHER)
        stamps.append(tasks_stamp(catalog))
        assert len(set(stamps)) == len(stamps)

    def test_the_stamp_of_stores_changes_with_every_assignment_and_every_store(self, catalog: Catalog) -> None:
        stamps = [stores.stores_stamp(catalog)]
        for tenant, store_id in ((T, 1), (T, 2), (OTHER, 1)):
            stores.issue_incarnation(catalog, tenant, store_id)
            stamps.append(stores.stores_stamp(catalog))
        leader_epoch = elected(catalog)
        assert stores.stores_stamp(catalog) == stamps[-1]
        assign_store(catalog, T, 2, worker_id="d1", seen_epoch=0, leader_epoch=leader_epoch)
        stamps.append(stores.stores_stamp(catalog))
        register_worker(catalog, "d1", "dispatcher", "")
        stamps.append(stores.stores_stamp(catalog))
        assert len(set(stamps)) == len(stamps)

    def test_many_stores_are_assigned_each_by_its_own_guard(self, catalog: Catalog) -> None:
        for store_id in (1, 2):
            stores.issue_incarnation(catalog, T, store_id)
        epoch = elected(catalog)
        assert stores.assign_stores(catalog, [], leader_epoch=epoch) == 0
        assert assign_store(catalog, T, 2, worker_id="d9", seen_epoch=0, leader_epoch=epoch) == 1
        chosen = [stores.StoreAssignment(tenant, store_id, "d1", 0) for tenant in (T, OTHER) for store_id in (1, 2)]
        assert stores.assign_stores(catalog, chosen, leader_epoch=epoch + 1) == 0
        assert stores.assign_stores(catalog, chosen, leader_epoch=epoch) == 1
        assert stores.store_places(catalog) == [stores.StorePlace(T, 1, 1, "d1"), stores.StorePlace(T, 2, 1, "d9")]
        assert stores.count_stores_of(catalog, "d1") == 1

    @pytest.mark.parametrize("more", [0, 200])
    def test_the_stores_of_many_tenants_are_known_together(self, catalog: Catalog, more: int) -> None:
        for store_id in (1, 7):
            stores.issue_incarnation(catalog, T, store_id)
        stores.issue_incarnation(catalog, OTHER, 3)
        same_number = Tenant(T.cluster_id + 1, T.tenant_id)
        register_tenant(catalog, same_number)
        stores.issue_incarnation(catalog, same_number, 9)
        tenants = {T, OTHER, *(Tenant(77, n) for n in range(more))}
        assert stores.stores_of_tenants(catalog, tenants) == {T: {1, 7}, OTHER: {3}}

    def test_signs_of_life_come_without_reports(self, catalog: Catalog) -> None:
        lives = {name: register_worker(catalog, name, "sorter", "") for name in ("a", "b", "c")}
        before = {p.worker_id: p for p in pulses(catalog)}
        heartbeat(catalog, "a", lives["a"], WorkerReport(held_bytes=5))
        drain_worker(catalog, "b", lives["b"])
        retire_worker(catalog, "c", lives["c"])
        after = {p.worker_id: p for p in pulses(catalog)}
        assert [(p.kind, p.state, p.incarnation) for p in after.values()] == [
            ("sorter", "up", 1),
            ("sorter", "draining", 1),
            ("sorter", "gone", 1),
        ]
        assert after["a"].heartbeat_ms >= before["a"].heartbeat_ms
        assert after["b"].heartbeat_ms == before["b"].heartbeat_ms
        assert list_workers(catalog)[0].report.held_bytes == 5

    def test_the_tasks_of_a_tenant_that_is_not_active_rest_and_keep_their_owner(self, catalog: Catalog) -> None:
        low, high, ddl = activate(catalog)
        activate(catalog, OTHER)
        leader_epoch = elected(catalog)
        life = register_worker(catalog, "sorter-1", "sorter", "")
        everything = [Assignment(row.task_id, "sorter-1", 0) for row in task_places(catalog)]
        assert assign_tasks(catalog, everything, leader_epoch=leader_epoch) == 6
        assert change_state(catalog, T, seen=TenantState.ACTIVE, to=TenantState.PAUSED, reason="")
        assert [row.tenant for row in tasks_owned_by(catalog, "sorter-1", life)] == [OTHER] * 3
        assert count_tasks_of(catalog, "sorter-1") == 6
        assert change_state(catalog, T, seen=TenantState.PAUSED, to=TenantState.ACTIVE, reason="")
        assert {row.task_id for row in tasks_owned_by(catalog, "sorter-1", life)} >= {low, high, ddl}

    def test_the_stamp_of_a_workers_tasks_changes_with_all_that_others_decide(self, catalog: Catalog) -> None:
        low, high, ddl = activate(catalog)
        leader_epoch = elected(catalog)
        life = register_worker(catalog, "sorter-1", "sorter", "")
        seen = [owned_stamp(catalog, "sorter-1", life)]

        def is_news() -> bool:
            seen.append(owned_stamp(catalog, "sorter-1", life))
            return seen[-1] not in seen[:-1]

        for n, task in enumerate((low, high, ddl)):
            assert assign_task(catalog, task, worker_id="sorter-1", seen_epoch=0, leader_epoch=leader_epoch) == 1
            assert is_news(), n
        assert flush(catalog, None, advance(low, START, START + 1, epoch=1)) == {low}
        assert not is_news(), "progress is no news"
        assert request_merge(catalog, low, high, seen_epochs=(1, 1))
        assert is_news()
        assert stop_task(catalog, ddl, epoch=1, error="broken")
        assert is_news()
        assert change_state(catalog, T, seen=TenantState.ACTIVE, to=TenantState.PAUSED, reason="")
        assert owned_stamp(catalog, "sorter-1", life) == seen[0], "nothing is here"
        assert change_state(catalog, T, seen=TenantState.PAUSED, to=TenantState.ACTIVE, reason="")
        newer = register_worker(catalog, "sorter-1", "sorter", "")
        assert owned_stamp(catalog, "sorter-1", life) == seen[0], "an old life must not learn the new epochs"
        assert owned_stamp(catalog, "sorter-1", newer) not in seen
