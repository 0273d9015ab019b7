"""Probes and metrics of a process."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from tests.kit.catalog_cases import elected, new_catalog
from tests.kit.manual_clock import ManualClock
from tistream import __version__
from tistream.catalog.work.exports import begin_export, verify_export
from tistream.errors import CatalogUnavailable, StoreUnavailable
from tistream.http.probes import probe_app
from tistream.http.readiness import Probes, export_age, lease_age, lease_holds, none_stopped, store_answers
from tistream.limits import LEASE_MS
from tistream.model.problem import Problem
from tistream.objectstore.memory import MemoryStore
from tistream.runtime import metrics
from tistream.runtime.service import Repeating


def fine() -> None:
    """A part that answers."""


def away() -> None:
    raise CatalogUnavailable(cause="down")


def ask(probes: Probes, path: str) -> Any:
    with TestClient(probe_app(probes)) as http:
        return http.get(path)


def test_the_age_of_the_newest_export_is_shown_while_exports_are_on(tmp_path: Path) -> None:
    catalog = new_catalog(tmp_path)
    catalog.migrate()
    probes, epoch = Probes(facts=export_age(catalog)), elected(catalog)
    assert ask(probes, "/healthz").json() == {"status": "ok", "problems": []}
    number = begin_export(catalog, leader_epoch=epoch)
    assert ask(probes, "/healthz").json()["catalog_export_age_s"] is None
    taken_ms = time.time_ns() // 1_000_000 - 7_000
    verify_export(catalog, number, "exports/a", snapshot_ms=taken_ms, rows=1, size=1, leader_epoch=epoch)
    assert 7 <= ask(probes, "/healthz").json()["catalog_export_age_s"] < 60
    catalog.close()


def test_alive_and_what_runs() -> None:
    assert ask(Probes(checks={"x": away}), "/livez").json() == {"status": "ok"}
    assert ask(Probes(), "/version").json() == {"version": __version__}


def test_ready_when_every_part_answers() -> None:
    ready = ask(Probes(checks={"catalog": fine, "object store": fine}), "/readyz")
    assert (ready.status_code, ready.json()["checks"]) == (200, {"catalog": "ok", "object store": "ok"})
    not_ready = ask(Probes(checks={"catalog": away, "object store": fine}), "/readyz")
    assert not_ready.status_code == 503
    assert not_ready.json()["status"] == "not ready"
    assert "down" in not_ready.json()["checks"]["catalog"]
    assert not_ready.json()["checks"]["object store"] == "ok"


def test_a_part_that_does_not_answer_is_named_in_time_and_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tistream.http.probes.CHECK_WAIT_S", 0.05)
    answers, probe_times = threading.Event(), list[float]()

    def hang() -> None:
        probe_times.append(time.monotonic())
        answers.wait(60)

    with TestClient(probe_app(Probes(checks={"catalog": hang, "object store": fine}))) as http:
        for _ in range(4):
            begun = time.monotonic()
            answer = http.get("/readyz")
            assert time.monotonic() - begun < 30
            assert answer.status_code == 503
            assert answer.json()["checks"] == {"catalog": "no answer within 0.05 s", "object store": "ok"}
        assert len(probe_times) == 1, "a thread that hangs is enough"
        answers.set()
        monkeypatch.setattr("tistream.http.probes.CHECK_WAIT_S", 30)
        assert http.get("/readyz").json()["checks"] == {"catalog": "ok", "object store": "ok"}


PROBLEMS = [
    Problem(source="a", code="TS-1", message="slow"),
    Problem(source="b", code="TS-1", message="slow"),
    Problem(source="c", code="TS-2", message="stopped", fatal=True),
]


def test_problems_are_shown_and_counted_by_code() -> None:
    probes = Probes(problems=lambda: [p.shown() for p in PROBLEMS])
    assert ask(probes, "/healthz").json() == {"status": "problems", "problems": [p.shown() for p in PROBLEMS]}
    assert ask(Probes(), "/healthz").json() == {"status": "ok", "problems": []}
    families = {f.name: f for f in text_string_to_metric_families(ask(probes, "/metrics").text)}
    counted = {(s.labels["code"], s.labels["fatal"]): s.value for s in families["tistream_problems"].samples}
    assert counted == {("TS-1", "false"): 2, ("TS-2", "true"): 1}


def test_the_measurements_are_the_registrys_and_the_process_s_own() -> None:
    answer = ask(Probes(collect=[lambda: [metrics.single("tistream_owner_epoch", 7)]]), "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    families = {f.name: f for f in text_string_to_metric_families(answer.text)}
    assert families["tistream_owner_epoch"].samples[0].value == 7
    assert families["tistream_build_info"].samples[0].labels == {"version": __version__}
    assert {"process_cpu_seconds", "tistream_stage_seconds", "tistream_rows"} <= set(families)
    described = {each.name.removesuffix("_total") for each in metrics.described()}
    assert {name for name in families if name.startswith("tistream_")} <= described
    assert len(families) == answer.text.count("# TYPE")


def test_a_store_answers_also_when_it_has_nothing() -> None:
    store_answers(MemoryStore())()

    class Away(MemoryStore):
        def size(self, key: str) -> int:
            raise StoreUnavailable(key=key)

    with pytest.raises(StoreUnavailable):
        store_answers(Away())()


def test_a_part_that_has_stopped_makes_the_process_not_ready() -> None:
    none_stopped(lambda: PROBLEMS[:2])()
    with pytest.raises(StoreUnavailable, match="c has stopped: stopped"):
        none_stopped(lambda: PROBLEMS)()


@pytest.mark.parametrize(("age_s", "holds"), [(None, False), (0.0, True), (LEASE_MS / 1000, True), (10.1, False)])
def test_a_lease_holds_for_as_long_as_others_grant(age_s: float | None, holds: bool) -> None:
    check = lease_holds(lambda: age_s)
    if holds:
        check()
    else:
        with pytest.raises(StoreUnavailable):
            check()
    shown = list(lease_age(lambda: age_s)())
    assert [family.samples[0].value for family in shown] == ([] if age_s is None else [age_s])


def test_a_repeated_step_tells_when_it_last_went_well() -> None:
    clock, steps = ManualClock(), iter([None, StoreUnavailable("away"), None])

    def step() -> None:
        if (error := next(steps)) is not None:
            raise error

    repeating = Repeating("r", step, interval_s=1.0, clock=clock)
    ages: list[float | None] = []
    run: Callable[[], object] = repeating._run_step
    for _ in range(3):
        ages.append(repeating.succeeded_age_s)
        run()
        clock.advance(2.0)
    assert [*ages, repeating.succeeded_age_s] == [None, 2.0, 4.0, 2.0]
