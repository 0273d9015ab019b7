"""Measures how long the items of a dead or paused worker were without an owner.

Observed in the catalog's rows: an item (a store or a task) counts as taken over when its epoch is higher than at the
time of the fault. A paused worker may come back before its items were reassigned, if the meta servers were hit too:
then its case ends when it comes back. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

RETURN_S = 20.0  #: items of a worker that came back may still be reassigned: its lease had expired

Item = tuple[object, ...]
Holding = Mapping[Item, tuple[str | None, int]]  #: item -> (worker, epoch)


@dataclass(slots=True, kw_only=True)
class _Case:
    worker: str
    since_s: float
    waiting: dict[Item, int]  # item -> epoch at the time of the fault
    back_s: float | None = None  # since when it is awake again


@dataclass(slots=True)
class Takeovers:
    """Times of all cases so far, in seconds."""

    seconds: list[float] = field(default_factory=list)
    returned: int = 0  #: cases that ended because the worker came back before a takeover
    _cases: list[_Case] = field(default_factory=list)

    def harmed(self, worker: str, holding: Holding, now_s: float) -> None:
        """A worker was killed or paused; `held`: the owners at that time."""
        for case in self._cases:
            if case.worker == worker:
                self._return(case)
        self._cases = [case for case in self._cases if case.waiting]
        waiting = {item: epoch for item, (owner, epoch) in holding.items() if owner == worker}
        if waiting:
            self._cases.append(_Case(worker=worker, since_s=now_s, waiting=waiting))

    def seen(self, holding: Holding, now_s: float) -> list[tuple[str, float]]:
        """The current owners. A case ends when the last of its items was taken over or is gone. Returns the cases that
        ended: (worker, seconds)."""
        ended: list[tuple[str, float]] = []
        for case in self._cases:
            for item, epoch in list(case.waiting.items()):
                if item not in holding or holding[item][1] > epoch:
                    del case.waiting[item]
            if not case.waiting:
                ended.append((case.worker, now_s - case.since_s))
            elif case.back_s is not None and now_s - case.back_s > RETURN_S:
                self._return(case)
        self._cases = [case for case in self._cases if case.waiting]
        self.seconds += (seconds for _, seconds in ended)
        return ended

    def back(self, worker: str, now_s: float) -> None:
        """A paused worker continues."""
        for case in self._cases:
            if case.worker == worker and case.back_s is None:
                case.back_s = now_s

    def hold(self, now_s: float, kind: str = "") -> None:
        """No process that could take over from workers of this kind (or of any) is running: their cases begin now."""
        for case in self._cases:
            if case.back_s is None and case.worker.startswith(kind):
                case.since_s = now_s

    def _return(self, case: _Case) -> None:
        if case.back_s is not None:
            case.waiting.clear()
            self.returned += 1
            self.seconds.append(max(0.0, case.back_s - case.since_s))

    def void(self) -> None:
        """The database is away, so nothing can be taken over: the open cases are dropped."""
        self._cases.clear()


def percentile(values: Sequence[float], share: float) -> float | None:
    """The smallest value that is at least as large as `share` of them; None of none."""
    if not values:
        return None
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]
