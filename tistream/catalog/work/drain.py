"""A worker ends without a hole: it says that it drains, and waits until the owner has moved off what it holds.

It waits only while that can happen: an owner of assignment is alive, and another worker of its kind is up. It waits no
longer than its `drain_timeout_s`. When it ends all the same, the next owner of its tasks replays from the last
snapshot, as after a crash: draining saves time, never rows. While the catalog is away it goes on waiting, and working.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import structlog

from tistream.catalog.database.engine import Catalog
from tistream.catalog.work.leader import get_leader
from tistream.catalog.work.workers import WorkerKind, WorkerState, pulses
from tistream.clock import Clock
from tistream.errors import CatalogUnavailable
from tistream.limits import LEADER_LEASE_MS, LEASE_MS

if TYPE_CHECKING:
    import threading

log = structlog.get_logger(__name__)

LOOK_S = 0.3


class Drainable(Protocol):
    """A worker that owns things."""

    name: str

    @property
    def kind(self) -> WorkerKind: ...

    def begin_drain(self) -> None:
        """Say that nothing more is wanted."""
        ...

    def drained(self) -> bool:
        """Whether the catalog gives it nothing any more."""
        ...


def drain(catalog: Catalog, worker: Drainable, clock: Clock, timeout_s: float, hurry: threading.Event) -> bool:
    """Wait until the worker holds nothing; False when it was given up: too late, nobody to take over, or `hurry`."""
    until = clock.monotonic() + timeout_s
    said = False
    while not hurry.is_set() and clock.monotonic() < until:
        try:
            if worker.drained():
                return True
            if not can_take_over(catalog, worker):
                log.info("nobody can take over what this worker holds", worker=worker.name)
                return False
            if not said:
                worker.begin_drain()
                log.info("draining", worker=worker.name, timeout_s=timeout_s)
                said = True
        except CatalogUnavailable as e:
            log.warning("cannot see whether this worker is drained", worker=worker.name, error=str(e))
        clock.wait(hurry, LOOK_S)
    log.warning("not drained: the next owners replay", worker=worker.name, hurried=hurry.is_set())
    return False


def can_take_over(catalog: Catalog, worker: Drainable) -> bool:
    """Whether a live leader can move the work, and another worker of this kind can take it."""
    leader = get_leader(catalog)
    if leader is None or leader.heartbeat_age_ms > LEADER_LEASE_MS:
        return False
    return any(
        p.kind == worker.kind
        and p.worker_id != worker.name
        and p.state is WorkerState.UP
        and p.heartbeat_age_ms <= LEASE_MS
        for p in pulses(catalog)
    )
