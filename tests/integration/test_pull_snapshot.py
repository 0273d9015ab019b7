"""A snapshot, then changes: every row as of S once, then every change above S once, from whatever page it resumes."""

from __future__ import annotations

import asyncio
import contextlib
import random
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson
import pytest
from rich.cells import cell_len

from apiserver.app import create_app
from reading.pages import pull as pulling
from reading.pages import snapshot
from reading.pages.pull import pull
from reading.pages.request import PullRequest
from reading.rows.scope import Scope
from reading.served.position import SnapshotPosition, read_place
from reading.served.services import Services
from simulator.dst.mutants import reworded
from tests.kit.api_world import BASE, ApiWorld, api_world, arrow_of, events_of, next_cursor
from tests.kit.log_builder import TENANT, recording_end
from tests.kit.statements import StatementLog
from tests.kit.stream_world import served
from tests.kit.terminal import on_terminal
from tistream.client import ChangeOptions, connect, connect_async
from tistream.errors import SnapshotLost

END = recording_end()
ONE = 200_000
ACCT = Scope(tenant=TENANT, database="shop", table="acct")
SCOPES: tuple[Scope, ...] = (
    Scope(tenant=TENANT, database="shop"),
    ACCT,
    Scope(tenant=TENANT, database="shop", table="p_range"),
)
Events = list[dict[str, Any]]


@dataclass
class World(ApiWorld):
    """A service, and another one over the same catalog and bucket."""

    other: Services


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with api_world(tmp_path_factory.mktemp("snapshot")) as api:
        api.log.build(10).seed()
        yield World(**vars(api), other=Services.create(api.catalog, api.store, api.clock))


@pytest.fixture(scope="module")
def moments(world: World) -> list[int]:
    """Timestamps with changes above them."""
    timestamps = sorted({int(e["commit_ts"]) for e in world.events() if e["type"] in ("insert", "update", "delete")})
    return timestamps[:-1]


def delivered(world: World, scope: Scope, as_of: int, limit: int, seed: int = 0) -> tuple[Events, Events]:
    """(rows, changes) of a pull whose every page may be answered twice, by another server."""
    rand, cursor, rows, changes = random.Random(seed), None, Events(), Events()
    servers = [world.services, world.other]
    for _ in range(100):
        services = rand.choice(servers)
        request = PullRequest(
            scope=scope, start_ts=None, cursor=cursor, format="ndjson", options={}, limit=limit, snapshot=True,
            as_of=str(as_of),
        )  # fmt: skip
        answer = pull(services, request)
        if rand.random() < 0.2:
            assert pull(world.services, request).content == answer.content
        lines = [orjson.loads(line) for line in answer.content.to_pybytes().splitlines()]
        (changes if answer.snapshot_ts is None else rows).extend(e for e in lines if e["type"] != "resolved")
        cursor = answer.next_cursor
        if not answer.has_more:
            return rows, changes
    raise AssertionError("the pull does not end")


def expected_rows(world: World, scope: Scope, as_of: int) -> Events:
    """The rows of the scope's tables, table by table, as reads as of a timestamp give them."""
    history = world.services.registry.history(TENANT)
    tables = [t for db in history.databases(as_of) for t in history.tables(db.name, as_of) if t.kind == "table"]
    chosen = [t for t in tables if scope.database in (None, t.db) and scope.table in (None, t.name)]
    return [
        line
        for table in sorted(chosen, key=lambda t: t.id)
        for line in events_of(world.ok(f"/databases/{table.db}/tables/{table.name}/rows", as_of=as_of))
    ]


def check(world: World, scope: Scope, as_of: int, limit: int, seed: int) -> None:
    rows, changes = delivered(world, scope, as_of, limit, seed)
    assert [{n: row[n] for n in ("database", "table", "columns")} for row in rows] == expected_rows(world, scope, as_of)
    assert {(row["type"], row["commit_ts"], row["old"]) for row in rows} <= {("insert", str(as_of), None)}
    assert len({(row["table_id"], row["key"]) for row in rows}) == len(rows), "each key once"
    path = "".join(f"/{kind}/{name}" for kind, name in (("databases", scope.database), ("tables", scope.table)) if name)
    later = world.events(f"{path}/changes", start_ts=as_of)
    assert changes == [event for event in later if event["type"] != "resolved"]
    assert all(int(event["commit_ts"]) > as_of for event in changes)


@pytest.mark.parametrize("seed", range(4))
def test_rows_then_changes_from_exactly_there(world: World, moments: list[int], seed: int) -> None:
    rand = random.Random(seed)
    scope = SCOPES[seed % len(SCOPES)]
    limit = rand.choice([7, 50]) if scope.table else rand.choice([150, ONE])
    later = [ts for ts in moments if _exists(world, scope, ts)]
    check(world, scope, rand.choice(later), limit, seed)


def _exists(world: World, scope: Scope, ts: int) -> bool:
    history = world.services.registry.history(TENANT)
    return ts >= history.start_ts and (
        scope.database is None or scope.table is None or history.named(scope.database, scope.table, ts) is not None
    )


MUTANTS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "the changes start where the watermark is at the end": lambda: reworded(
        pulling,
        "_snapshot",
        ("encode_cursor(request.scope, place.ts)", "encode_cursor(request.scope, served.resolved)"),
    ),
    "a page forgets the timestamp of its cursor": lambda: reworded(
        pulling, "snapshot_page", ("ts = place.ts", "ts = services.served(scope.tenant).resolved")
    ),
    "a page begins its table again": lambda: reworded(
        pulling, "snapshot_page", ("after = place.key if", 'after = b"" if')
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_noticed(world: World, name: str) -> None:
    scope, events = ACCT, world.events("/databases/shop/tables/acct/changes")
    changed = sorted({int(e["commit_ts"]) for e in events if e["type"] in ("insert", "update", "delete")})
    ts = changed[-5]
    assert len(expected_rows(world, scope, ts)) > 4
    check(world, scope, ts, 5, 1)
    with MUTANTS[name](), pytest.raises(AssertionError):
        check(world, scope, ts, 5, 1)


def test_every_format_marks_its_rows(world: World, moments: list[int]) -> None:
    path, as_of = "/databases/shop/tables/acct/changes", moments[-40]
    params: dict[str, Any] = {"snapshot": "true", "as_of": as_of, "limit": ONE}
    count = len(expected_rows(world, ACCT, as_of))
    assert count
    answer = world.get(path, format="debezium", debezium__disable__schema="true", **params)
    values = [line["value"]["payload"] for line in events_of(answer)]
    assert [(v["op"], v["source"]["snapshot"], v["source"]["commit_ts"]) for v in values] == [
        ("r", "true", as_of)
    ] * count
    assert answer.headers["TiStream-Snapshot-Ts"] == str(as_of)
    assert answer.headers["TiStream-Snapshot-Complete"] == "true"
    canal = events_of(world.get(path, format="canal-json", enable__tidb__extension="true", **params))
    assert [(e["type"], e["_tidb"]["commitTs"], e["old"]) for e in canal] == [("INSERT", as_of, None)] * count
    decoded = arrow_of(world.get(path, format="arrow", **params))
    assert decoded["_op"].to_pylist() == ["insert"] * count
    assert set(decoded["_commit_ts"].to_pylist()) == {as_of}
    raw = arrow_of(world.get(path, format="raw-arrow", **params))
    assert raw["key"].to_pylist() == decoded["_key"].to_pylist()
    assert len(world.get(path, format="json", **params).json()["items"]) == count
    assert world.get(path, format="csv", **params).content.count(b'"I","acct","shop",') == count
    for text in ("open-protocol", "simple"):
        assert world.get(path, format=text, **params).content.count(b"\n") == count


def test_filters_mean_what_they_mean_in_pulls(world: World, moments: list[int]) -> None:
    path, as_of = "/databases/shop/tables/acct/changes", moments[-40]
    params: dict[str, Any] = {"snapshot": "true", "as_of": as_of, "limit": 2, "format": "ndjson"}
    rows = [r["columns"] for r in expected_rows(world, ACCT, as_of)]
    events = [e for p in _pages(world, path, where="id BETWEEN 2 AND 5", columns="id", **params) for e in events_of(p)]
    columns = [e["columns"] for e in events if e.get("commit_ts") == str(as_of)]
    assert columns == [{"id": row["id"]} for row in rows if 2 <= row["id"] <= 5] != []
    assert not [
        e for p in _pages(world, path, ops="update,delete", **params) for e in events_of(p) if e["type"] == "insert"
    ]


def _pages(world: World, path: str, **params: Any) -> list[Any]:
    pages = [world.get(path, **params)]
    while pages[-1].headers["TiStream-Has-More"] == "true":
        pages.append(world.get(path, **{**params, "cursor": next_cursor(pages[-1])}))
    return pages


def test_what_a_snapshot_refuses(world: World, moments: list[int]) -> None:
    params: dict[str, Any] = {"snapshot": "true", "limit": 5}
    assert world.get("/changes", start_ts="earliest", **params).json()["code"] == "TS-1001"
    assert world.get("/changes", as_of=END + (1 << 40), **params).status_code in (400, 409)
    assert world.get("/databases/shop/tables/akct/changes", **params).status_code == 404
    inside = next_cursor(world.get("/changes", **params))
    assert world.get("/changes:stream", cursor=inside).json()["code"] == "TS-1003"
    assert world.get("/databases/shop/changes", cursor=inside).json()["code"] == "TS-1003"


def test_the_first_page_asks_the_catalog_for_all_tables_at_once(world: World) -> None:
    history = world.services.registry.history(TENANT)
    tables = sum(len(history.tables(db.name, END)) for db in history.databases(END))
    log = StatementLog(world.catalog)
    with log:
        answer = world.get("/changes", snapshot="true", limit=1)
    assert answer.status_code == 200, answer.text
    statements = sum(map(len, log.transactions))
    assert statements < tables, f"{statements} statements for {tables} tables"


def test_a_snapshot_that_outlives_the_log_must_start_again(world: World) -> None:
    served = world.services.served(TENANT)
    place = SnapshotPosition(ts=served.row.earliest_ts - 1, table_id=1, key=b"")
    with pytest.raises(SnapshotLost) as lost:
        snapshot.check_place(served, place)
    assert lost.value.code == "TS-1022"


# ---- clients that die in the middle

DYING = """
import os, signal, sqlite3, sys
from tistream.client import SqlCursorStore, connect

url, path, as_of, pages = sys.argv[1:]
sql = sqlite3.connect(path)
sql.execute("CREATE TABLE IF NOT EXISTS got (line BLOB)")
with connect(url) as tistream:
    store = SqlCursorStore(sql, "me", mark="?")
    read = tistream.tenant(1, 1).database("shop").changes(snapshot=True, as_of=as_of, limit=150, store=store)
    for number, page in enumerate(read.pages()):
        sql.executemany("INSERT INTO got VALUES (?)", [(line,) for line in page.lines()])
        if number == int(pages):
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def address(world: World) -> Iterator[str]:
    with served(create_app(world.services)) as server:
        yield server.url


def whole(world: World, as_of: int) -> list[bytes]:
    """What an undisturbed pull delivers."""
    rows, changes = delivered(world, SCOPES[0], as_of, ONE)
    assert rows
    assert changes
    return [orjson.dumps(event) for event in (*rows, *changes)]


def told(lines: Iterable[bytes]) -> list[bytes]:
    events = [orjson.loads(line) for line in lines]
    return [orjson.dumps(event) for event in events if event["type"] != "resolved"]


def test_a_client_that_is_killed_in_a_snapshot_goes_on_in_it(
    world: World, address: str, moments: list[int], tmp_path: Path
) -> None:
    path, as_of = tmp_path / "got.db", moments[-60]
    for pages, died in ((2, True), (1, True), (10_000, False)):
        words = [sys.executable, "-c", DYING, address, str(path), str(as_of), str(pages)]
        assert subprocess.run(words, check=False).returncode == (-signal.SIGKILL if died else 0)
        with contextlib.closing(sqlite3.connect(path)) as sql:
            (cursor,) = sql.execute("SELECT saved_cursor FROM tistream_cursors").fetchone()
            lines = [line for (line,) in sql.execute("SELECT line FROM got ORDER BY rowid")]
        assert (read_place(cursor, SCOPES[0]) is not None) == died, "it died in the snapshot"
    assert told(lines) == whole(world, as_of)


def test_the_command_that_is_interrupted_in_a_snapshot_says_how_to_go_on(
    world: World, address: str, moments: list[int]
) -> None:
    as_of = moments[-60]
    query = f"snapshot=true&as_of={as_of}&limit=150&format=ndjson"
    command = [str(Path(sys.executable).with_name("tistream")), "pull"]
    what = f"{address}{BASE}/databases/shop/changes?{query}"
    first = subprocess.Popen([*command, what], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)
    assert first.stdout is not None
    begun = first.stdout.readline()  # the rest waits for a reader: the pipe is shorter than the snapshot
    first.send_signal(signal.SIGINT)
    rest, said = first.communicate()
    assert first.returncode == 130, said
    resume = shlex.split(said.decode().rpartition("resume with: ")[2])
    assert read_place(resume[resume.index("--cursor") + 1], SCOPES[0]) is not None, "it was in the snapshot"
    second = subprocess.run([*command, *resume[2:]], capture_output=True, check=True)
    assert told([begun, *rest.splitlines(), *second.stdout.splitlines()]) == whole(world, as_of)


def test_rows_are_readable_on_a_terminal_and_ndjson_in_a_pipe(world: World, address: str, moments: list[int]) -> None:
    since = str(moments[-200])
    command = [str(Path(sys.executable).with_name("tistream")), "pull", "--url", address, "--since", since]
    events = told(subprocess.run(command, capture_output=True, check=True).stdout.splitlines())
    assert events == [orjson.dumps(event) for event in world.events(start_ts=since) if event["type"] != "resolved"]
    day, *rows, end = on_terminal(command, columns=100).removesuffix("\n").split("\n")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \(UTC\)", day)
    assert end.startswith("complete up to 20")
    kinds = [event["type"] for event in map(orjson.loads, events)]
    assert [row.split("  ", 2)[2].split()[0] for row in rows] == kinds  # each change is a line, whatever its values
    assert {"ddl", "insert", "update", "delete"} <= set(kinds)
    assert all(row.isprintable() and cell_len(row) <= 100 for row in rows)


def test_both_clients_follow_from_a_snapshot_on(world: World, address: str, moments: list[int]) -> None:
    as_of, end = moments[-60], world.services.served(TENANT).resolved
    options: ChangeOptions = {"snapshot": True, "as_of": as_of, "end": end, "limit": 150}

    async def run() -> list[dict[str, Any]]:
        async with connect_async(address) as client:
            return [change async for change in client.tenant(1, 1).database("shop").follow(**options)]

    with connect(address) as client:
        shop = client.tenant(1, 1).database("shop")
        inside = shop.page(**options)
        assert inside.in_snapshot
        resumed = [*inside.changes(), *shop.follow(cursor=inside.next_cursor, end=end)]
        assert resumed == [*shop.follow(**options)] == asyncio.run(run())
    assert [orjson.dumps(change) for change in resumed] == whole(world, as_of)
