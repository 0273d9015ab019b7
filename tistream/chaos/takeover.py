"""How long what a dead or sleeping worker had was without an owner.

Looked at from outside, in the catalog's own rows: an item (a store or a task) counts as taken over when its epoch is
higher than at the moment of the harm, whoever has it then. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

Item = tuple[object, ...]
Holding = Mapping[Item, tuple[str | None, int]]  #: item -> (worker, epoch)


@dataclass(slots=True, kw_only=True)
class _Case:
    worker: str
    since_s: float
    waiting: dict[Item, int]  # item -> epoch at the moment of the harm


@dataclass(slots=True)
class Takeovers:
    """Times of all cases so far, in seconds."""

    seconds: list[float] = field(default_factory=list)
    _cases: list[_Case] = field(default_factory=list)

    def harmed(self, worker: str, holding: Holding, now_s: float) -> None:
        """A worker was killed or paused, while this was who held what."""
        waiting = {item: epoch for item, (owner, epoch) in holding.items() if owner == worker}
        if waiting:
            self._cases.append(_Case(worker=worker, since_s=now_s, waiting=waiting))

    def seen(self, holding: Holding, now_s: float) -> None:
        """Who holds what now. A case ends when the last of its items was taken over; one that went away counts too."""
        for case in self._cases:
            for item, epoch in list(case.waiting.items()):
                if item not in holding or holding[item][1] > epoch:
                    del case.waiting[item]
            if not case.waiting:
                self.seconds.append(now_s - case.since_s)
        self._cases = [case for case in self._cases if case.waiting]

    def void(self) -> None:
        """Nobody can take anything over now, for the database is away: the open cases tell nothing."""
        self._cases.clear()


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that is at least as large as `share` of them; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
