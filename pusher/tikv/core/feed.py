"""Follows the regions that one TiKV store leads: registrations, retries, and the events for the pusher. Pure.

    region lists, messages and end of the stream, TSOs, the time (s, never less)   ->   requests to send, source events

One registration of one piece (a region's part of one wanted range) is one subscription. Rules:

- as many regions as possible share a request id, because a store joins the resolved ts of one request. (request id,
  region) is unique among the registrations of a stream. A pair whose registration the store ended may be reused. A
  deregistered pair is never reused on this stream: the store answers a deregistration with an error, which would be
  mistaken for an error of the new registration;
- a registration ends with the first error that names it; later messages for it are ignored;
- rows before INITIALIZED are emitted at once, unless they may be out of order (see `opening`): then the subscription is
  closed and reopened. Later rows are joined per subscription and decoded with the tick, or when there are many;
- SubscriptionReady, Resolved and SubscriptionClosed come with a tick only, in this order, after all rows: ready_ts and
  cut_ts are then the TSO of the tick, and a resolved ts above it is damage;
- a subscription that the pusher reopens never becomes ready, even if its opening scan is complete, nor does one whose
  history was not protected up to the TSO of the tick: the scan may have been incomplete;
- damage ends the stream with all its subscriptions and drops resolved ts that were not reported: rows may be lost;
- after an overflow fewer opening scans run at once (see `scans`). A scan without progress is restarted;
- a silent stream is dead, unless PD is away: then stores have no timestamps to send (`reset_timeouts`);
- after a failure PD is asked for the piece's range again, after a pause. An EPOCH_NOT_MATCH that names regions counts
  as an answer of PD.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from heapq import heappop, heappush
from itertools import count
from math import inf

import numpy as np
import pyarrow as pa

from pusher.core.cdcpb import RegionError, RegionMessage, split_change_data
from pusher.core.cdcpb_rows import read_entries
from pusher.core.raw_rows import raw_rows
from pusher.core.source import (
    Resolved,
    Rows,
    SourceEvent,
    SubscriptionClosed,
    SubscriptionOpened,
    SubscriptionReady,
    Tick,
)
from pusher.tikv.core.effects import AskRegions, CloseStream, Effect, HeldBack, Moved, OpenStream
from pusher.tikv.core.marks import ResolvedMarks
from pusher.tikv.core.opening import OpeningPrewrites
from pusher.tikv.core.pauses import Damages, Pauses
from pusher.tikv.core.pieces import Phase, Piece, Pieces
from pusher.tikv.core.region_errors import STALE_S, is_unclear, moved, named, pause_s, refusal
from pusher.tikv.core.requests import Deregister, Register
from pusher.tikv.core.scans import OpeningScans
from tistream.errors import CorruptObject, TiStreamError
from tistream.keyrange import KeyRange
from tistream.tikv.core.keyspaces import WHOLE, KeyspaceKeys
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.core.regions import plain_range

SCANS_MAX = 32  #: concurrent opening scans of one store
UNREAD_BYTES_MAX = 1 << 20  #: live rows are decoded with a tick, or earlier at this size
_STREAM_TIMEOUT_S = 60.0  # a healthy store sends resolved ts every second
PAUSE_MAX_S = 10.0
_LIVED_S = 10.0
_QUERIES_MAX = 64  # above this many due queries, the whole wanted ranges are queried
_FORGET_S = 60.0  # a failed region without a piece here belongs to another store after this time
_Pair = tuple[int, int]  # request id, region


class StoreFeed:
    """The registrations of one store. Call the `events` methods as things happen, and take the effects after each
    call."""

    def __init__(
        self,
        store_id: int,
        ranges: Sequence[KeyRange],
        *,
        scans_max: int = SCANS_MAX,
        unread_bytes_max: int = UNREAD_BYTES_MAX,
        numbers: Iterator[int] | None = None,
        keyspace: KeyspaceKeys = WHOLE,
        is_raw: bool = False,
        pause_max_s: float = PAUSE_MAX_S,
        scan_bytes_s: float = inf,
    ) -> None:
        """`ranges` and all other keys are keys of the keyspace. `numbers`: ascending subscription ids. `is_raw`: see
        `raw_rows`. `pause_max_s`: between two attempts at a region. `scan_bytes_s`: see `scans`."""
        self.store_id = store_id
        self._is_raw = is_raw
        self._keyspace = keyspace
        self._scans, self._unread_bytes_max = OpeningScans(scans_max, scan_bytes_s), unread_bytes_max
        self._pieces = Pieces(ranges)
        self._registrations: dict[_Pair, Piece] = {}
        self._used_ids: set[_Pair] = set()  # that must not be used
        self._closing: list[Piece] = []  # ended, SubscriptionClosed not yet emitted
        self._scanned: dict[int, Piece] = {}  # by subscription: INITIALIZED since the last tick
        self._unread: dict[int, Piece] = {}  # by subscription: pieces with encoded rows
        self._unread_bytes = 0
        self._marks = ResolvedMarks()
        self._subscriptions = count(1) if numbers is None else numbers
        self._sequence = count()
        self._waiting: list[tuple[float, int, Piece]] = []  # (due time, sequence, piece)
        self._queries: list[tuple[float, int, KeyRange]] = [(0.0, next(self._sequence), w) for w in ranges]
        self._queried: set[KeyRange] = set()
        self._pauses = Pauses(first_s=0.1, max_s=pause_max_s, lived_s=_LIVED_S)
        self._stream_pauses = Pauses(first_s=0.5, max_s=10.0, lived_s=_LIVED_S)
        self._streaming = self._dropped = False
        self._stream_retry_at = self._damaged_until = 0.0
        self._stream_opened_at = self._last_message_at = 0.0
        self._events: list[SourceEvent] = []
        self._effects: list[Effect] = []
        self._damage: TiStreamError | None = None
        self.damages = Damages(store_id)
        self.rows_bytes = 0  #: encoded bytes of received rows
        self.fatal: TiStreamError | None = None  #: why this store cannot be followed at all

    # -- events ----------------------------------------------------------------------------------------------------

    def regions_listed(self, range_: KeyRange | None, regions: Iterable[Region] | None, now: float) -> None:
        """Regions from PD for a range (None: an unsolicited list); regions None: PD did not answer."""
        mine = range_ is not None and range_ in self._queried
        if regions is None:
            if mine and range_ is not None:
                self._query_again(range_, now)
            return
        elsewhere = []
        for region in regions:
            if region.leader_store_id == self.store_id:
                self._led_here(region, now)
            elif region.leader_store_id:
                self._pieces.led_elsewhere(region)
                self._pauses.worked(region.id)
                if mine and (region_range := plain_range(region)):
                    elsewhere.append(region_range)
        if mine and range_ is not None:
            self._queried.discard(range_)
            for part in self._pieces.missing(range_, elsewhere):
                heappush(self._queries, (now + STALE_S, next(self._sequence), part))

    def message(self, data: bytes, now: float) -> None:
        """Handle a message of the stream. Damage ends the stream; see `stream_lost`."""
        if not self._streaming:
            return
        self._last_message_at = now
        try:
            events, resolved = split_change_data(data)
        except CorruptObject as e:
            self._damaged(e, now, request=0, region=0)
            return
        for event in events:
            piece = self._registrations.get((event.request_id, event.region_id))
            if piece is not None:
                self._handle_event(piece, event, now)
        if resolved is not None and self._streaming:
            self._marks.record(resolved.request_id, resolved.regions, resolved.ts)

    @property
    def scans_one_at_a_time(self) -> bool:
        """One opening scan runs, and more at once were too much."""
        return self._scans.one_at_a_time and len(self._scans) == 1

    def stream_lost(self, reason: str, now: float, *, overflow: bool = False) -> None:
        """The stream ended, and every registration on it. `overflow`: messages came faster than they were taken."""
        if not self._streaming:
            return
        if overflow:
            self._scans.overflowed()
        self._streaming = False
        retry_at = self._stream_pauses.failed(self.store_id, reason, now, lived_s=now - self._stream_opened_at)
        self._stream_retry_at = max(retry_at, self._damaged_until)
        for piece in list(self._registrations.values()):
            self._end(piece)
            self._query_later(piece.range, self._stream_retry_at)
        self._used_ids.clear()

    def tick(self, ts: int, now: float, held: Callable[[int], bool] = lambda _: True) -> None:
        """Emit the events of a tick. `ts`: a TSO fetched after all earlier calls. `held`: whether history above a
        timestamp is protected from GC."""
        self._decode_unread(now)
        if self._marks.highest_pending() > ts:
            error = CorruptObject("a resolved ts is in the future", resolved_ts=self._marks.highest_pending(), tso=ts)
            self._damaged(error, now, request=0, region=0)
        for piece in [p for p in self._scanned.values() if not held(p.checkpoint_ts)]:
            self._discard_scan(piece)
            if piece.phase is Phase.SCANNED:
                self._register_again(piece, now)
        for piece in self._scanned.values():
            self._events.append(SubscriptionReady(subscription=piece.subscription, ready_ts=ts))
            if piece.phase is Phase.SCANNED:
                piece.phase = Phase.READY
        if self._scanned and not len(self._scans) and not self._has_waiting():
            self.damages.passed()
        self._scanned.clear()
        subscriptions, resolved_ts = self._marks.take()
        if len(subscriptions):
            self._events.append(Resolved(subscriptions=subscriptions, resolved_ts=resolved_ts))
        self._events += [SubscriptionClosed(subscription=piece.subscription) for piece in self._closing]
        self._marks.close(piece.subscription for piece in self._closing)
        self._closing.clear()
        self._events.append(Tick(cut_ts=ts))

    def resubscribe(self, subscriptions: Collection[int], now: float) -> None:
        """End these subscriptions and register their regions again."""
        ended = set(subscriptions)
        for piece in [p for p in self._registrations.values() if p.subscription in ended]:
            self._register_again(piece, now)

    def drop(self) -> None:
        """Drop every subscription and register nothing until `resume`: the pusher could not keep up."""
        self._dropped = True
        self._scans.overflowed()
        if self._streaming:
            self._streaming = False
            self._effects.append(CloseStream())
        for piece in list(self._registrations.values()):
            self._end(piece)
            self._requeue(piece, 0.0)
        self._marks.close(piece.subscription for piece in self._closing)
        for collection in (self._closing, self._scanned, self._unread, self._events, self._used_ids):
            collection.clear()
        self._unread_bytes = 0

    def resume(self) -> None:
        self._dropped = False

    def reset_timeouts(self, now: float) -> None:
        """Nothing could be received until now: silence so far does not count."""
        self._last_message_at = now
        self._scans.reset_timers(now)

    # -- actions ---------------------------------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Run what is due: region queries, and timeouts of scans and of the stream."""
        if (
            self._streaming
            and len(self._marks)
            and now - max(self._last_message_at, self._stream_opened_at) > _STREAM_TIMEOUT_S
        ):
            self._effects.append(CloseStream())
            self.stream_lost("no message from the store for a minute", now)
        for piece in self._scans.timed_out(now):
            reason = "its opening scan makes no progress"
            self._scans.double_timeout(piece.region_id)
            self._register_again(piece, self._pauses.failed(piece.region_id, reason, now, lived_s=0.0))
        due = []
        while self._queries and self._queries[0][0] <= now:
            due.append(heappop(self._queries)[2])
        for part in due if len(due) <= _QUERIES_MAX else self._pieces.wanted:
            if part not in self._queried:
                self._queried.add(part)
                self._effects.append(AskRegions(range=part))

    def next_action_at(self) -> float | None:
        """When `advance` or `open` has work; None = not before another event."""
        times = [self._queries[0][0]] if self._queries else []
        if self._waiting and not self._dropped and self._scans.has_room:
            retry_at = 0.0 if self._streaming else self._stream_retry_at
            times.append(max(self._waiting[0][0], self._scans.free_at, retry_at))
        return min(times, default=None)

    def open(self, open_ts: int, checkpoint_of: Callable[[KeyRange], int | None], now: float) -> None:
        """Register due pieces. `open_ts`: a TSO fetched before this call."""
        while self.is_due(now):
            piece = self._waiting[0][2]
            checkpoint_ts = checkpoint_of(piece.range)  # may raise: the piece stays in the queue
            heappop(self._waiting)
            if checkpoint_ts is None:
                piece.due = now + STALE_S
                heappush(self._waiting, (piece.due, next(self._sequence), piece))
                continue
            self._register(piece, checkpoint_ts, open_ts, now)

    def is_due(self, now: float) -> bool:
        """Whether `open` would register something now."""
        if self._dropped or self.fatal or (not self._streaming and now < self._stream_retry_at):
            return False
        return self._has_waiting() and max(self._waiting[0][0], self._scans.free_at) <= now and self._scans.has_room

    def take_events(self, now: float) -> list[SourceEvent]:
        """The pending source events, in order. Live rows may wait for the next tick."""
        if self._unread_bytes >= self._unread_bytes_max:
            self._decode_unread(now)
        events, self._events = self._events, []
        return events

    def take_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    def take_damage(self) -> TiStreamError | None:
        """The damage that ended the stream, once."""
        damage, self._damage = self._damage, None
        return damage

    def failing(self, failures_min: int, now: float) -> dict[int, tuple[int, str]]:
        """Regions with at least this many failures in a row and no success since: (failures, last reason)."""
        failing = self._pauses.failing(1)
        if not failing:
            return {}
        here = {piece.region_id: piece for piece in self._pieces if piece.region_id in failing}
        for region_id in list(failing):
            piece = here.get(region_id)
            if piece is None:
                resolved = now - self._pauses.until(region_id) >= _FORGET_S
            else:
                resolved = piece.phase is not Phase.WAITING and now - piece.opened_at >= _LIVED_S
            if resolved:
                del failing[region_id]
                self._pauses.worked(region_id)
        return {region_id: failure for region_id, failure in failing.items() if failure[0] >= failures_min}

    def held_back(self, limit_ts: int) -> list[HeldBack]:
        """Registered pieces whose resolved ts is below `limit_ts`."""
        late = self._marks.behind(limit_ts)
        return [
            HeldBack(region_id=piece.region_id, range=piece.range, resolved_ts=late[piece.subscription])
            for piece in (self._registrations.values() if late else ())
            if piece.subscription in late
        ]

    def stalled_scans(self, now: float) -> dict[int, float]:
        """Regions whose opening scan makes no progress: seconds since the last message."""
        return self._scans.stalled(now)

    def _has_waiting(self) -> bool:
        """Whether a piece waits; if so, the queue starts with one."""
        while self._waiting and self._waiting[0][2].phase is not Phase.WAITING:
            heappop(self._waiting)
        return bool(self._waiting)

    def _register(self, piece: Piece, checkpoint_ts: int, open_ts: int, now: float) -> None:
        if not self._streaming:
            self._streaming, self._stream_opened_at = True, now
            self._effects.append(OpenStream())
        piece.request_id = next(i for i in count(1) if (i, piece.region_id) not in self._used_ids)
        self._used_ids.add((piece.request_id, piece.region_id))
        self._pieces.registered(piece)
        piece.subscription, piece.checkpoint_ts, piece.opened_at = next(self._subscriptions), checkpoint_ts, now
        self._scans.started(piece, now)
        self._registrations[piece.request_id, piece.region_id] = piece
        self._events.append(
            SubscriptionOpened(
                subscription=piece.subscription,
                region_id=piece.region_id,
                version=piece.version,
                range=piece.range,
                checkpoint_ts=checkpoint_ts,
                open_ts=open_ts,
            )
        )
        self._effects.append(
            Register(
                request_id=piece.request_id,
                region_id=piece.region_id,
                conf_ver=piece.conf_ver,
                version=piece.version,
                range=piece.range,
                checkpoint_ts=checkpoint_ts,
            )
        )

    def _handle_event(self, piece: Piece, event: RegionMessage, now: float) -> None:
        if event.entries is not None:
            self.rows_bytes += len(event.entries)
            if piece.phase is Phase.SCANNING:
                self._scans.progressed(piece, now, len(event.entries))
                self._handle_opening(piece, event.entries, now)
            else:
                piece.entries.append(event.entries)
                self._unread[piece.subscription] = piece
                self._unread_bytes += len(event.entries)
        if piece.phase is Phase.OVER:
            return
        if event.error is not None:
            self._failed(piece, event.error, now)
        elif event.resolved_ts:
            self._marks.record(event.request_id, np.array([event.region_id], np.uint64), event.resolved_ts)

    def _handle_opening(self, piece: Piece, entries: bytes, now: float) -> None:
        try:
            rows, initialized = self._read_entries(piece, entries)
        except CorruptObject as e:
            self._damaged(e, now, request=piece.request_id, region=piece.region_id)
            return
        if piece.opening.contradicts(rows):
            reason = "two different prewrites of one lock in its opening scan"
            self._register_again(piece, self._pauses.failed(piece.region_id, reason, now, lived_s=0.0, at_least_s=0.5))
            return
        self._emit_rows(piece, rows)
        if initialized:
            piece.phase = Phase.SCANNED
            piece.opening = OpeningPrewrites()
            self._scans.ended(piece)
            self._scanned[piece.subscription] = piece
            if not len(self._scans) and not self._has_waiting():
                self._scans.reset_limit()
            self._marks.open(piece.subscription, piece.request_id, piece.region_id, piece.checkpoint_ts)

    def _decode_unread(self, now: float) -> None:
        """Decode pending rows, in one go for each subscription."""
        unread, self._unread, self._unread_bytes = self._unread, {}, 0
        for piece in unread.values():
            joined = piece.entries[0] if len(piece.entries) == 1 else b"".join(piece.entries)
            piece.entries = []
            try:
                rows, _ = self._read_entries(piece, joined)
            except CorruptObject as e:
                self._damaged(e, now, request=piece.request_id, region=piece.region_id)
                continue
            self._emit_rows(piece, rows)

    def _read_entries(self, piece: Piece, entries: bytes) -> tuple[pa.RecordBatch, bool]:
        """See read_entries; also CorruptObject for rows of another keyspace, or of another kind."""
        rows, initialized = read_entries(entries)
        if self._is_raw:
            is_opening = piece.phase is Phase.SCANNING
            return raw_rows(rows, piece.range, piece.checkpoint_ts if is_opening else None), initialized
        return self._keyspace.inner_rows(rows), initialized

    def _emit_rows(self, piece: Piece, rows: pa.RecordBatch) -> None:
        rows = self._pieces.wanted_rows(rows) if piece.has_gaps else rows
        if rows.num_rows:
            self._events.append(Rows(subscription=piece.subscription, rows=rows))

    def _failed(self, piece: Piece, error: RegionError, now: float) -> None:
        self.fatal = self.fatal or refusal(error, self.store_id, piece)
        if is_unclear(error):
            self._effects.append(Deregister(request_id=piece.request_id, region_id=piece.region_id))
        else:
            self._used_ids.discard((piece.request_id, piece.region_id))
        self._end(piece)
        at_least_s = pause_s(error)
        if (elsewhere := moved(error, self.store_id, piece)) is not None:
            self._effects.append(Moved(region=elsewhere))
            at_least_s = STALE_S
        there = named(error, self.store_id, self._keyspace)
        if not any(region.version > piece.version for region in there):
            lived_s = now - piece.opened_at
            self._pauses.failed(piece.region_id, error.kind.name, now, lived_s=lived_s, at_least_s=at_least_s)
        for region in there:
            self._led_here(region, now)
        for part in self._pieces.missing(piece.range, ()):
            self._query_later(part, max(now, self._pauses.until(piece.region_id)))

    def _led_here(self, region: Region, now: float) -> None:
        self._enqueue(self._pieces.led_here(region, max(now, self._pauses.until(region.id))))

    def _register_again(self, piece: Piece, due: float) -> None:
        """Deregister a piece and queue it again."""
        self._discard_scan(piece)
        self._effects.append(Deregister(request_id=piece.request_id, region_id=piece.region_id))
        self._end(piece)
        self._requeue(piece, due)

    def _discard_scan(self, piece: Piece) -> None:
        """Discard the results of the opening scan and later resolved ts."""
        if self._scanned.pop(piece.subscription, None) is not None:
            self._marks.close([piece.subscription])

    def _end(self, piece: Piece) -> None:
        """End a registration; SubscriptionClosed comes with the next tick."""
        self._scans.ended(piece)
        del self._registrations[piece.request_id, piece.region_id]
        self._marks.unregister(piece.request_id, piece.region_id)
        self._pieces.remove(piece)
        self._closing.append(piece)

    def _damaged(self, error: CorruptObject, now: float, *, request: int, region: int) -> None:
        """Invalid bytes: nothing of the stream is trusted any more."""
        self._marks.discard_pending()
        facts = {"store": self.store_id, "request": request, "region": region, **error.facts}
        self._damage = self._damage or CorruptObject(f"the change feed is damaged: {error.message}", **facts)
        if self._streaming:
            self._effects.append(CloseStream())
            self._damaged_until = self.damages.found(str(self._damage), now)
            self.stream_lost("damaged", now)

    def _requeue(self, piece: Piece, due: float) -> None:
        piece = piece.requeued(due)
        self._pieces.add(piece)
        self._enqueue([piece])

    def _enqueue(self, pieces: Iterable[Piece]) -> None:
        for piece in pieces:
            heappush(self._waiting, (piece.due, next(self._sequence), piece))

    def _query_later(self, part: KeyRange, due: float) -> None:
        heappush(self._queries, (due, next(self._sequence), part))

    def _query_again(self, part: KeyRange, now: float) -> None:
        self._queried.discard(part)
        self._query_later(part, now + STALE_S)
