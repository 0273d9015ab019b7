"""Executor of plan rows in threads of this process: for small logs, and where Java is not available."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from compactor import task
from compactor.base_task import BaseResult, build_bases
from compactor.core.base_plan import BasePlanRow
from compactor.core.plan import PlanRow
from compactor.task import Failed, RangeResult, attempt
from tistream.objectstore.protocol import ObjectStore


class LocalExecutor:
    """An Executor over one store. Results come in plan order. A retryable error ends it."""

    def __init__(self, store: ObjectStore, *, threads: int = 2, nice: int = 0) -> None:
        """`nice`: how much lower the priority of its threads is than that of the process."""
        self._store, self._threads, self._nice = store, threads, nice

    def __call__(self, rows: Sequence[PlanRow]) -> Iterator[RangeResult | Failed]:
        with self._pool() as pool:
            yield from pool.map(self._merged, rows)

    def bases(self, rows: Sequence[BasePlanRow]) -> Iterator[BaseResult | Failed]:
        """A BaseExecutor."""
        with self._pool() as pool:
            yield from pool.map(self._built, rows)

    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._threads, thread_name_prefix="compactor")

    def _merged(self, row: PlanRow) -> RangeResult | Failed:
        self._lower()
        return attempt(task.compact_range, self._store, row)

    def _built(self, row: BasePlanRow) -> BaseResult | Failed:
        self._lower()
        return attempt(build_bases, self._store, row)

    def _lower(self) -> None:
        """Lower the priority of this thread: on Linux each has its own."""
        if self._nice:
            wanted = os.getpriority(os.PRIO_PROCESS, os.getpid()) + self._nice
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(19, wanted))
