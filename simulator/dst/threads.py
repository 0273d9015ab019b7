"""`threading`, `queue` and `concurrent.futures`, as far as the services use them, over simulated threads.

Names, arguments and meanings are the standard ones, so that the services' code runs unmodified. Objects belong to the
scheduler of the current run (`use`). Sets of them have the same order in each run, because hashes are serial numbers.
"""

from __future__ import annotations

import queue as real_queue
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

from simulator.dst.scheduler import Process, Scheduler, Task

_NEVER = -1.0
_scheduler: Scheduler | None = None
_numbers = count(1)


def use(scheduler: Scheduler | None) -> None:
    """The scheduler of the run that begins; None at its end."""
    global _scheduler, _numbers
    _scheduler, _numbers = scheduler, count(1)


def scheduler() -> Scheduler:
    """The scheduler of this run."""
    if _scheduler is None:
        raise RuntimeError("no simulation is under way")
    return _scheduler


class _Waitable:
    def __init__(self) -> None:
        self._number = next(_numbers)
        self._waiting: list[Task] = []

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return self is other

    def _wait(self, timeout: float | None) -> bool:
        s = scheduler()
        task = s.current
        if task is not None:
            self._waiting.append(task)
        try:
            return s.park(timeout)
        finally:
            if task is not None and task in self._waiting:
                self._waiting.remove(task)

    def _wake(self, n: int | None = None) -> None:
        if not self._waiting:
            return
        s = scheduler()
        woken, self._waiting = (self._waiting, []) if n is None else (self._waiting[:n], self._waiting[n:])
        for task in woken:
            s.wake(task)

    def _wait_until(
        self, ready: Callable[[], bool], timeout: float | None, wait: Callable[[float | None], bool] | None = None
    ) -> bool:
        s, wait = scheduler(), wait or self._wait
        deadline = None if timeout is None else s.now + timeout
        while not ready():
            left = None if deadline is None else deadline - s.now
            if left is not None and left <= 0:
                return False
            wait(left)
        return True


class _Acquirable(_Waitable):
    acquire: Callable[..., bool]
    release: Callable[..., None]

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Lock(_Acquirable):
    """threading.Lock."""

    def __init__(self) -> None:
        super().__init__()
        self._held = False

    def acquire(self, blocking: bool = True, timeout: float = _NEVER) -> bool:
        scheduler().maybe()
        if self._held and (
            not blocking or not self._wait_until(lambda: not self._held, None if timeout < 0 else timeout)
        ):
            return False
        self._held = True
        return True

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        if self._waiting:
            self._wake()


class Event(_Waitable):
    """threading.Event."""

    def __init__(self) -> None:
        super().__init__()
        self._flag = False

    def is_set(self) -> bool:
        return self._flag

    def set(self) -> None:
        self._flag = True
        self._wake()

    def clear(self) -> None:
        self._flag = False

    def wait(self, timeout: float | None = None) -> bool:
        if self._flag:
            scheduler().maybe()
            return True
        self._wait(timeout)
        return self._flag


class Condition(_Acquirable):
    """threading.Condition; no thread of the services takes one twice."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = Lock()
        self.acquire, self.release = self._lock.acquire, self._lock.release

    def wait(self, timeout: float | None = None) -> bool:
        self._lock.release()
        try:
            return self._wait(timeout)
        finally:
            self._lock.acquire()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        self._wait_until(lambda: bool(predicate()), timeout, self.wait)
        return predicate()

    def notify(self, n: int = 1) -> None:
        self._wake(n)

    def notify_all(self) -> None:
        self._wake()


class Semaphore(_Acquirable):
    """threading.Semaphore."""

    def __init__(self, value: int = 1) -> None:
        super().__init__()
        self._value = value

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        if not self._value and not blocking:
            return False
        if not self._wait_until(lambda: self._value > 0, timeout):
            return False
        self._value -= 1
        return True

    def release(self, n: int = 1) -> None:
        self._value += n
        self._wake()


class Thread(_Waitable):
    """threading.Thread. It belongs to the process of the thread that starts it."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[Any] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        super().__init__()
        self.name = name or f"Thread-{self._number}"
        self.daemon = bool(daemon)
        self._target, self._args, self._kwargs = target, tuple(args), kwargs or {}
        self._task: Task | None = None

    def start(self) -> None:
        s = scheduler()
        if self._task is not None:
            raise RuntimeError("threads can only be started once")
        if s.current is None:
            raise RuntimeError("a simulated thread is started by another one")
        self._begin(s, s.current.process)

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.done

    def join(self, timeout: float | None = None) -> None:
        self._wait_until(lambda: not self.is_alive(), timeout)

    def _begin(self, s: Scheduler, process: Process) -> None:
        def body() -> None:
            try:
                self.run()
            finally:
                task.done = True
                self._wake()

        task = self._task = s.spawn(process, body, self.name)
        task.thread = self


def current_thread() -> Thread:
    """threading.current_thread."""
    task = scheduler().current
    if task is None or task.thread is None:
        raise RuntimeError("not in a simulated thread")
    thread: Thread = task.thread
    return thread


def spawn(process: Process, run: Callable[[], None], name: str) -> Thread:
    """Start a thread in a process, from anywhere."""
    thread = Thread(target=run, name=name)
    thread._begin(scheduler(), process)
    return thread


class Queue(_Waitable):
    """queue.Queue."""

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__()
        self.maxsize = maxsize
        self._items: deque[Any] = deque()

    def full(self) -> bool:
        return 0 < self.maxsize <= len(self._items)

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        scheduler().maybe()
        if self.full() and (not block or not self._wait_until(lambda: not self.full(), timeout)):
            raise real_queue.Full
        self._items.append(item)
        self._wake()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        if not self._items and (not block or not self._wait_until(lambda: bool(self._items), timeout)):
            raise real_queue.Empty
        item = self._items.popleft()
        self._wake()
        return item


class CancelledError(Exception):
    """The future was cancelled."""


class Future(_Waitable):
    """concurrent.futures.Future."""

    def __init__(self) -> None:
        super().__init__()
        self._state = "pending"
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        return self._state in ("done", "cancelled")

    def cancelled(self) -> bool:
        return self._state == "cancelled"

    def cancel(self) -> bool:
        if self._state != "pending":
            return self.cancelled()
        self._state = "cancelled"
        self._wake()
        return True

    def result(self, timeout: float | None = None) -> Any:
        if not self._wait_until(self.done, timeout):
            raise TimeoutError
        if self.cancelled():
            raise CancelledError
        if self._error is not None:
            raise self._error
        return self._result

    def exception(self, timeout: float | None = None) -> BaseException | None:
        if not self._wait_until(self.done, timeout):
            raise TimeoutError
        return self._error

    def run(self, work: Callable[[], Any]) -> None:
        """Do the work and keep its result."""
        if self._state != "pending":
            return
        self._state = "running"
        try:
            self._result = work()
        except Exception as e:  # noqa: BLE001 - raised by `result`
            self._error = e
        self._state = "done"
        self._wake()


class ThreadPoolExecutor(_Waitable):
    """concurrent.futures.ThreadPoolExecutor."""

    def __init__(self, max_workers: int | None = None, thread_name_prefix: str = "") -> None:
        super().__init__()
        self._max_workers = max_workers or 4
        self._prefix = thread_name_prefix or f"pool-{self._number}"
        self._work: deque[tuple[Future, Callable[[], Any]]] = deque()
        self._threads: list[Thread] = []
        self._idle = 0
        self._shut = False

    def __enter__(self) -> ThreadPoolExecutor:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future:
        if self._shut:
            raise RuntimeError("cannot schedule new futures after shutdown")
        future = Future()
        self._work.append((future, lambda: fn(*args, **kwargs)))
        if self._idle:
            self._wake(1)
        elif len(self._threads) < self._max_workers:
            self._threads.append(Thread(target=self._run, name=f"{self._prefix}_{len(self._threads)}"))
            self._threads[-1].start()
        return future

    def map(self, fn: Callable[..., Any], *iterables: Iterable[Any]) -> Iterator[Any]:
        futures = [self.submit(fn, *args) for args in zip(*iterables, strict=False)]
        return (future.result() for future in futures)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._shut = True
        if cancel_futures:
            while self._work:
                self._work.popleft()[0].cancel()
        self._wake()
        if wait:
            for thread in self._threads:
                thread.join()

    def _run(self) -> None:
        while True:
            while not self._work:
                if self._shut:
                    return
                self._idle += 1
                try:
                    self._wait(None)
                finally:
                    self._idle -= 1
            future, work = self._work.popleft()
            future.run(work)
