"""Folders of object storage on simulated time: what the storage destination writes to in a run.

    a PUT or DELETE travels independently: it arrives even if its sender dies or its lease ends meanwhile
    sink_refused      certainly did not happen
    sink_lost         it arrives, the reply does not
    sink_late         no reply; it arrives much later, beyond every lease
    sink_nowhere      neither arrives

A process may die between any two requests. The host of a sender may stop just then (`host_stops`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from destinations.protocol import DestinationUnavailable
from simulator.dst import coroutines
from simulator.dst.faults import Dice
from simulator.dst.scheduler import Scheduler

LATE_S = 12.0
Put = tuple[str, str, bytes]
"""(folder of the destination, key, bytes)"""


class Sink:
    """The objects of all folders. `on_put` sees each object that has arrived, with the bytes that it replaces."""

    def __init__(self, scheduler: Scheduler, dice: Dice, tell: Callable[[str], None]) -> None:
        self.scheduler, self.dice, self.tell = scheduler, dice, tell
        self.folders: dict[str, dict[str, bytes]] = {}
        self.requests = 0
        self.stops = 0  #: hosts that have stopped in the middle of a request, and requests that arrive late
        self.all_there_at = 0.0  #: when the last late request will have arrived
        self.on_put: Callable[[Put, bytes | None], None] = lambda put, before: None

    def files(self, folder: str) -> SimFiles:
        """One process's way to a folder."""
        return SimFiles(self, folder)


class SimFiles:
    """See `destinations.storage.files.Files`."""

    def __init__(self, sink: Sink, folder: str) -> None:
        self._sink, self._folder = sink, folder

    @property
    def _objects(self) -> dict[str, bytes]:
        return self._sink.folders.setdefault(self._folder, {})

    async def put(self, key: str, data: bytes | memoryview) -> None:
        self._send(key, bytes(data), replaces=True)

    async def create(self, key: str, data: bytes | memoryview) -> bool:
        return self._send(key, bytes(data), replaces=False)

    async def get(self, key: str) -> bytes | None:
        self._wait(f"get {key}")
        return self._objects.get(key)

    async def list(self, folder: str, after: str) -> AsyncIterator[str]:
        self._wait(f"list {folder}")
        for key in sorted(self._objects):
            if key.startswith(f"{folder}/") and key > after:
                yield key

    async def delete(self, key: str) -> None:
        self._wait(f"delete {key}")
        self._objects.pop(key, None)

    def _wait(self, what: str) -> None:
        s, dice = self._sink.scheduler, self._sink.dice
        s.point(f"sink: {what} in {self._folder}")
        fault = dice.roll("sink_refused")
        coroutines.pass_time(dice.latency())
        if fault:
            raise DestinationUnavailable("503: the storage is busy")

    def _send(self, key: str, data: bytes, *, replaces: bool) -> bool:
        sink, s, dice = self._sink, self._sink.scheduler, self._sink.dice
        s.point(f"sink: put {key} in {self._folder}")
        sink.requests += 1
        if dice.roll("host_stops"):
            self._stop_host()
        fault = dice.roll("sink_refused", "sink_lost", "sink_late", "sink_nowhere")
        takes = dice.latency()
        if fault == "sink_refused":
            coroutines.pass_time(takes)
            raise DestinationUnavailable("503: the storage is busy")
        created: list[bool] = []

        def arrive() -> None:
            before = self._objects.get(key)
            created.append(before is None)
            if replaces or before is None:
                self._objects[key] = data
                sink.on_put((self._folder, key, data), before)
            if fault:
                sink.tell(f"{fault}: {key} arrives now in {self._folder}")

        if fault == "sink_late":
            sink.stops += 1
            at = s.now + takes + dice.rand.random() * LATE_S
            sink.all_there_at = max(sink.all_there_at, at)
            s.call_at(at, arrive)
        elif fault != "sink_nowhere":
            s.call_at(s.now + takes * 0.6, arrive)
        coroutines.pass_time(takes)
        s.point(f"sink: put done {key}")
        if fault:
            sink.tell(f"{fault}: {key} in {self._folder}")
            raise DestinationUnavailable(f"no reply: {fault}")
        return created[0]

    def _stop_host(self) -> None:
        """The process that sends is paused, for less or more than its leases last."""
        sink, s = self._sink, self._sink.scheduler
        assert s.current is not None
        sink.stops += 1
        process, seconds = s.current.process, 1.0 + sink.dice.rand.random() * 5.5
        sink.tell(f"the host of {process.name} stops for {seconds:.1f} s")
        s.pause(process)
        s.call_at(s.now + seconds, lambda: s.unpause(process))


def open_sim_files(sink: Sink) -> Callable[..., SimFiles]:
    """In the place of `open_files`."""
    return lambda settings, *_: sink.files(settings.folder)
