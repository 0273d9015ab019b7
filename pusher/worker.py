"""Pusher of one store: polls its source, batches, encodes, uploads. The shell around `batcher`.

    Source.poll -> Batcher -> encode_batch_file -> Uploader -> data_change_buffer/.../store-{s}/{incarnation}/file-{seq}

- One incarnation = one Batcher = one dense run of `seq`; files are uploaded in that order and never rewritten;
- no file has a cut_ts below the largest one that the control plane knows of this store;
- the upstream comes first. When uploads cannot keep up and the queue is full, the pusher drops the stream and ends the
  incarnation. Once the few uploads in flight are done it resumes as a new incarnation whose subscriptions start at the
  frontier. The dropped files are a gap that ends the old incarnation; the new opening scans send their rows again;
- no opening scan starts while the queue is half full: it would fill the rest and be dropped with it;
- a pusher that was replaced by a newer one of its store ends (`replaced`);
- another writer's object under one of our keys means that the incarnation has two owners: the pusher stops.

It runs no thread (the owner calls `step`), selects no stores and reads nothing from the bucket.
"""

from __future__ import annotations

import random
import secrets
import threading
from collections.abc import Callable

import structlog

from pusher.control import Control, IncarnationGrant, retrying
from pusher.core.batcher import Batcher, UnwrittenFile
from pusher.core.source import Rows, Source, SubscriptionClosed, SubscriptionOpened, Tick
from pusher.frontier import Frontier, FrontierReader, checkpoint_for, wants_resubscribe
from pusher.replaced import ReplacedCheck
from pusher.upload_spill import UploadSpill
from pusher.uploader import Uploader, UploadStats
from tistream.clock import Clock
from tistream.codec.batch_file import encode_batch_file
from tistream.errors import ErrorKind, InvalidInput, ObjectConflict, TiStreamError
from tistream.keyrange import KeyRange
from tistream.limits import UPLOAD_QUEUE_BYTES_MAX
from tistream.objectstore.layout import BatchKey
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime import metrics
from tistream.runtime.service import Backoff

log = structlog.get_logger(__name__)

_STALLED_WAIT_S = 0.1
_IDLE_S = 3.0  # a pusher that wrote nothing for this long ...
_IDLE_CHECK_S = 15.0  # ... checks only this often whether it was replaced
_ROWS_IN, _ROWS_OUT = (metrics.ROWS.labels("pusher", way) for way in ("in", "out"))
_BYTES_OUT = metrics.BYTES.labels("pusher", "out")


class PusherWorker:
    """One store's pusher. Used from one thread; `close` it."""

    def __init__(
        self,
        *,
        source: Source,
        control: Control,
        frontier: FrontierReader,
        store: ObjectStore,
        clock: Clock,
        rand: random.Random | None = None,
        new_write_id: Callable[[], str] = lambda: secrets.token_hex(16),
        queue_bytes_max: int = UPLOAD_QUEUE_BYTES_MAX,
        spill: UploadSpill | None = None,
    ) -> None:
        """`spill`: for files that do not fit the upload queue; the worker closes it."""
        self._source, self._control, self._frontier, self._clock = source, control, frontier, clock
        self._rand, self._new_write_id = rand or random.Random(), new_write_id
        name = f"push-{control.tenant}-{source.store_id}"
        self._queue_bytes_max = queue_bytes_max
        self._uploader = Uploader(
            store, name=name, clock=clock, rand=self._rand, queue_bytes_max=queue_bytes_max, spill=spill
        )
        self._grant: IncarnationGrant | None = None
        self._replaced = ReplacedCheck(control, clock, source.store_id)
        self._batcher = Batcher()
        self._stalled = False
        self._never = threading.Event()
        self._resume_at = 0.0
        self._offered_at = self._checked_at = clock.monotonic()
        self._resume_backoff = Backoff(first_s=0.1, max_s=5.0, rand=self._rand)
        self._opening_with: dict[KeyRange, Frontier] = {}  # the frontier used for a region about to open
        self._opened_with: dict[int, Frontier] = {}  # by subscription
        self._checked: Frontier = ()  # the frontier that all subscriptions were last compared with
        self._equivalent: Frontier = ()  # another one with the same resubscribe ids as `_checked`
        self._resubscribing = False
        self.rows = 0  #: handed to the uploader so far
        self.overflows = 0  #: how often the stream was dropped

    @property
    def incarnation(self) -> int:
        """The current incarnation; 0 before `start`."""
        return self._grant.incarnation if self._grant else 0

    @property
    def store_id(self) -> int:
        return self._source.store_id

    @property
    def resubscribing(self) -> bool:
        """New subscriptions were requested at the last tick; their first rows come with the next one."""
        return self._resubscribing

    @property
    def stalled(self) -> bool:
        """The stream was dropped and has not resumed."""
        return self._stalled

    @property
    def control_error(self) -> TiStreamError | None:
        """Why the last check for a newer incarnation failed; None when it succeeded."""
        return self._replaced.error

    @property
    def opening_from(self) -> int | None:
        """Opening scans read history above it; None when no scan runs."""
        return min((opened.checkpoint_ts for opened in self._batcher.opening.values()), default=None)

    def restart_opening_scans(self) -> None:
        """Close all subscriptions that are not ready and register their regions again."""
        self._source.resubscribe(list(self._batcher.opening))

    def start(self, stop: threading.Event, notice: Callable[[TiStreamError], None] = lambda _: None) -> int:
        """Get an incarnation, waiting for the control plane as long as needed; returns the store's largest cut_ts so
        far.

        Returns 0 also when `stop` was set first. `notice` gets each transient error."""
        self._grant = retrying(
            lambda: self._control.issue_incarnation(self._source.store_id),
            stop=stop,
            clock=self._clock,
            rand=self._rand,
            notice=notice,
        )
        return self._grant.max_cut_ts if self._grant else 0

    def step(self, timeout_s: float = 0.0) -> None:
        """Poll the source, waiting up to `timeout_s`, and queue the resulting files.

        Raises Fenced when a newer pusher of the store has started, and the error that stopped the uploads:
        ObjectConflict when the incarnation has another owner."""
        self._check()
        if self._stalled and not self._try_resume():
            pause_s = min(timeout_s, _STALLED_WAIT_S)
            if self._uploader.wait_until_idle(pause_s):  # then it waits for the control plane
                self._clock.wait(self._never, pause_s)
            return
        if self._grant is not None:
            self._check_replaced(self._grant.incarnation)
        for event in self._source.poll(timeout_s, self._checkpoint_of):
            if isinstance(event, Rows):
                _ROWS_IN.inc(event.rows.num_rows)
            elif isinstance(event, SubscriptionOpened):
                opened_with = self._opened_with[event.subscription] = self._opening_with.pop(event.range)
                self._recheck_frontier(opened_with)
            elif isinstance(event, SubscriptionClosed):
                del self._opened_with[event.subscription]
            elif isinstance(event, Tick):
                self._check_cut(event.cut_ts)
                self._replaced.check(self.incarnation)  # an idle pusher checks before it writes again
            for file in self._batcher.handle(event):
                if not self._offer(file):
                    self._drop_stream()
                    return
            if isinstance(event, Tick):
                self._resubscribe()

    def wait_until_queued_at_most(self, queued_bytes: int, timeout_s: float) -> bool:
        """For a source that can be paused: wait until at most this many bytes wait to be uploaded."""
        done = self._uploader.wait_until_queued_at_most(queued_bytes, timeout_s)
        self._check()
        return done

    def wait_until_durable(self, timeout_s: float) -> bool:
        done = self._uploader.wait_until_idle(timeout_s)
        self._check()
        return done

    def uploads(self) -> UploadStats:
        return self._uploader.stats()

    def close(self) -> None:
        """Stop. What is not uploaded is dropped, as after a crash."""
        self._source.close()
        self._uploader.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _check(self) -> None:
        try:
            self._uploader.check()
        except ObjectConflict as e:
            e.hint = "Another pusher uses the same incarnation of this store. Find it and stop one of the two."
            raise

    def _check_replaced(self, incarnation: int) -> None:
        now = self._clock.monotonic()
        if now - self._offered_at < _IDLE_S or now - self._checked_at >= _IDLE_CHECK_S:
            self._replaced.check(incarnation)
            self._checked_at = now

    def _checkpoint_of(self, region: KeyRange) -> int | None:
        """Where a subscription starts; None = not now: no opening scan starts while many files wait."""
        if not self._uploader.wait_until_queued_at_most(self._queue_bytes_max // 2, 0.0):
            return None
        frontier = self._frontier.read()
        checkpoint_ts = checkpoint_for(frontier, region)
        if checkpoint_ts is not None:
            self._opening_with[region] = frontier
        return checkpoint_ts

    def _check_cut(self, cut_ts: int) -> None:
        grant = self._grant
        if grant is None or cut_ts < grant.max_cut_ts:
            raise InvalidInput(
                "the source's time is behind what this store has already pushed",
                store=self._source.store_id,
                cut_ts=cut_ts,
                max_cut_ts=grant and grant.max_cut_ts,
            )

    def _offer(self, file: UnwrittenFile) -> bool:
        key = BatchKey(
            tenant=self._control.tenant, store_id=self._source.store_id, incarnation=self.incarnation, seq=file.seq
        )
        data = encode_batch_file(
            key, cut_ts=file.cut_ts, rows=file.rows, regions=file.regions, write_id=self._new_write_id()
        )
        self._offered_at = self._clock.monotonic()
        taken = self._uploader.offer(str(key), data)
        if taken:
            self.rows += file.rows.num_rows
            _ROWS_OUT.inc(file.rows.num_rows)
            _BYTES_OUT.inc(len(data))
        return taken

    def _drop_stream(self) -> None:
        """Uploads cannot keep up: end the incarnation rather than slow the upstream."""
        log.warning("uploads too slow, stream dropped", store=self._source.store_id, incarnation=self.incarnation)
        self._stalled = True
        self.overflows += 1
        metrics.STREAMS_DROPPED.inc()
        self._source.drop()
        self._uploader.abandon()
        self._opening_with.clear()
        self._opened_with.clear()

    def _try_resume(self) -> bool:
        """Start a new incarnation once the uploads in flight are done and the control plane answers."""
        if not self._uploader.idle or self._clock.monotonic() < self._resume_at:
            return False
        try:
            self._grant = self._control.issue_incarnation(self._source.store_id)
        except TiStreamError as e:
            if e.kind is not ErrorKind.RETRY:
                raise
            self._resume_at = self._clock.monotonic() + self._resume_backoff.next_s()
            return False
        self._resume_backoff.reset()
        self._batcher = Batcher()
        self._stalled = False
        self._source.resume()
        log.info("pusher resumed", store=self._source.store_id, incarnation=self.incarnation)
        return True

    def _recheck_frontier(self, opened_with: Frontier) -> None:
        """Note that a subscription opened after a tick may use an older frontier than the tick compared."""
        if not self._checked or opened_with is self._checked or opened_with is self._equivalent:
            return
        if _resubscribe_ids(opened_with) == _resubscribe_ids(self._checked):
            self._equivalent = opened_with
        else:
            self._checked = ()

    def _resubscribe(self) -> None:
        """Request new subscriptions where the frontier asks for them."""
        self._resubscribing = False
        frontier = self._frontier.read()
        if _resubscribe_ids(frontier) == _resubscribe_ids(self._checked):
            return
        self._checked = frontier
        again = [
            subscription
            for subscription, opened in self._batcher.subscriptions.items()
            if wants_resubscribe(self._opened_with[subscription], frontier, opened.range)
        ]
        if again:
            log.info("resubscribing", store=self._source.store_id, subscriptions=len(again))
            self._source.resubscribe(again)
            self._resubscribing = True


def _resubscribe_ids(frontier: Frontier) -> list[tuple[KeyRange, int]]:
    return [(entry.range, entry.resubscribe_id) for entry in frontier]
