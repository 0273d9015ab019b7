"""What operators see and ask for over HTTP: lists, sentences, verbs with their guards and dry runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.kit.log_builder import TENANT
from tests.kit.operated import AWAITING, HOSTILE, PAUSED, STOPPED, Operated, operated
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.rows.workers import WorkerState
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.catalog.work.stopped_items import Scope, StoppedItem, get_stopped_item, record_stopped_item
from tistream.catalog.work.tasks import get_task
from tistream.catalog.work.workers import get_worker
from tistream.ids import Tenant
from tistream.release import THIS_RELEASE


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Operated]:
    with operated(tmp_path) as new_site:
        yield new_site


def get(site: Operated, path: str, **params: Any) -> Any:
    answer = site.http.get(path, params=params)
    assert answer.status_code == 200, answer.text
    return answer.json()


def post(site: Operated, path: str, status: int = 200, **params: Any) -> Any:
    answer = site.http.post(path, params=params)
    assert answer.status_code == status, answer.text
    return answer.json()


def all_pages(site: Operated, path: str, limit: int) -> list[Any]:
    """The items of a list, which is read page by page."""
    page = get(site, path, limit=limit)
    items = page["items"]
    while page["next_cursor"] is not None:
        assert len(page["items"]) == limit
        page = get(site, path, limit=limit, cursor=page["next_cursor"])
        items += page["items"]
    return list(items)


def test_tasks_come_in_pages_and_by_filter(site: Operated) -> None:
    seen = [task["task_id"] for task in all_pages(site, "/v1/tasks", 5)]
    assert seen == sorted(set(seen))
    assert len(seen) == len(get(site, "/v1/tasks", limit=1000)["items"]) > 10
    of_one = get(site, "/v1/tasks", owner="sorter-1")["items"]
    assert [t["owner"] for t in of_one] == ["sorter-1", "sorter-1"]
    (stopped,) = get(site, "/v1/tasks", stopped="true")["items"]
    assert (stopped["state"], stopped["error"], stopped["cluster_id"]) == ("stopped", HOSTILE, STOPPED.cluster_id)
    tasks = get(site, "/v1/tasks", cluster_id=1, tenant_id=1)["items"]
    assert {(t["cluster_id"], t["tenant_id"]) for t in tasks} == {(1, 1)}
    assert site.http.get("/v1/tasks", params={"cluster_id": 1}).status_code == 400
    for bad in ("x", "-1", "9" * 19, "٣"):
        assert site.http.get("/v1/tasks", params={"cursor": bad}).json()["code"] == "TS-1003", bad


def test_a_task_tells_its_load_and_names_its_tables(site: Operated) -> None:
    well, waits, *_ = site.tasks
    answer = site.http.get(f"/v1/tasks/{well.task_id}")
    task = answer.json()
    assert answer.headers["ETag"] == '"1"'
    assert (task["state"], task["owner"], task["load"]["rows_per_s"]) == ("running", "sorter-1", 5200)
    assert task["durable_ts"] == str(well.durable_ts)
    assert task["watermark_gaps"] == []
    assert get(site, f"/v1/tasks/{waits.task_id}")["watermark_gaps"][0]["cause"] == "standing"
    labels = [t["label"] for t in get(site, "/v1/ranges", cluster_id=1, tenant_id=1)["items"]]
    assert labels[0] == "schema changes"
    assert "DDL jobs" in labels
    assert any("(" in label and "." in label for label in labels), "tables are named"
    assert site.http.get("/v1/tasks/999").status_code == 404


def test_ranges_are_the_key_space_in_order(site: Operated) -> None:
    whole = get(site, "/v1/ranges", cluster_id=1, tenant_id=1)["items"]
    keys = [bytes.fromhex(t["start_key"]) for t in whole]
    assert keys == sorted(keys)
    first = get(site, "/v1/ranges", cluster_id=1, tenant_id=1, limit=4)
    rest = get(site, "/v1/ranges", cluster_id=1, tenant_id=1, limit=4, cursor=first["next_cursor"])
    assert [t["task_id"] for t in first["items"] + rest["items"]] == [t["task_id"] for t in whole]
    assert rest["next_cursor"] is None
    assert site.http.get("/v1/ranges", params={"cluster_id": 9, "tenant_id": 9}).status_code == 404
    answer = site.http.get("/v1/ranges", params={"cluster_id": 1, "tenant_id": 1, "cursor": "zz.1"})
    assert answer.json()["code"] == "TS-1003"


def test_workers_and_the_owner(site: Operated) -> None:
    workers = {w["worker_id"]: w for w in get(site, "/v1/workers")["items"]}
    assert {n: w["state"] for n, w in workers.items()} == {
        "api-1": "up", "meta-1": "up", "dispatcher-1": "up", "dispatcher-2": "up",
        "sorter-1": "up", "sorter-2": "up", "sorter-3": "silent", "sorter-4": "draining",
    }  # fmt: skip
    assert (workers["sorter-1"]["tasks"], workers["dispatcher-1"]["stores"]) == (2, 2)
    assert workers["sorter-3"]["heartbeat_age_s"] > 40
    assert [w["worker_id"] for w in get(site, "/v1/workers", kind="dispatcher")["items"]] == [
        "dispatcher-1",
        "dispatcher-2",
    ]
    one = get(site, "/v1/workers/dispatcher-1")
    assert [(s["store_id"], s["silent_s"]) for s in one["store_reports"]] == [(1, 0.4), (3, 41.0)]
    assert site.http.get("/v1/workers/nobody").status_code == 404
    owner = get(site, "/v1/owner")
    assert {w["release"] for w in workers.values()} == {owner["release"]} == {str(THIS_RELEASE)}
    assert (owner["owner"], owner["epoch"], owner["alive"]) == ("meta-1", site.leader_epoch, True)


def test_each_watermark_gap_is_one_sentence(site: Operated) -> None:
    watermark_gaps = get(site, "/v1/gaps")["items"]
    by_cause: dict[str, list[dict[str, Any]]] = {}
    for watermark_gap in watermark_gaps:
        by_cause.setdefault(watermark_gap["cause"], []).append(watermark_gap)
    (waits,) = by_cause["standing"]
    assert "waits for region 12 v7 from store 3; last file 41.0 s ago; probably the store is down" in waits["sentence"]
    assert (waits["region_id"], waits["store_id"], waits["file"], waits["file_age_s"]) == (12, 3, "1/88", 41.0)
    (gap,) = by_cause["watermark_gap"]
    assert gap["sentence"].count("no store has reported") == 1
    assert gap["watermark_ts"] is None
    (silent,) = by_cause["silent"]
    assert "belongs to sorter-3, which has sent no heartbeat for" in silent["sentence"]
    (stopped,) = by_cause["stopped"]
    assert stopped["sentence"].endswith(HOSTILE)
    assert stopped["next_step"].endswith(f"tistream tasks retry {stopped['task_id']}")
    assert [h["tenant_id"] for h in by_cause["awaiting"]] == [AWAITING.tenant_id]
    assert [h["sentence"] for h in by_cause["paused"]] == [f"tenant {PAUSED} is paused: upgrade"]
    resting = get(site, "/v1/tasks", cluster_id=PAUSED.cluster_id, tenant_id=PAUSED.tenant_id)["items"]
    assert {t["state"] for t in resting} == {"paused"}, "they rest, and nothing is wrong"
    of_one = get(site, "/v1/gaps", cluster_id=1, tenant_id=1)["items"]
    assert {h["cause"] for h in of_one} == {"standing", "watermark_gap", "silent"}
    assert get(site, "/v1/gaps", cluster_id=1, tenant_id=2)["items"] == by_cause["awaiting"]


def test_a_report_of_an_older_epoch_explains_nothing(site: Operated) -> None:
    waits = site.tasks[1]
    post(site, f"/v1/tasks/{waits.task_id}:move", to="sorter-1")
    causes = [h["cause"] for h in get(site, "/v1/gaps", cluster_id=1, tenant_id=1)["items"]]
    assert sorted(causes) == ["silent", "watermark_gap"]
    assert get(site, f"/v1/tasks/{waits.task_id}")["load"] is None


def test_events_page_and_follow(site: Operated) -> None:
    newest = get(site, "/v1/events", limit=3)
    assert (newest["items"][0]["kind"], newest["items"][0]["actor"]) == ("worker.draining", "ann")
    older = get(site, "/v1/events", limit=3, cursor=newest["next_cursor"])["items"]
    assert int(older[0]["event_id"]) == int(newest["items"][-1]["event_id"]) - 1
    post(site, "/v1/workers/sorter-4:undrain")
    after = get(site, "/v1/events", after=newest["newest"])
    assert [(e["kind"], e["actor"], e["words"]) for e in after["items"]] == [
        ("worker.returned", "API", "worker sorter-4 returned")
    ]
    assert get(site, "/v1/events", after=after["newest"]) == {
        "items": [],
        "next_cursor": None,
        "newest": after["newest"],
    }
    of_tasks = get(site, "/v1/events", kind="task", cluster_id=1, tenant_id=1, limit=1000)["items"]
    assert {e["kind"] for e in of_tasks} == {"task.assigned"}
    assert of_tasks[0]["words"].endswith("assigned to sorter-2")
    (stopped,) = get(site, "/v1/events", kind="task.stopped")["items"]
    assert HOSTILE in stopped["words"]


def test_draining_is_told_before_it_is_done(site: Operated) -> None:
    said = post(site, "/v1/workers/sorter-1:drain", dry_run="true")
    assert (said["done"], said["items"], said["receivers"]) == (False, 2, ["sorter-2"])
    assert said["words"] == "sorter-1 hands over 2 tasks to sorter-2."
    assert get_worker(site.world.catalog, "sorter-1").state is WorkerState.UP
    done = post(site, "/v1/workers/sorter-1:drain")
    assert {**said, "done": True, "dry_run": False} == done
    assert get_worker(site.world.catalog, "sorter-1").state is WorkerState.DRAINING
    again = post(site, "/v1/workers/sorter-1:drain", 409)
    assert again["code"] == "TS-1014"
    assert "No other sorter is up" in post(site, "/v1/workers/sorter-2:drain", dry_run="true")["words"]
    assert post(site, "/v1/workers/sorter-1:undrain")["done"]
    assert post(site, "/v1/workers/api-1:drain", 409)["code"] == "TS-1014"
    assert post(site, "/v1/workers/nobody:drain", 404)["code"] == "TS-1010"
    assert "1 store to dispatcher-1" in post(site, "/v1/workers/dispatcher-2:drain", dry_run="true")["words"]


def test_a_task_is_moved_to_a_sorter_that_is_named_or_to_the_best(site: Operated) -> None:
    well = site.tasks[0]
    said = post(site, f"/v1/tasks/{well.task_id}:move", dry_run="true")
    assert (said["to"], said["was"], said["epoch"]) == ("sorter-2", "sorter-1", 2)
    assert get_task(site.world.catalog, well.task_id).epoch == 1
    for name in ("sorter-3", "sorter-4", "dispatcher-1", "nobody", "sorter-1"):
        refused = post(site, f"/v1/tasks/{well.task_id}:move", 409, to=name)
        assert refused["code"] == "TS-1014", name
    done = post(site, f"/v1/tasks/{well.task_id}:move")
    assert (done["done"], done["to"]) == (True, "sorter-2")
    row = get_task(site.world.catalog, well.task_id)
    assert (row.owner, row.epoch) == ("sorter-2", 2)


def test_a_move_may_name_the_state_it_saw(site: Operated) -> None:
    path = f"/v1/tasks/{site.tasks[0].task_id}"
    seen = site.http.get(path).headers["ETag"]
    late = site.http.post(f"{path}:move", headers={"If-Match": '"0"'})
    assert (late.status_code, late.json()["code"]) == (412, "TS-1015")
    assert site.http.post(f"{path}:move", headers={"If-Match": seen}).status_code == 200
    assert site.http.post(f"{path}:move", headers={"If-Match": seen}).status_code == 412
    assert site.http.post(f"{path}:move", headers={"If-Match": "W/x"}).status_code == 400
    assert site.http.get(path).headers["ETag"] == '"2"'


def test_a_task_is_split_and_neighbours_are_merged(site: Operated) -> None:
    well, waits, unspoken, _ = site.tasks
    path = f"/v1/tasks/{well.task_id}:split"
    said = post(site, path, dry_run="true")
    assert (said["key"], said["parts"]) == ((well.range.start + b"_r").hex(), None), "where its sorter says"
    done = post(site, path, key=(well.range.start + b"\x40").hex())
    low, high = done["parts"]
    assert get_task(site.world.catalog, low).range.end == get_task(site.world.catalog, high).range.start
    newest = get(site, "/v1/events", limit=1)["items"][0]
    assert (newest["words"], newest["actor"]) == (f"task {well.task_id} was split into {low} and {high}", "API")
    assert post(site, path, 404)["code"] == "TS-1010"
    assert post(site, f"/v1/tasks/{high}:split", 409)["code"] == "TS-1014", "it has not reported yet"
    assert post(site, f"/v1/tasks/{high}:split", 400, key=waits.range.start.hex())["code"] == "TS-1001"
    assert post(site, f"/v1/tasks/{high}:split", 400, key="zz")["code"] == "TS-1001"
    merge = f"/v1/tasks/{unspoken.task_id}:merge"
    assert post(site, merge, dry_run="true", **{"with": waits.task_id})["to"] == "sorter-2"
    assert get_task(site.world.catalog, unspoken.task_id).owner == "sorter-1"
    assert post(site, merge, **{"with": waits.task_id})["done"]
    assert get_task(site.world.catalog, unspoken.task_id).owner == "sorter-2"
    (event,) = get(site, "/v1/events", kind="task.merge_asked")["items"]
    assert event["actor"] == "API"
    assert event["words"] == f"task {waits.task_id} and {unspoken.task_id} will be merged by sorter-2"
    assert post(site, merge, 400, **{"with": low})["code"] == "TS-1001"


def test_a_stopped_task_tries_again_and_a_running_one_need_not(site: Operated) -> None:
    (watermark_gap,) = [h for h in get(site, "/v1/gaps")["items"] if h["cause"] == "stopped"]
    path = f"/v1/tasks/{watermark_gap['task_id']}:retry"
    assert HOSTILE in post(site, path, dry_run="true")["words"]
    assert get_task(site.world.catalog, watermark_gap["task_id"]).error
    assert post(site, path)["done"]
    row = get_task(site.world.catalog, watermark_gap["task_id"])
    assert (row.error, row.resubscribe_id) == (None, 1)
    assert post(site, path, 409)["code"] == "TS-1014"


def test_tenants_are_paused_and_resumed(site: Operated) -> None:
    base = "/v1/clusters/1/tenants/1"
    catalog = site.world.catalog
    assert not post(site, f"{base}:pause", dry_run="true")["done"]
    assert get_tenant(catalog, TENANT).state is TenantState.ACTIVE
    assert post(site, f"{base}:pause", reason="a test")["state"] == "PAUSED"
    row = get_tenant(catalog, TENANT)
    assert (row.state, row.reason) == (TenantState.PAUSED, "a test")
    assert post(site, f"{base}:pause", 409)["code"] == "TS-1014"
    assert post(site, f"{base}:resume")["done"]
    assert get_tenant(catalog, TENANT).state is TenantState.ACTIVE
    assert post(site, f"{base}:resume", 409)["code"] == "TS-1014"
    assert post(site, "/v1/clusters/1/tenants/2:pause", 409)["code"] == "TS-1014"
    assert post(site, "/v1/clusters/9/tenants/9:pause", 404)["code"] == "TS-1010"
    assert get_tenant(catalog, PAUSED).reason == "upgrade"


def test_what_errors_stopped_is_one_list_and_resumed_by_id(site: Operated) -> None:
    for tenant in (TENANT, STOPPED):
        record_stopped_item(site.world.catalog, _stopped(tenant))
    items = get(site, "/v1/stops")["items"]
    assert [(i["scope"], i["cluster_id"], i["tenant_id"]) for i in items] == [
        ("tenant", TENANT.cluster_id, TENANT.tenant_id),
        ("tenant", STOPPED.cluster_id, STOPPED.tenant_id),
        ("task", STOPPED.cluster_id, STOPPED.tenant_id),
    ]
    assert (items[0]["role"], items[0]["object"], items[0]["tries"]) == ("audit", f"committed/{TENANT}", 2)
    assert items[2]["message"] == HOSTILE
    assert all_pages(site, "/v1/stops", 1) == items
    stops = get(site, "/v1/stops", cluster_id=TENANT.cluster_id, tenant_id=TENANT.tenant_id)["items"]
    assert stops == items[:1]
    path = f"/v1/stops/{items[0]['stop_id']}:resume"
    assert not post(site, path, dry_run="true")["done"]
    assert not get_stopped_item(site.world.catalog, int(items[0]["stop_id"])).resumed
    assert f"audit tries tenant {TENANT} now" in post(site, path)["words"]
    assert get_stopped_item(site.world.catalog, int(items[0]["stop_id"])).resumed
    assert post(site, f"/v1/stops/{items[2]['stop_id']}:resume")["verb"] == "retry"
    assert get_task(site.world.catalog, int(items[2]["item"])).error is None
    assert [e["words"] for e in get(site, "/v1/events", kind="item")["items"]] == [
        f"audit {TENANT} will be retried",
        f"audit {STOPPED} stopped: TS-1020 damaged",
        f"audit {TENANT} stopped: TS-1020 damaged",
    ]
    post(site, "/v1/stops/999:resume", 404)
    for bad in ("x", "task-", "-1", "9" * 19, "٣"):
        assert site.http.post(f"/v1/stops/{bad}:resume").status_code == 400, bad
        assert site.http.get("/v1/stops", params={"cursor": bad}).json()["code"] == "TS-1003", bad


def _stopped(tenant: Tenant) -> StoppedItem:
    return StoppedItem(
        role="audit", item=str(tenant), scope=Scope.TENANT, tenant=tenant, code="TS-1020", message="damaged",
        object=f"committed/{tenant}", tries=2,
    )  # fmt: skip


def test_jobs_in_pages_by_state_and_what_each_did(site: Operated) -> None:
    jobs = get(site, "/v1/jobs")["items"]
    assert [(j["job_id"], j["kind"], j["state"]) for j in jobs] == [
        ("5", "replay", "offered"),
        ("4", "retire_seeds", "queued"),
        ("3", "merge", "running"),
        ("2", "bases", "failed"),
        ("1", "merge", "done"),
    ]
    offered, _, running, failed, done = jobs
    assert (done["objects_before"], done["objects_after"], done["requests_saved"]) == (160, 5, 151)
    assert (running["parts_done"], running["parts_total"], running["holder"]) == (3, 7, "maintain-1/1 0")
    assert (failed["code"], failed["error"]) == ("TS-1020", HOSTILE)
    assert offered["reason"].endswith("tistream replay -c 2 -t 8")
    first = get(site, "/v1/jobs", limit=2)
    rest = get(site, "/v1/jobs", limit=9, cursor=first["next_cursor"])
    assert [j["job_id"] for j in first["items"] + rest["items"]] == ["5", "4", "3", "2", "1"]
    assert [j["job_id"] for j in get(site, "/v1/jobs", state=["failed", "done"])["items"]] == ["2", "1"]
    assert [j["job_id"] for j in get(site, "/v1/jobs", cluster_id=1, tenant_id=1)["items"]] == ["3", "1"]
    one = get(site, "/v1/jobs/3")
    assert {**one, "duration_s": 0} == {**running, "duration_s": 0}
    assert site.http.get("/v1/jobs/99").status_code == 404
    assert site.http.get("/v1/jobs", params={"state": "lost"}).status_code == 400


def test_a_job_is_run_or_cancelled_by_an_operator(site: Operated) -> None:
    said = post(site, "/v1/jobs/5:retry", dry_run="true")
    assert (said["done"], said["words"]) == (
        False,
        "The replay of a backlog of tenant 2/8 is queued for the next executor; it was offered.",
    )
    assert get(site, "/v1/jobs/5")["state"] == "offered"
    post(site, "/v1/jobs/5:retry")
    assert get(site, "/v1/jobs/5")["state"] == "queued"
    assert "maintain-1/1 0 stops it" in post(site, "/v1/jobs/3:cancel")["words"]
    assert get(site, "/v1/jobs/3")["state"] == "cancelled"
    assert get(site, "/v1/events", kind="job", limit=1)["items"][0]["words"] == "job 3, merge, was cancelled"
    assert post(site, "/v1/jobs/1:cancel", status=409)["code"] == post(site, "/v1/jobs/1:retry", status=409)["code"]
