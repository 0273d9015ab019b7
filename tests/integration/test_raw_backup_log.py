"""Backups by the log, and the commands: a tenant whose log lacks versions around some timestamps."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from apiserver.app import create_app
from backup.from_log import watermark_of
from simulator.raw_workload import RawProfile, raw_cluster
from simulator.serve.served import ServedCluster
from tests.kit.api_world import ApiWorld, api_world
from tests.kit.entry_log import Entry, EntryLog, entry_rows
from tests.kit.stream_world import served
from tistream import ts as tso
from tistream.client import connect
from tistream.clock import SystemClock
from tistream.errors import InvalidInput
from tistream.keyrange import KeyRange
from tistream.tikv.core.api_versions import Api

NOW_S = SystemClock().unix_ms() // 1000
FAR_S = NOW_S + 100_000


def at(seconds: int) -> int:
    return tso.compose((NOW_S - 1000 + seconds) * 1000)


LOG = [
    Entry(at(1), b"a\x00", b"1"),
    Entry(at(2), b"b", b"2", FAR_S),
    Entry(at(3), b"c", b"3", NOW_S - 995),  # ends at second 5
    Entry(at(4), b"d", b"4"),
    Entry(at(6), b"d", None),
    Entry(at(7), b"e", b""),
    Entry(at(9), b"a\x00", b"new", scanned_from_ts=at(8)),
]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    with api_world(tmp_path_factory.mktemp("kv"), rows=entry_rows(LOG), builder=EntryLog) as new_world:
        new_world.log.build(3, upto=at(10))
        yield new_world


@pytest.fixture(scope="module")
def url(world: ApiWorld) -> Iterator[str]:
    with served(create_app(world.services)) as server:
        yield server.url


def tistream(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tistream.cli.main", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == status, done.stdout + done.stderr
    return done


def test_a_backup_by_the_log_is_restored_into_a_cluster(url: str, tmp_path: Path) -> None:
    storage, log = f"file://{tmp_path}/backup", ("--from-log", "-c", "1", "-t", "1", "--url", url)
    backup = tistream("raw", "backup", "-s", storage, *log, "--as-of", str(at(7)), "--json")
    facts = json.loads(backup.stdout)
    assert (facts["backup_ts"], facts["made_from"], facts["pairs"]) == (str(at(7)), "log", 3)
    assert f"--start-ts {at(7)}" in backup.stderr
    profile = RawProfile(keyspaces=(1, 2), keys=10)
    model = raw_cluster(profile, floor_ts=tso.compose((NOW_S - 3600) * 1000))
    with ServedCluster(model, api=Api.V2, keyspaces={"app": 1, "copy": 2}) as other:
        pd = ("--pd", other.pd_address, "--json")
        done = json.loads(tistream("raw", "restore", "-s", storage, *pd, "--keyspace", "copy").stdout)
        assert (done["written_pairs"], done["equal"], done["keyspace_id"]) == (3, True, 2)
        copied = f"file://{tmp_path}/copied"
        again = tistream("raw", "backup", "-s", copied, *pd, "--keyspace", "copy", "--safe-interval", "0")
        assert json.loads(again.stdout)["crc64_xor"] == facts["crc64_xor"]
        ranged = tistream(
            "raw", "backup", "-s", f"file://{tmp_path}/ranged", *pd, "--keyspace", "2", "--safe-interval", "0",
            "--start", "b", "--end", "e",
        )  # fmt: skip
        assert json.loads(ranged.stdout)["expiring_pairs"] == json.loads(ranged.stdout)["pairs"] == 1
    assert json.loads(tistream("raw", "check", "-s", storage, "--json").stdout)["pairs"] == 3
    refused = tistream("raw", "backup", "-s", storage, *log, status=2)
    assert "must be empty" in refused.stderr


def test_a_state_that_the_log_does_not_know_is_refused_or_counted(url: str, tmp_path: Path) -> None:
    command = ("raw", "backup", "--from-log", "-c", "1", "-t", "1", "--url", url, "--as-of", str(at(8) + 1))
    refused = tistream(*command, "-s", f"file://{tmp_path}/refused", status=2)
    assert "TS-1095" in refused.stderr
    assert str(at(8)) in refused.stderr
    assert str(at(9)) in refused.stderr
    assert not [path for path in (tmp_path / "refused").rglob("*") if path.is_file()]
    backup = tistream(*command, "-s", f"file://{tmp_path}/allowed", "--allow-state", "--json")
    assert json.loads(backup.stdout)["inexact_keys"] == 1


def test_the_watermark_of_a_tenant_is_one_of_its_own_keys(url: str) -> None:
    with connect(url) as client:
        tenant = client.tenant(1, 1)
        assert watermark_of(client, tenant, 1, KeyRange(b"a")) == at(10)
        with pytest.raises(InvalidInput, match="another keyspace"):
            watermark_of(client, tenant, 2, KeyRange())
