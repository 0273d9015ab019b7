"""Which changes of a changefeed belong to a lane, and how lanes are cut, isolated and replaced.

    keyspace   a range of user keys, without the ranges that have a lane of their own
    tables     a share of the tables by name, without the tables that have a lane of their own; or one table

Together the lanes of a changefeed have every change once: `covers` checks it for ranges. A lane never grows, so a
checkpoint keeps its meaning; lanes are only replaced, all at once, each from the least checkpoint that it covers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from tistream.errors import StateForbids, invariant
from tistream.keyrange import KeyRange

ISOLATED_MAX = 8  #: tables or keys of a lane that have lanes of their own; at the next refusal all of it stops
TEXT_MAX = 60_000  #: of a scope, in the catalog
_ERROR_TEXT_MAX = 4000  #: of each fact of an error; a TEXT column holds 64 KiB of UTF-8
_KEY_MAX = 1000  #: bytes; a longer key is named by its hash

Skipped = tuple[tuple[str, int], ...]
"""(`change_key`, commit_ts) of changes that an operator left out: the user key of an entry, the stored key of a row."""


def change_key(key: bytes) -> str:
    """How errors and decisions name the key of a change: in hex, or by its hash, so that the catalog has place for many
    of any length."""
    return key.hex() if len(key) <= _KEY_MAX else f"sha256:{hashlib.sha256(key).hexdigest()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyScope:
    """A range of user keys."""

    range: KeyRange
    without: tuple[KeyRange, ...] = ()  #: these have lanes of their own
    skipped: Skipped = ()

    def text(self) -> str:
        """As the catalog keeps it."""
        shown: dict[str, object] = {"range": _hex(self.range)}
        if self.without:
            shown["without"] = [_hex(part) for part in self.without]
        return _with_skipped(shown, self.skipped)

    @property
    def shown(self) -> str:
        """For people."""
        return f"keys {self.range}"

    def isolate(self, item: str) -> tuple[KeyScope, KeyScope]:
        """(this lane without a key, a lane of the key). `item`: the key in hex."""
        key = bytes.fromhex(item)
        alone = KeyRange(key, key + b"\0")
        invariant(self.range.covers(alone), "a refused key lies in its lane", key=item, lane=str(self.range))
        return replace(self, without=(*self.without, alone)), KeyScope(range=alone, skipped=self.skipped)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableScope:
    """A share of the tables, or one of them."""

    number: int = 0  #: of the share
    of: int = 1  #: shares
    only: str | None = None  #: `db.table`; then the share means nothing
    without: tuple[str, ...] = ()  #: `db.table`: these have lanes of their own
    skipped: Skipped = ()

    def text(self) -> str:
        """As the catalog keeps it."""
        shown: dict[str, object] = {"share": [self.number, self.of]} if self.only is None else {"only": self.only}
        if self.without:
            shown["without"] = list(self.without)
        return _with_skipped(shown, self.skipped)

    @property
    def shown(self) -> str:
        """For people."""
        return f"tables {self.number + 1} of {self.of}" if self.only is None else f"table {self.only}"

    def isolate(self, item: str) -> tuple[TableScope, TableScope]:
        """(this lane without a table, a lane of the table). `item`: `db.table`."""
        alone = TableScope(number=self.number, of=self.of, only=item, skipped=self.skipped)
        return replace(self, without=(*self.without, item)), alone


LaneScope = KeyScope | TableScope


def parse_scope(text: str) -> LaneScope:
    """The scope that `text` gave."""
    parsed = orjson.loads(text)
    skipped = tuple((str(item), int(ts)) for item, ts in parsed.get("skipped", ()))
    if "range" in parsed:
        without = tuple(_range(part) for part in parsed.get("without", ()))
        return KeyScope(range=_range(parsed["range"]), without=without, skipped=skipped)
    names = tuple(parsed.get("without", ()))
    if "only" in parsed:
        return TableScope(only=parsed["only"], without=names, skipped=skipped)
    number, of = parsed["share"]
    return TableScope(number=number, of=of, without=names, skipped=skipped)


def may_isolate(scope: LaneScope) -> bool:
    """Whether the tables or keys that a lane leaves to others stay within their bounds."""
    return len(scope.without) <= ISOLATED_MAX and len(scope.text()) <= TEXT_MAX


def skip(scope: LaneScope, key: str, commit_ts: int, checkpoint_ts: int) -> LaneScope:
    """The lane without this change, see `Skipped`. What it left out at or below its checkpoint is forgotten where that
    needs the place. StateForbids when it leaves out too much."""
    change = key, commit_ts
    left_out = scope if change in scope.skipped else replace(scope, skipped=(*scope.skipped, change))
    if len(left_out.text()) > TEXT_MAX:
        left_out = replace(left_out, skipped=tuple(each for each in left_out.skipped if each[1] > checkpoint_ts))
    return _bounded(left_out)


def with_skipped(new: LaneScope, old: Sequence[LaneScope], checkpoint_ts: int) -> LaneScope:
    """A lane that replaces others, at `checkpoint_ts`: it leaves out what they did, as far as it reads it again.
    StateForbids when that is too much."""
    left_out = {
        (key, ts)
        for scope in old
        for key, ts in scope.skipped
        if ts > checkpoint_ts and (isinstance(new, TableScope) or ":" in key or bytes.fromhex(key) in new.range)
    }
    every = sorted({*new.skipped, *left_out}, key=lambda change: (change[1], change[0]))
    return _bounded(replace(new, skipped=tuple(every)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a lane is, as far as a lane that replaces it must know."""

    scope: LaneScope
    checkpoint_ts: int
    attempted_ts: int


def inherited(new: LaneScope, old: Sequence[Progress]) -> tuple[int, int]:
    """(checkpoint_ts, attempted_ts) of a lane that replaces others: the least checkpoint and the largest attempt of all
    that it takes changes from."""
    lanes = [lane for lane in old if _overlap(new, lane.scope)]
    invariant(bool(lanes), "a new lane takes over from another", lane=new.shown)
    return min(lane.checkpoint_ts for lane in lanes), max(lane.attempted_ts for lane in lanes)


def error_text(error: dict[str, Any]) -> str:
    """An error of a lane as the catalog keeps it."""
    kept = {
        name: value if not isinstance(value, str) else value[:_ERROR_TEXT_MAX]
        for name, value in error.items()
        if not (name == "item" and value == error.get("key"))  # of a keyspace it is the key
    }
    return orjson.dumps(kept, default=str).decode()


def covers(ranges: Sequence[KeyRange], whole: KeyRange) -> bool:
    """Whether the ranges have each key of the whole once."""
    at: bytes | None = whole.start
    for part in sorted(ranges, key=lambda part: part.start):
        if at is None or part.start != at:
            return False
        at = part.end or None
    return at == (whole.end or None)


def _bounded(scope: LaneScope) -> LaneScope:
    if scope.skipped and len(scope.text()) > TEXT_MAX:
        raise StateForbids(
            f"A lane leaves out {len(scope.skipped)} changes, and has no place for more until its checkpoint has "
            "passed them. A changefeed with a dead-letter place writes all refused changes there by itself."
        )
    return scope


def _overlap(new: LaneScope, old: LaneScope) -> bool:
    if isinstance(new, KeyScope) and isinstance(old, KeyScope):
        return new.range.intersect(old.range) is not None
    return True  # shares are cut by hashes of names: each new one may have tables of each old one


def _hex(part: KeyRange) -> list[str]:
    return [part.start.hex(), part.end.hex()]


def _range(texts: Sequence[str]) -> KeyRange:
    start, end = texts
    return KeyRange(bytes.fromhex(start), bytes.fromhex(end))


def _with_skipped(shown: Mapping[str, object], skipped: Sequence[tuple[str, int]]) -> str:
    every = {**shown, "skipped": [[item, str(ts)] for item, ts in skipped]} if skipped else shown
    return orjson.dumps(every).decode()
