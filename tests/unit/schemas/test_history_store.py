"""Chains of saved histories, by one server and by several at once."""

from __future__ import annotations

import functools

import pytest

from schemas import history_store as store_module
from schemas.ddl import Job
from schemas.history import History
from schemas.history_store import HistoryStore
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


def sizes(store: MemoryStore) -> list[int]:
    return [info.size for info in store.list("schemas/")]


def test_a_chain_grows_by_changes_and_opens_completely(
    catalog: Catalog, pushed: PushedSchema, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_INCREMENTS_SHARE_MAX", 1e9)
    store = MemoryStore()
    kept = HistoryStore(catalog, store)
    assert kept.newest(TENANT) is None
    history = History(pushed.snapshot, pushed.job_table)
    kept.save(TENANT, history)
    for last in (100, 104, 400, 800):
        history = grow(history, jobs, last)
        kept.save(TENANT, history)
        kept.save(TENANT, history)
        found = kept.newest(TENANT)
        assert found is not None
        assert found.dump() == history.dump()
    base, first, second, third, _ = sizes(store)
    assert second < first < third
    assert second < base


def test_nothing_is_saved_without_news(catalog: Catalog, pushed: PushedSchema, jobs: list[Job]) -> None:
    store = MemoryStore()
    kept = HistoryStore(catalog, store)
    history = grow(History(pushed.snapshot, pushed.job_table), jobs, 200)
    kept.save(TENANT, history)
    later = history.copy()
    later.advance(history.resolved_ts + 1000)
    kept.save(TENANT, later, changed_only=True)
    assert len(sizes(store)) == 1
    kept.save(TENANT, later)
    assert len(sizes(store)) == 2
    found = kept.newest(TENANT)
    assert found is not None
    assert found.resolved_ts == later.resolved_ts


def test_a_base_is_written_anew_when_the_increments_have_grown(
    catalog: Catalog, pushed: PushedSchema, jobs: list[Job]
) -> None:
    store = MemoryStore()
    kept = HistoryStore(catalog, store)
    history = History(pushed.snapshot, pushed.job_table)
    kept.save(TENANT, history)
    kinds = []
    for last in range(50, len(jobs), 50):
        history = grow(history, jobs, last)
        kept.save(TENANT, history)
        newest = latest_schema_version(catalog, TENANT)
        assert newest is not None
        opening = open_object(newest[1], functools.partial(store.get_range, newest[1]))
        kinds.append(increment_of(opening) is not None)
        found = kept.newest(TENANT)
        assert found is not None
        assert found.dump() == history.dump()
    assert {True, False} == set(kinds)


def test_a_history_that_was_pruned_beyond_what_is_saved_becomes_a_base(
    catalog: Catalog, pushed: PushedSchema, jobs: list[Job]
) -> None:
    kept = HistoryStore(catalog, MemoryStore())
    history = History(pushed.snapshot, pushed.job_table)
    kept.save(TENANT, history)
    pruned = grow(history, jobs, 400).pruned(jobs[300].commit_ts)
    kept.save(TENANT, pruned)
    found = kept.newest(TENANT)
    assert found is not None
    assert found.start_ts == jobs[300].commit_ts
    assert found.dump() == pruned.dump()


def test_servers_that_saw_different_chains_do_not_break_each_other(
    catalog: Catalog, pushed: PushedSchema, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    """B looks up the newest row, A saves twice, then B writes under the key that A has taken."""
    monkeypatch.setattr(store_module, "_INCREMENTS_SHARE_MAX", 1e9)
    store = MemoryStore()
    a, b = HistoryStore(catalog, store), HistoryStore(catalog, store)
    start = History(pushed.snapshot, pushed.job_table)
    a.save(TENANT, start)
    seen_by_b = latest_schema_version(catalog, TENANT)
    middle, end = grow(start, jobs, 300), grow(start, jobs, 600)
    a.save(TENANT, middle)
    a.save(TENANT, end)
    before = sizes(store)
    monkeypatch.setattr(store_module, "latest_schema_version", lambda *_: seen_by_b)
    b.save(TENANT, end)  # other bytes for a key that is taken
    assert sizes(store) == before
    b.save(TENANT, grow(start, jobs, 500))  # a key below the newest
    monkeypatch.undo()
    found = b.newest(TENANT)
    assert found is not None
    assert found.dump() == end.dump()


def test_a_chain_with_a_missing_link_is_refused(
    catalog: Catalog, pushed: PushedSchema, jobs: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_INCREMENTS_SHARE_MAX", 1e9)
    store = MemoryStore()
    kept = HistoryStore(catalog, store)
    history = History(pushed.snapshot, pushed.job_table)
    kept.save(TENANT, history)
    keys = []
    for last in (100, 200, 300):
        history = grow(history, jobs, last)
        kept.save(TENANT, history)
        keys = [info.key for info in store.list("schemas/")]
    data = store.get(keys[2])
    store.delete(keys[1])
    store.put(keys[1], data)  # the second increment in the place of the first
    with pytest.raises(CorruptObject, match="gap") as caught:
        kept.newest(TENANT)
    assert caught.value.facts["object_key"] == keys[1]
