"""How far a tenant is behind and why: over HTTP and from the command line, from catalog, bucket and workers' words."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from apiserver.app import create_app
from reading.served.services import Process
from tests.kit.api_world import BASE, ApiWorld, api_world
from tests.kit.assignments import assign_store, assign_task
from tests.kit.batch_files import batch_bytes
from tests.kit.catalog_cases import elected
from tests.kit.log_builder import TENANT, recording_end
from tests.kit.overheard import overheard
from tests.kit.request_tally import RequestTally
from tistream import ts as tso
from tistream.catalog.log.retention import database_time_ms
from tistream.catalog.rows.reports import StuckReport, TaskReport, WorkerReport
from tistream.catalog.rows.tasks import TaskRow
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.tenancy.tenants import change_state, register_tenant
from tistream.catalog.work.deletion import delete_tenant
from tistream.catalog.work.stores import issue_incarnation, note_cut_ts
from tistream.catalog.work.stream_ends import end_stream
from tistream.catalog.work.tasks import list_tasks, stop_task
from tistream.catalog.work.workers import heartbeat, register_worker, retire_worker
from tistream.cli.main import command_line
from tistream.cli.server import HttpServer
from tistream.client import Client
from tistream.ids import Tenant
from tistream.model.task_state import TaskState
from tistream.objectstore.layout import BatchKey
from tistream.objectstore.metered import MeteredStore

STORES = (1, 2)


def ago(ms: int) -> int:
    """A TSO so long before the world's time, which is one second after the recording's end."""
    return tso.compose(tso.physical_ms(recording_end()) + 1000 - ms)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ApiWorld]:
    """A log up to the recording's end, 1,000 ms old, whose tasks and two stores have owners."""
    with api_world(tmp_path) as api:
        api.log.build(3)
        epoch = elected(api.catalog)
        for kind, name in (("sorter", "sorter-1"), ("dispatcher", "dispatcher-1")):
            register_worker(api.catalog, name, kind, "")
        for task in list_tasks(api.catalog, TENANT):
            assign_task(api.catalog, task.task_id, worker_id="sorter-1", seen_epoch=task.epoch, leader_epoch=epoch)
        for store_id in STORES:
            issue_incarnation(api.catalog, TENANT, store_id)
            assign_store(api.catalog, TENANT, store_id, worker_id="dispatcher-1", seen_epoch=0, leader_epoch=epoch)
        yield api


def push(world: ApiWorld, store_id: int, seq: int, cut_ts: int) -> BatchKey:
    key = BatchKey(tenant=TENANT, store_id=store_id, incarnation=1, seq=seq)
    world.store.put(str(key), batch_bytes(key, [(b"a", b"b", []), (b"b", b"c", [])], cut_ts))
    return key


def stages(answer: dict[str, Any]) -> dict[str, int]:
    return {"+".join(stage["stages"]): round(1000 * stage["duration_s"]) for stage in answer["stages"]}


def tasks_of(world: ApiWorld) -> list[TaskRow]:
    return list_tasks(world.catalog, TENANT)


def test_without_why_it_is_the_lag_alone(world: ApiWorld) -> None:
    lag = world.ok("/lag").json()
    assert lag["lag_s"] == 1
    assert "stages" not in lag


def test_a_recording_that_has_ended_does_not_lag(world: ApiWorld) -> None:
    served = int(world.ok("/lag").json()["resolved_ts"])
    for store_id in STORES:
        assert end_stream(world.catalog, TENANT, store_id, 1, served + tso.compose(300))
    behind = world.ok("/lag", why="true").json()
    assert (behind["ended"], behind["lag_s"], sum(stages(behind).values())) == (False, 0.3, 300)
    for store_id in STORES:
        assert end_stream(world.catalog, TENANT, store_id, 1, served)
    over = world.ok("/lag", why="true").json()
    assert (over["ended"], over["end_ts"], over["lag_s"]) == (True, str(served), 0)
    overview = world.http.get("/overview.json").json()
    assert (overview["ended"], overview["lag_s_max"], overview["late"]) == (1, None, 0)
    assert "all streams have ended" in world.http.get("/overview").text
    assert "complete up to the end of the recording" in world.http.get("/tenants/1/1").text
    assert set(stages(over).values()) == {0}
    tasks = world.http.get("/tasks.json").json()["items"]
    assert {task["lag_s"] for task in tasks} == {0}
    issue_incarnation(world.catalog, TENANT, STORES[0])
    assert (world.ok("/lag").json()["ended"], world.ok("/lag").json()["lag_s"]) == (False, 1), "it goes on"


def test_the_slowest_store_is_named_with_its_newest_file_and_region(world: ApiWorld) -> None:
    push(world, 1, 1, ago(650))
    push(world, 1, 2, ago(200))
    slow = push(world, 2, 1, ago(600))
    for store_id in STORES:
        note_cut_ts(world.catalog, TENANT, store_id, ago(700))
    lag = world.ok("/lag", why="true").json()
    assert stages(lag) == {"upstream_flush": 600, "fetch": 100, "match+watermark_gap_wait+flush": 300, "serve": 0}
    assert lag["slowest"] == "upstream_flush"
    first = lag["stages"][0]
    assert first["where"].startswith("store 2: its newest file 1/1 was cut 600 ms ago; region 1 has its watermark ")
    assert "store 1, dispatcher dispatcher-1, last seen" in lag["stages"][1]["where"]
    newest = {store["store_id"]: store["newest_file"] for store in lag["stores"]}
    assert newest[2] == str(slow)
    assert newest[1].endswith("file-000000000002.seg")


@pytest.mark.parametrize("ahead_ms", [3_600_000, None])
def test_a_newest_file_that_does_not_count_is_named_and_explains_nothing(world: ApiWorld, ahead_ms: int | None) -> None:
    """Ahead of the catalog's clock, or damaged."""
    push(world, 1, 1, ago(200))
    push(world, 2, 1, ago(300))
    note_cut_ts(world.catalog, TENANT, 2, ago(600))
    key = push(world, 2, 2, tso.compose(database_time_ms(world.catalog) + (ahead_ms or 0)))
    if ahead_ms is None:
        data = bytearray(world.store.get(str(key)))
        data[-20] ^= 1
        world.store.delete(str(key))
        world.store.put(str(key), bytes(data))
    lag = world.ok("/lag", why="true").json()
    assert stages(lag)["upstream_flush"] == 600
    where = "ahead of the catalog's clock: it counts at 20" if ahead_ms else "checksum"
    assert lag["stages"][0]["where"].startswith("store 2: its newest file 1/2 does not count: ")
    assert where in lag["stages"][0]["where"]
    (shown,) = (store for store in lag["stores"] if store["store_id"] == 2)
    assert (shown["newest_cut_ts"], shown["behind_s"], where in shown["newest_fault"]) == (None, 0.6, True)


def test_watermarks_and_reasons_come_from_what_workers_reported(world: ApiWorld) -> None:
    push(world, 1, 1, ago(100))
    push(world, 2, 1, ago(100))
    for store_id in STORES:
        note_cut_ts(world.catalog, TENANT, store_id, ago(100))
    stuck = StuckReport(
        start_key=b"t", end_key=b"u", watermark=None, region_id=12, store_id=3, file="1/9", reason="its store is silent"
    )
    reports = [
        TaskReport(task_id=t.task_id, epoch=t.epoch, watermark=ago(400 if n else 800), stuck=() if n else (stuck,))
        for n, t in enumerate(tasks_of(world))
    ]
    heartbeat(world.catalog, "sorter-1", 1, WorkerReport(tasks=tuple(reports)))
    lag = world.ok("/lag", why="true").json()
    assert stages(lag) == {
        "upstream_flush": 100,
        "fetch": 0,
        "match+watermark_gap_wait": 700,
        "flush": 200,
        "serve": 0,
    }
    assert lag["slowest"] == "match+watermark_gap_wait"
    assert lag["waits_for"] == ["[74, 75): region 12 store 3 file 1/9: its store is silent"]
    stale = [replace(report, epoch=report.epoch - 1) for report in reports]
    heartbeat(world.catalog, "sorter-1", 1, WorkerReport(tasks=tuple(stale)))
    assert "match+watermark_gap_wait+flush" in stages(world.ok("/lag", why="true").json()), "of an earlier owner"


def test_in_one_process_every_stage_is_known(world: ApiWorld) -> None:
    for store_id in STORES:
        note_cut_ts(world.catalog, TENANT, store_id, ago(100))
        push(world, store_id, 1, ago(100))
    states = [
        TaskState(
            task_id=task.task_id,
            tenant=TENANT,
            durable_ts=task.durable_ts,
            watermark=ago(900),
            cut_timestamps={1: ago(150), 2: ago(300)},
            open_rows=1,
            ready_rows=2,
            held_bytes=3,
            spill_bytes=4,
            inbox_bytes=5,
            watermark_gaps=0,
        )
        for task in tasks_of(world)
    ]
    process = Process(reports=lambda: states, explain=lambda task_id: [f"task {task_id} waits"])
    services = replace(world.services, process=process)
    with TestClient(create_app(services)) as http:
        lag = http.get(f"{BASE}/lag", params={"why": "true"}).json()
    assert stages(lag) == {
        "upstream_flush": 100,
        "fetch": 0,
        "match": 200,
        "watermark_gap_wait": 600,
        "flush": 100,
        "serve": 0,
    }
    assert lag["waits_for"] == [f"task {tasks_of(world)[0].task_id} waits"]


def test_a_look_costs_two_requests_for_a_store(world: ApiWorld) -> None:
    for seq in range(1, 6):
        push(world, 1, seq, ago(100))
    tally = RequestTally()
    services = replace(world.services, store=MeteredStore(world.store, tally))
    with TestClient(create_app(services)) as http:
        assert http.get(f"{BASE}/lag", params={"why": "true"}).status_code == 200
    assert tally.seen() == {("list", "batch", "ok"): 2, ("get_range", "batch", "ok"): 1}


def test_the_sentence_names_what_the_catalog_says(world: ApiWorld) -> None:
    """Each cause is planted in the catalog, and a later one takes the place of an earlier one."""

    alive = ["sorter-1", "dispatcher-1"]

    def sentence() -> str:
        for name in alive:
            heartbeat(world.catalog, name, 1)
        return str(world.ok("/lag", why="true").json()["sentence"])

    assert sentence() == "Tenant 1/1 is 1.0 s behind, which is normal; nothing is late."
    since = world.ok("/lag").json()["resolved_time"]
    retire_worker(world.catalog, alive.pop(), 1)
    assert sentence().startswith(f"Tenant 1/1 is 1.0 s late, since {since}, because no file of store 1 is read: ")
    task = tasks_of(world)[0]
    stop_task(world.catalog, task.task_id, epoch=task.epoch, error="the bucket lost file 7.")
    assert f"because task {task.task_id} over " in sentence()
    assert sentence().endswith(
        " has stopped: the bucket lost file 7; next: fix the cause, then retry it: "
        f"tistream tasks retry {task.task_id}."
    )
    assert change_state(world.catalog, TENANT, seen=TenantState.ACTIVE, to=TenantState.PAUSED, reason="a move")
    assert sentence().endswith(
        "because tenant 1/1 is paused: a move; next: tistream tenant resume --cluster 1 --tenant 1."
    )


def test_a_store_without_a_file_yet_is_named_without_an_age(world: ApiWorld) -> None:
    push(world, 1, 1, ago(100))
    lag = world.ok("/lag", why="true").json()
    assert lag["stages"][0]["where"] == "store 2: it has pushed no file yet"
    assert lag["stores"][1]["behind_s"] is None


def test_the_age_of_a_file_is_in_units_that_are_read_at_a_glance(world: ApiWorld) -> None:
    push(world, 1, 1, ago(100))
    note_cut_ts(world.catalog, TENANT, 2, ago(5 * 86_400_000))
    lag = world.ok("/lag", why="true").json()
    assert lag["stages"][0]["where"] == "store 2: its last file was cut 5 d ago"


def test_a_tenant_that_nobody_pushed_yet_has_no_stages(fresh: ApiWorld) -> None:
    lag = fresh.ok("/lag", why="true").json()
    assert (lag["state"], lag["lag_s"]) == ("AWAITING_SNAPSHOT", None)
    assert lag["sentence"].startswith("Tenant 1/1 serves nothing yet, because tenant 1/1 waits for its first schema")
    assert fresh.http.get("/v1/clusters/9/tenants/9/lag").status_code == 404


def test_commands_say_that_a_recording_has_ended(world: ApiWorld) -> None:
    facts = world.ok("/lag").json()
    for store_id in STORES:
        assert end_stream(world.catalog, TENANT, store_id, 1, int(facts["resolved_ts"]))
    server = HttpServer(create_app(world.services), "127.0.0.1", 0)
    server.start()
    try:
        run = CliRunner()
        said = {
            name: run.invoke(command_line(), [*name.split(), "--url", server.url]) for name in ("lag", "tenant list")
        }
    finally:
        server.stop()
    assert said["lag"].stdout == f"tenant 1/1: ended, complete up to {facts['resolved_time']}\n"
    assert "ended" in said["tenant list"].stdout


def test_a_tenant_that_is_deleted_does_not_end_the_command_and_all_are_asked_at_once(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in (2, 3):
        register_tenant(world.catalog, Tenant(1, number))
    assert delete_tenant(world.catalog, Tenant(1, 2), seen=TenantState.AWAITING_SNAPSHOT)
    calls: list[tuple[Client, str]] = []
    monkeypatch.setattr(Client, "get", overheard(Client.get, calls))
    server = HttpServer(create_app(world.services), "127.0.0.1", 0)
    server.start()
    try:
        said = CliRunner().invoke(command_line(), ["lag", "--url", server.url])
    finally:
        server.stop()
    lines = said.stdout.splitlines()
    assert said.exit_code == 0, said.output
    assert lines[0].startswith("tenant 1/1: 1.0 s behind")
    assert lines[1:] == ["tenant 1/2: it is being deleted", "tenant 1/3: AWAITING_SNAPSHOT, nothing is served yet"]
    assert [path for _, path in calls] == ["/v1/tenants"]


def test_the_command_draws_it(world: ApiWorld) -> None:
    push(world, 2, 1, ago(600))
    server = HttpServer(create_app(world.services), "127.0.0.1", 0)
    server.start()
    try:
        run = CliRunner()
        plain = run.invoke(command_line(), ["lag", "--url", server.url])
        assert plain.stdout.startswith("tenant 1/1: 1.0 s behind, watermark 2026-")
        drawn = run.invoke(command_line(), ["explain", "lag", "-c", "1", "-t", "1", "--url", server.url])
        assert drawn.stdout.startswith("Tenant 1/1 is 1.0 s ")
        assert "upstream flush" in drawn.stdout
        assert "█" * 32 in drawn.stdout
        whole = run.invoke(command_line(), ["explain", "lag", "-c", "1", "-t", "1", "--json", "--url", server.url])
        assert sum(stage["duration_s"] for stage in json.loads(whole.stdout)["stages"]) == 1
        none = run.invoke(command_line(), ["lag", "-c", "9", "--url", server.url])
        assert none.stdout.strip() == "no such tenant"
    finally:
        server.stop()
