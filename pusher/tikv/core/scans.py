"""The opening scans of a store that go on: how many may at once, and which of them has said nothing for too long.

As many as the limit, until what they sent was more than could be taken: then a quarter, down to one by one, until
nothing waits any more. An overflow costs every registration its scan, so to try again with as many would end the same
way, for ever: what has to be scanned grows meanwhile. One scan alone may be waited for (`alone`).

A scan that says nothing for SILENT_S is begun anew. A store reads a region to its end before it says so, and what lies
above the checkpoint may be little: whoever gave up too soon would never see the end of a large one. So the next scan of
that region is waited for twice as long.

Pure.
"""

from __future__ import annotations

from pusher.tikv.core.pieces import Piece

SILENT_S = 600.0
SILENT_MAX_S = 4 * 3600.0
SHOWN_S = 60.0  #: a scan that has said nothing for so long is a problem to show
_SHARE = 4


class OpeningScans:
    """`now` is the limit at this moment, never above `most`."""

    def __init__(self, most: int) -> None:
        self._most = self.now = most
        self._heard_at: dict[int, tuple[Piece, float]] = {}  # by subscription
        self._patience_s: dict[int, float] = {}  # by region, where it is not SILENT_S
        self._look_at = float("inf")  # nothing is due before

    def __len__(self) -> int:
        return len(self._heard_at)

    @property
    def room(self) -> bool:
        """Another one may begin."""
        return len(self._heard_at) < self.now

    @property
    def alone(self) -> bool:
        """Scans go one by one, because even a few were too much."""
        return self.now == 1 < self._most

    def overflowed(self) -> None:
        """More has come than could be taken. With no scan going on it was not their doing alone."""
        scanning = len(self._heard_at)
        self.now = max(1, (min(self.now, scanning) if scanning else self.now) // _SHARE)

    def caught_up(self) -> None:
        """Nothing is scanned, and nothing waits."""
        self.now = self._most
        self._patience_s.clear()

    def began(self, piece: Piece, now: float) -> None:
        """A piece was registered."""
        self._heard_at[piece.subscription] = (piece, now)
        self._look_at = min(self._look_at, now + self._patience(piece.region_id))

    def heard(self, piece: Piece, now: float) -> None:
        """It has said something."""
        self._heard_at[piece.subscription] = (piece, now)

    def ended(self, piece: Piece) -> None:
        """It is complete, or over. Others are passed over."""
        self._heard_at.pop(piece.subscription, None)

    def excuse(self, now: float) -> None:
        """Nothing could be said or heard until now."""
        self._heard_at = {subscription: (piece, now) for subscription, (piece, _) in self._heard_at.items()}

    def silent(self, now: float) -> list[Piece]:
        """Those that are to be begun anew."""
        if now < self._look_at:
            return []
        ends = {
            subscription: at + self._patience(piece.region_id) for subscription, (piece, at) in self._heard_at.items()
        }
        self._look_at = min((end for end in ends.values() if end > now), default=float("inf"))
        return [self._heard_at[subscription][0] for subscription, end in ends.items() if end <= now]

    def grow_patient(self, region_id: int) -> None:
        """The next scan of this region is waited for longer."""
        self._patience_s[region_id] = min(2 * self._patience(region_id), SILENT_MAX_S)

    def shown(self, now: float) -> dict[int, float]:
        """Regions whose scans have said nothing for SHOWN_S, and for how long."""
        return {piece.region_id: now - at for piece, at in self._heard_at.values() if now - at >= SHOWN_S}

    def _patience(self, region_id: int) -> float:
        return self._patience_s.get(region_id, SILENT_S)
