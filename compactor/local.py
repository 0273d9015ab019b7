"""Executor of plan rows in threads of this process: for small logs, and where Java is not available.

    driver     waits for results and calls `progress`, every LOOK_EVERY_S at least; what that raises stops the work
    threads    each result of `work(store, row)`; the store refuses every request once the driver has stopped

So a job that was cancelled, has lost its lease or is to be given back ends within a request, however large its rows.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, cast

from compactor import task
from compactor.core.base_plan import BasePlanRow
from compactor.core.plan import PlanRow
from compactor.core.results import BaseResult, RangeResult
from compactor.task import Failed, attempt, build_bases
from tistream.clock import Clock, SystemClock
from tistream.errors import Fenced
from tistream.objectstore.protocol import ObjectStore


class LocalExecutor:
    """An Executor over one store. Results come in the order in which they end. A retryable error ends it, and what
    `progress` raises."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        threads: int = 2,
        nice: int = 0,
        progress: Progress = lambda done, total: None,
        clock: Clock | None = None,
    ) -> None:
        """`nice`: how much lower the priority of its threads is than that of the process."""
        self._store, self._threads, self._nice = store, threads, nice
        self._progress, self._clock = progress, clock or SystemClock()

    def __call__(self, rows: Sequence[PlanRow]) -> Iterator[RangeResult | Failed]:
        return self._run(self._merged, rows)

    def bases(self, rows: Sequence[BasePlanRow]) -> Iterator[BaseResult | Failed]:
        """A BaseExecutor."""
        return self._run(self._built, rows)

    def _run(self, work: Callable[[ObjectStore, RowT], ResultT], rows: Sequence[RowT]) -> Iterator[ResultT]:
        return run_stoppable(self._store, work, rows, self._progress, self._clock, threads=self._threads)

    def _merged(self, store: ObjectStore, row: PlanRow) -> RangeResult | Failed:
        self._lower()
        return attempt(task.compact_range, store, row)

    def _built(self, store: ObjectStore, row: BasePlanRow) -> BaseResult | Failed:
        self._lower()
        return attempt(build_bases, store, row)

    def _lower(self) -> None:
        """Lower the priority of this thread: on Linux each has its own."""
        if self._nice:
            wanted = os.getpriority(os.PRIO_PROCESS, os.getpid()) + self._nice
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(19, wanted))


LOOK_EVERY_S = 0.5

RowT = TypeVar("RowT")
ResultT = TypeVar("ResultT")
Progress = Callable[[int, int], None]


class StoppableStore:
    """The same store until `stopped` is set; then every request is Fenced."""

    def __init__(self, store: ObjectStore, stopped: threading.Event) -> None:
        self._store, self._stopped = store, stopped

    def __getattr__(self, name: str) -> Any:
        if self._stopped.is_set():
            raise Fenced("this work was stopped")
        return getattr(self._store, name)


def run_stoppable(
    store: ObjectStore,
    work: Callable[[ObjectStore, RowT], ResultT],
    rows: Sequence[RowT],
    progress: Progress,
    clock: Clock,
    *,
    threads: int,
) -> Iterator[ResultT]:
    """The result of each row, in the order in which they end. Raises what `progress` or the first row that fails
    raises, after the other rows have stopped. `progress` is called with (rows done, rows)."""
    stopped, ended = threading.Event(), threading.Event()
    stoppable: Any = StoppableStore(store, stopped)
    results: deque[tuple[ResultT | None, BaseException | None]] = deque()

    def one(row: RowT) -> None:
        try:
            results.append((work(stoppable, row), None))
        except BaseException as e:  # noqa: BLE001 - raised by the driver
            results.append((None, e))
        ended.set()

    with ThreadPoolExecutor(threads, thread_name_prefix="worker") as pool:
        try:
            for row in rows:
                pool.submit(one, row)
            done = 0
            while done < len(rows):
                clock.wait(ended, LOOK_EVERY_S)
                ended.clear()
                while results:
                    result, error = results.popleft()
                    if error is not None:
                        raise error
                    done += 1
                    yield cast(ResultT, result)
                progress(done, len(rows))
        finally:
            stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)
