"""Uploads encoded files in order, a few at once, retrying the same bytes until they are stored.

    offer(key, data) -> bounded queue -> at most UPLOADS_IN_FLIGHT_MAX threads -> ObjectStore.put

- Uploads start in the order of the offers, at most `in_flight_max` at once; so a file may become visible before an
  earlier one, but only within that window;
- a failed upload is retried unchanged with growing, jittered pauses, without limit;
- any other error (above all another writer's object under the key) stops all uploads, and `check` raises it;
- the queue is bounded in bytes. Overflow goes to the spill, if there is one, which is bounded too. When both are full
  the offer is refused and the caller decides.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from dataclasses import dataclass

import structlog

from pusher.upload_spill import Parked, UploadSpill
from tistream import limits
from tistream.clock import Clock
from tistream.errors import ErrorKind, TiStreamError
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime import metrics
from tistream.runtime.service import Backoff

log = structlog.get_logger(__name__)

_UPLOADED = metrics.STAGE.labels("upstream_flush")
_PAUSE_FIRST_S = 0.05
_PAUSE_MAX_S = 5.0


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A file in the queue: its bytes, or where they are parked."""

    key: str
    content: bytes | Parked
    since_s: float  #: the clock's monotonic time of the offer

    @property
    def size(self) -> int:
        return self.content.size if isinstance(self.content, Parked) else len(self.content)

    @property
    def parked(self) -> int:
        """Bytes on disk."""
        return self.content.size if isinstance(self.content, Parked) else 0

    def take(self) -> bytes:
        return self.content.take() if isinstance(self.content, Parked) else self.content

    def drop(self) -> None:
        if isinstance(self.content, Parked):
            self.content.drop()


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadStats:
    files: int
    bytes: int
    retries: int


class Uploader:
    """The upload threads of one pusher. Public methods are called from one thread."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        name: str,
        clock: Clock,
        rand: random.Random | None = None,
        in_flight_max: int = limits.UPLOADS_IN_FLIGHT_MAX,
        queue_bytes_max: int = limits.UPLOAD_QUEUE_BYTES_MAX,
        spill: UploadSpill | None = None,
    ) -> None:
        self._store, self._name, self._clock, self._rand = store, name, clock, rand or random.Random()
        self._in_flight_max, self._queue_bytes_max, self._spill = in_flight_max, queue_bytes_max, spill
        self._changed = threading.Condition()
        self._queue: deque[_Waiting] = deque()
        self._queue_bytes = self._parked_bytes = 0  # all waiting bytes; the part on disk
        self._in_flight = 0
        self._stop = threading.Event()
        self._error: TiStreamError | None = None
        self._threads: list[threading.Thread] = []
        self._files = self._bytes = self._retries = 0

    def offer(self, key: str, data: bytes) -> bool:
        """Queue a file; False when the queue is full. An empty queue accepts a file of any size."""
        with self._changed:
            if not self._queue or self._queue_bytes - self._parked_bytes + len(data) <= self._queue_bytes_max:
                self._add(_Waiting(key, data, self._clock.monotonic()))
                return True
            parked_bytes = self._parked_bytes
        parked = self._spill.park(data, parked_bytes) if self._spill is not None else None
        if parked is None:
            return False
        with self._changed:
            self._add(_Waiting(key, parked, self._clock.monotonic()))
        return True

    def check(self) -> None:
        with self._changed:
            if self._error is not None:
                raise self._error

    @property
    def idle(self) -> bool:
        """Nothing is queued or in flight."""
        with self._changed:
            return not self._queue and not self._in_flight

    def wait_until_idle(self, timeout_s: float | None = None) -> bool:
        """Wait until all offered files are stored, or an error stopped the uploads (see `check`)."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._error is not None or (not self._queue and not self._in_flight), timeout_s
            )

    def wait_until_queued_at_most(self, queued_bytes: int, timeout_s: float) -> bool:
        """Wait until at most this many bytes are queued, or an error stopped the uploads (see `check`)."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._error is not None or self._queue_bytes <= queued_bytes, timeout_s
            )

    def abandon(self) -> None:
        """Drop the queue, but keep the files in flight, or else the oldest one: its success shows that the store is
        back."""
        with self._changed:
            while len(self._queue) > (0 if self._in_flight else 1):
                dropped = self._queue.pop()
                self._count(dropped, -1)
                dropped.drop()
            self._changed.notify_all()

    def stats(self) -> UploadStats:
        with self._changed:
            return UploadStats(files=self._files, bytes=self._bytes, retries=self._retries)

    def close(self) -> None:
        """Stop; what is not there yet is given up. Waits for the requests under way."""
        self._stop.set()
        with self._changed:
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()
        metrics.UPLOAD_QUEUE_BYTES.dec(self._queue_bytes)
        if self._spill is not None:
            self._spill.close()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _add(self, waiting: _Waiting) -> None:
        self._queue.append(waiting)
        self._count(waiting, 1)
        self._start_thread()
        self._changed.notify_all()

    def _count(self, waiting: _Waiting, sign: int) -> None:
        self._queue_bytes += sign * waiting.size
        metrics.UPLOAD_QUEUE_BYTES.inc(sign * waiting.size)
        self._parked_bytes += sign * waiting.parked

    def _start_thread(self) -> None:
        wanted = min(self._in_flight_max, len(self._queue) + self._in_flight)
        if len(self._threads) < wanted:
            name = f"{self._name}-upload-{len(self._threads) + 1}"
            self._threads.append(threading.Thread(target=self._run, name=name, daemon=True))
            self._threads[-1].start()

    def _run(self) -> None:
        while (taken := self._take()) is not None:
            try:
                done = self._put(taken.key, taken.take())
            except Exception as e:  # noqa: BLE001 - whatever it is, `check` raises it in the caller's thread
                self._settle(e, size=0)
                return
            if done:
                _UPLOADED.observe(self._clock.monotonic() - taken.since_s)
            self._settle(None, size=taken.size if done else 0)

    def _take(self) -> _Waiting | None:
        with self._changed:
            self._changed.wait_for(lambda: bool(self._queue) or self._stop.is_set() or self._error is not None)
            if self._stop.is_set() or self._error is not None:
                return None
            taken = self._queue.popleft()
            self._count(taken, -1)
            self._in_flight += 1
            return taken

    def _put(self, key: str, data: bytes) -> bool:
        """Put until it succeeds; False when stopped first."""
        backoff = Backoff(first_s=_PAUSE_FIRST_S, max_s=_PAUSE_MAX_S, rand=self._rand)
        while not self._stop.is_set():
            try:
                self._store.put(key, data)
            except TiStreamError as e:
                if e.kind is not ErrorKind.RETRY:
                    raise
                log.warning("upload failed, retrying", object=key, error=str(e))
                metrics.UPLOAD_RETRIES.inc()
                with self._changed:
                    self._retries += 1
            else:
                return True
            self._clock.wait(self._stop, backoff.next_s())
        return False

    def _settle(self, error: Exception | None, *, size: int) -> None:
        with self._changed:
            self._in_flight -= 1
            if error is not None and self._error is None:
                if not isinstance(error, TiStreamError):
                    error = TiStreamError("an upload failed unexpectedly", cause=repr(error))
                self._error = error
            if size:
                self._files += 1
                self._bytes += size
            self._changed.notify_all()
