"""Resolved timestamps of one store's registrations, and which of them are not reported yet.

A message has (request id, region ids, ts) for thousands of regions. They are looked up in sorted arrays, one per
request id, without a Python object per region.

- Each registration keeps its largest ts. A lower one, or one below its checkpoint_ts, is ignored (a store announces the
  lowest of a group of slow and fast regions, so both are normal);
- only increases since the last report are reported;
- a registration receives nothing before its opening scan is complete nor after its end; its last ts is still reported.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from tistream.model.arrays import I64, U64


class ResolvedMarks:
    """One slot per subscription."""

    def __init__(self) -> None:
        self._subscription = np.zeros(0, np.int64)
        self._marks = np.zeros((3, 0), np.uint64)  # checkpoint, largest received, reported
        self._free: list[int] = []
        self._slots: dict[int, int] = {}  # subscription -> slot
        self._registered: dict[int, dict[int, int]] = {}  # request -> region -> slot
        self._lookup: dict[int, tuple[U64, I64]] = {}  # the same sorted by region, built on demand

    def open(self, subscription: int, request_id: int, region_id: int, checkpoint_ts: int) -> None:
        """The opening scan of a registration is complete: record its resolved ts from now on."""
        if not self._free:
            self._grow()
        slot = self._free.pop()
        self._subscription[slot] = subscription
        self._marks[:, slot] = (checkpoint_ts, 0, 0)
        self._slots[subscription] = slot
        self._registered.setdefault(request_id, {})[region_id] = slot
        self._lookup.pop(request_id, None)

    def __len__(self) -> int:
        return len(self._slots)

    def unregister(self, request_id: int, region_id: int) -> None:
        """A registration ended: ignore later messages for it."""
        if self._registered.get(request_id, {}).pop(region_id, None) is not None:
            self._lookup.pop(request_id, None)

    def record(self, request_id: int, regions: U64, ts: int) -> None:
        """Record a message; unknown regions are ignored."""
        if not self._registered.get(request_id):
            return
        if request_id not in self._lookup:
            self._lookup[request_id] = _sorted(self._registered[request_id])
        known, slots = self._lookup[request_id]
        at = np.searchsorted(known, regions)
        at[at == len(known)] = 0
        mine = slots[at[known[at] == regions]]
        stamp = np.uint64(ts)
        mine = mine[(self._marks[0, mine] <= stamp) & (self._marks[1, mine] < stamp)]
        self._marks[1, mine] = stamp

    def highest_pending(self) -> int:
        """The largest ts that is not reported; 0 = none."""
        waiting = self._marks[1][self._marks[1] > self._marks[2]]
        return int(waiting.max()) if len(waiting) else 0

    def behind(self, limit_ts: int) -> dict[int, int]:
        """Subscriptions below `limit_ts`, and their ts."""
        slots = np.fromiter(self._slots.values(), np.int64, len(self._slots))
        reached = self._marks[:2, slots].max(axis=0)
        late = reached < np.uint64(limit_ts)
        return dict(zip(self._subscription[slots[late]].tolist(), reached[late].tolist(), strict=True))

    def take(self) -> tuple[I64, U64]:
        """(subscriptions, ts) that increased since the last call."""
        new = np.flatnonzero(self._marks[1] > self._marks[2])
        self._marks[2, new] = self._marks[1, new]
        return self._subscription[new].copy(), self._marks[1, new].copy()

    def discard_pending(self) -> None:
        """Drop what is not reported: it may be wrong."""
        self._marks[1] = self._marks[2]

    def close(self, subscriptions: Iterable[int]) -> None:
        """Free the slots of these subscriptions, if they have any."""
        for subscription in subscriptions:
            slot = self._slots.pop(subscription, None)
            if slot is not None:
                self._marks[:, slot] = 0
                self._free.append(slot)

    def _grow(self) -> None:
        size = len(self._subscription)
        more = max(16, size)
        self._subscription = np.concatenate([self._subscription, np.zeros(more, np.int64)])
        self._marks = np.concatenate([self._marks, np.zeros((3, more), np.uint64)], axis=1)
        self._free += range(size, size + more)


def _sorted(slots: dict[int, int]) -> tuple[U64, I64]:
    regions = np.fromiter(slots, np.uint64, len(slots))
    order = np.argsort(regions)
    return regions[order], np.fromiter(slots.values(), np.int64, len(slots))[order]
