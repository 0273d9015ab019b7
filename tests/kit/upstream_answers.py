"""Answers of PD and TiKV in place of the right one: each error of their protocols, unknown ones, silence, nonsense.

    upstream = Upstream()
    with ServedCluster(..., interceptors=[upstream]) as served:
        upstream.arm("/pdpb.PD/GetMembers", status(grpc.StatusCode.UNKNOWN, "etcdserver: request timed out"))
        ...
        upstream.disarm()

An interceptor of the servers, so that a client cannot tell: a fault answers each call of its method in place of the
modelled cluster, until it is disarmed.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import grpc

from simulator.loopback.core.feed_wire import read_request
from simulator.serve.served import CLUSTER_ID
from tistream.codec.protobuf import message, octets, uint

TSO, FEED = "/pdpb.PD/Tso", "/cdcpb.ChangeData/EventFeedV2"
_HANG_S = 30.0


class HastyClock:
    """Everybody who waits by this clock waits a tenth as long."""

    FACTOR = 10.0

    def __init__(self) -> None:
        self._began, self._unix_s = time.monotonic(), time.time()

    def monotonic(self) -> float:
        return (time.monotonic() - self._began) * self.FACTOR

    def unix_ms(self) -> int:
        return int((self._unix_s + self.monotonic()) * 1000)

    def wait(self, event: threading.Event, seconds: float) -> bool:
        return event.wait(seconds / self.FACTOR)


@dataclass(frozen=True, slots=True, kw_only=True)
class GrpcFault:
    """What is answered instead. `words`: what a pusher is expected to say of it."""

    words: str
    answer: Callable[[bytes, Any], bytes]  #: (request, gRPC's context); may abort


def status(code: grpc.StatusCode, text: str) -> GrpcFault:
    """A gRPC error."""
    return GrpcFault(words=text, answer=lambda _, context: _abort(context, code, text))


def silence(words: str) -> GrpcFault:
    """No answer, though the connection stands."""

    def answer(_: bytes, context: Any) -> bytes:
        over = threading.Event()
        context.add_callback(over.set)
        over.wait(_HANG_S)
        return b""

    return GrpcFault(words=words, answer=answer)


def said(answer: bytes, words: str) -> GrpcFault:
    """Bytes, whatever they mean."""
    return GrpcFault(words=words, answer=lambda _, __: answer)


def header_error(kind: int, text: str) -> GrpcFault:
    """An error as PD says it in the header of its answers (pdpb.ErrorType)."""
    error = uint(1, kind) + octets(2, text.encode())
    return said(message(1, uint(1, CLUSTER_ID) + message(2, error)), text)


def region_error(kind: int, name: str) -> GrpcFault:
    """errorpb.Error of a read: the field says which."""
    return said(message(1, octets(1, b"words of " + name.encode()) + message(kind, b"")), name)


def key_error(kind: int, text: str, *, is_text: bool = True) -> GrpcFault:
    """kvrpcpb.KeyError of a read: the field says which."""
    body = octets(kind, text.encode()) if is_text else message(kind, b"")
    return said(message(2, message(1, body)), text)


def registration_error(kind: int, name: str) -> GrpcFault:
    """cdcpb.Error of a registration: the field says which."""

    def answer(request: bytes, _: Any) -> bytes:
        asking = read_request(request)
        if asking.deregister:
            return b""
        return message(1, uint(1, asking.region_id) + message(5, message(kind, b"")) + uint(7, asking.request_id))

    return GrpcFault(words=name, answer=answer)


#: what a client is told when the other side, or something between, is not well; the last text no version has
GRPC_FAULTS = [
    status(grpc.StatusCode.UNAVAILABLE, "connection refused by a proxy"),
    status(grpc.StatusCode.UNKNOWN, "etcdserver: request timed out"),
    status(grpc.StatusCode.UNKNOWN, "timestamp in memory isn't initialized"),
    status(grpc.StatusCode.UNKNOWN, "Stream removed"),
    status(grpc.StatusCode.INTERNAL, "received RST_STREAM with error code 2"),
    status(grpc.StatusCode.CANCELLED, "the server closes"),
    status(grpc.StatusCode.DEADLINE_EXCEEDED, "too slow"),
    status(grpc.StatusCode.RESOURCE_EXHAUSTED, "rate limit exceeded"),
    status(grpc.StatusCode.UNAUTHENTICATED, "401 of an ingress"),
    status(grpc.StatusCode.PERMISSION_DENIED, "common name check fail"),
    status(grpc.StatusCode.FAILED_PRECONDITION, "TiKV cluster not bootstrapped"),
    status(grpc.StatusCode.ABORTED, "not leader"),
    status(grpc.StatusCode.DATA_LOSS, "no version says this"),
]


class Upstream(grpc.ServerInterceptor):  # type: ignore[misc]  # untyped base
    """Faults by the whole names of their methods. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._faults: dict[str, GrpcFault] = {}
        self._held: list[Any] = []  # contexts of streams that a fault answers
        self.hits: Counter[str] = Counter()

    def arm(self, method: str, fault: GrpcFault) -> None:
        """Answer so from now on. Streams that the fault before answered end."""
        self._set(method, fault)

    def disarm(self, method: str) -> None:
        """Answer as the cluster does."""
        self._set(method, None)

    def _set(self, method: str, fault: GrpcFault | None) -> None:
        with self._lock:
            if fault is None:
                self._faults.pop(method, None)
            else:
                self._faults[method] = fault
            waiting, self._held = self._held, []
        for context in waiting:
            context.cancel()

    def intercept_service(self, continuation: Callable[[Any], Any], details: Any) -> Any:
        """See grpc.ServerInterceptor."""
        handler = continuation(details)
        method = details.method
        if handler is None:
            return None
        if handler.unary_unary:
            plain = handler.unary_unary
            return grpc.unary_unary_rpc_method_handler(lambda request, ctx: self._unary(method, plain, request, ctx))
        streamed = handler.stream_stream
        if method == FEED:
            return grpc.stream_stream_rpc_method_handler(lambda requests, ctx: self._feed(streamed, requests, ctx))
        return grpc.stream_stream_rpc_method_handler(lambda requests, ctx: self._each(method, streamed, requests, ctx))

    def _fault(self, method: str, context: Any = None) -> GrpcFault | None:
        with self._lock:
            fault = self._faults.get(method)
            if fault is not None:
                self.hits[method] += 1
                if context is not None:
                    self._held.append(context)
            return fault

    def _unary(self, method: str, plain: Callable[[bytes, Any], bytes], request: bytes, context: Any) -> bytes:
        fault = self._fault(method)
        return plain(request, context) if fault is None else fault.answer(request, context)

    def _each(self, method: str, plain: Any, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """A stream with an answer for each request."""
        for request in requests:
            fault = self._fault(method)
            if fault is None:
                yield from plain(iter([request]), context)
            else:
                yield fault.answer(request, context)

    def _feed(self, plain: Any, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        fault = self._fault(FEED, context)
        if fault is None:
            yield from plain(requests, context)
            return
        while True:
            try:
                request = next(requests)
            except Exception:  # noqa: BLE001  # the requests end with the call, by StopIteration or an error of gRPC
                return
            yield fault.answer(request, context)


def _abort(context: Any, code: grpc.StatusCode, text: str) -> NoReturn:
    context.abort(code, text)
    raise AssertionError("abort raises")
