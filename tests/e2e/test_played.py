"""What production runs is what the simulator plays: the list of exceptions in docs/correctness.md is complete and true.

Every role runs as a process under a short load, and the simulator plays a seed of every scenario; both note which
functions they call (`tests/kit/executed`). A class of the product that only production calls must be in the list.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from simulator.chaos.servers.mariadb import mariadb, new_database
from simulator.chaos.servers.processes import owner_key, pull_all, register
from simulator.chaos.servers.s3server import CREDENTIALS, s3_server
from simulator.chaos.servers.services import Services
from tests.kit.waiting import eventually

ROOT = Path(__file__).parents[2]
DOC = ROOT / "docs" / "correctness.md"
TENANT = "/v1/clusters/1/tenants/1"
NOT_A_SERVICE = ("tistream/cli/", "simulator/", "tests/")
SERVICES = ("meta-1", "api-1", "sorter-1", "dispatcher-1", "maintain-1", "replicate-1")
SIMULATOR = """
from simulator.dst.profiles import PROFILES
from simulator.dst.run import run
for name in PROFILES:
    run(0, name)
"""

Class = tuple[str, str]  # module, name


def noting(out: Path) -> dict[str, str]:
    """The environment of a process that notes its calls in files that begin with this path."""
    return {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "tests" / "kit" / "executed"), str(ROOT)]),
        "EXECUTED_OUT": str(out),
        "EXECUTED_ROOT": f"{ROOT}/",
    }


def classes(folder: Path, name: str = "*") -> set[Class]:
    """The classes of the product with a method that the processes called."""
    called: set[Class] = set()
    for path in folder.glob(f"{name}.*[0-9]"):
        for line in path.read_text("utf-8").splitlines():
            module, _, function = line.partition(" ")
            owner, _, method = function.partition(".")
            if method and owner.lstrip("_")[:1].isupper() and not module.startswith(NOT_A_SERVICE):
                called.add((module, owner))
    return called


@pytest.fixture(scope="module")
def production(tmp_path_factory: pytest.TempPathFactory, recording: Path, last_resolved_ts: int) -> set[Class]:
    """What the roles call while a recording is pushed, pulled, compacted and written to files."""
    folder = tmp_path_factory.mktemp("production")
    with mariadb() as database, s3_server() as s3:
        s3.create_bucket("tistream")
        catalog = new_database(database, "played")
        settings = {**CREDENTIALS, "TISTREAM_SERVER_AUTH": "keys", "TISTREAM_MAINTENANCE_INTERVAL_S": "1"}
        settings |= {"TISTREAM_MAINTENANCE_LAG_S": "1", "TISTREAM_MAINTENANCE_MERGE_FILES_MIN": "2"}
        settings |= {"TISTREAM_CATALOG_URL": catalog, "TISTREAM_OBJECT_STORE_URL": s3.url("tistream", "played")}
        services = Services(folder, lambda name: {**settings, **noting(folder / name)})
        with pytest.MonkeyPatch.context() as patch:
            try:
                services.start(*SERVICES)
                services.wait_until_ready("meta-1", "api-1")
                url, owner = services.url_of("api-1"), owner_key("--catalog", catalog)
                patch.setenv("TISTREAM_KEY", owner)
                register(url)
                settings["TISTREAM_KEY"] = owner
                services.add(
                    "push", "push", "--capture", str(recording), "--url", url, *["-c", "1", "-t", "1", "--speed", "max"]
                )
                services.start("push")
                assert services.processes["push"].wait(240) == 0, services.logs()
                assert pull_all(url, last_resolved_ts, format="canal-json")
                _write_and_compact(url, owner, folder / "lake", last_resolved_ts)
                assert [services.processes[name].stop() for name in reversed(SERVICES)] == [0] * len(SERVICES)
            finally:
                services.kill()
    called = {role: classes(folder, role) for role in (*SERVICES, "push")}
    assert all(called.values())
    return set().union(*called.values())


def _write_and_compact(url: str, owner: str, folder: Path, end_ts: int) -> None:
    """A changefeed to its end, and a maintenance job of the scheduler."""
    with httpx2.Client(base_url=url, headers={"Authorization": f"Bearer {owner}"}, timeout=60) as http:
        place = {"sink_uri": f"file://{folder}?protocol=canal-json", "start_ts": "earliest", "target_ts": str(end_ts)}
        created = http.post(f"{TENANT}/changefeeds", json={"changefeed_id": "lake", **place})
        assert created.status_code == 201, created.text
        eventually(lambda: http.get(f"{TENANT}/changefeeds/lake").json()["state"] == "finished")
        eventually(lambda: "done" in {job["state"] for job in http.get("/v1/jobs").json()["items"]})


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> set[Class]:
    """What the simulator calls in a seed of every scenario."""
    folder = tmp_path_factory.mktemp("simulated")
    env = {**os.environ, **noting(folder / "sim"), "EXECUTED_BY": "cprofile"}
    subprocess.run([sys.executable, "-c", SIMULATOR], env=env, cwd=ROOT, check=True, timeout=900)
    return classes(folder)


def listed() -> Iterator[str]:
    """What the first column of "What is not simulated" names: classes, and folders for all their classes."""
    section = DOC.read_text("utf-8").split("## What is not simulated")[1].split("\n## ")[0]
    for row in re.findall(r"^\| (.*?) \|", section, re.MULTILINE)[2:]:
        yield from re.findall(r"`([^`]+)`", row)


@pytest.mark.timeout(1200)
def test_only_what_is_listed_runs_only_in_production(production: set[Class], simulated: set[Class]) -> None:
    names = tuple(listed())
    folders = tuple(f"{name}/" for name in names if "/" in name or name.islower())
    only = {(module, owner) for module, owner in production - simulated if not module.startswith(folders)}
    assert {owner for _, owner in only} - set(names) == set(), sorted(only)


def test_what_is_listed_is_not_simulated(simulated: set[Class]) -> None:
    assert {owner for _, owner in simulated} & set(listed()) == set()


def test_what_is_listed_exists() -> None:
    defined: set[str] = set()
    for folder in {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"tests"}:
        for path in (ROOT / folder).rglob("*.py"):
            defined |= set(re.findall(r"^class (\w+)", path.read_text("utf-8"), re.MULTILINE))
            defined |= {str(parent.relative_to(ROOT)) for parent in path.parents if parent.is_relative_to(ROOT)}
    assert set(listed()) - defined == set()
