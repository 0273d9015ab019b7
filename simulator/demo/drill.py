"""The drill of the demo: kills a sorter and reports what becomes of its tasks.

    calm -> killed -> taken over (every task has another owner, by the catalog) -> calm again (lag below CALM_S)

The sorters of the demo share a process, so the victim is stopped without clean-up instead (`SorterWorker.crash`): it
writes and saves nothing, its memory is lost, and its lease has to expire. Takeover and replay are real; `tistream
chaos` kills processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from simulator.judging.core.takeover import Item, Takeovers, percentile
from tistream.catalog.rows.tasks import TaskRow

CALM_S = 5.0


class Phase(StrEnum):
    """See the module."""

    CALM = "calm"
    KILLED = "killed"
    TAKEN = "taken over"
    OVER = "calm again"


class Sorters(Protocol):
    """The service as the drill uses it."""

    def tasks(self) -> Sequence[TaskRow]:
        """All tasks, as the catalog has them."""
        ...

    def kill(self, name: str) -> None:
        """Stop a sorter without any clean-up."""
        ...


@dataclass(slots=True)
class Drill:
    """The state of the drill; `step` is called a few times a second."""

    sorters: Sorters
    say: Callable[[str], None]
    phase: Phase = Phase.CALM
    victim: str = ""
    moved: int = 0  #: tasks that the victim had
    takeover_s: float | None = None
    recovered_s: float | None = None  #: from the harm until the lag was below CALM_S again
    calm_lags: list[float] = field(default_factory=list)
    harm_lags: list[float] = field(default_factory=list)
    _since_s: float = 0.0
    _takeovers: Takeovers = field(default_factory=Takeovers)

    def step(self, now_s: float, lag_s: float | None, due: bool) -> None:
        """Check once. `due`: the time to kill has come; it waits until the lag is calm."""
        if lag_s is None:
            return
        harmed = self.phase in (Phase.KILLED, Phase.TAKEN)
        (self.harm_lags if harmed else self.calm_lags).append(lag_s)
        if self.phase is Phase.CALM:
            if due and lag_s < CALM_S:
                self._kill(now_s)
            return
        if self.phase is Phase.KILLED:
            self._takeovers.seen(_holding(self.sorters.tasks()), now_s)
            if self._takeovers.seconds:
                self.takeover_s, self.phase = self._takeovers.seconds[0], Phase.TAKEN
                self.say(
                    f"takeover after {self.takeover_s:.1f} s: its {self.moved} tasks have another owner and replay"
                )
        if self.phase is Phase.TAKEN and lag_s < CALM_S:
            self.recovered_s, self.phase = now_s - self._since_s, Phase.OVER
            self.say(
                f"lag below {CALM_S:.0f} s again {self.recovered_s:.1f} s after the kill; at most {self.peak_s:.1f} s"
            )

    @property
    def is_over(self) -> bool:
        """Whether a sorter was killed and the lag is low again."""
        return self.phase is Phase.OVER

    @property
    def peak_s(self) -> float:
        """The largest lag while it was harmed."""
        return max(self.harm_lags, default=0.0)

    def calm(self, share: float) -> float | None:
        """A percentile of the lag outside of the harm."""
        return percentile(self.calm_lags, share)

    def _kill(self, now_s: float) -> None:
        tasks = self.sorters.tasks()
        owners = Counter(task.owner for task in tasks if task.owner is not None)
        if len(owners) < 2:
            return  # no other sorter could take over, or one has all tasks: wait
        self.victim, self.moved = owners.most_common(1)[0]
        self._since_s, self.phase = now_s, Phase.KILLED
        self._takeovers.harmed(self.victim, _holding(tasks), now_s)
        self.say(f"killing {self.victim} with {self.moved} tasks: no flush, no snapshot, no goodbye")
        self.sorters.kill(self.victim)


def _holding(tasks: Sequence[TaskRow]) -> dict[Item, tuple[str | None, int]]:
    return {("task", task.task_id): (task.owner, task.epoch) for task in tasks}
