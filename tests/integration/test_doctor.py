"""A cluster looked at before it is pushed: what is well, and what each thing that is not looks like."""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pusher.tikv.checks import check_cluster
from simulator.core.mvcc import Version
from simulator.serve.content import cluster_of, recorded_cluster
from simulator.serve.served import ServedCluster
from tistream.cli.main import command_line
from tistream.clock import SystemClock
from tistream.codec.memcomparable import encode_bytes
from tistream.diagnostics.findings import Finding, Verdict
from tistream.model.change import Op
from tistream.tikv.core.api_versions import Api
from tistream.tikv.core.ranges import whole_cluster
from tistream.tikv.pd import PdClient

RECORDING = Path(str(files("simulator") / "recording"))
S = 470613530891255808


@pytest.fixture
def served() -> Iterator[ServedCluster]:
    with ServedCluster(recorded_cluster(RECORDING, floor_ts=S, regions=12)) as cluster:
        yield cluster


def look(served: ServedCluster) -> dict[str, Finding]:
    pd = PdClient([served.pd_address], patience_s=1.0)
    try:
        return {f.name: f for f in check_cluster(pd, whole_cluster(), tls=None, clock=SystemClock())}
    finally:
        pd.close()


def test_a_cluster_that_is_well(served: ServedCluster) -> None:
    found = look(served)
    assert {f.verdict for f in found.values()} == {Verdict.OK}, found
    assert list(found) == [
        *("pd", "clock", "stores", "store 1", "store 2", "store 3"),
        *("regions", "history", "api version", "read", "locks", "estimate"),
    ]
    assert found["regions"].facts["regions"] == 12
    assert sum(found["regions"].facts["leaders"].values()) == 12  # type: ignore[attr-defined]
    assert found["api version"].facts == {"api_version": "V1"}
    assert found["history"].facts["safe_point"] == str(S)
    assert found["estimate"].facts["files_per_month"] == 3 * 30 * 86_400


def test_a_store_that_cannot_be_reached(served: ServedCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pusher.tikv.checks._CONNECT_S", 0.3)
    served.pd._store_addresses[2] = "127.0.0.1:1"  # type: ignore[index]
    found = look(served)
    assert found["store 2"].verdict is Verdict.FAIL
    assert "127.0.0.1:1 cannot be reached" in found["store 2"].words
    assert found["store 1"].verdict is Verdict.OK


def test_a_server_that_is_no_tikv(served: ServedCluster) -> None:
    served.pd._store_addresses[3] = served.pd_address  # type: ignore[index]
    found = look(served)["store 3"]
    assert found.verdict is Verdict.FAIL
    assert "UNIMPLEMENTED" in found.words


def test_a_cluster_without_tidb() -> None:
    with ServedCluster(cluster_of([], floor_ts=S), api=Api.V2) as served:
        found = look(served)
    assert found["read"].verdict is Verdict.WARN, "a raw or txn tenant needs none"
    assert "no TiDB" in found["read"].words
    assert found["api version"].facts == {"api_version": "V2"}
    assert "RawDeleteRange is invisible" in found["api version"].words


def test_a_server_with_data_of_raw_keys_only_is_refused_with_the_way_out(served: ServedCluster) -> None:
    with ServedCluster(cluster_of([], floor_ts=S), api=Api.V1TTL) as ttl:
        found = look(ttl)
    assert found["api version"].verdict is Verdict.FAIL
    assert found["api version"].facts == {"api_version": "V1TTL"}
    assert "RawKV data only" in found["api version"].words
    assert "--dst-api-version v2" in found["api version"].words
    assert "storage_api_version: V1ttl" in found["read"].words


def test_the_command_gives_a_table_json_and_a_status(served: ServedCluster) -> None:
    runner = CliRunner()
    shown = runner.invoke(command_line(), ["doctor", "--pd", served.pd_address])
    assert shown.exit_code == 0
    assert "12 regions would be followed" in " ".join(shown.output.replace("│", " ").split())
    checks = json.loads(runner.invoke(command_line(), ["doctor", "--pd", served.pd_address, "--json"]).output)["checks"]
    assert [c["verdict"] for c in checks] == ["ok"] * 12
    served.pd._store_addresses[3] = served.pd_address  # type: ignore[index]
    assert runner.invoke(command_line(), ["doctor", "--pd", served.pd_address, "--json"]).exit_code == 1


def test_pd_that_does_not_answer_ends_the_examination() -> None:
    pd = PdClient(["127.0.0.1:1"], patience_s=0.1)
    found = check_cluster(pd, whole_cluster(), tls=None, clock=SystemClock())
    pd.close()
    assert [(f.name, f.verdict) for f in found] == [("pd", Verdict.FAIL)]


def test_a_keyspace_is_looked_at_in_its_own_keys() -> None:
    prefix = b"x\0\0\7"
    version = Version(1, 2, Op.PUT, b"12", None)
    content = [(prefix + b"m" + encode_bytes(b"SchemaVersionKey") + b"\0" * 7 + b"s", version)]
    spaces = {"one": 7, "two": 8}
    with ServedCluster(cluster_of(content, floor_ts=S), keyspaces=spaces, api=Api.V2) as served:
        pd = PdClient([served.pd_address])
        told = {}
        for name in ("one", "two", "three"):
            found = check_cluster(pd, whole_cluster(), tls=None, clock=SystemClock(), keyspace=name)
            told[name] = {f.name: f.verdict for f in found if f.name in ("keyspace", "regions", "read")}
        pd.close()
    ok, fail = Verdict.OK, Verdict.FAIL
    assert told["one"] == {"keyspace": ok, "regions": ok, "read": ok}
    assert told["two"] == {"keyspace": ok, "regions": ok, "read": fail}
    assert told["three"] == {"keyspace": fail}


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--pd", "a:1", "--replay", "x"], "give one of"),
        (["--pd", " , "], "at least one PD server"),
        (["--pd", "a:1", "--cert-path", "x"], "belong together"),
        (["--pd", "a:1", "--ca-path", "/nowhere"], "cannot be read"),
    ],
)
def test_options_that_cannot_be(args: list[str], words: str) -> None:
    assert words in str(CliRunner().invoke(command_line(), ["push", *args]).exception)
