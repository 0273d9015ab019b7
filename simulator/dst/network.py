"""The feed between dispatcher and sorter processes, over a network that may lose connections.

It replaces Arrow Flight: the owner of a store is looked up in the catalog, a thread of the dispatcher's process serves
a stream, and a subscriber that loses it subscribes again at the position of its last batch, with the current owner.
gRPC itself is not simulated.
"""

from __future__ import annotations

import queue as real_queue
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from dispatcher.worker import DispatcherWorker
from simulator.dst import threads
from simulator.dst.faults import Dice
from simulator.dst.scheduler import Process, Scheduler
from tistream.catalog.database.engine import Catalog
from tistream.catalog.work.stores import list_stores
from tistream.errors import ErrorKind, FeedUnavailable, TiStreamError
from tistream.feed.protocol import FeedBatch, FeedRequest
from tistream.ids import Position

_IDLE_S = 1.0
_SILENT_S = 3.0  # a peer without a message for this long is considered gone
_IDLE = object()


class Connection:
    """One stream between two processes."""

    def __init__(self, server: Process) -> None:
        self.server = server
        self.inbox = threads.Queue(4)
        self.cut = False


class Network:
    """Who listens, and the connections that are open."""

    def __init__(self, scheduler: Scheduler, dice: Dice) -> None:
        self.scheduler, self.dice = scheduler, dice
        self.dispatchers: dict[Process, DispatcherWorker] = {}

    def connect(self, owner: str, request: FeedRequest) -> Connection:
        """A stream from a process of that name. FeedUnavailable when none answers."""
        self.scheduler.sleep(self.dice.latency())
        there = [p for p, w in self.dispatchers.items() if w.worker_id == owner and not p.dead]
        if not there or self.dice.roll("net_refused"):
            raise FeedUnavailable(store=request.store_id, asked=owner)
        process = there[self.dice.rand.randrange(len(there))]
        connection, worker = Connection(process), self.dispatchers[process]
        threads.spawn(process, lambda: _serve(self, worker, request, connection), f"serve {request.task_id}")
        return connection


class SimFeed:
    """A Feed for the sorters of one process."""

    def __init__(self, network: Network, catalog: Catalog) -> None:
        self.network, self._catalog = network, catalog

    def subscribe(self, request: FeedRequest) -> SimStream:
        return SimStream(self, request)

    def owner(self, request: FeedRequest) -> str:
        """The dispatcher that the catalog names."""
        rows = list_stores(self._catalog, request.tenant)
        found = next((row.dispatcher for row in rows if row.store_id == request.store_id), None)
        if found is None:
            raise FeedUnavailable("the store has no owner", store=request.store_id)
        return found


class SimStream:
    """A FeedStream that comes back after losing its connection."""

    def __init__(self, feed: SimFeed, request: FeedRequest) -> None:
        self._feed, self._request = feed, request
        self._connection: Connection | None = None
        self._heard = 0.0

    def next(self, timeout_s: float) -> FeedBatch | None:
        s = self._feed.network.scheduler
        deadline = s.now + timeout_s
        if self._connection is None:
            self._connection = self._feed.network.connect(self._feed.owner(self._request), self._request)
            self._heard = s.now
        while True:
            try:
                got = self._connection.inbox.get(timeout=max(0.0, deadline - s.now))
            except real_queue.Empty:
                if self._connection.cut or s.now - self._heard > _SILENT_S or self._connection.server.dead:
                    self._lose()
                return None
            if self._connection.cut:
                self._lose()
            self._heard = s.now
            if got is _IDLE:
                continue
            if isinstance(got, TiStreamError):
                if isinstance(got, FeedUnavailable) or got.kind not in (ErrorKind.RETRY, ErrorKind.CORRUPT):
                    self.close()
                raise got
            return self._handed_out(got)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.cut = True
            self._connection = None

    def _handed_out(self, batch: FeedBatch) -> FeedBatch:
        known = self._request.positions.get(batch.incarnation, Position(seq=0))
        follows = batch.seq == known.seq if batch.closes else batch.seq == known.seq + 1
        if known.closed or not follows:
            self._lose()
        at = Position(seq=batch.seq, closed=batch.closes)
        self._request = replace(self._request, positions={**self._request.positions, batch.incarnation: at})
        return batch

    def _lose(self) -> None:
        self.close()
        raise FeedUnavailable("the connection was lost", store=self._request.store_id)


def _serve(network: Network, worker: DispatcherWorker, request: FeedRequest, connection: Connection) -> None:
    """A thread of the dispatcher's process that serves a stream, as Flight does."""
    send: Callable[[Any], None] = connection.inbox.put
    stream = None
    try:
        stream = worker.subscribe(request)
        while not connection.cut:
            try:
                batch = stream.next(_IDLE_S)
            except TiStreamError as e:
                send(e)
                if isinstance(e, FeedUnavailable) or e.kind not in (ErrorKind.RETRY, ErrorKind.CORRUPT):
                    return
                continue
            if network.dice.roll("net_cut"):
                connection.cut = True  # this batch is lost with the connection
            while not connection.cut:
                try:
                    connection.inbox.put(_IDLE if batch is None else batch, timeout=_IDLE_S)
                    break
                except real_queue.Full:
                    continue
    except TiStreamError as e:
        send(e)
    finally:
        if stream is not None:
            stream.close()
