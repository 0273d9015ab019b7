"""`asyncio`, as far as destinations use it, over simulated threads.

A coroutine never yields here: what it awaits waits as a simulated thread does. A task is a simulated thread, so its
requests overlap with those of others. A deadline or a cancellation ends the wait that it falls into (`pass_time`), and
no other code: as with asyncio, what was sent by then is on its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any

from simulator.dst import threads
from simulator.dst.scheduler import Task as SimTask

CancelledError = asyncio.CancelledError

_deadlines: dict[SimTask, float] = {}
_cancels: dict[SimTask, threads.Event] = {}
_begun: list[Coroutine[Any, Any, Any]] = []  # to close at the end: a cancelled task may never run its own


class Done:
    """An awaitable that waits at once. `wait` gives its result."""

    def __init__(self, wait: Any) -> None:
        self._wait = wait

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._wait()
        yield  # makes it a generator that never yields


class Task:
    """asyncio.Task."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work, self._cancelled = work, threads.Event()
        _begun.append(work)
        self._result: Any = None
        self._error: BaseException | None = None
        self._thread = threads.Thread(target=self._run, name="coroutine")
        self._thread.start()

    def cancel(self) -> None:
        self._cancelled.set()

    def join(self, *, return_exceptions: bool = False) -> Any:
        """The result, when it has ended."""
        self._thread.join()
        if self._error is None:
            return self._result
        if return_exceptions:
            return self._error
        raise self._error

    @property
    def failed(self) -> bool:
        return self._error is not None

    @property
    def is_over(self) -> bool:
        return not self._thread.is_alive()

    def _run(self) -> None:
        me = _current()
        _cancels[me] = self._cancelled
        try:
            self._result = run(self._work)
        except (Exception, CancelledError) as e:  # noqa: BLE001 - `join` raises it
            self._error = e
        finally:
            del _cancels[me]


def ensure_future(work: Coroutine[Any, Any, Any]) -> Task:
    """asyncio.ensure_future."""
    return Task(work)


def gather(*tasks: Task, return_exceptions: bool = False) -> Done:
    """asyncio.gather, of tasks."""

    def wait() -> list[Any]:
        while not return_exceptions and not all(task.is_over for task in tasks):
            if any(task.is_over and task.failed for task in tasks):
                break
            threads.scheduler().sleep(0.001)
        first = [task for task in tasks if task.is_over and task.failed]
        return [
            task.join(return_exceptions=return_exceptions) for task in (tasks if return_exceptions else first or tasks)
        ]

    return Done(wait)


def wait_for(work: Awaitable[Any], timeout: float) -> Done:
    """asyncio.wait_for."""

    def wait() -> Any:
        me = _current()
        before = _deadlines.get(me)
        at = threads.scheduler().now + timeout
        _deadlines[me] = at if before is None else min(at, before)
        try:
            return run(work)
        finally:
            if before is None:
                del _deadlines[me]
            else:
                _deadlines[me] = before

    return Done(wait)


class Runner:
    """asyncio.Runner."""

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return run(work)

    def close(self) -> None:
        """There is no loop."""


def run(work: Any) -> Any:
    """Run a coroutine to its end in this simulated thread."""
    try:
        (work if hasattr(work, "send") else work.__await__()).send(None)
    except StopIteration as end:
        return end.value
    raise RuntimeError("a coroutine yields: it awaits what is not simulated")


def close() -> None:
    """A run is over."""
    for work in _begun:
        work.close()
    for left in (_begun, _deadlines, _cancels):
        left.clear()


def pass_time(seconds: float) -> None:
    """A request is under way for so long, unless its deadline comes or it is cancelled."""
    me, s = _current(), threads.scheduler()
    until, cancelled = _deadlines.get(me), _cancels.get(me)
    left = seconds if until is None else min(seconds, until - s.now)
    if left > 0:
        if cancelled is None:
            s.sleep(left)
        else:
            cancelled.wait(left)
    if cancelled is not None and cancelled.is_set():
        raise CancelledError
    if left < seconds:
        raise TimeoutError


def _current() -> SimTask:
    sim_task = threads.scheduler().current
    if sim_task is None:
        raise RuntimeError("not in a simulated thread")
    return sim_task
