"""Heartbeat report of a dispatcher's stores: rates, the newest file read, and seconds since it arrived."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any

from dispatcher.tail import Tail
from tistream.catalog.rows.reports import StoreReport, WorkerReport
from tistream.catalog.work.stores import StoreRow
from tistream.limits import RATE_WINDOW_S
from tistream.runtime.rates import Rate

PROBLEMS_REPORTED_MAX = 20


class _Flow:
    def __init__(self, tail: Tail, now_s: float) -> None:
        self.tail = tail
        self._files = self._bytes = 0  # a tail is reported as soon as it exists
        self.files, self.bytes = Rate(RATE_WINDOW_S, now_s), Rate(RATE_WINDOW_S, now_s)

    def tick(self, now_s: float) -> None:
        files, nbytes = self.tail.files_read, self.tail.bytes_read
        self.files.add(files - self._files, now_s)
        self.bytes.add(nbytes - self._bytes, now_s)
        self._files, self._bytes = files, nbytes


class Reporter:
    """Measures read rates. Used from one thread."""

    def __init__(self) -> None:
        self._flows: dict[Hashable, _Flow] = {}

    def look(
        self,
        owned: Mapping[Any, StoreRow],
        tails: Mapping[Any, Tail],
        problems: Iterable[Mapping[str, Any]],
        now_s: float,
    ) -> WorkerReport:
        """The report. A store without subscribers has no tail; only its incarnation is reported."""
        for key in owned:
            tail, flow = tails.get(key), self._flows.get(key)
            if tail is not None and (flow is None or flow.tail is not tail):
                self._flows[key] = _Flow(tail, now_s)
        self._flows = {key: flow for key, flow in self._flows.items() if key in owned and key in tails}
        for flow in self._flows.values():
            flow.tick(now_s)
        stores = tuple(self._store_report(key, row, now_s) for key, row in owned.items())
        return WorkerReport(
            bytes_per_s=sum(store.bytes_per_s for store in stores),
            stores=stores,
            problems=tuple(dict(problem) for problem in problems)[:PROBLEMS_REPORTED_MAX],
        )

    def _store_report(self, key: Hashable, row: StoreRow, now_s: float) -> StoreReport:
        flow = self._flows.get(key)
        if flow is None:
            return StoreReport(tenant=row.tenant, store_id=row.store_id, incarnation=row.incarnation)
        incarnation, seq = flow.tail.newest_file
        return StoreReport(
            tenant=row.tenant,
            store_id=row.store_id,
            incarnation=incarnation or row.incarnation,
            seq=seq,
            bytes_per_s=round(flow.bytes.per_s(), 1),
            files_per_s=round(flow.files.per_s(), 2),
            silent_s=round(max(0.0, now_s - flow.tail.newest_at_s), 1),
        )
