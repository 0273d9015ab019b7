"""Keyspaces in one process: a recording of a real TiKV's RawKV comes out as its clients were answered, and a living
(modelled) cluster's keys of transactions as they were committed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from simulator import ddl, jobs, transactions
from simulator.chaos.servers.processes import TiStreamProcess, Up, client
from simulator.core.mvcc import Version
from simulator.profiles import DEFAULT
from simulator.serve.content import cluster_of
from simulator.serve.served import ServedCluster
from simulator.workload import Workload
from tests.kit.raw_recording import RAW_DEV, Answers, Write, answers, events
from tests.kit.waiting import eventually
from tistream import ts as tso
from tistream.model.change import Op
from tistream.tikv.core.api_versions import Api

PREFIX = b"x\0\0\7"
KEYSPACES = (0, 1)


@pytest.fixture(scope="module")
def pushed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    """A service with a tenant for each keyspace: 1/1 is keyspace 0, 1/2 is keyspace 1."""
    folder = tmp_path_factory.mktemp("up")
    with Up(folder) as up:
        for keyspace in KEYSPACES:
            tenant = ("-c", "1", "-t", str(keyspace + 1), "--url", up.url)
            kind = ("--kind", "raw", "--keyspace", str(keyspace))
            _run("tenant", "register", *tenant, *kind, log=folder / f"register{keyspace}.log")
            replay = ("push", "--recording", str(RAW_DEV), *tenant, "--speed", "max")
            _run(*replay, log=folder / f"push{keyspace}.log")
        yield up


def _run(*args: str, **given: Any) -> None:
    with TiStreamProcess(*args, **given) as process:
        assert process.wait(240) == 0, process.output()


def changes(up: Up, keyspace: int) -> list[Write]:
    """All changes in the order of the log, as a client of the HTTP API reads them."""
    path, writes, query = f"/v1/clusters/1/tenants/{keyspace + 1}/kv/changes", list[Write](), {"start_ts": "earliest"}
    with client(up.url) as c:
        while True:
            params = {"format": "ndjson", "key_format": "hex", "limit": "5000", **query}
            page = c.request("GET", path, params=params)
            rows = (json.loads(line) for line in page.content.splitlines())
            writes += [_write(row) for row in rows if row.get("type") != "resolved"]
            if page.headers["tistream-has-more"] == "false":
                return writes
            query = {"cursor": page.headers["tistream-next-cursor"]}


def _write(row: dict[str, Any]) -> Write:
    assert row["op"] in ("put", "delete")
    value = bytes.fromhex(row["value"]) if row["op"] == "put" else None
    return Write(bytes.fromhex(row["key"]), int(row["ts"]), value, row["expire_ts"] or 0)


@pytest.fixture(scope="module", params=KEYSPACES)
def keyspace(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_every_recorded_event_is_delivered_once_in_order(pushed: Up, keyspace: int) -> None:
    recorded = events(RAW_DEV, keyspace)
    assert len(recorded) > 1_000
    writes_read = changes(pushed, keyspace)
    assert len({(w.key, w.ts) for w in writes_read}) == len(writes_read)
    assert [w.ts for w in writes_read] == sorted(w.ts for w in writes_read)
    assert {(w.key, w.ts): w for w in writes_read} == recorded


def test_the_final_state_is_what_a_scan_of_the_cluster_answered(pushed: Up, keyspace: int) -> None:
    said = answers(RAW_DEV, keyspace)
    newest = {w.key: w for w in changes(pushed, keyspace)}
    living = {key: w.value for key, w in newest.items() if w.value is not None and not _is_over(w, said)}
    assert len(said.final) > 100
    assert {key: v for key, v in living.items() if key in said.final} == said.final
    assert all(said.is_deleted_by_range(key) for key in living.keys() - said.final.keys())


def _is_over(write: Write, said: Answers) -> bool:
    return 0 < write.expire_ts <= said.at_ms / 1000


def test_entries_expire_when_their_clients_asked_for(pushed: Up, keyspace: int) -> None:
    said = answers(RAW_DEV, keyspace)
    expiring = [w for w in changes(pushed, keyspace) if w.value is not None and (w.key, w.value) in said.expiries]
    assert len(expiring) > 20
    for write in expiring:
        assert write.value is not None
        earliest, latest = said.expiries[write.key, write.value]
        assert earliest <= write.expire_ts <= latest, write


def test_the_keys_as_of_the_scan_are_what_it_answered(pushed: Up, keyspace: int) -> None:
    said, path = answers(RAW_DEV, keyspace), f"/v1/clusters/1/tenants/{keyspace + 1}/kv/rows"
    query = {"as_of": str(tso.compose(said.at_ms)), "key_format": "hex", "format": "ndjson", "limit": "10000"}
    with client(pushed.url) as c:
        page = c.request("GET", path, params=query)
    rows = {bytes.fromhex(r["key"]): bytes.fromhex(r["value"]) for r in map(json.loads, page.content.splitlines())}
    assert {key: v for key, v in rows.items() if key in said.final} == said.final
    assert all(said.is_deleted_by_range(key) for key in rows.keys() - said.final.keys())


def in_keyspace(patch: pytest.MonkeyPatch) -> None:
    """Let the model's transactions write keys of keyspace 7."""
    for module, name in ((jobs, "record_key"), (transactions, "record_key"), (ddl, "database_key"), (ddl, "table_key")):
        plain = getattr(module, name)
        patch.setattr(module, name, lambda *args, plain=plain: PREFIX + plain(*args))
    for module in (ddl, jobs):
        patch.setattr(module, "SCHEMA_VERSION_KEY", PREFIX + ddl.SCHEMA_VERSION_KEY.removeprefix(PREFIX))


def test_keys_of_transactions_are_followed_in_a_living_cluster(
    pushed: Up, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The keyspace is registered by name; a neighbouring keyspace and TiDB's own keys are in the same regions."""
    in_keyspace(monkeypatch)
    foreign = Version(1, 2, Op.PUT, b"not ours", None)
    others = [(b"t" + bytes(8) + b"_r" + bytes(8), foreign), (b"x\0\0\x08k", foreign)]
    cluster = cluster_of(others, floor_ts=tso.compose(int(time.time() * 1000) - 60_000), regions=1)
    cluster.split(1, [PREFIX + b"t\x80"], [91])
    cluster.floor_ts = 0  # nothing was ever collected: the first scan sends every version
    workload = Workload(7, cluster, DEFAULT)
    keyspaces = {"app": 7, "two": 8}
    with ServedCluster(
        cluster, workload=workload, steps_per_s=150, resolved_s=0.2, keyspaces=keyspaces, api=Api.V2
    ) as served:
        tenant = ("-c", "1", "-t", "9", "--url", pushed.url)
        _run("tenant", "register", *tenant, "--kind", "txn", "--keyspace", "app", log=tmp_path / "register.log")
        with TiStreamProcess("push", "--pd", served.pd_address, *tenant, log=tmp_path / "push.log"):
            eventually(lambda: len(workload.committed) > 300)
            end_ts = served.settle()
            eventually(lambda: _resolved(pushed, 9) >= end_ts, (tmp_path / "push.log").read_text)
    values = {(w.key, w.ts): w.value for w in changes(pushed, 8)}
    assert values == {(row.key.removeprefix(PREFIX), row.commit_ts): row.value for row in workload.committed}


def _resolved(up: Up, tenant: int) -> int:
    with client(up.url) as c:
        return int(c.get(f"/v1/clusters/1/tenants/{tenant}")["resolved_ts"])
