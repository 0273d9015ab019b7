"""Simulated threads and time: only the seed decides which runnable thread continues.

    task      a simulated thread: a greenlet of one process
    process   tasks that live and die together
    hub       the loop that picks a runnable task; when there is none, time jumps to the next timer

Relations:

- only one task runs at a time, until it reaches a scheduling point (`point`, `sleep`, `park`);
- a task of a dead process never runs again; one of a paused process runs when the process does;
- `trace` records the run: two runs of one seed have the same trace.

Callbacks of `call_at` run in the hub and may not block.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable
from itertools import count
from typing import Any

import greenlet  # type: ignore[import-untyped]

_SAME_TIME_MAX = 200_000  # steps without time passing: a task spins
_SWITCH_CHANCE = 0.05  # of a switch at a place where a thread does not wait
_HASHED_AT_ONCE = 1 << 14  # bytes of the trace


class Livelock(Exception):
    """Tasks run and run and time does not pass."""


class Process:
    """The unit of crashes, pauses and restarts."""

    def __init__(self, name: str, scheduler: Scheduler) -> None:
        self.name = name
        self.scheduler = scheduler
        self.dead = False
        self.paused = False
        self.pauses = 0  #: so far
        self.held: list[Task] = []  # would run, but for the pause
        self.crash_in = 0  #: it dies at the n-th scheduling point of its I/O from now; 0 = not planned

    def __repr__(self) -> str:
        return self.name


class Task:
    """A simulated thread."""

    __slots__ = ("done", "greenlet", "mark", "name", "parked", "process", "serial", "thread", "ticket", "timed_out")

    def __init__(self, process: Process, name: str, serial: int) -> None:
        self.process = process
        self.name = name
        self.serial = serial
        self.mark = serial.to_bytes(4, "little")  #: a step of it in the trace
        self.ticket = 0  #: rises with each park: an old timer does not wake a new wait
        self.timed_out = False
        self.parked = False  #: waits; a runnable task is not made runnable once more
        self.done = False
        self.thread: Any = None
        self.greenlet: Any = None


class Scheduler:
    """The hub. `seed` decides the order of everything."""

    def __init__(self, seed: str) -> None:
        self.rand = random.Random(f"{seed}/schedule")
        self.now = 0.0
        self.steps = 0
        self.current: Task | None = None
        self.closing = False
        self.failed: tuple[Task, BaseException] | None = None
        self._runnable: list[Task] = []
        self._timers: list[tuple[float, int, Any, int]] = []
        self._numbers = count(1)
        self._hub = greenlet.getcurrent()
        self._hub_switch = self._hub.switch
        self._tasks: set[Task] = set()
        self._hash = hashlib.blake2b(digest_size=8)
        self._unhashed = bytearray()  # the trace's end
        self._random = self.rand.random
        self._randbits = self.rand.getrandbits
        self._since_time_moved = 0
        self.on_crash: Callable[[Process], None] = lambda _: None

    # -- called by anybody

    def trace(self, label: str) -> None:
        """Record an event in the trace."""
        task = self.current
        self._unhashed += f"{task.serial if task else 0} {label}\n".encode()

    @property
    def trace_hash(self) -> str:
        self._hash.update(self._unhashed)
        self._unhashed.clear()
        return self._hash.hexdigest()

    def spawn(self, process: Process, run: Callable[[], None], name: str) -> Task:
        """A new task of the process; it begins when it is picked."""
        task = Task(process, name, next(self._numbers))

        def body() -> None:
            try:
                run()
            except greenlet.GreenletExit:
                pass
            except BaseException as e:  # noqa: BLE001 - shown by the run
                if self.failed is None:
                    self.failed = task, e
            finally:
                task.done = True

        task.greenlet = greenlet.greenlet(body, self._hub)
        self._tasks.add(task)
        self._make_runnable(task)
        return task

    def call_at(self, at: float, action: Callable[[], None]) -> None:
        """Run `action` in the hub at that time, whatever becomes of who asked."""
        heapq.heappush(self._timers, (max(at, self.now), next(self._numbers), action, -1))

    def wake(self, task: Task) -> None:
        """Make a parked task runnable."""
        if not self.closing and not task.done:
            task.timed_out = False  # also when its time is up now
            if task.parked:
                task.parked = False
                task.ticket += 1
                self._make_runnable(task)

    # -- called by the running task

    def point(self, label: str = "") -> None:
        """Others may run first. With a label it is I/O: written into the trace, and a place to crash at."""
        task = self._mine()
        if label:
            self.trace(label)
            process = task.process
            if process.crash_in:
                process.crash_in -= 1
                if not process.crash_in:
                    self.on_crash(process)
        self._make_runnable(task)
        self._hub_switch()
        if self.closing:
            raise greenlet.GreenletExit

    def maybe(self) -> None:
        """A scheduling point now and then: threads are also switched where they do not wait."""
        if self.current is not None and not self.closing and self._random() < _SWITCH_CHANCE:
            self.point()

    def park(self, timeout_s: float | None = None) -> bool:
        """Stop until `wake`, or until the time is up. Whether it was woken."""
        task = self.current
        if task is None or self.closing:
            task = self._mine()
        task.ticket += 1
        task.parked = True
        if timeout_s is not None:
            at = self.now + timeout_s if timeout_s > 0 else self.now
            heapq.heappush(self._timers, (at, next(self._numbers), task, task.ticket))
        self._hub_switch()
        if self.closing:
            raise greenlet.GreenletExit
        return not task.timed_out

    def sleep(self, seconds: float) -> None:
        """Let time pass."""
        self.park(seconds)

    # -- processes

    def kill(self, process: Process) -> None:
        """None of its tasks runs any more. If the caller is one of them it stops at its next scheduling point."""
        process.dead = True
        process.held.clear()

    def pause(self, process: Process) -> None:
        process.paused = True
        process.pauses += 1

    def unpause(self, process: Process) -> None:
        process.paused = False
        held, process.held = process.held, []
        for task in held:
            self._make_runnable(task)

    # -- the hub

    def run(self, until: float, stop: Callable[[], bool] = lambda: False) -> bool:
        """Run until that time, or until `stop` is true (checked whenever time moves). Whether `stop` was true."""
        while True:
            if self._runnable:
                self._run_all()
                if self.failed is not None:
                    return False
            if stop():
                return True
            if not self._timers or self._timers[0][0] > until:
                self.now = max(self.now, until)
                return False
            self._advance()

    def close(self) -> None:
        """End every task; nothing they still do has an effect, because nothing waits for it."""
        self.closing = True
        for task in list(self._tasks):
            if not task.done and task.greenlet:
                task.greenlet.throw(greenlet.GreenletExit)
        self._tasks.clear()
        self._timers.clear()
        self._runnable.clear()

    def _advance(self) -> None:
        at = self._timers[0][0]
        if at > self.now:
            self.now, self._since_time_moved = at, 0
        timers, now = self._timers, self.now
        while timers and timers[0][0] <= now:
            _, _, what, ticket = heapq.heappop(timers)
            if ticket < 0:
                what()
            elif what.ticket == ticket and not what.done:
                what.ticket += 1
                what.parked = False
                what.timed_out = True
                self._make_runnable(what)

    def _run_all(self) -> None:
        """Run tasks until none is runnable, or one has failed."""
        runnable, randbits = self._runnable, self._randbits
        while runnable and self.failed is None:
            task = runnable.pop()
            if runnable:  # any of them, as `randrange` would pick it
                n = len(runnable) + 1
                bits = n.bit_length()
                while (at := randbits(bits)) >= n:
                    pass
                if at < n - 1:
                    runnable[at], task = task, runnable[at]
            process = task.process
            if process.dead:
                continue
            if process.paused:
                process.held.append(task)
                continue
            self.steps += 1
            self._since_time_moved += 1
            if self._since_time_moved > _SAME_TIME_MAX:
                raise Livelock(f"{task.name} of {process.name} among others")
            self._unhashed += task.mark
            self.current = task
            task.greenlet.switch()
            self.current = None
            if task.done:
                self._tasks.discard(task)
        if len(self._unhashed) > _HASHED_AT_ONCE:
            self._hash.update(self._unhashed)
            self._unhashed.clear()

    def _make_runnable(self, task: Task) -> None:
        if not task.process.dead and not self.closing:
            self._runnable.append(task)

    def _mine(self) -> Task:
        if self.closing:
            raise greenlet.GreenletExit
        if self.current is None:
            raise RuntimeError("only a simulated thread can wait")
        return self.current
