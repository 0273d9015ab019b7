"""gRPC around the stage: one server for PD, one for each store, and the thread that plays the lines.

    with ReplayCluster(directory) as cluster:
        PdClient([cluster.pd_address]) ...
        cluster.wait_until_played(60)

Relations:

- one lock guards the stage; whoever holds it never waits for a client;
- a message that the stage gave is queued for its stream, in order; the clock waits while a stream has more than
  `_UNREAD_BYTES_MAX` queued, and while the next line lacks a listener (`waiting_for`);
- a stream whose store was cut ends with UNAVAILABLE, and so does every new one until the store is back.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any

import grpc
import structlog

from tistream.clock import Clock, SystemClock
from tistream.codec.protobuf import BYTES, VARINT, fields, merged
from tistream.errors import InvalidInput, TiStreamError
from tistream.keyrange import KeyRange
from tistream.simulator.replay.pd import ReplayPd
from tistream.simulator.replay.recording import read_recording
from tistream.simulator.replay.stage import Stage
from tistream.simulator.replay.wire import read_request

log = structlog.get_logger(__name__)

_UNREAD_BYTES_MAX = 4 << 20
_LINES_AT_ONCE = 50
_WAIT_S = 0.2
_THREADS = 64
_MESSAGE_BYTES_MAX = 64 << 20
_OPTIONS = (
    ("grpc.max_receive_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", _MESSAGE_BYTES_MAX),
    ("grpc.so_reuseport", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 1000),
    ("grpc.http2.max_ping_strikes", 0),  # a client may look after its connection as often as it likes
)
_FEED = "/cdcpb.ChangeData/EventFeedV2"
_FEATURES = ("features", "stream-multiplexing")


class _Stream:
    """A client's stream: what is queued for it. Guarded by the cluster's lock."""

    def __init__(self, store_id: int) -> None:
        self.store_id = store_id
        self.queue: deque[bytes] = deque()
        self.queued_bytes = 0
        self.cut = False  #: it ends behind what is queued

    def put(self, data: bytes) -> None:
        self.queue.append(data)
        self.queued_bytes += len(data)


class ReplayCluster:
    """A recorded cluster on the loopback interface. `close` it, or use it as a context.

    `speed`: None = as fast as its clients read, N = N times the recorded speed. `only`: see Stage."""

    def __init__(
        self,
        directory: Path,
        *,
        speed: float | None = None,
        only: KeyRange | None = None,
        clock: Clock | None = None,
    ) -> None:
        if speed is not None and speed <= 0:
            raise InvalidInput("the speed must be positive", speed=speed)
        self._recording = read_recording(directory)
        self._stage = Stage(self._recording, only)
        self._speed, self._clock = speed, clock or SystemClock()
        self._lock = threading.Condition()
        self._streams: dict[int, _Stream] = {}
        self._opened = 0
        self._closed = threading.Event()
        self._blocked: tuple[str, float] | None = None  # whom the next line lacks, since when
        self._paced_from: tuple[float, int] | None = None  # (monotonic seconds, recorded ms)
        self._fault: Exception | None = None
        store_ids = sorted(
            {merged(s, {1: VARINT})[1] for _, a in self._recording.stores for _, s in fields(a, {2: BYTES})}
        )
        self._servers: list[grpc.Server] = []
        addresses = {store_id: self._serve(_StoreHandler(self, store_id)) for store_id in store_ids}
        handler = _PdHandler(self)
        self.pd_address = self._serve(handler)  #: host:port
        self._pd = ReplayPd(self._recording, self._stage, self.pd_address, addresses)
        self.store_ids = tuple(store_ids)
        self._thread = threading.Thread(target=self._play, name="replay", daemon=True)
        self._thread.start()

    @property
    def start_ts(self) -> int:
        """The recorder's first checkpoint: history begins above it."""
        return self._recording.start_ts

    @property
    def lines(self) -> tuple[int, int]:
        """How many lines have been played, and of how many."""
        return self._stage.line, len(self._recording.lines)

    @property
    def promised_ts(self) -> int:
        """What every region that is followed now has been promised."""
        with self._lock:
            return self._stage.promised_ts

    @property
    def at_ms(self) -> int:
        """The recorded time, in Unix milliseconds."""
        return self._stage.at_ms

    @property
    def played(self) -> bool:
        """Everything was played and handed to the clients' streams. Raises what ended the replay early."""
        with self._lock:
            if self._fault is not None:
                raise self._fault
            return self._stage.at_end and not any(s.queued_bytes for s in self._streams.values())

    @property
    def waiting_for(self) -> tuple[str, float]:
        """The region that nobody has registered and that the recording goes on with, and for how many seconds it has
        been waited for; ("", 0.0) while it goes on."""
        blocked = self._blocked
        return (blocked[0], self._clock.monotonic() - blocked[1]) if blocked else ("", 0.0)

    def wait_until_played(self, timeout_s: float) -> bool:
        """Wait until `played`; False when it did not come so far in time."""
        until = self._clock.monotonic() + timeout_s
        while not self.played:
            if self._clock.monotonic() >= until or self._clock.wait(self._closed, _WAIT_S / 4):
                return self.played
        return True

    def close(self) -> None:
        """Stop the servers; streams end."""
        self._closed.set()
        with self._lock:
            for stream in self._streams.values():
                stream.cut = True
            self._lock.notify_all()
        for stopped in [server.stop(0.5) for server in self._servers]:
            stopped.wait()
        self._thread.join()

    def __enter__(self) -> ReplayCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- the lines -------------------------------------------------------------------------------------------------

    def _play(self) -> None:
        try:
            while not self._closed.is_set():
                with self._lock:
                    pause_s = self._advance()
                    if pause_s:
                        self._lock.wait(pause_s)
        except Exception as e:
            log.exception("the replay has ended", line=self._stage.line + 1)
            self._fail(e)

    def _advance(self) -> float:
        """Play some lines; how long to wait then, in seconds, unless something happens."""
        if self._stage.at_end:
            return _WAIT_S
        for _ in range(_LINES_AT_ONCE):
            if self._stage.at_end:
                break
            if any(s.queued_bytes > _UNREAD_BYTES_MAX for s in self._streams.values()):
                return _WAIT_S
            if lacking := self._stage.blocked():
                if self._blocked is None:
                    self._blocked = (str(lacking), self._clock.monotonic())
                return _WAIT_S
            self._blocked = None
            if early_s := self._early_s():
                return min(early_s, _WAIT_S)
            self._stage.step()
            self._hand_out()
        return 0.0

    def _early_s(self) -> float:
        """How much too early it is for the next line."""
        if self._speed is None or not self._streams:
            return 0.0
        due_ms = self._recording.at_ms[self._stage.line]
        if self._paced_from is None:
            self._paced_from = (self._clock.monotonic(), due_ms)
        began, first_ms = self._paced_from
        return max(0.0, began + (due_ms - first_ms) / 1000 / self._speed - self._clock.monotonic())

    def _hand_out(self) -> None:
        messages, cut = self._stage.take_output()
        for number, data in messages:
            if (stream := self._streams.get(number)) is not None:
                stream.put(data)
        for stream in self._streams.values():
            stream.cut |= stream.store_id in cut
        if messages or cut:
            self._lock.notify_all()

    # -- clients ---------------------------------------------------------------------------------------------------

    def _serve(self, handler: grpc.GenericRpcHandler) -> str:
        server = grpc.server(ThreadPoolExecutor(_THREADS), handlers=[handler], options=_OPTIONS)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        self._servers.append(server)
        return f"127.0.0.1:{port}"

    def feed(self, store_id: int, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """One EventFeedV2 stream."""
        if _FEATURES not in context.invocation_metadata():
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "only multiplexed streams are replayed")
        with self._lock:
            if store_id in self._stage.away or self._closed.is_set() or self._fault is not None:
                context.abort(grpc.StatusCode.UNAVAILABLE, "the store is away")
            self._opened += 1
            number, stream = self._opened, _Stream(store_id)
            self._streams[number] = stream
        threading.Thread(target=self._take_requests, args=(number, requests), name="replay-in", daemon=True).start()
        try:
            while context.is_active():
                with self._lock:
                    if not stream.queue and not stream.cut:
                        self._lock.wait(_WAIT_S)
                    batch = list(stream.queue)
                    stream.queue.clear()
                for data in batch:
                    yield data
                    with self._lock:
                        stream.queued_bytes -= len(data)
                if stream.cut and not stream.queue:
                    context.abort(grpc.StatusCode.UNAVAILABLE, "error reading from server: EOF")
        finally:
            with self._lock:
                self._drop(number)

    def _take_requests(self, number: int, requests: Iterator[bytes]) -> None:
        try:
            for data in requests:
                request = read_request(data)
                with self._lock:
                    if (stream := self._streams.get(number)) is None or stream.cut:
                        return
                    self._stage.register(number, stream.store_id, request)
                    self._hand_out()
                    self._lock.notify_all()
        except TiStreamError as e:
            log.warning("a client sent a request that cannot be read, its stream ends", error=str(e))
            with self._lock:
                self._cut(number)
        except grpc.RpcError:
            pass  # the client is gone, which ends its stream
        except Exception as e:
            log.exception("the replay has ended")
            self._fail(e)

    def _cut(self, number: int) -> None:
        if (stream := self._streams.get(number)) is not None:
            stream.cut = True
            self._lock.notify_all()

    def _fail(self, fault: Exception) -> None:
        """A defect: nothing goes on, and whoever asks is told."""
        with self._lock:
            self._fault = self._fault or fault
            for number in list(self._streams):
                self._cut(number)

    def _drop(self, number: int) -> None:
        if self._streams.pop(number, None) is not None:
            self._stage.drop_stream(number)
            self._lock.notify_all()

    def answer_pd(self, method: str, request: bytes, context: Any) -> bytes:
        """One unary call to PD."""
        return self._guarded(lambda: self._pd.answer(method, request), context)

    def answer_tso(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """A stream of timestamps."""
        for request in requests:
            yield self._guarded(lambda data=request: self._pd.timestamps(data), context)  # type: ignore[misc]

    def pd_knows(self, method: str) -> bool:
        return self._pd.knows(method)

    def _guarded(self, answer: Callable[[], bytes], context: Any) -> bytes:
        try:
            with self._lock:
                return answer()
        except InvalidInput as e:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, e.message)
        except TiStreamError as e:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(e))
        raise AssertionError("abort raises")


class _StoreHandler(grpc.GenericRpcHandler):  # type: ignore[misc]  # untyped base
    """The methods of one store."""

    def __init__(self, cluster: ReplayCluster, store_id: int) -> None:
        self._cluster, self._store_id = cluster, store_id

    def service(self, details: Any) -> grpc.RpcMethodHandler | None:
        if details.method != _FEED:
            return None
        return grpc.stream_stream_rpc_method_handler(
            lambda requests, context: self._cluster.feed(self._store_id, requests, context)
        )


class _PdHandler(grpc.GenericRpcHandler):  # type: ignore[misc]  # untyped base
    """The methods of PD."""

    def __init__(self, cluster: ReplayCluster) -> None:
        self._cluster = cluster

    def service(self, details: Any) -> grpc.RpcMethodHandler | None:
        service, method = details.method.rsplit("/", 1)
        if service != "/pdpb.PD":
            return None
        if method == "Tso":
            return grpc.stream_stream_rpc_method_handler(self._cluster.answer_tso)
        if not self._cluster.pd_knows(method):
            return None
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: self._cluster.answer_pd(method, request, context)
        )
