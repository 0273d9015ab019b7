"""The audit: what is a fault, what is an orphan, and what only looks like one for a moment."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from metaserver import audit as auditing
from metaserver.audit import Auditor, Fault, audit_tenant
from tests.kit.catalog_cases import START, T, activate, snapshot
from tests.kit.manual_clock import ManualClock
from tests.kit.open_folder import OpenFolder
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.objects import ObjectKind, insert_live, release, tombstone
from tistream.objectstore.layout import CommittedKey, SeedKey, SnapshotKey
from tistream.objectstore.protocol import ObjectInfo

NOW_MS = 1_700_000_000_000


class Folder(OpenFolder):
    """Something happens before a listing."""

    before_list: Callable[[], None] = staticmethod(lambda: None)

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        happens, self.before_list = self.before_list, lambda: None
        happens()
        yield from super().list(prefix, after)


def key(n: int) -> str:
    return str(CommittedKey(tenant=T, sorter="s", incarnation=1, seq=n))


@pytest.fixture
def catalog(catalog: Catalog) -> Catalog:
    activate(catalog)
    return catalog


@pytest.fixture
def store(catalog: Catalog) -> Folder:
    """Three files with rows, as they should be."""
    folder = Folder()
    for n in (1, 2, 3):
        publish(catalog, folder, key(n))
    return folder


def publish(catalog: Catalog, store: Folder, name: str) -> None:
    store.put(name, b"0123456789")
    with catalog.transaction() as conn:
        insert_live(conn, T, name, ObjectKind.COMMITTED, 10)


def look(catalog: Catalog, store: Folder) -> auditing.Audit:
    return audit_tenant(catalog, store, T, newest_ms=NOW_MS)


def test_what_is_as_it_should_be(catalog: Catalog, store: Folder) -> None:
    audit = look(catalog, store)
    assert (audit.objects, audit.bytes, audit.orphans, audit.faults) == (3, 30, 0, [])


def test_a_missing_object_and_one_of_another_size_are_faults_with_names(
    catalog: Catalog, store: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auditing, "_ROWS_AT_ONCE", 2)
    del store.objects[key(1)]
    store.objects[key(3)] = b"short"
    assert look(catalog, store).faults == [
        Fault(object_key=key(1), bytes=10, found_bytes=None),
        Fault(object_key=key(3), bytes=10, found_bytes=5),
    ]
    auditor = Auditor(catalog, store, ManualClock(NOW_MS))
    assert auditor.step() == 2
    (problem,) = auditor.problems()
    assert (problem.source, problem.code) == (f"audit/{T}", "TS-1077")
    assert key(1) in str(problem.facts["objects"])
    store.put(key(1), b"0123456789")
    store.put(key(3), b"0123456789")
    assert (auditor.step(), auditor.problems()) == (0, [])


def test_objects_without_a_row_are_orphans_of_whatever_kind(catalog: Catalog, store: Folder) -> None:
    for name in (key(4), str(SeedKey(tenant=T, ts=START, n=0)), str(SnapshotKey(tenant=T, task_id=1, epoch=1, n=1))):
        store.put(name, b"12345")
    audit = look(catalog, store)
    assert (audit.orphans, audit.orphan_bytes, audit.faults) == (3, 15, [])
    young = audit_tenant(catalog, store, T, newest_ms=-1)
    assert (young.orphans, young.faults) == (0, [])


def test_a_dead_object_is_no_orphan_and_no_fault(catalog: Catalog, store: Folder) -> None:
    store.put(key(4), b"late")
    assert tombstone(catalog, T, key(4))
    audit = look(catalog, store)
    assert (audit.orphans, audit.faults) == (0, [])


def test_what_is_published_or_collected_meanwhile_is_no_fault(catalog: Catalog, store: Folder) -> None:
    snapshot(catalog, 1, 1, {})
    name = "snapshots/1/0-1"

    def meanwhile() -> None:
        publish(catalog, store, key(4))
        with catalog.transaction() as conn:
            release(conn, 1, [name])
        assert tombstone(catalog, T, name)

    store.before_list = meanwhile
    audit = look(catalog, store)
    assert (audit.orphans, audit.faults) == (0, [])


def test_an_audit_that_does_not_look_again_would_cry_wolf(
    catalog: Catalog, store: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the second look the audit reports what is published or collected meanwhile."""

    def at_once(_catalog: Catalog, _store: Folder, suspects: dict[str, int]) -> Iterator[Fault]:
        for name, size in suspects.items():
            yield Fault(object_key=name, bytes=size, found_bytes=None)

    monkeypatch.setattr(auditing, "_confirmed", at_once)
    with pytest.raises(AssertionError):
        test_what_is_published_or_collected_meanwhile_is_no_fault(catalog, store)
