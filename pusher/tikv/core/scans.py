"""The opening scans of a store that go on: how many may at once, and which of them has said nothing for too long.

As many as the limit, until what they sent was more than could be taken: then a quarter, down to one by one, until
nothing waits any more. An overflow costs every registration its scan, so to try again with as many would end the same
way, for ever: what has to be scanned grows meanwhile. One scan alone may be waited for (`alone`).

A scan that says nothing for TIMEOUT_S is begun anew. A store reads a region to its end before it says so, and what lies
above the checkpoint may be little: whoever gave up too soon would never see the end of a large one. So the next scan of
that region is waited for twice as long.

Pure.
"""

from __future__ import annotations

from pusher.tikv.core.pieces import Piece

TIMEOUT_S = 600.0
TIMEOUT_MAX_S = 4 * 3600.0
STALLED_S = 60.0  #: a scan that has said nothing for so long is a problem to show
_SHARE = 4


class OpeningScans:
    """`now` is the limit at this moment, never above `most`."""

    def __init__(self, limit_max: int) -> None:
        self._limit_max = self.limit = limit_max
        self._progress: dict[int, tuple[Piece, float]] = {}  # by subscription
        self._timeout_s: dict[int, float] = {}  # by region, where it is not TIMEOUT_S
        self._next_check_at = float("inf")  # nothing is due before

    def __len__(self) -> int:
        return len(self._progress)

    @property
    def has_room(self) -> bool:
        """Another one may begin."""
        return len(self._progress) < self.limit

    @property
    def one_at_a_time(self) -> bool:
        """Scans go one by one, because even a few were too much."""
        return self.limit == 1 < self._limit_max

    def overflowed(self) -> None:
        """More has come than could be taken. With no scan going on it was not their doing alone."""
        scanning = len(self._progress)
        self.limit = max(1, (min(self.limit, scanning) if scanning else self.limit) // _SHARE)

    def reset_limit(self) -> None:
        """Nothing is scanned, and nothing waits."""
        self.limit = self._limit_max
        self._timeout_s.clear()

    def started(self, piece: Piece, now: float) -> None:
        """A piece was registered."""
        self._progress[piece.subscription] = (piece, now)
        self._next_check_at = min(self._next_check_at, now + self._timeout(piece.region_id))

    def progressed(self, piece: Piece, now: float) -> None:
        """It has said something."""
        self._progress[piece.subscription] = (piece, now)

    def ended(self, piece: Piece) -> None:
        """It is complete, or over. Others are passed over."""
        self._progress.pop(piece.subscription, None)

    def reset_timers(self, now: float) -> None:
        """Nothing could be said or heard until now."""
        self._progress = {subscription: (piece, now) for subscription, (piece, _) in self._progress.items()}

    def timed_out(self, now: float) -> list[Piece]:
        """Those that are to be begun anew."""
        if now < self._next_check_at:
            return []
        ends = {
            subscription: at + self._timeout(piece.region_id) for subscription, (piece, at) in self._progress.items()
        }
        self._next_check_at = min((end for end in ends.values() if end > now), default=float("inf"))
        return [self._progress[subscription][0] for subscription, end in ends.items() if end <= now]

    def double_timeout(self, region_id: int) -> None:
        """The next scan of this region is waited for longer."""
        self._timeout_s[region_id] = min(2 * self._timeout(region_id), TIMEOUT_MAX_S)

    def stalled(self, now: float) -> dict[int, float]:
        """Regions whose scans have said nothing for STALLED_S, and for how long."""
        return {piece.region_id: now - at for piece, at in self._progress.values() if now - at >= STALLED_S}

    def _timeout(self, region_id: int) -> float:
        return self._timeout_s.get(region_id, TIMEOUT_S)
