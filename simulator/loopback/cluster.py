"""A cluster on the loopback interface: servers for PD and the stores, one lock, and the thread that drives it."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Self

import grpc
import structlog

from simulator.loopback.core.feed_wire import Request
from simulator.loopback.core.pd import TSO, PdAnswers
from simulator.loopback.feed_streams import FEED, FeedStreams
from simulator.loopback.servers import LoopbackServer, Unary, streaming, unary
from tistream.clock import Clock, SystemClock
from tistream.errors import InvalidInput, TiStreamError

log = structlog.get_logger(__name__)

_PD = 0  # among the servers, which are known by their stores' ids


class LoopbackCluster(ABC):
    """Use it as a context, or `close` it."""

    def __init__(
        self,
        store_ids: Iterable[int],
        clock: Clock | None,
        interceptors: Sequence[grpc.ServerInterceptor] = (),
        host: str = "127.0.0.1",
    ) -> None:
        self._clock = clock or SystemClock()
        self._new_server = partial(LoopbackServer, interceptors, host)
        self._lock = threading.Condition()
        self._closed = threading.Event()
        self._fault: Exception | None = None
        self.streams = FeedStreams(self._lock, self)
        self.store_ids = tuple(store_ids)
        self._servers = {store_id: self._new_server() for store_id in (_PD, *self.store_ids)}
        self.pd_address = self._servers[_PD].address  #: host:port
        self._addresses = {store_id: self._servers[store_id].address for store_id in self.store_ids}
        self._thread = threading.Thread(target=self._run, name="cluster", daemon=True)

    def _start(self, pd: PdAnswers, without: Collection[str] = ()) -> None:
        """Start the servers and the thread. `without`: methods that PD does not have."""
        self._servers[_PD].start(pd_methods(pd, self._lock, without=without))
        for store_id in self.store_ids:
            self._start_store(store_id)
        self._thread.start()

    def _start_store(self, store_id: int) -> None:
        feed = streaming(partial(self.streams.feed, store_id))
        self._servers[store_id].start({FEED: feed, **self._store_methods(store_id)})

    def _add_server(self, store_id: int) -> None:
        """A server for another store; its address is listed."""
        self._servers[store_id] = self._new_server()
        self._start_store(store_id)
        self.store_ids += (store_id,)
        self._addresses[store_id] = self._servers[store_id].address

    def _store_methods(self, store_id: int) -> dict[str, grpc.RpcMethodHandler]:
        """A store's methods besides the change feed."""
        return {}

    @abstractmethod
    def _play(self) -> None:
        """Move the cluster until it is closed."""

    def _run(self) -> None:
        try:
            self._play()
        except Exception as e:
            log.exception("the cluster has ended")
            with self._lock:
                self.failed(e)

    def close(self) -> None:
        """Stop the servers; streams end."""
        self._closed.set()
        with self._lock:
            self.streams.cut_all()
        LoopbackServer.stop(list(self._servers.values()))
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    @abstractmethod
    def is_away(self, store_id: int) -> bool: ...

    @abstractmethod
    def requested(self, stream: int, store_id: int, request: Request) -> None: ...

    @abstractmethod
    def stream_over(self, stream: int) -> None: ...

    def failed(self, fault: Exception) -> None:
        """A defect: the cluster stops, and waiting threads raise it."""
        self._fault = self._fault or fault
        self.streams.cut_all()


def pd_methods(
    pd: PdAnswers, lock: AbstractContextManager[Any], *, without: Collection[str] = ()
) -> dict[str, grpc.RpcMethodHandler]:
    """PD's methods for a server; `lock` is held around every answer. A refused request gets PD's status for it."""

    def answered(method: str) -> Unary:
        return lambda request, context: _guarded(lambda: pd.answer(method, request), lock, context)

    def stamps(requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        for request in requests:
            yield _guarded(lambda data=request: pd.timestamps(data), lock, context)  # type: ignore[misc]

    return {TSO: streaming(stamps), **{m: unary(answered(m)) for m in pd.methods if m not in without}}


def _guarded(answer: Callable[[], bytes], lock: AbstractContextManager[Any], context: Any) -> bytes:
    try:
        with lock:
            return answer()
    except InvalidInput as e:
        context.abort(grpc.StatusCode.FAILED_PRECONDITION, e.message)
    except TiStreamError as e:
        context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(e))
    raise AssertionError("abort raises")
