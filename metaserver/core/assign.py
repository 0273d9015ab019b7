"""Decides the placement of items (tasks or stores) on workers, over columns of numbers.

The *weight* of an item is its measured bytes/s, plus ITEM_BYTES_PER_S, plus OPEN_ROW_BYTES_PER_S per row that waits in
it. The decisions minimise

    potential = sum over workers of load^2 + APART * sum over workers and groups of (the group's load there)^2

where a worker's load is the weight of its items. The first term evens out the loads; the second keeps the active items
of one group (a tenant's data tasks) apart. A moved item is replayed, so a move must lower the potential, per unit of
weight, by more than `SLACK` of the mean load plus the item's held bytes spread over REPLAY_S.

- `place`: assigns items, heaviest first, each to where the potential rises least.
- `improve`: moves items between workers. Each move gains most, and strictly, so under a constant load a sequence of
  calls ends and nothing moves again. Items below half of the average weight stay: moving them has no noticeable effect.

Ties go to the smaller index, so the same input gives the same moves. Time plays no role here: `metaserver.core.balance`
decides when and how often items may move.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

I64 = NDArray[np.int64]
F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]

ITEM_BYTES_PER_S = 16_384.0
OPEN_ROW_BYTES_PER_S = 1.0
APART = 0.5
SLACK = 0.2
REPLAY_S = 300.0
UNOWNED = -1  #: the owner of an item without a live one


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Items and workers as columns. Workers are numbered by name, so that ties go to the smaller name."""

    owner: I64  #: worker of each item, or UNOWNED
    weight: F64  #: bytes/s, see above; above 0
    held: F64  #: bytes that a new owner must replay
    group: I64  #: items of one group are kept apart; -1 = none
    receives: Mask  #: per worker: whether it may be given items

    @classmethod
    def of(cls, *, owner: I64, bytes_per_s: F64, open_rows: F64, held: F64, group: I64, receives: Mask) -> Fleet:
        """Computes weights from measurements; zero for unreported items."""
        weight = bytes_per_s + ITEM_BYTES_PER_S + OPEN_ROW_BYTES_PER_S * open_rows
        return cls(owner=owner, weight=weight, held=held, group=np.where(bytes_per_s > 0, group, -1), receives=receives)


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """Give the item to this worker."""

    item: int
    to: int


@dataclass(slots=True)
class _Loads:
    """Loads of workers, and of groups with several items per worker."""

    fleet: Fleet
    owner: I64 = field(init=False)
    worker: F64 = field(init=False)
    row: I64 = field(init=False)  # of each item: its group's row, or -1
    groups: F64 = field(init=False)  # group row x worker

    def __post_init__(self) -> None:
        fleet, workers = self.fleet, len(self.fleet.receives)
        self.owner = fleet.owner.copy()
        at = self.owner >= 0
        self.worker = np.bincount(self.owner[at], weights=fleet.weight[at], minlength=workers).astype(np.float64)
        self.row = np.full(len(self.owner), -1, np.int64)
        grouped = np.flatnonzero(fleet.group >= 0)
        _, inverse, count = np.unique(fleet.group[grouped], return_inverse=True, return_counts=True)
        several = np.flatnonzero(count > 1)
        rows = np.full(len(count), -1, np.int64)
        rows[several] = np.arange(len(several))
        self.row[grouped] = rows[inverse]
        self.groups = np.zeros((len(several), workers))
        there = np.flatnonzero((self.row >= 0) & at)
        np.add.at(self.groups, (self.row[there], self.owner[there]), fleet.weight[there])

    def move(self, item: int, to: int) -> None:
        weight, was, row = self.fleet.weight[item], self.owner[item], self.row[item]
        if was >= 0:
            self.worker[was] -= weight
        self.worker[to] += weight
        if row >= 0:
            if was >= 0:
                self.groups[row, was] -= weight
            self.groups[row, to] += weight
        self.owner[item] = to


def place(fleet: Fleet, items: I64) -> list[Move]:
    """A receiving worker for each of these items, regardless of its owner. Empty when no worker receives."""
    workers = np.flatnonzero(fleet.receives)
    if not len(workers) or not len(items):
        return []
    loads = _Loads(fleet)
    away = np.zeros(len(fleet.owner), bool)
    away[items] = True
    order = items[np.lexsort((items, -fleet.weight[items]))]
    heap = [(float(loads.worker[w]), int(w)) for w in workers]
    heapq.heapify(heap)
    out: list[Move] = []
    for item in order.tolist():
        row = int(loads.row[item])
        to = _lightest(heap, loads) if row < 0 else _apart(loads, row, workers)
        loads.move(item, to)
        heapq.heappush(heap, (float(loads.worker[to]), to))
        out.append(Move(item=item, to=to))
    return out


def _lightest(heap: list[tuple[float, int]], loads: _Loads) -> int:
    """The worker with the least load. Outdated heap entries are dropped; each worker has a current one."""
    while heap[0][0] != loads.worker[heap[0][1]]:
        heapq.heappop(heap)
    return heap[0][1]


def _apart(loads: _Loads, row: int, workers: I64) -> int:
    return int(workers[np.argmin(loads.worker[workers] + APART * loads.groups[row, workers])])


def improve(fleet: Fleet, may_move: Mask, per_worker: int) -> list[Move]:
    """Moves between receiving workers, each a strict gain after those before it; at most `per_worker` items leave or
    reach a worker. Items of other workers stay."""
    workers = np.flatnonzero(fleet.receives)
    at = fleet.owner >= 0
    if len(workers) < 2 or not at.any():
        return []
    loads = _Loads(fleet)
    at[at] = fleet.receives[fleet.owner[at]]
    worth = at & may_move & (fleet.weight >= fleet.weight[at].mean() / 2) if at.any() else at
    margin = SLACK * float(loads.worker[workers].mean())
    movable = np.flatnonzero(worth)
    by_owner = movable[np.argsort(loads.owner[movable], kind="stable")]
    ends = np.searchsorted(loads.owner[by_owner], np.arange(len(fleet.receives) + 1))
    on = {int(w): by_owner[ends[w] : ends[w + 1]] for w in workers}
    left = dict.fromkeys(on, per_worker)  # moves still allowed per worker
    return list(_improving(loads, on, left, margin))


def _improving(loads: _Loads, on: dict[int, I64], left: dict[int, int], margin: float) -> Iterator[Move]:
    while True:
        takers = np.array([w for w in on if left[w] > 0], np.int64)
        givers = sorted((w for w in on if left[w] > 0 and len(on[w])), key=lambda w: (-loads.worker[w], w))
        move = next((f for f in (_best(loads, giver, on[giver], takers, margin) for giver in givers) if f), None)
        if move is None:
            return
        giver = int(loads.owner[move.item])
        loads.move(move.item, move.to)
        on[giver] = on[giver][on[giver] != move.item]  # an item moves once in a call
        left[giver] -= 1
        left[move.to] -= 1
        yield move


def _best(loads: _Loads, giver: int, items: I64, takers: I64, margin: float) -> Move | None:
    """The move away from one worker that lowers the potential most; None when no gain exceeds its cost."""
    takers = takers[takers != giver]
    if not len(takers):
        return None
    groups = loads.groups
    crowd = float(groups[:, giver].max()) if len(groups) else 0.0
    if loads.worker[giver] - loads.worker[takers].min() + APART * crowd <= margin:
        return None
    weight = loads.fleet.weight[items][:, None]
    gain = loads.worker[giver] - loads.worker[takers][None, :] - weight
    row = loads.row[items]
    grouped = np.flatnonzero(row >= 0)
    if len(grouped):
        of = row[grouped]
        gain[grouped] += APART * (groups[of, giver][:, None] - groups[of][:, takers] - weight[grouped])
    needed = margin + loads.fleet.held[items][:, None] / REPLAY_S
    total = np.where(gain > needed, gain * weight, -1.0)
    best = int(np.argmax(total))
    item, taker = divmod(best, len(takers))
    return Move(item=int(items[item]), to=int(takers[taker])) if total[item, taker] > 0 else None
