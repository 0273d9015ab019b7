"""Who owns what: the decision alone.

Every item (a store or a task) belongs to exactly one worker. An item whose owner is alive stays where it is: moving
costs a replay. The others go, one after the other, to the worker that then has the fewest; ties go to the smaller
name, so the same input always gives the same moves. When no worker is alive nothing moves: an owner that comes back
goes on where it was, and what it may do is decided by its epoch, not by this list.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

ItemT = TypeVar("ItemT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned(Generic[ItemT]):
    """An item and who has it now."""

    item: ItemT
    owner: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Move(Generic[ItemT]):
    """Give the item to this worker."""

    item: ItemT
    to: str


def moves(items: Sequence[Owned[ItemT]], alive: Collection[str]) -> list[Move[ItemT]]:
    """What must change so that every item has a living owner, in the order of `items`."""
    load = dict.fromkeys(sorted(alive), 0)
    for owned in items:
        if owned.owner in load:
            load[owned.owner] += 1
    out: list[Move[ItemT]] = []
    for owned in items:
        if load and owned.owner not in load:
            to = min(load, key=lambda worker: (load[worker], worker))
            load[to] += 1
            out.append(Move(item=owned.item, to=to))
    return out
