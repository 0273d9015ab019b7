"""Positions: how far a task has read each incarnation of a store, and which entries can be dropped.

A task reads the incarnations of a store in order: a subscription, a replay and a state checkpoint start the next one
only when the task has closed the previous one. So **all incarnations below the lowest entry are closed**. Their entries
are dropped, and positions stay as small as the number of active incarnations. One entry of a store always stays, even
if closed: without it its incarnations would count as unread.

Why a forgotten incarnation is never used again:

- incarnations are issued once, in order, so a number below the lowest entry never belongs to a new one;
- a late file of it meets a closed position: the task ignores it, subscriptions do not request it, and a restarted task
  has the same lowest entry in its state checkpoint;
- the lowest entry never falls: the catalog refuses a checkpoint that reopens a closed incarnation;
- the parts of a split inherit positions, and a merged task has closed what either half had closed. No task starts
  without positions after an incarnation was forgotten, because every task of the tenant must have closed it first.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from tistream.ids import Position

Incarnations = Mapping[int, Position]  #: of one store: incarnation -> position
Positions = Mapping[int, Incarnations]  #: store -> incarnation -> position

_BEGINNING = Position(seq=0)
_ENDED = Position(seq=0, closed=True)


def position_of(incarnations: Incarnations, incarnation: int) -> Position:
    """The position in this incarnation; closed below the lowest entry."""
    live = incarnations.get(incarnation)
    if live is not None:
        return live
    return _ENDED if incarnations and incarnation < min(incarnations) else _BEGINNING


def without_ended(incarnations: Incarnations) -> dict[int, Position]:
    """Without the closed entries that the lowest remaining entry implies."""
    named = sorted(incarnations)
    lowest = next((each for each in named if not incarnations[each].closed), named[-1] if named else 0)
    return {each: incarnations[each] for each in named if each >= lowest}


def first_regression(old: Incarnations, new: Incarnations) -> int | None:
    """The first incarnation that `new` has read less far than `old`, or None. A closed one must stay closed."""
    for incarnation in sorted(old.keys() | new.keys()):
        was, now = position_of(old, incarnation), position_of(new, incarnation)
        if not now.closed and (was.closed or now.seq < was.seq):
            return incarnation
    return None
