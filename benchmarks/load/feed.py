"""The events of one modelled TiKV store, made column by column: a Source for the real pusher.

Transactions of TXN_ROWS rows insert into the store's active tables, `rows_per_s` rows in all. A prewrite is sent when
its transaction starts, the commit 5 to 50 ms later; commit timestamps are those of the wall clock. Every region is
resolved each RESOLVED_S up to the oldest open lock, as TiKV does by default. Ticks follow the pusher's `FlushSchedule`.
Regions never change.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Collection, Iterator, Sequence
from functools import cache
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import pyarrow as pa

from pusher.core.source import (
    CheckpointOf,
    Resolved,
    Rows,
    SourceEvent,
    SubscriptionClosed,
    SubscriptionOpened,
    SubscriptionReady,
    Tick,
)
from pusher.flush_schedule import FlushSchedule
from pusher.schema_push import empty_snapshot
from tests.kit.made_rows import batch_of
from tistream import ts as tso
from tistream.clock import Clock
from tistream.codec.table_key import table_prefix
from tistream.keyrange import KeyRange
from tistream.model.change import ROWS, Op, RowKind

FIRST_TABLE_ID = 1_000
DB_ID = 900
TXN_ROWS = 5
RESOLVED_S = 0.2
POLL_S = 0.02  #: interval for which rows are made at once
VALUE_BYTES = 120
_POOL = 4096
_OPEN_MS = (5, 50)
_BIGINT, _VARCHAR = 8, 15

_Stamps = npt.NDArray[np.uint64]
_Times = npt.NDArray[np.float64]


class LoadStore:
    """The feed of one store. `tables`: the ids of all tables whose regions it leads; the first `active` of them are
    written to."""

    def __init__(
        self,
        store_id: int,
        tables: Sequence[int],
        *,
        active: int,
        rows_per_s: float,
        bounds: Sequence[bytes],
        schedule: FlushSchedule,
        clock: Clock,
        seed: int = 1,
    ) -> None:
        """`bounds`: edges of its regions, pairs of start and end."""
        self._store_id = store_id
        self._ranges = [KeyRange(bounds[i], bounds[i + 1]) for i in range(0, len(bounds), 2)]
        self._active = list(tables[:active])
        self._rate = rows_per_s if self._active else 0.0
        self._schedule, self._clock, self._never = schedule, clock, threading.Event()
        self._rng = np.random.default_rng(seed * 1000 + store_id)
        self._ids = count(1)
        self._subscriptions: dict[int, int] = {}  # subscription -> place of its region
        self._waiting = list(range(len(self._ranges)))
        self._subscription_of: dict[int, int] = {}  # place of an active region -> its subscription
        self._active_places = {t: self._place_of(t) for t in self._active}
        self._handle = 0
        self._made_to = 0.0
        self._owed = 0.0
        self._open: list[_Txns] = []
        now = self._clock.monotonic()
        self._ticked_at = now
        self._resolved_at = now
        self._said_ts = 0
        self.going = False  #: whether transactions begin
        self.committed = 0  #: rows

    @property
    def store_id(self) -> int:
        return self._store_id

    @property
    def writes(self) -> bool:
        """Whether it ever has transactions."""
        return bool(self._active)

    @property
    def due_at(self) -> float:
        """When something is to be done, monotonic seconds."""
        soon = self._clock.monotonic() + POLL_S if self.going or self._open else float("inf")
        return min(self._schedule.next_tick_at(self._ticked_at), soon) if not self._waiting else 0.0

    def poll(self, timeout_s: float, checkpoint_of: CheckpointOf) -> Sequence[SourceEvent]:
        pause = min(self.due_at, self._clock.monotonic() + timeout_s) - self._clock.monotonic()
        if pause > 0:
            self._clock.wait(self._never, pause)
        events: list[SourceEvent] = []
        if self._waiting:
            events += self._register(checkpoint_of)
        now, unix_ms = self._clock.monotonic(), float(self._clock.unix_ms())
        if self._rate:
            events += self._rows(unix_ms)
        ticks = now >= self._schedule.next_tick_at(self._ticked_at)
        if ticks or (self._rate and now >= self._resolved_at):
            self._resolved_at = now + RESOLVED_S
            events.append(self._resolved(unix_ms))
        if ticks:
            self._ticked_at = now
            events.append(Tick(cut_ts=tso.compose(int(unix_ms), 1 << 17)))
        return events

    def resubscribe(self, subscriptions: Collection[int]) -> None:
        self._waiting += [self._subscriptions[t] for t in subscriptions if t in self._subscriptions]

    def drop(self) -> None:
        self._subscriptions.clear()
        self._subscription_of.clear()
        self._waiting.clear()

    def resume(self) -> None:
        raise NotImplementedError("the uploads of a benchmark keep up")

    def close(self) -> None:
        self.drop()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _place_of(self, table_id: int) -> int:
        key = table_prefix(table_id)
        return next(i for i, r in enumerate(self._ranges) if key in r)

    def _register(self, checkpoint_of: CheckpointOf) -> Iterator[SourceEvent]:
        waiting, self._waiting = self._waiting, []
        known_places = {place: subscription for subscription, place in self._subscriptions.items()}
        checkpoint_ts: int | None = None
        for place in waiting:
            checkpoint_ts = checkpoint_of(self._ranges[place])
            if checkpoint_ts is None:
                self._waiting.append(place)
                continue
            if place in known_places:
                del self._subscriptions[known_places[place]]
                yield SubscriptionClosed(subscription=known_places[place])
            subscription, now_ts = next(self._ids), tso.compose(self._clock.unix_ms())
            self._subscriptions[subscription] = place
            self._subscription_of[place] = subscription
            yield SubscriptionOpened(
                subscription=subscription,
                region_id=self._store_id * 10_000_000 + place + 1,
                version=1,
                range=self._ranges[place],
                checkpoint_ts=checkpoint_ts,
                open_ts=now_ts,
            )
            yield SubscriptionReady(subscription=subscription, ready_ts=now_ts + 1)

    def _resolved(self, unix_ms: float) -> Resolved:
        open_ts = [int(txns.start[txns.first :].min()) - 1 for txns in self._open if txns.first < len(txns.start)]
        self._said_ts = max(self._said_ts, min([tso.compose(int(unix_ms)), *open_ts]))
        subscriptions = np.fromiter(self._subscriptions, np.int64, len(self._subscriptions))
        return Resolved(subscriptions=subscriptions, resolved_ts=np.full(len(subscriptions), self._said_ts, np.uint64))

    def _rows(self, unix_ms: float) -> Iterator[Rows]:
        if self.going:
            seconds = min(unix_ms - self._made_to, 1000.0) / 1000 if self._made_to else 0.0
            self._owed += seconds * self._rate / TXN_ROWS
            begun = int(self._owed)
            if begun:
                self._owed -= begun
                yield from self._prewrites(begun, self._made_to, unix_ms)
                self._schedule.note_rows()
            self._made_to = unix_ms
        yield from self._commits(unix_ms)

    def _prewrites(self, txns: int, after_ms: float, upto_ms: float) -> Iterator[Rows]:
        start_ms = np.sort(self._rng.uniform(after_ms, upto_ms, txns))
        start = _stamps(start_ms, self._store_id)
        commit_ms = np.maximum(start_ms + self._rng.uniform(*_OPEN_MS, txns), upto_ms + 1)
        tables = self._rng.integers(0, len(self._active), txns)
        for at in range(len(self._active)):
            of_table = np.flatnonzero(tables == at)
            if not len(of_table):
                continue
            rows = len(of_table) * TXN_ROWS
            handles = np.arange(self._handle, self._handle + rows)
            self._handle += rows
            table_id = self._active[at]
            new = _Txns(
                subscription=self._subscription_of[self._active_places[table_id]],
                start=np.repeat(start[of_table], TXN_ROWS),
                commit_ms=np.repeat(commit_ms[of_table], TXN_ROWS),
                keys=_keys(table_id, handles),
            )
            new.sort()
            self._open.append(new)
            values = _values().take(pa.array(self._rng.integers(0, _POOL, rows)))
            zeros = np.zeros(rows, np.uint64)
            yield Rows(subscription=new.subscription, rows=_batch(RowKind.PREWRITE, new.keys, new.start, zeros, values))

    def _commits(self, unix_ms: float) -> Iterator[Rows]:
        for txns in self._open:
            end = int(np.searchsorted(txns.commit_ms, unix_ms, side="right"))
            if end > txns.first:
                part = slice(txns.first, end)
                commit = _stamps(txns.commit_ms[part], self._store_id)
                self.committed += end - txns.first
                keys = txns.keys.slice(txns.first, end - txns.first)
                values = pa.nulls(len(keys), pa.binary())
                yield Rows(
                    subscription=txns.subscription, rows=_batch(RowKind.COMMIT, keys, txns.start[part], commit, values)
                )
                txns.first = end
        self._open = [txns for txns in self._open if txns.first < len(txns.start)]


class _Txns:
    """Rows that are prewritten in one region, by the time of their commit."""

    def __init__(
        self, *, subscription: int, start: _Stamps, commit_ms: npt.NDArray[np.float64], keys: pa.BinaryArray
    ) -> None:
        self.subscription, self.start, self.commit_ms, self.keys = subscription, start, commit_ms, keys
        self.first = 0  #: the first that is not committed

    def sort(self) -> None:
        order = np.argsort(self.commit_ms, kind="stable")
        self.start, self.commit_ms, self.keys = (
            self.start[order],
            self.commit_ms[order],
            self.keys.take(pa.array(order)),
        )


def _stamps(ms: _Times, store_id: int) -> _Stamps:
    """TSOs of these times; the fraction of a millisecond, and the store, distinguish them."""
    whole = np.floor(ms)
    logical = ((ms - whole) * (1 << 16)).astype(np.uint64) * np.uint64(2) + np.uint64(store_id % 2)
    stamps: _Stamps = (whole.astype(np.uint64) << np.uint64(18)) + logical
    return stamps


def _keys(table_id: int, handles: npt.NDArray[np.int64]) -> pa.BinaryArray:
    flat = np.empty((len(handles), 19), np.uint8)
    flat[:, :11] = np.frombuffer(table_prefix(table_id) + b"_r", np.uint8)
    flat[:, 11:] = (handles ^ np.int64(-(2**63))).astype(">i8").view(np.uint8).reshape(-1, 8)
    offsets = np.arange(0, 19 * len(handles) + 1, 19, dtype=np.int32)
    return pa.BinaryArray.from_buffers(pa.binary(), len(handles), [None, pa.py_buffer(offsets), pa.py_buffer(flat)])


@cache
def _values() -> pa.BinaryArray:
    """Rows of one VARCHAR in TiDB's format 2."""
    rng = np.random.default_rng(5)
    head = struct.pack("<BBHHBH", 0x80, 0, 1, 0, 2, VALUE_BYTES)
    texts = rng.choice(np.frombuffer(b"abcdefghijklmnopqrstuvwxyz     ", np.uint8), (_POOL, VALUE_BYTES))
    return pa.array([head + text.tobytes() for text in texts], pa.binary())


def _batch(kind: RowKind, keys: pa.BinaryArray, start: _Stamps, commit: _Stamps, values: pa.Array) -> pa.RecordBatch:
    return batch_of(ROWS, kind=kind, op=Op.PUT, key=keys, start_ts=start, commit_ts=commit, value=values)


def regions(tables: Sequence[int], stores: int) -> dict[int, list[bytes]]:
    """The edges of each store's regions: one for each table in turn, the first with all before and the last with all
    behind."""
    cuts = [table_prefix(t) for t in tables]
    edges = [b"", *cuts[1:], b""]
    keys: dict[int, list[bytes]] = {s: [] for s in range(1, stores + 1)}
    for i in range(len(cuts)):
        keys[i % stores + 1] += [edges[i], edges[i + 1]]
    return keys


def schema(ts: int, tables: Sequence[int], *, columns: int = 2) -> bytes:
    """A schema snapshot with these tables, each of an integer key and `columns` columns in all."""
    snapshot: dict[str, Any] = orjson.loads(empty_snapshot(ts))
    snapshot["dbs"].append(
        {"id": DB_ID, "db_name": _name("load"), "charset": "utf8mb4", "collate": "utf8mb4_bin", "state": 5}
    )
    cols = [_column(1, "id", _BIGINT, 4099), *(_column(i, f"c{i}", _VARCHAR, 0) for i in range(2, columns + 1))]
    for t in tables:
        snapshot["tables"].append({"db_id": DB_ID, "info": {"id": t, "name": _name(f"t{t}"), "cols": cols, **_TABLE}})
    return orjson.dumps(snapshot)


_TEXT = {"charset": "utf8mb4", "collate": "utf8mb4_bin"}
_TABLE = {**_TEXT, "index_info": None, "state": 5, "pk_is_handle": True, "is_common_handle": False, "partition": None}


def _name(text: str) -> dict[str, str]:
    return {"O": text, "L": text}


def _column(column_id: int, name: str, tp: int, flag: int) -> dict[str, Any]:
    kind = {"Tp": tp, "Flag": flag, "Flen": 255, "Charset": "binary" if tp == _BIGINT else "utf8mb4"}
    return {"id": column_id, "name": _name(name), "offset": column_id - 1, "type": kind, "state": 5, "version": 2}
