"""The catalog's database is lost under load and restored from the newest export, while the processes of the lost one
still run over it: they end, nothing is lost, and readers with a cursor of their own get each change once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx2
import pytest

from simulator.chaos.servers.ports import free_port
from simulator.chaos.servers.processes import TiStreamProcess, Up
from tests.kit.drill import TENANT, Drill, compare_consumed, in_folder, on_servers, reached
from tests.kit.ticdc import compare_lake
from tests.kit.waiting import eventually
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.generation import CatalogState
from tistream.catalog.tenancy.consumers import CONSUMERS
from tistream.catalog.tenancy.keys import get_key
from tistream.catalog.work.exports import export_status
from tistream.catalog.work.tasks import list_tasks
from tistream.ids import Tenant
from tistream.ts import described

SERVICES = ("meta-1", "api-1", "dispatcher-1", "sorter-1", "sorter-2", "replicate-1")
INVALID, FENCED = 2, 5  #: exit statuses: of a request that cannot be done, of a process that must not continue


class Lost(Drill):
    """A deployment whose catalog is exported every few seconds, and lost."""

    def __init__(
        self, folder: Path, stack: ExitStack, settings: Mapping[str, str], *, speed: str, api: str = "api-1"
    ) -> None:
        exports = {"TISTREAM_EXPORTS_INTERVAL_S": "3", "TISTREAM_EXPORTS_KEY_FILE": str(folder / "key")}
        (folder / "key").write_text("5a" * 32, "ascii")
        super().__init__(folder, stack, {**settings, **exports}, speed=speed, api=api)

    def exported_under_load(self) -> int:
        """Wait for an export with all readers, and for changes and acknowledgements since; a position that the
        consumer had before that export."""
        eventually(lambda: len(self.consumed()) > 2, self.cluster.logs)
        without = exported(self.catalog)  # it may lack the consumer
        eventually(lambda: exported(self.catalog) > without, self.cluster.logs)
        acknowledged = acknowledged_ts(self.catalog)
        eventually(lambda: exported(self.catalog) >= without + 2, self.cluster.logs)
        served = reached(self.catalog), acknowledged_ts(self.catalog)
        eventually(
            lambda: reached(self.catalog) > served[0] and acknowledged_ts(self.catalog) > served[1], self.cluster.logs
        )
        assert reached(self.catalog) < self.upto, "under load"
        return acknowledged

    def restored_to(self, settings: Mapping[str, str]) -> None:
        """What is started from now on has that database."""
        self.settings.update(settings)
        self.catalog = self.open_catalog(settings["TISTREAM_CATALOG_URL"])
        assert export_status(self.catalog).state is CatalogState.UNCONFIRMED

    def judge(self, continued_ts: int) -> None:
        """Nothing is lost, and only what readers are said to repeat is there twice."""
        self.judge_readers()
        compare_repeated(self.consumed(), continued_ts)
        assert compare_lake(self.folder / "lake", repeated=True) > 10_000
        verify = (sys.executable, "-m", "tistream.cli.main", "changefeed", "verify", "lake", "-c", "1", "-t", "1")
        verified = subprocess.run([*verify, "--url", self.url], capture_output=True, text=True, timeout=300)
        assert verified.returncode == 0, "all that is there twice is named by an event: " + verified.stdout
        assert "confirmed" in self.command("catalog", "confirm")
        assert export_status(self.catalog).state is CatalogState.READY


def exported(catalog: Catalog) -> int:
    """The number of the newest verified export; 0 before the first."""
    newest = export_status(catalog).newest
    return 0 if newest is None else newest.export_no


def acknowledged_ts(catalog: Catalog) -> int:
    """Up to where the consumer has acknowledged everything."""
    return CONSUMERS.get(catalog, TENANT, "warehouse").checkpoint_ts


def compare_repeated(batches: Sequence[dict[str, Any]], continued_ts: int) -> None:
    """They have each change once, and what was acknowledged above `continued_ts` a second time, from one batch on."""
    falls = [n for n, (before, batch) in enumerate(pairwise(batches), 1) if batch["after"] < before["after"]]
    assert [batches[n]["after"] for n in falls] in ([], [continued_ts]), "only the restore takes acknowledgements back"
    last = falls[0] if falls else 0
    compare_consumed([batch for batch in batches[:last] if batch["after"] < continued_ts] + list(batches[last:]))


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as opened:
        yield opened


@pytest.mark.timeout(900)
def test_a_lost_catalog_is_restored_while_its_processes_still_run(tmp_path: Path, stack: ExitStack) -> None:
    lost, restored = on_servers(stack, "lost", "restored")
    d = Lost(tmp_path, stack, lost, speed="0.4")
    d.start(*SERVICES)
    key_id = d.create("/v1/keys", name="lost", role="viewer")["key_id"]
    acknowledged = d.exported_under_load()
    at_export = exported(d.catalog)
    assert httpx2.get(f"{d.url}/healthz", timeout=60).json()["catalog_export_age_s"] < 300
    assert httpx2.delete(f"{d.url}/v1/keys/{key_id}", timeout=60).json()["state"] == "revoked"
    d.create("/v1/tenants", cluster_id=1, tenant_id=9, kind="raw")
    was, began_s = d.catalog, time.monotonic()
    d.settings.update(restored)
    said = json.loads(d.command("catalog", "restore", "--json"))
    ended = {name: d.cluster.processes[name].wait(30) for name in SERVICES}
    assert set(ended.values()) == {FENCED}, (ended, d.cluster.logs())
    assert said["export"].endswith(f"-{at_export:012d}.json") or exported(was) > at_export
    repeated = {(reader["kind"], reader["name"]): reader["repeats"] for reader in said["readers"]}
    assert repeated == {("changefeed", "lake"): "files", ("consumer", "warehouse"): "changes"}
    continues = {reader["name"]: int(reader["continues_ts"]) for reader in said["readers"]}
    assert 0 < continues["lake"] < d.upto
    assert acknowledged <= continues["warehouse"] < d.upto
    d.restored_to(restored)
    assert get_key(d.catalog, key_id).state == "revoked"
    assert len(list_tasks(d.catalog, Tenant(1, 9))) == 1

    d.push_fast()
    d.cluster.run(*SERVICES, old=False)
    served_s = time.monotonic() - began_s
    d.cluster.run("push", old=False)
    d.judge(continues["warehouse"])
    print(f"served {served_s:.1f} s after the restore began")


@pytest.mark.timeout(600)
def test_a_lost_file_is_restored_into_a_new_one(tmp_path: Path, stack: ExitStack) -> None:
    """Its `tistream up` still runs, over a file that has no name any more. Two operators restore at the same time."""
    lost, *empty = in_folder(tmp_path, "catalog", "restored-0", "restored-1")
    d = Lost(tmp_path, stack, lost, speed="0.6", api="up")
    d.start("up")

    def process(name: str, where: Mapping[str, str], *args: str) -> TiStreamProcess:
        env = {**d.settings, **where}
        return stack.enter_context(TiStreamProcess(*args, log=tmp_path / f"{name}.log", env=env))

    def refused(name: str, where: Mapping[str, str]) -> str:
        up = process(name, where, "up", "--data", str(tmp_path / "data"), "--port", str(free_port()))
        return f"{up.wait(60)}: {up.output()}"

    assert (said := refused("second-up", lost)).startswith(f"{INVALID}:"), said
    assert "already runs" in said
    assert "TS-1002" in said
    acknowledged = d.exported_under_load()
    d.catalog.close()
    began_s = time.monotonic()
    for file in (tmp_path / "data").glob("catalog.db*"):
        file.unlink()
    restores = [process(f"restore-{n}", where, "catalog", "restore") for n, where in enumerate(empty)]
    up = d.cluster.processes["up"]
    assert up.wait(30) == FENCED, up.output()
    assert "TS-1058" in up.output()
    assert (said := refused("old-up", lost)).startswith(f"{FENCED}:"), said
    assert "TS-1058" in said
    eventually(lambda: any("waiting" in each.output() for each in restores))
    filled = next(n for n, each in enumerate(restores) if "waiting" in each.output())
    assert "TS-1059" in (said := refused("early-up", empty[filled])), said
    ended = [each.wait(60) for each in restores]
    assert sorted(ended) == [0, FENCED], restores[0].output() + restores[1].output()
    won = ended.index(0)
    assert "TS-1058" in restores[1 - won].output()
    d.restored_to(empty[won])
    continued_ts = acknowledged_ts(d.catalog)
    assert acknowledged <= continued_ts < d.upto
    assert f"consumer warehouse of tenant 1/1 continues above {described(continued_ts)}" in restores[won].output()

    d.cluster.run("up", old=False)
    served_s = time.monotonic() - began_s
    pusher = d.cluster.processes["push"]
    assert pusher.wait(120) == 0, pusher.output()
    d.judge(continued_ts)
    print(f"served {served_s:.1f} s after the file was lost")


def test_up_does_not_start_on_a_new_file_beside_exports(tmp_path: Path) -> None:
    """It was killed, and finds no file where its catalog was."""
    with Up(tmp_path, env={"TISTREAM_EXPORTS_INTERVAL_S": "1"}) as up:
        catalog = Catalog(f"sqlite:///{tmp_path}/data/catalog.db")
        eventually(lambda: exported(catalog) > 0, up.output)
        catalog.close()
        up.kill()
        for file in (tmp_path / "data").glob("catalog.db*"):
            file.unlink()
        up.start()
        assert up.wait(60) != 0
        assert "TS-1056" in up.output()
