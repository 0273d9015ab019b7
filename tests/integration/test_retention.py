"""What a reader of a log that is given up from its old end is told, and what holds the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.compute as pc
import pytest

from metaserver import retention as keeping
from metaserver.retention import Retention
from schemas.registry import retention as rules
from schemas.registry.schema_registry import SchemaRegistry
from tests.kit.api_world import ApiWorld, next_cursor
from tests.kit.log_builder import TENANT
from tests.kit.recording import committed_rows
from tests.kit.retention_world import (
    END,
    EVER_MS,
    KEPT_S,
    Kept,
    begun,
    build,
    collect,
    earliest,
    end_leases,
    give_up,
    half_a_minute,
    judged,
    keep,
    kept,
    oldest,
    retention,
)
from tistream import ts as tso
from tistream.catalog.log.bases import list_bases
from tistream.catalog.log.seeds import list_seeds
from tistream.catalog.tenancy.tenants import get_tenant, set_retention

pytestmark = pytest.mark.usefixtures("short_times")


@pytest.fixture
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    half_a_minute(monkeypatch)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return kept(tmp_path_factory.mktemp("plain"), lambda _: None)


@pytest.fixture(scope="module")
def with_bases(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    """A base of each table, a little above which retention would begin."""
    return kept(tmp_path_factory.mktemp("based"), build)


@pytest.fixture
def world(tmp_path: Path, plain: Kept) -> Iterator[ApiWorld]:
    with begun(tmp_path, plain) as made:
        yield made


@pytest.fixture
def based(tmp_path: Path, with_bases: Kept) -> Iterator[ApiWorld]:
    with begun(tmp_path, with_bases) as made:
        yield made


def test_below_the_floor_there_is_nothing_but_410(world: ApiWorld) -> None:
    begin, middle = world.log.start_ts, world.log.cuts(2)[0]
    first = world.ok(limit=100)
    whole = world.events()
    give_up(world, middle)
    assert collect(world) == 0, "somebody may still read"
    end_leases(world)
    assert collect(world) > 0
    for path, position in (
        ("/changes", {"start_ts": begin}),
        ("/changes", {"start_ts": middle - 1}),
        ("/changes", {"cursor": next_cursor(first)}),
        ("/changes/splits", {"start_ts": begin}),
        ("/changes/splits", {"cursor": next_cursor(first)}),
        ("/files", {"start_ts": begin}),
        ("/databases", {"at_ts": begin}),
        ("/databases/shop/tables/customers/rows", {"as_of": begin}),
        ("/databases/shop/tables/customers/changes", {"start_ts": begin}),
    ):
        refused = world.get(path, **position)
        assert refused.status_code == 410, (path, refused.text)
        body = refused.json()
        assert (body["code"], body["facts"]["earliest_ts"]) == ("TS-1005", str(middle)), path
        assert body["facts"]["earliest_time"] == tso.to_text(middle)
    kept = [event for event in whole if int(event.get("commit_ts", END)) > middle]
    assert world.events() == kept
    assert world.events(start_ts=middle) == kept
    assert world.ok("").json()["earliest_ts"] == str(middle)
    for file in world.ok("/files", format="all").json()["items"]:
        assert int(file["hi_ts"]) > middle


def test_a_position_from_before_the_snapshot_is_refused_too(world: ApiWorld) -> None:
    """It stands at the beginning of the log, wherever that was: not at where it begins now."""
    from reading import position
    from reading.scope import Scope

    give_up(world, world.log.cuts(2)[0])
    assert world.get("/changes", cursor=position.encode_cursor(Scope(tenant=TENANT), 0)).status_code == 410


# ---- what holds the floor


def test_what_reads_need_holds_the_log(world: ApiWorld) -> None:
    before = oldest(world)
    held = keep(world, KEPT_S)
    assert earliest(world) == world.log.start_ts
    (problem,) = held.problems()
    assert problem.code == "TS-1076"
    assert "table " in problem.message
    build(world)
    (at,) = {base.ts for base in list_bases(world.catalog, TENANT)}
    keep(world, KEPT_S)
    assert earliest(world) == at
    assert list_seeds(world.catalog, TENANT) == []
    end_leases(world)
    collect(world)
    assert not list(world.store.list("seeds/"))
    assert oldest(world) == before
    judged(world.services.reader, at)


def test_a_log_whose_upstream_stands_still_keeps_its_last_hours(
    world: ApiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_retention(world.catalog, TENANT, 20)
    row = get_tenant(world.catalog, TENANT)
    monkeypatch.setattr(keeping, "database_time_ms", lambda _: tso.physical_ms(END) + EVER_MS)
    assert retention(world).wanted(row) == tso.compose(tso.physical_ms(END) - 20_000)
    monkeypatch.setattr(keeping, "database_time_ms", lambda _: tso.physical_ms(END) - 5000)
    assert retention(world).wanted(row) == tso.compose(tso.physical_ms(END) - 25_000)
    set_retention(world.catalog, TENANT, 0)
    assert retention(world).wanted(get_tenant(world.catalog, TENANT)) is None


def test_a_tenant_whose_schema_cannot_be_read_keeps_its_log(based: ApiWorld) -> None:
    set_retention(based.catalog, TENANT, KEPT_S)
    histories = [key for key in based.store.objects if key.startswith("schemas/")]  # type: ignore[attr-defined]
    for key in histories:
        based.store.delete(key)
    found = Retention(based.catalog, SchemaRegistry(based.catalog, based.store), default_hours=0)
    found.step()
    assert histories
    assert earliest(based) == based.log.start_ts
    assert [problem.source for problem in found.problems()] == [f"retention/{TENANT}"]


def test_rows_that_a_partition_ddl_copies_are_never_cut_from_it(world: ApiWorld) -> None:
    """A log that begins between the copied rows and the DDL's commit: never by retention, and refused if it happens (of
    a DDL that runs for longer than the retention)."""
    history, begin = world.services.registry.history(TENANT), world.log.start_ts
    born = rules.births(history, begin)
    assert all(begin <= birth.from_ts < birth.born_ts for birth in born.values())
    found = cut_from_its_rows(history, born)
    assert found is not None
    birth, copied_ts, name = found
    floor = rules.lowest_floor(copied_ts, [], {birth.physical_id: birth})
    assert floor.ts == birth.from_ts < copied_ts
    assert floor.held_by is not None
    assert rules.lowest_floor(birth.born_ts, [], {birth.physical_id: birth}).ts == birth.born_ts
    path = f"/databases/{quote(name[0])}/tables/{quote(name[1])}/rows"
    world.ok(path, as_of=birth.born_ts)
    give_up(world, copied_ts)
    refused = world.get(path, as_of=birth.born_ts)
    assert (refused.status_code, refused.json()["code"]) == (409, "TS-1011")


def cut_from_its_rows(history: Any, born: dict[int, rules.Birth]) -> tuple[rules.Birth, int, tuple[str, str]] | None:
    """A physical id with rows below its birth, the commit_ts of one, and its table's name."""
    rows = committed_rows()
    for birth in born.values():
        mine = rows.filter(pc.equal(rows["table_id"], birth.physical_id))["commit_ts"].to_numpy()
        early = mine[mine < birth.born_ts]
        table = history.table_at(birth.physical_id, birth.born_ts)
        if len(early) and table is not None:
            return birth, int(early.min()), (table.db, table.name)
    return None


def test_a_table_without_what_it_starts_from_is_refused_and_not_read_in_part(world: ApiWorld) -> None:
    """As of now it was created while the log was there: rows of it may be gone."""
    history = world.services.registry.history(TENANT)
    made = next(e for e in history.events(world.log.start_ts, END) if e.kind == "create table" and e.db == "shop")
    path = f"/databases/shop/tables/{made.table}/rows"
    world.ok(path, as_of=made.commit_ts)
    give_up(world, made.commit_ts)
    refused = world.get(path, as_of=made.commit_ts)
    assert (refused.status_code, refused.json()["code"]) == (409, "TS-1011")
