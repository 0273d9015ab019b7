"""One gRPC stream of a store's change feed, and the inbox for its messages.

    /cdcpb.ChangeData/EventFeedV2, metadata `features: stream-multiplexing`

A thread receives messages as fast as it can, so the store never waits for the pusher, into a bounded `StreamInbox`.
Overflow ends the stream. That costs an opening scan of its regions; a store that buffers for a slow reader would affect
everyone. One exception: a single opening scan larger than the inbox would never finish, so the store may wait for it,
for a limited time.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import grpc

from tistream.tikv.channels import Tls, open_channel

METHOD = "/cdcpb.ChangeData/EventFeedV2"
PATIENCE_S = 30.0
METADATA = (("features", "stream-multiplexing"),)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    stream: int
    reason: str
    overflow: bool = False  #: closed by us because the inbox was full


class StreamInbox:
    """Unprocessed messages of the current stream, and how it ended. Thread-safe."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._condition = threading.Condition()
        self._messages: list[bytes] = []
        self._bytes = 0
        self._stream = 0  # the current stream
        self._ended: Ended | None = None
        self._woken = False
        self._wait_when_full = False

    def wait_when_full(self, wait: bool) -> None:
        """Whether `put` waits up to PATIENCE_S for space before overflow ends the stream."""
        with self._condition:
            self._wait_when_full = wait
            self._condition.notify_all()

    def begin(self, stream: int) -> None:
        """Accept only messages of this stream (0: none) from now on, and drop earlier ones."""
        with self._condition:
            self._stream, self._ended = stream, None
            self._clear()
            self._condition.notify_all()

    def put(self, stream: int, message: bytes) -> bool:
        """Add a message; False when the stream is no longer wanted."""
        with self._condition:
            self._condition.wait_for(lambda: not self._must_wait(stream, message), PATIENCE_S)
            if stream != self._stream or self._ended is not None:
                return False
            if not self._fits(message):
                self._clear()
                self._ended = Ended(
                    stream=stream, reason="messages came faster than they were processed", overflow=True
                )
            else:
                self._messages.append(message)
                self._bytes += len(message)
            self._condition.notify_all()
            return self._ended is None

    def end(self, stream: int, reason: str) -> None:
        with self._condition:
            if stream == self._stream and self._ended is None:
                self._ended = Ended(stream=stream, reason=reason)
                self._condition.notify_all()

    def wake(self) -> None:
        with self._condition:
            self._woken = True
            self._condition.notify_all()

    def wait(self, timeout_s: float) -> None:
        """Wait for a message, an end or `wake`."""
        with self._condition:
            if not (self._messages or self._ended or self._woken):
                self._condition.wait(timeout_s)
            self._woken = False

    def take(self, bytes_max: int) -> tuple[list[bytes], Ended | None]:
        """Messages of about `bytes_max` bytes, in order; and how the stream ended, once all messages were taken."""
        with self._condition:
            taken = size = 0
            while taken < len(self._messages) and size < bytes_max:
                size += len(self._messages[taken])
                taken += 1
            messages, self._messages = self._messages[:taken], self._messages[taken:]
            self._bytes -= size
            self._condition.notify_all()
            ended = None
            if not self._messages and self._ended is not None:
                ended, self._ended, self._stream = self._ended, None, 0
            return messages, ended

    def _must_wait(self, stream: int, message: bytes) -> bool:
        wanted = stream == self._stream and self._ended is None
        return wanted and self._wait_when_full and not self._fits(message)

    def _fits(self, message: bytes) -> bool:
        return self._bytes + len(message) <= self._bytes_max

    def _clear(self) -> None:
        self._messages, self._bytes = [], 0


class TikvStream:
    """A connection with one stream. Opens in the background; faults arrive in the inbox."""

    def __init__(self, number: int, address: str, tls: Tls | None, inbox: StreamInbox) -> None:
        self._number, self._inbox = number, inbox
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._channel = open_channel(address, tls)
        open_stream = self._channel.stream_stream(METHOD, request_serializer=_same, response_deserializer=_same)
        self._call = open_stream(_until_none(self._requests), metadata=METADATA)
        self._thread = threading.Thread(target=self._receive, name=f"feed-{address}", daemon=True)
        self._thread.start()

    def send(self, request: bytes) -> None:
        """Queue a request; does not block."""
        self._requests.put(request)

    def close(self) -> None:
        self._requests.put(None)
        self._call.cancel()
        self._thread.join()
        self._channel.close()

    def _receive(self) -> None:
        try:
            for message in self._call:
                if not self._inbox.put(self._number, message):
                    self._call.cancel()
                    return
            self._inbox.end(self._number, "closed by the store")
        except grpc.RpcError as e:
            code = e.code() if isinstance(e, grpc.Call) else None
            details = e.details() if isinstance(e, grpc.Call) else ""
            self._inbox.end(self._number, f"{code.name if code else type(e).__name__}: {details}")


def _same(message: bytes) -> bytes:
    return message


def _until_none(items: queue.SimpleQueue[T | None]) -> Iterator[T]:
    while (item := items.get()) is not None:
        yield item
