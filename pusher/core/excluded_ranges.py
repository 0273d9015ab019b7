"""A source that also speaks for the keys that its tenant leaves out: nothing of them is followed, so all of it is here.

The tasks of a tenant cover all tables, and a range that nobody speaks for holds their watermark. For the ranges that
were left out when the tenant began (`table_filter`) this wrapper opens subscriptions of its own, without rows, ready at
once, and resolved up to each tick. Every store's pusher says so, and each is right.
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

_FIRST_REGION = 1 << 40  #: regions from here on are not the store's


class ExcludedRangesSource:
    """`source`, and subscriptions for the ranges that are left out. Both take the numbers of subscriptions from
    `numbers`."""

    def __init__(self, source: Source, excluded: Sequence[KeyRange], numbers: Iterator[int]) -> None:
        self._source, self._excluded, self._numbers = source, tuple(excluded), numbers
        self._open: dict[int, int] = {}  # index of a range -> its subscription
        self._fresh: list[int] = []  # subscriptions that are not ready yet
        self._closed: list[SourceEvent] = []  # not said yet
        self._last_cut_ts = 0

    @property
    def store_id(self) -> int:
        return self._source.store_id

    def poll(self, timeout_s: float, checkpoint_of: CheckpointOf) -> Sequence[SourceEvent]:
        """See Source.poll."""
        theirs = self._source.poll(timeout_s, checkpoint_of)
        events, self._closed = self._closed, []
        for event in theirs:
            if isinstance(event, Tick):
                events += self._speak(event.cut_ts)
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
        for forgotten in (self._open, self._fresh, self._closed):
            forgotten.clear()
        self._source.drop()

    def resume(self) -> None:
        self._source.resume()

    def close(self) -> None:
        self._source.close()

    def _speak(self, cut_ts: int) -> list[SourceEvent]:
        """What is said before a tick."""
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
        """Subscriptions for the ranges that have none, behind everything that the store's own poll numbered."""
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
