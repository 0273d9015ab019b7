"""A source that also reports watermarks for the key ranges that its tenant excludes.

A tenant's tasks cover all tables, and a range without subscriptions would stall them. For the ranges that were excluded
when the tenant began (`table_filter`) this wrapper opens subscriptions without rows, ready at once, and resolves them
up to each tick. Every store's pusher does so, and each is right: nothing of these ranges is followed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import numpy as np

from pusher.core.source import (
    CheckpointOf,
    Resolved,
    Source,
    SourceEvent,
    SubscriptionClosed,
    SubscriptionOpened,
    SubscriptionReady,
    Tick,
)
from tistream.keyrange import KeyRange

_FIRST_REGION = 1 << 40  #: pseudo regions start here


class ExcludedRangesSource:
    """`source`, plus subscriptions for the excluded ranges. Both take subscription ids from `numbers`."""

    def __init__(self, source: Source, excluded: Sequence[KeyRange], numbers: Iterator[int]) -> None:
        self._source, self._excluded, self._numbers = source, tuple(excluded), numbers
        self._open: dict[int, int] = {}  # range index -> subscription
        self._fresh: list[int] = []  # subscriptions that are not ready yet
        self._closed: list[SourceEvent] = []  # not reported yet
        self._last_cut_ts = 0

    @property
    def store_id(self) -> int:
        return self._source.store_id

    def poll(self, timeout_s: float, checkpoint_of: CheckpointOf) -> Sequence[SourceEvent]:
        polled = self._source.poll(timeout_s, checkpoint_of)
        events, self._closed = self._closed, []
        for event in polled:
            if isinstance(event, Tick):
                events += self._before_tick(event.cut_ts)
            events.append(event)
        return [*events, *self._register(checkpoint_of)]

    def resubscribe(self, subscriptions: Collection[int]) -> None:
        mine = {index: subscription for index, subscription in self._open.items() if subscription in subscriptions}
        for index, subscription in mine.items():
            del self._open[index]
            self._closed.append(SubscriptionClosed(subscription=subscription))
        gone = set(mine.values())
        self._fresh = [subscription for subscription in self._fresh if subscription not in gone]
        self._source.resubscribe([subscription for subscription in subscriptions if subscription not in gone])

    def drop(self) -> None:
        for collection in (self._open, self._fresh, self._closed):
            collection.clear()
        self._source.drop()

    def resume(self) -> None:
        self._source.resume()

    def close(self) -> None:
        self._source.close()

    def _before_tick(self, cut_ts: int) -> list[SourceEvent]:
        """The events that precede a tick."""
        self._last_cut_ts = cut_ts
        events: list[SourceEvent] = [
            SubscriptionReady(subscription=subscription, ready_ts=cut_ts) for subscription in self._fresh
        ]
        self._fresh.clear()
        if self._open:
            subscriptions = np.fromiter(self._open.values(), np.int64)
            events.append(
                Resolved(subscriptions=subscriptions, resolved_ts=np.full(len(subscriptions), cut_ts, np.uint64))
            )
        return events

    def _register(self, checkpoint_of: CheckpointOf) -> list[SourceEvent]:
        """Open subscriptions for ranges that have none, after the ids that the wrapped poll took."""
        events: list[SourceEvent] = []
        for index, part in enumerate(self._excluded):
            if index in self._open or (checkpoint_ts := checkpoint_of(part)) is None:
                continue
            subscription = self._open[index] = next(self._numbers)
            self._fresh.append(subscription)
            events.append(
                SubscriptionOpened(
                    subscription=subscription,
                    region_id=_FIRST_REGION + index,
                    version=1,
                    range=part,
                    checkpoint_ts=checkpoint_ts,
                    open_ts=self._last_cut_ts or checkpoint_ts,
                )
            )
        return events
