"""Which changes of a changefeed belong to a lane, and how lanes are cut, isolated and replaced.

    keyspace   a range of user keys, without the ranges that have a lane of their own
    tables     a share of the tables by name, without the tables that have a lane of their own; or one table

Together the lanes of a changefeed have every change once: `covers` checks it for ranges. A lane never grows, so a
checkpoint keeps its meaning; lanes are only replaced, all at once, each from the least checkpoint that it covers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import orjson

from tistream.errors import invariant
from tistream.keyrange import KeyRange

Skipped = tuple[tuple[str, int], ...]
"""(key in hex, commit_ts) of changes that an operator left out: the user key of an entry, the stored key of a row."""


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
    found = orjson.loads(text)
    skipped = tuple((str(item), int(ts)) for item, ts in found.get("skipped", ()))
    if "range" in found:
        without = tuple(_range(part) for part in found.get("without", ()))
        return KeyScope(range=_range(found["range"]), without=without, skipped=skipped)
    names = tuple(found.get("without", ()))
    if "only" in found:
        return TableScope(only=found["only"], without=names, skipped=skipped)
    number, of = found["share"]
    return TableScope(number=number, of=of, without=names, skipped=skipped)


def skip(scope: LaneScope, key: str, commit_ts: int) -> LaneScope:
    """The lane without this change; `key` in hex, see `Skipped`."""
    return replace(scope, skipped=(*scope.skipped, (key, commit_ts)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a lane is, as far as a lane that replaces it must know."""

    scope: LaneScope
    checkpoint_ts: int
    attempted_ts: int


def inherited(new: LaneScope, old: Sequence[Progress]) -> tuple[int, int]:
    """(checkpoint_ts, attempted_ts) of a lane that replaces others: the least checkpoint and the largest attempt of all
    that it takes changes from."""
    found = [lane for lane in old if _overlap(new, lane.scope)]
    invariant(bool(found), "a new lane takes over from another", lane=new.shown)
    return min(lane.checkpoint_ts for lane in found), max(lane.attempted_ts for lane in found)


def covers(ranges: Sequence[KeyRange], whole: KeyRange) -> bool:
    """Whether the ranges have each key of the whole once."""
    at: bytes | None = whole.start
    for part in sorted(ranges, key=lambda part: part.start):
        if at is None or part.start != at:
            return False
        at = part.end or None
    return at == (whole.end or None)


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
