"""The audit log and commands: `tistream audit-log`, and what commands do that open the catalog by themselves."""

from __future__ import annotations

import ast
import json
import os
import pwd
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from tests.kit.catalog_cases import new_catalog
from tests.kit.log_builder import LogBuilder
from tests.kit.operated import Operated, operated
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.revisions import MIGRATIONS
from tistream.catalog.rows.audit import AuditEntry, Deed
from tistream.catalog.tenancy.audit_log import EntryFilter, list_entries
from tistream.cli import running
from tistream.cli.main import command_line
from tistream.cli.recorded import recorded
from tistream.cli.server import HttpServer
from tistream.errors import NotFound
from tistream.ids import Tenant
from tistream.objectstore.local import LocalStore

ME, HERE = pwd.getpwuid(os.getuid()).pw_name, socket.gethostname()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Operated, str]]:
    """A service whose log has pauses and resumptions of a tenant: more than a page of the command."""
    with operated(tmp_path_factory.mktemp("audited")) as new_site:
        server = HttpServer(new_site.http.app, "127.0.0.1", 0)  # type: ignore[arg-type]
        server.start()
        for _ in range(4):
            for verb in ("pause", "resume"):
                assert new_site.http.post(f"/v1/clusters/1/tenants/1:{verb}").status_code == 200
        yield new_site, server.url
        server.stop()


def run(site: tuple[Operated, str], *words: str) -> str:
    done = CliRunner().invoke(command_line(), ["audit-log", *words, "--url", site[1]], env={"COLUMNS": "200"})
    assert done.exit_code == 0, (done.output, done.exception)
    return done.output


def entries(catalog: Catalog) -> list[AuditEntry]:
    return list_entries(catalog, EntryFilter(), limit=1000)[::-1]


def test_the_log_is_shown_in_order_the_newest_last(site: tuple[Operated, str]) -> None:
    verbs = ["pause_tenant", "resume_tenant"] * 4
    lines = run(site).splitlines()
    assert lines[0].split() == [
        "time",
        "principal",
        "address",
        "operation",
        "tenant",
        "target",
        "result",
        "times",
        "request",
    ]
    assert [line.split()[4] for line in lines[1:]] == verbs
    assert all(" anyone " in line and " testclient " in line and " 1/1 " in line for line in lines[1:])
    assert [line.split()[4] for line in run(site, "--limit", "2").splitlines()[1:]] == verbs[-2:]
    assert len(run(site, "--operation", "pause_tenant", "-c", "1", "-t", "1").splitlines()) == 5
    assert run(site, "--result", "failed").strip() == "no entry"
    assert run(site, "--until", "-1h").strip() == "no entry"


def test_all_of_it_is_data_page_by_page(site: tuple[Operated, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tistream.cli.audit_log.PAGE", 3)
    everything = json.loads(run(site, "--json"))
    assert [e["operation"] for e in everything] == ["pause_tenant", "resume_tenant"] * 4
    assert [json.loads(line) for line in run(site, "--format", "ndjson").splitlines()] == everything
    assert yaml.safe_load(run(site, "--format", "yaml")) == everything
    assert json.loads(run(site, "--json", "--limit", "3")) == everything[-3:]
    assert json.loads(run(site, "--json", "--principal", "nobody")) == []


def test_it_is_followed(site: tuple[Operated, str], monkeypatch: pytest.MonkeyPatch) -> None:
    deployment, _ = site
    pauses = iter([None, KeyboardInterrupt])

    def pause(_: float) -> None:
        end = next(pauses)
        if end is not None:
            raise end
        assert deployment.http.post("/v1/workers/sorter-4:undrain").status_code == 200

    monkeypatch.setattr("tistream.cli.audit_log.time", SimpleNamespace(sleep=pause))
    line = run(site, "--follow", "--limit", "1").splitlines()[-1]
    assert "  anyone  testclient  undrain_worker  worker_id=sorter-4  done 200" in line


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    catalog = new_catalog(tmp_path)
    yield catalog
    catalog.close()


def command(*words: str) -> Any:
    return CliRunner().invoke(command_line(), list(words))


def test_an_owners_key_from_the_command_line_is_recorded(catalog: Catalog, tmp_path: Path) -> None:
    done = command("key", "owner", "ann", "--catalog", f"sqlite:///{tmp_path}/catalog.db")
    key = done.stdout.strip()
    (entry,) = entries(catalog)
    assert (entry.principal, entry.address, entry.role, entry.key_id) == (ME, HERE, "command", "")
    assert (entry.operation, entry.result, entry.status) == ("tistream key owner", "done", 0)
    assert entry.target == f"key_id={key.split('_')[1]} role=owner"
    assert key not in str(entry)
    refused = command("key", "owner", "x" * 300, "--catalog", f"sqlite:///{tmp_path}/catalog.db")
    assert refused.exit_code != 0
    assert (entries(catalog)[-1].result, entries(catalog)[-1].code) == ("refused", "TS-1001")


def test_commands_that_change_the_log_are_recorded_and_one_that_reads_is_not(catalog: Catalog, tmp_path: Path) -> None:
    LogBuilder(catalog, LocalStore(tmp_path / "bucket")).build(2)
    where = [f"--catalog=sqlite:///{tmp_path}/catalog.db", f"--object-store=file://{tmp_path}/bucket"]
    assert command("audit", *where).exit_code == 0
    assert entries(catalog) == []
    assert command("compact", "-c1", "-t1", "--engine=threads", "--lag-s=0", "--no-bases", *where).exit_code == 0
    assert command("compact", "-c9", "-t9", "--engine=threads", *where).exit_code != 0
    assert command("replay", "-c9", "-t9", "--engine=threads", *where).exit_code != 0
    done, missing, replay = entries(catalog)
    assert (done.operation, done.tenant, done.result) == ("tistream compact", Tenant(1, 1), "done")
    assert (missing.tenant, missing.result, missing.code) == (Tenant(9, 9), "refused", "TS-1010")
    assert (replay.operation, replay.result) == ("tistream replay", "refused")


def test_an_upgrade_is_recorded_when_it_changes_something(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/catalog.db"
    old = Catalog(url)
    old.migrate(to="0001")
    for _ in range(2):
        assert command("upgrade", "--run", "--catalog", url).exit_code == 0
    (entry,) = entries(old)
    assert (entry.operation, entry.target) == ("tistream upgrade", f"revision={MIGRATIONS.newest}")
    assert (entry.principal, entry.result) == (ME, "done")
    old.close()


def test_a_command_has_its_entry_while_it_runs(catalog: Catalog) -> None:
    with recorded(catalog, Deed(operation="tistream compact")):
        assert [entry.result for entry in entries(catalog)] == ["unknown"]
    with pytest.raises(KeyboardInterrupt), recorded(catalog, Deed(operation="tistream compact")):
        raise KeyboardInterrupt
    with pytest.raises(NotFound), recorded(catalog, Deed(operation="tistream compact")):
        raise NotFound("no such tenant")
    assert [entry.result for entry in entries(catalog)] == ["done", "failed", "refused"]


def test_the_first_key_of_a_service_is_recorded(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "_has_terminal", lambda: True)
    lines = running.first_words(catalog, "http://127.0.0.1:8711", has_console=True)
    key = next(line.split()[-1] for line in lines if "owner key" in line)
    first, code = entries(catalog)
    assert (first.operation, code.operation) == ("first owner key", "console code")
    assert first.target == code.target == f"key_id={key.split('_')[1]}"
    assert (first.principal, first.result) == (ME, "done")
    for secret in (key, lines[-2].partition("#")[2]):
        assert secret not in f"{first} {code}"


def test_a_user_without_a_name_is_named_by_its_number(catalog: Catalog, monkeypatch: pytest.MonkeyPatch) -> None:
    def nameless(_: int) -> Any:
        raise KeyError

    monkeypatch.setattr("tistream.cli.recorded.pwd.getpwuid", nameless)
    with recorded(catalog, Deed(operation="tistream compact")):
        (entry,) = entries(catalog)
    assert entry.principal == f"uid {os.getuid()}"
    assert sys.platform == "linux" or entry.address


#: functions of the command line that open a catalog and record nothing, and why
SILENT = {
    "assembly.open_parts": "it only opens",
    "assembly.open_process": "a service",
    "jobs._begin": "its caller says what to record",
    "files.audit": "it reads",
    "catalog.status": "it reads",
    "catalog.confirm": "it says what to record when it opens",
}
_OPENS = {"catalog_of", "opened", "open_parts", "Catalog"}
_RECORDS = {"recorded", "record_done"}


def test_every_command_that_opens_a_catalog_records_what_it_does() -> None:
    silent = set()
    for path in sorted(Path(running.__file__).parent.glob("*.py")):
        for function in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(function, ast.FunctionDef):
                calls = [node.func for node in ast.walk(function) if isinstance(node, ast.Call)]
                names = {call.id if isinstance(call, ast.Name) else getattr(call, "attr", "") for call in calls}
                if names & _OPENS and not names & _RECORDS:
                    silent.add(f"{path.stem}.{function.name}")
    assert silent == set(SILENT)
