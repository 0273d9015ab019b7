"""Threads shared by tenants. A tenant whose requests are slow gets few of them.

Waiting tasks are taken tenant by tenant in turn. A tenant has at most `of_tenant` threads, and one while its requests
are slow: while one of them takes, or the last one took, more than SLOW_S. So `threads - 1` slow tenants leave a thread
to all others.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from tistream.clock import Clock
from tistream.ids import Tenant

T = TypeVar("T")

SLOW_S = 2.0
_CLOSED_S = 0.5
_Task = Callable[[], object]


class TenantPool:
    """Thread-safe."""

    def __init__(self, threads: int, of_tenant: int, name: str, clock: Clock) -> None:
        self._threads, self._of_tenant, self._clock = threads, of_tenant, clock
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._lock = threading.Lock()
        self._waiting: dict[Tenant, deque[_Task]] = {}  # in the order of their turns
        self._running: dict[Tenant, list[float]] = {}  # when each began
        self._slow: set[Tenant] = set()
        self._count = 0
        self.closed = False

    def of(self, tenant: Tenant) -> Share:
        return Share(self, tenant)

    def submit(self, tenant: Tenant, task: _Task) -> None:
        """Run it once there is a thread for this tenant. Its errors are its own."""
        with self._lock:
            if self.closed:
                return
            self._waiting.setdefault(tenant, deque()).append(task)
            self._begin()

    def slow(self) -> list[Tenant]:
        """The tenants that have a request that takes long now."""
        now = self._clock.monotonic()
        with self._lock:
            return [tenant for tenant, began in self._running.items() if now - began[0] >= SLOW_S]

    def close(self) -> None:
        """Drop what waits, and wait for what runs."""
        with self._lock:
            self.closed = True
            self._waiting.clear()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _begin(self) -> None:
        """Begin what may run. Holds the lock."""
        while self._count < self._threads and not self.closed:
            tenant = next((each for each in self._waiting if self._may_begin(each)), None)
            if tenant is None:
                return
            tasks = self._waiting.pop(tenant)
            task = tasks.popleft()
            if tasks:
                self._waiting[tenant] = tasks  # behind the others
            began = self._clock.monotonic()
            self._running.setdefault(tenant, []).append(began)
            self._count += 1
            self._pool.submit(self._run, tenant, task, began)

    def _may_begin(self, tenant: Tenant) -> bool:
        running = self._running.get(tenant, ())
        if not running:
            return True
        slow = tenant in self._slow or self._clock.monotonic() - running[0] >= SLOW_S
        return len(running) < (1 if slow else self._of_tenant)

    def _run(self, tenant: Tenant, task: _Task, began: float) -> None:
        try:
            task()
        finally:
            took_s = self._clock.monotonic() - began
            with self._lock:
                (self._slow.add if took_s >= SLOW_S else self._slow.discard)(tenant)
                self._running[tenant].remove(began)
                if not self._running[tenant]:
                    del self._running[tenant]
                self._count -= 1
                self._begin()


class Share:
    """The pool as one tenant sees it."""

    def __init__(self, pool: TenantPool, tenant: Tenant) -> None:
        self._pool, self._tenant = pool, tenant

    def submit(self, run: Callable[..., object], *args: Any) -> None:
        self._pool.submit(self._tenant, lambda: run(*args))

    def each(self, run: Callable[[T], object], items: Iterable[T]) -> None:
        """Run it for all items and wait for them, or for the end of the pool. Raises the first error, after all have
        ended."""
        wanted, errors, done = list(items), list[BaseException](), threading.Semaphore(0)

        def one(item: T) -> None:
            try:
                run(item)
            except BaseException as e:  # noqa: BLE001 - raised below
                errors.append(e)
            finally:
                done.release()

        for item in wanted:
            self.submit(one, item)
        for _ in wanted:
            while not done.acquire(timeout=_CLOSED_S):
                if self._pool.closed:  # what waited was dropped
                    return
        if errors:
            raise errors[0]
