"""A draining worker waits until others have taken over what it holds, while there are others who can."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from tests.kit.catalog_cases import shift
from tistream.catalog.database import tables
from tistream.catalog.database.engine import Catalog
from tistream.catalog.rows.workers import WorkerKind, WorkerState
from tistream.catalog.work.drain import can_take_over, drain
from tistream.catalog.work.leader import acquire_leadership
from tistream.catalog.work.workers import drain_worker, list_workers, register_worker
from tistream.clock import SystemClock
from tistream.errors import CatalogUnavailable
from tistream.limits import LEADER_LEASE_MS

CLOCK = SystemClock()


class Worker:
    """Holds `holds` tasks; once it drains, each look finds one less."""

    kind = WorkerKind.SORTER
    name = "s1"

    def __init__(self, catalog: Catalog, holds: int) -> None:
        self._catalog, self.holds = catalog, holds
        self._life = register_worker(catalog, self.name, self.kind, "")
        self.says = 0
        self.before_look: Callable[[], None] = lambda: None

    def begin_drain(self) -> None:
        self.says += 1
        assert drain_worker(self._catalog, self.name, self._life)

    def drained(self) -> bool:
        self.before_look()
        self.holds -= self.says
        return self.holds <= 0


def others(catalog: Catalog) -> None:
    acquire_leadership(catalog, "m1")
    register_worker(catalog, "s2", "sorter", "")


def test_it_waits_until_it_holds_nothing(catalog: Catalog) -> None:
    others(catalog)
    worker = Worker(catalog, 3)
    assert drain(catalog, worker, CLOCK, 60, threading.Event())
    assert (worker.says, worker.holds) == (1, 0)
    assert list_workers(catalog)[0].state == WorkerState.DRAINING


def test_who_holds_nothing_need_not_wait(catalog: Catalog) -> None:
    worker = Worker(catalog, 0)
    assert drain(catalog, worker, CLOCK, 60, threading.Event())
    assert worker.says == 0


@pytest.mark.parametrize("there", ["no owner", "a silent owner", "nobody else", "another that drains", "another kind"])
def test_it_does_not_wait_where_nobody_can_take_over(catalog: Catalog, there: str) -> None:
    worker = Worker(catalog, 3)
    if there != "no owner":
        acquire_leadership(catalog, "m1")
    if there == "a silent owner":
        shift(catalog, tables.leader.c.heartbeat_ms, -LEADER_LEASE_MS - 1000)
    if there in ("no owner", "a silent owner"):
        register_worker(catalog, "s2", "sorter", "")
    if there == "another that drains":
        drain_worker(catalog, "s2", register_worker(catalog, "s2", "sorter", ""))
    if there == "another kind":
        register_worker(catalog, "d1", "dispatcher", "")
    assert not can_take_over(catalog, worker)
    assert not drain(catalog, worker, CLOCK, 60, threading.Event())
    assert worker.says == 0


def test_it_waits_no_longer_than_it_may_or_than_a_second_signal(catalog: Catalog) -> None:
    others(catalog)
    worker = Worker(catalog, 10**6)
    began = time.monotonic()
    assert not drain(catalog, worker, CLOCK, 0.2, threading.Event())
    worker, hurry = Worker(catalog, 10**6), threading.Event()
    worker.before_look = hurry.set
    assert not drain(catalog, worker, CLOCK, 600, hurry)
    assert time.monotonic() - began < 60


def test_while_the_catalog_is_away_it_goes_on(catalog: Catalog) -> None:
    others(catalog)
    worker = Worker(catalog, 3)
    tries = iter(range(100))

    def away() -> None:
        if next(tries) < 2:
            raise CatalogUnavailable(determinate=True)

    worker.before_look = away
    assert drain(catalog, worker, CLOCK, 60, threading.Event())
