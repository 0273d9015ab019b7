"""The network between dispatcher and sorter processes: what Arrow Flight is to them, with connections that break.

A client finds a process by the address in the catalog; both sides of an exchange run the service's own code
(`tistream.feed.flight`, `dispatcher.flight_server`). gRPC itself is not simulated, nor its tokens and certificates.
"""

from __future__ import annotations

import queue as real_queue
from contextlib import suppress
from functools import partial
from typing import NamedTuple

import pyarrow as pa

from dispatcher.exchange import ExchangeServer
from dispatcher.flight_server import send_by, serve
from dispatcher.worker import DispatcherWorker
from simulator.dst import threads
from simulator.dst.faults import Dice
from simulator.dst.scheduler import Process, Scheduler
from tistream.clock import Clock

_TRANSIT_MAX = 4  # messages to a peer that does not read
_NOTICED_S = 1.0  # until the peer of a dead process sees its connection end
_CLOSED = None  # the last message of a side


class Chunk(NamedTuple):
    """A message."""

    data: pa.RecordBatch | None
    app_metadata: pa.Buffer


class Network:
    """Who listens."""

    def __init__(self, scheduler: Scheduler, dice: Dice) -> None:
        self.scheduler, self.dice = scheduler, dice
        self.dispatchers: dict[Process, tuple[DispatcherWorker, Clock]] = {}

    def dial(self, address: str, _: object) -> tuple[Client, None]:
        """A client of the processes that listen there."""
        return Client(self, address), None

    def connect(self, address: str) -> Side:
        """Begin an exchange with one of them. ConnectionError when none answers."""
        self.scheduler.sleep(self.dice.latency())
        there = [p for p, (worker, _) in self.dispatchers.items() if worker.address == address and not p.dead]
        if not there or self.dice.roll("net_refused"):
            raise ConnectionError("refused")
        process = there[self.dice.rand.randrange(len(there))]
        assert self.scheduler.current is not None
        wire = Wire(self.dice, self.scheduler.current.process, process)
        far = Side(wire, wire.up, wire.down)
        threads.spawn(process, partial(_answer, *self.dispatchers[process], far), f"exchange with {wire.client}")
        return Side(wire, wire.down, wire.up)


class Client:
    """A FlightClient."""

    def __init__(self, network: Network, address: str) -> None:
        self._network, self._address = network, address

    def do_exchange(self, _: object, __: object) -> tuple[Side, Side]:
        side = self._network.connect(self._address)
        return side, side

    def close(self) -> None:
        """Its exchanges have ended."""


class Wire:
    """A connection. One that is lost loses what was in transit."""

    def __init__(self, dice: Dice, client: Process, server: Process) -> None:
        self.dice, self.client, self.server = dice, client, server
        self.up, self.down = threads.Queue(), threads.Queue(_TRANSIT_MAX)
        self._cut = False

    def cut(self) -> None:
        self._cut = True
        for queue in (self.up, self.down):
            with suppress(real_queue.Full):
                queue.put(_CLOSED, block=False)  # wakes who waits

    @property
    def lost(self) -> bool:
        return self._cut or self.client.dead or self.server.dead


class Side:
    """Reader and writer of one side of an exchange."""

    def __init__(self, wire: Wire, inbound: threads.Queue, outbound: threads.Queue) -> None:
        self._wire, self._inbound, self._outbound = wire, inbound, outbound
        self.cancel = wire.cut

    def read_chunk(self) -> Chunk:
        while not self._wire.lost:
            try:
                chunk: Chunk | None = self._inbound.get(timeout=_NOTICED_S)
            except real_queue.Empty:
                continue
            if self._wire.lost:
                break
            if chunk is _CLOSED:
                raise StopIteration
            return chunk
        raise ConnectionError("the connection was lost")

    def write_metadata(self, metadata: bytes) -> None:
        self._write(Chunk(None, pa.py_buffer(metadata)))

    def write_with_metadata(self, rows: pa.RecordBatch, metadata: bytes) -> None:
        if self._wire.dice.roll("net_cut"):
            self._wire.cut()  # this batch is lost with the connection
        self._write(Chunk(rows, pa.py_buffer(metadata)))

    def close(self) -> None:
        self._write(_CLOSED)

    def _write(self, chunk: Chunk | None) -> None:
        while not self._wire.lost:
            try:
                return self._outbound.put(chunk, timeout=_NOTICED_S)
            except real_queue.Full:
                continue
        raise ConnectionError("the connection was lost")


def _answer(worker: DispatcherWorker, clock: Clock, side: Side) -> None:
    """A thread of the dispatcher's process that answers an exchange."""
    serve(ExchangeServer(worker, partial(send_by, side), clock), side)
    with suppress(ConnectionError):
        side.close()
