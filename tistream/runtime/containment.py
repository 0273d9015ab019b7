"""Containment: an unexpected error in the work of one item stops that item, never its neighbours or the process.

Every loop over tasks, tenants, stores or jobs runs each item's step through a `Containment`. What the step raises
decides:

- Fenced is raised to the caller, which drops the item: another process owns it (with `fenced_stops`, for roles that
  own no items, it is an ordinary error);
- kind RETRY (object store, catalog or peer unavailable): the item waits, 0.2 s doubling to 5 s, and is tried again;
- anything else (a corrupt object, a refused value, a defect of this program): the item is *stopped*. Its problem is
  fatal and contained (the process stays ready), and it is tried again after a long pause (30 s doubling to 10
  minutes), or as soon as an operator resumes it.

MemoryError, RecursionError and the panics of libraries in Rust are errors like others (`stops_item`).

A waiting item delays no other. Its problem is shown until a step succeeds or the item is forgotten.
`tistream.catalog.work.stopped_items` records them in the catalog: a restarted process shows them at once (`remember`)
and retries them after the first pause.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import structlog

from tistream.clock import Clock
from tistream.errors import ErrorKind, Fenced, TiStreamError
from tistream.model.problem import Problem
from tistream.runtime.service import Backoff, stops_item

RETRY_FIRST_S, RETRY_MAX_S = 0.2, 5.0
STOPPED_FIRST_S, STOPPED_MAX_S = 30.0, 600.0

log = structlog.get_logger(__name__)

Item = TypeVar("Item", bound=Hashable)


@dataclass(slots=True)
class _Failure:
    problem: Problem
    backoff: Backoff
    due_s: float
    tries: int


class Containment(Generic[Item]):
    """The failures of many items. `run` is for one thread of each item; everything else for any."""

    def __init__(
        self,
        source: str,
        clock: Clock,
        *,
        name: Callable[[Item], str] = str,
        rand: random.Random | None = None,
        on_stop: Callable[[Item, Problem], None] | None = None,
        stopped_first_s: float = STOPPED_FIRST_S,
        stopped_max_s: float = STOPPED_MAX_S,
        fenced_stops: bool = False,
    ) -> None:
        """`source` and `name(item)` make the source of a problem, for example "meta-1/activation/1/7". `on_stop` is
        called once when an item stops, in the thread of `run`. Use shorter pauses where a retry is cheap."""
        self._stopped_pauses, self._fenced_stops = (stopped_first_s, stopped_max_s), fenced_stops
        self._source, self._clock, self._name, self._rand, self._on_stop = source, clock, name, rand, on_stop
        self._failures: dict[Item, _Failure] = {}

    def is_due(self, item: Item) -> bool:
        """Whether `run` would run a step of this item now."""
        failure = self._failures.get(item)
        return failure is None or self._clock.monotonic() >= failure.due_s

    def run(self, item: Item, step: Callable[[], object]) -> bool:
        """Run one step of an item, unless the item waits. Whether it ran and succeeded. Raises Fenced only."""
        if not self.is_due(item):
            return False
        try:
            step()
        except BaseException as e:
            if not stops_item(e):
                raise
            if isinstance(e, Fenced) and not self._fenced_stops:
                self.forget(item)
                raise
            self.failed(item, e)
            return False
        self._failures.pop(item, None)
        return True

    def failed(self, item: Item, error: BaseException) -> None:
        """Record that a step of this item failed, for a step that did not run through `run`."""
        retry = isinstance(error, TiStreamError) and error.kind is ErrorKind.RETRY
        problem = Problem.of(f"{self._source}/{self._name(item)}", error, fatal=not retry, contained=not retry)
        before = self._failures.get(item)
        backoff, tries = self._pauses(retry), 1
        if before is not None and before.problem.fatal is problem.fatal:
            backoff, tries = before.backoff, before.tries + 1
        self._failures[item] = _Failure(problem, backoff, self._clock.monotonic() + backoff.next_s(), tries)
        if before is not None and before.problem == problem:
            return
        if retry:
            log.warning("step failed, retrying", source=problem.source, error=str(error))
            return
        log.error("item stopped by an error, others continue", source=problem.source, exc_info=error)
        if self._on_stop is not None:
            self._on_stop(item, problem)

    def stopped(self) -> dict[Item, Problem]:
        """The items that an error has stopped."""
        return {item: f.problem for item, f in list(self._failures.items()) if f.problem.fatal}

    def waiting(self) -> list[Item]:
        """The items that have failed and were not forgotten."""
        return list(self._failures)

    def tries(self, item: Item) -> int:
        """The number of failures of this kind since the last success."""
        failure = self._failures.get(item)
        return 0 if failure is None else failure.tries

    def remember(self, item: Item, *, code: str, message: str, facts: Mapping[str, object], tries: int) -> None:
        """Show an item that an earlier process stopped, and retry it after the first pause."""
        if item not in self._failures:
            source = f"{self._source}/{self._name(item)}"
            problem = Problem(source=source, code=code, message=message, facts=facts, fatal=True, contained=True)
            backoff = self._pauses(retry=False)
            self._failures[item] = _Failure(problem, backoff, self._clock.monotonic() + backoff.next_s(), tries)

    def problems(self) -> list[Problem]:
        """The problems of all waiting items."""
        return [failure.problem for failure in list(self._failures.values())]

    def resume(self, item: Item) -> None:
        """Retry the item with the next `run`."""
        failure = self._failures.get(item)
        if failure is not None:
            failure.due_s = self._clock.monotonic()

    def forget(self, item: Item) -> None:
        """Drop the item: it no longer exists, or another process owns it."""
        self._failures.pop(item, None)

    def keep_only(self, items: Collection[Item]) -> None:
        """Forget every item that is not among these."""
        for item in [item for item in list(self._failures) if item not in items]:
            self.forget(item)

    def forget_all(self) -> None:
        """Drop all items: another process owns them."""
        self._failures = {}

    def _pauses(self, retry: bool) -> Backoff:
        first_s, max_s = (RETRY_FIRST_S, RETRY_MAX_S) if retry else self._stopped_pauses
        return Backoff(first_s=first_s, max_s=max_s, rand=self._rand)
