"""Fault schedule of a chaos run, from a seed: what hits which target, and for how long.

An event hits one target and ends by itself: a killed process is restarted, a paused one continues, cut connections are
restored. Events may overlap, but never two of one target, and at most OVERLAP_MAX at once: a deployment in which
everything is down shows nothing. Pauses exceed the lease, so a paused worker wakes up after it was replaced. Pure.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tistream.limits import LEASE_MS

OVERLAP_MAX = 3
_PAUSE_S = (LEASE_MS / 1000 + 2.0, LEASE_MS / 1000 + 8.0)


class Harm(StrEnum):
    """The faults that may hit a target."""

    KILL = "kill"  #: SIGKILL, started again at the end
    PAUSE = "pause"  #: SIGSTOP, SIGCONT at the end
    CUT = "cut"  #: all connections to it, once
    REFUSE = "refuse"  #: connections to it
    HANG = "hang"  #: connections to it are taken and never answered
    BUSY = "busy"  #: every request to it is answered with 503
    CLOCK = "clock"  #: its clock is set, by up to an hour either way, and right again at the end


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedHarm:
    """Harm to one target, from `at_s` on, for `lasts_s`; seconds since the start."""

    at_s: float
    lasts_s: float
    harm: Harm
    target: str
    step_s: float = 0.0  #: of a CLOCK

    @property
    def end_s(self) -> float:
        return self.at_s + self.lasts_s

    def __str__(self) -> str:
        step = f" by {self.step_s:+.0f} s" if self.harm is Harm.CLOCK else ""
        return f"{self.harm} {self.target}{step} for {self.lasts_s:.1f} s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One kind of event: how often, and how long it lasts."""

    harm: Harm
    weight: float
    lasts_s: tuple[float, float]


#: faults of a worker process
PROCESS = (
    Choice(harm=Harm.KILL, weight=4, lasts_s=(0.2, 14.0)),
    Choice(harm=Harm.PAUSE, weight=2, lasts_s=_PAUSE_S),
    Choice(harm=Harm.CLOCK, weight=0.5, lasts_s=(5.0, 15.0)),
)
#: faults of the database, behind its proxy
DATABASE = (
    Choice(harm=Harm.KILL, weight=1, lasts_s=(0.1, 6.0)),
    Choice(harm=Harm.CUT, weight=2, lasts_s=(0.0, 0.0)),
    Choice(harm=Harm.REFUSE, weight=1, lasts_s=(0.5, 8.0)),
    Choice(harm=Harm.CLOCK, weight=1, lasts_s=(5.0, 15.0)),
)
#: faults of the object store, behind its proxy
BUCKET = (
    Choice(harm=Harm.KILL, weight=1, lasts_s=(0.1, 5.0)),
    Choice(harm=Harm.CUT, weight=2, lasts_s=(0.0, 0.0)),
    Choice(harm=Harm.BUSY, weight=2, lasts_s=(1.0, 10.0)),
    Choice(harm=Harm.HANG, weight=1, lasts_s=(1.0, 8.0)),
)
#: faults between pushers and control plane
CONTROL = (Choice(harm=Harm.CUT, weight=1, lasts_s=(0.0, 0.0)), Choice(harm=Harm.REFUSE, weight=1, lasts_s=(1.0, 15.0)))


def schedule(
    seed: int, seconds: float, targets: Mapping[str, Sequence[Choice]], *, every_s: float = 5.0
) -> Iterator[PlannedHarm]:
    """Events in the order of their beginnings, about one in `every_s`, all of them over within `seconds`."""
    rand = random.Random(seed)
    kinds = [(target, choice) for target, choices in targets.items() for choice in choices]
    weights = [choice.weight for _, choice in kinds]
    going: list[PlannedHarm] = []
    at_s = 0.0
    while True:
        at_s += rand.uniform(0.2, 1.8) * every_s
        going = [event for event in going if event.end_s > at_s]
        target, choice = rand.choices(kinds, weights)[0]
        step_s = rand.choice((-3600.0, -30.0, 30.0, 3600.0)) if choice.harm is Harm.CLOCK else 0.0
        lasts_s = rand.uniform(*choice.lasts_s)
        event = PlannedHarm(at_s=at_s, lasts_s=lasts_s, harm=choice.harm, target=target, step_s=step_s)
        if at_s >= seconds:
            return
        if event.end_s > seconds or len(going) >= OVERLAP_MAX or any(e.target == target for e in going):
            continue
        going.append(event)
        yield event
