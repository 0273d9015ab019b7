"""The watermark rule in its plainest form: batch files in, the committed log out, with dicts and lists.

This is the reference that the sorter and the pusher are compared with. It keeps everything and optimises nothing.

- W(key) is piecewise constant. A region's row lifts a slice to its resolved_ts only if checkpoint_ts <= W(slice),
  else it waits (a row that begins at or below `durable_ts` needs no rule: nothing restarts here, so durable watermark
  <= W); a slice that was never covered counts as `start_ts` for that test, and as a hole for the result;
- `durable_ts` = the smallest W, once there is no hole; it never falls;
- commits at or below `durable_ts` are duplicates, equal (key, commit_ts) above it must be the same change;
- a commit gets its value from the best prewrite there is when W(key) reaches it; none =
  UpstreamContractViolated; a PUT without a value is never better than one with it;
- where the subscriptions' times do not tell the newer of two prewrites, the COMMIT's own value does; without one the
  commit is `undecided` and holds `durable_ts`, until a new subscription sends the change whole;
- an undecided prewrite dies once W(key) > cut_ts of the file that brought it.
"""

from __future__ import annotations

import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tistream.codec.batch_file import BatchFile, decode_batch_file
from tistream.errors import UpstreamContractViolated
from tistream.keyrange import KeyRange
from tistream.model.change import Op, RowKind
from tistream.objectstore.layout import BatchKey, parse
from tistream.objectstore.protocol import ObjectStore


@dataclass(frozen=True, slots=True)
class Change:
    """A committed change, as the log must have it."""

    start_ts: int
    op: int
    value: bytes | None
    old_value: bytes | None


@dataclass(frozen=True, slots=True)
class _Commit:
    """What a COMMIT row says; its value may be missing."""

    start_ts: int
    op: int
    value: bytes | None


@dataclass(frozen=True, slots=True)
class _Prewrite:
    change: Change
    generation: int
    subscription: tuple[int, int, int, int]  # store, incarnation, open_ts, region id
    ready_ts: int
    order: int
    cut_ts: int


@dataclass(slots=True)
class WatermarkOracle:
    """One task over `range`, fed with the batch files of all stores, in `seq` order within an incarnation."""

    start_ts: int
    range: KeyRange = field(default_factory=KeyRange)
    served: dict[tuple[bytes, int], Change] = field(default_factory=dict)  #: (key, commit_ts) -> change
    duplicates: int = 0  #: commits that came again
    dead: int = 0  #: prewrites dropped as rolled back
    undecided: frozenset[tuple[bytes, int]] = frozenset()  #: (key, commit_ts) that wait for a new subscription
    durable_ts: int = 0
    _bounds: list[bytes] = field(default_factory=lambda: [b""])  # start of each slice
    _w: list[int | None] = field(default_factory=lambda: [None])
    _waiting: list[tuple[KeyRange, int, int]] = field(default_factory=list)
    _prewrites: dict[tuple[bytes, int], list[_Prewrite]] = field(default_factory=dict)
    _pending: dict[tuple[bytes, int], Change | _Commit] = field(default_factory=dict)
    _unmatched: dict[tuple[bytes, int], _Commit] = field(default_factory=dict)  #: those of `_pending`
    _order: int = 0

    def __post_init__(self) -> None:
        self.durable_ts = self.start_ts

    @property
    def watermark(self) -> int | None:
        """The smallest W of the range; None while there is a hole."""
        every = [w for _, w in self._slices(self.range)]
        return None if None in every else min(w for w in every if w is not None)

    def w_at(self, key: bytes) -> int:
        """W of one key; 0 in a hole."""
        return self._w_of(key) or 0

    @property
    def waiting(self) -> int:
        """Commits above the watermark."""
        return len(self._pending)

    def feed(self, file: BatchFile) -> None:
        """Take one file: its rows first, then its watermarks."""
        for region in file.regions.to_pylist():
            for row in file.rows.slice(region["row_offset"], region["row_count"]).to_pylist():
                if row["key"] in self.range:
                    self._row(row, region, file)
        for region in file.regions.to_pylist():
            part = KeyRange(region["start_key"], region["end_key"]).intersect(self.range)
            if part and region["subscription_ready_ts"] and region["resolved_ts"]:
                self._waiting.append((part, region["checkpoint_ts"], region["resolved_ts"]))
        self._advance()

    # -- rows ------------------------------------------------------------------------------------------------------

    def _row(self, row: dict[str, Any], region: dict[str, Any], file: BatchFile) -> None:
        key, start_ts, commit_ts = row["key"], row["start_ts"], row["commit_ts"]
        match row["kind"]:
            case RowKind.PREWRITE:
                self._order += 1
                subscription = (
                    file.key.store_id,
                    file.key.incarnation,
                    region["subscription_open_ts"],
                    region["region_id"],
                )
                prewrite = _Prewrite(
                    Change(start_ts, row["op"], row["value"], row["old_value"]),
                    row["generation"],
                    subscription,
                    region["subscription_ready_ts"],
                    self._order,
                    file.cut_ts,
                )
                self._prewrites.setdefault((key, start_ts), []).append(prewrite)
            case RowKind.COMMIT:
                self._commit(key, commit_ts, _Commit(start_ts, row["op"], row["value"]))
            case RowKind.COMMITTED:
                self._commit(key, commit_ts, Change(start_ts, row["op"], row["value"], row["old_value"]))
            case RowKind.ROLLBACK:
                if start_ts not in self._pending_starts(key):
                    self._prewrites.pop((key, start_ts), None)

    def _commit(self, key: bytes, commit_ts: int, what: Change | _Commit) -> None:
        earlier = self.served.get((key, commit_ts))
        if earlier is not None or commit_ts <= self.durable_ts:
            self.duplicates += 1
            if (
                earlier is not None
                and earlier != what
                and not (isinstance(what, _Commit) and earlier.start_ts == what.start_ts)
            ):
                raise UpstreamContractViolated("a change came again with another value", key=key, commit_ts=commit_ts)
            return
        before = self._pending.get((key, commit_ts))
        if before is None and commit_ts <= (self._w_of(key) or 0):
            raise UpstreamContractViolated(
                "a commit below the watermark", key=key, commit_ts=commit_ts, w=self._w_of(key)
            )
        self.duplicates += before is not None
        if isinstance(before, Change) and isinstance(what, Change) and before != what:
            raise UpstreamContractViolated("one change with two values", key=key, commit_ts=commit_ts)
        if not isinstance(before, Change):
            self._pending[key, commit_ts] = what
            if isinstance(what, _Commit):
                self._unmatched[key, commit_ts] = what
            else:
                self._unmatched.pop((key, commit_ts), None)

    def _pending_starts(self, key: bytes) -> set[int]:
        return {w.start_ts for (k, _), w in self._unmatched.items() if k == key}

    # -- watermarks ------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        moved = True
        while moved and self._waiting:
            moved, rest = False, []
            for part, checkpoint_ts, resolved_ts in self._waiting:
                blocked = False
                for at, w in self._slices(part):
                    if checkpoint_ts > (self.start_ts if w is None else w):
                        blocked = True
                    elif w is None or resolved_ts > w:
                        self._w[at] = resolved_ts
                        moved = True
                if blocked:
                    rest.append((part, checkpoint_ts, resolved_ts))
            self._waiting = rest
        self._serve()
        self._bury()

    def _serve(self) -> None:
        watermark, highest = self.watermark, max(w or 0 for w in self._w)
        undecided = set()
        for (key, commit_ts), what in list(self._unmatched.items()):
            if commit_ts <= min(highest, self._w_of(key) or 0):
                change = self._matched(key, what, commit_ts)
                if change is None:
                    undecided.add((key, commit_ts))
                else:
                    self._pending[key, commit_ts] = change
                    del self._unmatched[key, commit_ts]
        self.undecided = frozenset(undecided)
        if watermark is None:
            return
        durable_ts = min([watermark, *(commit_ts - 1 for _, commit_ts in undecided)])
        if durable_ts <= self.durable_ts:
            return
        for (key, commit_ts), pending in list(self._pending.items()):
            if commit_ts <= durable_ts and isinstance(pending, Change):
                del self._pending[key, commit_ts]
                self.served[key, commit_ts] = pending
        self.durable_ts = durable_ts

    def _matched(self, key: bytes, said: _Commit, commit_ts: int) -> Change | None:
        writes = [p for p in self._prewrites.get((key, said.start_ts), ()) if said.op in (Op.NONE, p.change.op)]
        if not writes:
            raise UpstreamContractViolated(
                "a commit without its prewrite", key=key, start_ts=said.start_ts, commit_ts=commit_ts
            )
        writes = [p for p in writes if not _is_fake(p.change)] or writes
        generation = max(p.generation for p in writes)
        last = {p.subscription: p for p in sorted(writes, key=lambda p: p.order) if p.generation == generation}.values()
        if not (said.value and all(_is_fake(p.change) for p in last)):
            for p in last:
                if all(p.change == q.change or p.subscription[2] > q.ready_ts > 0 for q in last):
                    return p.change
        if not said.value:
            return None
        exact = {p.change for p in last if p.change.value == said.value}
        agreed = exact or {replace(p.change, value=said.value) for p in last if p.change.op == Op.PUT}
        return agreed.pop() if len(agreed) == 1 else None

    def _bury(self) -> None:
        decided = {(key, w.start_ts) for (key, _), w in self._unmatched.items()}
        for (key, start_ts), prewrites in list(self._prewrites.items()):
            w = self._w_of(key)
            if w is None or (key, start_ts) in decided:
                continue
            alive = [p for p in prewrites if p.cut_ts >= w]
            self.dead += len(prewrites) - len(alive)
            if alive:
                self._prewrites[key, start_ts] = alive
            else:
                del self._prewrites[key, start_ts]

    def _w_of(self, key: bytes) -> int | None:
        return self._w[bisect_right(self._bounds, key) - 1]

    def _slices(self, part: KeyRange) -> list[tuple[int, int | None]]:
        """Index and W of the slices of a range, cutting slices at its ends where needed."""
        for bound in filter(None, (part.start, part.end)):
            at = bisect_left(self._bounds, bound)
            if at == len(self._bounds) or self._bounds[at] != bound:
                self._bounds.insert(at, bound)
                self._w.insert(at, self._w[at - 1])
        first = bisect_left(self._bounds, part.start)
        end = bisect_left(self._bounds, part.end) if part.end else len(self._bounds)
        return [(at, self._w[at]) for at in range(first, end)]


def _is_fake(change: Change) -> bool:
    return change.op == Op.PUT and not change.value


def batch_files(
    store: ObjectStore, *, decoded: dict[str, BatchFile] | None = None
) -> dict[tuple[int, int], list[BatchFile]]:
    """All batch files of a bucket: (store, incarnation) -> its files up to the first missing seq.

    `decoded` remembers files from one call to the next."""
    decoded_files = {} if decoded is None else decoded
    files_of: dict[tuple[int, int], dict[int, BatchFile]] = {}
    for info in store.list("data_change_buffer/"):
        key = parse(info.key)
        if isinstance(key, BatchKey):
            if info.key not in decoded_files:
                decoded_files[info.key] = decode_batch_file(key, store.get(info.key))
            files_of.setdefault((key.store_id, key.incarnation), {})[key.seq] = decoded_files[info.key]
    return {life: list(_contiguous(files)) for life, files in files_of.items()}


def _contiguous(files: Mapping[int, BatchFile]) -> Iterator[BatchFile]:
    seq = 1
    while seq in files:
        yield files[seq]
        seq += 1


def interleaved(streams: Iterable[list[BatchFile]], rand: random.Random) -> Iterator[BatchFile]:
    """The files of several streams in a random order that keeps each stream's own."""
    left = [list(reversed(s)) for s in streams if s]
    while left:
        at = rand.randrange(len(left))
        yield left[at].pop()
        if not left[at]:
            del left[at]


def expected_changes(events: Iterable[dict[str, Any]]) -> dict[tuple[bytes, int], Change]:
    """What a recording's lines commit and a store sends: (key, commit_ts) -> change."""
    locks: dict[tuple[str, str], Change] = {}
    out: dict[tuple[bytes, int], Change] = {}
    for e in events:
        if e["t"] not in ("PREWRITE", "COMMIT", "COMMITTED"):
            continue
        if e["t"] != "COMMIT":
            value = bytes.fromhex(e["value"]) if e["op"] == "PUT" else None
            old = bytes.fromhex(e["old_value"]) if "old_value" in e else None
            locks[e["key"], e["start_ts"]] = Change(int(e["start_ts"]), int(Op[e["op"]]), value, old)
        if e["t"] != "PREWRITE" and not int(e.get("txn_source", 0)) & 0xFF00:
            out[bytes.fromhex(e["key"]), int(e["commit_ts"])] = locks[e["key"], e["start_ts"]]
    return out
