"""What a catalog must bear from neighbours of a newer version: both versions run side by side during an upgrade."""

from __future__ import annotations

import orjson
import pytest

from tistream.catalog import tables
from tistream.catalog.engine import Catalog
from tistream.catalog.reports import TaskReport, WorkerReport, encode_report
from tistream.catalog.workers import get_worker, heartbeat, list_workers, pulses, register_worker


class NeighbourSuite:
    """Reports and workers that this version does not know."""

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
        assert [(row.worker_id, row.kind) for row in list_workers(catalog)] == [
            ("new-1", "other"),
            ("sorter-1", "sorter"),
        ]
        assert [(pulse.worker_id, pulse.kind) for pulse in pulses(catalog)] == [
            ("new-1", "other"),
            ("sorter-1", "sorter"),
        ]


def write_report(catalog: Catalog, worker_id: str, text: str) -> None:
    """Put a report into the worker's row as it stands."""
    with catalog.transaction() as conn:
        conn.execute(tables.workers.update().where(tables.workers.c.worker_id == worker_id).values(report=text))
