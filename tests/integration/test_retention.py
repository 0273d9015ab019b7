"""What a reader of a log that is given up from its old end is told, and what holds the log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow.compute as pc
import pytest

from metaserver import retention as keeping
from metaserver.retention import Retention
from reading.log.reader import LogReader
from schemas.registry import log_start
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
    compact,
    earliest,
    end_leases,
    give_up,
    judged,
    keep,
    kept,
    oldest,
    starts,
)
from tistream import ts as tso
from tistream.catalog.database import tables
from tistream.catalog.log import committed, objects
from tistream.catalog.log import retention as floors
from tistream.catalog.log.bases import list_bases
from tistream.catalog.log.committed import find_segments
from tistream.catalog.log.seeds import list_seeds
from tistream.catalog.tenancy.consumers import add_consumer, move_checkpoint, remove_consumer
from tistream.catalog.tenancy.tenants import get_tenant, set_retention
from tistream.errors import TsExpired


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """The recording lasts half a minute: no lag is too short to report, and now is a second later."""
    monkeypatch.setattr(keeping, "_REPORTED_FROM_MS", 1)
    monkeypatch.setattr(log_start, "database_time_ms", lambda _: tso.physical_ms(END) + 1000)


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
        ("/databases", {"start_ts": begin}),
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
    from reading.rows.scope import Scope
    from reading.served import position

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
    assert "more: tistream tenant retention" in problem.message, "many tables hold it"
    assert "tistream compact" in problem.message
    shown = world.services.log_starts.shown(TENANT)
    assert {hold["kind"] for hold in shown["holds"]} == {"table"}
    first = shown["holds"][0]
    assert (first["by"], first["ts"]) == (problem.facts["held_by"], problem.facts["held_at_ts"])
    assert (
        first["since_time"] == problem.facts["since_time"] == tso.to_text(int(first["ts"]) + tso.compose(KEPT_S * 1000))
    )
    page = world.http.get(f"/tenants/{TENANT.cluster_id}/{TENANT.tenant_id}/retention")
    assert (page.status_code, first["by"] in page.text) == (200, True)
    build(world)
    (at,) = {base.ts for base in list_bases(world.catalog, TENANT)}
    after = world.services.log_starts.shown(TENANT)["holds"]
    assert {hold["ts"] for hold in after} == {str(at)}, "the bases have released it"
    keep(world, KEPT_S)
    assert earliest(world) == at
    assert list_seeds(world.catalog, TENANT) == []
    end_leases(world)
    collect(world)
    assert not list(world.store.list("seeds/"))
    assert oldest(world) == before
    judged(world.services.reader, at)


def test_a_created_table_alone_holds_the_log_until_its_base(world: ApiWorld) -> None:
    with world.catalog.transaction() as conn:  # without a seed only tables that were created in the log can be read
        conn.execute(tables.seed_segments.delete())
        conn.execute(tables.seeds.delete())
    (problem,) = keep(world, KEPT_S).problems()
    history = world.services.registry.history(TENANT)
    created = {(b.table, str(b.from_ts)) for b in rules.births(history, world.log.start_ts).values()}
    holds = world.services.log_starts.shown(TENANT)["holds"]
    assert holds
    assert {(hold["name"], hold["ts"]) for hold in holds} <= created, "from the request of its CREATE TABLE on"
    assert all("CREATE" in hold["release"] and hold["holding"] for hold in holds)
    assert (problem.code, problem.facts["held_by"]) == ("TS-1076", holds[0]["by"])
    assert earliest(world) == int(holds[0]["ts"])
    build(world)
    keep(world, KEPT_S)
    assert earliest(world) > int(holds[0]["ts"])


def test_a_log_with_an_idle_upstream_keeps_its_last_hours(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    set_retention(world.catalog, TENANT, 20)
    row = get_tenant(world.catalog, TENANT)
    monkeypatch.setattr(log_start, "database_time_ms", lambda _: tso.physical_ms(END) + EVER_MS)
    assert starts(world).wanted(row) == tso.compose(tso.physical_ms(END) - 20_000)
    monkeypatch.setattr(log_start, "database_time_ms", lambda _: tso.physical_ms(END) - 5000)
    assert starts(world).wanted(row) == tso.compose(tso.physical_ms(END) - 25_000)
    set_retention(world.catalog, TENANT, 0)
    assert starts(world).wanted(get_tenant(world.catalog, TENANT)) is None


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


# ---- readers while retention works. Each rule has a mutant that breaks it, and the same judge finds every one


def test_retention_between_a_check_and_a_listing_is_seen(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    gone_in_between(world, monkeypatch)


def gone_in_between(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader has looked at where the log begins; before it lists, the floor rises. Then, after it has listed."""
    begin, third, middle = world.log.start_ts, *world.log.cuts(3)[:2]

    def before(*args: Any, **kwargs: Any) -> Any:
        monkeypatch.setattr(committed, "find_segments", find_segments)
        give_up(world, third)
        collect(world)
        return find_segments(*args, **kwargs)

    def after(*args: Any, **kwargs: Any) -> Any:
        found = find_segments(*args, **kwargs)
        monkeypatch.setattr(committed, "find_segments", find_segments)
        give_up(world, middle)
        collect(world)
        return found

    for happens, position in ((before, begin), (after, third)):
        monkeypatch.setattr(committed, "find_segments", happens)
        with suppress(TsExpired):
            judged(world.services.reader, position)
    with pytest.raises(TsExpired):
        judged(world.services.reader, third)


def test_readers_while_the_log_is_given_up_compacted_and_collected(world: ApiWorld) -> None:
    stop, judgements, refusals, failed = threading.Event(), [0] * 3, [0] * 3, list[BaseException]()

    def read(me: int) -> None:
        log, at = LogReader(world.catalog, world.store, world.clock), world.log.start_ts
        try:
            while not stop.is_set():
                try:
                    at = judged(log, at, rows=(50, 2000, 10**6)[me])
                    judgements[me] += 1
                except TsExpired as e:
                    at = int(str(e.facts["earliest_ts"]))
                    refusals[me] += 1
                if at >= END or judgements[me] % 20 == 19:
                    at = earliest(world)
        except BaseException as e:
            failed.append(e)
            raise

    threads = [threading.Thread(target=read, args=(me,)) for me in range(3)]
    for thread in threads:
        thread.start()
    for n, cut in enumerate(world.log.cuts(12)[:-1]):
        give_up(world, cut)
        if n % 3 == 0:
            compact(world)
        collect(world)
    seen = list(judgements)
    waited = threading.Event()
    for _ in range(6000):
        if failed or all(now > then for now, then in zip(judgements, seen, strict=True)):
            break
        waited.wait(0.01)
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not failed
    assert all(now > then for now, then in zip(judgements, seen, strict=True))


def test_a_read_as_of_goes_on_from_a_newer_base_or_is_told(based: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seed from which a read begins is given up before its rows are listed."""
    from reading.asof import source

    world = based
    (at,) = {base.ts for base in list_bases(world.catalog, TENANT)}
    path = "/databases/shop/tables/customers/rows"
    early, late = at - 1, END
    want = world.ok(path, as_of=late).content
    true_listing = source._listed
    for as_of in (early, late):
        happened = list[int]()

        def listed(*args: Any, done: list[int] = happened) -> Any:
            if not done and earliest(world) < at:
                give_up(world, at)
                collect(world)
            done.append(1)
            return true_listing(*args)

        monkeypatch.setattr(source, "_listed", listed)
        answer = world.get(path, as_of=as_of)
        if as_of == early:
            assert (answer.status_code, answer.json()["facts"]["earliest_ts"]) == (410, str(at))
        else:
            assert (answer.status_code, answer.content) == (200, want)
        assert happened


def test_a_listed_file_can_be_fetched_for_a_while(world: ApiWorld) -> None:
    files_stay(world)


def files_stay(world: ApiWorld) -> None:
    listed = world.ok("/files", format="all").json()["items"]
    give_up(world, world.log.cuts(2)[0])
    collect(world)
    for file in listed:
        assert world.get(f"/files/{file['name']}").status_code == 200, "it was listed a moment ago"


def a_consumer_goes_on(world: ApiWorld) -> None:
    """A registered consumer comes back after a while."""
    third = world.log.cuts(3)[0]
    add_consumer(world.catalog, TENANT, "a", third)
    keep(world, KEPT_S)
    collect(world)
    judged(world.services.reader, third)


def test_a_consumer_finds_what_comes_after_its_checkpoint(based: ApiWorld) -> None:
    world = based
    a_consumer_goes_on(world)
    third = world.log.cuts(3)[0]
    assert earliest(world) <= third
    move_checkpoint(world.catalog, TENANT, "a", END - 1)
    keep(world, KEPT_S)
    assert earliest(world) > third
    remove_consumer(world.catalog, TENANT, "a")


def moments_stay(world: ApiWorld) -> None:
    before = oldest(world)
    keep(world, KEPT_S)
    collect(world)
    assert oldest(world) == before


def a_reader_before_the_floor_rises(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of retention dies at its transaction that raises the floor; a reader comes."""
    begin = world.log.start_ts
    true_raise = vars(keeping)["raise_floor"]

    class Died(BaseException):
        pass

    def dies(*args: Any, **kwargs: Any) -> bool:
        raise Died

    if true_raise is floors.raise_floor:
        monkeypatch.setattr(keeping, "raise_floor", dies)
    else:  # a mutant that does something before
        monkeypatch.setattr(floors, "raise_floor", dies)
    with pytest.raises(Died):
        keep(world, KEPT_S)
    monkeypatch.setattr(keeping, "raise_floor", true_raise)
    judged(world.services.reader, begin)


def test_nothing_goes_before_the_floor_has_risen(based: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    a_reader_before_the_floor_rises(based, monkeypatch)


# ---- mutants


def ignores_checkpoints(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_start, "holds_of", lambda *_: [])
    patch.setattr(floors, "_lowest", lambda *_: [])


def ignores_reads(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_start, "needs_of_reads", lambda *_, **__: [])
    patch.setattr(log_start, "births", lambda *_: {})


def ignores_leases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(objects, "next_numbers", lambda *_: range(0, 1))


def looks_before_it_lists(patch: pytest.MonkeyPatch) -> None:
    def listed(self: LogReader, tenant: Any, after: int, upto: int, ids: Any, limit: int) -> Any:
        floors.check_listing(self._catalog, tenant, after, upto)
        asked = {"after_ts": after, "upto_ts": upto, "table_ids": ids, "limit": limit}
        return committed.find_segments(self._catalog, tenant, **asked)

    patch.setattr(LogReader, "_listed", listed)


def retires_first(patch: pytest.MonkeyPatch) -> None:
    def raised(catalog: Any, tenant: Any, *, seen_floor: int, to_ts: int) -> bool:
        with catalog.transaction() as conn:
            conn.execute(tables.segments.delete().where(tables.segments.c.hi_ts <= to_ts))
        return floors.raise_floor(catalog, tenant, seen_floor=seen_floor, to_ts=to_ts)

    patch.setattr(keeping, "raise_floor", raised)


@pytest.mark.parametrize(
    ("mutant", "judge"),
    [
        (ignores_checkpoints, lambda world, _: a_consumer_goes_on(world)),
        (ignores_reads, lambda world, _: moments_stay(world)),
        (ignores_leases, lambda world, _: files_stay(world)),
        (looks_before_it_lists, gone_in_between),
        (retires_first, a_reader_before_the_floor_rises),
    ],
    ids=lambda f: getattr(f, "__name__", "judge"),
)
def test_a_mutant_is_found(
    based: ApiWorld,
    monkeypatch: pytest.MonkeyPatch,
    mutant: Callable[[pytest.MonkeyPatch], None],
    judge: Callable[[ApiWorld, pytest.MonkeyPatch], None],
) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, TsExpired)):
        judge(based, monkeypatch)


def test_splits_are_planned_over_what_is_there(world: ApiWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    """The floor rises between the check of the position and the listing of a plan."""
    middle = world.log.cuts(2)[0]

    def before(*args: Any, **kwargs: Any) -> Any:
        give_up(world, middle)
        return find_segments(*args, **kwargs)

    monkeypatch.setattr(committed, "find_segments", before)
    assert world.get("/changes/splits", start_ts=world.log.start_ts).status_code == 410
