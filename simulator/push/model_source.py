"""A Source over the cluster model: the change feed of one modelled store.

The driver of the model (a recording's player, a random workload) calls, after commands were applied, `poll` through
the pusher, so that regions get their subscriptions; and for each tick first `Cluster.tick`, then at once `tick` here.
The next poll may come any time later: a tick covers what the store had sent by then. Timestamps of subscriptions are
the model's `now_ts`, which never falls and orders all events, so two subscriptions whose intervals do not touch did
follow each other. With `raw_keys` it follows RawKV, as a pusher of a keyspace does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from itertools import count, pairwise

import numpy as np
import pyarrow as pa

from pusher.core.raw_rows import raw_rows
from pusher.core.source import (
    CheckpointOf,
    Resolved,
    Rows,
    SourceEvent,
    SubscriptionClosed,
    SubscriptionOpened,
    SubscriptionReady,
    Tick,
)
from simulator.core.cluster import Cluster, Subscription
from simulator.core.mvcc import RowColumns
from tistream.keyrange import KeyRange
from tistream.model.change import ROWS


class ModelSource:
    """The feed of one store of the model. `scan_rows`: rows of the opening scan that a subscription gets with each
    poll, live rows in between; None: the whole scan at once. `raw_keys`: follows RawKV, these keys."""

    def __init__(
        self, cluster: Cluster, store_id: int, *, scan_rows: int | None = None, raw_keys: KeyRange | None = None
    ) -> None:
        self._cluster = cluster
        self._store_id = store_id
        self._scan_rows = scan_rows
        self._raw_keys = raw_keys
        self._ids = count(1)
        self._subscriptions: dict[int, Subscription] = {}
        self._opening: set[int] = set()  # subscriptions whose scan is not complete
        self._came: list[SourceEvent] = []  # up to the newest tick, not polled yet
        self._dropped = False

    @property
    def store_id(self) -> int:
        return self._store_id

    def tick(self, cut_ts: int) -> None:
        """The model has ticked at `cut_ts`: the next poll returns it."""
        if self._dropped:
            return
        self._came += self._taken()
        resolved = {t: s.resolved_ts for t, s in self._subscriptions.items() if s.resolved_ts}
        self._came.append(
            Resolved(
                subscriptions=np.fromiter(resolved, np.int64, len(resolved)),
                resolved_ts=np.fromiter(resolved.values(), np.uint64, len(resolved)),
            )
        )
        self._came.append(Tick(cut_ts=cut_ts))

    def poll(self, timeout_s: float, checkpoint_of: CheckpointOf) -> Sequence[SourceEvent]:
        """Never waits: the model moves only between polls."""
        if self._dropped:
            return []
        events, self._came = self._came, []
        events += self._taken()
        for subscription_id in sorted(self._opening):
            events += self._scanned(subscription_id)
        events += self._registered(checkpoint_of)
        return events

    def resubscribe(self, subscriptions: Collection[int]) -> None:
        for subscription_id in subscriptions:
            if subscription_id in self._subscriptions:  # else it has ended, and the news is under way
                self._cluster.unregister(self._subscriptions[subscription_id])

    def drop(self) -> None:
        for subscription in self._subscriptions.values():
            self._cluster.unregister(subscription)
        self._subscriptions.clear()
        self._opening.clear()
        self._came.clear()
        self._dropped = True

    def resume(self) -> None:
        self._dropped = False

    def close(self) -> None:
        self.drop()

    def _taken(self) -> Iterator[SourceEvent]:
        for subscription_id, subscription in list(self._subscriptions.items()):
            yield from self._sent(subscription_id, subscription)
            if subscription.ended:
                del self._subscriptions[subscription_id]
                self._opening.discard(subscription_id)
                yield SubscriptionClosed(subscription=subscription_id)

    def _scanned(self, subscription_id: int) -> Iterator[SourceEvent]:
        """The next piece of a subscription's opening scan."""
        subscription = self._subscriptions[subscription_id]
        self._cluster.scan(subscription, self._scan_rows)
        yield from self._sent(subscription_id, subscription)
        if subscription.initialized:
            self._opening.discard(subscription_id)
            yield SubscriptionReady(subscription=subscription_id, ready_ts=self._cluster.now_ts)

    def _sent(self, subscription_id: int, subscription: Subscription) -> Iterator[SourceEvent]:
        """The rows sent to a subscription since the last call."""
        if self._raw_keys is None:
            yield from _rows(subscription_id, subscription)
        elif len(batch := subscription.take_rows()):
            scanned_from = subscription.checkpoint_ts if subscription_id in self._opening else None
            rows = raw_rows(_batch(batch), self._raw_keys, scanned_from)
            yield Rows(subscription=subscription_id, rows=rows)

    def _registered(self, checkpoint_of: CheckpointOf) -> Iterator[SourceEvent]:
        open_regions = {s.region.region_id for s in self._subscriptions.values()}
        for region in self._cluster.regions(self._store_id):
            checkpoint_ts = None
            wanted = region.range if self._raw_keys is None else region.range.intersect(self._raw_keys)
            if wanted is None:
                continue
            if region.region_id not in open_regions:
                checkpoint_ts = checkpoint_of(wanted)
            if checkpoint_ts is None or self._cluster.region_of(region.range.start) != region:
                continue  # or it changed while the frontier was asked for
            subscription_id = next(self._ids)
            is_raw = self._raw_keys is not None
            subscription = self._cluster.register(
                region.region_id, region.version, checkpoint_ts, at_once=False, is_raw=is_raw
            )
            self._subscriptions[subscription_id] = subscription
            self._opening.add(subscription_id)
            yield SubscriptionOpened(
                subscription=subscription_id,
                region_id=region.region_id,
                version=region.version,
                range=wanted,
                checkpoint_ts=checkpoint_ts,
                open_ts=subscription.open_ts,
            )
            if self._scan_rows is None:
                yield from self._scanned(subscription_id)


def _rows(subscription_id: int, subscription: Subscription) -> Iterator[Rows]:
    """The rows sent to the subscription, rows of the scan and live rows apart."""
    batch = subscription.take_rows()
    if not len(batch):
        return
    scan = np.array(batch.scan)
    bounds = [0, *(np.flatnonzero(scan[1:] != scan[:-1]) + 1).tolist(), len(scan)]
    rows = _batch(batch)
    for start, end in pairwise(bounds):
        yield Rows(subscription=subscription_id, rows=rows.slice(start, end - start), scan=bool(scan[start]))


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
        "expire_ts": rows.expire_ts,
        "flags": [0] * n,
    }
    return pa.record_batch([pa.array(columns[f.name], f.type) for f in ROWS], schema=ROWS)
