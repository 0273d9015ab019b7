"""Positions: how far a task has read each incarnation of a store, and which incarnations need not be named.

A task reads the incarnations of a store one after the other: a subscription, a replay and a state checkpoint begin the
next one only when the one before has ended for the task. So the lowest incarnation that is named says it of all before
it: **they have ended**. Their own entries are dropped, and positions stay as small as a store has incarnations at work.
One entry of a store always stays, also when all have ended: without it they would count as not begun.

Why nothing of a forgotten incarnation is ever used again:

- numbers of incarnations are issued once, and in order, so a number below the lowest named one never names a new life;
- a file of it that arrives late meets a position that is closed: the task leaves it out, a subscription does not ask
  for it, and a restarted task does the same, since its state checkpoint has the same lowest entry;
- the lowest entry never falls: the catalog refuses a checkpoint in which an incarnation that had ended is open again;
- a task that is split hands its positions on, and two that merge have ended what either had ended. No task begins
  without positions once a store's incarnation was forgotten, as that needs every task of the tenant to have ended it.

Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from tistream.ids import Position

Lives = Mapping[int, Position]  #: of one store: incarnation -> position
Positions = Mapping[int, Lives]  #: store -> incarnation -> position

_BEGINNING = Position(seq=0)
_ENDED = Position(seq=0, closed=True)


def position_of(lives: Lives, incarnation: int) -> Position:
    """How far the incarnation was read. One below the lowest that is named has ended."""
    found = lives.get(incarnation)
    if found is not None:
        return found
    return _ENDED if lives and incarnation < min(lives) else _BEGINNING


def without_ended(lives: Lives) -> dict[int, Position]:
    """The same, without the ended incarnations that the lowest entry speaks for."""
    named = sorted(lives)
    lowest = next((incarnation for incarnation in named if not lives[incarnation].closed), named[-1] if named else 0)
    return {incarnation: lives[incarnation] for incarnation in named if incarnation >= lowest}


def is_behind(old: Lives, new: Lives) -> int | None:
    """The first incarnation that `new` has read less far than `old`, or None: an ended one stays ended."""
    for incarnation in sorted(old.keys() | new.keys()):
        was, now = position_of(old, incarnation), position_of(new, incarnation)
        if not now.closed and (was.closed or now.seq < was.seq):
            return incarnation
    return None
