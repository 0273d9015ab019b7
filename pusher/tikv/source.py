"""Source over a TiKV store's change feed: the shell around `feed`.

    PD (region cache)  ->  regions
    store              ->  inbox  ->  StoreFeed  ->  source events
    PD                 ->  a TSO for each registration and for each tick

`feed` decides; this module has the clock, the stream, and the order of a poll:

1. a due tick fetches its TSO first, long after everything returned earlier was received. While PD is away nothing is
taken from the inbox, which fills and finally drops the stream: without TSOs there are no watermarks, and memory is
bounded; 2. messages, region lists and the end of the stream are processed; 3. due pieces are registered, with a TSO
fetched right before; 4. requests are sent.

A tick is due by the flush schedule, and after limits.BATCH_FILE_BYTES_TARGET since the last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from math import inf
from typing import assert_never

import structlog

from pusher.core.source import CheckpointOf, SourceEvent
from pusher.flush_schedule import FlushSchedule
from pusher.tikv.core.effects import AskRegions, CloseStream, HeldBack, Moved, OpenStream
from pusher.tikv.core.feed import PAUSE_MAX_S, SCANS_MAX, StoreFeed
from pusher.tikv.core.requests import Deregister, Header, KvApi, Register, encode_request
from pusher.tikv.locks import BEHIND_S
from pusher.tikv.stream import Ended, StreamInbox, TikvStream
from tistream import limits
from tistream.clock import Clock
from tistream.errors import CorruptObject, StoreUnavailable, TiStreamError
from tistream.keyrange import KeyRange
from tistream.model.problem import Problem
from tistream.tikv.channels import Tls
from tistream.tikv.core.keyspaces import WHOLE, KeyspaceKeys
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.core.regions import Pd
from tistream.tikv.region_cache import RegionCache
from tistream.ts import LOGICAL_BITS

log = structlog.get_logger(__name__)

INBOX_BYTES_MAX = 256 << 20  #: received but not processed; more drops the stream
_POLL_BYTES = limits.BATCH_FILE_BYTES_TARGET
_CHECK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """How the stores of a cluster are followed."""

    kv_api: KvApi = KvApi.TIDB
    filter_loop: bool = False
    keyspace: KeyspaceKeys = WHOLE  #: whose keys PD, region cache and wanted ranges use
    tls: Tls | None = None
    scans_max: int = SCANS_MAX
    scan_bytes_s: float = inf
    inbox_bytes_max: int = INBOX_BYTES_MAX
    failures_shown: int = 8  #: failures in a row before a region is reported
    pause_max_s: float = PAUSE_MAX_S


class TikvSource:
    """One store. Used from one thread, except `problems`; `close` it. `region_cache` must be started."""

    def __init__(
        self,
        store_id: int,
        options: SourceOptions,
        *,
        pd: Pd,
        region_cache: RegionCache,
        ranges: Sequence[KeyRange],
        clock: Clock,
        schedule: FlushSchedule,
        numbers: Iterator[int] | None = None,
        history_held: Callable[[int], bool] = lambda _: True,
    ) -> None:
        """`schedule`: of all stores. `numbers`: the source of subscription ids, if shared. `history_held`: whether
        everything above a timestamp is protected from GC, up to PD's newest timestamp."""
        self._store_id, self._options, self._clock = store_id, options, clock
        self._pd, self._region_cache, self._schedule = pd, region_cache, schedule
        self._header: Header | None = None  # built once the cluster id is known
        self._feed = StoreFeed(
            store_id,
            ranges,
            scans_max=options.scans_max,
            numbers=numbers,
            keyspace=options.keyspace,
            is_raw=options.kv_api is KvApi.RAW,
            pause_max_s=options.pause_max_s,
            scan_bytes_s=options.scan_bytes_s,
        )
        self._history_held = history_held
        self._inbox = StreamInbox(options.inbox_bytes_max)
        self._region_lists: deque[tuple[KeyRange | None, Sequence[Region] | None]] = deque()
        self._stream: TikvStream | None = None
        self._numbers = count(1)
        self._fault: StoreUnavailable | None = None  # to raise at the end of the poll
        self._received = 0  # messages of the current stream
        self._bytes = 0  # processed since the last tick
        self._ticked_at = clock.monotonic()
        self._next_check_at = 0.0
        self._problems: tuple[Problem, ...] = ()
        self._tick_ts = 0
        self.held_back: tuple[HeldBack, ...] = ()  #: pieces whose resolved ts is stalled, as of the last check
        self._stop_listening = region_cache.listen(self._receive_regions)

    @property
    def store_id(self) -> int:
        return self._store_id

    def poll(self, timeout_s: float, checkpoint_of: CheckpointOf) -> Sequence[SourceEvent]:
        """See Source.poll. InvalidInput when the store refuses this cluster's pusher."""
        self._wait(timeout_s)
        self._tick_if_due()
        self._process_inbox()
        self._register(checkpoint_of)
        self._execute()
        self._inbox.wait_when_full(self._feed.scans_one_at_a_time)
        self._check_progress()
        if self._feed.fatal is not None:
            raise self._feed.fatal
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        return self._feed.take_events(self._clock.monotonic())

    def resubscribe(self, subscriptions: Collection[int]) -> None:
        self._feed.resubscribe(subscriptions, self._clock.monotonic())
        self._execute()

    def drop(self) -> None:
        self._feed.drop()
        self._execute()

    def resume(self) -> None:
        self._feed.resume()
        self._ticked_at = self._clock.monotonic()
        self._bytes = 0

    def close(self) -> None:
        self._stop_listening()
        self._feed.drop()
        self._execute()
        self._close_stream()

    def problems(self) -> list[Problem]:
        """Regions that fail repeatedly, and opening scans without progress. Safe from any thread."""
        return list(self._problems)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _receive_regions(self, range_: KeyRange | None, regions: Sequence[Region] | None) -> None:
        """Called in the region cache's thread."""
        self._region_lists.append((range_, regions))
        self._inbox.wake()

    def _wait(self, timeout_s: float) -> None:
        now = self._clock.monotonic()
        until = [now + timeout_s, self._schedule.next_tick_at(self._ticked_at)]
        due = self._feed.next_action_at()
        if due is not None:
            until.append(due)
        if min(until) > now and not self._region_lists:
            self._inbox.wait(min(until) - now)

    def _tick_if_due(self) -> None:
        """Tick, or raise PD's error: then nothing is processed, and silence of the store does not count."""
        now = self._clock.monotonic()
        if now < self._schedule.next_tick_at(self._ticked_at) and self._bytes < limits.BATCH_FILE_BYTES_TARGET:
            return
        try:
            ts = self._pd.tso()
        except TiStreamError:
            self._feed.reset_timeouts(self._clock.monotonic())
            raise
        now = self._clock.monotonic()
        self._feed.tick(ts, now, self._history_held)
        self._tick_ts = ts
        self._bytes = 0
        self._ticked_at = now

    def _process_inbox(self) -> None:
        now, rows_bytes = self._clock.monotonic(), self._feed.rows_bytes
        messages, ended = self._inbox.take(_POLL_BYTES)
        self._received += len(messages)
        for message in messages:
            self._bytes += len(message)
            self._feed.message(message, now)
        if self._feed.rows_bytes != rows_bytes:
            self._schedule.note_rows()
        if ended is not None:
            self._stream_lost(ended, now)
        while self._region_lists:
            self._feed.regions_listed(*self._region_lists.popleft(), now)
        self._feed.advance(now)
        if damage := self._feed.take_damage():
            log.error("invalid data from a store, stream closed", error=str(damage))
            self._fault = StoreUnavailable("a store sent invalid data, its stream was closed", cause=str(damage))

    def _stream_lost(self, ended: Ended, now: float) -> None:
        log.warning("stream ended", store=self._store_id, reason=ended.reason)
        if not self._received:
            self._fault = StoreUnavailable("the store does not answer", store=self._store_id, cause=ended.reason)
        self._feed.stream_lost(ended.reason, now, overflow=ended.overflow)
        self._close_stream()

    def _register(self, checkpoint_of: CheckpointOf) -> None:
        now = self._clock.monotonic()
        if self._feed.is_due(now):
            if self._header is None:
                self._header = Header(
                    cluster_id=self._pd.cluster_id,
                    kv_api=self._options.kv_api,
                    filter_loop=self._options.filter_loop,
                    keyspace=self._options.keyspace,
                )
            self._feed.open(self._pd.tso(), checkpoint_of, now)

    def _execute(self) -> None:
        for effect in self._feed.take_effects():
            match effect:
                case OpenStream():
                    self._open_stream()
                case CloseStream():
                    self._close_stream()
                case AskRegions():
                    self._region_cache.request(effect.range)
                case Moved():
                    self._region_cache.report_leader(effect.region)
                case Register() | Deregister():
                    if self._stream is not None and self._header is not None:  # else the stream is ending
                        self._stream.send(encode_request(self._header, effect))
                case _:
                    assert_never(effect)

    def _open_stream(self) -> None:
        number, self._received = next(self._numbers), 0
        self._inbox.begin(number)
        try:
            address = next((s.address for s in self._pd.stores() if s.id == self._store_id), None)
        except TiStreamError as e:
            self._inbox.end(number, f"unknown address: {e}")
            return
        if address is None:
            self._inbox.end(number, "PD does not know the store")
            return
        self._stream = TikvStream(number, address, self._options.tls, self._inbox)

    def _close_stream(self) -> None:
        self._inbox.begin(0)
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _check_progress(self) -> None:
        """Update the problems and stalled pieces."""
        now = self._clock.monotonic()
        if now < self._next_check_at:
            return
        self._next_check_at = now + _CHECK_S
        limit_ts = self._tick_ts - (int(BEHIND_S * 1000) << LOGICAL_BITS)
        self.held_back = tuple(self._feed.held_back(limit_ts)) if limit_ts > 0 else ()
        problems = tuple(
            Problem(
                source=f"tikv-{self._store_id}",
                code=StoreUnavailable.code,
                message="a region cannot be followed: its resolved ts is stalled",
                facts={"region": region, "failures": failures, "reason": reason},
            )
            for region, (failures, reason) in sorted(self._feed.failing(self._options.failures_shown, now).items())
        )
        known = {p.facts.get("region") for p in self._problems}
        for problem in problems:
            if problem.facts["region"] not in known:
                log.warning(problem.message, store=self._store_id, **problem.facts)
        problems += tuple(
            Problem(
                source=f"tikv-{self._store_id}",
                code=StoreUnavailable.code,
                message="the opening scan of a region makes no progress",
                facts={"region": region, "for_s": round(silent_s)},
            )
            for region, silent_s in sorted(self._feed.stalled_scans(now).items())
        )
        if self._feed.damages.shown:
            facts: dict[str, object] = {"cause": self._feed.damages.shown}
            what = "the store sent what this version cannot read; its streams are opened again in growing intervals"
            problems += (Problem(source=f"tikv-{self._store_id}", code=CorruptObject.code, message=what, facts=facts),)
        self._problems = problems
