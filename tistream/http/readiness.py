"""What the probes of a process say: its checks, problems and metrics. `tistream.http.probes` has the routes.

Apart from them, because a process without an HTTP port needs no HTTP framework.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.write_check import check_writes
from tistream.catalog.work.exports import export_status
from tistream.clock import Clock
from tistream.errors import ObjectNotFound, StoreUnavailable, TiStreamError
from tistream.limits import LEASE_MS
from tistream.model.problem import Problem
from tistream.objectstore.protocol import ObjectStore
from tistream.runtime import metrics
from tistream.runtime.metrics import Collect

WRITE_CHECK_S = 10.0
REFUSED_S = 30.0  #: for so long a write that was refused for lack of space counts

Check = Callable[[], None]  #: returns, or raises with the reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Probes:
    """The sources of a process's probes."""

    checks: Mapping[str, Check] = field(default_factory=dict)  #: readiness by component
    problems: Callable[[], Sequence[Mapping[str, object]]] = list  #: as `Problem.shown` gives them
    reported: Callable[[], Sequence[Mapping[str, object]]] = list  #: of other processes, which count their own
    facts: Callable[[], Mapping[str, object]] = dict  #: fields of `Health` beside the problems
    collect: Sequence[Collect] = ()


def catalog_answers(catalog: Catalog, clock: Clock) -> Check:
    """One small read; at most every WRITE_CHECK_S, and until one succeeds, a write: a full or read-only catalog answers
    every read. Where each table has a file of its own, what is free in one file takes this write on a full disk too: so
    a write of this process that was refused for lack of space counts for REFUSED_S."""
    due, lock = clock.monotonic(), threading.Lock()
    refusals, refused_until = catalog.full.times, -math.inf

    def check() -> None:
        nonlocal due, refusals, refused_until
        catalog.ping()
        with lock:
            if catalog.full.times != refusals:
                refusals, refused_until = catalog.full.times, clock.monotonic() + REFUSED_S
            if clock.monotonic() < refused_until:
                raise StoreUnavailable(f"a write was refused: {catalog.full.cause}")
            if clock.monotonic() >= due:
                check_writes(catalog)
                due = clock.monotonic() + WRITE_CHECK_S

    return check


def store_answers(store: ObjectStore) -> Check:
    """One small request; a missing object is a good answer."""

    def check() -> None:
        try:
            store.size("readyz")
        except ObjectNotFound:
            return

    return check


def export_age(catalog: Catalog) -> Callable[[], Mapping[str, object]]:
    """The age of the newest export of the catalog; nothing while exports are off, or the catalog does not answer."""

    def facts() -> dict[str, object]:
        try:
            status = export_status(catalog)
        except TiStreamError:
            return {}  # that is a problem, and shown as one
        if not status.is_on:
            return {}
        return {"catalog_export_age_s": None if status.newest is None else status.newest.age_ms / 1000}

    return facts


def none_stopped(problems: Callable[[], Sequence[Problem]]) -> Check:
    """No component has failed. A stopped item of many leaves the process ready: another process would stop as well."""

    def check() -> None:
        stopped = next((p for p in problems() if p.ends_process), None)
        if stopped is not None:
            raise StoreUnavailable(f"{stopped.source} has stopped: {stopped.message}")

    return check


def lease_holds(age_s: Callable[[], float | None]) -> Check:
    """The lease was renewed in time; otherwise the process may have been replaced."""

    def check() -> None:
        age = age_s()
        if age is None:
            raise StoreUnavailable("not registered yet")
        if age * 1000 > LEASE_MS:
            raise StoreUnavailable(f"the lease was renewed {age:.1f} s ago, longer than {LEASE_MS / 1000:g} s")

    return check


def lease_age(age_s: Callable[[], float | None]) -> Collect:
    """The age of a lease as a metric; none before the first lease."""

    def collect() -> list[metrics.Metric]:
        age = age_s()
        return [] if age is None else [metrics.single("tistream_lease_age_seconds", age)]

    return collect
