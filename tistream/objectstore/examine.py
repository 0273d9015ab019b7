"""Looks at an object store before a service trusts it: does it keep what TiStream rests on.

    put -> create if absent -> one winner -> read, range, list, clock -> delete (what was put here)

Refused is a store that lets a second put of a key through, one after the other or at once: two writers would then
overwrite each other's files, and nothing else of the service would notice. What was put lies below `doctor/{name}/` and
is removed at the end, also when a check fails.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from tistream.clock import Clock
from tistream.diagnostics.findings import Finding, Look, Verdict, check, skew
from tistream.errors import ObjectConflict, ObjectNotFound, TiStreamError
from tistream.objectstore.layout import examined_prefix
from tistream.objectstore.protocol import ObjectStore

_FIRST, _SECOND = b"the first put of this key", b"another put of this key, later"
_WRITERS = 8  # that put one key at once
_RESOLUTION_MS = 1_000  # of the times that a store keeps


def examine_store(store: ObjectStore, clock: Clock, name: str) -> list[Finding]:
    """All checks of a store that can be reached. `name` is a new one: small letters and digits."""
    looks = _Store(store, clock, examined_prefix(name))
    found = [check("put", looks.put)]
    try:
        if found[0].verdict is not Verdict.FAIL:
            found.append(check("create if absent", looks.create_if_absent))
            found.append(check("one winner", looks.one_winner))
            found.append(check("read after write", looks.read))
            found.append(check("range", looks.range))
            found.append(check("list", looks.list))
            found.append(check("store clock", looks.clock))
    finally:
        found.append(check("delete", looks.delete))
    return found


class _Store:
    """The checks, each of which needs those before it."""

    def __init__(self, store: ObjectStore, clock: Clock, folder: str) -> None:
        self._store, self._clock, self._folder = store, clock, folder
        self._one, self._raced, self._read = f"{folder}one", f"{folder}raced", f"{folder}read"
        self._put_between = (0, 0)  # Unix milliseconds of this machine

    def put(self) -> Look:
        before = self._clock.unix_ms()
        self._store.put(self._read, _FIRST)
        self._put_between = (before, self._clock.unix_ms())
        return Verdict.OK, "an object can be put", {}

    def create_if_absent(self) -> Look:
        for _ in range(2):  # the same bytes are an earlier try
            self._store.put(self._one, _FIRST)
        if _created(self._store, self._one, _SECOND):
            words = "a second put of a key was let through: the store ignores If-None-Match (expected 412)"
            return Verdict.FAIL, f"{words}; it cannot be used", {}
        return Verdict.OK, "a second put of a key is refused", {}

    def one_winner(self) -> Look:
        contents = [b"writer %d" % n for n in range(_WRITERS)]
        with ThreadPoolExecutor(_WRITERS) as writers:
            created = list(writers.map(lambda data: _created(self._store, self._raced, data), contents))
        winners = [data for data, is_mine in zip(contents, created, strict=True) if is_mine]
        facts: dict[str, object] = {"writers": _WRITERS, "winners": len(winners)}
        if len(winners) != 1:
            return Verdict.FAIL, f"of {_WRITERS} puts of one key at once {len(winners)} were let through", facts
        if self._store.get(self._raced) != winners[0]:
            return Verdict.FAIL, "of several puts of one key at once another one stayed than the store said", facts
        return Verdict.OK, f"of {_WRITERS} puts of one key at once one is let through", facts

    def read(self) -> Look:
        if self._store.get(self._read) != _FIRST or self._store.size(self._read) != len(_FIRST):
            return Verdict.FAIL, "an object is not what was put a moment ago", {}
        return Verdict.OK, "an object can be read as soon as it is put", {}

    def range(self) -> Look:
        if self._store.get_range(self._read, 4, 5) != _FIRST[4:9]:
            return Verdict.FAIL, "a part of an object is not the bytes that were asked for", {}
        return Verdict.OK, "a part of an object can be read", {}

    def list(self) -> Look:
        keys = [info.key for info in self._store.list(self._folder)]
        if keys != [self._one, self._raced, self._read]:
            return Verdict.FAIL, f"a listing does not show what was put a moment ago, in order: {keys}", {}
        after = [info.key for info in self._store.list(self._folder, after=self._one)]
        if after != [self._raced, self._read]:
            return Verdict.FAIL, f"a listing does not begin behind the key that was asked for: {after}", {}
        return Verdict.OK, "what was put a moment ago is listed, in order", {}

    def clock(self) -> Look:
        modified = next((info.modified_ms for info in self._store.list(self._folder) if info.key == self._read), None)
        if modified is None:
            return Verdict.WARN, "it cannot be told: what was put is not listed", {}
        first, last = self._put_between
        offset_ms = min(0, modified + _RESOLUTION_MS - first) or max(0, modified - last)
        verdict, words = skew("the store's", offset_ms)
        return verdict, words, {"offset_ms": offset_ms}

    def delete(self) -> Look:
        keys = (self._one, self._raced, self._read)
        try:
            for key in keys:
                self._store.delete(key)
        except TiStreamError as e:
            return Verdict.FAIL, f"{self._folder} cannot be removed, so nothing could be collected: {e}", {}
        left = [key for key in keys if self._is_there(key)]
        if left:
            return Verdict.FAIL, f"what was deleted is there still: {left}", {}
        return Verdict.OK, "objects can be deleted; nothing was left behind", {}

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
