"""Reports and workers of a newer version, and names of any kind."""

from __future__ import annotations

import orjson
import pytest
from sqlalchemy import select

from tests.kit.catalog_cases import activate, elected
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import list_events
from tistream.catalog.rows.reports import TaskReport, WorkerReport
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.work.listing import idle_tasks, page_tasks
from tistream.catalog.work.move import move_task
from tistream.catalog.work.reports import encode_report
from tistream.catalog.work.workers import drain_worker, get_worker, heartbeat, list_workers, pulses, register_worker
from tistream.errors import InvalidInput, NotFound, StateForbids


class TestNeighbours:
    def test_a_field_that_a_newer_worker_reports_is_ignored(self, catalog: Catalog) -> None:
        register_worker(catalog, "sorter-1", "sorter", "")
        report = WorkerReport(bytes_per_s=3.0, tasks=(TaskReport(task_id=1, epoch=1),))
        tree = orjson.loads(encode_report(report))
        tree["added"] = tree["tasks"][0]["added"] = {"by": "a newer version"}
        write_report(catalog, "sorter-1", orjson.dumps(tree).decode())
        assert [row.report for row in list_workers(catalog)] == [report]

    @pytest.mark.parametrize("text", ["{", "[]", '{"tasks": {"1": {}}}', '{"tasks": [{"task_id": "one"}]}'])
    def test_a_report_that_cannot_be_read_costs_only_itself(self, catalog: Catalog, text: str) -> None:
        lives = {name: register_worker(catalog, name, "sorter", "") for name in ("sorter-1", "sorter-2", "sorter-3")}
        good = WorkerReport(held_bytes=5)
        for name, life in lives.items():
            heartbeat(catalog, name, life, good)
        write_report(catalog, "sorter-2", text)
        first, second, third = list_workers(catalog)
        assert (first.report, third.report) == (good, good)
        assert (second.report.tasks, second.report.held_bytes) == ((), 0)
        assert [(p["source"], p["code"]) for p in second.report.problems] == [("sorter-2", "TS-1020")]
        heartbeat(catalog, "sorter-2", lives["sorter-2"], good)
        assert get_worker(catalog, "sorter-2").report == good

    def test_a_worker_of_a_newer_kind_is_shown_and_given_nothing(self, catalog: Catalog) -> None:
        register_worker(catalog, "sorter-1", "sorter", "")
        register_worker(catalog, "new-1", "api", "")
        with catalog.transaction() as conn:
            conn.execute(tables.workers.update().where(tables.workers.c.worker_id == "new-1").values(kind="newer"))
        for rows in (list_workers(catalog), pulses(catalog)):
            assert [(row.worker_id, row.kind) for row in rows] == [("new-1", "other"), ("sorter-1", "sorter")]

    def test_a_worker_in_a_newer_state_is_shown_and_given_nothing(self, catalog: Catalog, low: int) -> None:
        lives = {name: register_worker(catalog, name, "sorter", "") for name in ("sorter-1", "sorter-2")}
        with catalog.transaction() as conn:
            conn.execute(tables.workers.update().where(tables.workers.c.worker_id == "sorter-2").values(state="newer"))
        for rows in (list_workers(catalog), pulses(catalog)):
            assert [(row.worker_id, row.state) for row in rows] == [("sorter-1", "up"), ("sorter-2", "other")]
        elected(catalog)
        with pytest.raises(StateForbids, match="sorter-2 is not up"):
            move_task(catalog, low, worker_id="sorter-2", seen_epoch=0)
        assert move_task(catalog, low, worker_id="sorter-1", seen_epoch=0) == 1
        heartbeat(catalog, "sorter-2", lives["sorter-2"])
        with catalog.reading() as conn:
            states = conn.execute(select(tables.workers.c.state).order_by(tables.workers.c.worker_id)).scalars().all()
        assert states == ["up", "newer"], "a heartbeat keeps what the newer version wrote"


class TestNames:
    @pytest.mark.parametrize("name", ["sorter-é", "日本", "sorter ", "sorter\t", "a\x00", "s" * 129])
    def test_an_invalid_name_is_refused_when_stored_and_not_found_in_queries(self, catalog: Catalog, name: str) -> None:
        with pytest.raises(InvalidInput, match="a name has at most 128 printable ASCII"):
            register_worker(catalog, name, "sorter", "")
        assert list_workers(catalog) == []
        with pytest.raises(NotFound):
            get_worker(catalog, name)
        assert page_tasks(catalog, limit=9, owner=name) == []
        assert list_events(catalog, limit=9, subject=name) == []
        assert list_events(catalog, limit=9, kind=name) == []

    def test_names_that_differ_are_two(self, catalog: Catalog) -> None:
        names = ["a", " a", "A", "a b", "a-", "a!"]
        assert [register_worker(catalog, name, "sorter", "") for name in names] == [1] * len(names)
        assert [row.worker_id for row in list_workers(catalog)] == sorted(names)

    def test_an_actor_may_be_called_anything(self, catalog: Catalog) -> None:
        life = register_worker(catalog, "s1", "sorter", "")
        assert drain_worker(catalog, "s1", life, actor="Zoë, the operator ")
        (event,) = list_events(catalog, limit=1, kind="worker.draining")
        assert event.actor == "Zo?, the operator"

    def test_very_many_tenants_may_rest(self, catalog: Catalog) -> None:
        with catalog.transaction() as conn:
            row = {"cluster_id": 1, "kind": "tidb", "state": "PAUSED", "reason": "", "start_ts": 0, "created_ms": 0}
            rows = [{**row, "start_key": b"", "end_key": b"", "tenant_id": n} for n in range(2000)]
            conn.execute(tables.tenants.insert(), rows)
        ids = activate(catalog)
        rest = {TenantState.PAUSED, TenantState.DELETED}
        assert [task.task_id for task in idle_tasks(catalog, limit=9, resting=rest)] == ids


def write_report(catalog: Catalog, worker_id: str, text: str) -> None:
    """Put a report into the worker's row as it stands."""
    with catalog.transaction() as conn:
        conn.execute(tables.workers.update().where(tables.workers.c.worker_id == worker_id).values(report=text))
