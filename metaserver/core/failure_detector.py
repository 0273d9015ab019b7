"""Which workers are silent, as the leader sees it.

A worker beats by writing the database's time into its row. It counts as silent when its row has named the same beat
for SILENT of LEASE_MS by *this* process's monotonic clock, while this process saw the database all the time. So

- a database that was away or hung for a while makes nobody silent: nobody could beat, and the count begins anew when it
  is back. Workers beat within HEARTBEAT_MS of that, or after their pause between tries, which is shorter than SILENT;
- a step of the database's clock makes nobody silent and keeps no dead worker alive;
- a process that was itself stopped for a while begins anew, too.

Every meta server watches, elected or not, so that one that takes over knows who is silent.
"""

from __future__ import annotations

from collections.abc import Mapping

from tistream.limits import LEASE_MS

SILENT = 0.85  #: of LEASE_MS: so that another worker has taken over within LEASE_MS of the last beat
GAP = 1 / 3  #: of LEASE_MS: looks further apart than this have seen nothing in between

Beat = tuple[int, int]  #: incarnation, the database's time of its newest beat


class Sight:
    """What was seen of each worker, and since when."""

    def __init__(self) -> None:
        self._since: dict[str, tuple[Beat, float]] = {}
        self._looked_s: float | None = None

    def look(self, beats: Mapping[str, Beat], now_s: float) -> None:
        """These are the beats that the catalog has now; `now_s` is a monotonic time, before they were read."""
        if self._looked_s is None or now_s - self._looked_s > GAP * LEASE_MS / 1000:
            self._since = {}
        known = self._since
        self._looked_s = now_s
        self._since = {
            worker: known[worker] if worker in known and known[worker][0] == beat else (beat, now_s)
            for worker, beat in beats.items()
        }

    def is_silent(self, worker: str) -> bool:
        """Whether it has not beaten for so long, at the newest look."""
        seen = self._since.get(worker)
        return seen is not None and self._looked_s is not None and self._looked_s - seen[1] >= SILENT * LEASE_MS / 1000
