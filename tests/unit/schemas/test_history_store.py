"""Chains of saved histories, by one server and by several at once."""

from __future__ import annotations

import functools

import pytest

from schemas.ddl import Job
from schemas.history import History
from schemas.registry import history_store as store_module
from schemas.registry.history_store import HistoryStore
from schemas.saved import increment_of, open_object
from schemas.snapshot import PushedSchema
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.schema_versions import latest_schema_version
from tistream.catalog.tenancy.tenants import register_tenant
from tistream.errors import CorruptObject
from tistream.ids import Tenant
from tistream.objectstore.memory import MemoryStore

TENANT = Tenant(7, 1)


@pytest.fixture
def catalog(catalog: Catalog) -> Catalog:
    register_tenant(catalog, TENANT)
    return catalog


def grow(history: History, jobs: list[Job], last: int) -> History:
    """A copy with the jobs up to a place."""
    grown = history.copy()
    for job in jobs[:last]:
        grown.apply(job)
    grown.advance(jobs[last - 1].commit_ts)
    return grown


@pytest.fixture
def start(pushed: PushedSchema) -> History:
    return History(pushed.snapshot, pushed.job_table)


@pytest.fixture
def increments_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_INCREMENTS_SHARE_MAX", 1e9)


def newest(histories: HistoryStore) -> History:
    history = histories.newest(TENANT)
    assert history is not None
    return history


def sizes(store: MemoryStore) -> list[int]:
    return [info.size for info in store.list("schemas/")]


@pytest.mark.usefixtures("increments_only")
def test_a_chain_grows_by_changes_and_opens_completely(catalog: Catalog, start: History, jobs: list[Job]) -> None:
    store = MemoryStore()
    histories, history = HistoryStore(catalog, store), start
    assert histories.newest(TENANT) is None
    histories.save(TENANT, history)
    for last in (100, 104, 400, 800):
        history = grow(history, jobs, last)
        histories.save(TENANT, history)
        histories.save(TENANT, history)
        assert newest(histories).dump() == history.dump()
    base, first, second, third, _ = sizes(store)
    assert second < first < third
    assert second < base


def test_nothing_is_saved_without_news(catalog: Catalog, start: History, jobs: list[Job]) -> None:
    store = MemoryStore()
    histories, history = HistoryStore(catalog, store), grow(start, jobs, 200)
    histories.save(TENANT, history)
    later = history.copy()
    later.advance(history.resolved_ts + 1000)
    histories.save(TENANT, later, changed_only=True)
    assert len(sizes(store)) == 1
    histories.save(TENANT, later)
    assert len(sizes(store)) == 2
    assert newest(histories).resolved_ts == later.resolved_ts


def test_a_new_base_is_written_when_the_increments_have_grown(
    catalog: Catalog, start: History, jobs: list[Job]
) -> None:
    store = MemoryStore()
    histories, history = HistoryStore(catalog, store), start
    histories.save(TENANT, history)
    kinds = []
    for last in range(50, len(jobs), 50):
        history = grow(history, jobs, last)
        histories.save(TENANT, history)
        row = latest_schema_version(catalog, TENANT)
        assert row is not None
        opening = open_object(row[1], functools.partial(store.get_range, row[1]))
        kinds.append(increment_of(opening) is not None)
        assert newest(histories).dump() == history.dump()
    assert {True, False} == set(kinds)


def test_a_history_that_was_pruned_beyond_what_is_saved_becomes_a_base(
    catalog: Catalog, start: History, jobs: list[Job]
) -> None:
    histories = HistoryStore(catalog, MemoryStore())
    histories.save(TENANT, start)
    pruned = grow(start, jobs, 400).pruned(jobs[300].commit_ts)
    histories.save(TENANT, pruned)
    assert newest(histories).start_ts == jobs[300].commit_ts
    assert newest(histories).dump() == pruned.dump()


@pytest.mark.usefixtures("increments_only")
def test_servers_that_saw_different_chains_do_not_break_each_other(
    catalog: Catalog, start: History, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B looks up the newest row, A saves twice, then B writes under the key that A has taken."""
    store = MemoryStore()
    a, b = HistoryStore(catalog, store), HistoryStore(catalog, store)
    a.save(TENANT, start)
    seen_by_b = latest_schema_version(catalog, TENANT)
    middle, end = grow(start, jobs, 300), grow(start, jobs, 600)
    a.save(TENANT, middle)
    a.save(TENANT, end)
    before = sizes(store)
    with monkeypatch.context() as patch:
        patch.setattr(store_module, "latest_schema_version", lambda *_: seen_by_b)
        b.save(TENANT, end)  # other bytes for a key that is taken
        assert sizes(store) == before
        b.save(TENANT, grow(start, jobs, 500))  # a key below the newest
    assert newest(b).dump() == end.dump()


@pytest.mark.usefixtures("increments_only")
def test_a_chain_with_a_missing_link_is_refused(catalog: Catalog, start: History, jobs: list[Job]) -> None:
    store = MemoryStore()
    histories = HistoryStore(catalog, store)
    histories.save(TENANT, start)
    for last in (100, 200, 300):
        histories.save(TENANT, grow(start, jobs, last))
    keys = [info.key for info in store.list("schemas/")]
    data = store.get(keys[2])
    store.delete(keys[1])
    store.put(keys[1], data)  # the second increment in the place of the first
    with pytest.raises(CorruptObject, match="gap") as caught:
        histories.newest(TENANT)
    assert caught.value.facts["object_key"] == keys[1]
