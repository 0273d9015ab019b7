"""Timestamps of RawKV writes: the two designs by which a store stamps a write without asking PD for each (pure).

    TsoCache    batches of prefetched TSOs (TiKV's causal_ts, which ships): dropped whenever the store is about to lead
                keys that another store may have written with a newer timestamp
    Hlc         a hybrid logical clock (TiKV RFC 83): its physical part follows PD's, and it is advanced to the largest
                timestamp of a region before its store leads the region

Both give rising timestamps on one store. What happens between stores is in `simulator.core.raw_writes`.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Protocol

from tistream.errors import ErrorKind, InvalidInput, TiStreamError

BATCH_MIN, BATCH_MAX = 100, 8192
BATCHES_MAX = 1024  #: that are kept
RENEW_MS, HYBRID_RENEW_MS = 100, 500  #: interval of renewals, of a cache and of a hybrid clock


class NotSynced(TiStreamError):
    """There is no timestamp to give: the store waits for PD (TiKV's MaxTimestampNotSynced)."""

    kind = ErrorKind.RETRY
    code = "TS-1088"


class Timestamps(Protocol):
    """The timestamps of one store. The owner fetches from PD and passes what it got."""

    def take(self) -> int:
        """A timestamp above all that this store has given. NotSynced when there is none."""
        ...

    def renewed(self, first: int, count: int) -> None:
        """PD gave `count` timestamps from `first` on."""
        ...

    def led_elsewhere(self, region_max_ts: int) -> None:
        """The store is about to lead keys that others wrote, with timestamps up to this one."""
        ...


class TsoCache:
    """Prefetched batches, the oldest is used first: timestamps are up to `outage_ms` old, and writes continue while PD
    is away, for as long."""

    def __init__(self, outage_ms: int = 3000) -> None:
        self._ahead = math.ceil(outage_ms / RENEW_MS)
        self._batches: deque[list[int]] = deque()  # [next, end]
        self._newest = 0
        self._used = 0  # since the last renewal

    @property
    def left(self) -> int:
        """Timestamps that can be given before PD is asked again."""
        return sum(end - at for at, end in self._batches)

    def wanted(self) -> int:
        """How many to ask PD for: what the outage would use at the recent rate, less what is left."""
        return max(BATCH_MIN, min(BATCH_MAX, self._used * self._ahead - self.left))

    def take(self) -> int:
        while self._batches:
            batch = self._batches[0]
            if batch[0] < batch[1]:
                batch[0] += 1
                self._used += 1
                return batch[0] - 1
            self._batches.popleft()
        raise NotSynced("the cache of timestamps is empty")

    def renewed(self, first: int, count: int) -> None:
        if first <= self._newest:
            raise InvalidInput("PD gave a timestamp again", first=first, newest=self._newest)
        self._newest, self._used = first + count - 1, 0
        self._batches.append([first, first + count])
        while len(self._batches) > min(self._ahead, BATCHES_MAX):
            self._batches.popleft()  # older than the outage to be endured

    def led_elsewhere(self, region_max_ts: int) -> None:
        """Drop all: another store may have used newer ones. Nothing is given until PD has been asked."""
        self._batches.clear()


class Hlc:
    """A clock whose physical part is PD's. It fails before the first TSO, and not while PD is away later."""

    def __init__(self) -> None:
        self._last, self._begun = 0, False

    def take(self) -> int:
        if not self._begun:
            raise NotSynced("no timestamp of PD was received yet")
        self._last += 1
        return self._last

    def renewed(self, first: int, count: int) -> None:
        self._last, self._begun = max(self._last, first), True

    def led_elsewhere(self, region_max_ts: int) -> None:
        self._last = max(self._last, region_max_ts)
