"""How a ratio is measured here: two candidates, one process, turn by turn.

- Only ratios are reported: seconds move by a factor of two from run to run on a shared machine, ratios of two things
  timed next to each other much less.
- Both sides run once before the clock starts (compilation, warm memory), and `proof` must accept their two results:
  a fast side that does something else is no result.
- Each run times both sides close together, the order changes from run to run, the cyclic garbage collector is off.
- The ratio is the median of the runs' ratios; the smallest and largest are reported with it.

A benchmark is a module in this folder with a function `run() -> Iterator[Result]`; its name is the module's name with
dashes. It yields one Result per ratio.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Self, TypeVar

Better = Literal["higher", "lower"]
A = TypeVar("A")
B = TypeVar("B")

RUNS = 9
SECONDS_PER_SIDE_MIN = 0.05  # a side that takes less is repeated within a run


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One ratio. `better`: the direction in which the target is met."""

    name: str
    ratio: float  #: median over the runs
    better: Better
    target: float
    min: float
    max: float
    runs: int

    @classmethod
    def of(cls, name: str, ratios: Sequence[float], target: float, better: Better = "higher") -> Self:
        """That of the ratios of several runs."""
        return cls(
            name=name,
            ratio=statistics.median(ratios),
            better=better,
            target=target,
            min=min(ratios),
            max=max(ratios),
            runs=len(ratios),
        )

    @property
    def met(self) -> bool:
        """Whether the median reaches the target."""
        return self.ratio >= self.target if self.better == "higher" else self.ratio <= self.target


def compare(
    name: str,
    candidate: Callable[[], A],
    baseline: Callable[[], B],
    *,
    proof: Callable[[A, B], bool],
    target: float,
    better: Better = "higher",
    runs: int = RUNS,
) -> Result:
    """Time `candidate` against `baseline`.

    With better="higher" the ratio is the candidate's speed in units of the baseline's, with "lower" it is the time that
    the candidate takes in units of the baseline's. ValueError when the proof fails or there are fewer than five runs.
    """
    if runs < 5:
        raise ValueError(f"{runs} runs prove nothing")
    if not proof(candidate(), baseline()):
        raise ValueError(f"{name}: the two sides do not give the same result")
    repeat_candidate, repeat_baseline = _repetitions(candidate), _repetitions(baseline)
    ratios = []
    for i in range(runs):
        a, b = in_turn(i, lambda: _seconds(candidate, repeat_candidate), lambda: _seconds(baseline, repeat_baseline))
        ratios.append(b / a if better == "higher" else a / b)
    return Result.of(name, ratios, target, better)


def in_turn(run: int, candidate: Callable[[], A], baseline: Callable[[], B]) -> tuple[A, B]:
    """The results of the two sides in this run; their order alternates."""
    if run % 2:
        return candidate(), baseline()
    theirs = baseline()
    return candidate(), theirs


def _repetitions(side: Callable[[], object]) -> int:
    return max(1, round(SECONDS_PER_SIDE_MIN / max(_seconds(side, 1), 1e-6)))


def _seconds(side: Callable[[], object], repeat: int) -> float:
    """Seconds of one call, the mean over `repeat` calls."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        start = time.perf_counter()
        for _ in range(repeat):
            side()
        return (time.perf_counter() - start) / repeat
    finally:
        if collecting:
            gc.enable()
