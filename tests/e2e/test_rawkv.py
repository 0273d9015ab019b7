"""RawKV in one process: push a recording of a real TiKV's two keyspaces, read what its clients were answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from simulator.chaos.servers.processes import TiStreamProcess, Up, client
from tests.kit.raw_recording import RAW_DEV, Answers, Write, answers, events
from tistream import ts as tso

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
            replay = ("push", "--replay", str(RAW_DEV), *tenant, "--speed", "max")
            _run(*replay, log=folder / f"push{keyspace}.log")
        yield up


def _run(*args: str, **given: Any) -> None:
    with TiStreamProcess(*args, **given) as process:
        assert process.wait(240) == 0, process.output()


def changes(up: Up, keyspace: int) -> list[Write]:
    """All changes in the order of the log, as a client of the HTTP API reads them."""
    path, found, query = f"/v1/clusters/1/tenants/{keyspace + 1}/kv/changes", list[Write](), {"start_ts": "earliest"}
    with client(up.url) as c:
        while True:
            asked = {"format": "ndjson", "key_format": "hex", "limit": "5000", **query}
            page = c.request("GET", path, params=asked)
            rows = (json.loads(line) for line in page.content.splitlines())
            found += [_write(row) for row in rows if row.get("type") != "resolved"]
            if page.headers["tistream-has-more"] == "false":
                return found
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
    got = changes(pushed, keyspace)
    assert len({(w.key, w.ts) for w in got}) == len(got)
    assert [w.ts for w in got] == sorted(w.ts for w in got)
    assert {(w.key, w.ts): w for w in got} == recorded


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
