"""The feed of one store of the modelled upstream, with time in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tistream.pusher.model_source import ModelSource
from tistream.pusher.source import CheckpointOf, SourceEvent
from tistream.sim.scheduler import Scheduler
from tistream.simulator.cluster import Cluster


class SimSource(ModelSource):
    """A ModelSource that waits for its next tick and then ticks by itself. `scan_rows`: see there."""

    def __init__(
        self,
        cluster: Cluster,
        store_id: int,
        scheduler: Scheduler,
        tso: Callable[[], int],
        *,
        tick_s: float,
        scan_rows: int | None,
    ) -> None:
        super().__init__(cluster, store_id, scan_rows=scan_rows)
        self._scheduler, self._tso, self._tick_s = scheduler, tso, tick_s
        self._due = scheduler.now + tick_s * 0.5

    def poll(self, timeout_s: float, checkpoint_of: CheckpointOf) -> Sequence[SourceEvent]:
        s = self._scheduler
        s.sleep(max(0.001, min(timeout_s, self._due - s.now)))
        if s.now >= self._due and not self._dropped:
            self._due = s.now + self._tick_s
            cut_ts = self._tso()
            self._cluster.tick(cut_ts, store_id=self._store_id)
            self.tick(cut_ts)
        return super().poll(0.0, checkpoint_of)
