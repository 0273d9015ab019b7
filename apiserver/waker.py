"""Wakes readers when the watermark of their tenant moves, with one poll of the catalog for all of them.

    with waker.watching(tenant) as watch:
        await watch.moved(seen, seconds)

One thread polls the watermarks of all watched tenants in one statement, a few times a second, and ends with the last
waiter.
Waiting costs no thread: it is an event of the waiter's loop. While the catalog is unavailable the poll slows down.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager

import structlog

from tistream.catalog.tenancy.served import Edge
from tistream.errors import TiStreamError
from tistream.ids import Tenant

log = structlog.get_logger(__name__)

_INTERVAL_S = 0.1
_AFTER_ERROR_S = 1.0
_NOT_POLLED = Edge(-2)
_NO_TASKS = Edge(-1)


class Watch:
    """A waiter on one event loop."""

    def __init__(self, waker: Waker, tenant: Tenant) -> None:
        self.tenant = tenant
        self.loop = asyncio.get_running_loop()
        self.event = asyncio.Event()
        self._waker = waker

    async def moved(self, seen: int, seconds: float) -> int | None:
        """The watermark once it is above `seen`, or -1 when the tenant is gone; None on timeout or shutdown, or when it
        moved otherwise while a store is quarantined."""
        deadline = self.loop.time() + seconds
        while not self._waker.closing:
            self.event.clear()
            known = self._waker.known(self.tenant)
            if known > seen or (known == _NO_TASKS.ts and seen > 0):
                return known
            left = deadline - self.loop.time()
            if left <= 0:
                return None
            try:
                async with asyncio.timeout(left):
                    await self.event.wait()
            except TimeoutError:
                return None
            if self.good_ts is not None:
                return None  # a store was quarantined: the waiter looks where it stands
        return None

    @property
    def good_ts(self) -> int | None:
        """The last timestamp known to be good while a store of the tenant is quarantined, by the last poll."""
        return self._waker.good_ts(self.tenant)


class Waker:
    """One per process. Safe to use from several loops and threads."""

    def __init__(
        self, look: Callable[[Collection[Tenant]], Mapping[Tenant, Edge]], *, interval_s: float = _INTERVAL_S
    ) -> None:
        """`look` reads the watermarks of tenants from the catalog, without tenants that have no tasks."""
        self._look = look
        self._interval_s = interval_s
        self._lock = threading.Lock()
        self._watches: dict[Tenant, set[Watch]] = {}
        self._known: dict[Tenant, Edge] = {}
        self._thread: threading.Thread | None = None
        self._woken_early = threading.Event()
        self.closing = False

    @contextmanager
    def watching(self, tenant: Tenant) -> Iterator[Watch]:
        """Register a waiter of the running loop."""
        watch = Watch(self, tenant)
        with self._lock:
            self._watches.setdefault(tenant, set()).add(watch)
            if self._thread is None and not self.closing:
                self._thread = threading.Thread(target=self._run, name="waker", daemon=True)
                self._thread.start()
        try:
            yield watch
        finally:
            with self._lock:
                others = self._watches[tenant]
                others.discard(watch)
                if not others:
                    del self._watches[tenant]
                    self._known.pop(tenant, None)

    def known(self, tenant: Tenant) -> int:
        """The watermark of a watched tenant at the last poll; -1 without tasks, -2 before the first poll."""
        return self._known.get(tenant, _NOT_POLLED).ts

    def good_ts(self, tenant: Tenant) -> int | None:
        """The last timestamp known to be good while a store of a watched tenant is quarantined, by the last poll."""
        return self._known.get(tenant, _NOT_POLLED).good_ts

    @property
    def waiting(self) -> int:
        """Number of waiters."""
        with self._lock:
            return sum(map(len, self._watches.values()))

    def close(self) -> None:
        """Wake all waiters, also later ones: the process is about to stop."""
        with self._lock:
            self.closing = True
            self._woken_early.set()
            self._wake([watch for watches in self._watches.values() for watch in watches])
            thread = self._thread
        if thread is not None:
            thread.join()

    def _run(self) -> None:
        while True:
            with self._lock:
                if not self._watches or self.closing:
                    self._thread = None
                    return
                tenants = list(self._watches)
            pause_s = self._interval_s
            try:
                self._notify(tenants, self._look(tenants))
            except TiStreamError as e:
                log.warning("polling watermarks failed, retrying", cause=str(e))
                pause_s = max(pause_s, _AFTER_ERROR_S)
            self._woken_early.wait(pause_s)

    def _notify(self, tenants: Collection[Tenant], edges: Mapping[Tenant, Edge]) -> None:
        with self._lock:
            moved = [t for t in tenants if t in self._watches and self._known.get(t) != edges.get(t, _NO_TASKS)]
            self._known.update((t, edges.get(t, _NO_TASKS)) for t in moved)
            self._wake([watch for tenant in moved for watch in self._watches[tenant]])

    def _wake(self, watches: Collection[Watch]) -> None:
        """Set their events, with one call per loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[Watch]] = {}
        for watch in watches:
            by_loop.setdefault(watch.loop, []).append(watch)
        for loop, of_one in by_loop.items():
            try:
                loop.call_soon_threadsafe(_set_all, of_one)
            except RuntimeError:
                log.debug("event loop of a waiter has ended")


def _set_all(watches: Collection[Watch]) -> None:
    for watch in watches:
        watch.event.set()
