"""The gRPC streams of a cluster's change feed: requests in, messages out, for the owner of the cluster's state.

Relations:

- one lock guards the state and the streams; its holder never waits for a client;
- messages of a stream are sent in order; `unread_bytes` is what the slowest client has not taken yet;
- a cut stream ends with UNAVAILABLE after its queued messages, or at once (`cut_store(lost=True)`), and so does every
  new one while its store refuses.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

import grpc
import structlog

from simulator.loopback.core.feed_wire import Request, read_request
from tistream.errors import TiStreamError

log = structlog.get_logger(__name__)

FEED = "/cdcpb.ChangeData/EventFeedV2"
_FEATURES = ("features", "stream-multiplexing")
_WAIT_S = 0.2


class FeedOwner(Protocol):
    """Callbacks of the streams. Called with the lock held."""

    def is_away(self, store_id: int) -> bool:
        """Whether the store takes no streams now."""
        ...

    def requested(self, stream: int, store_id: int, request: Request) -> None: ...

    def stream_over(self, stream: int) -> None: ...

    def failed(self, fault: Exception) -> None:
        """A defect of the owner came to light on a stream."""
        ...


class _Stream:
    """A client's stream and its queue."""

    def __init__(self, store_id: int) -> None:
        self.store_id = store_id
        self.queue: deque[bytes] = deque()
        self.queued_bytes = 0
        self.cut = False  #: it ends after the queued messages


class FeedStreams:
    """All streams. Every method but `feed` is called with the lock held."""

    def __init__(self, lock: threading.Condition, owner: FeedOwner) -> None:
        self._lock, self._owner = lock, owner
        self._streams: dict[int, _Stream] = {}
        self._opened = 0
        self.sent = 0  #: messages handed to gRPC, over all streams

    def __bool__(self) -> bool:
        return bool(self._streams)

    @property
    def unread_bytes(self) -> int:
        """Of the stream that has most of them."""
        return max((s.queued_bytes for s in self._streams.values()), default=0)

    def slow(self, bytes_max: int) -> list[int]:
        """Streams that have more than that queued."""
        return [number for number, s in self._streams.items() if s.queued_bytes > bytes_max and not s.cut]

    def put(self, number: int, data: bytes) -> None:
        """Send a message; nothing happens when the stream is over."""
        stream = self._streams.get(number)
        if stream is not None and not stream.cut:
            stream.queue.append(data)
            stream.queued_bytes += len(data)
            self._lock.notify_all()

    def cut(self, number: int) -> None:
        """End a stream."""
        if (stream := self._streams.get(number)) is not None:
            stream.cut = True
            self._lock.notify_all()

    def cut_store(self, store_id: int, *, lost: bool = False) -> None:
        """End the streams of a store. `lost`: queued messages are dropped."""
        for stream in self._streams.values():
            if stream.store_id == store_id:
                stream.cut = True
                if lost:
                    stream.queue.clear()
        self._lock.notify_all()

    def cut_all(self) -> None:
        for stream in self._streams.values():
            stream.cut = True
        self._lock.notify_all()

    def feed(self, store_id: int, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """One EventFeedV2 stream, from its beginning to its end; takes the lock itself."""
        if _FEATURES not in context.invocation_metadata():
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "only multiplexed streams are served")
        with self._lock:
            if self._owner.is_away(store_id):
                context.abort(grpc.StatusCode.UNAVAILABLE, "the store is away")
            self._opened += 1
            number, stream = self._opened, _Stream(store_id)
            self._streams[number] = stream
        threading.Thread(target=self._take_requests, args=(number, requests), name="feed-in", daemon=True).start()
        try:
            while context.is_active():
                with self._lock:
                    if not stream.queue and not stream.cut:
                        self._lock.wait(_WAIT_S)
                    batch = list(stream.queue)
                    stream.queue.clear()
                    self.sent += len(batch)
                for data in batch:
                    yield data
                    with self._lock:
                        stream.queued_bytes -= len(data)
                if stream.cut and not stream.queue:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "error reading from server: EOF")
        finally:
            with self._lock:
                if self._streams.pop(number, None) is not None:
                    self._owner.stream_over(number)
                    self._lock.notify_all()

    def _take_requests(self, number: int, requests: Iterator[bytes]) -> None:
        try:
            for data in requests:
                request = read_request(data)
                with self._lock:
                    if (stream := self._streams.get(number)) is None or stream.cut:
                        return
                    self._owner.requested(number, stream.store_id, request)
                    self._lock.notify_all()
        except TiStreamError as e:
            log.warning("a client sent a request that cannot be read, its stream ends", error=str(e))
            with self._lock:
                self.cut(number)
        except grpc.RpcError:
            pass  # the client is gone, which ends its stream
        except Exception as e:
            log.exception("the served cluster has ended")
            with self._lock:
                self._owner.failed(e)
