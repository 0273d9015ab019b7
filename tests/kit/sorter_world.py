"""A small TiKV with ground truth, made for the sorter: a few keys, regions and stores, and pushers that tell no lies.

Steps are taken one at a time by whoever drives it (a property test): transactions prewrite, commit or roll back;
regions move, split and merge; pushers cut files; files reach the sorter in the order of their store, stores overtake
each other. The model keeps the promise that a watermark row makes, and nothing more than that promise.

    truth      every committed version, with the bytes that were committed
    files      per store, what its pusher cut, in order; `Wire` turns them into feed batches
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa

from tests.kit.sorter_oracle import DELETE, PUT, C, D, Mark, P, R, Row, Served
from tistream.feed.protocol import FeedBatch
from tistream.model.change import REGIONS, ROWS


@dataclass
class Txn:
    """A transaction on one key."""

    key: bytes
    start_ts: int
    op: int = PUT
    value: bytes | None = b""
    old_value: bytes | None = None
    commit_ts: int = 0  #: 0 = not decided
    applied: bool = False  #: the commit (or rollback) is in the upstream
    generation: int = 0


@dataclass
class Subscription:
    """A leader's subscription of one region on one store."""

    region_id: int
    version: int
    start: bytes
    end: bytes
    checkpoint_ts: int
    open_ts: int
    ready_ts: int = 0
    resolved_ts: int = 0
    scan: list[Row] = field(default_factory=list)  #: rows of the opening scan that were not sent yet
    rows: list[Row] = field(default_factory=list)  #: since the store's last file


@dataclass
class StoreLife:
    """A store, its pusher and what that has cut."""

    store_id: int
    incarnation: int = 1
    seq: int = 0
    open: list[Subscription] = field(default_factory=list)
    ended: list[Subscription] = field(default_factory=list)  #: since the last file: their closing rows are due


@dataclass(frozen=True, kw_only=True)
class File:
    """One batch file."""

    store_id: int
    incarnation: int
    seq: int
    cut_ts: int
    rows: tuple[Row, ...]
    marks: tuple[Mark, ...]
    closes: bool = False


class World:
    """The upstream cluster over [b"", +inf)."""

    def __init__(self, keys: list[bytes], stores: int, start_ts: int, frontier: Callable[[], int]) -> None:
        self.keys = keys
        self.tso = start_ts
        self.start_ts = start_ts
        self.frontier = frontier
        self.stores = {s: StoreLife(s) for s in range(1, stores + 1)}
        self.files: dict[int, list[File]] = {s: [] for s in self.stores}
        self.txns: list[Txn] = []
        self.next_region = 1
        self.leader: dict[int, tuple[int, Subscription]] = {}  # region -> (store, subscription)
        self._lead(1, b"", b"", 1)

    # -- transactions

    def next_ts(self) -> int:
        self.tso += 1
        return self.tso

    def begin(self, key: bytes) -> Txn:
        txn = Txn(key, self.next_ts())
        self.txns.append(txn)
        return txn

    def locked(self, key: bytes) -> Txn | None:
        return next((t for t in self.txns if t.key == key and t.value != b"" and not t.applied), None)

    def prewrite(self, txn: Txn, value: bytes | None, *, generation: int = 0) -> None:
        """Write (or rewrite) the lock. None deletes."""
        newest = max((t for t in self.committed(txn.key)), key=lambda t: t.commit_ts, default=None)
        txn.op, txn.value = (DELETE, None) if value is None else (PUT, value)
        txn.old_value = newest.value if newest is not None else None
        txn.generation = generation
        self._live(txn.key, self._prewrite_row(txn))

    def repeat_without_value(self, txn: Txn) -> None:
        """What older TiKV sends when a lock is refreshed."""
        self._live(txn.key, Row(kind=P, key=txn.key, start_ts=txn.start_ts, value=b"", generation=txn.generation))

    def commit(self, txn: Txn, *, with_value: bool = False) -> None:
        """Apply the commit. Its commit_ts may have been fetched long ago (`fetch_commit_ts`)."""
        txn.commit_ts = txn.commit_ts or self.next_ts()
        txn.applied = True
        value = txn.value if with_value else None
        row = Row(kind=C, key=txn.key, start_ts=txn.start_ts, commit_ts=txn.commit_ts, op=txn.op, value=value)
        self._live(txn.key, row)

    def commit_at_once(self, txn: Txn, value: bytes) -> None:
        """1PC: no prewrite, the row is self-contained."""
        txn.value, txn.commit_ts, txn.applied = value, self.next_ts(), True
        self._live(txn.key, self._whole_row(txn))

    def roll_back(self, txn: Txn) -> None:
        self._live(txn.key, Row(kind=R, key=txn.key, start_ts=txn.start_ts, op=0))
        self.txns.remove(txn)

    def overlapped_rollback(self, key: bytes, ts: int) -> None:
        """Some transaction that began at `ts` on this key was rolled back."""
        self._live(key, Row(kind=R, key=key, start_ts=ts, op=0))

    def committed(self, key: bytes) -> list[Txn]:
        return [t for t in self.txns if t.key == key and t.applied]

    def truth(self, after: int, upto: int) -> list[Served]:
        """Every version with commit_ts in (after, upto], in order of commit."""
        return sorted(
            Served(commit_ts=t.commit_ts, start_ts=t.start_ts, key=t.key, op=t.op, value=t.value, old_value=t.old_value)
            for t in self.txns
            if t.commit_ts and after < t.commit_ts <= upto
        )

    # -- topology

    def move(self, region: int, store: int, *, from_its_end: bool = False) -> None:
        """The leader moves to another store, or the same one registers again. The new subscription begins at the
        frontier, or
        where the old one ended: then its rows must wait for the old one's closing row."""
        subscription = self._end(region)
        checkpoint = max(self.frontier(), subscription.resolved_ts) if from_its_end else None
        self._lead(store, subscription.start, subscription.end, subscription.version, region, checkpoint)

    def split(self, region: int, at: bytes, store: int) -> bool:
        """The right half becomes a new region led by `store`. False when `at` is no inner key."""
        old_store, subscription = self.leader[region]
        if at <= subscription.start or (subscription.end and at >= subscription.end):
            return False
        self._end(region)
        self._lead(old_store, subscription.start, at, subscription.version + 1, region)
        self._lead(store, at, subscription.end, subscription.version + 1)
        return True

    def merge(self, left: int, right: int) -> bool:
        """The right neighbour is taken in by the left one. False when they are no neighbours."""
        a, b = self.leader[left][1], self.leader[right][1]
        if left == right or not a.end or a.end != b.start:
            return False
        store = self.leader[left][0]
        self._end(left)
        self._end(right)
        self._lead(store, a.start, b.end, max(a.version, b.version) + 1, left)
        return True

    def crash(self, store: int) -> None:
        """The pusher dies with what it has not cut. Its incarnation ends there, its regions get other leaders."""
        life = self.stores[store]
        regions = [region for region, (s, _) in self.leader.items() if s == store]
        others = [s for s in self.stores if s != store] or [store]
        self.files[store].append(_closing(life))
        self.stores[store] = StoreLife(store, life.incarnation + 1)
        for i, region in enumerate(regions):
            subscription = self.leader.pop(region)[1]
            self._lead(others[i % len(others)], subscription.start, subscription.end, subscription.version, region)

    def cut(self, store: int) -> File:
        """The pusher writes a file."""
        life = self.stores[store]
        life.seq += 1
        cut_ts = self.next_ts()
        rows: list[Row] = []
        marks = []
        for number, subscription in enumerate([*life.ended, *life.open]):
            if subscription in life.open and subscription.ready_ts:
                locks = [
                    t.start_ts for t in self.txns if t.value != b"" and not t.applied and _holds(subscription, t.key)
                ]
                subscription.resolved_ts = max(subscription.resolved_ts, min([cut_ts, *locks]))
            rows += [_in_subscription(row, number) for row in subscription.rows]
            subscription.rows = []
            marks.append(_mark(subscription))
        life.ended = []
        file = File(
            store_id=store,
            incarnation=life.incarnation,
            seq=life.seq,
            cut_ts=cut_ts,
            rows=tuple(rows),
            marks=tuple(marks),
        )
        self.files[store].append(file)
        return file

    def scan(self, store: int, rows: int) -> None:
        """The opening scans of the store send up to so many rows; a finished one makes its subscription ready."""
        for subscription in self.stores[store].open:
            if not subscription.ready_ts:
                subscription.rows += subscription.scan[:rows]
                del subscription.scan[:rows]
                if not subscription.scan:
                    subscription.ready_ts = self.next_ts()

    def _lead(
        self, store: int, start: bytes, end: bytes, version: int, region: int = 0, checkpoint: int | None = None
    ) -> None:
        if not region:
            region, self.next_region = self.next_region, self.next_region + 1
        checkpoint = self.frontier() if checkpoint is None else checkpoint
        subscription = Subscription(region, version, start, end, checkpoint, self.next_ts())
        led = [t for t in self.txns if _holds(subscription, t.key)]
        subscription.scan = [self._whole_row(t) for t in led if t.applied and t.commit_ts > checkpoint]
        subscription.scan += [self._prewrite_row(t) for t in led if not t.applied and t.value != b""]
        self.stores[store].open.append(subscription)
        self.leader[region] = (store, subscription)

    def _end(self, region: int) -> Subscription:
        store, subscription = self.leader.pop(region)
        life = self.stores[store]
        life.open.remove(subscription)
        life.ended.append(subscription)
        return subscription

    def _live(self, key: bytes, row: Row) -> None:
        for _, subscription in self.leader.values():
            if _holds(subscription, key):
                stale = [r for r in subscription.scan if r.kind == P == row.kind and r.key == key]
                subscription.scan = [r for r in subscription.scan if r not in stale]
                subscription.rows += [*stale, row]  # the rows of one lock keep their order, scanned or live

    def _prewrite_row(self, t: Txn) -> Row:
        return Row(
            kind=P,
            key=t.key,
            start_ts=t.start_ts,
            op=t.op,
            value=t.value,
            old_value=t.old_value,
            generation=t.generation,
        )

    def _whole_row(self, t: Txn) -> Row:
        return Row(
            kind=D, key=t.key, start_ts=t.start_ts, commit_ts=t.commit_ts, op=t.op, value=t.value, old_value=t.old_value
        )


def _holds(subscription: Subscription, key: bytes) -> bool:
    return key >= subscription.start and (not subscription.end or key < subscription.end)


def _mark(t: Subscription) -> Mark:
    return Mark(
        region_id=t.region_id,
        start=t.start,
        end=t.end,
        checkpoint_ts=t.checkpoint_ts,
        resolved_ts=t.resolved_ts,
        version=t.version,
        open_ts=t.open_ts,
        ready_ts=t.ready_ts,
    )


def _in_subscription(row: Row, number: int) -> Row:
    return Row(**{**row.__dict__, "subscription": number})


def _closing(life: StoreLife) -> File:
    seq = life.seq
    return File(store_id=life.store_id, incarnation=life.incarnation, seq=seq, cut_ts=0, rows=(), marks=(), closes=True)


def feed_batch(file: File) -> FeedBatch:
    """The file as the feed brings it."""
    rows = sorted(file.rows, key=lambda r: r.subscription)
    fields = ("kind", "op", "key", "start_ts", "commit_ts", "generation", "value", "old_value")
    columns = {name: [getattr(r, name) for r in rows] for name in fields}
    zeros = [0] * len(rows)
    regions = []
    offset = 0
    for number, m in enumerate(file.marks):
        count = sum(r.subscription == number for r in rows)
        regions.append(
            {
                "region_id": m.region_id,
                "version": m.version,
                "start_key": m.start,
                "end_key": m.end,
                "subscription_open_ts": m.open_ts,
                "subscription_ready_ts": m.ready_ts,
                "checkpoint_ts": m.checkpoint_ts,
                "resolved_ts": m.resolved_ts,
                "row_offset": offset,
                "row_count": count,
            }
        )
        offset += count
    return FeedBatch(
        store_id=file.store_id,
        incarnation=file.incarnation,
        seq=file.seq,
        cut_ts=file.cut_ts,
        rows=pa.RecordBatch.from_pydict({**columns, "expire_ts": zeros, "flags": zeros}, schema=ROWS),
        regions=pa.RecordBatch.from_pylist(regions, schema=REGIONS),
        closes=file.closes,
    )


def served(table: pa.Table) -> list[Served]:
    """Rows of the committed log (change.COMMITTED), in their order."""
    names = ("commit_ts", "start_ts", "key", "op", "value", "old_value")
    return [Served(**row) for row in table.select(names).to_pylist()]
