"""Limits the concurrent opening scans of a store, and finds scans without progress.

After an overflow a quarter of the scans may run, down to one, until nothing waits any more: an overflow costs every
registration its scan, and retrying with as many would overflow for ever, since the amount to scan grows. The feed may
block for a single scan (`one_at_a_time`).

Bytes are limited too: after a scan has sent some, the next one starts when they fit the rate. A scan that runs is not
slowed, because the store decides how fast it reads a region.

A scan without a message for TIMEOUT_S is restarted. A store reads a region to its end before it reports completion, and
rows above the checkpoint may be few; so the timeout doubles for the next scan of that region, or a large region would
never finish.

Pure.
"""

from __future__ import annotations

from math import inf

from pusher.tikv.core.pieces import Piece

TIMEOUT_S = 600.0
TIMEOUT_MAX_S = 4 * 3600.0
STALLED_S = 60.0  #: a scan without a message for this long is reported
_SHARE = 4


class OpeningScans:
    """`limit` is the current limit, at most `limit_max`."""

    def __init__(self, limit_max: int, rate_bytes_s: float = inf) -> None:
        self._limit_max = self.limit = limit_max
        self._rate_bytes_s = rate_bytes_s
        self.free_at = 0.0  #: by the rate, no scan starts before
        self._progress: dict[int, tuple[Piece, float]] = {}  # subscription -> (piece, last message)
        self._timeout_s: dict[int, float] = {}  # by region, if not TIMEOUT_S
        self._next_check_at = float("inf")  # no timeout before

    def __len__(self) -> int:
        return len(self._progress)

    @property
    def has_room(self) -> bool:
        """Another scan may start, at `free_at`."""
        return len(self._progress) < self.limit

    @property
    def one_at_a_time(self) -> bool:
        """Even a few scans at once were too much."""
        return self.limit == 1 < self._limit_max

    def overflowed(self) -> None:
        """Reduce the limit. Without a running scan the overflow was not caused by scans alone."""
        scanning = len(self._progress)
        self.limit = max(1, (min(self.limit, scanning) if scanning else self.limit) // _SHARE)

    def reset_limit(self) -> None:
        """Nothing scans and nothing waits."""
        self.limit = self._limit_max
        self._timeout_s.clear()

    def started(self, piece: Piece, now: float) -> None:
        """A piece was registered."""
        self._progress[piece.subscription] = (piece, now)
        self._next_check_at = min(self._next_check_at, now + self._timeout(piece.region_id))

    def progressed(self, piece: Piece, now: float, size: int = 0) -> None:
        """A message with `size` bytes of rows came for the piece."""
        self._progress[piece.subscription] = (piece, now)
        self.free_at = max(self.free_at, now) + size / self._rate_bytes_s

    def ended(self, piece: Piece) -> None:
        """The scan is complete or aborted. Other pieces are ignored."""
        self._progress.pop(piece.subscription, None)

    def reset_timers(self, now: float) -> None:
        """Nothing could be received until now."""
        self._progress = {subscription: (piece, now) for subscription, (piece, _) in self._progress.items()}

    def timed_out(self, now: float) -> list[Piece]:
        """The scans to restart."""
        if now < self._next_check_at:
            return []
        ends = {
            subscription: at + self._timeout(piece.region_id) for subscription, (piece, at) in self._progress.items()
        }
        self._next_check_at = min((end for end in ends.values() if end > now), default=float("inf"))
        return [self._progress[subscription][0] for subscription, end in ends.items() if end <= now]

    def double_timeout(self, region_id: int) -> None:
        """Allow the next scan of this region more time."""
        self._timeout_s[region_id] = min(2 * self._timeout(region_id), TIMEOUT_MAX_S)

    def stalled(self, now: float) -> dict[int, float]:
        """Regions without a message for STALLED_S, and for how long."""
        return {piece.region_id: now - at for piece, at in self._progress.values() if now - at >= STALLED_S}

    def _timeout(self, region_id: int) -> float:
        return self._timeout_s.get(region_id, TIMEOUT_S)
