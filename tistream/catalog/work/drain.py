"""Graceful drain: a stopping worker waits until the leader has moved its work to others.

It waits at most `drain_timeout_s`, and only while the leader is alive and another worker of its kind is up. Otherwise
the next owners replay from the last snapshot, as after a crash: draining saves time, never rows. While the catalog is
unavailable the worker keeps waiting and working.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import structlog

from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.workers import WorkerKind, WorkerState
from tistream.catalog.work.leader import get_leader
from tistream.catalog.work.workers import pulses
from tistream.clock import Clock
from tistream.errors import CatalogUnavailable
from tistream.limits import LEADER_LEASE_MS, LEASE_MS

if TYPE_CHECKING:
    import threading

log = structlog.get_logger(__name__)

CHECK_S = 0.3


class Drainable(Protocol):
    """A worker that owns tasks or stores."""

    name: str

    @property
    def kind(self) -> WorkerKind: ...

    def begin_drain(self) -> None:
        """Announce that it accepts no more work."""
        ...

    def drained(self) -> bool:
        """Whether nothing is assigned to it any more."""
        ...


def drain(catalog: Catalog, worker: Drainable, clock: Clock, timeout_s: float, abort: threading.Event) -> bool:
    """Wait until the worker owns nothing. False on timeout, on `abort`, or when no worker can take over."""
    until = clock.monotonic() + timeout_s
    announced = False
    while not abort.is_set() and clock.monotonic() < until:
        try:
            if worker.drained():
                return True
            if not can_take_over(catalog, worker):
                log.info("drain skipped, no worker can take over", worker=worker.name)
                return False
            if not announced:
                worker.begin_drain()
                log.info("draining", worker=worker.name, timeout_s=timeout_s)
                announced = True
        except CatalogUnavailable as e:
            log.warning("drain state unknown, catalog unavailable", worker=worker.name, error=str(e))
        clock.wait(abort, CHECK_S)
    log.warning("drain incomplete, the next owners replay", worker=worker.name, aborted=abort.is_set())
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
