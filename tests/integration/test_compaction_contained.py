"""Compaction of a log of which some cannot be merged, packs well, or lies behind very much that is merged already."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from compactor.base_job import BaseSettings, build_tenant_bases
from compactor.core.base_plan import BasePlanSettings
from compactor.core.plan import PlanSettings
from compactor.job import JobEnd, JobReport, JobSettings, compact_tenant, planned
from compactor.local import LocalExecutor
from tests.kit.api_world import ApiWorld, api_world
from tests.kit.log_builder import TENANT
from tests.kit.open_folder import OpenFolder
from tistream.catalog.log.bases import list_bases
from tistream.catalog.log.compaction import pieces
from tistream.clock import SystemClock
from tistream.codec.table_key import table_prefix
from tistream.model import change
from tistream.ts import TS_MAX

ALL = PlanSettings(inputs_min=2, target_bytes=1 << 20)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[ApiWorld]:
    with api_world(tmp_path, OpenFolder()) as new_world:
        yield new_world


def compact(world: ApiWorld, plan: PlanSettings = ALL, pieces_max: int = 100_000) -> JobReport:
    settings = JobSettings(lag_ms=0, plan=plan, pieces_max=pieces_max)
    return compact_tenant(world.catalog, TENANT, LocalExecutor(world.store), settings, SystemClock())


def test_a_damaged_input_leaves_its_own_group_out_and_names_it(world: ApiWorld) -> None:
    world.log.build(40)
    small = PlanSettings(inputs_min=2, target_bytes=20_000)
    groups, rows = planned(world.catalog, TENANT, JobSettings(lag_ms=0, plan=small), lambda: 1)
    assert len(groups) > 1
    first = groups[0].pieces[0]
    objects = world.store.objects  # type: ignore[attr-defined]
    whole = objects[first.object_key]
    at = rows[0].segments[0].offset + 10
    objects[first.object_key] = whole[:at] + b"\xff" * 8 + whole[at + 8 :]
    report = compact(world, small)
    assert report.end is JobEnd.COMMITTED
    (left_out,) = report.failed
    assert (left_out.object, left_out.code) == (first.object_key, "TS-1020")
    objects[first.object_key] = whole
    again = compact(world, small)
    assert (again.end, again.failed) == (JobEnd.COMMITTED, ())


def test_a_job_in_which_nothing_can_be_merged_says_so(world: ApiWorld) -> None:
    world.log.build(4)
    for key in [k for k in world.store.objects if k.startswith("committed/")]:  # type: ignore[attr-defined]
        world.store.delete(key)
    report = compact(world)
    assert (report.end, report.files_after) == (JobEnd.FAILED, 0)
    assert {each.code for each in report.failed} == {"TS-1031"}


def test_a_log_that_packs_well_is_cut_by_what_it_unpacks_to(world: ApiWorld) -> None:
    """One row with a large document that is written again and again: 40 MB unpacked, some kB stored."""
    log = world.log
    log.activate()
    key = table_prefix(200) + b"_r" + (1 << 63 | 7).to_bytes(8, "big")
    doc, count = b"d" * 60_000, 40
    for n in range(16):
        lo = log.start_ts + 1000 + n * count
        log.rows = _rows(key, [lo + i for i in range(count)], doc)
        log.flush(lo + count - 1)
    log_pieces = pieces(world.catalog, TENANT, upto_ts=TS_MAX, limit=99)
    assert all(piece.raw_bytes > count * len(doc) > 10 * piece.stored_bytes for piece in log_pieces)
    report = compact(world, PlanSettings(inputs_min=2, raw_bytes_max=10_000_000))
    assert (report.end, report.failed, report.files_before, report.files_after) == (JobEnd.COMMITTED, (), 16, 4)
    assert compact(world, PlanSettings(inputs_min=2, raw_bytes_max=10_000_000)).end is JobEnd.NOTHING_TO_DO


def _rows(key: bytes, commit_ts: list[int], value: bytes) -> pa.Table:
    given = {"key": key, "table_id": 200, "op": 1, "value": value}
    columns = {}
    for field in change.COMMITTED:
        if field.name in ("commit_ts", "start_ts"):
            values = [ts - (field.name == "start_ts") for ts in commit_ts]
        else:
            values = [given.get(field.name, None if field.nullable else 0)] * len(commit_ts)
        columns[field.name] = pa.array(values, field.type)
    return pa.table(columns, schema=change.COMMITTED)


def test_what_lies_behind_very_many_full_pieces_is_merged(world: ApiWorld) -> None:
    log = world.log
    log.activate()
    key = table_prefix(200) + b"_r" + (1 << 63 | 7).to_bytes(8, "big")
    for n in range(30):
        lo = log.start_ts + 1000 + n * 10
        large = n < 24
        log.rows = _rows(key, [lo + i for i in range(8 if large else 1)], b"v")
        log.flush(lo + 9)
    plan = PlanSettings(inputs_min=3, rows_max=12)
    report = compact(world, plan, pieces_max=5)
    assert (report.end, report.files_before, report.files_after) == (JobEnd.COMMITTED, 6, 1)
    assert compact(world, plan, pieces_max=5).end is JobEnd.NOTHING_TO_DO


def test_bases_go_on_where_the_oldest_tables_tail_is_empty(world: ApiWorld) -> None:
    """Few segments are looked at together, and a table without a change holds the beginning back."""
    world.log.build(200).seed()
    plan = BasePlanSettings(tail_ratio=0.0, tail_bytes_min=1)
    settings = BaseSettings(lag_ms=0, segments_max=150, plan=plan)
    executor = LocalExecutor(world.store).bases
    seen: list[int] = []
    for _ in range(12):
        report = build_tenant_bases(world.catalog, world.services.registry, TENANT, executor, settings, SystemClock())
        if report.end is JobEnd.NOTHING_TO_DO:
            break
        seen.append(report.ts)
    assert seen == sorted(set(seen))
    newest = max(base.ts for base in list_bases(world.catalog, TENANT))
    last = max(s.hi_ts for s in pieces(world.catalog, TENANT, upto_ts=TS_MAX, limit=10**6))
    assert newest >= last, "the end of the log"
