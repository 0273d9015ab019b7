"""The operators' pages as a reader of HTTP sees them: twins, figures, and forms that say first what they do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from apiserver.app import create_app
from apiserver.console.strips import CELLS_MAX, lag_class, lag_strip, owner_colours, owner_strip
from tests.kit.api_world import ApiWorld
from tests.kit.log_builder import TENANT
from tests.kit.operated import HOSTILE, STOPPED, Operated, operated
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.rows.workers import WorkerKind, WorkerState
from tistream.catalog.tenancy.tenants import get_tenant, look_up_tenant
from tistream.catalog.work.tasks import get_task, list_tasks
from tistream.catalog.work.workers import get_worker, register_worker

OURS = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Operated]:
    with operated(tmp_path) as new_site:
        yield new_site


HTMX: dict[str, Any] = {"HX-Request": "true"}  #: as htmx asks for a part of a page


def page(site: Operated, path: str, status: int = 200, **headers: str) -> str:
    answer = site.http.get(path, headers=headers)
    assert answer.status_code == status, answer.text
    assert "default-src 'self'" in answer.headers["Content-Security-Policy"]
    assert answer.text.count("<script") == (0 if headers else 3), "our own, in the head"
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", answer.text)).split())


def twin(site: Operated, path: str, **params: Any) -> Any:
    answer = site.http.get(f"{path}.json", params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_workers_of_every_kind_are_shown_under_a_title(site: Operated) -> None:
    kinds = [kind for kind in WorkerKind if kind is not WorkerKind.OTHER]
    for kind in kinds:
        register_worker(site.world.catalog, f"one-{kind}", kind, "")
    html = page(site, "/workers")
    assert [kind for kind in kinds if f"one-{kind}" not in html] == []
    assert {group["kind"] for group in twin(site, "/workers")["groups"]} == set(kinds)
    assert "<h2></h2>" not in html


def test_pages_show_what_the_api_answers(site: Operated) -> None:
    api = {name: site.http.get(f"/v1/{name}").json()["items"] for name in ("tasks", "workers", "gaps", "events")}
    tasks = twin(site, "/tasks")
    assert tasks["items"] == api["tasks"]
    assert tasks["total"] == len(api["tasks"])
    assert tasks["stopped"] == sum(t["error"] is not None for t in api["tasks"])
    workers = twin(site, "/workers")
    shown = [w for group in workers["groups"] for w in group["workers"]]
    assert sorted(w["worker_id"] for w in shown) == sorted(w["worker_id"] for w in api["workers"])
    assert workers["owner"]["owner"] == site.http.get("/v1/owner").json()["owner"]
    gaps = twin(site, "/gaps")["items"]
    still = [gap for gap in api["gaps"] if gap["cause"] != "silent"]  # how long somebody is silent goes on
    assert [gap for gap in gaps if gap["cause"] != "silent"] == still
    assert len(gaps) == len(api["gaps"]) > len(still)
    assert [e["event_id"] for e in twin(site, "/events")["items"]] == [e["event_id"] for e in api["events"]][:50]
    text = page(site, "/gaps")
    assert all(" ".join(watermark_gap["sentence"].split()) in text for watermark_gap in still)
    assert all(w["worker_id"] in page(site, "/workers") for w in api["workers"])
    assert "sorter at sorter-1.example:9000" in page(site, "/workers/sorter-1")


def test_words_of_others_are_never_markup(site: Operated) -> None:
    (stopped,) = [t for t in list_tasks(site.world.catalog, STOPPED) if t.error]
    for path in ("/gaps", "/events?kind=task.stopped", f"/tasks/{stopped.task_id}", f"/tasks/{stopped.task_id}/retry"):
        assert HOSTILE in page(site, path)
    assert "owned" not in page(site, "/tasks?owner=<script>owned</script>").replace("<script>owned</script>", "")


def test_the_strip_is_the_key_space(site: Operated) -> None:
    tasks = twin(site, "/tasks", tenant="1/1")
    assert [cell["href"] for cell in tasks["strip"]] == [
        f"/tasks/{t['task_id']}" for t in site.http.get("/v1/ranges?cluster_id=1&tenant_id=1").json()["items"]
    ]
    assert {w["name"]: w["ranges"] for w in tasks["legend"]} == {"sorter-1": 2, "sorter-2": 3, "sorter-3": 1}
    assert tasks["states"] == ["silent"]
    html = site.http.get("/tasks?tenant=1/1").text
    assert html.count("<rect") == 6 + 3 + 1, "cells, workers, and the one that is silent"
    assert 'aria-label="tables below 120: running, sorter-1, lag' in html


def test_many_ranges_share_cells() -> None:
    def task(n: int, **more: Any) -> dict[str, Any]:
        return {"task_id": n, "label": f"r{n}", "state": "running", "owner": f"s{n % 2}", "lag_s": n / 1000, **more}

    colours = owner_colours(["s1", "s0"])
    assert [c["colour"] for c in owner_strip([task(0), task(1), task(2, state="silent")], colours)] == [
        "own0", "own1", "silent",
    ]  # fmt: skip
    many = [task(n) for n in range(1000)]
    many[500]["state"] = "stopped"
    cells = owner_strip(many, colours)
    assert len(cells) <= CELLS_MAX
    assert [c["colour"] for c in cells].count("stopped") == 1
    assert cells[0]["colour"] == "own-several"
    assert cells[0]["words"].startswith("7 ranges from r0: s0, s1")
    assert cells[-1]["x"] + cells[-1]["width"] == pytest.approx(1000, abs=1)
    assert all(a["x"] + a["width"] <= b["x"] + 0.2 for a, b in pairwise(cells))
    gap, stands = {"cause": "watermark_gap"}, {"cause": "standing"}
    assert [c["colour"] for c in lag_strip(many[:3], {1: [stands], 2: [stands, gap]})] == ["late0", "late3", "gap"]
    assert [lag_class(s) for s in (9.999, 10, 30, 300)] == ["late0", "late1", "late2", "late3"]
    assert owner_strip([], {}) == []


@pytest.mark.parametrize("verb", ["drain", "move", "split", "retry", "pause"])
def test_a_form_says_what_would_happen_and_does_it_when_it_is_ours(site: Operated, verb: str) -> None:
    catalog = site.world.catalog
    (stopped,) = [t for t in list_tasks(catalog, STOPPED) if t.error]
    first = site.tasks[0].task_id
    path, words, back = {
        "drain": ("/workers/sorter-1/drain", "sorter-1 hands over 2 tasks to sorter-2", "/workers/sorter-1"),
        "move": (f"/tasks/{first}/move?to=sorter-2", "goes from sorter-1 to sorter-2", f"/tasks/{first}"),
        "split": (f"/tasks/{first}/split", "is replaced by two, below ", "/tasks"),
        "retry": (f"/tasks/{stopped.task_id}/retry", "is retried", f"/tasks/{stopped.task_id}"),
        "pause": ("/tenants/1/1/pause", "is paused", "/tenants"),
    }[verb]

    def done() -> bool:
        if verb == "split":
            return first not in {t.task_id for t in list_tasks(catalog, TENANT)}
        return {
            "drain": get_worker(catalog, "sorter-1").state is WorkerState.DRAINING,
            "move": get_task(catalog, first).owner == "sorter-2",
            "retry": get_task(catalog, stopped.task_id).error is None,
            "pause": get_tenant(catalog, TENANT).state is TenantState.PAUSED,
        }[verb]

    assert words in page(site, path)
    for foreign in ({"Sec-Fetch-Site": "cross-site"}, {"Sec-Fetch-Site": "same-site"}, {"Origin": "http://evil"}):
        refused = site.http.post(path, headers=foreign, follow_redirects=False)
        assert refused.status_code == 403
    assert not done()
    answer = site.http.post(path, headers=OURS, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, back)
    assert done()
    assert site.http.get("/v1/events?limit=1").json()["items"][0]["actor"] == "console"
    assert site.http.post(path, headers=OURS).status_code in (404, 409), "it was done already, and a page says so"


def test_a_tenant_is_deleted_when_its_name_is_typed(site: Operated) -> None:
    catalog, path = site.world.catalog, "/tenants/1/1/delete"
    assert 'href="/tenants/1/1/delete"' in site.http.get("/tenants/1/1").text
    assert "is deleted, and this cannot be undone" in page(site, path)
    for typed in ("", "1/2", "1", "11", "TENANT 1/1"):
        answer = site.http.post(path, headers=OURS, data={"typed": typed}, follow_redirects=False)
        assert answer.status_code == 400, typed
        assert "nothing was deleted" in answer.text
    sent = {"typed": " 1/1 ", "reason": "moved"}
    assert site.http.post(path, headers={"Sec-Fetch-Site": "cross-site"}, data=sent).status_code == 403
    assert get_tenant(catalog, TENANT).state is TenantState.ACTIVE, "nothing so far did it"
    answer = site.http.post(path, headers=OURS, data=sent, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/tenants")
    row = look_up_tenant(catalog, TENANT)
    assert (row.state, row.reason) == (TenantState.DELETING, "moved")
    again = page(site, path)
    assert "is being deleted already" in again
    assert "Type 1/1" not in again
    assert page(site, "/tenants/9/9/delete", 404)


def test_a_task_is_merged_with_a_neighbour_of_its_own(site: Operated) -> None:
    left, right = (site.tasks[n].task_id for n in (0, 1))
    html = page(site, f"/tasks/{right}")
    offered = [n["task_id"] for n in twin(site, f"/tasks/{right}")["neighbours"]]
    assert offered == [left, site.tasks[2].task_id]
    assert all(f'<option value="{n}">' in site.http.get(f"/tasks/{right}").text for n in offered)
    assert "Split…" in page(site, f"/tasks/{left}"), "its sorter has named a key"
    assert "Split…" not in html
    path = f"/tasks/{right}/merge?with={left}"
    assert f"Tasks {left} and {right} go to sorter-1, which puts one task" in page(site, path)
    assert site.http.post(path, headers={"Sec-Fetch-Site": "cross-site"}, follow_redirects=False).status_code == 403
    assert get_task(site.world.catalog, left).merge_with is None
    answer = site.http.post(path, headers=OURS, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/tasks/{right}")
    assert get_task(site.world.catalog, left).merge_with == right
    (stopped,) = [t for t in list_tasks(site.world.catalog, STOPPED) if t.error]
    assert twin(site, f"/tasks/{stopped.task_id}")["neighbours"] == []
    assert "Back to the overview" in page(site, f"/tasks/{left}/merge?with={site.tasks[3].task_id}", 400)


def test_an_old_browser_says_where_a_form_comes_from(site: Operated) -> None:
    answer = site.http.post(
        "/workers/sorter-4/undrain", headers={"Origin": "http://testserver"}, follow_redirects=False
    )
    assert answer.status_code == 303
    assert get_worker(site.world.catalog, "sorter-4").state is WorkerState.UP


def test_parts_are_asked_for_with_the_address_of_the_page(site: Operated) -> None:
    html = site.http.get("/tasks?tenant=1/1&stopped=false").text
    assert 'data-live="/tasks?tenant=1/1&amp;stopped=false"' in html
    part = page(site, "/tasks?tenant=1/1", **HTMX)
    assert part.startswith("Tasks 6")


def test_the_schema_at_each_of_its_steps(site: Operated) -> None:
    newest = twin(site, "/tenants/1/1/schema")
    assert newest["step"] == len(newest["steps"]) - 1
    assert newest["ddl"] == site.http.get("/v1/clusters/1/tenants/1/ddl?limit=50").json()["items"]
    first = twin(site, "/tenants/1/1/schema", at=newest["steps"][0])
    assert (first["step"], first["ddl"], first["changed"]) == (0, [], None)
    second = twin(site, "/tenants/1/1/schema", at=newest["steps"][1])
    created = second["changed"]["tables"]
    before = {(t["database"], t["table"]) for t in first["tables"]}
    after = {(t["database"], t["table"]) for t in second["tables"]}
    assert {(t["database"], t["table"]) for t in created if t["change"] == "created"} == after - before
    text = page(site, f"/tenants/1/1/schema?at={newest['steps'][1]}")
    assert "Previous DDL" in text
    assert second["ddl"][0]["query"][:40] in text
    assert twin(site, "/tenants/1/1/schema", at="1970-01-02T00:00:00Z")["step"] == 0, "kept inside of what is known"
    assert page(site, "/tenants/1/2/schema", 404)
    assert page(site, "/tenants/1/1/schema?at=never", 400)


def test_wrong_addresses_are_pages_too(site: Operated) -> None:
    for path, status in (
        ("/tasks/999", 404), ("/workers/nobody", 404), ("/workers/nobody/drain", 404), ("/tasks?tenant=x", 400),
        ("/tasks?tenant=9/9", 404), ("/tasks?cursor=x", 400), ("/gaps?tenant=9/9", 404), ("/events?cursor=x", 400),
        ("/workers/api-1/drain", 409),
    ):  # fmt: skip
        assert "Back to the overview" in page(site, path, status), path


def test_empty_pages_teach(fresh: ApiWorld) -> None:
    with fresh.catalog.transaction() as conn:
        conn.exec_driver_sql("DELETE FROM tenants")
        conn.exec_driver_sql("DELETE FROM events")
    with TestClient(create_app(fresh.services)) as http:
        for path, words in (
            ("/tenants", "tistream tenant register"), ("/tasks", "tistream push"), ("/workers", "tistream sort"),
            ("/gaps", "stalled ranges."), ("/events", "tistream events --follow"),
        ):  # fmt: skip
            assert words in http.get(path).text, path


def test_jobs_say_what_they_saved_and_can_be_run(site: Operated) -> None:
    jobs = twin(site, "/jobs")
    api = site.http.get("/v1/jobs").json()["items"]
    assert [j["job_id"] for j in jobs["items"]] == [j["job_id"] for j in api]
    assert (jobs["figures"]["requests_saved"], jobs["figures"]["by_state"]["failed"]) == (151, 1)
    text = page(site, "/jobs")
    assert HOSTILE in text
    assert "160 → 5" in text
    assert "3 of 7" in text
    assert "Show the offers" in text
    assert "was offered" in page(site, "/jobs/5/retry")
    assert site.http.post("/jobs/5/retry", headers=OURS, follow_redirects=False).status_code == 303
    assert [j["state"] for j in twin(site, "/jobs", state="queued")["items"]] == ["queued", "queued"]
    assert "Jobs are offered" in page(site, "/jobs?state=lost", status=400)
