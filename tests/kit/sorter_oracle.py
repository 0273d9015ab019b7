"""A sorter as one would write it on a whiteboard: dicts, one row at a time, nothing shared with the product's code.

It states the rules of the watermark map and of the matching in the plainest form and serves as the reference for the
columnar cores: given the same files in the same order, both must write the same rows at the same watermarks, and find
the same broken promises. It knows nothing of snapshots, bytes or speed. Where several prewrites of one (key, start_ts)
disagree it asks the same questions as the product, in its own words.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

PUT, DELETE = 1, 2
P, C, R, D = 1, 2, 3, 4  # prewrite, commit, rollback, committed

Content = tuple[int, bytes | None, bytes | None]  # op, value, old value


class OracleBroken(Exception):
    """The upstream broke its promise."""


class OracleContradicted(Exception):
    """A subscription sent what it had promised not to send any more; nothing was taken."""

    def __init__(self, good_ts: int, rows: int) -> None:
        super().__init__(good_ts, rows)
        self.good_ts, self.rows = good_ts, rows


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the feed, with the subscription that sent it."""

    kind: int
    key: bytes
    start_ts: int
    commit_ts: int = 0
    op: int = PUT
    value: bytes | None = None
    old_value: bytes | None = None
    generation: int = 0
    subscription: int = 0  #: number of the region row in the same file


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A watermark row."""

    region_id: int
    start: bytes
    end: bytes
    checkpoint_ts: int
    resolved_ts: int
    version: int = 1
    open_ts: int = 1
    ready_ts: int = 2


@dataclass
class Held:
    """A prewrite that is not decided."""

    row: Row
    cut_ts: int
    subscription: tuple[int, ...]
    open_ts: int
    ready_ts: int


@dataclass
class Waiting:
    """A commit that is not decided."""

    start_ts: int
    op: int
    value: bytes | None


@dataclass(frozen=True, kw_only=True, order=True)
class Served:
    """A row as it is written out."""

    commit_ts: int
    start_ts: int
    key: bytes
    op: int
    value: bytes | None
    old_value: bytes | None


@dataclass
class OracleSorter:
    """One task over [start, end)."""

    start: bytes
    end: bytes
    start_ts: int
    durable_ts: int = field(init=False)

    def __post_init__(self) -> None:
        self.durable_ts = self.start_ts
        self.bounds = [self.start]
        self.w = [self.start_ts]
        self.covered = [False]
        self.marks: list[Mark] = []
        self.held: dict[tuple[bytes, int], list[Held]] = {}
        self.waiting: dict[tuple[bytes, int], Waiting] = {}
        self.ready: dict[tuple[bytes, int], Served] = {}
        self.undecided: set[tuple[bytes, int]] = set()
        self.promised: dict[tuple[int, ...], int] = {}
        self.log: dict[tuple[bytes, int], Served] = {}

    def file(self, store: int, incarnation: int, cut_ts: int, rows: Sequence[Row], marks: Sequence[Mark]) -> None:
        """Take one file."""
        subscriptions = [(store, incarnation, m.region_id, m.version, m.checkpoint_ts, m.open_ts) for m in marks]
        late = [r.commit_ts for r in rows if self._contradicts(r, self.promised.get(subscriptions[r.subscription], 0))]
        if late:
            raise OracleContradicted(min(late) - 1, len(late))
        for row in rows:
            if row.key < self.start or (self.end and row.key >= self.end):
                continue
            mark = marks[row.subscription]
            self._row(row, Held(row, cut_ts, subscriptions[row.subscription], mark.open_ts, mark.ready_ts))
        for group in self.held.values():
            for h in group:
                for mark, subscription in zip(marks, subscriptions, strict=True):
                    if h.subscription == subscription and h.ready_ts == 0:
                        h.ready_ts = mark.ready_ts
        for mark, subscription in zip(marks, subscriptions, strict=True):
            if mark.ready_ts:
                self.promised[subscription] = max(self.promised.get(subscription, 0), mark.resolved_ts)
        self.marks += [m for m in marks if m.ready_ts and m.resolved_ts]
        while any(self._lift(m) for m in self.marks):
            pass
        self._decide()

    def watermark(self) -> int | None:
        """The lowest slice, below any commit that is undecided."""
        if not all(self.covered):
            return None
        return min([*self.w, *(commit_ts - 1 for _, commit_ts in self.undecided)])

    def flush(self) -> list[Served]:
        """What may be written now, in order; it is written."""
        w = self.watermark()
        if w is None or w <= self.durable_ts:
            return []
        out = sorted(row for row in self.ready.values() if row.commit_ts <= w)
        self.log |= {k: row for k, row in self.ready.items() if row.commit_ts <= w}
        self.ready = {k: row for k, row in self.ready.items() if row.commit_ts > w}
        self.durable_ts = w
        return out

    def w_of(self, key: bytes) -> int:
        return self.w[bisect_right(self.bounds, key) - 1]

    def slices(self) -> Iterator[tuple[bytes, int, bool]]:
        """(start, W, whether covered) of each part of the range where these are the same."""
        before = None
        for start, w, covered in zip(self.bounds, self.w, self.covered, strict=True):
            if (w, covered) != before:
                yield start, w, covered
            before = w, covered

    def _contradicts(self, r: Row, promised: int) -> bool:
        """Whether the row is an outcome that its subscription may not send any more, and no repeated one."""
        inside = r.key >= self.start and (not self.end or r.key < self.end)
        if not inside or r.kind not in (C, D) or r.commit_ts > promised:
            return False
        version = (r.key, r.commit_ts)
        waits, earlier = self.waiting.get(version), self.ready.get(version) or self.log.get(version)
        if waits is not None:
            return waits.start_ts != r.start_ts or (waits.op != r.op and 0 not in (waits.op, r.op))
        if earlier is None or earlier.start_ts != r.start_ts:
            return True
        if r.kind == D:
            return _content(r) != (earlier.op, earlier.value, earlier.old_value)
        return r.op not in (0, earlier.op) or (bool(r.value) and r.value != earlier.value)

    def _row(self, r: Row, h: Held) -> None:
        txn, version = (r.key, r.start_ts), (r.key, r.commit_ts)
        if r.kind == P:
            self._hold(txn, h)
        elif r.kind == R:
            if not any(k == r.key and c.start_ts == r.start_ts for (k, _), c in self.waiting.items()):
                self.held.pop(txn, None)
        elif r.commit_ts <= self.durable_ts or version in self.ready:
            self.held.pop(txn, None)
        elif r.kind == D:
            if r.commit_ts <= self.w_of(r.key) and version not in self.waiting:
                raise OracleBroken(f"{r}")
            value = None if r.op == DELETE else r.value or b""
            self.ready[version] = Served(
                commit_ts=r.commit_ts, start_ts=r.start_ts, key=r.key, op=r.op, value=value, old_value=r.old_value
            )
            self._done(txn, version)
        elif version in self.waiting:
            self.waiting[version].value = self.waiting[version].value or r.value
        else:
            if r.commit_ts <= self.w_of(r.key) and txn not in self.held:
                raise OracleBroken(f"{r}")
            self.waiting[version] = Waiting(r.start_ts, r.op, r.value)

    def _hold(self, txn: tuple[bytes, int], new: Held) -> None:
        """Keep a prewrite beside those of other subscriptions; in its own subscription the later, full, higher one
        replaces."""
        group = self.held.setdefault(txn, [])
        for i, old in enumerate(group):
            if old.subscription == new.subscription:
                better = (not _is_fake(old.row), old.row.generation) <= (not _is_fake(new.row), new.row.generation)
                group[i] = Held(new.row if better else old.row, new.cut_ts, new.subscription, new.open_ts, new.ready_ts)
                return
        group.append(new)

    def _lift(self, m: Mark) -> bool:
        for edge in (m.start, m.end):
            if edge > self.start and (not self.end or edge < self.end) and edge not in self.bounds:
                i = bisect_right(self.bounds, edge)
                self.bounds.insert(i, edge)
                self.w.insert(i, self.w[i - 1])
                self.covered.insert(i, self.covered[i - 1])
        moved = False
        for i, low in enumerate(self.bounds):
            if low < m.start or (m.end and low >= m.end) or m.checkpoint_ts > self.w[i]:
                continue
            if m.resolved_ts > self.w[i] or not self.covered[i]:
                self.w[i], self.covered[i], moved = max(self.w[i], m.resolved_ts), True, True
        return moved

    def _decide(self) -> None:
        for (key, commit_ts), c in list(self.waiting.items()):
            if commit_ts > self.w_of(key):
                continue
            group = self.held.get((key, c.start_ts), [])
            if not group:
                raise OracleBroken(f"commit {key!r}@{commit_ts}: no prewrite")
            content = _winner(group, c)
            if content is None:
                self.undecided.add((key, commit_ts))
                continue
            op, value, old_value = content
            self.ready[key, commit_ts] = Served(
                commit_ts=commit_ts, start_ts=c.start_ts, key=key, op=op, value=value, old_value=old_value
            )
            self._done((key, c.start_ts), (key, commit_ts))
        committing = {(key, c.start_ts) for (key, _), c in self.waiting.items()}
        for txn, group in list(self.held.items()):
            if txn not in committing:
                alive = [h for h in group if self.w_of(txn[0]) <= h.cut_ts]
                self.held[txn] = alive
                if not alive:
                    del self.held[txn]

    def _done(self, txn: tuple[bytes, int], version: tuple[bytes, int]) -> None:
        self.held.pop(txn, None)
        self.waiting.pop(version, None)
        self.undecided.discard(version)


def _is_fake(row: Row) -> bool:
    return row.op == PUT and not row.value


def _content(row: Row) -> Content:
    value = None if row.op == DELETE else row.value or b""
    return row.op, value, row.old_value


def _winner(group: list[Held], c: Waiting) -> Content | None:
    """The content that was committed; None when nobody can say."""
    able = [h for h in group if c.op in (0, h.row.op)]
    if any(not _is_fake(h.row) for h in able):
        able = [h for h in able if not _is_fake(h.row)]
    elif able and c.value:
        contents: set[Content] = {(PUT, c.value, h.row.old_value) for h in able}
        return contents.pop() if len(contents) == 1 else None
    able = [h for h in able if h.row.generation == max(g.row.generation for g in able)]
    contents = {_content(h.row) for h in able}
    if len(contents) == 1:
        return contents.pop()
    for h in able:
        others = [g for g in able if _content(g.row) != _content(h.row)]
        if all(g.ready_ts and h.open_ts > g.ready_ts for g in others):
            return _content(h.row)
    if c.value:
        puts = [h for h in able if h.row.op == PUT]
        contents = {_content(h.row) for h in puts if h.row.value == c.value}
        contents = contents or {(PUT, c.value, h.row.old_value) for h in puts}
        return contents.pop() if len(contents) == 1 else None
    return None
