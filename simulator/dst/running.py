"""A process of a run: its clock, and its ways to the simulated store and catalog."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dispatcher.worker import DispatcherWorker
from replicator.worker import ReplicationWorker
from simulator.dst import threads
from simulator.dst.database import SimCatalog
from simulator.dst.scheduler import Process
from sorter.worker.worker import SorterWorker
from tistream.catalog.database.generation import check_bucket, has_exported
from tistream.catalog.work.drain import drain
from tistream.errors import Fenced, TiStreamError
from tistream.ids import Tenant
from tistream.model.problem import Problem
from tistream.objectstore.generations import FIRST, LOOK_S, CatalogReplaced, GenerationWatch, WatchedStore
from tistream.objectstore.protocol import ObjectStore
from tistream.release import ReleaseTooOld
from tistream.runtime.service import Repeating, Service, ServiceGroup

TENANT = Tenant(1, 1)  #: the judged one
_LOOK_EVERY_S = 0.5
_DRAIN_S = 5.0


class SimClock:
    """The clock of one process."""

    def __init__(self, process: Process, unix_ms: Callable[[], int], skew_ms: int) -> None:
        self._scheduler, self._unix_ms, self._skew_ms = process.scheduler, unix_ms, skew_ms

    def monotonic(self) -> float:
        return self._scheduler.now

    def unix_ms(self) -> int:
        return self._unix_ms() + self._skew_ms

    def wait(self, event: Any, seconds: float) -> bool:
        return bool(event.wait(seconds))


@dataclass(slots=True)
class Running:
    """A process that was started, and its ways to the world around it."""

    process: Process
    number: int
    role: str
    name: str
    catalog: SimCatalog
    store: ObjectStore
    stopping: Any
    rand: random.Random = field(init=False)  #: drawn by its first thread, as is the error of its clock
    clock: SimClock = field(init=False)
    watch: GenerationWatch | None = None
    service: Service | None = None

    def look_first(self) -> None:
        """Before a destination is written to: whether the catalog was restored. Without a watch it cannot be."""
        if self.watch is not None:
            self.watch.require()


def open_generation_of(running: Running) -> None:
    """What `open_parts` of the command line does: belong to the catalog's generation, and watch for the next one."""
    running.catalog.migrate()
    generation = running.catalog.generation or FIRST
    with running.catalog.reading() as conn:
        exported = has_exported(conn)
    check_bucket(generation, running.store, exported=exported)
    running.watch = GenerationWatch(running.store, generation, running.clock)
    running.store = WatchedStore(running.store, running.watch)


def serve(running: Running, service: Service) -> None:
    """Run a service until the process is to stop."""
    running.service = service
    members = [service]
    if running.watch is not None:
        members.append(Repeating("generation", running.watch.look, interval_s=LOOK_S, clock=running.clock))
    both = ServiceGroup(running.name, members, running.clock)
    both.start()
    while not running.stopping.wait(_LOOK_EVERY_S):
        fatal = next((p for p in both.problems() if _ends(p)), None)
        if fatal is not None:
            both.stop()
            raise _error_of(fatal)
    if isinstance(
        service, DispatcherWorker | SorterWorker | ReplicationWorker
    ):  # as the command line does after SIGTERM
        never: Any = threads.Event()
        drain(running.catalog, service, running.clock, _DRAIN_S, never)
    both.stop()


def _ends(problem: Problem) -> bool:
    """Whether a process with this problem ends, as the command line's does."""
    return problem.fatal and not getattr(problem, "contained", False)


def _error_of(problem: Problem) -> TiStreamError:
    if problem.code in (Fenced.code, ReleaseTooOld.code, CatalogReplaced.code):
        return Fenced(problem.message)
    return TiStreamError(f"{problem.source}: {problem.message}", **{"code": problem.code})
