"""Objects of the durable log are missing, cut short, changed or replaced: readers get right rows or an error by name.

One tenant's log holds committed files, compacted files, bases and a seed; a second tenant has the same kinds. For each
kind and each harm, readers that need the object get an error that names it, all others get the bytes they got before,
and once the object is back everything reads as before.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from compactor.base_job import BaseReport, BaseSettings, build_tenant_bases
from compactor.core.base_plan import BasePlanSettings
from compactor.core.plan import PlanSettings
from compactor.job import JobEnd, JobReport, JobSettings, compact_tenant, planned
from compactor.local import LocalExecutor
from reading.asof import source
from reading.log.reader import LogReader
from reading.rows.scope import Scope
from simulator.capture import Capture, captured_rows
from simulator.dst.mutants import replaced, reworded
from tests.kit import log_harm, replica
from tests.kit.api_world import ApiWorld, api_world
from tests.kit.log_builder import TENANT, LogBuilder, recording_end
from tests.kit.open_folder import OpenFolder
from tests.kit.recording import EXPECTED, RECORDING, committed_rows
from tistream.catalog.database import tables
from tistream.catalog.log.bases import list_bases
from tistream.catalog.log.exclusions import excluded
from tistream.clock import SystemClock
from tistream.codec import segment_file
from tistream.codec.newest import STATE
from tistream.errors import CorruptObject, ObjectNotFound
from tistream.ids import Tenant
from tistream.log.committed_log import SegmentSource
from tistream.log.table_rows import base_rows
from tistream.model import change

END = recording_end()
OTHER = Tenant(1, 2)
EARLY, MIDDLE = (next(m.ts for m in replica.moments(EXPECTED) if m.label == label) for label in ("m-types", "m-mix1"))
EVER_MS = 10 * 365 * 24 * 3_600_000
BASES = BasePlanSettings(tail_ratio=0, tail_bytes_min=0, group_bytes=20_000)
MERGED = PlanSettings(inputs_min=2, target_bytes=100_000)
AGAIN = PlanSettings(inputs_min=2, target_bytes=1_000_000)  # merges what is merged already, too
QUIET = "a bit that only the checksum tells"
ONE_GROUP = BasePlanSettings(tail_ratio=0, tail_bytes_min=0)
KINDS = ("committed", "compacted", "bases", "seeds")


@dataclass
class Site:
    """The log of two tenants, its readers, and what they get while it is sound."""

    folder: Path
    world: ApiWorld
    objects: log_harm.Objects
    parts: list[log_harm.Part]
    wanted: list[log_harm.Wants]

    def target(self, kind: str) -> log_harm.Part:
        """The segment of this kind that most readers of tables need."""
        candidates = [p for p in self.parts if p.object_key.startswith(f"{kind}/cluster-1/tenant-1/")]
        of_tables = [w for w in self.wanted if w.tables is not None]
        return max(candidates, key=lambda p: (sum(p.rows_of(w) > 0 for w in of_tables), len(p.tables)))

    def parts_of(self, key: str) -> list[log_harm.Part]:
        """The segments of an object."""
        return [p for p in self.parts if p.object_key == key]

    def near(self, part: log_harm.Part) -> list[log_harm.Wants]:
        """The readers that touch the object."""
        return [w for w in self.wanted if any(p.touches(w) for p in self.parts_of(part.object_key))]

    def others(self, part: log_harm.Part) -> tuple[bytes, bytes]:
        """(an object of the same tenant and form, one of the other tenant)."""
        kind = part.object_key.split("/")[0]
        near = "bases" if kind == "seeds" else kind
        same_kind = {p.object_key for p in self.parts if p.object_key.startswith(f"{near}/")} - {part.object_key}
        theirs = [k for k in self.objects if k.startswith(f"{kind}/cluster-1/tenant-2/")]
        return max((self.objects[k] for k in same_kind), key=len), max((self.objects[k] for k in theirs), key=len)


def build_log(world: ApiWorld, log: LogBuilder, seed: pa.Table | None) -> None:
    """A seed, compacted files up to about `EARLY`, committed files above, bases at `MIDDLE`."""
    log.activate().seed(seed)
    cuts = [ts for ts in log.cuts(40) if ts < MIDDLE]
    for ts in [*cuts, MIDDLE]:
        log.flush(ts)
    assert merge(world, log.tenant, MERGED).end is JobEnd.COMMITTED
    report = build(world, log.tenant, BASES)
    assert (report.end, report.ts) == (JobEnd.COMMITTED, MIDDLE)
    for ts in [*(ts for ts in log.cuts(40) if ts > MIDDLE), END]:
        log.flush(ts)


def some(rows: pa.Table) -> pa.Table:
    """Three of four rows of the users' tables, so that no segment is another tenant's."""
    is_chosen = pc.greater(pc.bit_wise_and(pc.shift_right(rows["start_ts"], 18), pa.scalar(3, pa.uint64())), 0)
    system = pc.or_(pc.less(rows["table_id"], 100), pc.greater(rows["table_id"], 1 << 32))
    return rows.filter(pc.or_(is_chosen, system))


def readers(start_ts: int) -> Iterator[log_harm.Reader]:
    for after, upto in pairwise([start_ts, EARLY, (EARLY + MIDDLE) // 2, MIDDLE, END]):
        yield log_harm.Reader(scope=Scope(tenant=TENANT), after=after, upto=upto)
    yield log_harm.Reader(scope=Scope(tenant=OTHER), after=start_ts, upto=MIDDLE)
    for tenant, names in ((TENANT, ("customers", "inter")), (OTHER, ("customers",))):
        for table in names:
            yield log_harm.Reader(scope=Scope(tenant=tenant, database="shop", table=table), after=start_ts, upto=END)
    for tenant, table, ts in (
        (TENANT, "customers", EARLY),
        (TENANT, "customers", END),
        (TENANT, "tags", EARLY),
        (TENANT, "tags", MIDDLE),
        (TENANT, "t_times", END),
        (OTHER, "customers", END),
        (OTHER, "tags", EARLY),
    ):
        yield log_harm.Reader(scope=Scope(tenant=tenant, database="shop", table=table), upto=ts, as_of=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder, store = tmp_path_factory.mktemp("harm"), OpenFolder()
    with api_world(folder, store) as world:
        build_log(world, world.log, None)
        seed = pa.concat_tables(captured_rows(Capture(RECORDING)))
        other = LogBuilder(world.catalog, store, tenant=OTHER, rows=some(committed_rows())).register()
        build_log(world, other, seed.take(list(range(0, seed.num_rows, 2))))
        services = log_harm.fresh(world.services)
        wants = [log_harm.wants_of(services, reader) for reader in readers(world.log.start_ts)]
        yield Site(folder, world, store.objects, log_harm.parts_of(services, store.objects, TENANT), wants)


@contextmanager
def copy_of(site: Site, folder: Path) -> Iterator[ApiWorld]:
    """A world of its own that begins like the site."""
    name = "catalog.db"
    with closing(sqlite3.connect(site.folder / name)) as old, closing(sqlite3.connect(folder / name)) as new:
        old.backup(new)
    store = OpenFolder()
    store.objects.update(site.objects)
    with api_world(folder, store) as copy:
        yield copy


def objects_of(world: ApiWorld) -> log_harm.Objects:
    assert isinstance(world.store, OpenFolder)
    return world.store.objects


def merge(world: ApiWorld, tenant: Tenant = TENANT, plan: PlanSettings = AGAIN) -> JobReport:
    settings = JobSettings(lag_ms=0, plan=plan)
    return compact_tenant(world.catalog, tenant, LocalExecutor(world.store), settings, SystemClock())


def build(world: ApiWorld, tenant: Tenant = TENANT, plan: BasePlanSettings = ONE_GROUP) -> BaseReport:
    settings = BaseSettings(lag_ms=0, window_ms=EVER_MS, plan=plan)
    registry, executor = world.services.registry, LocalExecutor(world.store).bases
    return build_tenant_bases(world.catalog, registry, tenant, executor, settings, SystemClock())


def found_by(site: Site, kind: str, harm: str) -> list[str]:
    """What the judge says of one harm, and of the time after it."""
    part = site.target(kind)
    good = site.objects[part.object_key]
    bad = (
        log_harm.quietly_flipped(good, part) if harm == QUIET else log_harm.HARMS[harm](good, part, *site.others(part))
    )
    services = log_harm.fresh(site.world.services)
    with log_harm.harmed(site.objects, part.object_key, bad):
        complaints = log_harm.complaints(services, site.wanted, site.parts, part.object_key, good, bad)
    return complaints + log_harm.changed(services, site.near(part))


@pytest.mark.parametrize("harm", log_harm.HARMS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_harmed_object_gives_no_wrong_rows_and_stops_no_other_reader(site: Site, kind: str, harm: str) -> None:
    assert found_by(site, kind, harm) == []


@pytest.mark.parametrize("kind", ["committed", "bases", "seeds"])
def test_a_bit_that_only_the_checksum_tells_is_found(site: Site, kind: str) -> None:
    assert found_by(site, kind, QUIET) == []


def test_a_harmed_footer_stops_the_readers_of_its_file_alone(site: Site) -> None:
    part = site.target("compacted")
    good = site.objects[part.object_key]
    bad = log_harm.flipped(good, part.footer.offset + part.footer.length // 2)
    with log_harm.harmed(site.objects, part.object_key, bad):
        complaints = log_harm.complaints(
            log_harm.fresh(site.world.services), site.wanted, site.parts, part.object_key, good, bad
        )
    assert complaints == []


def test_each_kind_has_readers_that_need_it_and_readers_that_do_not(site: Site) -> None:
    for kind in KINDS:
        part = site.target(kind)
        of_tenant = [w for w in site.wanted if w.reader.scope.tenant == TENANT]
        assert any(part.rows_of(w) for w in of_tenant), kind
        assert not all(part.touches(w) for w in of_tenant), kind
        assert all(w.answer for w in site.wanted)


def test_the_problem_of_a_harmed_object_names_it(site: Site) -> None:
    part = site.target("committed")
    with log_harm.harmed(site.objects, part.object_key, None):
        answer = site.world.get("/changes", start_ts=str(int(part.commit_ts.min()) - 1), format="raw-arrow")
    assert answer.status_code >= 500
    assert part.object_key in answer.text


@pytest.mark.parametrize("harm", ["missing", "a bit flipped", "another tenant's object"])
@pytest.mark.parametrize("kind", ["committed", "compacted"])
def test_a_group_with_a_harmed_object_is_not_compacted(site: Site, tmp_path: Path, kind: str, harm: str) -> None:
    with copy_of(site, tmp_path) as world:
        groups, rows = planned(world.catalog, TENANT, JobSettings(lag_ms=0, plan=AGAIN), lambda: 1)
        merged = [s for row in rows for s in row.segments if s.object_key.startswith(f"{kind}/")]
        places = {(s.object_key, s.offset) for s in merged}
        part = max((p for p in site.parts if (p.object_key, p.offset) in places), key=lambda p: len(p.tables))
        good = site.objects[part.object_key]
        bad = log_harm.HARMS[harm](good, part, *site.others(part))
        hurt = {(p.object_key, p.offset) for p in site.parts_of(part.object_key) if p.is_hurt(good, bad)}
        whole = [
            group
            for group, row in zip(groups, rows, strict=True)
            if hurt.isdisjoint((s.object_key, s.offset) for s in row.segments)
        ]
        assert 0 < len(whole) < len(groups)
        with log_harm.harmed(objects_of(world), part.object_key, bad):
            report, other = merge(world), merge(world, OTHER)
        assert (report.end, other.end, other.failed) == (JobEnd.COMMITTED, JobEnd.COMMITTED, ())
        assert (report.files_after, len(report.failed)) == (len(whole), len(groups) - len(whole))
        assert {each.object for each in report.failed} == {part.object_key}
        again = merge(world)
        assert (again.end, again.failed) == (JobEnd.COMMITTED, ()), "what lies beside it"
        assert excluded(world.catalog, TENANT) == {part.object_key}, "for a day"
        assert log_harm.changed(world.services, site.near(part)) == []


@pytest.mark.parametrize(
    ("kind", "harm"),
    [("bases", "a bit flipped"), ("seeds", "missing"), ("committed", "missing"), ("compacted", "a bit flipped")],
)
def test_a_table_with_a_harmed_object_gets_no_base(site: Site, tmp_path: Path, kind: str, harm: str) -> None:
    """All tables are in one group, and the others get their bases all the same."""
    part = site.target(kind)
    good = site.objects[part.object_key]
    bad = log_harm.HARMS[harm](good, part, *site.others(part))
    hurt = [p for p in site.parts_of(part.object_key) if p.is_hurt(good, bad)]
    needy = {int(table) for p in hurt for table in np.unique(p.tables)}
    with copy_of(site, tmp_path) as world:
        if kind != "bases":  # the tables start from the seed
            with world.catalog.transaction() as conn:
                conn.execute(tables.base_segments.delete())
                conn.execute(tables.bases.delete())
        with log_harm.harmed(objects_of(world), part.object_key, bad):
            report, other = build(world), build(world, OTHER)
        assert (report.end, other.end, other.failed) == (JobEnd.COMMITTED, JobEnd.COMMITTED, ())
        assert {each.object for each in report.failed} == {part.object_key}
        left_out = {each.table_id for each in report.failed}
        built = {base.table_id for base in list_bases(world.catalog, TENANT) if base.ts == report.ts}
        assert report.tables == len(built) > 0
        assert built.isdisjoint(left_out | needy)
        again = build(world)
        assert (again.end, again.failed, again.tables) == (JobEnd.COMMITTED, (), len(left_out))
        assert log_harm.changed(world.services, site.near(part)) == []


def skipped(read: Callable[..., pa.Table], empty: pa.Table, error: type[Exception]) -> Callable[..., pa.Table]:
    """A reader that takes an object it cannot read for an empty one."""

    def lenient(*args: Any) -> pa.Table:
        try:
            return read(*args)
        except error:
            return empty

    return lenient


NO_CHANGE, NO_ROW = change.COMMITTED.empty_table(), STATE.empty_table()
#: by name: (kind, harm, the owner and name of what is broken, what stands there instead)
MUTANTS: dict[str, tuple[str, str, Callable[[], AbstractContextManager[None]]]] = {
    "a reader of the log ignores the checksum": (
        "committed",
        QUIET,
        lambda: reworded(segment_file, "_decode_batch", ("actual != crc", "False")),
    ),
    "a reader of a base ignores the checksum": (
        "bases",
        QUIET,
        lambda: reworded(segment_file, "_decode_batch", ("actual != crc", "False")),
    ),
    "a reader of the log skips what is missing": (
        "committed",
        "missing",
        lambda: replaced(SegmentSource, "rows", skipped(SegmentSource.rows, NO_CHANGE, ObjectNotFound)),
    ),
    "a reader of the log skips what is damaged": (
        "compacted",
        "truncated",
        lambda: replaced(SegmentSource, "rows", skipped(SegmentSource.rows, NO_CHANGE, CorruptObject)),
    ),
    "a reader of a table skips what is missing of its base": (
        "seeds",
        "missing",
        lambda: replaced(source, "base_rows", skipped(base_rows, NO_ROW, ObjectNotFound)),
    ),
    "an error does not say which object": (
        "committed",
        "missing",
        lambda: reworded(LogReader, "_next_try", ("error.message, **error.facts", "error.message, segment=0")),
    ),
    "a reader of a table fetches everything that its neighbours have": (
        "compacted",
        "a bit flipped",
        lambda: reworded(LogReader, "_listed", ("table_ids=table_ids", "table_ids=None")),
    ),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_the_judge_finds_each_broken_rule(site: Site, name: str) -> None:
    kind, harm, broken = MUTANTS[name]
    with broken():
        assert found_by(site, kind, harm)
