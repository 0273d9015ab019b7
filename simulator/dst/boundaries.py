"""Boundaries: the PUTs, DELETEs and COMMITs of processes, numbered in the order of a run, and the kills at them.

    before    the process dies before the request is sent, or its transaction is rolled back
    after     the request succeeded, and the process dies before it gets the reply
    late      a PUT or DELETE is under way when its process dies, and arrives LATE_S later; not for COMMITs

Up to its first point a run does not depend on the points, so a boundary has the same number in every run of a scenario
up to there. Requests of `world` and of readers are not counted: they leave nothing durable.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum

from simulator.dst.scheduler import Process, Scheduler
from tistream.errors import InvalidInput

_NOT_COUNTED = ("world", "reader")
LATE_S = 6.0  #: longer than a lease: the new owner is at work when the request arrives


class Side(StrEnum):
    """When the process dies, relative to the boundary."""

    BEFORE = "before"
    AFTER = "after"
    LATE = "late"


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """A boundary and a side of it, at which a process dies."""

    number: int
    side: Side

    def __str__(self) -> str:
        return f"{self.number}:{self.side}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """One that a run passed."""

    number: int  #: from 1
    at: float
    process: str
    what: str  #: PUT key, DELETE key, or COMMIT and the tables that were written
    alive: bool  #: a COMMIT of nothing but "I am still there"

    @property
    def sides(self) -> tuple[Side, ...]:
        """Where its process can be killed."""
        return (Side.BEFORE, Side.AFTER) if self.what.startswith("COMMIT") else tuple(Side)


def parse_points(text: str) -> tuple[Point, ...]:
    """`17:after,40:before` as points; InvalidInput when it is nothing like that."""
    points: list[Point] = []
    for word in text.split(","):
        number, _, side = word.strip().partition(":")
        if not number.isdecimal() or int(number) < 1 or side not in {s.value for s in Side}:
            raise InvalidInput("a crash point is NUMBER:before, NUMBER:after or NUMBER:late", given=word)
        points.append(Point(int(number), Side(side)))
    if [p.number for p in points] != sorted({p.number for p in points}):
        raise InvalidInput("crash points are given in the order of their numbers, each number once", given=text)
    return tuple(points)


class Killed(BaseException):
    """Ends a transaction whose process dies before its COMMIT; only the simulated catalog sees it."""

    def __init__(self, point: Point) -> None:
        super().__init__(point)
        self.point = point


class Boundaries:
    """Those of one run. `kill` ends a process; its supervisor starts it again."""

    def __init__(
        self,
        scheduler: Scheduler,
        points: Collection[Point] = (),
        kill: Callable[[Process, Point], None] = lambda *_: None,
    ) -> None:
        self._scheduler, self._kill = scheduler, kill
        self._points = {point.number: point for point in points}
        self.passed: list[Boundary] = []
        self.struck: list[Point] = []  #: at which a process was killed

    def reach(self, what: str, *, alive: bool = False) -> Point | None:
        """The running process is about to do this; the side on which it dies, or None."""
        task = self._scheduler.current
        if task is None or task.process.name.startswith(_NOT_COUNTED):
            return None
        number = len(self.passed) + 1
        at, name = self._scheduler.now, task.process.name
        self.passed.append(Boundary(number=number, at=at, process=name, what=what, alive=alive))
        return self._points.get(number)

    def strike(self, point: Point) -> None:
        """Kill the running process here. Does not return."""
        task = self._scheduler.current
        if task is not None:
            self.struck.append(point)
            self._kill(task.process, point)
        self._scheduler.point()
