"""The feed over Arrow Flight: the wire form both ends share, and the sorter's end.

    DoGet(ticket = JSON of the FeedRequest)  ->  stream of (record batch of change.ROWS, app_metadata)

    app_metadata   u32 little-endian length, JSON head, then the regions as one Arrow IPC message without schema
    head           {"store", "incarnation", "seq", "cut_ts", "closes"}   a FeedBatch
                   {"error": {"kind", "code", "class", "message", "facts"}}   an error; the stream goes on
                   {"idle": true}                                         at least each IDLE_S: the peer lives

Errors that a subscriber may wait out (FeedGap, CorruptObject, a store that does not answer) travel inside the stream,
typed; it stays open. When the dispatcher cannot serve the store any more the stream ends, and the client looks up the
owner and subscribes there, at the position of the last batch it handed out. Back pressure is Flight's own: the client
reads no more than a bounded queue holds, counted in batches and in bytes.
"""

from __future__ import annotations

import copy
import random
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.flight as fl

from tistream import errors
from tistream.catalog.engine import Catalog
from tistream.catalog.stores import list_stores
from tistream.catalog.workers import WorkerKind, list_workers
from tistream.change import REGIONS, ROWS
from tistream.clock import Clock, SystemClock
from tistream.errors import FeedUnavailable, TiStreamError, invariant
from tistream.feed import FeedBatch, FeedRequest
from tistream.ids import Position, Tenant
from tistream.keyrange import KeyRange
from tistream.limits import FEED_QUEUE_BATCHES_MAX
from tistream.service import Backoff

FEED_QUEUE_BYTES_MAX = 64 << 20
LOOK_S = 1.0  # a server looks this often whether it still serves the store
IDLE_S = 3.0  # and sends something at least this often
SILENT_S = 10.0  # a server that sends nothing for this long is taken for dead
CONNECT_S = 5.0
ADDRESSES_S = 0.5

Locate = Callable[[Tenant, int], str | None]

_NO_ROWS = pa.RecordBatch.from_pylist([], schema=ROWS)


def encode_request(request: FeedRequest) -> bytes:
    """The ticket."""
    return orjson.dumps(
        {
            "cluster": request.tenant.cluster_id,
            "tenant": request.tenant.tenant_id,
            "store": request.store_id,
            "task": request.task_id,
            "start_key": request.range.start.hex(),
            "end_key": request.range.end.hex(),
            "positions": [[i, p.seq, p.closed] for i, p in sorted(request.positions.items())],
        }
    )


def decode_request(ticket: bytes) -> FeedRequest:
    """The request of a ticket. InvalidInput when it is none."""
    try:
        d = orjson.loads(ticket)
        return FeedRequest(
            tenant=Tenant(int(d["cluster"]), int(d["tenant"])),
            store_id=int(d["store"]),
            task_id=int(d["task"]),
            range=KeyRange(bytes.fromhex(d["start_key"]), bytes.fromhex(d["end_key"])),
            positions={int(i): Position(seq=int(seq), closed=bool(closed)) for i, seq, closed in d["positions"]},
        )
    except (ValueError, TypeError, KeyError) as e:
        raise errors.InvalidInput(f"not a feed ticket: {e}") from e


def encode_batch(batch: FeedBatch) -> tuple[pa.RecordBatch, bytes]:
    """A FeedBatch as one Flight message."""
    head = {
        "store": batch.store_id,
        "incarnation": batch.incarnation,
        "seq": batch.seq,
        "cut_ts": batch.cut_ts,
        "closes": batch.closes,
    }
    return batch.rows, _metadata(head, memoryview(batch.regions.serialize()))


def error_text(error: TiStreamError) -> dict[str, object]:
    """An error as JSON can carry it; facts become text."""
    facts = {name: value.hex() if isinstance(value, bytes) else str(value) for name, value in error.facts.items()}
    name = type(error).__name__
    return {"kind": error.kind, "code": error.code, "class": name, "message": error.message, "facts": facts}


def encode_error(error: TiStreamError) -> tuple[pa.RecordBatch, bytes]:
    """An error as one Flight message."""
    return _NO_ROWS, _metadata({"error": error_text(error)})


def encode_idle() -> tuple[pa.RecordBatch, bytes]:
    """The message that says nothing but that the server lives."""
    return _NO_ROWS, _metadata({"idle": True})


class Idle:
    """The server lives and nothing is in the way."""


IDLE = Idle()
Message = FeedBatch | TiStreamError | Idle


def decode_message(rows: pa.RecordBatch, metadata: pa.Buffer) -> Message:
    """What one Flight message says."""
    size = int.from_bytes(memoryview(metadata)[:4], "little")
    head = orjson.loads(memoryview(metadata)[4 : 4 + size])
    if "idle" in head:
        return IDLE
    if "error" in head:
        return _decode_error(head["error"])
    return FeedBatch(
        store_id=head["store"],
        incarnation=head["incarnation"],
        seq=head["seq"],
        cut_ts=head["cut_ts"],
        rows=rows,
        regions=pa.ipc.read_record_batch(metadata.slice(4 + size), REGIONS),
        closes=head["closes"],
    )


def _metadata(head: Mapping[str, object], body: memoryview | bytes = b"") -> bytes:
    text = orjson.dumps(head)
    return b"".join((len(text).to_bytes(4, "little"), text, body))


def _decode_error(told: Mapping[str, Any]) -> TiStreamError:
    found = getattr(errors, told["class"], None)
    if not (isinstance(found, type) and issubclass(found, TiStreamError)):
        found = TiStreamError
    error = found(told["message"], **told["facts"])
    error.kind, error.code = errors.ErrorKind(told["kind"]), told["code"]
    return error


def locate_by_catalog(catalog: Catalog, clock: Clock | None = None) -> Locate:
    """Where the catalog says a store's dispatcher listens; None when it has none or the dispatcher has no address.

    Addresses are ADDRESSES_S old at most: thousands of streams may look for one dispatcher at a time, and what a worker
    reports is long."""
    time, lock = clock or SystemClock(), threading.Lock()
    addresses: dict[str, str] = {}
    read_at = float("-inf")

    def locate(tenant: Tenant, store_id: int) -> str | None:
        nonlocal addresses, read_at
        owner = next((row.dispatcher for row in list_stores(catalog, tenant) if row.store_id == store_id), None)
        with lock:
            if time.monotonic() - read_at > ADDRESSES_S:
                addresses = {w.worker_id: w.address for w in list_workers(catalog, WorkerKind.DISPATCHER)}
                read_at = time.monotonic()
            return addresses.get(owner or "") or None

    return locate


class FlightFeed:
    """A Feed whose dispatchers are reached over Flight. Safe to use from several threads; streams are not."""

    def __init__(self, locate: Locate, clock: Clock | None = None) -> None:
        """`locate` names the address (`grpc://host:port`) of a store's dispatcher, None when it has none now."""
        self._locate, self._clock = locate, clock or SystemClock()
        self._lock = threading.Lock()
        self._clients: dict[str, fl.FlightClient] = {}

    def subscribe(self, request: FeedRequest) -> FlightStream:
        """A stream that connects when it is first read, and again whenever it has to."""
        return FlightStream(self, request, self._clock)

    def close(self) -> None:
        """Close the connections. Streams must have been closed before."""
        with self._lock:
            for client in self._clients.values():
                client.close()
            self._clients.clear()

    def open(self, request: FeedRequest) -> fl.FlightStreamReader:
        """One DoGet at the store's present owner. FeedUnavailable when there is none."""
        address = self._locate(request.tenant, request.store_id)
        if address is None:
            raise FeedUnavailable(store=request.store_id, tenant=str(request.tenant))
        with self._lock:
            client = self._clients.get(address)
            if client is None:
                client = self._clients[address] = fl.FlightClient(address)
        try:
            return client.do_get(fl.Ticket(encode_request(request)))
        except (pa.ArrowException, OSError) as e:
            raise _unavailable(request, address, e) from e


def _unavailable(request: FeedRequest, address: str, cause: Exception) -> FeedUnavailable:
    return FeedUnavailable(
        store=request.store_id, tenant=str(request.tenant), address=address, cause=str(cause).split("\n")[0]
    )


class _Connection:
    """One DoGet read by a thread of its own into a bounded queue."""

    def __init__(self, reader: fl.FlightStreamReader, name: str, clock: Clock, arrived: threading.Event) -> None:
        self._reader, self._clock, self._arrived = reader, clock, arrived
        self._room = threading.Condition()
        self._queue: deque[tuple[Message, int]] = deque()
        self._bytes = 0
        self._closed = False
        self.ended: Exception | None = None  #: why nothing more comes
        self.heard = False  #: whether anything has come
        self.heard_at = clock.monotonic()
        self._thread = threading.Thread(target=self._read, name=name, daemon=True)
        self._thread.start()

    def take(self) -> Message | None:
        """The next message, if one is here."""
        with self._room:
            if not self._queue:
                return None
            message, size = self._queue.popleft()
            self._bytes -= size
            self._room.notify()
            return message

    @property
    def is_blocked(self) -> bool:
        """Whether the reader waits for room rather than for the server."""
        return len(self._queue) >= FEED_QUEUE_BATCHES_MAX or self._bytes >= FEED_QUEUE_BYTES_MAX

    def close(self) -> None:
        with self._room:
            self._closed = True
            self._room.notify()
        self._reader.cancel()
        self._thread.join()

    def _read(self) -> None:
        try:
            while not self._closed:
                chunk = self._reader.read_chunk()
                self._add(decode_message(chunk.data, chunk.app_metadata))
        except StopIteration:
            self.ended = EOFError("the dispatcher ended the stream")
        except Exception as e:  # noqa: BLE001 - handed to the subscriber, who connects again
            self.ended = e
        finally:
            self._arrived.set()

    def _add(self, message: Message) -> None:
        size = message.rows.nbytes + message.regions.nbytes if isinstance(message, FeedBatch) else 0
        with self._room:
            while self.is_blocked and not self._closed:
                self._room.wait()
            self._queue.append((message, size))
            self._bytes += size
            self.heard, self.heard_at = True, self._clock.monotonic()
        self._arrived.set()


class FlightStream:
    """A FeedStream that outlives its connections."""

    def __init__(self, feed: FlightFeed, request: FeedRequest, clock: Clock) -> None:
        self._feed, self._request, self._clock = feed, request, clock
        self._positions = dict(request.positions)
        self._connection: _Connection | None = None
        self._arrived = threading.Event()
        self._backoff = Backoff(first_s=0.05, max_s=2.0, rand=random.Random())
        self._connect_at = 0.0
        self._error: TiStreamError | None = None  # what was last said to be in the way

    def next(self, timeout_s: float) -> FeedBatch | None:
        deadline = self._clock.monotonic() + timeout_s
        while True:
            self._arrived.clear()
            message = self._step()
            if isinstance(message, FeedBatch):
                self._error = None
                return message
            if isinstance(message, Idle):
                self._error = None
            elif message is not None and str(message) != str(self._error):
                self._error = message
                raise copy.copy(message)
            now = self._clock.monotonic()
            if now >= deadline:
                if self._error is not None:
                    raise copy.copy(self._error)
                return None
            if message is None:
                until = deadline if self._connection else min(deadline, self._connect_at)
                self._clock.wait(self._arrived, min(max(until - now, 0.001), SILENT_S))

    def close(self) -> None:
        self._disconnect()

    def _step(self) -> Message | None:
        """What is here now: a batch, an error (also that of connecting), idle, or nothing."""
        now = self._clock.monotonic()
        if self._connection is None:
            if now < self._connect_at:
                return None
            try:
                self._connection = self._connect()
            except TiStreamError as e:
                self._connect_at = now + self._backoff.next_s()
                return e
        connection = self._connection
        message = connection.take()
        if message is None and connection.ended is not None:
            message = connection.take()  # it may have come just before the end
            if message is None:
                return self._lost(connection, connection.ended)
        if message is None and not connection.is_blocked and now - connection.heard_at > SILENT_S:
            return self._lost(connection, TimeoutError("the dispatcher is silent"))
        return self._deliver(message) if isinstance(message, FeedBatch) else message

    def _deliver(self, batch: FeedBatch) -> FeedBatch:
        before = self._positions.get(batch.incarnation, Position(seq=0))
        expected = before.seq if batch.closes else before.seq + 1
        invariant(
            not before.closed and batch.seq == expected and batch.store_id == self._request.store_id,
            "the feed neither skips nor repeats",
            incarnation=batch.incarnation,
            seq=batch.seq,
            position=before,
        )
        self._positions[batch.incarnation] = Position(seq=batch.seq, closed=batch.closes)
        return batch

    def _connect(self) -> _Connection:
        request = replace(self._request, positions=dict(self._positions))
        name = f"feed-task-{request.task_id}-store-{request.store_id}"
        return _Connection(self._feed.open(request), name, self._clock, self._arrived)

    def _lost(self, connection: _Connection, cause: Exception) -> TiStreamError | None:
        """The connection is gone. One that had worked is renewed silently; else the subscriber hears of it."""
        self._disconnect()
        if connection.heard:
            self._backoff.reset()
            self._connect_at = 0.0
            self._arrived.set()
            return None
        self._connect_at = self._clock.monotonic() + self._backoff.next_s()
        return _lost_error(self._request, cause)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _lost_error(request: FeedRequest, cause: Exception) -> TiStreamError:
    told = getattr(cause, "extra_info", b"")
    if told:
        return _decode_error(orjson.loads(told))
    return FeedUnavailable(store=request.store_id, tenant=str(request.tenant), cause=str(cause).split("\n")[0])
