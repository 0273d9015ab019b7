"""Failure detector: which workers are suspected to be dead, as this process sees it.

A worker's heartbeat writes the database's time into its row. A worker is suspected when its row has shown the same
heartbeat for SUSPECTED of LEASE_MS by *this* process's monotonic clock, while this process reached the database all the
time. So

- after an outage of the database no worker is suspected, because none could send a heartbeat: the count restarts.
  Workers send one within HEARTBEAT_MS of that, or after their retry pause, which is shorter than SUSPECTED;
- a step of the database's clock makes no live worker suspected and hides no dead one;
- after a pause of this process the count restarts, too.

Every meta server observes, elected or not, so that a new leader knows who is suspected.
"""

from __future__ import annotations

from collections.abc import Mapping

from tistream.limits import LEASE_MS

SUSPECTED = 0.85  #: of LEASE_MS: another worker takes over within LEASE_MS of the last heartbeat
GAP = 1 / 3  #: of LEASE_MS: a longer gap between observations resets the count

Beat = tuple[int, int]  #: (incarnation, the database's time of its newest heartbeat)


class FailureDetector:
    """The latest heartbeat of each worker, and since when it is known."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[Beat, float]] = {}
        self._observed_s: float | None = None

    def observe(self, beats: Mapping[str, Beat], now_s: float) -> None:
        """The heartbeats in the catalog; `now_s`: monotonic time before they were read."""
        if self._observed_s is None or now_s - self._observed_s > GAP * LEASE_MS / 1000:
            self._since = {}
        known = self._since
        self._observed_s = now_s
        self._since = {
            worker: known[worker] if worker in known and known[worker][0] == beat else (beat, now_s)
            for worker, beat in beats.items()
        }

    def is_suspected(self, worker: str) -> bool:
        """Whether it was suspected at the latest observation."""
        seen = self._since.get(worker)
        return (
            seen is not None
            and self._observed_s is not None
            and self._observed_s - seen[1] >= SUSPECTED * LEASE_MS / 1000
        )
