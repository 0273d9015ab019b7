"""An operator who decides about quarantined stores, every now and then.

Stores that contradict themselves are rejected. Where late rows are true (`simulator.dst.late`), most are accepted, some
are rejected although they are true, also while they are being merged. A sorter may die in the middle of the merge.
"""

from __future__ import annotations

import contextlib
import random
from typing import Any

from simulator.dst import threads
from simulator.dst.database import SimCatalog
from simulator.dst.late import Late
from simulator.dst.roles import TENANT
from simulator.dst.scheduler import Process
from tistream.catalog.tenancy.served import QuarantineState
from tistream.catalog.work.acceptance import accept_store
from tistream.catalog.work.quarantines import open_quarantines, reject_store
from tistream.errors import CatalogUnavailable, NotFound

_EVERY_S = 2.5
_ACCEPTED = 0.8  # of the stores whose rows are true
_REGRETTED = 0.2  # of the acceptances that are still under way
_DIES = 0.5  # a sorter, at one of its next requests


def decide_later(world: Any, main: Process) -> None:
    """Decide again and again, until the run is over."""

    def tried() -> None:
        with contextlib.suppress(CatalogUnavailable):
            _decide(world)

    def again() -> None:
        threads.spawn(main, tried, "an operator")
        world.scheduler.call_at(world.scheduler.now + _EVERY_S, again)

    world.scheduler.call_at(world.scheduler.now + _EVERY_S, again)


def _decide(world: Any) -> None:
    catalog, late = SimCatalog(world.database), world.lies.late
    states: dict[int, set[QuarantineState]] = {}
    for row in open_quarantines(catalog, TENANT):
        states.setdefault(row.store_id, set()).add(row.state)
    for store_id, found in states.items():
        accepts = late is not None and _accepts(late, store_id, found)
        if accepts is None:
            continue
        world.tell(f"an operator {'accepts' if accepts else 'rejects'} store {store_id}")
        with contextlib.suppress(CatalogUnavailable, NotFound):
            (accept_store if accepts else reject_store)(catalog, TENANT, store_id)
        if accepts:
            _strike(world, late.rand)


def _accepts(late: Late, store_id: int, found: set[QuarantineState]) -> bool | None:
    """Whether the rows are accepted or rejected; None: they are still being merged."""
    if not late.is_true(store_id):
        return False
    if QuarantineState.QUARANTINED in found:
        return late.rand.random() < _ACCEPTED
    return False if late.rand.random() < _REGRETTED else None


def _strike(world: Any, rand: random.Random) -> None:
    """A sorter dies soon, perhaps."""
    there = [r for r in world.running if r.role == "sorter" and not r.process.dead and not r.process.crash_in]
    if there and not world.resting and rand.random() < _DIES:
        rand.choice(there).process.crash_in = rand.randint(1, 40)
