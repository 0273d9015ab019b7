"""Services: start, readiness, problems and stop of long-running parts.

A `Service` has `start`, `wait_until_ready`, `stop`, and `problems()`, its present problems. `Repeating` is the only
kind of background thread: it runs a step, waits, and runs it again. What a step raises decides:

- kind RETRY (store, catalog or peer unavailable): the problem is shown, and the step is retried after a growing pause;
- anything else (fenced, corrupt, a defect): the thread ends, and with it the process, so that a new process starts
  from durable state. Use this for a fenced heartbeat, or a loop whose memory a defect may have left inconsistent;
- in a `lasting` thread every error is shown and the step is retried. Use this where each step starts from the catalog,
  as in the meta server: otherwise one tenant's error would stop all tenants at each restart.

A loop over tasks, tenants, stores or jobs contains the errors of each item itself (`tistream.runtime.containment`).

No error is lost: it is shown by `problems()` until a later step succeeds. All waiting uses the given Clock.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import structlog

from tistream.clock import Clock
from tistream.errors import ErrorKind, TiStreamError
from tistream.model.problem import Problem

log = structlog.get_logger(__name__)


def stops_item(error: BaseException) -> bool:
    """Whether an error may stop an item or a step, and not its thread: any Exception, and the panic of a library in
    Rust, which is none."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


class Service(Protocol):
    """A long-running part of a process."""

    name: str

    def start(self) -> None: ...

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Wait for its first successful work. False on timeout, or when it has stopped."""
        ...

    def stop(self) -> None:
        """Stop and wait for it. Safe to call twice, and before start."""
        ...

    def problems(self) -> list[Problem]: ...


class Backoff:
    """Pauses that double from `first_s` to `max_s`; `rand` spreads each over its upper half."""

    def __init__(self, *, first_s: float, max_s: float, rand: random.Random | None = None) -> None:
        self._first_s, self._max_s, self._rand = first_s, max_s, rand
        self._now_s = first_s

    def next_s(self) -> float:
        """The pause to make now, in seconds."""
        pause, self._now_s = self._now_s, min(self._now_s * 2, self._max_s)
        return pause if self._rand is None else pause * (0.5 + self._rand.random() / 2)

    def reset(self) -> None:
        """Restart from `first_s` after a success."""
        self._now_s = self._first_s


class Repeating:
    """One supervised thread that runs `step` every `interval_s` seconds."""

    def __init__(
        self, name: str, step: Callable[[], object], *, interval_s: float, clock: Clock, lasting: bool = False
    ) -> None:
        """`lasting`: no error ends the thread."""
        self.name, self._lasting = name, lasting
        self._step, self._interval_s, self._clock = step, interval_s, clock
        self._backoff = Backoff(first_s=max(interval_s, 0.05), max_s=max(interval_s, 5.0), rand=random.Random())
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._settled = threading.Event()  # ready for the first time, or stopped
        self._ready = False
        self._problem: Problem | None = None
        self._succeeded_s: float | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Run the next step now instead of after the pause."""
        self._wake.set()

    def wait_until_ready(self, timeout_s: float) -> bool:
        self._settled.wait(timeout_s)
        return self._ready and not self.crashed

    def stop(self, timeout_s: float | None = None) -> None:
        """Stop and wait for the step that runs; with `timeout_s` at most so long."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(timeout_s)

    @property
    def crashed(self) -> bool:
        """Whether an error has ended the thread."""
        problem = self._problem
        return problem is not None and problem.ends_process

    @property
    def succeeded_age_s(self) -> float | None:
        """Seconds since the last successful step; None before the first."""
        at = self._succeeded_s
        return None if at is None else self._clock.monotonic() - at

    def problems(self) -> list[Problem]:
        problem = self._problem
        return [] if problem is None else [problem]

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                pause_s = self._run_step()
                if pause_s is None:
                    return
                self._clock.wait(self._wake, pause_s)
                self._wake.clear()
        finally:
            self._settled.set()

    def _run_step(self) -> float | None:
        """Run one step; the pause until the next, or None when there is none."""
        try:
            self._step()
        except BaseException as e:
            if not stops_item(e):
                raise
            retry = isinstance(e, TiStreamError) and e.kind is ErrorKind.RETRY
            self._note(e, fatal=not retry)
            return self._backoff.next_s() if retry or self._lasting else None
        self._problem = None
        self._succeeded_s = self._clock.monotonic()
        self._ready = True
        self._backoff.reset()
        self._settled.set()
        return self._interval_s

    def _note(self, error: BaseException, *, fatal: bool) -> None:
        problem = Problem.of(self.name, error, fatal=fatal, contained=fatal and self._lasting)
        if problem == self._problem:
            return
        if fatal and isinstance(error, TiStreamError) and error.kind is ErrorKind.FENCED:  # no defect: without a trace
            log.error("service fenced", service=self.name, error=str(error))
        elif problem.ends_process:
            log.error("service stopped by an error", service=self.name, exc_info=error)
        elif fatal:
            log.error("service step failed by a defect, retrying", service=self.name, exc_info=error)
        else:
            log.warning("service step failed, retrying", service=self.name, error=str(error))
        self._problem = problem


class ServiceGroup:
    """Services started in order, stopped in reverse order, ready when all are."""

    def __init__(self, name: str, members: Sequence[Service], clock: Clock) -> None:
        self.name = name
        self.members = tuple(members)
        self._clock = clock

    def start(self) -> None:
        for member in self.members:
            member.start()

    def wait_until_ready(self, timeout_s: float) -> bool:
        deadline = self._clock.monotonic() + timeout_s
        return all(member.wait_until_ready(max(0.0, deadline - self._clock.monotonic())) for member in self.members)

    def stop(self) -> None:
        for member in reversed(self.members):
            member.stop()

    def problems(self) -> list[Problem]:
        return [problem for member in self.members for problem in member.problems()]
