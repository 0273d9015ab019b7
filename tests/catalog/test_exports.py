"""Exports of a catalog, what waits for them, and the restore of the next generation."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from sqlalchemy import select

from tests.kit.catalog_cases import START, T, activate, advance, elected, flush, segment, silence_leader, together
from tests.kit.manual_clock import ManualClock
from tistream.catalog.database.decisions import begun_no
from tistream.catalog.database.dump import LEFT_OUT
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_event
from tistream.catalog.database.generation import CatalogMissing, CatalogState, check_bucket, has_exported
from tistream.catalog.database.tables import metadata
from tistream.catalog.log.objects import deletable_objects, superseded_objects, tombstone
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.tenancy.keys import NewKey, create_key
from tistream.catalog.work.deletion import delete_tenant, may_empty, retire_objects
from tistream.catalog.work.exports import (
    begin_export,
    confirm_restore,
    export_status,
    set_generation,
    switch_exports_off,
    verify_export,
)
from tistream.catalog.work.renumber import EPOCH_STRIDE, ID_STRIDE, STORE_STRIDE
from tistream.catalog.work.stores import issue_incarnation, newest_incarnation, reclaims, set_reclaimed
from tistream.catalog.work.tasks import list_tasks
from tistream.catalog.work.workers import register_worker
from tistream.errors import ConfigError, CorruptObject, Fenced, InvalidInput, NotFound, StateForbids, TiStreamError
from tistream.exports.exporter import Exporter
from tistream.exports.pieces import Sealing
from tistream.exports.restore import exports_of, restore
from tistream.objectstore.generations import (
    FIRST,
    CatalogReplaced,
    GenerationWatch,
    newest_generation,
    open_generation,
)
from tistream.objectstore.layout import CommittedKey, ExportKey, ExportPieceKey, parse
from tistream.objectstore.memory import MemoryStore

KEY = bytes(range(32))


def exported(catalog: Catalog) -> bool:
    with catalog.reading() as conn:
        return has_exported(conn)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def exporter_of(catalog: Catalog, store: MemoryStore, clock: ManualClock, **options: Any) -> Exporter:
    return Exporter(catalog, store, GenerationWatch(store, FIRST, clock), **options)


def verified(catalog: Catalog, epoch: int) -> int:
    """Begin and verify an export without its objects."""
    number = begin_export(catalog, leader_epoch=epoch)
    verify_export(catalog, number, "exports/a", snapshot_ms=1, rows=1, size=1, leader_epoch=epoch)
    return number


def contents(catalog: Catalog) -> dict[str, list[tuple[Any, ...]]]:
    """Table -> its rows."""
    rows = {}
    for name, table in metadata.tables.items():
        with catalog.reading() as conn:
            rows[name] = sorted((tuple(row) for row in conn.execute(select(table))), key=repr)
    return rows


class TestDeletions:
    def test_wait_for_an_export_that_began_later(self, catalog: Catalog) -> None:
        epoch = elected(catalog)
        first = begin_export(catalog, leader_epoch=epoch)
        assert tombstone(catalog, T, "committed/orphan")
        assert deletable_objects(catalog, ["committed/orphan"]) == set()
        verify_export(catalog, first, "exports/a", snapshot_ms=1, rows=1, size=1, leader_epoch=epoch)
        assert deletable_objects(catalog, ["committed/orphan"]) == set(), "the export began before the decision"
        verified(catalog, epoch)
        assert deletable_objects(catalog, ["committed/orphan"]) == {"committed/orphan"}

    def test_of_replaced_objects_wait(self, catalog: Catalog) -> None:
        epoch = elected(catalog)
        verified(catalog, epoch)
        low = activate(catalog)[0]
        flush(catalog, "committed/1", advance(low, START, START + 9, segment(0, START + 1, START + 9)))
        assert delete_tenant(catalog, T, seen=TenantState.ACTIVE)
        assert retire_objects(catalog, T) == 1
        assert superseded_objects(catalog, T, grace_ms=0, limit=9) == []
        assert not may_empty(catalog, T)
        verified(catalog, epoch)
        assert superseded_objects(catalog, T, grace_ms=0, limit=9) == ["committed/1"]
        assert may_empty(catalog, T)

    def test_of_batch_files_wait(self, catalog: Catalog) -> None:
        epoch = elected(catalog)
        verified(catalog, epoch)
        activate(catalog)
        issue_incarnation(catalog, T, 5)
        assert set_reclaimed(catalog, T, 5, 1, 40, dispatcher_epoch=0)
        assert reclaims(catalog, T, 5)[1] == (40, False)
        verified(catalog, epoch)
        assert reclaims(catalog, T, 5)[1] == (40, True)

    def test_wait_for_nothing_while_exports_are_off_and_for_all_in_an_unconfirmed_catalog(
        self, catalog: Catalog
    ) -> None:
        assert tombstone(catalog, T, "committed/a")
        assert deletable_objects(catalog, ["committed/a"]) == {"committed/a"}, "no export was ever begun"
        epoch = elected(catalog)
        begin_export(catalog, leader_epoch=epoch)
        assert tombstone(catalog, T, "committed/b")
        assert deletable_objects(catalog, ["committed/b"]) == set()
        switch_exports_off(catalog)
        assert deletable_objects(catalog, ["committed/b"]) == {"committed/b"}
        set_generation(catalog, FIRST, CatalogState.UNCONFIRMED)
        verified(catalog, epoch)
        assert deletable_objects(catalog, ["committed/a", "committed/b"]) == set()
        confirm_restore(catalog, actor="an operator")
        assert deletable_objects(catalog, ["committed/a", "committed/b"]) == {"committed/a", "committed/b"}
        with pytest.raises(StateForbids, match="ready"):
            confirm_restore(catalog)

    def test_an_export_of_an_earlier_leader_is_not_verified(self, catalog: Catalog) -> None:
        old = elected(catalog)
        number = begin_export(catalog, leader_epoch=old)
        silence_leader(catalog, 60_000)
        elected(catalog, "meta-2")
        with pytest.raises(Fenced):
            verify_export(catalog, number, "exports/a", snapshot_ms=1, rows=1, size=1, leader_epoch=old)
        with pytest.raises(Fenced):
            begin_export(catalog, leader_epoch=old)
        assert export_status(catalog).newest is None

    def test_an_export_begins_when_the_transactions_under_way_have_ended(self, catalog: Catalog) -> None:
        epoch, inside, begun = elected(catalog), threading.Event(), threading.Event()
        numbers: list[int] = []

        def decide() -> None:
            with catalog.transaction() as conn:
                numbers.append(conn.execute(select(begun_no())).scalar_one())
                inside.set()
                assert not begun.wait(0.5), "the export began while a decision was not committed"

        def export() -> None:
            assert inside.wait(10)
            numbers.append(begin_export(catalog, leader_epoch=epoch))
            begun.set()

        together(2, lambda n: (decide, export)[n]())
        assert numbers == [0, 1]


class TestGenerations:
    def test_a_process_of_an_earlier_generation_writes_nothing(self, catalog: Catalog) -> None:
        catalog.migrate()
        register_worker(catalog, "sorter-1", "sorter", "")
        set_generation(catalog, 2, CatalogState.READY)
        with pytest.raises(CatalogReplaced, match=r"generation 1.*generation 2"):
            register_worker(catalog, "sorter-1", "sorter", "")

    def test_a_watch_looks_again_after_some_seconds(self, store: MemoryStore, clock: ManualClock) -> None:
        watch = GenerationWatch(store, FIRST, clock)
        watch.require()
        open_generation(store, FIRST + 1, by="an operator")
        watch.require()  # it has just looked
        clock.advance(6)
        with pytest.raises(CatalogReplaced):
            watch.require()

    def test_of_two_that_open_one_the_first_wins(self, store: MemoryStore) -> None:
        open_generation(store, 2, by="one")
        with pytest.raises(CatalogReplaced, match="generation 2"):
            open_generation(store, 2, by="another")
        assert newest_generation(store) == 2


class TestRestore:
    def grown(self, catalog: Catalog, store: MemoryStore) -> int:
        epoch = elected(catalog)
        low = activate(catalog)[0]
        flush(catalog, "committed/1", advance(low, START, START + 9, segment(0, START + 1, START + 9)))
        register_worker(catalog, "sorter-1", "sorter", "grpc://sorter:1")
        issue_incarnation(catalog, T, 5)
        create_key(catalog, NewKey(key_id="k1", secret_hash="0" * 64, name="k", role="owner"))
        store.put(str(CommittedKey(tenant=T, sorter="sorter-1", incarnation=7, seq=1)), b"later than the export")
        store.put(str(CommittedKey(tenant=T, sorter="sorter-9", incarnation=3, seq=1)), b"of a sorter since")
        return epoch

    @pytest.mark.parametrize("key", [None, KEY], ids=["plain", "sealed"])
    def test_gives_all_rows_back_under_numbers_that_were_never_used(
        self, catalog: Catalog, empty: Catalog, store: MemoryStore, clock: ManualClock, key: bytes | None
    ) -> None:
        epoch = self.grown(catalog, store)
        before = contents(catalog)
        exporter_of(catalog, store, clock, sealing=Sealing(key)).step(epoch)
        made = restore(empty, store, clock, sealing=Sealing(key), by="an operator")
        assert (made.generation, newest_generation(store)) == (2, 2)
        after = contents(empty)
        same = {"tenants", "segments", "objects", "api_keys", "snapshot_positions", "snapshot_objects"}
        assert {name: after[name] for name in same} == {name: before[name] for name in same}
        assert all(row.epoch >= EPOCH_STRIDE and row.owner is None for row in list_tasks(empty, T))
        assert newest_incarnation(empty, T, 5) == 1 + STORE_STRIDE
        counted = dict(after["counters"])
        assert all(counted[name] - value in (0, ID_STRIDE) for name, value in before["counters"] if name != "event")
        empty.migrate()
        assert register_worker(empty, "sorter-1", "sorter", "") > EPOCH_STRIDE
        assert register_worker(empty, "sorter-9", "sorter", "") > 3
        status = export_status(empty)
        assert (status.generation, status.state, status.newest) == (2, CatalogState.UNCONFIRMED, None)
        assert all(not rows for name, rows in after.items() if name in LEFT_OUT)

    def test_takes_the_newest_and_an_older_one_only_when_told(
        self, catalog: Catalog, empty: Catalog, store: MemoryStore, clock: ManualClock
    ) -> None:
        exporter = exporter_of(catalog, store, clock)
        epoch = self.grown(catalog, store)
        exporter.step(epoch)
        issue_incarnation(catalog, T, 6)
        exporter.step(epoch)
        first, second = exports_of(store)
        with pytest.raises(InvalidInput, match="not the newest"):
            restore(empty, store, clock, sealing=Sealing(), by="x", export=str(first))
        with pytest.raises(NotFound, match="no export 'exports/none'"):
            restore(empty, store, clock, sealing=Sealing(), by="x", export="exports/none")
        assert newest_generation(store) == FIRST, "nothing was opened"
        assert restore(empty, store, clock, sealing=Sealing(), by="x").export == second
        assert newest_incarnation(empty, T, 6) == 1 + STORE_STRIDE

    def test_a_new_database_beside_the_exports_of_another_is_refused(
        self, catalog: Catalog, empty: Catalog, store: MemoryStore, clock: ManualClock
    ) -> None:
        """It would delete all that it does not know."""
        empty.migrate()
        check_bucket(FIRST, store, exported=exported(empty))
        exporter_of(catalog, store, clock).step(elected(catalog))
        check_bucket(FIRST, store, exported=exported(catalog))
        with pytest.raises(CatalogMissing, match="never exported anything, and the bucket has exports/manifests/"):
            check_bucket(FIRST, store, exported=exported(empty))

    def test_a_process_writes_to_no_other_database_at_the_address_of_its_own(
        self, catalog: Catalog, empty: Catalog, store: MemoryStore, clock: ManualClock
    ) -> None:
        """A database was lost and made anew, and the next process has made its tables: of the same generation."""
        empty.migrate()
        empty.identity, own = catalog.identity, empty.identity
        with pytest.raises(CatalogReplaced, match="Another database"):
            register_worker(empty, "sorter-1", "sorter", "")
        empty.identity = own
        register_worker(empty, "sorter-1", "sorter", "")

    def test_an_export_that_has_begun_takes_no_rows_of_a_database_made_anew(
        self, catalog: Catalog, store: MemoryStore, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A restore would take it for the newest one."""

        def begun(catalog: Catalog, **given: Any) -> int:
            number = begin_export(catalog, **given)
            catalog.generation, catalog.identity = FIRST, catalog.identity + 1  # as if the database were another one
            return number

        epoch = elected(catalog)
        monkeypatch.setattr("tistream.exports.exporter.begin_export", begun)
        with pytest.raises(CatalogReplaced, match="Another database"):
            Exporter(catalog, store, GenerationWatch(store, FIRST, clock)).step(epoch)
        assert exports_of(store) == []

    def test_a_process_ends_where_its_database_was_made_anew_without_tables(self, url: str) -> None:
        """As SQLite does with a file that was removed. A process that has not started there yet gets a plain error."""
        anew = Catalog(url)
        with pytest.raises(TiStreamError) as caught:
            register_worker(anew, "sorter-1", "sorter", "")
        assert type(caught.value) is TiStreamError
        anew.generation = FIRST
        for use in (lambda: register_worker(anew, "sorter-1", "sorter", ""), lambda: list_tasks(anew)):
            with pytest.raises(CatalogReplaced, match="Another database"):
                use()
        anew.close()

    def test_what_met_the_empty_database_first_is_gone(
        self, catalog: Catalog, empty: Catalog, store: MemoryStore, clock: ManualClock
    ) -> None:
        epoch = self.grown(catalog, store)
        exporter_of(catalog, store, clock).step(epoch)
        empty.migrate()
        with empty.transaction() as conn:
            record_event(conn, EventKind.CATALOG_CONFIRMED, "written before the restore")
        empty.generation = None  # the operator's process
        restore(empty, store, clock, sealing=Sealing(), by="x")
        assert "written before the restore" not in str(contents(empty)["events"])

    def test_refuses_a_database_in_use_and_a_bucket_without_exports(
        self, catalog: Catalog, empty: Catalog, store: MemoryStore, clock: ManualClock
    ) -> None:
        with pytest.raises(NotFound, match="no export"):
            restore(empty, store, clock, sealing=Sealing(), by="x")
        exporter_of(catalog, store, clock).step(self.grown(catalog, store))
        with pytest.raises(StateForbids, match="in use"):
            restore(catalog, store, clock, sealing=Sealing(), by="x")

    @pytest.mark.parametrize("harm", ["missing", "changed", "manifest"])
    def test_refuses_an_export_that_is_not_whole_and_no_service_starts_on_what_it_left(
        self, catalog: Catalog, empty: Catalog, store: MemoryStore, clock: ManualClock, harm: str
    ) -> None:
        exporter_of(catalog, store, clock).step(self.grown(catalog, store))
        kind = ExportKey if harm == "manifest" else ExportPieceKey
        key = next(info.key for info in store.list("exports/") if isinstance(parse(info.key), kind))
        data = store.get(key)
        store.delete(key)
        if harm != "missing":
            store.put(key, data[:-9] + b"x" + data[-8:])
        with pytest.raises(CorruptObject):
            restore(empty, store, clock, sealing=Sealing(), by="x")
        if harm != "manifest":
            with pytest.raises(StateForbids, match="restore"):
                empty.migrate()

    def test_needs_the_key_of_a_sealed_export(
        self, catalog: Catalog, empty: Catalog, store: MemoryStore, clock: ManualClock
    ) -> None:
        exporter_of(catalog, store, clock, sealing=Sealing(KEY)).step(self.grown(catalog, store))
        assert not any(b"sorter" in store.get(info.key) for info in store.list("exports/"))
        with pytest.raises(ConfigError, match="key_file"):
            restore(empty, store, clock, sealing=Sealing(), by="x")
        with pytest.raises(CorruptObject, match="another key"):
            restore(empty, store, clock, sealing=Sealing(bytes(32)), by="x")

    def test_ends_when_another_one_is_faster(
        self, catalog: Catalog, empty: Catalog, store: MemoryStore, clock: ManualClock
    ) -> None:
        exporter_of(catalog, store, clock).step(self.grown(catalog, store))
        said: list[str] = []

        def say(line: str) -> None:
            if not said:
                open_generation(store, 3, by="another operator")
            said.append(line)

        with pytest.raises(CatalogReplaced, match=r"generation 2.*generation 3"):
            restore(empty, store, clock, sealing=Sealing(), by="x", say=say)
        with pytest.raises(StateForbids):
            empty.migrate()


class TestExporter:
    def test_writes_only_pieces_that_changed_and_keeps_the_newest(
        self, catalog: Catalog, store: MemoryStore, clock: ManualClock
    ) -> None:
        exporter, epoch = exporter_of(catalog, store, clock, keep=2), elected(catalog)
        activate(catalog)

        def pieces() -> set[str]:
            return {info.key for info in store.list("exports/pieces/")}

        exporter.step(epoch)
        first = pieces()
        for store_id in range(2, 5):
            issue_incarnation(catalog, T, store_id)
            exporter.step(epoch)
            assert len(pieces() & first) > 3, "what did not change is shared"
        assert [key.export_no for key in exports_of(store)] == [3, 4]
        assert first - pieces(), "what only a deleted export named is gone"

    def test_a_later_leader_shares_nothing_and_its_exports_come_last(
        self, catalog: Catalog, empty: Catalog, store: MemoryStore, clock: ManualClock
    ) -> None:
        activate(catalog)
        old, first = exporter_of(catalog, store, clock), elected(catalog)
        old.step(first)
        silence_leader(catalog, 60_000)
        second = elected(catalog, "meta-2")
        exporter_of(catalog, store, clock, keep=1).step(second)
        assert [key.leader_epoch for key in exports_of(store)] == [second]
        assert {parse(info.key).leader_epoch for info in store.list("exports/pieces/")} == {second}  # type: ignore[union-attr]
        with pytest.raises(Fenced):
            old.step(first)
        restore(empty, store, clock, sealing=Sealing(), by="x")

    def test_of_an_earlier_generation_is_not_verified(
        self, catalog: Catalog, store: MemoryStore, clock: ManualClock
    ) -> None:
        epoch = elected(catalog)
        exporter = exporter_of(catalog, store, clock)
        exporter.step(epoch)
        open_generation(store, 2, by="an operator")
        with pytest.raises(CatalogReplaced):  # although it has looked just now
            exporter.step(epoch)
        newest = export_status(catalog).newest
        assert newest is not None
        assert newest.export_no == 1
