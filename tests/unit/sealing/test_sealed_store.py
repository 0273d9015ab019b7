"""A store that seals is a store, and what it keeps in the bucket is sealed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.kit.objectstore_suite import KEY, ObjectStoreSuite
from tistream.errors import CorruptObject, ObjectConflict, StoreUnavailable
from tistream.ids import Tenant
from tistream.objectstore import keys
from tistream.objectstore.layout import parse, probe_prefix
from tistream.objectstore.local import LocalStore
from tistream.objectstore.memory import MemoryStore
from tistream.objectstore.metered import MeteredStore
from tistream.objectstore.protocol import ObjectStore
from tistream.sealing.core.blocks import TAG_BYTES
from tistream.sealing.core.derive import EpochId
from tistream.sealing.core.head import HEAD_BYTES, is_sealed
from tistream.sealing.store import SealedStore

MINE, PLAIN = Tenant(7, 0), Tenant(7, 1)


class Roots:
    """Two opened roots of one tenant, sealed from the beginning."""

    def __init__(self) -> None:
        self.now: EpochId | None = EpochId(root_no=1, epoch=10)
        self.of = {1: b"1" * 32, 2: b"2" * 32}

    def has_sealed(self, tenant: Tenant) -> bool:
        return tenant == MINE

    def current(self, tenant: Tenant) -> EpochId | None:
        return self.now

    def root(self, tenant: Tenant, root_no: int) -> bytes:
        return self.of[root_no]


class Requests:
    """Counts the requests of a store."""

    def __init__(self) -> None:
        self.made: Counter[str] = Counter()

    def note(self, operation: str, kind: str, outcome: str, size: int, seconds: float) -> None:
        self.made[operation] += 1


class TestSealedStore(ObjectStoreSuite):
    """Over a folder."""

    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return SealedStore(LocalStore(tmp_path), Roots())

    def test_an_object_above_the_limit_is_refused(self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """By the size of the stored object."""
        store.put(KEY, b"x" * 101)
        monkeypatch.setattr(keys, "FILE_BYTES_MAX", 100 + HEAD_BYTES + TAG_BYTES)
        with pytest.raises(CorruptObject, match="too large"):
            store.get(KEY)
        assert store.get_range(KEY, 1, 5) == b"xxxxx"


def test_only_objects_of_sealed_tenants_are_sealed() -> None:
    bucket = MemoryStore()
    store = SealedStore(bucket, Roots())
    places = [
        KEY,
        KEY.replace("tenant-0", "tenant-1"),
        "generations/000001.json",
        f"{probe_prefix(MINE)}x",
        "doctor/a/1",
    ]
    for key in places:
        store.put(key, b"some content")
        assert store.get(key) == b"some content"
    assert [key for key in places if is_sealed(bucket.get(key))] == [KEY]
    assert b"some content" not in bucket.get(KEY)
    assert getattr(parse(places[1]), "tenant", None) == PLAIN


def test_a_write_that_arrived_without_a_reply_is_repeated() -> None:
    """Each try is sealed anew, and the content decides."""

    class NoReply(MemoryStore):
        def put(self, key: str, data: bytes | memoryview) -> None:
            is_first = not list(self.list(key))
            super().put(key, data)
            if is_first:
                raise StoreUnavailable("no reply", key=key, determinate=False)

    bucket = NoReply()
    store = SealedStore(bucket, Roots())
    with pytest.raises(StoreUnavailable):
        store.put(KEY, b"rows")
    first = bucket.get(KEY)
    store.put(KEY, b"rows")
    assert bucket.get(KEY) == first
    with pytest.raises(ObjectConflict):
        store.put(KEY, b"other rows")


def test_a_range_is_one_request_once_the_head_is_known() -> None:
    plain = bytes(range(256)) * 1024
    requests = Requests()
    bucket = MeteredStore(MemoryStore(), requests)
    SealedStore(bucket, Roots()).put(KEY, plain)
    reader = SealedStore(bucket, Roots())  # another process
    requests.made.clear()
    assert [reader.get_range(KEY, at, 7) for at in (0, 65_530, 262_137)] == [
        plain[at : at + 7] for at in (0, 65_530, 262_137)
    ]
    assert reader.size(KEY) == len(plain)
    assert requests.made == {"get_range": 4}


def test_heads_that_are_kept_are_bounded() -> None:
    requests = Requests()
    bucket = MeteredStore(MemoryStore(), requests)
    store = SealedStore(bucket, Roots(), heads_kept=2)
    files = [KEY.replace("0001.seg", f"000{n}.seg") for n in range(1, 4)]
    for key in files:
        store.put(key, key.encode())
    requests.made.clear()
    for key in files[::-1]:
        assert store.get_range(key, 0, 9) == key.encode()[:9]
    assert requests.made == {"get_range": 4}


def test_objects_of_a_tenant_that_was_plain_are_read_as_they_are() -> None:
    bucket = MemoryStore()
    bucket.put(KEY, b"plain " * 100)
    short = KEY.replace("0001.seg", "0002.seg")
    bucket.put(short, b"short")
    store = SealedStore(bucket, Roots())
    assert (store.get(KEY), store.size(KEY), store.get_range(KEY, 6, 5)) == (b"plain " * 100, 600, b"plain")
    assert (store.get(short), store.size(short), store.get_range(short, 1, 2)) == (b"short", 5, b"ho")


def test_what_was_written_under_an_earlier_root_is_read() -> None:
    bucket, roots = MemoryStore(), Roots()
    store = SealedStore(bucket, roots)
    store.put(KEY, b"earlier")
    roots.now = EpochId(root_no=2, epoch=11)
    later = KEY.replace("0001.seg", "0002.seg")
    store.put(later, b"later")
    assert (SealedStore(bucket, roots).get(KEY), store.get(later)) == (b"earlier", b"later")
    roots.now = None
    assert store.get(KEY) == b"earlier"


def test_a_kept_head_does_not_open_another_object() -> None:
    """An object that was put in its place is refused, also by a range."""
    bucket, roots = MemoryStore(), Roots()
    store = SealedStore(bucket, roots)
    store.put(KEY, b"x" * 1000)
    bucket.delete(KEY)
    SealedStore(bucket, roots).put(KEY, b"y" * 1000)
    with pytest.raises(CorruptObject):
        store.get_range(KEY, 0, 10)
