"""Mutants of what is promised to a sorter: subscriptions, resolved timestamps, cut_ts, the order of files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from simulator.dst.mutants import REGISTER, register, replaced, reworded

_TWO_SECONDS = 2000 << 18  # as a timestamp


@register("resolved-before-records", "resolved_ts is taken before the last records of its file")
def _resolved_before_records() -> Iterator[None]:
    from simulator.push.model_source import ModelSource

    with reworded(ModelSource, "tick", ("self._came += self._taken()", "pass")):
        yield


@register("cut-before-records", "cut_ts is taken before the last records of its file")
def _cut_before_records() -> Iterator[None]:
    from pusher.core.batcher import Batcher

    with reworded(
        Batcher,
        "_tick",
        ("self._cut_ts = cut_ts", "before, self._cut_ts = self._cut_ts, cut_ts"),
        ("cut_ts=cut_ts,\n", "cut_ts=before,\n"),
    ):
        yield


@register("cut-falls", "a new incarnation starts below the largest cut_ts of its store", scenario="lives")
def _cut_falls() -> Iterator[None]:
    from pusher.core.batcher import Batcher
    from pusher.worker import PusherWorker

    slow = f"cut_ts=cut_ts - ({5 * _TWO_SECONDS} if self._seq < 5 else 0),\n"
    with (
        replaced(PusherWorker, "_check_cut", lambda self, cut_ts: None),
        reworded(Batcher, "_tick", ("cut_ts=cut_ts,\n", slow)),
    ):
        yield


@register("older-life-goes-on", "a pusher goes on although a newer incarnation of its store was issued", "lives")
def _older_life_goes_on() -> Iterator[None]:
    from pusher.replaced import ReplacedCheck

    with replaced(ReplacedCheck, "check", lambda self, incarnation: None):
        yield


@register("locks-not-resolved", "resolved_ts passes undecided prewrites")
def _locks_not_resolved() -> Iterator[None]:
    from simulator.core.cluster import Cluster

    with replaced(Cluster, "held", lambda self: {}):
        yield


@register("closing-row-left-out", "a subscription that ends says no more what it has resolved", scenario="upstream")
def _closing_row_left_out() -> Iterator[None]:
    from pusher.core.batcher import Batcher

    last = "slots = self._marks.slots(np.array(sorted(self._closed), np.int64))"
    said = "self._marks._marks[1, slots] = self._marks._marks[3, slots]"
    with reworded(Batcher, "_tick", ("self._cut_ts = cut_ts", f"self._cut_ts = cut_ts; {last}; {said}")):
        yield


@register(
    "closing-row-awaited", "as closing-row-left-out, and subscriptions open at what was resolved, not written", "spread"
)
def _closing_row_awaited() -> Iterator[None]:
    with REGISTER["closing-row-left-out"].patch(), opening_at_resolved():
        yield


@contextmanager
def opening_at_resolved() -> Iterator[None]:
    """A subscription opens at what the one before it has resolved. Legal as long as closing rows say that too."""
    from pusher.worker import PusherWorker
    from simulator.dst.upstream import SimSource

    whole, resolve = PusherWorker._checkpoint_of, SimSource._resolve

    def checkpoint_of(self: Any, region: Any) -> int | None:
        published = whole(self, region)
        said = vars(self._source._cluster).get("said", [])
        return published and max([published, *(ts for range_, ts in said if range_ == region)])

    def said(self: Any, fetched_ts: int) -> None:
        resolve(self, fetched_ts)
        told, by = self._came[-1], vars(self._cluster).setdefault("said", [])
        for subscription, ts in zip(told.subscriptions.tolist(), told.resolved_ts.tolist(), strict=True):
            by.append((self._subscriptions[subscription].region.range, ts))

    with replaced(PusherWorker, "_checkpoint_of", checkpoint_of), replaced(SimSource, "_resolve", said):
        yield


@register("incarnation-issued-twice", "a pusher that starts again goes on under the incarnation of its earlier life")
def _incarnation_issued_twice() -> Iterator[None]:
    from simulator.dst import roles
    from tistream.catalog.work.stores import issue_incarnation, newest_incarnation

    def issue(catalog: Any, tenant: Any, store_id: int) -> Any:
        newest = newest_incarnation(catalog, tenant, store_id)
        return (newest, 0) if newest else issue_incarnation(catalog, tenant, store_id)

    with replaced(roles, "issue_incarnation", issue):
        yield


@register(
    "opens-above-frontier",
    "a subscription opens at its pusher's newest time, above the published `durable_ts`",
    "upstream",
)
def _opens_above_frontier() -> Iterator[None]:
    from pusher.worker import PusherWorker

    whole = PusherWorker._checkpoint_of

    def checkpoint_of(self: Any, region: Any) -> int | None:
        published = whole(self, region)
        return published and max(published, self._batcher._cut_ts)

    with replaced(PusherWorker, "_checkpoint_of", checkpoint_of):
        yield


@register("scan-from-above", "the opening scan leaves out what was committed just above its checkpoint_ts", "upstream")
def _scan_from_above() -> Iterator[None]:
    from simulator.core.cluster import Cluster

    old = "subscription.checkpoint_ts)"
    with reworded(Cluster, "_scanned", (old, f"subscription.checkpoint_ts + {_TWO_SECONDS})")):
        yield


@register("scan-without-prewrites", "an opening scan does not send the open prewrites", scenario="upstream")
def _scan_without_prewrites() -> Iterator[None]:
    from simulator.core.cluster import Cluster

    with reworded(Cluster, "_scanned", ("entry.lock is not None and entry.lock.is_sent", "False")):
        yield


@register("scan-behind-live", "an opening scan's prewrite may stand behind a newer live one", scenario="scans")
def _scan_behind_live() -> Iterator[None]:
    from pusher.core.batcher import Batcher

    with replaced(Batcher, "_in_order", lambda self, event: event.rows):
        yield


@register("bytes-change-on-retry", "a file that is put again has other bytes under its old number", scenario="upstream")
def _bytes_change_on_retry() -> Iterator[None]:
    from pusher.uploader import Uploader

    other = "data = data[:-1] + bytes([data[-1] ^ 1])"
    old = "with self._changed:\n                self._retries += 1"
    with reworded(Uploader, "_put", (old, f"{other}\n            {old}")):
        yield
