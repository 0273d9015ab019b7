"""The log of a RawKV tenant is given up from its old end: bases of its keys are built by maintenance jobs, the floor
follows them, and every read from the floor on is what it was.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from apiserver.app import create_app
from compactor.base_job import BaseReport, BaseSettings, build_tenant_bases
from compactor.core.plan import PlanSettings
from compactor.job import JobEnd, JobSettings, compact_tenant
from compactor.local import LocalExecutor
from compactor.maintenance import MaintenanceWork as Doing
from compactor.worker import JobRun
from metaserver.collect import Collector
from metaserver.core.maintenance import MaintenanceRules
from metaserver.maintenance import MaintenanceScheduler
from metaserver.retention import Retention
from reading.log.reader import LogReader
from reading.served.services import Services
from schemas.bases import of_range
from schemas.registry.log_start import LogStarts
from schemas.registry.schema_registry import SchemaRegistry
from tests.kit.api_world import BASE, events_of
from tests.kit.catalog_cases import elected, new_catalog
from tests.kit.key_history import Row, answer, rows_of, table, write
from tests.kit.log_builder import TENANT, LogBuilder
from tests.kit.open_folder import OpenFolder
from tistream import ts as tso
from tistream.catalog.database import tables
from tistream.catalog.log.bases import base_segments_of, list_bases, retire_bases
from tistream.catalog.log.committed import find_segments
from tistream.catalog.log.retention import database_time_ms, raise_floor
from tistream.catalog.log.safe_points import remove_safe_point, set_safe_point
from tistream.catalog.rows.bases import BaseRow
from tistream.catalog.rows.jobs import JobExecutor, JobKind, JobState
from tistream.catalog.rows.kinds import Keyspace, TenantKind
from tistream.catalog.tenancy.tenants import get_tenant, register_tenant
from tistream.catalog.work.job_rows import get_job
from tistream.catalog.work.jobs import lease
from tistream.catalog.work.tasks import served_watermark
from tistream.clock import SystemClock
from tistream.codec.newest import KEY_VERSION
from tistream.errors import TsExpired
from tistream.log.committed_log import SegmentSource
from tistream.log.table_rows import base_rows

CLOCK = SystemClock()
RULES = MaintenanceRules(lag_ms=0, pause_ms=0, tail_bytes_min=1, tail_ratio=0, merge_pieces_min=999)
HOUR_MS, KEYS, PAUSE_MS = 3_600_000, 12, 1_000_000
SERVICE_HOURS = 168.0


class World:
    """A RawKV tenant whose log began sixty hours ago."""

    def __init__(self, folder: Path) -> None:
        self.catalog, self.store = new_catalog(folder), OpenFolder()
        register_tenant(self.catalog, TENANT, kind=TenantKind.RAW, keyspace=Keyspace(id=1))
        self.now_ms, rand = database_time_ms(self.catalog), random.Random(7)
        self.rows, _ = write(rand, self.at(60), 400, KEYS, PAUSE_MS)
        self.log = LogBuilder(self.catalog, self.store, rows=table(self.rows))
        self.registry = SchemaRegistry(self.catalog, self.store, clock=CLOCK)
        self.reader = LogReader(self.catalog, self.store, CLOCK)
        self.starts = LogStarts(self.catalog, self.registry, default_hours=SERVICE_HOURS)
        self.retention = Retention(self.catalog, self.registry, default_hours=SERVICE_HOURS)

    def at(self, hours_ago: float) -> int:
        return tso.compose(self.now_ms - int(hours_ago * HOUR_MS))

    def flush(self, hours_ago: float, files: int = 10) -> None:
        """The log up to then, in files."""
        begun = max(self.at(60), served_watermark(self.catalog, TENANT))
        for n in range(1, files + 1):
            self.log.flush(begun + (self.at(hours_ago) - begun) * n // files)

    def maintain(self, rules: MaintenanceRules = RULES) -> list[tuple[JobKind, str]]:
        """What a new scheduler decides, done by threads."""
        scheduler = MaintenanceScheduler(
            self.catalog, self.store, self.registry, CLOCK, rules, default_hours=SERVICE_HOURS, name="m1"
        )
        added = scheduler.step(elected(self.catalog))
        assert scheduler.problems() == []
        doing = Doing(self.catalog, self.store, CLOCK, lambda _: LocalExecutor(self.store))
        for _ in added:
            job = lease(self.catalog, "e1", [JobExecutor.THREADS])
            assert job is not None
            assert JobRun(self.catalog, CLOCK, job).run(doing) is JobState.DONE
        return [(job.kind, job.outcome) for job in (get_job(self.catalog, n) for n in added)]

    def build(self) -> BaseReport:
        """A base three hours behind the watermark, if one is due."""
        settings = BaseSettings(lag_ms=3 * HOUR_MS, due_ms=1)
        executor = LocalExecutor(self.store).bases
        return build_tenant_bases(self.catalog, self.registry, TENANT, executor, settings, CLOCK)

    def floor(self) -> int:
        """The floor after a round of retention."""
        self.retention.step()
        return get_tenant(self.catalog, TENANT).floor_ts

    def known(self, as_of: int, upto: int) -> list[Row]:
        """What a reader as of then has: the base, and the log above it."""
        row = get_tenant(self.catalog, TENANT)
        base = of_range(list_bases(self.catalog, TENANT), as_of, start_ts=row.start_ts, floor_ts=row.floor_ts)
        versions = list[Row]()
        if isinstance(base.source, BaseRow):
            for segment in base_segments_of(self.catalog, base.source) or ():
                versions += rows_of(base_rows(self.store, segment, base.ts, KEY_VERSION))
        for part in self.reader.versions(TENANT, after=base.ts, upto=upto, table_ids=[0]):
            versions += rows_of(part)
        return versions

    def logged(self) -> list[Row]:
        """What the files of the log hold, below the floor as well."""
        segments = find_segments(self.catalog, TENANT, after_ts=0, upto_ts=self.at(0), limit=1000)
        return [row for segment in segments for row in rows_of(SegmentSource(self.store).rows(segment))]

    def judge(self, floor: int, edge: int) -> int:
        """Every read in [floor, edge] is as if nothing had been deleted; the number of inexact ones."""
        logged, inexact = [row for row in self.rows if row.commit_ts <= edge], 0
        moments = {floor, edge, *(ts for row in logged for ts in (row.commit_ts, row.start_ts, row.commit_ts - 1))}
        moments |= {tso.compose(row.expire_ts * 1000) for row in logged}
        some = random.Random(8).sample(sorted(ts for ts in moments if floor <= ts <= edge), 30)
        for as_of in {floor, edge, *some}:
            known = self.known(as_of, edge)
            for key in {row.key for row in self.rows}:
                expected = answer(logged, key, as_of)
                assert answer(known, key, as_of) == expected, (key, as_of)
                inexact += not expected.exact
        return inexact


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    new_world = World(tmp_path)
    yield new_world
    new_world.catalog.close()


def test_the_floor_follows_the_bases_of_the_keys(world: World) -> None:
    world.flush(40)
    assert world.floor() == 0, "there is no base"
    (hold,) = world.starts.shown(TENANT)["holds"]
    assert (hold["kind"], hold["holding"], hold["ts"]) == ("keys", True, "0")
    assert world.maintain() == [(JobKind.RETIRE_SEEDS, "committed")]
    assert world.maintain() == [], "it is not due again"
    world.flush(20)
    assert world.maintain() == [(JobKind.BASES, "committed")]
    files = {key for key in world.store.objects if key.startswith("committed/")}
    world.flush(0.01)
    assert world.floor() == world.at(40), "the newest base that is 24 hours old, RawKV's retention"
    assert Collector(world.catalog, world.store, CLOCK, grace_ms=0).step() == 10
    assert len(files & world.store.objects.keys()) == len(files) - 10 == 10
    assert world.retention.problems() == []
    shown = world.starts.shown(TENANT)
    assert (shown["policy_s"], shown["earliest_ts"]) == (24 * 3600, str(world.at(40)))
    assert [hold["by"] for hold in shown["holds"]] == []
    assert world.judge(world.at(40), world.at(0.01)) > 0
    based = world.known(world.at(40), world.at(40))
    assert based
    assert all(answer([row], row.key, world.at(40)).value is not None for row in based), (
        "deletions and expired ones went"
    )
    with pytest.raises(TsExpired):
        world.known(world.at(40) - 1, world.at(0.01))
    newer, at_floor = list_bases(world.catalog, TENANT)
    assert retire_bases(world.catalog, TENANT, [newer, at_floor]) == 0, "reads as of the floor start at it"
    assert not raise_floor(world.catalog, TENANT, seen_floor=at_floor.ts, to_ts=newer.ts - 1), "there is no base"
    assert raise_floor(world.catalog, TENANT, seen_floor=at_floor.ts, to_ts=newer.ts)


def test_a_merge_collects_obsolete_versions_below_the_floor(world: World) -> None:
    world.flush(30, files=3)
    world.maintain(replace(RULES, lag_ms=3 * HOUR_MS))
    assert world.build().end is JobEnd.NOTHING_TO_DO, "a file reaches above the base that is there"
    world.flush(0.01)
    assert world.floor() == world.at(33), "within a file"
    before = world.logged()
    settings = JobSettings(lag_ms=0, plan=PlanSettings(inputs_min=2))
    report = compact_tenant(world.catalog, TENANT, LocalExecutor(world.store), settings, CLOCK)
    assert (report.end, report.failed) == (JobEnd.COMMITTED, ())
    assert report.collected > KEYS
    left = world.logged()
    assert len(left) == len(before) - report.collected
    below = [row for row in left if row.commit_ts <= world.at(33)]
    assert len(below) == len({row.key for row in below}) > 0
    assert world.judge(world.at(33), world.at(0.01)) > 0


def test_the_api_answers_as_if_nothing_had_been_deleted(world: World) -> None:
    world.flush(30, files=3)
    world.flush(0.01)
    base_ts = world.at(33.01)
    moments = [base_ts, base_ts + 1, *(r.commit_ts for r in world.rows[::9] if base_ts < r.commit_ts < world.at(0.01))]
    with TestClient(create_app(Services.create(world.catalog, world.store, CLOCK))) as http:

        def entries(as_of: int) -> list[dict[str, Any]]:
            """The last version of an unknown key without a value may be gone."""
            reply = http.get(f"{BASE}/kv/rows", params={"as_of": as_of, "format": "ndjson", "allow_state": True})
            assert reply.status_code == 200, reply.text
            return [{k: e[k] for k in e if e["value"] is not None or k in ("key", "exact")} for e in events_of(reply)]

        before = [entries(as_of) for as_of in moments]
        assert not all(entry["exact"] for answered in before for entry in answered)
        world.maintain(replace(RULES, lag_ms=33 * HOUR_MS))
        assert world.floor() == base_ts
        settings = JobSettings(lag_ms=0, plan=PlanSettings(inputs_min=2))
        assert compact_tenant(world.catalog, TENANT, LocalExecutor(world.store), settings, CLOCK).collected
        with world.catalog.transaction() as conn:  # the reads so far are done
            conn.execute(tables.read_leases.delete())
        assert Collector(world.catalog, world.store, CLOCK, grace_ms=0).step()
        for as_of, was in zip(moments, before, strict=True):
            assert entries(as_of) == was
        late = http.get(f"{BASE}/kv/rows", params={"as_of": base_ts - 1, "format": "ndjson"})
        assert (late.status_code, late.json()["facts"]["earliest_ts"]) == (410, str(base_ts)), late.text
        assert world.starts.shown(TENANT)["earliest_ts"] == str(base_ts)


def test_a_safe_point_between_two_bases_keeps_the_lower_one(world: World) -> None:
    world.flush(50)
    world.maintain()
    set_safe_point(world.catalog, TENANT, "backup", world.at(45), 3600)
    world.flush(30)
    world.maintain()
    world.flush(0.01)
    assert world.floor() == world.at(50)
    (problem,) = world.retention.problems()
    assert "backup" in str(problem.shown())
    world.judge(world.at(50), world.at(0.01))
    remove_safe_point(world.catalog, TENANT, "backup")
    assert world.floor() == world.at(30)
    world.judge(world.at(30), world.at(0.01))
