"""Timestamps from PD: one stream, and one request for all callers that wait.

    tso() -> int       larger than any timestamp taken before the call

- A timestamp comes from a request that was sent after its caller asked, never from a cache;
- one of the waiting callers asks for all; the others wait, and one of them then asks for later callers;
- a stream that fails or does not answer in time is closed; the request is repeated on a new one, at the leader;
- so is a stream whose timestamps do not increase: its server lost the lead, or uses another clock.

Errors: see PdChannel.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator

import grpc

from tistream.errors import CorruptObject, StoreUnavailable
from tistream.tikv.core import wire
from tistream.tikv.core.pd_messages import encoded, read_tso
from tistream.tikv.pd_channel import PdChannel

_METHOD = "/pdpb.PD/Tso"
_ANSWER_S = 3.0


class _SilentStream(grpc.RpcError):  # type: ignore[misc]  # untyped base
    """The stream ended or did not answer in time."""

    def code(self) -> grpc.StatusCode:
        return grpc.StatusCode.UNAVAILABLE

    def details(self) -> str:
        return "no answer on the timestamp stream"


class _Stream:
    """One Tso stream. Used by one thread at a time."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[bytes | grpc.RpcError | None] = queue.SimpleQueue()
        self._call = channel.stream_stream(_METHOD)(iter(self._requests.get, None))
        self._reader = threading.Thread(target=self._read, args=(self._call,), name="pd-tso", daemon=True)
        self._reader.start()

    def ask(self, request: bytes) -> bytes:
        """The answer, or grpc.RpcError."""
        self._requests.put(request)
        try:
            answer = self._answers.get(timeout=_ANSWER_S)
        except queue.Empty:
            raise _SilentStream from None
        if isinstance(answer, bytes):
            return answer
        raise answer or _SilentStream

    def close(self) -> None:
        self._requests.put(None)
        self._call.cancel()
        # Inside the library when the interpreter ends, it would abort a process that has done its work.
        self._reader.join(_ANSWER_S)

    def _read(self, call: Iterator[bytes]) -> None:
        try:
            for answer in call:
                self._answers.put(answer)
            self._answers.put(None)
        except grpc.RpcError as e:
            self._answers.put(e)


class TsoClient:
    """Gets timestamps. Thread-safe; `close` it."""

    def __init__(self, channel: PdChannel) -> None:
        self._channel = channel
        self._turn = threading.Condition()
        self._asking = False
        self._waiting: list[_Caller] = []
        self._stream: _Stream | None = None
        self._closed = False
        self.newest = 0  #: the largest taken so far

    def take(self) -> int:
        me = _Caller()
        with self._turn:
            self._waiting.append(me)
            while self._asking and not me.done:
                self._turn.wait()
            if not me.done:
                self._asking = True
                batch, self._waiting = self._waiting, []
        if not me.done:
            self._serve(batch)
        if me.error is not None:
            raise me.error
        return me.ts

    def rest(self) -> None:
        """Close the stream, unless a caller uses it; the next caller opens another. A stream costs threads."""
        with self._turn:
            if not self._asking:
                self._drop()

    def close(self) -> None:
        with self._turn:
            self._closed = True
            self._drop()

    def _serve(self, batch: list[_Caller]) -> None:
        """Ask for all of `batch`, which includes the caller's own."""
        last, error = 0, None
        try:
            last = self._channel.at_leader(_METHOD, lambda channel: self._ask(channel, len(batch)))
        except Exception as e:  # noqa: BLE001  # every caller gets it
            error = e
        with self._turn:
            for i, caller in enumerate(batch):
                caller.ts, caller.error, caller.done = last - len(batch) + 1 + i, error, True
            self._asking = False
            self._turn.notify_all()

    def _ask(self, channel: grpc.Channel, count: int) -> int:
        with self._turn:
            if self._closed:
                raise StoreUnavailable("the PD client was closed")
            stream = self._stream = self._stream or _Stream(channel)
        try:
            last = read_tso(stream.ask(encoded(wire.TsoRequest(count=count), self._channel.cluster_id)), count)
            if last - count < self.newest:
                raise CorruptObject("PD returned timestamps that it had returned before", last=last, newest=self.newest)
            self.newest = last
            return last
        except BaseException:
            with self._turn:
                self._drop()
            raise

    def _drop(self) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None


class _Caller:
    __slots__ = ("done", "error", "ts")

    def __init__(self) -> None:
        self.done, self.ts = False, 0
        self.error: Exception | None = None
