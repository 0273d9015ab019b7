"""What is found in stores that keep what TiStream rests on, and in those that do not."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tistream.clock import SystemClock
from tistream.diagnostics.findings import Finding, Severity
from tistream.errors import ObjectConflict, StoreRefused
from tistream.objectstore.checks import check_store
from tistream.objectstore.local import LocalStore
from tistream.objectstore.memory import MemoryStore
from tistream.objectstore.protocol import ObjectInfo, ObjectStore

ALL = ["put", "create if absent", "one winner", "read after write", "range", "list", "store clock", "delete"]


class LastPutWins(MemoryStore):
    """A server that ignores If-None-Match."""

    def __init__(self) -> None:
        super().__init__()
        self._one_by_one = threading.Lock()

    def put(self, key: str, data: bytes | memoryview) -> None:
        with self._one_by_one:
            self.delete(key)
            super().put(key, data)


class LooksFirst(LastPutWins):
    """A server that looks and then writes: puts one after the other are told apart, puts at once are not."""

    def put(self, key: str, data: bytes | memoryview) -> None:
        if key.endswith("raced"):
            super().put(key, data)
        else:
            MemoryStore.put(self, key, data)


class LateListing(MemoryStore):
    """A server whose listings lag."""

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectInfo]:
        return iter([*super().list(prefix, after)][:-1])


class IgnoresRanges(MemoryStore):
    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self.get(key)


class Undeletable(MemoryStore):
    def delete(self, key: str) -> None:
        raise StoreRefused("the store refused: AccessDenied", key=key, determinate=True)


class ReadOnly(MemoryStore):
    def put(self, key: str, data: bytes | memoryview) -> None:
        raise StoreRefused("the store refused: AccessDenied", key=key, determinate=True)


class Skewed(SystemClock):
    def unix_ms(self) -> int:
        return super().unix_ms() - 90_000


def failed(findings: list[Finding]) -> list[str]:
    return [f.name for f in findings if f.verdict is Severity.FAIL]


@pytest.mark.parametrize("make", [lambda _: MemoryStore(), LocalStore], ids=["memory", "folder"])
def test_a_store_that_is_well_and_left_as_it_was(make: Callable[[Path], ObjectStore], tmp_path: Path) -> None:
    store = make(tmp_path)
    store.put("kept", b"x")
    findings = check_store(store, SystemClock(), "a1")
    assert [(f.name, f.verdict) for f in findings] == [(name, Severity.OK) for name in ALL], findings
    assert [info.key for info in store.list("")] == ["kept"]
    assert failed(check_store(store, SystemClock(), "a1")) == [], "the same name again"


@pytest.mark.parametrize(
    ("store", "wrong", "words"),
    [
        (LastPutWins(), ["create if absent", "one winner"], "ignores If-None-Match"),
        (LooksFirst(), ["one winner"], "were accepted"),
        (LateListing(), ["list"], "does not show"),
        (IgnoresRanges(), ["range"], "not the requested bytes"),
        (Undeletable(), ["delete"], "AccessDenied"),
        (ReadOnly(), ["put"], "AccessDenied"),
    ],
    ids=lambda v: type(v).__name__ if isinstance(v, MemoryStore) else "",
)
def test_a_store_that_is_not_for_tistream_is_refused(store: MemoryStore, wrong: list[str], words: str) -> None:
    findings = check_store(store, SystemClock(), "a1")
    assert failed(findings) == wrong
    assert words in next(f.words for f in findings if f.verdict is Severity.FAIL)


def test_clocks_that_differ() -> None:
    clock = {f.name: f for f in check_store(MemoryStore(), Skewed(), "a1")}["store clock"]
    assert clock.verdict is Severity.FAIL
    assert 88_000 < clock.facts["offset_ms"] <= 90_000  # type: ignore[operator]


def test_what_a_check_left_behind_is_removed_when_a_later_one_breaks() -> None:
    class Breaks(MemoryStore):
        def size(self, key: str) -> int:
            if key.endswith("read") and self.unbroken:
                raise ObjectConflict(key=key)
            return super().size(key)

        unbroken = True

    store = Breaks()
    assert failed(check_store(store, SystemClock(), "a1"))[0] == "read after write"
    assert [*store.list("")] == []
