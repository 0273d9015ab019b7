"""The journal: what was done since the newest export is in the restored catalog, where that must not be lost.

Each case also runs without its entries, and then shows the loss: the assertion sees a difference.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import select

from metaserver.loop import MetaOptions, MetaWorker
from tests.catalog.test_exports import exporter_of, verified
from tests.kit.catalog_cases import DDL, LOW, START, T, activate, advance, elected, flush, segment
from tests.kit.manual_clock import ManualClock
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import list_events
from tistream.catalog.database.tables import api_keys
from tistream.catalog.rows.kinds import Keyspace, TenantKind
from tistream.catalog.rows.tenants import NewTask, TenantState
from tistream.catalog.tenancy.keys import NewKey, create_key, get_key, list_keys, revoke_key, rotate_key
from tistream.catalog.tenancy.tenants import activate_tenant, begin_tenant, look_up_tenant, register_tenant
from tistream.catalog.work.deletion import delete_tenant, repeat_deletion, retire_objects
from tistream.catalog.work.exports import export_status, switch_exports_off
from tistream.catalog.work.replayed import replay_key
from tistream.catalog.work.tasks import list_tasks
from tistream.errors import CorruptObject, NotFound, StoreUnavailable
from tistream.exports.journal import Journal
from tistream.exports.pieces import Sealing
from tistream.exports.restore import exports_of, restore
from tistream.ids import Tenant
from tistream.objectstore.generations import FIRST, CatalogReplaced, GenerationWatch, open_generation
from tistream.objectstore.layout import JournalKey, parse
from tistream.objectstore.memory import MemoryStore

KEY = bytes(range(32))
NEW = Tenant(7, 9)
RAW: dict[str, Any] = {"kind": TenantKind.RAW, "keyspace": Keyspace(id=5)}


def key(name: str, **more: Any) -> NewKey:
    return NewKey(key_id=name, secret_hash=name[0] * 64, name=name, role=more.pop("role", "owner"), **more)


def entries(store: MemoryStore) -> list[JournalKey]:
    keys = (parse(info.key) for info in store.list("journal/"))
    return [each for each in keys if isinstance(each, JournalKey)]


class Deployment:
    """A catalog whose exports are on, with the bucket of its journal; after `restored`, the restored catalog."""

    def __init__(self, catalog: Catalog, empty: Catalog, clock: ManualClock, sealing: Sealing) -> None:
        self.catalog, self._empty, self._clock, self.sealing = catalog, empty, clock, sealing
        self.store = MemoryStore()
        catalog.migrate()
        catalog.journal = self.journal_of(catalog, FIRST)
        self.leader_epoch = elected(catalog)

    def journal_of(self, catalog: Catalog, generation: int) -> Journal:
        return Journal(catalog, self.store, GenerationWatch(self.store, generation, self._clock), self.sealing)

    def export(self, **options: Any) -> int:
        return exporter_of(self.catalog, self.store, self._clock, sealing=self.sealing, **options).step(
            self.leader_epoch
        )

    def restored(self, said: Callable[[str], None] = lambda _: None) -> Catalog:
        restore(self._empty, self.store, self._clock, sealing=self.sealing, by="an operator", say=said)
        self._empty.migrate()
        return self._empty


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def deployment(catalog: Catalog, empty: Catalog, clock: ManualClock) -> Iterator[Deployment]:
    yield Deployment(catalog, empty, clock, Sealing(KEY))
    catalog.journal = None  # it outlives the test


@pytest.fixture(params=[True, False], ids=["with", "without"])
def is_kept(request: pytest.FixtureRequest) -> bool:
    """Whether the journal is there when the catalog is restored."""
    return bool(request.param)


def lose(deployment: Deployment, is_kept: bool) -> Catalog:
    assert entries(deployment.store)
    if not is_kept:
        for each in entries(deployment.store):
            deployment.store.delete(str(each))
    return deployment.restored()


class TestWhatWasDoneSinceTheExport:
    def test_a_revoked_key_stays_revoked(self, deployment: Deployment, is_kept: bool) -> None:
        create_key(deployment.catalog, key("k1"))
        deployment.export()
        assert revoke_key(deployment.catalog, "k1", actor="an owner")
        restored = lose(deployment, is_kept)
        assert (get_key(restored, "k1").state == "revoked") is is_kept

    def test_a_new_key_is_there_and_a_rotated_one_ends(self, deployment: Deployment, is_kept: bool) -> None:
        create_key(deployment.catalog, key("old"))
        deployment.export()
        rotate_key(deployment.catalog, "old", "new", "f" * 64, overlap_ms=60_000, created_by="old")
        lost = deployment.catalog
        restored = lose(deployment, is_kept)
        if not is_kept:
            assert [row.key_id for row in list_keys(restored)] == ["old"]
            assert get_key(restored, "old").expires_ms == 0
            return
        for name in ("old", "new"):
            before, after = get_key(lost, name), get_key(restored, name)
            assert (after.expires_ms, after.replaced_by, after.secret_hash) == (
                *(before.expires_ms, before.replaced_by, before.secret_hash),
            )

    @pytest.mark.parametrize("begun_by", ["its registration", "its pusher", "its snapshot"])
    def test_a_new_tenant_is_served(self, deployment: Deployment, is_kept: bool, begun_by: str) -> None:
        deployment.export()
        catalog, of_tidb = deployment.catalog, begun_by == "its snapshot"
        if of_tidb:
            register_tenant(catalog, NEW)
            parts = [NewTask(kind="data", range=LOW), NewTask(kind="ddl", range=DDL)]
            assert activate_tenant(catalog, NEW, START, parts)
        elif begun_by == "its pusher":
            register_tenant(catalog, NEW, kind=TenantKind.RAW, keyspace=Keyspace(name="app"))
            begin_tenant(catalog, NEW, 5, START)
        else:
            register_tenant(catalog, NEW, **RAW)
        before = look_up_tenant(catalog, NEW)
        assert before.state is TenantState.ACTIVE
        restored = lose(deployment, is_kept)
        if not is_kept:
            with pytest.raises(NotFound):
                look_up_tenant(restored, NEW)
            return
        assert look_up_tenant(restored, NEW) == before
        old, new = list_tasks(catalog, NEW), list_tasks(restored, NEW)
        assert [(row.task_id, row.range, row.kind, row.durable_ts) for row in new] == [
            (row.task_id, row.range, row.kind, before.start_ts) for row in old
        ]
        assert len(new) == (2 if of_tidb else 1)

    def test_the_log_of_a_tenant_that_awaited_its_snapshot_begins_where_it_began(
        self, deployment: Deployment, is_kept: bool
    ) -> None:
        register_tenant(deployment.catalog, NEW)
        deployment.export()
        assert activate_tenant(deployment.catalog, NEW, START, [NewTask(kind="data", range=LOW)])
        restored = lose(deployment, is_kept)
        assert (look_up_tenant(restored, NEW).start_ts == START) is is_kept
        assert bool(list_tasks(restored, NEW)) is is_kept

    def test_what_a_new_tenant_did_since_is_done_again(self, deployment: Deployment) -> None:
        """Registered again after a flush: the restored catalog has none of its objects, so none of its progress."""
        deployment.export()
        low = activate(deployment.catalog)[0]
        flush(deployment.catalog, "committed/1", advance(low, START, START + 9, segment(0, START + 1, START + 9)))
        register_tenant(deployment.catalog, T)
        newest = entries(deployment.store)[-1]
        for each in entries(deployment.store)[:-1]:
            deployment.store.delete(str(each))
        restored = lose(deployment, True)
        assert newest in entries(deployment.store)
        assert {row.durable_ts for row in list_tasks(restored, T)} == {START}
        assert len(list_tasks(restored, T)) == 3

    def test_a_deleted_tenant_is_deleted_with_all_that_was_its_own(self, deployment: Deployment, is_kept: bool) -> None:
        activate(deployment.catalog)
        create_key(deployment.catalog, key("pusher", role="pusher", tenant=T))
        deployment.export()
        create_key(deployment.catalog, key("since", role="pusher", tenant=T))
        assert delete_tenant(deployment.catalog, T, seen=TenantState.ACTIVE, reason="it moved", actor="an owner")
        restored = lose(deployment, is_kept)
        row = look_up_tenant(restored, T)
        assert (row.state is TenantState.DELETING) is is_kept
        assert (row.reason == "it moved") is is_kept
        assert bool(list_tasks(restored, T)) is not is_kept
        assert all((each.state == "revoked") is is_kept for each in list_keys(restored, T))
        assert len(list_keys(restored, T)) == (2 if is_kept else 1)

    def test_a_tenant_that_came_and_went_is_a_tombstone(self, deployment: Deployment) -> None:
        deployment.export()
        register_tenant(deployment.catalog, NEW, **RAW)
        assert delete_tenant(deployment.catalog, NEW, seen=TenantState.ACTIVE)
        restored = lose(deployment, True)
        assert look_up_tenant(restored, NEW).state is TenantState.DELETING
        assert not list_tasks(restored, NEW)

    def test_a_repeat_after_a_lost_answer_is_in_the_journal(self, deployment: Deployment) -> None:
        """The process died between commit and entry; the client asked again."""
        create_key(deployment.catalog, key("k1"))
        activate(deployment.catalog)
        deployment.export()
        deployment.catalog.journal = lambda _: None
        revoke_key(deployment.catalog, "k1")
        register_tenant(deployment.catalog, NEW, **RAW)
        delete_tenant(deployment.catalog, T, seen=TenantState.ACTIVE)
        assert not entries(deployment.store)
        deployment.catalog.journal = deployment.journal_of(deployment.catalog, FIRST)
        assert not revoke_key(deployment.catalog, "k1")
        register_tenant(deployment.catalog, NEW, **RAW)
        repeat_deletion(deployment.catalog, T)
        restored = lose(deployment, True)
        assert get_key(restored, "k1").state == "revoked"
        assert len(list_tasks(restored, NEW)) == 1
        assert look_up_tenant(restored, T).state is TenantState.DELETING

    def test_a_restore_of_a_restore_has_it_too(
        self, deployment: Deployment, catalog: Catalog, clock: ManualClock
    ) -> None:
        create_key(catalog, key("first"))
        create_key(catalog, key("second"))
        deployment.export()
        revoke_key(catalog, "first")
        again = deployment.restored()
        again.journal = deployment.journal_of(again, FIRST + 1)
        revoke_key(again, "second")
        assert [each.generation for each in entries(deployment.store)] == [FIRST, FIRST + 1]
        catalog.generation, catalog.journal = None, None
        catalog = Emptying(catalog).catalog
        restore(catalog, deployment.store, clock, sealing=deployment.sealing, by="an operator")
        assert {get_key(catalog, name).state for name in ("first", "second")} == {"revoked"}

    def test_the_restore_says_how_much_there_was(self, deployment: Deployment) -> None:
        deployment.export()
        create_key(deployment.catalog, key("k1"))
        revoke_key(deployment.catalog, "k1")
        register_tenant(deployment.catalog, NEW, **RAW)
        said: list[str] = []
        deployment.restored(said.append)
        assert (
            "the journal since the export: 1 registrations, 1 new keys, 1 revocations, 0 deletions of tenants" in said
        )


class Emptying:
    """Empties the tables of a lost catalog, for a restore into the same database."""

    def __init__(self, catalog: Catalog) -> None:
        from tistream.catalog.database.tables import metadata

        kept = {"counters", "leader", "catalog_release"}
        with catalog.transaction() as conn:
            for table in metadata.sorted_tables:
                if table.name not in kept:
                    conn.execute(table.delete())
        self.catalog = catalog


def test_the_order_of_a_keys_entries_does_not_matter(catalog: Catalog) -> None:
    first = {"key_id": "k", "secret_hash": "0" * 64, "name": "k", "role": "owner", "created_by": "", "created_ms": 5}
    first |= {"cluster_id": None, "tenant_id": None, "tables": None, "last_used_ms": 0}
    created = {**first, "replaced_by": None, "expires_ms": 0, "revoked_ms": 0}
    rotated = {**created, "replaced_by": "k2", "expires_ms": 90}
    revoked = {**rotated, "revoked_ms": 70}
    ends = []
    for order in itertools.permutations([created, rotated, revoked]):
        with catalog.transaction() as conn:
            conn.execute(api_keys.delete())
            for row in order:
                replay_key(conn, row)
            ends.append(tuple(conn.execute(select(api_keys)).one()))
    assert set(ends) == {tuple(revoked[column.name] for column in api_keys.columns)}


class TestEntries:
    def test_tell_nothing_without_the_key(self, deployment: Deployment) -> None:
        deployment.export()
        create_key(deployment.catalog, key("k1"))
        (entry,) = entries(deployment.store)
        assert b"k1" not in deployment.store.get(str(entry))

    @pytest.mark.parametrize("harm", ["changed", "not sealed"])
    def test_that_cannot_be_read_end_the_restore(self, deployment: Deployment, harm: str) -> None:
        deployment.export()
        create_key(deployment.catalog, key("k1"))
        (entry,) = entries(deployment.store)
        data = deployment.store.get(str(entry))
        deployment.store.delete(str(entry))
        deployment.store.put(str(entry), data[:-1] + bytes([data[-1] ^ 1]) if harm == "changed" else b'{"format": 1}')
        with pytest.raises(CorruptObject) as refused:
            deployment.restored()
        assert str(entry) in str(refused.value)

    def test_of_a_later_release_end_the_restore(self, catalog: Catalog, empty: Catalog, clock: ManualClock) -> None:
        plain = Deployment(catalog, empty, clock, Sealing())
        plain.export()
        entry = JournalKey(generation=FIRST, exports_begun=1, ms=1, name="0" * 16)
        plain.store.put(str(entry), b'{"format": 1, "kind": "key", "actor": "", "at_ms": 1, "rows": {"vaults": []}}')
        plain.store.put(str(entry).replace("0.json", "1.json"), b'{"format": 2}')
        with pytest.raises(CorruptObject, match="journal/000001"):
            plain.restored()
        catalog.journal = None

    def test_are_not_put_while_exports_are_off(self, deployment: Deployment) -> None:
        create_key(deployment.catalog, key("before"))
        deployment.export()
        switch_exports_off(deployment.catalog)
        create_key(deployment.catalog, key("after"))
        assert not entries(deployment.store)
        assert not export_status(deployment.catalog).is_wanted

    def test_are_deleted_with_the_exports_that_need_them(self, deployment: Deployment) -> None:
        for name in ("k1", "k2", "k3"):
            deployment.export(keep=2)
            create_key(deployment.catalog, key(name))
        assert [each.exports_begun for each in entries(deployment.store)] == [2, 3]
        deployment.export(keep=2)
        assert [each.exports_begun for each in entries(deployment.store)] == [3]
        assert [each.export_no for each in exports_of(deployment.store)] == [3, 4]

    def test_of_a_catalog_that_no_longer_counts_have_no_good_answer(self, deployment: Deployment) -> None:
        """The restore may have listed the journal before the entry was put."""
        create_key(deployment.catalog, key("k1"))
        deployment.export()
        open_generation(deployment.store, FIRST + 1, by="an operator")
        with pytest.raises(CatalogReplaced):
            revoke_key(deployment.catalog, "k1")


class Unwritable(MemoryStore):
    """A bucket that takes no entry of the journal."""

    def put(self, key: str, data: bytes | memoryview) -> None:
        if key.startswith("journal/"):
            raise StoreUnavailable("the bucket is away")
        super().put(key, data)


class TestAnExportIsAskedFor:
    def test_when_the_bucket_takes_no_entry_and_the_deed_stands(self, deployment: Deployment) -> None:
        deployment.export()
        deployment.store = Unwritable()
        deployment.catalog.journal = deployment.journal_of(deployment.catalog, FIRST)
        create_key(deployment.catalog, key("k1"))
        assert get_key(deployment.catalog, "k1").state == "living"
        assert export_status(deployment.catalog).is_wanted
        (event,) = [row for row in list_events(deployment.catalog, limit=9) if row.kind == "catalog.unjournaled"]
        assert "the bucket is away" in event.detail["error"]

    def test_when_the_process_has_another_key_than_the_exports(self, deployment: Deployment) -> None:
        deployment.export()
        deployment.sealing = Sealing()
        deployment.catalog.journal = deployment.journal_of(deployment.catalog, FIRST)
        create_key(deployment.catalog, key("k1"))
        assert not entries(deployment.store), "it would end the restore"
        assert export_status(deployment.catalog).is_wanted

    def test_by_a_command_without_a_bucket_until_one_begins(self, catalog: Catalog) -> None:
        epoch = elected(catalog)
        create_key(catalog, key("k1"))
        assert not export_status(catalog).is_wanted, "exports are off"
        verified(catalog, epoch)
        assert not export_status(catalog).is_wanted
        create_key(catalog, key("k2"))
        assert export_status(catalog).is_wanted
        verified(catalog, epoch)
        assert not export_status(catalog).is_wanted


def test_replaced_objects_wait_for_the_export_that_has_their_replacement(catalog: Catalog) -> None:
    epoch = elected(catalog)
    verified(catalog, epoch)
    low = activate(catalog)[0]
    flush(catalog, "committed/1", advance(low, START, START + 9, segment(0, START + 1, START + 9)))
    assert export_status(catalog).waiting_bytes == 0, "it is live"
    assert delete_tenant(catalog, T, seen=TenantState.ACTIVE)
    assert retire_objects(catalog, T) == 1
    assert export_status(catalog).waiting_bytes == 1000
    verified(catalog, epoch)
    assert export_status(catalog).waiting_bytes == 0


def test_the_leader_exports_at_once_when_asked_and_when_much_waits(
    catalog: Catalog, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    options = MetaOptions(exporter=exporter_of(catalog, store, clock), waiting_bytes_max=999)
    meta = MetaWorker(catalog, store, clock, "meta-1", options)
    meta.assign()

    def exports() -> int:
        meta.export()
        return len(exports_of(store))

    assert [exports(), exports()] == [1, 1], "the next one is due in minutes"
    create_key(catalog, key("k1"))
    assert [exports(), exports()] == [2, 2], "asked for by a process without a journal"
    monkeypatch.setattr(catalog, "journal", lambda _: None)
    low = activate(catalog)[0]
    flush(catalog, "committed/1", advance(low, START, START + 9, segment(0, START + 1, START + 9)))
    assert exports() == 2, "what is live does not wait"
    assert delete_tenant(catalog, T, seen=TenantState.ACTIVE)
    assert retire_objects(catalog, T) == 1
    assert [exports(), exports()] == [3, 3], "a thousand bytes"
