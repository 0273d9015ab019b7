"""Workers' processes without an HTTP port of their own show probes and metrics where they are told to."""

from __future__ import annotations

import re
import time
from pathlib import Path

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from simulator.chaos.servers.processes import TiStreamProcess, running
from tests.kit.log_builder import LogBuilder
from tistream import config
from tistream.catalog.database.engine import Catalog
from tistream.objectstore.local import LocalStore
from tistream.runtime.metrics import described

WAIT_S = 120.0


def told_port(process: TiStreamProcess) -> str:
    """The address that the process says when it has started."""
    deadline = time.monotonic() + WAIT_S
    while not (found := re.search(r"probes at (http://[\d.]+:\d+)", process.output())):
        assert process.alive, process.output()
        assert time.monotonic() < deadline, process.output()
        time.sleep(0.05)
    return found[1]


def until_ready(url: str) -> dict[str, str]:
    deadline = time.monotonic() + WAIT_S
    while True:
        answer = httpx2.get(f"{url}/readyz")
        if answer.status_code == 200:
            checks: dict[str, str] = answer.json()["checks"]
            return checks
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.1)


def shown(url: str) -> dict[str, float]:
    """Families without labels, and their values."""
    families = text_string_to_metric_families(httpx2.get(f"{url}/metrics").text)
    return {s.name: s.value for family in families for s in family.samples if not s.labels}


def test_a_dispatcher_and_a_sorter_show_what_they_do(tmp_path: Path) -> None:
    where = ("--catalog", f"sqlite:///{tmp_path}/catalog.db", "--object-store", f"file://{tmp_path}/bucket")
    catalog = Catalog(where[1])
    catalog.migrate()
    LogBuilder(catalog, LocalStore(tmp_path / "bucket")).register()
    processes = [
        TiStreamProcess(role, "--name", f"{role}-1", *where, "--metrics-port", "0", log=tmp_path / f"{role}.log")
        for role in ("dispatch", "sort")
    ]
    with running(processes):
        names: set[str] = set()
        for process in processes:
            url = told_port(process)
            assert until_ready(url) == {"catalog": "ok", "object store": "ok", "lease": "ok", "services": "ok"}
            assert httpx2.get(f"{url}/healthz").json()["status"] == "ok"
            found = shown(url)
            assert 0 <= found["tistream_lease_age_seconds"] < WAIT_S
            assert found["process_resident_memory_bytes"] > 1e6
            names |= set(found)
        assert {"tistream_dispatcher_stores", "tistream_sorter_tasks", "tistream_sorter_held_bytes"} <= names
        assert all(process.stop() == 0 for process in processes)
    catalog.close()


def test_without_being_told_there_is_no_port() -> None:
    assert config.load().metrics.port == -1


def test_every_name_that_is_shown_is_a_documented_one() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "metrics.md").read_text("utf-8")
    assert all(f"`{each.name}`" in page for each in described())
