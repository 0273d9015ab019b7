"""Reads as of a timestamp over bases: byte for byte what they are without, whatever happens to the bases meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import select

from compactor import base_job
from compactor.base_job import BaseReport, BaseSettings, build_tenant_bases
from compactor.core.base_plan import BasePlanSettings
from compactor.core.plan import PlanSettings
from compactor.job import JobEnd, JobSettings, compact_tenant
from compactor.local import LocalExecutor
from metaserver.collect import Collector
from reading.asof import read, source
from reading.asof.core import columns
from reading.asof.source import TableSource
from schemas.bases import choose
from tests.kit import replica
from tests.kit.api_world import ApiWorld, api_world, rows_path
from tests.kit.column_run import doubted
from tests.kit.log_builder import TENANT, recording_end
from tests.kit.open_folder import OpenFolder
from tests.kit.recording import EXPECTED, recorded_history, replayed
from tistream import ts as tso
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.bases import add_bases, base_segments_of, list_bases, retire_bases
from tistream.catalog.log.seeds import list_seeds
from tistream.catalog.rows.bases import BaseRow, NewBase
from tistream.clock import SystemClock
from tistream.codec.newest import STATE
from tistream.errors import NotFound, TiStreamError
from tistream.ids import Tenant
from tistream.objectstore.protocol import Admit

END = recording_end()
MOMENTS = replica.moments(EXPECTED)
MIX1, DDL2, MIX2 = (m.ts for m in MOMENTS if m.label in ("m-mix1", "m-ddl2", "m-mix2"))
ALL = BasePlanSettings(tail_ratio=0, tail_bytes_min=0, group_bytes=20_000)
EVER = 10 * 365 * 24 * 3_600_000


def build(world: ApiWorld, *, lag_ms: int = 0, window_ms: int = EVER, plan: BasePlanSettings = ALL) -> BaseReport:
    settings = BaseSettings(lag_ms=lag_ms, window_ms=window_ms, plan=plan)
    executor = LocalExecutor(world.store).bases
    return build_tenant_bases(world.catalog, world.services.registry, TENANT, executor, settings, SystemClock())


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    """The recording in the log, and its seed."""
    with api_world(tmp_path_factory.mktemp("plain")) as new_world:
        new_world.log.build(40).seed()
        yield new_world


@pytest.fixture(scope="module")
def based(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiWorld]:
    """The same, with bases that were built, each on the last, at ten timestamps while the log grew, and the log
    compacted in between."""
    with api_world(tmp_path_factory.mktemp("based")) as new_world:
        new_world.log.activate().seed()
        compacted = 0
        for n, ts in enumerate(new_world.log.cuts(10)):
            new_world.log.flush(ts)
            assert build(new_world).end is JobEnd.COMMITTED
            compacted += n % 3 == 2 and compact(new_world) is JobEnd.COMMITTED
        new_world.log.flush(END)
        assert compacted
        yield new_world


def compact(world: ApiWorld) -> JobEnd:
    settings = JobSettings(lag_ms=0, plan=PlanSettings(inputs_min=2))
    return compact_tenant(world.catalog, TENANT, LocalExecutor(world.store), settings, SystemClock()).end


@pytest.mark.parametrize("moment", MOMENTS, ids=lambda m: m.label)
def test_every_table_is_what_it_is_without_bases(plain: ApiWorld, based: ApiWorld, moment: replica.Moment) -> None:
    compared = shortened = 0
    for table in moment.tables:
        if table["kind"] == "table":
            path = rows_path(table["db"], table["table"])
            over_seed, over_base = plain.ok(path, as_of=moment.ts), based.ok(path, as_of=moment.ts)
            assert over_seed.content == over_base.content, table["table"]
            compared += 1
            shortened += int(over_base.headers["TiStream-Base-Ts"]) > int(over_seed.headers["TiStream-Base-Ts"])
    assert compared > 0
    assert shortened or moment.ts < min(base.ts for base in list_bases(based.catalog, TENANT))


@pytest.mark.parametrize("name", ["customers", "evolve", "p_range", "k_vuci"])
@pytest.mark.parametrize("kind", ["plain", "based"])
def test_at_any_timestamp_the_versions_are_those_of_a_replay(
    request: pytest.FixtureRequest, kind: str, name: str
) -> None:
    rand, history, world = random.Random(name), recorded_history(), request.getfixturevalue(kind)
    reader = TableSource(catalog=world.catalog, store=world.store, reader=world.services.reader)
    seeds, bases, compared = list_seeds(world.catalog, TENANT), list_bases(world.catalog, TENANT), 0
    cuts = sorted({base.ts + n for base in bases for n in (-1, 0, 1) if base.ts + n <= END})
    near = rand.sample(cuts, min(12, len(cuts)))
    for ts in sorted({*near, *(rand.randint(world.log.start_ts, END) for _ in range(8))}):
        try:
            table = history.find("shop", name, ts)
        except NotFound:
            continue
        chosen = choose(history, table, ts, seeds=seeds, bases=bases, log_start_ts=world.log.start_ts)
        versions = pa.concat_tables([STATE.empty_table(), *reader.rows(TENANT, chosen, ts)])
        theirs = pa.concat_tables([replayed(i, ts) for i in sorted(table.physical_ids)])
        assert versions.equals(theirs.select(STATE.names).cast(STATE))
        compared += versions.num_rows
    assert compared > 0


def test_a_base_lies_below_the_watermark_by_the_lag(fresh: ApiWorld) -> None:
    fresh.log.build(5).seed()
    lag_ms = (tso.physical_ms(END) - tso.physical_ms(fresh.log.start_ts)) // 2
    report = build(fresh, lag_ms=lag_ms)
    assert tso.physical_ms(report.ts) == tso.physical_ms(END) - lag_ms
    assert {base.ts for base in list_bases(fresh.catalog, TENANT)} == {report.ts}
    assert build(fresh, lag_ms=EVER).end is JobEnd.NOTHING_TO_DO


def test_a_task_that_is_behind_holds_bases_back(fresh: ApiWorld) -> None:
    fresh.log.activate().seed()
    middle, end = fresh.log.cuts(2)
    fresh.log.flush(middle)
    fresh.log.flush(end, task_ids={1, 2})
    assert build(fresh).ts == middle


def test_a_base_above_the_live_edge_is_refused_by_the_catalog(fresh: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh.log.activate().seed()
    fresh.log.flush(fresh.log.cuts(2)[0])
    edge = fresh.log.cuts(2)[0]
    true_add = add_bases

    def too_high(catalog: Catalog, tenant: Tenant, new: Sequence[NewBase], *rest: Any, **more: Any) -> frozenset[int]:
        return true_add(catalog, tenant, [replace(base, ts=edge + 1) for base in new], *rest, **more)

    monkeypatch.setattr(base_job, "add_bases", too_high)
    with pytest.raises(TiStreamError, match="live edge"):
        build(fresh)
    assert list_bases(fresh.catalog, TENANT) == []


def test_a_crash_before_commit_leaves_orphans(plain: ApiWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Crash(Exception):
        pass

    def crashed(*_: object, **__: object) -> bool:
        raise Crash

    with api_world(tmp_path) as world:
        world.log.build(5).seed()
        with monkeypatch.context() as patched:
            patched.setattr(base_job, "add_bases", crashed)
            with pytest.raises(Crash):
                build(world)
        left = [info.key for info in world.store.list("bases/")]
        assert left
        assert list_bases(world.catalog, TENANT) == []
        assert world.ok(rows_path("shop", "acct")).content == plain.ok(rows_path("shop", "acct")).content
        Collector(world.catalog, world.store, world.clock, grace_ms=0).step()
        assert list(world.store.list("bases/")) == []
        assert build(world).end is JobEnd.COMMITTED, "the next round begins again"
        assert world.ok(rows_path("shop", "acct")).content == plain.ok(rows_path("shop", "acct")).content
        there = {info.key for info in world.store.list("bases/")}
        Collector(world.catalog, world.store, world.clock, grace_ms=0).step()
        assert {info.key for info in world.store.list("bases/")} == there != set()


def test_what_a_base_was_made_of_must_be_there_still(fresh: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round adds no base of a table whose base, from which it started, another one retires meanwhile."""
    fresh.log.activate().seed()
    cuts = fresh.log.cuts(3)
    fresh.log.flush(cuts[0])
    build(fresh)
    before = {base.table_id for base in list_bases(fresh.catalog, TENANT) if base.ts == cuts[0]}
    fresh.log.flush(cuts[1])
    true_add = add_bases

    def late(*args: Any, **kwargs: Any) -> frozenset[int]:
        monkeypatch.setattr(base_job, "add_bases", true_add)
        fresh.log.flush(cuts[2])
        assert build(fresh).end is JobEnd.COMMITTED
        assert retire_bases(fresh.catalog, TENANT, list_bases(fresh.catalog, TENANT)) > 0
        return true_add(*args, **kwargs)

    monkeypatch.setattr(base_job, "add_bases", late)
    report = build(fresh)
    there = {ts: {base.table_id for base in list_bases(fresh.catalog, TENANT) if base.ts == ts} for ts in cuts}
    retired = before - there[cuts[0]]
    assert retired
    assert not retired & there[cuts[1]]
    assert report.ts == cuts[1]
    assert report.tables == len(there[cuts[1]])


def test_a_newer_seed_than_its_own_takes_a_bases_place(tmp_path: Path, plain: ApiWorld) -> None:
    """A seed says what the log does not: here the rows of a table with a conversion that is refused without it."""
    acct = recorded_history().find("shop", "acct", END)
    with api_world(tmp_path) as world:
        world.log.activate().seed()
        world.log.flush(MIX2)
        build(world)
        path = rows_path("shop", "acct")
        assert world.ok(path, as_of=MIX2).content == plain.ok(path, as_of=MIX2).content
        rows = replayed(acct.id, MIX1)
        said = rows.filter(pa.array([n != 0 for n in range(rows.num_rows)]))  # what differs shows who was asked
        world.log.seed(said, ts=MIX1, table_id=acct.id)
        answer = world.ok(path, as_of=MIX2)
        assert answer.headers["TiStream-Base-Ts"] == str(MIX1)
        assert answer.content != plain.ok(path, as_of=MIX2).content
        world.log.seed(rows, ts=MIX1 + 1, table_id=acct.id)
        world.log.flush(END)
        build(world)
        assert world.ok(path).content == plain.ok(path).content
        (base,) = list_bases(world.catalog, TENANT, [acct.id])
        assert (base.ts, base.seed_ts) == (END, MIX1 + 1), "built on the newest seed; the one that it overtook is gone"


def test_a_base_keeps_a_conversion_refused(based: ApiWorld, plain: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A base holds rows as they were written, and when: that a MODIFY COLUMN came later is not forgotten."""
    monkeypatch.setattr(columns, "cast", doubted)
    refused, history = 0, recorded_history()
    for moment in MOMENTS:
        for table in (t for t in moment.tables if t["kind"] == "table"):
            readings = columns.readings(history, history.find(table["db"], table["table"], moment.ts), moment.ts)
            if not any(reading.converts for reading in readings.values()):
                continue
            path = rows_path(table["db"], table["table"])
            over_seed, over_base = plain.get(path, as_of=moment.ts), based.get(path, as_of=moment.ts)
            assert over_seed.status_code == over_base.status_code, table["table"]
            if over_seed.status_code != 200:
                assert over_base.json()["code"] == "TS-1012"
                assert over_base.json()["facts"] == over_seed.json()["facts"]
                refused += 1
    assert refused > 3


def test_bases_outside_the_window_go_and_their_moments_stay_readable(fresh: ApiWorld, plain: ApiWorld) -> None:
    fresh.log.activate().seed()
    cuts = fresh.log.cuts(10)
    for ts in cuts:
        fresh.log.flush(ts)
        build(fresh)
    history = recorded_history()
    acct = history.find("shop", "acct", END).id
    bases = [base.ts for base in list_bases(fresh.catalog, TENANT, [acct])]
    assert len(bases) > 3
    window_ms = tso.physical_ms(cuts[-1]) - tso.physical_ms(bases[1]) + 1
    assert build(fresh, window_ms=window_ms).retired > 0
    assert [base.ts for base in list_bases(fresh.catalog, TENANT, [acct])] == bases[:3], "and the one below it"
    build(fresh, window_ms=0)
    left = {(base.table_id, base.ts) for base in list_bases(fresh.catalog, TENANT)}
    assert len(left) == len({table_id for table_id, _ in left}), "one of each table"
    Collector(fresh.catalog, fresh.store, fresh.clock, grace_ms=0).step()
    for moment in MOMENTS:
        if moment.ts <= cuts[-1]:
            for name in ("acct", "p_range", "evolve"):
                if any(t["table"] == name for t in moment.tables):
                    path = rows_path("shop", name)
                    assert fresh.ok(path, as_of=moment.ts).content == plain.ok(path, as_of=moment.ts).content
    live = {row["object_key"] for row in objects_of(fresh) if row["state"] == "live" and row["kind"] == "base"}
    assert {info.key for info in fresh.store.list("bases/")} == live


def test_where_nothing_is_left_below_a_base_earlier_moments_are_refused(fresh: ApiWorld, plain: ApiWorld) -> None:
    fresh.log.activate().seed()
    first, middle = MIX1, DDL2
    fresh.log.flush(middle)
    build(fresh)
    fresh.log.flush(END)
    with fresh.catalog.transaction() as conn:
        conn.execute(tables.seeds.delete())
    path = rows_path("shop", "customers")
    early = fresh.get(path, as_of=first)
    assert (early.status_code, early.json()["code"]) == (410, "TS-1005")
    assert early.json()["facts"]["earliest_ts"] == str(middle)
    for ts in (middle, END):
        assert fresh.ok(path, as_of=ts).content == plain.ok(path, as_of=ts).content


class Meddled(OpenFolder):
    """A bucket in which something happens before a base is read for the first time."""

    before: Callable[[], object] | None = None

    def get(self, key: str, admit: Admit | None = None) -> bytes:
        if key.startswith("bases/") and (act := self.before) is not None:
            self.before = None
            act()
        return super().get(key, admit)


def test_a_base_that_a_reader_has_listed_stays_until_it_has_read_it(tmp_path: Path, plain: ApiWorld) -> None:
    store = Meddled()
    with api_world(tmp_path, store) as world:
        world.log.activate().seed()
        cuts = (MIX1, MIX2)
        world.log.flush(cuts[0])
        build(world)
        old = {info.key for info in store.list("bases/")}
        collector = Collector(world.catalog, store, world.clock, grace_ms=0)

        def retire() -> None:
            world.log.flush(cuts[1])
            assert build(world, window_ms=0).retired > 0
            collector.step()
            assert old <= {info.key for info in store.list("bases/")}

        store.before = retire
        path = rows_path("shop", "acct")
        assert world.ok(path, as_of=cuts[0]).content == plain.ok(path, as_of=cuts[0]).content
        assert store.before is None
        with world.catalog.transaction() as conn:
            conn.execute(tables.read_leases.delete())
        assert collector.step() > 0
        assert not old <= {info.key for info in store.list("bases/")}


def test_a_reader_has_a_lease_before_it_looks_for_a_base(fresh: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh.log.activate().seed()
    fresh.log.flush(MIX1)
    build(fresh)
    leased: list[int] = []
    true_listing = base_segments_of

    def listed(catalog: Catalog, base: BaseRow) -> object:
        with catalog.reading() as conn:
            leased.append(len(conn.execute(select(tables.read_leases)).all()))
        return true_listing(catalog, base)

    monkeypatch.setattr(source, "base_segments_of", listed)
    fresh.ok(rows_path("shop", "acct"))
    assert leased == [1]


def test_a_read_survives_a_retired_base(fresh: ApiWorld, plain: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh.log.activate().seed()
    cuts = (MIX1, MIX2)
    fresh.log.flush(cuts[0])
    build(fresh)
    stale = list_bases(fresh.catalog, TENANT)
    fresh.log.flush(cuts[1])
    build(fresh, window_ms=0)
    calls: list[int] = []

    def listed(*args: Any) -> list[BaseRow]:
        calls.append(1)
        return stale if len(calls) == 1 else list_bases(*args)

    path = rows_path("shop", "acct")
    want = plain.ok(path, as_of=cuts[1]).content
    monkeypatch.setattr(read, "list_bases", listed)
    assert fresh.ok(path, as_of=cuts[1]).content == want
    assert len(calls) == 2
    calls.clear()
    monkeypatch.setattr(read, "list_bases", lambda *_: stale)
    assert fresh.get(path, as_of=cuts[1]).status_code == 503, "it gives up one day"


def objects_of(world: ApiWorld) -> list[dict[str, Any]]:
    with world.catalog.reading() as conn:
        return [dict(row._mapping) for row in conn.execute(select(tables.objects))]
