"""A snapshot, then changes: every row as of S once, then every change above S once, from whatever page it resumes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import orjson
import pytest

from reading import pull as pulling
from reading import snapshot
from reading.deps import Services
from reading.position import Place
from reading.pull import PullRequest, pull
from reading.scope import Scope
from simulator.dst.mutants import reworded
from tests.kit.api_world import ApiWorld, api_world, arrow_of, events_of, next_cursor
from tests.kit.log_builder import TENANT, recording_end

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
    with api_world(tmp_path_factory.mktemp("snapshot")) as made:
        made.log.build(10).seed()
        yield World(**vars(made), other=Services.create(made.catalog, made.store, made.clock))


@pytest.fixture(scope="module")
def moments(world: World) -> list[int]:
    """Timestamps with changes above them."""
    found = sorted({int(e["commit_ts"]) for e in world.events() if e["type"] in ("insert", "update", "delete")})
    return found[:-1]


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
    mine = [t for t in tables if scope.database in (None, t.db) and scope.table in (None, t.name)]
    return [
        line
        for table in sorted(mine, key=lambda t: t.id)
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
    "the changes start before the snapshot": lambda: reworded(
        pulling, "_snapshot", ("encode_cursor(request.scope, place.ts,", "encode_cursor(request.scope, place.ts - 1,")
    ),
    "the changes start where the watermark is at the end": lambda: reworded(
        pulling,
        "_snapshot",
        ("encode_cursor(request.scope, place.ts,", "encode_cursor(request.scope, served.resolved,"),
    ),
    "a page forgets the timestamp of its cursor": lambda: reworded(
        pulling, "snapshot_page", ("ts = place.ts", "ts = services.served(scope.tenant).resolved")
    ),
    "a page begins its table again": lambda: reworded(
        pulling, "snapshot_page", ("after = place.key if", 'after = b"" if')
    ),
    "the last row of a page comes again": lambda: reworded(
        snapshot, "_head", ('"key"][count - 1]', '"key"][max(0, count - 2)]')
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_noticed(world: World, name: str) -> None:
    scope, mine = ACCT, world.events("/databases/shop/tables/acct/changes")
    changed = sorted({int(e["commit_ts"]) for e in mine if e["type"] in ("insert", "update", "delete")})
    ts = changed[-5]
    assert len(expected_rows(world, scope, ts)) > 4
    check(world, scope, ts, 5, 1)
    with MUTANTS[name](), pytest.raises(AssertionError):
        check(world, scope, ts, 5, 1)


def test_every_format_marks_its_rows(world: World, moments: list[int]) -> None:
    path, as_of = "/databases/shop/tables/acct/changes", moments[-40]
    asked: dict[str, Any] = {"snapshot": "true", "as_of": as_of, "limit": ONE}
    count = len(expected_rows(world, ACCT, as_of))
    assert count
    answer = world.get(path, format="debezium", debezium__disable__schema="true", **asked)
    values = [line["value"]["payload"] for line in events_of(answer)]
    assert [(v["op"], v["source"]["snapshot"], v["source"]["commit_ts"]) for v in values] == [
        ("r", "true", as_of)
    ] * count
    assert answer.headers["TiStream-Snapshot-Ts"] == str(as_of)
    assert answer.headers["TiStream-Snapshot-Complete"] == "true"
    canal = events_of(world.get(path, format="canal-json", enable__tidb__extension="true", **asked))
    assert [(e["type"], e["_tidb"]["commitTs"], e["old"]) for e in canal] == [("INSERT", as_of, None)] * count
    decoded = arrow_of(world.get(path, format="arrow", **asked))
    assert decoded["_op"].to_pylist() == ["insert"] * count
    assert set(decoded["_commit_ts"].to_pylist()) == {as_of}
    raw = arrow_of(world.get(path, format="raw-arrow", **asked))
    assert raw["key"].to_pylist() == decoded["_key"].to_pylist()
    assert len(world.get(path, format="json", **asked).json()["items"]) == count
    assert world.get(path, format="csv", **asked).content.count(b'"I","acct","shop",') == count
    for text in ("open-protocol", "simple"):
        assert world.get(path, format=text, **asked).content.count(b"\n") == count


def test_filters_mean_what_they_mean_in_pulls(world: World, moments: list[int]) -> None:
    path, as_of = "/databases/shop/tables/acct/changes", moments[-40]
    asked: dict[str, Any] = {"snapshot": "true", "as_of": as_of, "limit": 2, "format": "ndjson"}
    rows = [r["columns"] for r in expected_rows(world, ACCT, as_of)]
    events = [e for p in _pages(world, path, where="id BETWEEN 2 AND 5", columns="id", **asked) for e in events_of(p)]
    found = [e["columns"] for e in events if e.get("commit_ts") == str(as_of)]
    assert found == [{"id": row["id"]} for row in rows if 2 <= row["id"] <= 5] != []
    assert not [
        e for p in _pages(world, path, ops="update,delete", **asked) for e in events_of(p) if e["type"] == "insert"
    ]


def _pages(world: World, path: str, **params: Any) -> list[Any]:
    found = [world.get(path, **params)]
    while found[-1].headers["TiStream-Has-More"] == "true":
        found.append(world.get(path, **{**params, "cursor": next_cursor(found[-1])}))
    return found


def test_what_a_snapshot_refuses(world: World, moments: list[int]) -> None:
    asked: dict[str, Any] = {"snapshot": "true", "limit": 5}
    assert world.get("/changes", start_ts="earliest", **asked).json()["code"] == "TS-1001"
    assert world.get("/changes", as_of=END + (1 << 40), **asked).status_code in (400, 409)
    assert world.get("/databases/shop/tables/akct/changes", **asked).status_code == 404
    inside = next_cursor(world.get("/changes", **asked))
    assert world.get("/changes:stream", cursor=inside).json()["code"] == "TS-1003"
    assert world.get("/databases/shop/changes", cursor=inside).json()["code"] == "TS-1003"


def test_a_snapshot_that_outlives_the_log_must_start_again(world: World) -> None:
    served = world.services.served(TENANT)
    place = Place(ts=served.row.earliest_ts - 1, seen=0, table_id=1, key=b"")
    with pytest.raises(snapshot.SnapshotLost) as lost:
        snapshot.check_place(served, place)
    assert lost.value.code == "TS-1022"
