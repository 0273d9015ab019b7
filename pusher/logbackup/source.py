"""A Source over the directory of TiKV's log backup: nothing runs beside TiKV, freshness is the backup's flush interval.

    global checkpoint C  ->  metadata  ->  slices with versions in (P, C]  ->  rows of kind COMMITTED  ->  Resolved(C)

The directory is one pseudo store, and the two ranges in the backup are its two regions. P is the timestamp up to which
everything was returned: at first, and after resubscribing, the lowest checkpoint_ts of the subscriptions. So a
restarted pusher needs only the published frontier.

- Nothing above the global checkpoint is read or promised. Everything at or below it is in existing files, values of the
  default column family included; so a missing file is damage, and a late one is above it or a copy;
- the checkpoint is read before the listing, so the listing has every file that the checkpoint covers;
- a truncation first writes its mark and then deletes. So a listing is complete from P on unless the mark, read after
  it, is above P;
- versions are complete changes without prewrites, so a subscription is ready at once;
- a large window (P, E] is returned in pieces, with a Tick each; the watermark E follows the last one;
- cut_ts is the global checkpoint: every row of a file is at or below it, and it never decreases.

A damaged object is read again for some seconds, because the folder may still be being copied; then it is an error. An
unavailable store is waited for. `problem` has the current wait.
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

#: the pseudo store of a log backup; far above the ids of real stores
STORE_ID = 1 << 40
#: the ranges of a log backup of TiDB; index + 1 is the pseudo region's id
RANGES = (META_RANGE, KeyRange(b"t", b"u"))

SCAN_INTERVAL_S = 5.0
PATIENCE_S = 10.0  #: how long a damaged object is retried before it is an error
_RETRY_S = 1.0
_WINDOW_BYTES = 512 << 20  # unpacked entries per window
_PIECE_BYTES = 32 << 20  # unpacked entries per piece


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
        self._end_ts = 0  # the log was complete up to here at the last scan
        self._window_end = 0
        self._pieces: deque[list[LogSlice]] = deque()
        self._cut_ts = 0
        self._next_scan_at = 0.0
        self._retry_at = 0.0  # no request to the store before
        self._damaged_at: float | None = None
        self._caught_up = False
        self._promised_ts = 0
        self._dropped = False
        self._never = threading.Event()
        self._reported_ts = 0  # the checkpoint last reported as stalled
        self.undefined: UndefinedTables | None = None  #: gets the rows, if set
        self.ahead: Ahead | None = None  #: flushes beyond the checkpoint, as of the last scan
        self.problem = ""  #: the fault that it waits for

    @property
    def store_id(self) -> int:
        return STORE_ID

    @property
    def promised_ts(self) -> int:
        """Everything at or below it was returned; 0 = nothing yet."""
        return self._promised_ts

    @property
    def caught_up(self) -> bool:
        """The last scan found nothing new at or below the global checkpoint."""
        return self._caught_up and not self._closed

    def poll(self, timeout_s: float, checkpoint_of: CheckpointOf) -> Sequence[SourceEvent]:
        """See Source. Blocks for as long as the store takes to answer."""
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
        closed = {r: t for r, t in self._subscriptions.items() if t in subscriptions}
        for range_no, subscription in closed.items():
            del self._subscriptions[range_no]
            self._closed.append(subscription)
        if closed:
            self._pieces.clear()  # the window is planned again from the new checkpoints
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
        """Note a damaged object; raise its error once it persists for `patience_s`."""
        now = self._clock.monotonic()
        self._damaged_at = now if self._damaged_at is None else self._damaged_at
        if now - self._damaged_at >= self._patience_s:
            raise error
        if not self.problem:
            log.warning("damaged object in the log backup, retrying", error=str(error))
        self.problem = str(error)
        self._pieces.clear()
        self._next_scan_at = self._retry_at = now + _RETRY_S

    def _scan(self, checkpoint_of: CheckpointOf, events: list[SourceEvent]) -> None:
        """Append to `events` the first piece of the next window, or its watermark."""
        self._next_scan_at = self._clock.monotonic() + self._scan_interval_s
        self._caught_up = False
        checkpoint = read_checkpoint(self._store)
        if checkpoint is None:
            self.problem = "the log backup has no global checkpoint, so it has no watermark yet"
            self._caught_up = True
            return
        self._open(checkpoint, checkpoint_of, events)
        if self._delivered_ts is None or len(self._subscriptions) < len(RANGES):
            return
        self._cut_ts = max(self._cut_ts, checkpoint.ts)
        self._index.refresh(self._delivered_ts)
        self._check_truncated(self._delivered_ts)
        self._report_ahead(ahead_of(checkpoint, self._index.flushes))
        self._end_ts = max(self._delivered_ts, checkpoint.ts)
        self._plan(self._delivered_ts, self._end_ts)
        events += self._deliver_piece() if self._pieces else self._finish_window()

    def _open(self, checkpoint: Checkpoint, checkpoint_of: CheckpointOf, events: list[SourceEvent]) -> None:
        """Open subscriptions once the frontier is known and the checkpoint has reached it."""
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
            raise CorruptObject("the log backup's truncation mark is not a number", object=TRUNCATED_KEY, offset=0)
        if from_ts < (truncated := int(text)):
            raise InvalidInput(
                "the log backup was truncated above this tenant's watermark: changes between the two are lost",
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
                "global checkpoint of the log backup stalled",
                object=ahead.checkpoint.object,
                checkpoint=ahead.checkpoint.ts,
                flushes_beyond=dict(ahead.flushes),
                newest=ahead.newest_ts,
            )

    def _plan(self, after_ts: int, upto_ts: int) -> None:
        """Choose the end of the window and its pieces."""
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
        for slice_ in sorted(slices, key=lambda s: (s.table_id, s.min_ts, s.object, s.offset)):
            if held + slice_.entry_bytes > self._piece_bytes:
                self._pieces.append([])
                held = 0
            self._pieces[-1].append(slice_)
            held += slice_.entry_bytes

    def _deliver_piece(self) -> list[SourceEvent]:
        """The next piece of the window; after the last one the watermark."""
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
        """The rows of the default column family for all these (key, start_ts)."""
        table, lacking = VALUES.empty_table(), wanted
        while lacking.num_rows:
            table = pa.concat_tables([table, *(matching(v, lacking) for v in self._index.values(lacking))])
            lacking = missing(wanted, table)
            if lacking.num_rows and not self._index.older(pc.min(lacking["start_ts"]).as_py()):
                raise CorruptObject(
                    "the value of a change is missing from the log backup",
                    key=lacking["key"][0].as_py(),
                    start_ts=lacking["start_ts"][0].as_py(),
                    rows=lacking.num_rows,
                )
        return table

    def _rows(self, rows: pa.RecordBatch) -> Iterator[Rows]:
        returned = 0
        for range_no, key_range in enumerate(RANGES):
            keys = rows["key"]
            inside = pc.and_(pc.greater_equal(keys, key_range.start), pc.less(keys, key_range.end))
            mine = rows.filter(inside)
            returned += mine.num_rows
            if mine.num_rows:
                yield Rows(subscription=self._subscriptions[range_no], rows=mine)
        if returned != rows.num_rows:
            raise CorruptObject("the log backup has keys outside TiDB's ranges", rows=rows.num_rows - returned)

    def _finish_window(self) -> list[SourceEvent]:
        """The watermark: everything up to the end of the window was returned."""
        invariant(
            self._window_end <= self._cut_ts, "a watermark above the global checkpoint", watermark=self._window_end
        )
        self._delivered_ts = self._promised_ts = self._window_end
        self._damaged_at = None
        self._caught_up = self._delivered_ts == self._end_ts
        if not self._caught_up:
            self._next_scan_at = 0.0
        subscriptions = np.array(sorted(self._subscriptions.values()), np.int64)
        resolved = np.full(len(subscriptions), self._delivered_ts, np.uint64)
        return [Resolved(subscriptions=subscriptions, resolved_ts=resolved), Tick(cut_ts=self._cut_ts)]
