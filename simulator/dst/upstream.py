"""The feed of one store of the modelled upstream, on simulated time, with the choices that TiKV leaves to a store.

Between two ticks, which become files, a store may fetch the timestamp of its resolved ts and look at its locks at
different times. Both are legal: whatever commits after a timestamp was fetched is above it. `StoreTiming` makes use of
that, so that resolved timestamps of all kinds meet files, prewrites and commits of all ages.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from pusher.core.source import CheckpointOf, Resolved, Rows, SourceEvent, SubscriptionOpened, Tick
from simulator.core.cluster import Cluster
from simulator.core.mvcc import Lock
from simulator.dst.contradictions import Contradictions
from simulator.profiles import new_cluster
from simulator.push.model_source import ModelSource
from simulator.raw_workload import RawWorkload, raw_cluster
from simulator.transactions import State
from simulator.workload import Workload

if TYPE_CHECKING:
    from simulator.dst.world import World


class SimSource(ModelSource):
    """A ModelSource that waits for its next tick and then ticks. `scan_rows`: see there."""

    def __init__(self, world: World, store_id: int, scan_rows: int | None) -> None:
        super().__init__(world.cluster, store_id, scan_rows=scan_rows, raw_keys=world.log.raw_keys)
        self._raw, self._contradictions = world.raw, world.find(Contradictions)
        self._promised: dict[int, int] = {}  # by subscription: what the files of earlier ticks have promised
        self._promises: dict[int, int] = {}  # and what that of this tick does
        self._scheduler, self._tso = world.scheduler, world.tso
        self._tick_s, self._timing = world.profile.tick_s, world.profile.timing
        self._due = self._scheduler.now + self._tick_s * (0.5 + self._timing.apart * (store_id - 1))
        self._fetched = 0  # the timestamp of the next resolved ts, if it is there
        self._said = False  # the resolved ts of this tick was sent
        self._scan_due = 0.0

    def poll(self, timeout_s: float, checkpoint_of: CheckpointOf) -> Sequence[SourceEvent]:
        s = self._scheduler
        s.sleep(max(0.001, min(timeout_s, self._next_moment() - s.now)))
        if not self._dropped:
            if self._timing.plain:
                self._tick_plainly()
            else:
                self._tick_in_steps()
        events = super().poll(0.0, checkpoint_of)
        for event in events:
            if isinstance(event, SubscriptionOpened) and self._raw is not None:
                self._raw.opened(event.range, event.checkpoint_ts)
        if self._contradictions is not None:
            events = [*events, *self._contradict(self._contradictions, events)]
        if s.now >= self._scan_due:
            self._scan_due = s.now + self._timing.scan_s
        return events

    def _contradict(self, rows: Contradictions, events: Sequence[SourceEvent]) -> Iterator[SourceEvent]:
        """A row at or below what an earlier file of its subscription promised, now and then."""
        for event in events:
            if isinstance(event, Resolved):
                said = zip(event.subscriptions.tolist(), event.resolved_ts.tolist(), strict=True)
                self._promises |= {id_: max(ts, self._promises.get(id_, 0)) for id_, ts in said}
            elif isinstance(event, Tick):
                self._promised = dict(self._promises)
        for id_, subscription in self._subscriptions.items():
            row = rows.row(subscription.region.range, self._promised.get(id_, 0))
            if row is not None:
                yield Rows(subscription=id_, rows=row)

    def drop(self) -> None:
        super().drop()
        self._promised, self._promises = {}, {}
        self._fetched, self._said = 0, False

    def _scanned(self, subscription: int) -> Iterator[SourceEvent]:
        if self._scheduler.now >= self._scan_due:
            yield from super()._scanned(subscription)

    def _next_moment(self) -> float:
        timing, share = self._timing, 0.0
        if timing.fetched and not self._fetched:
            share = timing.fetched
        elif timing.fetched and not self._said:
            share = timing.resolved
        return self._due - share * self._tick_s

    def _tick_plainly(self) -> None:
        s = self._scheduler
        if s.now >= self._due:
            self._due = s.now + self._tick_s
            cut_ts = self._tso()
            self._cluster.tick(cut_ts, store_id=self._store_id)
            self.tick(cut_ts)

    def _tick_in_steps(self) -> None:
        s, timing = self._scheduler, self._timing
        if not self._fetched and s.now >= self._due - timing.fetched * self._tick_s:
            self._fetched = self._tso()
        if not self._said and s.now >= self._due - timing.resolved * self._tick_s:
            self._said = True
            self._resolve(self._fetched)
        if s.now >= self._due:
            self._due = s.now + self._tick_s
            self._fetched, self._said = 0, False
            self._came += self._taken()
            self._came.append(Tick(cut_ts=self._tso()))

    def _resolve(self, fetched_ts: int) -> None:
        """Emit the resolved ts of a timestamp fetched before, after everything received so far."""
        self._came += self._taken()
        held = self._cluster.held()
        said = {
            subscription: min(fetched_ts, held.get(s.region.region_id, fetched_ts))
            for subscription, s in self._subscriptions.items()
            if s.initialized or self._timing.before_ready
        }
        subscriptions = np.fromiter(said, np.int64, len(said))
        self._came.append(
            Resolved(subscriptions=subscriptions, resolved_ts=np.fromiter(said.values(), np.uint64, len(said)))
        )


def upstream_of(profile: Any, seed: int, start_ts: int) -> tuple[Any, Cluster]:
    """(the workload of a scenario, its cluster)."""
    if profile.raw is not None:
        raw = replace(profile.raw, hybrid=bool(seed % 2), stores=profile.upstream.stores)
        cluster = raw_cluster(raw, floor_ts=start_ts)
        return RawWorkload(seed, cluster, raw), cluster
    timing, cluster = profile.timing, new_cluster(profile.upstream, floor_ts=start_ts)
    kind = CoarseWorkload if timing.coarse_tso else EagerWorkload if timing.flush_into_scans else Workload
    return kind(seed, cluster, profile.upstream), cluster


class EagerWorkload(Workload):
    """A Workload whose pipelined transactions write a key again while an opening scan has yet to send its lock."""

    def step(self) -> str:
        return self._flush_into_scan() or super().step()

    def _flush_into_scan(self) -> str:
        txns, cluster = self._txns, self._tso._cluster
        writing = {t.start_ts: t for t in txns.open if t.kind == "pipelined" and t.state is State.WRITING}
        for region in cluster.regions():
            for subscription in cluster._subscriptions.get(region.region_id, ()):
                for key, what in subscription.unscanned or ():
                    txn = writing.get(what.start_ts) if isinstance(what, Lock) else None
                    if txn is not None and cluster.lock(key) is what:
                        txns._prewrite(txn, key, txns._row(key))
                        return f"txn {txn.number} prewrites {txns._place(key)} again, under an opening scan"
        return ""


class CoarseWorkload(Workload):
    """A Workload whose ticks take the newest existing timestamp instead of a new one; its time stops while no
    transaction moves it."""

    def tick(self) -> int:
        tso = self._tso
        tso.ticked_ts = tso.last = max(tso.last, tso._cluster.now_ts)
        return tso.ticked_ts

    def advance_to(self, ts: int) -> None:
        """Nothing moves."""
