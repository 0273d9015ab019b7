"""What all who follow a tenant share in one process: who wakes them, what they know, where their pages are made.

Followers are streams and pulls that wait. They cost no thread while nothing happens. Their pages are made by a few
threads of their own, so that any number of them leaves the threads of other requests alone. How many a caller may have
open at once is counted here.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import ParamSpec, TypeVar

from apiserver.stream.pages import SharedPages
from apiserver.waker import Waker
from reading.deps import Services
from reading.position import Served
from reading.pull import PullAnswer, PullRequest
from reading.served import ServedCache
from tistream.catalog.work.tasks import served_watermarks
from tistream.errors import TooManyOpen
from tistream.ids import Tenant

P = ParamSpec("P")
T = TypeVar("T")

_THREADS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowLimits:
    """Bounds of those who follow. A caller is a principal, or an address where there are no principals."""

    streams_max: int = 256  #: open at once, of one caller
    waits_max: int = 1024  #: pulls that wait at once, of one caller
    page_bytes_max: int = 1 << 30  #: of pages that are made and not taken, of one caller; a page alone may be larger
    slow_consumer_s: float = 30  #: a stream whose consumer takes nothing for so long is closed


class Followers:
    """Shared by the routes of one application."""

    def __init__(self, services: Services, limits: FollowLimits | None = None) -> None:
        self.services = services
        self.limits = limits or FollowLimits()
        self.waker = Waker(partial(served_watermarks, services.catalog))
        self.served = ServedCache(services)
        self.pages = SharedPages()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="followers")
        self._lock = threading.Lock()
        self._open: Counter[tuple[str, str]] = Counter()

    async def run(self, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run what blocks in a follower's thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, partial(make, *args, **kwargs))

    async def current(self, tenant: Tenant) -> Served | None:
        """The moment of those who wait for the tenant; it covers the last look at the catalog. None if nobody waits."""
        watermark = self.waker.known(tenant)
        if watermark < 0:
            return None
        return self.served.known(tenant, watermark) or await self.run(self.served.at, tenant, watermark)

    def first_page(self, request: PullRequest) -> PullAnswer:
        """A follower's first page, as of now. Blocks. Those who begin together share it."""
        return self.pages.make(self.services, request, self.served.now(request.scope.tenant))

    @contextmanager
    def counted(self, kind: str, caller: str, most: int, count: int = 1) -> Iterator[None]:
        """Count one (or `count`) more of the caller's. TooManyOpen when that is above `most`; the first may be."""
        key = (kind, caller)
        with self._lock:
            if self._open[key] and self._open[key] + count > most:
                raise TooManyOpen(f"There are {most} {kind} of this caller open already.", bucket=kind, most=most)
            self._open[key] += count
        try:
            yield
        finally:
            with self._lock:
                self._open[key] -= count
                if not self._open[key]:
                    del self._open[key]

    def open_now(self, kind: str) -> int:
        """How many there are of all callers."""
        with self._lock:
            return sum(n for (of_kind, _), n in self._open.items() if of_kind == kind)

    def close(self) -> None:
        """The process stops: streams end with their cursor, pulls that wait answer with what they have."""
        self.waker.close()
        self._pool.shutdown(wait=False)
