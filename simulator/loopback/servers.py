"""gRPC servers on the loopback interface for messages that are plain bytes: one for PD, one for each store.

    server = LoopbackServer()
    server.start({"/pdpb.PD/GetMembers": unary(answer), "/pdpb.PD/Tso": streaming(answer_all)})

A method that a server does not have is UNIMPLEMENTED, as gRPC has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc

_THREADS = 64
_GRACE_S = 0.5
_MESSAGE_BYTES_MAX = 64 << 20
_OPTIONS = (
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),  # a client may look after its connection as often as it likes
)

Unary = Callable[[bytes, Any], bytes]
Streaming = Callable[[Iterator[bytes], Any], Iterator[bytes]]


def unary(answer: Unary) -> grpc.RpcMethodHandler:
    """A method with one request and one answer; the second argument is gRPC's context."""
    return grpc.unary_unary_rpc_method_handler(answer)


def streaming(answer: Streaming) -> grpc.RpcMethodHandler:
    """A method with many of both."""
    return grpc.stream_stream_rpc_method_handler(answer)


class LoopbackServer:
    """One server. It has its address before it is started, so that its answers may name it."""

    def __init__(self, interceptors: Sequence[grpc.ServerInterceptor] = (), host: str = "127.0.0.1") -> None:
        """`interceptors` see every call first, and may answer in its place."""
        self._server = grpc.server(ThreadPoolExecutor(_THREADS), options=_OPTIONS, interceptors=interceptors)
        self.address = f"{host}:{self._server.add_insecure_port(f'{host}:0')}"

    def start(self, methods: Mapping[str, grpc.RpcMethodHandler]) -> None:
        """Answer these methods, by their full names."""
        self._server.add_generic_rpc_handlers([_Methods(methods)])
        self._server.start()

    @staticmethod
    def stop(servers: Sequence[LoopbackServer]) -> None:
        """End all calls of some servers, and wait until they have."""
        for stopped in [s._server.stop(_GRACE_S) for s in servers]:
            stopped.wait()


class _Methods(grpc.GenericRpcHandler):  # type: ignore[misc]  # untyped base
    """Finds methods by their full names."""

    def __init__(self, methods: Mapping[str, grpc.RpcMethodHandler]) -> None:
        self._methods = methods

    def service(self, details: Any) -> grpc.RpcMethodHandler | None:
        return self._methods.get(details.method)
