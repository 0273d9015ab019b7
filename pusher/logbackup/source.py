"""A Source over the directory of TiKV's log backup: no component beside TiKV, at the backup's own flush interval.

    global checkpoint C  ->  metadata  ->  slices with versions in (P, C]  ->  rows of kind COMMITTED  ->  Resolved(C)

The directory is one pseudo store, and the two ranges that are backed up are its two regions. P is how far everything
was given out: at first, and after a subscription was opened again, the lowest checkpoint_ts of the subscriptions; so
a pusher that starts again needs to know nothing but the published frontier. Relations:

- nothing above the global checkpoint is read, given out or promised. Everything at or below it is in files that are
  there, the values of the default column family too; so what is missing then is damage, and what shows up later
  is either above it or a copy;
- the checkpoint is read before the listing, so the listing has every file that it speaks of;
- whoever truncates the log says first up to where, and removes then. So a listing is whole from P on unless the mark,
  read behind it, lies above P;
- versions are complete changes: there are no prewrites, and none is owed. So a subscription is ready at once;
- a window (P, E] that holds much is given out in pieces, with a Tick each; the promise E comes behind the last one;
- cut_ts is the global checkpoint: every row of a file lies at or below it, and it never falls.

An object that is damaged is read again for some seconds, since a folder may be in the middle of being copied; then it
is an error. A store that does not answer is waited for. What is waited for stands in `problem`.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from itertools import count

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import structlog

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
from pusher.logbackup.checkpoint import Ahead, Checkpoint, ahead_of, read_checkpoint
from pusher.logbackup.core.entries import VALUES, read_versions
from pusher.logbackup.core.joining import change_rows, distinct, matching, missing, wanting
from pusher.logbackup.core.metadata import TRUNCATED_KEY, LogSlice
from pusher.logbackup.core.undefined import UndefinedTables
from pusher.logbackup.index import LogIndex
from tistream.clock import Clock
from tistream.codec.table_key import META_RANGE
from tistream.errors import CorruptObject, ErrorKind, InvalidInput, ObjectNotFound, TiStreamError, invariant
from tistream.keyrange import KeyRange
from tistream.objectstore.protocol import ObjectStore

log = structlog.get_logger(__name__)

#: the pseudo store of a log backup; far above the numbers that PD gives to real ones
STORE_ID = 1 << 40
#: what a log backup of TiDB covers; the index + 1 is the pseudo region's number
RANGES = (META_RANGE, KeyRange(b"t", b"u"))

SCAN_INTERVAL_S = 5.0
PATIENCE_S = 10.0  #: how long a damaged object is read again before it is an error
_RETRY_S = 1.0
_WINDOW_BYTES = 512 << 20  # unpacked entries that a window is planned for
_PIECE_BYTES = 32 << 20  # unpacked entries that are given out together


class LogBackupSource:
    """The feed of one log backup directory."""

    def __init__(
        self,
        store: ObjectStore,
        clock: Clock,
        *,
        scan_interval_s: float = SCAN_INTERVAL_S,
        patience_s: float = PATIENCE_S,
        window_bytes: int = _WINDOW_BYTES,
        piece_bytes: int = _PIECE_BYTES,
    ) -> None:
        self._store, self._clock = store, clock
        self._scan_interval_s, self._patience_s = scan_interval_s, patience_s
        self._window_bytes, self._piece_bytes = window_bytes, piece_bytes
        self._index = LogIndex(store)
        self._ids = count(1)
        self._subscriptions: dict[int, int] = {}  # range -> subscription
        self._closed: list[int] = []
        self._delivered_ts: int | None = None  # P; None before the first subscription
        self._end_ts = 0  # up to where the last look saw the log complete
        self._window_end = 0
        self._pieces: deque[list[LogSlice]] = deque()
        self._cut_ts = 0
        self._next_scan_at = 0.0
        self._retry_at = 0.0  # nothing is asked of the store before
        self._damaged_at: float | None = None
        self._caught_up = False
        self._promised_ts = 0
        self._dropped = False
        self._never = threading.Event()
        self._reported_ts = 0  # the checkpoint of which it was said that it stands still
        self.undefined: UndefinedTables | None = None  #: is shown the rows, when somebody wants to know
        self.ahead: Ahead | None = None  #: what lies beyond the checkpoint, as of the last look
        self.problem = ""  #: what is being waited for, if it is a fault

    @property
    def store_id(self) -> int:
        return STORE_ID

    @property
    def promised_ts(self) -> int:
        """Everything at or below it was given out; 0 before anything was."""
        return self._promised_ts

    @property
    def caught_up(self) -> bool:
        """The last look found nothing at or below the global checkpoint that was not given out and promised."""
        return self._caught_up and not self._closed

    def poll(self, timeout_s: float, checkpoint_of: CheckpointOf) -> Sequence[SourceEvent]:
        """See Source. The store's answers are waited for as long as they take."""
        if self._dropped:
            return []
        events: list[SourceEvent] = [SubscriptionClosed(subscription=t) for t in self._closed]
        self._closed.clear()
        due_at = self._retry_at if self._pieces else max(self._next_scan_at, self._retry_at)
        if (pause_s := due_at - self._clock.monotonic()) > 0:
            if not events:
                self._clock.wait(self._never, min(pause_s, timeout_s))
            return events
        try:
            if self._pieces:
                events += self._deliver_piece()
            else:
                self._scan(checkpoint_of, events)
        except (CorruptObject, ObjectNotFound) as e:
            self._retry_later(e)
        except TiStreamError as e:
            if e.kind is not ErrorKind.RETRY:
                raise
            self.problem = str(e)
            self._retry_at = self._clock.monotonic() + _RETRY_S
        return events

    def resubscribe(self, subscriptions: Collection[int]) -> None:
        gone = {r: t for r, t in self._subscriptions.items() if t in subscriptions}
        for range_no, subscription in gone.items():
            del self._subscriptions[range_no]
            self._closed.append(subscription)
        if gone:
            self._pieces.clear()  # the window is planned anew from where the new subscriptions begin
            self._next_scan_at = 0.0

    def drop(self) -> None:
        self._subscriptions.clear()
        self._closed.clear()
        self._pieces.clear()
        self._delivered_ts = None
        self._dropped = True

    def resume(self) -> None:
        self._dropped = False
        self._next_scan_at = 0.0

    def close(self) -> None:
        self.drop()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _retry_later(self, error: TiStreamError) -> None:
        """Raise the error of a damaged object when it has been so for a while."""
        now = self._clock.monotonic()
        self._damaged_at = now if self._damaged_at is None else self._damaged_at
        if now - self._damaged_at >= self._patience_s:
            raise error
        if not self.problem:
            log.warning("an object of the log backup is read again", error=str(error))
        self.problem = str(error)
        self._pieces.clear()
        self._next_scan_at = self._retry_at = now + _RETRY_S

    def _scan(self, checkpoint_of: CheckpointOf, events: list[SourceEvent]) -> None:
        """What the directory has by now, put behind `events`: the next window's first piece, or the promise."""
        self._next_scan_at = self._clock.monotonic() + self._scan_interval_s
        self._caught_up = False
        checkpoint = read_checkpoint(self._store)
        if checkpoint is None:
            self.problem = "the log backup has no global checkpoint: nothing of it is promised"
            self._caught_up = True
            return
        self._open(checkpoint, checkpoint_of, events)
        if self._delivered_ts is None or len(self._subscriptions) < len(RANGES):
            return
        self._cut_ts = max(self._cut_ts, checkpoint.ts)
        self._index.look(self._delivered_ts)
        self._check_truncated(self._delivered_ts)
        self._report_ahead(ahead_of(checkpoint, self._index.flushes))
        self._end_ts = max(self._delivered_ts, checkpoint.ts)
        self._plan(self._delivered_ts, self._end_ts)
        events += self._deliver_piece() if self._pieces else self._finish_window()

    def _open(self, checkpoint: Checkpoint, checkpoint_of: CheckpointOf, events: list[SourceEvent]) -> None:
        """Subscriptions for the ranges that have none, once the frontier is known and the checkpoint has reached it."""
        for range_no, key_range in enumerate(RANGES):
            if range_no in self._subscriptions or (from_ts := checkpoint_of(key_range)) is None:
                continue
            if checkpoint.ts < from_ts:
                self.problem = f"{checkpoint.object} holds the log at {checkpoint.ts}, below the tenant's {from_ts}"
                self._caught_up = True
                return
            subscription = next(self._ids)
            self._subscriptions[range_no] = subscription
            self._delivered_ts = from_ts if self._delivered_ts is None else min(self._delivered_ts, from_ts)
            opened = SubscriptionOpened(
                subscription=subscription,
                region_id=range_no + 1,
                version=1,
                range=key_range,
                checkpoint_ts=from_ts,
                open_ts=checkpoint.ts,
            )
            events += [opened, SubscriptionReady(subscription=subscription, ready_ts=checkpoint.ts)]

    def _check_truncated(self, from_ts: int) -> None:
        try:
            text = self._store.get(TRUNCATED_KEY)
        except ObjectNotFound:
            return
        if not text.strip().isdigit():
            raise CorruptObject("the log backup's truncation mark is no number", object=TRUNCATED_KEY, offset=0)
        if from_ts < (truncated := int(text)):
            raise InvalidInput(
                "the log backup was truncated above where this tenant stands: changes between the two are gone",
                object=TRUNCATED_KEY,
                truncated_ts=truncated,
                tenant_ts=from_ts,
            )

    def _report_ahead(self, ahead: Ahead) -> None:
        self.ahead = ahead
        self.problem = str(ahead) if ahead.is_stalled else ""
        if ahead.is_stalled and self._reported_ts != ahead.checkpoint.ts:
            self._reported_ts = ahead.checkpoint.ts
            log.warning(
                "the log backup's global checkpoint stands still",
                object=ahead.checkpoint.object,
                checkpoint=ahead.checkpoint.ts,
                flushes_beyond=dict(ahead.flushes),
                newest=ahead.newest_ts,
            )

    def _plan(self, after_ts: int, upto_ts: int) -> None:
        """Choose the end of the window and the pieces to read."""
        self._window_end = upto_ts
        slices = self._index.writes(after_ts, upto_ts)
        starts = np.sort(np.array([s.min_ts for s in slices], np.uint64))
        sizes = np.array([s.entry_bytes for s in sorted(slices, key=lambda s: s.min_ts)], np.int64)
        if sizes.sum() > self._window_bytes:
            read = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
            ends = sorted({s.max_ts for s in slices if s.max_ts < upto_ts} | {upto_ts})
            costs = read[np.searchsorted(starts, np.array(ends, np.uint64), side="right")]
            self._window_end = ends[max(0, int(np.searchsorted(costs, self._window_bytes, side="right")) - 1)]
            slices = [s for s in slices if s.min_ts <= self._window_end]
        held = self._piece_bytes
        for found in sorted(slices, key=lambda s: (s.table_id, s.min_ts, s.object, s.offset)):
            if held + found.entry_bytes > self._piece_bytes:
                self._pieces.append([])
                held = 0
            self._pieces[-1].append(found)
            held += found.entry_bytes

    def _deliver_piece(self) -> list[SourceEvent]:
        """The next piece of the window, and behind the last one the promise."""
        assert self._delivered_ts is not None
        read = self._index.entries(self._pieces[0])
        versions = distinct([read_versions(s, data, self._delivered_ts, self._window_end) for s, data in read])
        rows = change_rows(versions, self._values(wanting(versions)))
        if self.undefined is not None:
            self.undefined.see(rows)
        events: list[SourceEvent] = list(self._rows(rows))
        self._pieces.popleft()
        return events + (self._finish_window() if not self._pieces else [Tick(cut_ts=self._cut_ts)])

    def _values(self, wanted: pa.Table) -> pa.Table:
        """The rows of the default column family for these (key, start_ts): all of them."""
        found, lacking = VALUES.empty_table(), wanted
        while lacking.num_rows:
            found = pa.concat_tables([found, *(matching(v, lacking) for v in self._index.values(lacking))])
            lacking = missing(wanted, found)
            if lacking.num_rows and not self._index.older(pc.min(lacking["start_ts"]).as_py()):
                raise CorruptObject(
                    "the row of a change is in no file of the log backup",
                    key=lacking["key"][0].as_py(),
                    start_ts=lacking["start_ts"][0].as_py(),
                    rows=lacking.num_rows,
                )
        return found

    def _rows(self, rows: pa.RecordBatch) -> Iterator[Rows]:
        given = 0
        for range_no, key_range in enumerate(RANGES):
            keys = rows["key"]
            inside = pc.and_(pc.greater_equal(keys, key_range.start), pc.less(keys, key_range.end))
            mine = rows.filter(inside)
            given += mine.num_rows
            if mine.num_rows:
                yield Rows(subscription=self._subscriptions[range_no], rows=mine)
        if given != rows.num_rows:
            raise CorruptObject("the log backup has keys outside of the ranges of TiDB", rows=rows.num_rows - given)

    def _finish_window(self) -> list[SourceEvent]:
        """Everything up to the end of the window was given out."""
        invariant(self._window_end <= self._cut_ts, "a promise above the global checkpoint", promise=self._window_end)
        self._delivered_ts = self._promised_ts = self._window_end
        self._damaged_at = None
        self._caught_up = self._delivered_ts == self._end_ts
        if not self._caught_up:
            self._next_scan_at = 0.0
        subscriptions = np.array(sorted(self._subscriptions.values()), np.int64)
        resolved = np.full(len(subscriptions), self._delivered_ts, np.uint64)
        return [Resolved(subscriptions=subscriptions, resolved_ts=resolved), Tick(cut_ts=self._cut_ts)]
