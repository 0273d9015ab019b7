"""Each rule that keeps the log right, broken on purpose: what proves that the simulator would notice.

A mutant patches the running code for the time of a run; its scenario is the one that shows it soonest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A broken rule."""

    name: str
    rule: str  #: what is broken, in one sentence
    patch: Callable[[], AbstractContextManager[None]]  #: in force while the context is open
    scenario: str = "usual"  #: the profile that shows it soonest


MUTANTS: dict[str, Mutant] = {}


def register(name: str, rule: str, scenario: str = "usual") -> Callable[[Callable[[], Iterator[None]]], None]:
    """Add a mutant; decorates a generator that patches, yields once, and puts back."""

    def add(patch: Callable[[], Iterator[None]]) -> None:
        if name in MUTANTS:
            raise ValueError(f"two mutants are called {name}")
        MUTANTS[name] = Mutant(name=name, rule=rule, patch=contextmanager(patch), scenario=scenario)

    return add


@contextmanager
def replaced(owner: object, name: str, value: Any) -> Iterator[None]:
    """An attribute of a class or module has another value."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@register("no-admission", "a watermark row lifts a slice whatever its checkpoint_ts is", scenario="upstream")
def _no_admission() -> Iterator[None]:
    from sorter.watermark import RangeWatermarkMap

    whole = RangeWatermarkMap._admissible

    def lenient(self: Any, *args: Any) -> Any:
        from dataclasses import replace

        return [replace(row, checkpoint_ts=0) for row in whole(self, *args)]

    with replaced(RangeWatermarkMap, "_admissible", lenient):
        yield


@register("no-upper-guard", "a flush moves `upper` wherever it stands", scenario="owners")
def _no_upper_guard() -> Iterator[None]:
    from tistream.catalog import committed
    from tistream.catalog.tables import of_tenant, tasks

    def advance(conn: Any, tenant: Any, a: Any) -> bool:
        mine = (tasks.c.task_id == a.task_id, of_tenant(tasks, tenant), tasks.c.epoch == a.epoch)
        return bool(conn.execute(tasks.update().where(*mine).values(upper=a.new_upper)).rowcount == 1)

    with replaced(committed, "_advance", advance):
        yield
