"""Where a process leaves something durable: its PUTs, DELETEs and COMMITs, counted in the order of a run, and who is
killed at which of them.

    before    it dies with the request unsent, or with the transaction rolled back
    after     it happened, and the process dies without having heard so
    late      a PUT or DELETE is under way when its process dies, and arrives LATE_S later; a COMMIT has no such side

What a run does up to its first point does not depend on the points, so a boundary's number means the same in every run
of a scenario up to there. The requests of `world` and of readers are not counted: the first is no process of the
service, the others leave nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum

from simulator.dst.scheduler import Process, Scheduler
from tistream.errors import InvalidInput

_NOT_COUNTED = ("world", "reader")
LATE_S = 6.0  #: longer than a lease: whoever takes over is at work when the request arrives


class Side(StrEnum):
    """When, seen from the boundary, its process dies."""

    BEFORE = "before"
    AFTER = "after"
    LATE = "late"


@dataclass(frozen=True, slots=True, order=True)
class Point:
    """A boundary of a run and a side of it: somebody dies here."""

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
    """Ends a transaction whose process dies before its COMMIT; seen by nobody but the simulated catalog."""

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
        self.struck: list[Point] = []  #: at which somebody was killed

    def reach(self, what: str, *, alive: bool = False) -> Point | None:
        """The running process is about to do this; where it dies, None when it goes on."""
        task = self._scheduler.current
        if task is None or task.process.name.startswith(_NOT_COUNTED):
            return None
        number = len(self.passed) + 1
        at, name = self._scheduler.now, task.process.name
        self.passed.append(Boundary(number=number, at=at, process=name, what=what, alive=alive))
        return self._points.get(number)

    def strike(self, point: Point) -> None:
        """The running process dies here. Does not return."""
        task = self._scheduler.current
        if task is not None:
            self.struck.append(point)
            self._kill(task.process, point)
        self._scheduler.point()
