"""`tistream workers|tasks|holes|events|schema|tenant|api|config` against a served cluster."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from tests.kit.log_builder import TENANT
from tests.kit.operated import HOSTILE, Operated, operated
from tistream.catalog.database import tables
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.rows.workers import WorkerState
from tistream.catalog.tenancy.tenants import get_tenant, look_up_tenant, register_tenant
from tistream.catalog.work.stopped_items import (
    Scope,
    StoppedItem,
    clear_stopped_item,
    get_stopped_item,
    list_stopped_items,
    record_stopped_item,
)
from tistream.catalog.work.tasks import get_task
from tistream.catalog.work.workers import get_worker
from tistream.cli.main import command_line
from tistream.cli.server import HttpServer
from tistream.errors import InvalidInput, NotFound, StateForbids, TiStreamError
from tistream.ids import Tenant
from tistream.release import THIS_RELEASE


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Operated, str]]:
    with operated(tmp_path_factory.mktemp("operated")) as new_site:
        server = HttpServer(new_site.http.app, "127.0.0.1", 0)  # type: ignore[arg-type]
        server.start()
        yield new_site, server.url
        server.stop()


def run(site: tuple[Operated, str], *words: str) -> str:
    result = _run(site, *words)
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


def refused(site: tuple[Operated, str], *words: str) -> BaseException | None:
    result = _run(site, *words)
    assert result.exit_code != 0
    return result.exception


def _run(site: tuple[Operated, str], *words: str) -> Result:
    needs_no_service = words[0] in ("config", "tso")
    return CliRunner().invoke(
        command_line(), [*words, *([] if needs_no_service else ["--url", site[1]])], env={"COLUMNS": "200"}
    )


def data(site: tuple[Operated, str], *words: str) -> Any:
    return json.loads(run(site, *words, "--json"))


def test_one_answer_in_four_forms(site: tuple[Operated, str]) -> None:
    workers = data(site, "workers", "list")
    names = [w["worker_id"] for w in workers["items"]]
    assert [w["worker_id"] for w in yaml.safe_load(run(site, "workers", "list", "--format", "yaml"))["items"]] == names
    lines = run(site, "workers", "list", "--format", "ndjson").splitlines()
    assert [json.loads(line)["worker_id"] for line in lines] == names
    table = run(site, "workers", "list").splitlines()
    assert [line.split()[0] for line in table] == ["worker", *names]
    assert "starts" in table[0].split(), "a first start counts, too"
    assert "\x1b[" not in run(site, "workers", "list", "--no-color")
    assert len(run(site, "workers", "list", "--kind", "sorter").splitlines()) == 5


def test_tasks_are_listed_and_shown(site: tuple[Operated, str]) -> None:
    deployment, _ = site
    assert len(run(site, "tasks", "list", "-c", "1", "-t", "1").splitlines()) == 7
    assert [t["owner"] for t in data(site, "tasks", "list", "--owner", "sorter-3")["items"]] == ["sorter-3"]
    assert len(data(site, "tasks", "list", "--limit", "4")["items"]) == 4
    (stopped,) = data(site, "tasks", "list", "--stopped")["items"]
    assert HOSTILE in run(site, "tasks", "show", str(stopped["task_id"]))
    assert "waits for region 12 v7" in run(site, "tasks", "show", str(deployment.tasks[1].task_id))
    assert isinstance(refused(site, "tasks", "list", "--tenant", "1"), InvalidInput)
    assert isinstance(refused(site, "tasks", "show", "999"), NotFound)


def test_a_verb_says_first_what_it_would_do(site: tuple[Operated, str]) -> None:
    deployment, _ = site
    catalog = deployment.world.catalog
    assert run(site, "workers", "drain", "dispatcher-2", "--dry-run").startswith(
        "would happen: dispatcher-2 hands over"
    )
    assert get_worker(catalog, "dispatcher-2").state is WorkerState.UP
    assert run(site, "workers", "drain", "dispatcher-2").startswith("dispatcher-2 hands over 1 store to dispatcher-1")
    assert get_worker(catalog, "dispatcher-2").state is WorkerState.DRAINING
    assert run(site, "workers", "drain", "dispatcher-2", "--undo").startswith("dispatcher-2 is given work again")
    task = str(deployment.tasks[0].task_id)
    assert data(site, "tasks", "move", task, "--dry-run")["to"] == "sorter-2"
    assert "goes from sorter-1 to sorter-2" in run(site, "tasks", "move", task, "--sorter", "sorter-2")
    assert get_task(catalog, deployment.tasks[0].task_id).owner == "sorter-2"
    error = refused(site, "tasks", "move", task, "--sorter", "sorter-3")
    assert isinstance(error, StateForbids)
    assert "Up are sorter-1, sorter-2" in str(error)
    assert isinstance(refused(site, "tasks", "retry", task), StateForbids)


def test_watermark_gaps_are_sentences(site: tuple[Operated, str]) -> None:
    words = run(site, "gaps", "-c", "1", "-t", "1")
    assert "last file 41.0 s ago; probably the store is down\n" in words, "a sentence is not broken"
    assert {h["cause"] for h in data(site, "gaps")["items"]} >= {
        "standing",
        "watermark_gap",
        "silent",
        "stopped",
        "awaiting",
    }
    lines = run(site, "gaps").splitlines()
    assert "2/8 paused: tenant 2/8 is paused: upgrade" in lines, "of several tenants each line names its own"
    assert all(re.match(r"\d+/\d+ [a-z_ ]+: |  ", line) for line in lines), lines


def test_events_are_in_order_and_followed(site: tuple[Operated, str], monkeypatch: pytest.MonkeyPatch) -> None:
    lines = run(site, "events", "--kind", "tenant.activated").splitlines()
    assert [line.split("  ")[1].split(" activated")[0] for line in lines] == ["tenant 1/1", "tenant 2/7", "tenant 2/8"]
    assert len(data(site, "events", "--limit", "3")) == 3
    pauses = iter([None, KeyboardInterrupt])

    def pause(_: float) -> None:
        end = next(pauses)
        if end is not None:
            raise end
        deployment, _url = site
        assert deployment.http.post("/v1/workers/sorter-4:undrain").status_code == 200

    monkeypatch.setattr("tistream.cli.operate.time", SimpleNamespace(sleep=pause))  # not that of all threads
    followed = run(site, "events", "--follow", "--limit", "1", "--kind", "worker")
    assert followed.splitlines()[-1].endswith("worker sorter-4 returned  by API")


def test_a_tenant_is_deleted_by_who_types_its_name(site: tuple[Operated, str]) -> None:
    deployment, _ = site
    tenant, of = Tenant(5, 5), ("tenant", "delete", "-c", "5", "-t", "5")
    register_tenant(deployment.world.catalog, tenant)
    assert run(site, *of, "--dry-run").startswith("would happen: Tenant 5/5 (AWAITING_SNAPSHOT) is deleted, and this")
    for typed in ("", "yes\n", "1/1\n"):
        answer = CliRunner().invoke(command_line(), [*of, "--url", site[1]], input=typed)
        assert answer.exit_code != 0
        assert "this cannot be undone" in answer.output
    assert get_tenant(deployment.world.catalog, tenant).state is TenantState.AWAITING_SNAPSHOT
    answer = CliRunner().invoke(command_line(), [*of, "--reason", "a test", "--url", site[1]], input="5/5\n")
    assert (answer.exit_code, look_up_tenant(deployment.world.catalog, tenant).reason) == (0, "a test")
    assert json.loads(run(site, *of, "--yes", "--json"))["state"] == "DELETING"
    assert json.loads(run(site, "tenant", "show", *of[2:]))["state"] == "DELETING"
    assert isinstance(refused(site, "tenant", "register", *of[2:]), TiStreamError)
    assert isinstance(refused(site, "tenant", "delete", "-c", "5", "-t", "6", "--yes"), NotFound)
    with deployment.world.catalog.transaction() as conn:
        conn.execute(tables.tenants.delete().where(tables.tenants.c.cluster_id == 5))


def test_tenants_are_paused_and_a_wrong_one_is_told_which_there_are(site: tuple[Operated, str]) -> None:
    deployment, _ = site
    of = ("-c", "1", "-t", "1")
    assert "is paused" in run(site, "tenant", "pause", *of, "--reason", "a test", "--dry-run")
    run(site, "tenant", "pause", *of, "--reason", "a test")
    assert get_tenant(deployment.world.catalog, TENANT).reason == "a test"
    run(site, "tenant", "resume", *of)
    assert get_tenant(deployment.world.catalog, TENANT).state is TenantState.ACTIVE
    assert "1/1" in run(site, "tenant", "list")
    assert yaml.safe_load(run(site, "tenant", "show", *of, "--format", "yaml"))["tenant_id"] == 1
    error = refused(site, "tenant", "show", "-c", "1", "-t", "7")
    assert isinstance(error, NotFound)
    assert error.hint == "There are: 1/1, 1/2, 2/7, 2/8."


def test_the_schema_through_time(site: tuple[Operated, str]) -> None:
    of = ("-c", "1", "-t", "1")
    assert "shop.customers" in run(site, "schema", "show", *of, "--at", "earliest")
    assert run(site, "schema", "show", *of, "shop.customers", "--at", "earliest").startswith("CREATE TABLE")
    history = data(site, "schema", "history", *of, "-n", "5")
    assert len(history["items"]) == 5 < history["total"]
    newest = history["items"][0]
    assert newest["commit_ts"] in run(site, "schema", "history", *of, "-n", "5")
    before = str(int(newest["commit_ts"]) - 1)
    changed = run(site, "schema", "diff", *of, "--from", before, "--to", newest["commit_ts"])
    assert newest["table"] in changed
    assert data(site, "schema", "diff", *of, "--from", newest["commit_ts"])["tables"] == []
    assert "did you mean" in str(refused(site, "schema", "show", *of, "shpo.customers"))


def test_any_path_of_the_api(site: tuple[Operated, str]) -> None:
    assert json.loads(run(site, "api", "get", "/v1/owner"))["owner"] == "meta-1"
    assert yaml.safe_load(run(site, "api", "get", "/v1/tasks?limit=2", "--format", "yaml"))["items"][0]["task_id"] == 1
    assert isinstance(refused(site, "api", "get", "v1/owner"), InvalidInput)


def test_status_in_its_forms(site: tuple[Operated, str]) -> None:
    assert "ACTIVE" in run(site, "status", "--no-color")
    status = data(site, "status")
    assert status["health"]["status"] == "ok"
    assert status["releases"] == {str(THIS_RELEASE): 7}, "the one that is silent does not count"
    assert f"7 of release {THIS_RELEASE}" in run(site, "status", "--no-color")
    lines = [json.loads(line) for line in run(site, "status", "--format", "ndjson").splitlines()]
    assert [(job["job_id"], job["kind"]) for job in status["offers"]] == [("5", "replay")]
    assert lines[0] == {name: value for name, value in status.items() if name != "tenants"}
    assert "offered replay of a backlog of tenant 2/8: 1 h 6 min behind" in run(site, "status", "--no-color")
    assert len(lines) == 5


def test_settings_and_their_sources(
    site: tuple[Operated, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "tistream.toml"
    file.write_text('[server]\nport = 9000\n[catalog]\nurl = "mysql+pymysql://me:hidden@db/x"\n', "utf-8")
    monkeypatch.setenv("TISTREAM_LOG_LEVEL", "debug")
    shown = yaml.safe_load(run(site, "config", "show", "--config", str(file)))
    assert shown["server"]["port"] == 9000
    assert shown["catalog"]["url"] == "mysql+pymysql://me:***@db/x"
    rows = json.loads(run(site, "config", "explain", "--config", str(file), "--json"))["items"]
    by_name = {row["setting"]: row for row in rows}
    assert (by_name["server.port"]["source"], by_name["server.port"]["value"]) == (str(file), 9000)
    assert by_name["log.level"]["source"] == "TISTREAM_LOG_LEVEL"
    assert by_name["server.host"]["source"] == "default"
    assert [row.split()[0] for row in run(site, "config", "explain", "log").splitlines()][1:] == [
        name for name in by_name if name.startswith("log.")
    ]
    assert "Did you mean 'server.port'?" in str(refused(site, "config", "explain", "server.prot"))


def test_what_has_stopped_is_listed_shown_in_status_and_resumed(site: tuple[Operated, str]) -> None:
    stopped = StoppedItem(
        role="audit", item=str(TENANT), scope=Scope.TENANT, tenant=TENANT, code="TS-1020", message="damaged",
        object="committed/x", tries=2,
    )  # fmt: skip
    record_stopped_item(site[0].world.catalog, stopped)
    (row,) = list_stopped_items(site[0].world.catalog)
    listed = run(site, "stops", "list").splitlines()
    assert f"tenant {TENANT}" in listed[1]
    assert "TS-1020 damaged" in listed[1]
    assert "committed/x" in listed[1]
    status = run(site, "status")
    assert f"stopped audit of tenant {TENANT}: damaged (tistream stops resume {row.item_id})" in status
    assert [s["stop_id"] for s in data(site, "status")["stops"]][:1] == [str(row.item_id)]
    assert "would happen: audit tries" in run(site, "stops", "resume", str(row.item_id), "--dry-run")
    assert "audit tries" in run(site, "stops", "resume", str(row.item_id))
    assert get_stopped_item(site[0].world.catalog, row.item_id).resumed
    assert clear_stopped_item(site[0].world.catalog, "audit", str(TENANT))
    assert isinstance(refused(site, "stops", "resume", str(row.item_id)), NotFound)


def test_jobs_are_listed_shown_and_run(site: tuple[Operated, str]) -> None:
    lines = run(site, "jobs", "list").splitlines()
    assert [line.split()[0] for line in lines] == ["job", "5", "4", "3", "2", "1"]
    assert "160 -> 5" in lines[5]
    assert [j["job_id"] for j in data(site, "jobs", "list", "--state", "failed")["items"]] == ["2"]
    assert data(site, "jobs", "show", "3")["parts_done"] == 3
    assert "would happen" in run(site, "jobs", "retry", "2", "--dry-run")
    assert "offered" in run(site, "jobs", "retry", "5")
    assert "is cancelled" in run(site, "jobs", "cancel", "4")
    assert isinstance(refused(site, "jobs", "cancel", "4"), StateForbids)


def test_doctor_compares_the_reported_load_with_what_was_measured(site: tuple[Operated, str]) -> None:
    result = _run(site, "doctor", "--json")
    checks = {check["name"]: check for check in json.loads(result.stdout)["checks"]}
    of_sorters = checks["capacity: sorter"]
    assert (of_sorters["verdict"], of_sorters["facts"]["processes"]) == ("ok", 3), "a silent one does not count"
    assert "the last 10 s brought 2,606 changes and 2.0 files a second" in of_sorters["words"]
    jobs = checks["maintenance jobs"]
    assert (jobs["verdict"], jobs["facts"]["maintain"], jobs["facts"]["spark"]) == ("fail", 0, 0)
    assert jobs["words"].endswith("no executor is up: start tistream maintain")
    assert result.exit_code == 1
