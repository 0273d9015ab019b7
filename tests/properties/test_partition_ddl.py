"""Whatever tables and partitions a TiDB changes while its sessions write: what is served is what TiDB's readers see.

The upstream is the model of `simulator` with DDL that walks through TiDB's schema states, the service is the
real one, from batch files to the API's answers (`tests.kit.partition_world`).
"""

from __future__ import annotations

import functools
import random
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest

from pusher import seed_scan
from reading.rows.excluded_rows import excluded_rows
from reading.served import position
from schemas import merge, partitions, switch, tidb_json
from schemas.ids import IdStatus
from schemas.view import View
from simulator.ddl import Ddl
from simulator.dst.mutants import reworded
from tests.kit.api_world import ONE_PAGE, ApiWorld, events_of, next_cursor
from tests.kit.partition_world import OTHER_DDL, TENANT, Name, PartitionWorld, Replica, Rows
from tests.kit.recording import changes_of
from tistream.errors import SeedNeeded, TiStreamError

OTHER = 1001  # names and columns change rather than partitions
SEEDS = (*range(4), OTHER)


@functools.cache
def world_of(seed: int) -> PartitionWorld:
    return PartitionWorld(seed, 400, OTHER_DDL) if seed == OTHER else PartitionWorld(seed)


class Served:
    """A world and its API server. The log has grown in pieces, and each piece was pulled as soon as it was there."""

    def __init__(self, world: PartitionWorld, api: ApiWorld) -> None:
        self.world, self.api = world, api
        self.followed: list[dict[str, Any]] = []
        self._cursor: dict[str, Any] = {"start_ts": "earliest"}
        rand = random.Random(f"cuts of {world.start_ts}")
        cuts = {world.end_ts, *(rand.choice(world.moments) for _ in range(8))}
        for cut in sorted(cuts):
            api.log.flush(cut)
            self._follow()

    def _follow(self) -> None:
        for page in self.api.pages(**self._cursor, limit=ONE_PAGE, format="ndjson"):
            self.followed += [event for event in events_of(page) if event["type"] != "resolved"]
            self._cursor = {"cursor": next_cursor(page)}

    def pulled(self, **params: Any) -> list[dict[str, Any]]:
        """Everything, by another reader."""
        return [event for event in self.api.events(**params) if event["type"] != "resolved"]

    def columns_at(self, moment: int, **params: Any) -> dict[Name, list[str]]:
        """Of every table, as of a timestamp."""
        databases = self.api.ok("/databases", start_ts=moment, **params).json()["items"]
        return {
            (db["database"], table["table"]): [column["name"] for column in table["columns"]]
            for db in databases
            for table in self.api.ok(f"/databases/{db['database']}/tables", start_ts=moment, **params).json()["items"]
        }

    def rows_of(self, name: Name, moment: int, **params: Any) -> Rows:
        """Of a table, as of a timestamp."""
        answer = self.api.ok(f"/databases/{name[0]}/tables/{name[1]}/rows", as_of=moment, format="ndjson", **params)
        rows = [orjson.loads(line)["columns"] for line in answer.content.splitlines()]
        notes = {int(row["id"]): str(row["note"]) for row in rows}
        assert len(notes) == len(rows), f"{name} as of {moment} has rows twice"
        return notes


@pytest.fixture(scope="module", params=SEEDS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    world = world_of(request.param)
    with world.serve(tmp_path_factory.mktemp("served")) as api:
        yield Served(world, api)


def around_versions(world: PartitionWorld) -> Iterator[tuple[int, Ddl]]:
    """The moments next to each schema version, and its job."""
    moments = world.moments
    for version in world.versions:
        if version.job is not None and version.commit_ts > world.start_ts + 1:
            at = bisect_left(moments, version.commit_ts)
            for moment in {version.commit_ts - 1, version.commit_ts, *moments[at + 1 : at + 2]}:
                yield moment, version.job


def check_replay(served: Served) -> None:
    """Changes replayed with their DDL are the tables, at every moment."""
    world, events = served.world, deque(served.followed)
    replica = Replica(world)
    for moment in world.moments:
        while events and int(events[0]["commit_ts"]) <= moment:
            replica.apply(events.popleft())
        world.check(moment, replica.rows, whole=True, by_event=True)
    assert not events


def check_reads(served: Served) -> None:
    """Reads as of the moments around schema versions show what TiDB shows."""
    world = served.world
    for moment, job in around_versions(world):
        if job.plan is None:
            assert served.columns_at(moment) == world.columns_at(moment), world.story(moment)
        world.check(moment, {name: served.rows_of(name, moment) for name in world.tables_of(job, moment)})
    for moment in random.Random(world.end_ts).sample(world.moments, 3):
        world.check(moment, {name: served.rows_of(name, moment) for name in world.tables_at(moment)}, whole=True)


def early_versions(world: PartitionWorld) -> list[int]:
    """The moments of schema versions whose event comes later: that of a RENAME, and of what hides what it drops."""
    return [
        v.commit_ts
        for v in world.versions
        if v.job is not None and v.job.plan is None and not v.last and v.commit_ts > world.start_ts
    ]


def check_continued(served: Served, moments: list[int]) -> None:
    """What changes continue from has the names and columns with which they begin."""
    world = served.world
    for moment in moments:
        assert served.columns_at(moment, continued=True) == world.columns_at(moment, by_event=True)
        names = list(world.tables_at(moment, by_event=True))
        tables = {name: served.rows_of(name, moment, continued=True) for name in names}
        world.check(moment, tables, whole=True, by_event=True)


def check_delivered(served: Served) -> None:
    """Each change that TiDB shows is delivered once, and no other."""
    times = Counter((bytes.fromhex(e["key"]), int(e["commit_ts"])) for e in served.followed if e["type"] != "ddl")
    assert sorted(served.world.shown - times.keys()) == [], "not delivered"
    assert sorted(times.keys() - served.world.shown) == [], "copies, or writes to ids that are gone"
    assert set(times.values()) == {1}


def check_left_out(served: Served) -> None:
    """Each row that is not delivered is counted, as a copy or as written to an id that is gone."""
    world, history = served.world, served.api.services.served(TENANT).history
    assert history is not None
    left_out, rows = Counter[IdStatus](), changes_of(world.rows)
    for part in excluded_rows(history, rows):
        left_out[part.status] += part.rows
    of_jobs = left_out.pop(IdStatus.SYSTEM)
    assert left_out.keys() <= {IdStatus.COPY, IdStatus.RETIRED}
    assert sum(left_out.values()) == rows.num_rows - of_jobs - len(world.shown)
    assert served.api.services.problems() == []


CHECKS = (check_delivered, check_left_out, check_replay, check_reads)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_what_is_served_is_what_tidb_shows(served: Served, check: Callable[[Served], None]) -> None:
    check(served)


def test_rows_that_changes_continue_from_are_those_of_the_events_up_to_there(served: Served) -> None:
    moments = early_versions(served.world)
    assert moments or served.world is not world_of(OTHER)
    check_continued(served, moments)


def test_a_snapshot_and_its_changes_have_names_that_fit(served: Served) -> None:
    world = served.world
    moment = [world.start_ts + 1, *early_versions(world)][-1]
    events = served.pulled(snapshot=True, as_of=moment)
    count = sum(map(len, world.tables_at(moment, by_event=True).values()))
    rows: dict[Name, Rows] = {name: {} for name in world.tables_at(moment, by_event=True)}
    for event in events[:count]:
        assert event["type"] == "insert"
        rows[event["database"], event["table"]][int(event["columns"]["id"])] = event["columns"]["note"]
    world.check(moment, rows, whole=True, by_event=True)
    assert events[count:] == [event for event in served.followed if int(event["commit_ts"]) > moment]


def test_a_later_reader_gets_what_was_served_while_the_log_grew(served: Served) -> None:
    assert served.pulled(limit=50) == served.followed


@pytest.mark.parametrize("seed", [1, 3])
def test_a_log_without_a_seed_shows_all_rows_of_a_table_or_asks_for_its_seed(seed: int, tmp_path: Path) -> None:
    """Where the log begins while a reorganisation copies rows, those that were copied before it are not in the log."""
    world, unseeded = world_of(seed), 0
    with world.serve(tmp_path, seeded=False) as api:
        served = Served(world, api)
        for moment, job in around_versions(world):
            for name in world.tables_of(job, moment):
                answer = api.get(f"/databases/{name[0]}/tables/{name[1]}/rows", as_of=moment, format="ndjson")
                if answer.status_code != 200 and answer.json()["code"] == SeedNeeded.code:
                    unseeded += 1
                else:
                    world.check(moment, {name: served.rows_of(name, moment)})
    assert unseeded > 0


def is_noticed(seed: int, folder: Path) -> bool:
    """Whether the checks fail for this history, or the service refuses to continue."""
    try:
        folder.mkdir()
        with world_of(seed).serve(folder) as api:
            served = Served(world_of(seed), api)
            for check in CHECKS:
                check(served)
    except (AssertionError, TiStreamError):
        return True
    return False


@pytest.mark.parametrize(
    ("seed", "owners", "name", "old", "new"),
    [
        (1, (partitions, tidb_json), "read_definitions", "return [d for d in", "return definitions or [d for d in"),
        (
            1,
            (partitions, tidb_json),
            "read_definitions",
            'fields.mappings(partition, "definitions")',
            'fields.mappings(partition, "definitions") + fields.mappings(partition, "adding_definitions")',
        ),
        (1, (partitions,), "_of_running_ddl", '"adding_definitions", ', ""),
        (1, (switch,), "switching_job", "job.state in _IDLE", "job"),
        (1, (View,), "take", "self.timelines.set(ts, old, None)", "pass"),
        (1, (View,), "take", "self.timelines.set(ts, table, table)", "self.timelines.set(ts - 1, table, table)"),
        (OTHER, (merge,), "ahead", "blocks=True", "blocks=False"),
        (OTHER, (position.Served,), "schema_as_of", "self.known_history.public()", "self.known_history"),
        (3, (seed_scan,), "seeded_ids", "if table_id in schema.tables", "if False"),
    ],
    ids=[
        "a partition is read that a DROP blocks",
        "partitions are read while they are filled",
        "the ids that are filled are not known",
        "a DDL takes effect when it is done",
        "a table keeps the ids that it gave up",
        "a DDL takes effect a timestamp too early",
        "what a DDL hides is read until it is done",
        "a read as of a timestamp has the names of events",
        "a seed lacks the rows that were copied before it",
    ],
)
def test_a_broken_rule_is_noticed(
    seed: int, owners: tuple[object, ...], name: str, old: str, new: str, tmp_path: Path
) -> None:
    with ExitStack() as broken:
        for owner in owners:
            broken.enter_context(reworded(owner, name, (old, new)))
        assert is_noticed(seed, tmp_path / "served")
