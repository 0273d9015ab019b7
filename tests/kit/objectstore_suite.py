"""What every object store must do, as a suite: subclass it and give it an empty store.

    class TestMyStore(ObjectStoreSuite):
        @pytest.fixture
        def store(self) -> ObjectStore: ...

A store that has two winners for one key, shows half an object, or forgets that a range ended early is not one that
TiStream can be built on.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pytest

from tistream.errors import CorruptObject, InvalidInput, ObjectConflict, ObjectNotFound, TiStreamError
from tistream.objectstore import keys
from tistream.objectstore.protocol import ObjectStore

KEY = "data_change_buffer/cluster-7/tenant-0/store-1/000001/file-000000000001.seg"
WRITERS = 32


class ObjectStoreSuite:
    """Needs a fixture `store`: an empty store that nobody else uses."""

    many_keys = 60  #: how many objects a long listing has; more than a page where there are pages

    @pytest.fixture
    @abstractmethod
    def store(self) -> ObjectStore:
        """An empty store."""

    # put and get

    @pytest.mark.parametrize("size", [0, 1, 9_000_000], ids=["empty", "one byte", "more than one part"])
    def test_what_was_put_is_got(self, store: ObjectStore, size: int) -> None:
        data = bytes(range(256)) * (size // 256 + 1)
        store.put(KEY, memoryview(data)[:size])
        assert store.get(KEY) == data[:size]
        assert store.size(KEY) == size

    def test_a_view_of_an_arrow_buffer_is_put_like_bytes(self, store: ObjectStore) -> None:
        view = memoryview(pa.py_buffer(b"\x80rows"))
        assert view.format == "b"
        for _ in range(2):  # the second finds the object there and compares
            store.put(KEY, view)
        assert store.get(KEY) == b"\x80rows"

    def test_an_object_above_the_limit_is_refused(self, store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
        store.put(KEY, b"x" * 101)
        monkeypatch.setattr(keys, "FILE_BYTES_MAX", 100)
        with pytest.raises(CorruptObject, match="too large") as caught:
            store.get(KEY)
        assert (caught.value.facts["object"], caught.value.facts["size"]) == (KEY, 101)
        assert store.get_range(KEY, 1, 5) == b"xxxxx"

    def test_the_same_write_again_is_fine(self, store: ObjectStore) -> None:
        store.put(KEY, b"write 1")
        store.put(KEY, b"write 1")
        store.put(KEY, memoryview(b"write 1"))
        assert store.get(KEY) == b"write 1"

    @pytest.mark.parametrize("other", [b"write 2", b"write 1 and more", b"write", b""])
    def test_another_write_is_refused(self, store: ObjectStore, other: bytes) -> None:
        store.put(KEY, b"write 1")
        with pytest.raises(ObjectConflict) as caught:
            store.put(KEY, other)
        assert caught.value.facts["key"] == KEY
        assert store.get(KEY) == b"write 1"

    def test_of_concurrent_writers_one_wins(self, store: ObjectStore) -> None:
        for n in range(3):
            key = f"committed/cluster-7/tenant-0/sorter-1-000001/{n:012d}.seg"
            won = race_for(store, key, WRITERS)
            assert won.count(True) == 1
            assert store.get(key) == b"writer %d" % won.index(True)

    def test_concurrent_tries_of_one_write_all_succeed(self, store: ObjectStore) -> None:
        assert at_once(8, lambda _: wins(store, KEY, b"the same")) == [True] * 8

    def test_a_reader_never_sees_part_of_an_object(self, store: ObjectStore) -> None:
        data = b"0123456789abcdef" * 65_536
        keys = [f"snapshots/{n:03d}" for n in range(12)]
        done = threading.Event()

        def read_on(_: int) -> int:
            seen = 0
            while not done.is_set() or seen == 0:
                for key in keys:
                    seen += whole_or_nothing(store, key, data)
            return seen

        def write() -> None:
            for key in keys:
                store.put(key, data)

        with ThreadPoolExecutor(3) as pool:
            readers = [pool.submit(read_on, i) for i in range(2)]
            pool.submit(write).result()
            done.set()
            assert all(reader.result() for reader in readers)

    # ranges

    @pytest.mark.parametrize(("offset", "length"), [(0, 10), (0, 1), (9, 1), (3, 4)])
    def test_a_range_is_got(self, store: ObjectStore, offset: int, length: int) -> None:
        store.put(KEY, b"0123456789")
        assert store.get_range(KEY, offset, length) == b"0123456789"[offset : offset + length]

    @pytest.mark.parametrize(("offset", "length"), [(0, 11), (9, 2), (10, 1), (500, 3)])
    def test_a_range_behind_the_end_is_corrupt(self, store: ObjectStore, offset: int, length: int) -> None:
        store.put(KEY, b"0123456789")
        with pytest.raises(CorruptObject) as caught:
            store.get_range(KEY, offset, length)
        assert caught.value.facts == {"key": KEY, "offset": offset, "length": length, "size": 10}

    @pytest.mark.parametrize(("offset", "length"), [(-1, 2), (0, 0), (3, -1)])
    def test_what_is_no_range_is_refused(self, store: ObjectStore, offset: int, length: int) -> None:
        store.put(KEY, b"0123456789")
        with pytest.raises(InvalidInput):
            store.get_range(KEY, offset, length)

    # what is not there

    @pytest.mark.parametrize(
        "ask",
        [lambda s: s.get(KEY), lambda s: s.get_range(KEY, 0, 1), lambda s: s.size(KEY)],
        ids=["get", "get_range", "size"],
    )
    def test_a_missing_object_is_named(self, store: ObjectStore, ask: Callable[[ObjectStore], object]) -> None:
        with pytest.raises(ObjectNotFound, match=KEY) as caught:
            ask(store)
        assert caught.value.facts["key"] == KEY

    def test_deleting_twice_is_fine(self, store: ObjectStore) -> None:
        store.delete(KEY)
        store.put(KEY, b"x")
        store.delete(KEY)
        store.delete(KEY)
        with pytest.raises(ObjectNotFound):
            store.get(KEY)
        assert list(store.list("")) == []

    def test_a_folder_is_not_an_object(self, store: ObjectStore) -> None:
        store.put("folder/a", b"x")
        for ask in (store.get, store.size, lambda key: store.get_range(key, 0, 1)):
            with pytest.raises(ObjectNotFound):
                ask("folder")
        with pytest.raises(ObjectNotFound):
            store.get("folder/a/b")
        store.delete("folder")
        assert store.get("folder/a") == b"x"

    # listing

    def test_a_listing_is_in_key_order(self, store: ObjectStore) -> None:
        keys = ["a-b/1", "a/1", "a/2", "a/b/c", "a/b.c", "aa", "A/z", "a/10", "b", "a.b/c"]
        for key in keys:
            store.put(key, key.encode())
        objects = list(store.list(""))
        assert [info.key for info in objects] == sorted(keys)
        assert [info.size for info in objects] == [len(key) for key in sorted(keys)]

    @pytest.mark.parametrize(
        ("prefix", "after", "expected"),
        [
            ("a/", "", ["a/1", "a/10", "a/2", "a/b/c"]),
            ("a", "", ["a-b/1", "a/1", "a/10", "a/2", "a/b/c", "aa"]),
            ("a/1", "", ["a/1", "a/10"]),
            ("a/b", "", ["a/b/c"]),
            ("a/b/", "", ["a/b/c"]),
            ("a/", "a/10", ["a/2", "a/b/c"]),
            ("a/", "a/11", ["a/2", "a/b/c"]),
            ("a/", "a/b", ["a/b/c"]),
            ("a/", "a/b/c", []),
            ("", "a/2", ["a/b/c", "aa", "b"]),
            ("a/1", "a/1", ["a/10"]),
            ("x", "", []),
            ("a/x/", "", []),
            ("b/", "", []),
        ],
    )
    def test_a_listing_takes_prefix_and_after(
        self, store: ObjectStore, prefix: str, after: str, expected: list[str]
    ) -> None:
        for key in ("a-b/1", "a/1", "a/10", "a/2", "a/b/c", "aa", "b"):
            store.put(key, b"x")
        assert [info.key for info in store.list(prefix, after)] == expected

    def test_a_long_listing_is_whole(self, store: ObjectStore) -> None:
        keys = [f"many/file-{n:012d}.seg" for n in range(1, self.many_keys + 1)]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda key: store.put(key, b"x"), reversed(keys)))
        assert [info.key for info in store.list("many/")] == keys
        assert [info.key for info in store.list("many/", keys[2])] == keys[3:]

    def test_the_age_of_an_object_is_known(self, store: ObjectStore) -> None:
        store.put(KEY, b"x")
        (info,) = store.list("")
        assert abs(info.modified_ms - time.time() * 1000) < 120_000

    # keys

    @pytest.mark.parametrize(
        "key",
        ["", "/a", "a/", "a//b", "..", "../a", "a/../b", "a/..", "./a", ".tmp/a", "a b", "a\nb", "a?b", "ä", "a" * 513],
    )
    def test_what_is_no_key_is_refused(self, store: ObjectStore, key: str) -> None:
        asks: list[Callable[[], object]] = [
            lambda: store.put(key, b"x"),
            lambda: store.get(key),
            lambda: store.get_range(key, 0, 1),
            lambda: store.size(key),
            lambda: store.delete(key),
        ]
        for ask in asks:
            with pytest.raises(InvalidInput):
                ask()
        assert list(store.list("")) == []

    @pytest.mark.parametrize("prefix", ["/", "../", "a//", "a/../"])
    def test_what_is_no_prefix_is_refused(self, store: ObjectStore, prefix: str) -> None:
        with pytest.raises(InvalidInput):
            list(store.list(prefix))


def at_once(count: int, act: Callable[[int], bool]) -> list[bool]:
    """Call `act(0..count-1)` from as many threads at once."""
    barrier = threading.Barrier(count)

    def one(i: int) -> bool:
        barrier.wait(60)
        return act(i)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(one, range(count)))


def race_for(store: ObjectStore, key: str, writers: int) -> list[bool]:
    """Let as many writers put different bytes under one key at once."""
    return at_once(writers, lambda i: wins(store, key, b"writer %d" % i))


def wins(store: ObjectStore, key: str, data: bytes) -> bool:
    """Put, and whether the object is ours."""
    try:
        store.put(key, data)
    except ObjectConflict:
        return False
    return True


def whole_or_nothing(store: ObjectStore, key: str, data: bytes) -> int:
    """1 when the object is there, whole; 0 when it is not there yet."""
    try:
        tail = store.get_range(key, len(data) - 16, 16)
        assert tail == data[-16:]
        assert store.get(key) == data
        assert store.size(key) == len(data)
    except ObjectNotFound:
        return 0
    except TiStreamError as e:
        raise AssertionError(f"a reader saw part of {key}: {e}") from e
    return 1
