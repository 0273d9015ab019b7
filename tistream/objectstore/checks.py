"""Checks an object store: does it keep what TiStream relies on.

    put -> create if absent -> one winner -> read, range, list, clock -> delete (of the objects put here)

A store that accepts a second put of a key, one after the other or at once, is refused: two writers would overwrite each
other's files, and nothing else in the service would notice. The objects lie below `doctor/{name}/` and are removed at
the end, also when a check fails.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tistream.clock import Clock
from tistream.diagnostics.findings import Checklist, Finding, clock_skew, fail, least_offset_ms, ok, warn
from tistream.errors import ObjectConflict, ObjectNotFound, TiStreamError
from tistream.objectstore.layout import examined_prefix
from tistream.objectstore.protocol import ObjectStore

_FIRST, _SECOND = b"the first put of this key", b"another put of this key, later"
_WRITERS = 8  # that put one key at once
_RESOLUTION_MS = 1_000  # of the times that a store keeps


def check_store(store: ObjectStore, clock: Clock, name: str) -> list[Finding]:
    """All checks of a store that can be reached. `name`: a fresh name of lower-case letters and digits."""
    checks, checklist = _Store(store, clock, examined_prefix(name)), Checklist()
    try:
        if checklist.check("put", checks.put):
            checklist.check("create if absent", checks.create_if_absent)
            checklist.check("one winner", checks.one_winner)
            checklist.check("read after write", checks.read)
            checklist.check("range", checks.range)
            checklist.check("list", checks.list)
            checklist.check("store clock", checks.clock)
    finally:
        checklist.check("delete", checks.delete)
    return checklist.findings


class _Store:
    """The checks, each of which needs those before it."""

    def __init__(self, store: ObjectStore, clock: Clock, folder: str) -> None:
        self._store, self._clock, self._folder = store, clock, folder
        self._one, self._raced, self._read = f"{folder}one", f"{folder}raced", f"{folder}read"
        self._put_between = (0, 0)  # Unix milliseconds of this machine

    def put(self) -> Finding:
        before = self._clock.unix_ms()
        self._store.put(self._read, _FIRST)
        self._put_between = (before, self._clock.unix_ms())
        return ok("an object can be put")

    def create_if_absent(self) -> Finding:
        for _ in range(2):  # the same bytes are an earlier try
            self._store.put(self._one, _FIRST)
        if _created(self._store, self._one, _SECOND):
            words = "a second put of a key was accepted: the store ignores If-None-Match (expected 412)"
            return fail(f"{words}; it cannot be used")
        return ok("a second put of a key is refused")

    def one_winner(self) -> Finding:
        contents = [b"writer %d" % n for n in range(_WRITERS)]
        with ThreadPoolExecutor(_WRITERS) as writers:
            created = list(writers.map(lambda data: _created(self._store, self._raced, data), contents))
        winners = [data for data, is_mine in zip(contents, created, strict=True) if is_mine]
        facts = {"writers": _WRITERS, "winners": len(winners)}
        if len(winners) != 1:
            return fail(f"of {_WRITERS} concurrent puts of one key {len(winners)} were accepted", **facts)
        if self._store.get(self._raced) != winners[0]:
            return fail("of several concurrent puts of one key another one stayed than the store accepted", **facts)
        return ok(f"of {_WRITERS} concurrent puts of one key one is accepted", **facts)

    def read(self) -> Finding:
        if self._store.get(self._read) != _FIRST or self._store.size(self._read) != len(_FIRST):
            return fail("an object differs from what was just put")
        return ok("an object can be read as soon as it is put")

    def range(self) -> Finding:
        if self._store.get_range(self._read, 4, 5) != _FIRST[4:9]:
            return fail("a range of an object is not the requested bytes")
        return ok("a range of an object can be read")

    def list(self) -> Finding:
        keys = [info.key for info in self._store.list(self._folder)]
        if keys != [self._one, self._raced, self._read]:
            return fail(f"a listing does not show what was just put, in order: {keys}")
        after = [info.key for info in self._store.list(self._folder, after=self._one)]
        if after != [self._raced, self._read]:
            return fail(f"a listing does not begin after the requested key: {after}")
        return ok("what was just put is listed, in order")

    def clock(self) -> Finding:
        modified = next((info.modified_ms for info in self._store.list(self._folder) if info.key == self._read), None)
        if modified is None:
            return warn("unknown: what was just put is not listed")
        return clock_skew("the store's", least_offset_ms(modified, modified + _RESOLUTION_MS, *self._put_between))

    def delete(self) -> Finding:
        keys = (self._one, self._raced, self._read)
        try:
            for key in keys:
                self._store.delete(key)
        except TiStreamError as e:
            return fail(f"{self._folder} cannot be removed, so garbage collection would fail: {e}")
        left = [key for key in keys if self._is_there(key)]
        if left:
            return fail(f"deleted objects still exist: {left}")
        return ok("objects can be deleted; nothing was left behind")

    def _is_there(self, key: str) -> bool:
        try:
            self._store.size(key)
        except ObjectNotFound:
            return False
        return True


def _created(store: ObjectStore, key: str, data: bytes) -> bool:
    try:
        store.put(key, data)
    except ObjectConflict:
        return False
    return True
