"""A plain judge of what pushers say of RawKV: it merges the rows of all subscriptions; they resume where all is said.

judge = RawJudge(workload)
for event in source.poll(0.0, judge.checkpoint_of):
    judge.hear(source.store_id, event)
judge.violations(upto)          as of the rules of the simulator (`simulator.dst.raw_rules`)
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from pusher.core.source import Resolved, Rows, SourceEvent, SubscriptionClosed, SubscriptionOpened, SubscriptionReady
from simulator.dst.raw_reading import RAW_KEYS
from simulator.dst.raw_rules import RawRules
from simulator.raw_workload import RawWorkload
from tistream.keyrange import KeyRange
from tistream.model.change import COMMITTED, FLAG_SCANNED, RowKind


class RawJudge:
    """Of one keyspace (`RAW_KEYS`)."""

    def __init__(self, workload: RawWorkload) -> None:
        self._found: list[str] = []
        self._workload = workload
        self.rules = RawRules(workload.versions, RAW_KEYS, self._found.append)
        self._open: dict[tuple[int, int], SubscriptionOpened] = {}  # by store and number
        self._ready: set[tuple[int, int]] = set()
        self._complete: dict[bytes, int] = {}  # key -> everything at or below it was said
        self._log: dict[tuple[int, bytes], dict[str, Any]] = {}

    def checkpoint_of(self, range_: KeyRange) -> int:
        """Where a subscription begins."""
        return min((self._complete.get(key, 0) for key in list(self._workload.versions) if key in range_), default=0)

    @property
    def complete_ts(self) -> int:
        """Everything at or below it was said of every key."""
        return self.checkpoint_of(RAW_KEYS)

    def violations(self, upto: int) -> list[str]:
        """What is wrong with the log, which is complete up to there."""
        rows = sorted(self._log.values(), key=lambda row: (row["commit_ts"], row["start_ts"], row["key"]))
        self.rules.read("the judge", pa.Table.from_pylist(rows, COMMITTED), 0, upto)
        self.rules.at_rest()
        return self._found

    def died(self, store: int) -> None:
        """A pusher has died, and what it would have said is lost."""
        self._ready = {place for place in self._ready if place[0] != store}

    def hear(self, store: int, event: SourceEvent) -> None:
        """Take an event of a source."""
        match event:
            case SubscriptionOpened():
                self._open[store, event.subscription] = event
                self.rules.opened(event.range, event.checkpoint_ts)
            case SubscriptionReady():
                self._ready.add((store, event.subscription))
            case SubscriptionClosed():
                self._ready.discard((store, event.subscription))
            case Rows():
                for row in event.rows.to_pylist():
                    self._merge({**row, "table_id": 0})
            case Resolved():
                for subscription, ts in zip(event.subscriptions.tolist(), event.resolved_ts.tolist(), strict=True):
                    if (store, subscription) in self._ready:
                        self._resolved(self._open[store, subscription].range, ts)

    def _resolved(self, range_: KeyRange, ts: int) -> None:
        for key in list(self._workload.versions):
            if key in range_:
                self._complete[key] = max(ts, self._complete.get(key, 0))

    def _merge(self, row: dict[str, Any]) -> None:
        """A row that was not marked once is not marked: its subscription has sent what was before it."""
        assert row["kind"] == RowKind.RAW
        place = row["commit_ts"], row["key"]
        entry = self._log.setdefault(place, row)
        if not row["flags"] & FLAG_SCANNED or (entry["flags"] & FLAG_SCANNED and row["start_ts"] < entry["start_ts"]):
            self._log[place] = row
