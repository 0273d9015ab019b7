"""The meta server over a real catalog: activation, election, assignment, takeover, and its HTTP routes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import zstandard
from fastapi.testclient import TestClient
from sqlalchemy import update

from metaserver.loop import MetaOptions, MetaWorker
from tests.kit.catalog_cases import shift
from tests.kit.control_app import control_app
from tests.kit.manual_clock import ManualClock
from tests.kit.open_folder import OpenFolder
from tistream import ts as tso
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import list_events
from tistream.catalog.log.retention import database_time_ms
from tistream.catalog.rows.reports import TaskReport, WorkerReport
from tistream.catalog.rows.tenants import TaskKind, TenantState
from tistream.catalog.tenancy.tenants import get_tenant, register_tenant
from tistream.catalog.work.handover import take_tasks
from tistream.catalog.work.leader import get_leader
from tistream.catalog.work.stores import issue_incarnation, list_stores, note_cut_ts
from tistream.catalog.work.stream_ends import stream_end
from tistream.catalog.work.tasks import get_task, list_tasks, stop_task
from tistream.catalog.work.workers import drain_worker, heartbeat, register_worker, retire_worker
from tistream.clock import SystemClock
from tistream.errors import CatalogUnavailable, Fenced
from tistream.ids import Tenant
from tistream.keyrange import KeyRange
from tistream.limits import LEADER_LEASE_MS, LEASE_MS
from tistream.objectstore.layout import SchemaSnapKey

T = Tenant(1, 1)
LEASE_S = LEASE_MS / 1000
RECORDING = Path(__file__).parents[2] / "simulator" / "recording"
BASE = "/v1/clusters/1/tenants/1"


@pytest.fixture
def snapshot() -> dict[str, Any]:
    read: dict[str, Any] = orjson.loads((RECORDING / "schema_snapshot.json").read_bytes())
    return read


def pack(snapshot: dict[str, Any]) -> bytes:
    return zstandard.compress(orjson.dumps(snapshot))


class Clocked(MetaWorker):
    """A meta server whose time the test lets pass."""

    def __init__(self, catalog: Catalog, folder: OpenFolder, name: str = "m1", data_tasks: int = 2) -> None:
        self.clock = ManualClock()
        super().__init__(catalog, folder, self.clock, name, MetaOptions(data_tasks=data_tasks))

    def rounds(self, seconds: float, alive: dict[str, int] | None = None, look: bool = True) -> None:
        """Rounds for so long, while these lives beat. Without `look` time passes between two rounds only."""
        until = self.clock.monotonic() + seconds
        while self.clock.monotonic() < until:
            self.clock.advance(0.3 if look else seconds)
            for name, life in (alive or {}).items():
                heartbeat(self._catalog, name, life)
            self.assign()


def meta(catalog: Catalog, folder: OpenFolder, name: str = "m1", data_tasks: int = 2) -> Clocked:
    return Clocked(catalog, folder, name, data_tasks)


def test_the_first_schema_snapshot_starts_all_tasks_at_its_ts(catalog: Catalog, snapshot: dict[str, Any]) -> None:
    folder, ts = OpenFolder(), int(snapshot["ts"])
    register_tenant(catalog, T)
    worker = meta(catalog, folder)
    worker.assign()
    worker.activate()
    assert get_tenant(catalog, T).state is TenantState.AWAITING_SNAPSHOT
    folder.put(str(SchemaSnapKey(tenant=T, ts=ts)), pack(snapshot))
    worker = meta(catalog, folder)  # another process of the same name: its first look is due at once
    worker.assign()
    worker.activate()
    row = get_tenant(catalog, T)
    assert (row.state, row.start_ts) == (TenantState.ACTIVE, ts)
    tasks = list_tasks(catalog, T)
    assert {(task.start_ts, task.durable_ts) for task in tasks} == {(ts, ts)}
    data = sorted(task.range for task in tasks if task.kind is TaskKind.DATA)
    users = [b"t" + (i + (1 << 63)).to_bytes(8, "big") for i in (118, 120, 123, 124, 125)]
    assert [sum(key in tile for key in users) for tile in data] == [2, 3]
    assert KeyRange(b"m", b"n") in [task.range for task in tasks if task.kind is TaskKind.DDL]


def test_a_damaged_snapshot_is_a_problem_and_the_next_is_taken(catalog: Catalog, snapshot: dict[str, Any]) -> None:
    folder, ts = OpenFolder(), int(snapshot["ts"])
    register_tenant(catalog, T)
    whole = pack(snapshot)
    bad = {ts - 3: b"not zstd", ts - 2: whole[: len(whole) // 2], ts - 1: whole}
    for at, data in bad.items():
        folder.put(str(SchemaSnapKey(tenant=T, ts=at)), data)
    clock = ManualClock()
    worker = MetaWorker(catalog, folder, clock, "m1")
    worker.assign()
    worker.activate()
    assert get_tenant(catalog, T).state is TenantState.AWAITING_SNAPSHOT
    assert [p.facts["object"] for p in worker.problems()] == [str(SchemaSnapKey(tenant=T, ts=at)) for at in bad]
    folder.put(str(SchemaSnapKey(tenant=T, ts=ts)), whole)
    worker.activate()
    assert get_tenant(catalog, T).state is TenantState.AWAITING_SNAPSHOT, "listing pauses between looks"
    clock.wait(_never(), 10)
    worker.activate()
    assert get_tenant(catalog, T).start_ts == ts
    worker.activate()
    assert worker.problems() == []


def test_a_snapshot_ahead_of_the_time_is_held_and_an_earlier_one_is_taken(
    catalog: Catalog, snapshot: dict[str, Any]
) -> None:
    """Else the log would begin in an hour, and every change until then would be below it."""
    folder, clock = OpenFolder(), ManualClock()
    register_tenant(catalog, T)
    hour_ahead = tso.compose(database_time_ms(catalog) + 3_600_000)
    key, absurd = (str(SchemaSnapKey(tenant=T, ts=ts)) for ts in (hour_ahead, tso.TSO_END))
    folder.put(absurd, pack({**snapshot, "ts": str(tso.TSO_END)}))
    worker = MetaWorker(catalog, folder, clock, "m1")
    worker.assign()
    worker.activate()
    assert [(p.code, p.facts["object"]) for p in worker.problems()] == [("TS-1020", absurd)]
    folder.put(key, pack({**snapshot, "ts": str(hour_ahead)}))
    clock.wait(_never(), 10)
    worker.activate()
    early = [p for p in worker.problems() if p.code == "TS-1067"]
    assert [(p.facts["object"], p.facts["tenant"]) for p in early] == [(key, str(T))]
    assert get_tenant(catalog, T).state is TenantState.AWAITING_SNAPSHOT
    folder.put(str(SchemaSnapKey(tenant=T, ts=int(snapshot["ts"]))), pack(snapshot))
    clock.wait(_never(), 10)
    worker.activate()
    assert get_tenant(catalog, T).start_ts == int(snapshot["ts"])
    assert worker.problems() == []


def _never() -> Any:
    import threading

    return threading.Event()


def test_only_the_owner_acts_and_a_silent_one_is_replaced(catalog: Catalog, snapshot: dict[str, Any]) -> None:
    folder = OpenFolder()
    first, second = meta(catalog, folder, "m1"), meta(catalog, folder, "m2")
    first.assign()
    second.assign()
    assert (first.leader_epoch, second.leader_epoch) == (1, None)
    register_worker(catalog, "d1", "dispatcher", "")
    issue_incarnation(catalog, T, 7)
    second.assign()
    assert list_stores(catalog, T)[0].dispatcher is None
    first.assign()
    assert list_stores(catalog, T)[0].dispatcher == "d1"
    shift(catalog, tables.leader.c.heartbeat_ms, -LEADER_LEASE_MS - 1000)
    second.assign()
    assert second.leader_epoch == 2
    first.assign()
    assert first.leader_epoch is None
    leader = get_leader(catalog)
    assert leader is not None
    assert (leader.name, leader.epoch) == ("m2", 2)


def test_an_owner_that_lost_its_place_mid_round_assigns_nothing(catalog: Catalog) -> None:
    folder = OpenFolder()
    first, second = meta(catalog, folder, "m1"), meta(catalog, folder, "m2")
    first.assign()
    register_worker(catalog, "d1", "dispatcher", "")
    issue_incarnation(catalog, T, 7)
    shift(catalog, tables.leader.c.heartbeat_ms, -LEADER_LEASE_MS - 1000)
    first._elect = second._elect  # type: ignore[method-assign]  # it pauses after renewing, and goes on now
    first.assign()
    assert (first.leader_epoch, second.leader_epoch) == (1, 2)
    assert (list_stores(catalog, T)[0].dispatcher, list_stores(catalog, T)[0].dispatcher_epoch) == (None, 0)


@pytest.fixture
def active(catalog: Catalog, snapshot: dict[str, Any]) -> Clocked:
    folder = OpenFolder()
    folder.put(str(SchemaSnapKey(tenant=T, ts=int(snapshot["ts"]))), pack(snapshot))
    register_tenant(catalog, T)
    worker = meta(catalog, folder)
    worker.assign()
    worker.activate()
    return worker


def test_tasks_are_spread_and_taken_over_from_the_dead(catalog: Catalog, active: Clocked) -> None:
    lives = {name: register_worker(catalog, name, "sorter", "") for name in ("s1", "s2")}
    active.assign()
    owners = [task.owner for task in list_tasks(catalog, T)]
    assert sorted(str(o) for o in owners) == ["s1", "s1", "s2", "s2"]
    before = {task.task_id: (task.owner, task.epoch) for task in list_tasks(catalog, T)}
    active.assign()
    assert {task.task_id: (task.owner, task.epoch) for task in list_tasks(catalog, T)} == before
    active.rounds(LEASE_S, {"s2": lives["s2"]})
    for task in list_tasks(catalog, T):
        was, epoch = before[task.task_id]
        assert task.owner == "s2"
        assert task.epoch == epoch + (was == "s1")
    silent = [event.subject for event in list_events(catalog, limit=9, kind="worker.silent")]
    assert silent == ["s1"], "a process that is killed tells nothing itself"


def test_a_catalog_outage_takes_nothing_from_live_workers(catalog: Catalog, active: Clocked) -> None:
    lives = {name: register_worker(catalog, name, "sorter", "") for name in ("s1", "s2", "s3")}
    active.assign()
    before = list_tasks(catalog, T)
    shift(catalog, tables.workers.c.heartbeat_ms, -300_000)
    shift(catalog, tables.leader.c.heartbeat_ms, -300_000)
    active.rounds(300.0, look=False)
    active.rounds(5.0)  # nobody has beaten again
    assert list_tasks(catalog, T) == before
    active.rounds(LEASE_S, {"s1": lives["s1"], "s2": lives["s2"]})
    after = {task.task_id: task for task in list_tasks(catalog, T)}
    for task in before:
        assert after[task.task_id].epoch == task.epoch + (task.owner == "s3"), "the third did not come back"


def test_a_worker_that_joins_gets_tasks_and_what_need_not_move_stays(catalog: Catalog, active: Clocked) -> None:
    lives = {name: register_worker(catalog, name, "sorter", "") for name in ("s1", "s2")}
    active.assign()
    before = {task.task_id: task for task in list_tasks(catalog, T)}
    lives |= {name: register_worker(catalog, name, "sorter", "") for name in ("s3", "s4")}
    active.rounds(30.0, lives)
    after = list_tasks(catalog, T)
    assert sorted(str(task.owner) for task in after) == ["s1", "s2", "s3", "s4"]
    assert sum(task.epoch - before[task.task_id].epoch for task in after) == 2
    active.rounds(100.0, lives)
    assert list_tasks(catalog, T) == after


def test_of_two_hot_tasks_of_one_worker_one_moves(catalog: Catalog, active: Clocked) -> None:
    lives = {name: register_worker(catalog, name, "sorter", "") for name in ("s1", "s2")}
    active.assign()
    hot = [task for task in list_tasks(catalog, T) if task.owner == "s1"]
    reports = tuple(TaskReport(task_id=task.task_id, epoch=task.epoch, bytes_per_s=1e6) for task in hot)
    heartbeat(catalog, "s1", lives["s1"], WorkerReport(tasks=reports))
    active.rounds(20.0, lives)
    assert {get_task(catalog, task.task_id).owner for task in hot} == {"s1", "s2"}


def test_an_owner_that_has_just_begun_gives_nothing_to_who_is_long_dead(catalog: Catalog, active: Clocked) -> None:
    register_worker(catalog, "s1", "sorter", "")
    shift(catalog, tables.workers.c.heartbeat_ms, -3_600_000)
    lives = {"s2": register_worker(catalog, "s2", "sorter", "")}
    active.rounds(7.0, lives)
    assert {task.owner for task in list_tasks(catalog, T)} == {"s2"}
    assert {task.epoch for task in list_tasks(catalog, T)} == {1}


def test_a_report_that_cannot_be_read_stops_nothing(catalog: Catalog, active: Clocked) -> None:
    lives = {name: register_worker(catalog, name, "sorter", "") for name in ("s1", "s2")}
    with catalog.transaction() as conn:
        conn.execute(update(tables.workers).values(report='{"tasks": [{"of": "another version"}]}'))
    active.rounds(5.0, lives)
    assert {task.owner for task in list_tasks(catalog, T)} == {"s1", "s2"}


def test_a_worker_in_an_unknown_state_gets_nothing_and_stops_nothing(catalog: Catalog, active: Clocked) -> None:
    lives = {name: register_worker(catalog, name, "sorter", "") for name in ("s1", "s2")}
    with catalog.transaction() as conn:
        conn.execute(update(tables.workers).where(tables.workers.c.worker_id == "s1").values(state="newer"))
    active.rounds(5.0, lives)
    assert {task.owner for task in list_tasks(catalog, T)} == {"s2"}


@pytest.mark.parametrize("leave", [drain_worker, retire_worker])
def test_who_drains_or_leaves_gives_up_its_tasks_at_once(catalog: Catalog, active: Clocked, leave: Any) -> None:
    lives = {name: register_worker(catalog, name, "sorter", "") for name in ("s1", "s2")}
    active.assign()
    leave(catalog, "s1", lives["s1"])
    active.rounds(1.0)
    assert {task.owner for task in list_tasks(catalog, T)} == {"s2"}


def test_the_last_worker_that_dies_keeps_its_tasks_until_somebody_comes(catalog: Catalog, active: Clocked) -> None:
    register_worker(catalog, "s1", "sorter", "")
    active.assign()
    active.rounds(LEASE_S)
    assert {task.owner for task in list_tasks(catalog, T)} == {"s1"}
    register_worker(catalog, "s9", "sorter", "")
    active.assign()
    assert {task.owner for task in list_tasks(catalog, T)} == {"s9"}


@pytest.mark.parametrize("ends", ["it retires", "its lease runs out"])
def test_a_live_replay_keeps_its_tasks(catalog: Catalog, active: Clocked, ends: str) -> None:
    sorter = register_worker(catalog, "s1", "sorter", "")
    active.assign()
    life = register_worker(catalog, "replay-1-1", "replay", "")
    tasks = take_tasks(catalog, T, "replay-1-1", life)
    assert [task.task_id for task in tasks] == [task.task_id for task in list_tasks(catalog, T)]
    active.assign()
    assert list_tasks(catalog, T) == tasks
    if ends == "it retires":
        retire_worker(catalog, "replay-1-1", life)
    else:
        active.rounds(LEASE_S, {"s1": sorter})
    active.assign()
    assert [(task.owner, task.epoch) for task in list_tasks(catalog, T)] == [("s1", task.epoch + 1) for task in tasks]


def test_a_replay_of_an_older_life_takes_nothing(catalog: Catalog, active: Clocked) -> None:
    old = register_worker(catalog, "replay-1-1", "replay", "")
    register_worker(catalog, "replay-1-1", "replay", "")
    before = list_tasks(catalog, T)
    with pytest.raises(Fenced):
        take_tasks(catalog, T, "replay-1-1", old)
    assert list_tasks(catalog, T) == before


def test_its_threads_do_all_of_this_by_themselves(catalog: Catalog, snapshot: dict[str, Any]) -> None:
    folder = OpenFolder()
    folder.put(str(SchemaSnapKey(tenant=T, ts=int(snapshot["ts"]))), pack(snapshot))
    register_tenant(catalog, T)
    register_worker(catalog, "s1", "sorter", "")
    worker = MetaWorker(catalog, folder, SystemClock(), "m1", MetaOptions(interval_s=0.02))
    worker.start()
    try:
        assert worker.wait_until_ready(60)
        clock = SystemClock()
        deadline = clock.monotonic() + 60
        while {task.owner for task in list_tasks(catalog, T)} != {"s1"}:
            assert clock.monotonic() < deadline
            clock.wait(_never(), 0.02)
    finally:
        worker.stop()


# -- routes --------------------------------------------------------------------------------------------------------


@pytest.fixture
def http(catalog: Catalog) -> Iterator[TestClient]:
    with TestClient(control_app(catalog, "s3://bucket"), raise_server_exceptions=False) as client:
        yield client


def test_registering_says_where_to_push_and_may_be_repeated(http: TestClient) -> None:
    body = {"cluster_id": 1, "tenant_id": 1}
    first = http.post("/v1/tenants", json=body)
    assert first.status_code == 201
    registered = first.json()
    access = registered["push"].pop("credentials")
    assert (access["by"], access["url"]) == ("pusher", None)
    assert "without push.role_arn only these restrict them" in access["words"]
    assert registered == {
        "cluster_id": 1,
        "tenant_id": 1,
        "state": "AWAITING_SNAPSHOT",
        "start_ts": "0",
        "push": {
            "object_store": "s3://bucket",
            "prefix": "data_change_buffer/cluster-1/tenant-1/",
            "state": "AWAITING_SNAPSHOT",
            "start_ts": "0",
            "snapshot_refused": False,
            "kind": "tidb",
            "keyspace_id": None,
            "keyspace_name": None,
            "start_key": "",
            "end_key": "",
            "key": None,
            "env": {"TISTREAM_URL": "http://testserver"},
            "check": "tistream push --check --cluster 1 --tenant 1",
            "aws": "aws s3api put-object --bucket bucket --key data_change_buffer/cluster-1/tenant-1/probe/by-hand",
        },
    }
    assert http.post("/v1/tenants", json=body).json() == first.json()
    assert first.json()["push"].items() > http.get(f"{BASE}/push").json().items()
    assert http.get(f"{BASE}/frontier").json() == []


def test_a_seed_ahead_of_the_time_waits(http: TestClient, catalog: Catalog) -> None:
    register_tenant(catalog, T)
    now_ms = database_time_ms(catalog)
    for ahead_ms, status, code in ((3_600_000, 503, "TS-1067"), (30_000, 400, "TS-1001")):
        answer = http.post(f"{BASE}/seeds", json={"ts": str(tso.compose(now_ms + ahead_ms))})
        assert (answer.status_code, answer.json()["code"]) == (status, code), "the near one lacks its files only"


def test_incarnations_rise_and_carry_the_largest_cut_ts_as_text(http: TestClient, catalog: Catalog) -> None:
    register_tenant(catalog, T)
    url = f"{BASE}/stores/7/incarnations"
    assert http.get(url).json() == {"incarnation": 0}
    assert http.post(url).json() == {"incarnation": 1, "max_cut_ts": "0"}
    note_cut_ts(catalog, T, 7, (1 << 62) + 1)
    assert http.post(url).json() == {"incarnation": 2, "max_cut_ts": str((1 << 62) + 1)}
    assert http.get(url).json() == {"incarnation": 2}
    assert http.get(f"{BASE}/stores/8/incarnations").json() == {"incarnation": 0}


def test_only_the_newest_incarnation_ends_a_stream(http: TestClient, catalog: Catalog) -> None:
    register_tenant(catalog, T)
    url, at = f"{BASE}/stores/7/incarnations", {"end_ts": str((1 << 62) + 1)}
    http.post(url)
    assert http.post(f"{url}/1:end", json=at).json() == {"store_id": 7, "incarnation": 1, **at}
    assert stream_end(catalog, T) == (1 << 62) + 1
    http.post(url)
    refused = http.post(f"{url}/1:end", json=at)
    assert (refused.status_code, refused.json()["code"]) == (409, Fenced.code)
    assert http.post(f"{url}/2:end", json={"end_ts": "0"}).status_code == 400
    assert stream_end(catalog, T) is None


def test_the_frontier_is_all_tasks(
    http: TestClient, catalog: Catalog, active: Clocked, snapshot: dict[str, Any]
) -> None:
    entries = http.get(f"{BASE}/frontier").json()
    assert [e["start_key"] for e in entries] == sorted(task.range.start.hex() for task in list_tasks(catalog, T))
    assert {e["durable_ts"] for e in entries} == {snapshot["ts"]}
    assert {e["resubscribe_id"] for e in entries} == {0}
    assert entries[0]["end_key"] == b"n".hex()


def test_a_stopped_task_tries_again_with_new_subscriptions(http: TestClient, catalog: Catalog, active: Clocked) -> None:
    task = list_tasks(catalog, T)[0]
    assert stop_task(catalog, task.task_id, epoch=task.epoch, error="broken promise")
    answer = http.post(f"{BASE}/tasks/{task.task_id}:retry")
    assert (answer.status_code, answer.json()) == (200, {"task_id": task.task_id, "resubscribe_id": 1})
    after = get_task(catalog, task.task_id)
    assert (after.error, after.resubscribe_id) == (None, 1)


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", f"{BASE}/push", 404, "TS-1010"),
        ("GET", f"{BASE}/frontier", 404, "TS-1010"),
        ("POST", f"{BASE}/stores/7/incarnations", 404, "TS-1010"),
        ("GET", f"{BASE}/stores/7/incarnations", 404, "TS-1010"),
        ("POST", f"{BASE}/tasks/99:retry", 404, "TS-1010"),
        ("GET", "/v1/clusters/x/tenants/1/push", 400, "TS-1001"),
        ("GET", f"/v1/clusters/{1 << 64}/tenants/1/push", 400, "TS-1001"),
        ("POST", "/v1/tenants", 400, "TS-1001"),
        ("GET", "/v1/nothing", 404, "TS-1010"),
        ("DELETE", f"{BASE}/push", 405, "TS-1001"),
    ],
)
def test_every_refusal_is_a_problem_document(http: TestClient, method: str, path: str, status: int, code: str) -> None:
    answer = http.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert (body["status"], body["code"]) == (status, code)
    assert body["detail"]
    assert body["title"]


def test_a_task_of_another_tenant_is_not_found(http: TestClient, catalog: Catalog, active: Clocked) -> None:
    register_tenant(catalog, Tenant(1, 2))
    task = list_tasks(catalog, T)[0]
    assert http.post(f"/v1/clusters/1/tenants/2/tasks/{task.task_id}:retry").status_code == 404
    assert get_task(catalog, task.task_id).resubscribe_id == 0


def test_an_unreachable_catalog_is_a_503_that_says_when_to_come_back(tmp_path: Path) -> None:
    class Away(Catalog):
        def reading(self) -> Any:
            raise CatalogUnavailable(cause="down")

    away = Away(f"sqlite:///{tmp_path}/never.db")
    with TestClient(control_app(away, "s3://bucket"), raise_server_exceptions=False) as client:
        answer = client.get(f"{BASE}/push")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        assert client.get("/readyz").status_code == 503
        assert client.get("/livez").status_code == 200
    away.close()
