"""The store that counts: it is a store as those behind it, and its counts are exact."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.objectstore_suite import KEY, ObjectStoreSuite
from tests.kit.request_tally import RequestTally
from tistream.errors import InvalidInput, ObjectConflict, ObjectNotFound, StoreUnavailable
from tistream.objectstore.memory import MemoryStore
from tistream.objectstore.metered import KINDS, LIST_PAGE, OTHER, MeteredStore, kind_of, open_metered
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime import metrics


class TestMeteredStore(ObjectStoreSuite):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return MeteredStore(MemoryStore(), RequestTally())


class Away(MemoryStore):
    def put(self, key: str, data: bytes | memoryview) -> None:
        raise StoreUnavailable(key=key)


def test_every_request_counts_once_by_operation_kind_and_outcome() -> None:
    tally = RequestTally()
    store = MeteredStore(MemoryStore(), tally)
    store.put("committed/a", b"12345")
    store.put("committed/a", b"12345")
    with pytest.raises(ObjectConflict):
        store.put("committed/a", b"other")
    store.get("committed/a")
    store.get_range("committed/a", 1, 2)
    store.size("committed/a")
    for asks in (store.get, store.size):
        with pytest.raises(ObjectNotFound):
            asks("snapshots/b")
    with pytest.raises(InvalidInput):
        store.get("../x")
    store.delete("schemas/c")
    with pytest.raises(StoreUnavailable):
        MeteredStore(Away(), tally).put(KEY, b"")
    assert tally.seen() == {
        ("put", "committed", "ok"): 2,
        ("put", "committed", "conflict"): 1,
        ("get", "committed", "ok"): 1,
        ("get_range", "committed", "ok"): 1,
        ("size", "committed", "ok"): 1,
        ("get", "snapshot", "missing"): 1,
        ("size", "snapshot", "missing"): 1,
        ("get", OTHER, "refused"): 1,
        ("delete", "schema", "ok"): 1,
        ("put", "batch", "failed"): 1,
    }


@pytest.mark.parametrize(
    ("keys", "pages"), [(0, 1), (1, 1), (LIST_PAGE - 1, 1), (LIST_PAGE, 2), (LIST_PAGE + 1, 2), (2 * LIST_PAGE + 5, 3)]
)
def test_a_listing_counts_a_request_for_each_page_that_is_read(keys: int, pages: int) -> None:
    inner, tally = MemoryStore(), RequestTally()
    for n in range(keys):
        inner.put(f"seeds/{n:06d}", b"")
    store = MeteredStore(inner, tally)
    assert [info.key for info in store.list("seeds/")] == [f"seeds/{n:06d}" for n in range(keys)]
    assert tally.seen() == {("list", "seed", "ok"): pages}


def test_a_listing_that_is_not_read_asks_nothing() -> None:
    tally = RequestTally()
    listing = MeteredStore(MemoryStore(), tally).list("seeds/")
    assert tally.seen() == {}
    assert next(listing, None) is None
    assert tally.seen() == {("list", "seed", "ok"): 1}


def test_kinds_are_few_whatever_the_key() -> None:
    assert {kind_of(f"{folder}/x/y") for folder in KINDS} == set(KINDS.values())
    assert kind_of("readyz") == kind_of("x/committed/y") == OTHER


def test_the_process_shows_requests_and_bytes() -> None:
    def value(name: str, **labels: str) -> float:
        return metrics.REGISTRY.get_sample_value(name, labels) or 0.0

    put, get_labels = ({"operation": op, "kind": "compacted"} for op in ("put", "get"))
    before = (
        value("tistream_object_store_requests_total", outcome="ok", **put),
        value("tistream_object_store_bytes_total", **put),
        value("tistream_object_store_bytes_total", **get_labels),
        value("tistream_object_store_seconds_count", operation="put"),
    )
    store = open_metered("memory://")
    store.put("compacted/a", b"x" * 1000)
    store.get("compacted/a")
    after = (
        value("tistream_object_store_requests_total", outcome="ok", **put),
        value("tistream_object_store_bytes_total", **put),
        value("tistream_object_store_bytes_total", **get_labels),
        value("tistream_object_store_seconds_count", operation="put"),
    )
    assert [a - b for a, b in zip(after, before, strict=True)] == [1, 1000, 1000, 1]


def test_only_requests_to_s3_have_a_price(tmp_path: Path) -> None:
    stores = [
        open_metered(url) for url in ("s3://bucket/prefix?region=eu-central-1", f"file://{tmp_path}", "memory://")
    ]
    assert [store.is_s3 for store in stores if isinstance(store, MeteredStore)] == [True, False, False]
