"""State shared by the followers of one process: wake-ups, served state per tenant, pages, and counts per caller.

Followers are streams and waiting pulls. An idle follower costs no thread. Pages of followers are made by a small thread
pool, so that they never take the threads of other requests.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar
from weakref import WeakValueDictionary

from apiserver.stream.pages import SharedPages
from apiserver.waker import Waker
from reading.pages.request import PullAnswer, PullRequest
from reading.served.cache import ServedCache
from reading.served.position import Served
from reading.served.services import Services
from tistream.catalog.work.tasks import served_edges
from tistream.errors import TooManyOpen
from tistream.ids import Tenant

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 8
_COSTLY_WEIGHT = 200
_COSTLY_AT_ONCE = 2  # of one caller
_COSTLY_WAITING_MAX = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowLimits:
    """Limits per caller: a principal, or an address without authentication."""

    streams_max: int = 256  #: open streams
    waits_max: int = 1024  #: waiting pulls
    page_bytes_max: int = 1 << 30  #: of pages not sent yet; a single page may be larger
    slow_consumer_s: float = 30  #: without a byte read, after which the connection is closed


def is_costly(request: PullRequest) -> bool:
    """Whether its regular expressions may take long."""
    return request.weight >= _COSTLY_WEIGHT


class Followers:
    """Shared by the routes of one application."""

    def __init__(self, services: Services, limits: FollowLimits | None = None) -> None:
        self.services = services
        self.limits = limits or FollowLimits()
        self.waker = Waker(partial(served_edges, services.catalog))
        self.served = ServedCache(services)
        self.pages = SharedPages()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="followers")
        self._lock = threading.Lock()
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        self._open: Counter[tuple[str, str]] = Counter()

    async def run(self, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking call in the followers' pool."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(make, *args, **kwargs))

    async def run_for(self, caller: str, request: PullRequest, make: Callable[..., T], *args: object) -> T:
        """As `run`, for a page. Of pages with costly expressions a caller has a few made at a time; more wait, without
        a thread."""
        if not is_costly(request):
            return await self.run(make, *args)
        with self.counted("costly_pages", caller, _COSTLY_WAITING_MAX):
            turns = self._turns.setdefault(caller, asyncio.Semaphore(_COSTLY_AT_ONCE))
            await turns.acquire()
            return await self._in_turn(turns, partial(make, *args))

    async def _in_turn(self, turns: asyncio.Semaphore, make: Callable[[], T]) -> T:
        """Run a call in the pool, and give the turn back when the call has ended: a thread continues when the caller
        leaves."""
        loop = asyncio.get_running_loop()

        def ended(_: Future[T]) -> None:
            with suppress(RuntimeError):  # the loop is closed: no caller waits for a turn
                loop.call_soon_threadsafe(turns.release)

        work = self._pool.submit(make)
        work.add_done_callback(ended)
        return await asyncio.wrap_future(work)

    async def current(self, tenant: Tenant) -> Served | None:
        """The served state as of the last poll of the catalog. None when no follower of the tenant waits."""
        watermark = self.waker.known(tenant)
        return None if watermark < 0 else await self.served_at(tenant, watermark)

    async def served_at(self, tenant: Tenant, watermark: int) -> Served:
        """The served state at or above `watermark`."""
        if self.must_read(tenant):
            return await self.run(self.served.now, tenant)
        served = self.served.known(tenant, watermark)
        return served if served is not None else await self.run(self.served.at, tenant, watermark)

    def must_read(self, tenant: Tenant) -> bool:
        """Whether a cached state may not be used: less is served while a store is quarantined."""
        return self.waker.good_ts(tenant) is not None

    def first_page(self, request: PullRequest) -> PullAnswer:
        """A follower's first page, as of now. Blocks. Followers that start together share it."""
        return self.pages.make(self.services, request, self.served.now(request.scope.tenant))

    @contextmanager
    def counted(self, kind: str, caller: str, most: int, count: int = 1) -> Iterator[None]:
        """Count `count` more for the caller. TooManyOpen above `most`, except for the first."""
        key = (kind, caller)
        with self._lock:
            if self._open[key] and self._open[key] + count > most:
                raise TooManyOpen(f"This caller has {most} {kind} open already.", bucket=kind, most=most)
            self._open[key] += count
        try:
            yield
        finally:
            with self._lock:
                self._open[key] -= count
                if not self._open[key]:
                    del self._open[key]

    def open_now(self, kind: str) -> int:
        """The count over all callers."""
        with self._lock:
            return sum(n for (of_kind, _), n in self._open.items() if of_kind == kind)

    def close(self) -> None:
        """Shut down: streams end with their cursor, waiting pulls answer with what they have."""
        self.waker.close()
        self._pool.shutdown(wait=False)
