"""A Source over the cluster model: the change feed of one modelled store.

Whoever drives the model (a recording's player, a random workload) calls, after commands were applied, `poll` through
the pusher, so that regions get their tenures; and for each tick first `Cluster.tick`, then `tick` here, then polls
again. Timestamps of tenures are the model's `now_ts`: it never falls and stands for the order in which things
happened, so two tenures whose intervals do not touch were really one after the other.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import count

import numpy as np
import pyarrow as pa

from tistream.change import ROWS
from tistream.pusher.source import (
    CheckpointOf,
    Resolved,
    Rows,
    SourceEvent,
    TenureClosed,
    TenureOpened,
    TenureReady,
    Tick,
)
from tistream.simulator.cluster import Cluster, Subscription
from tistream.simulator.mvcc import RowColumns


class ModelSource:
    """The feed of one store of the model."""

    def __init__(self, cluster: Cluster, store_id: int) -> None:
        self._cluster = cluster
        self._store_id = store_id
        self._ids = count(1)
        self._tenures: dict[int, Subscription] = {}
        self._ticks: list[int] = []
        self._dropped = False

    @property
    def store_id(self) -> int:
        return self._store_id

    def tick(self, cut_ts: int) -> None:
        """The model has ticked at `cut_ts`: the next poll says so."""
        if not self._dropped:
            self._ticks.append(cut_ts)

    def poll(self, timeout_s: float, checkpoint_of: CheckpointOf) -> Sequence[SourceEvent]:
        """What has come. Never waits: the model moves only between polls."""
        if self._dropped:
            return []
        events = list(self._taken())
        for cut_ts in self._ticks:
            resolved = {t: s.resolved_ts for t, s in self._tenures.items() if s.resolved_ts}
            events.append(
                Resolved(
                    tenures=np.fromiter(resolved, np.int64, len(resolved)),
                    resolved_ts=np.fromiter(resolved.values(), np.uint64, len(resolved)),
                )
            )
            events.append(Tick(cut_ts=cut_ts))
        self._ticks.clear()
        events += self._registered(checkpoint_of)
        return events

    def reopen(self, tenures: Collection[int]) -> None:
        for tenure in tenures:
            self._cluster.unregister(self._tenures[tenure])

    def drop(self) -> None:
        for subscription in self._tenures.values():
            self._cluster.unregister(subscription)
        self._tenures.clear()
        self._ticks.clear()
        self._dropped = True

    def resume(self) -> None:
        self._dropped = False

    def close(self) -> None:
        self.drop()

    def _taken(self) -> Iterator[SourceEvent]:
        for tenure, subscription in list(self._tenures.items()):
            if len(subscription.rows):
                yield Rows(tenure=tenure, rows=_batch(subscription.take_rows()))
            if subscription.ended:
                del self._tenures[tenure]
                yield TenureClosed(tenure=tenure)

    def _registered(self, checkpoint_of: CheckpointOf) -> Iterator[SourceEvent]:
        open_regions = {s.region.region_id for s in self._tenures.values()}
        for region in self._cluster.regions(self._store_id):
            checkpoint_ts = None
            if region.region_id not in open_regions:
                checkpoint_ts = checkpoint_of(region.range)
            if checkpoint_ts is None:
                continue
            tenure = next(self._ids)
            subscription = self._cluster.register(region.region_id, region.version, checkpoint_ts)
            self._tenures[tenure] = subscription
            yield TenureOpened(
                tenure=tenure,
                region_id=region.region_id,
                version=region.version,
                range=region.range,
                checkpoint_ts=checkpoint_ts,
                open_ts=subscription.open_ts,
            )
            if len(subscription.rows):
                yield Rows(tenure=tenure, rows=_batch(subscription.take_rows()))
            yield TenureReady(tenure=tenure, ready_ts=self._cluster.now_ts)


def _batch(rows: RowColumns) -> pa.RecordBatch:
    n = len(rows)
    columns = {
        "kind": rows.kind,
        "op": rows.op,
        "key": rows.key,
        "start_ts": rows.start_ts,
        "commit_ts": rows.commit_ts,
        "generation": rows.generation,
        "value": rows.value,
        "old_value": rows.old_value,
        "expire_ts": [0] * n,
        "flags": [0] * n,
    }
    return pa.record_batch([pa.array(columns[f.name], f.type) for f in ROWS], schema=ROWS)
