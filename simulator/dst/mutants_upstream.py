"""Mutants of what is promised to a sorter: subscriptions, resolved timestamps, cut_ts, the order of files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from simulator.dst.mutants import REGISTER, broken, register, replaced

_TWO_SECONDS = 2000 << 18  # as a timestamp
broken(
    "resolved-before-records (usual): resolved_ts is taken before the last records of its file",
    ("simulator.push.model_source:ModelSource.tick", "self._came += self._taken()", "pass"),
)
broken(
    "cut-before-records (usual): cut_ts is taken before the last records of its file",
    (
        "pusher.core.batcher:Batcher._tick",
        "self._cut_ts = cut_ts",
        "before, self._cut_ts = self._cut_ts, cut_ts",
        "cut_ts=cut_ts,\n",
        "cut_ts=before,\n",
    ),
)
broken(
    "cut-falls (lives): a new incarnation starts below the largest cut_ts of its store",
    ("pusher.worker:PusherWorker._check_cut", lambda self, cut_ts: None),
    (
        "pusher.core.batcher:Batcher._tick",
        "cut_ts=cut_ts,\n",
        f"cut_ts=cut_ts - ({5 * _TWO_SECONDS} if self._seq < 5 else 0),\n",
    ),
)
broken(
    "older-life-goes-on (lives): a pusher continues although a newer incarnation of its store was issued",
    ("pusher.replaced:ReplacedCheck.check", lambda self, incarnation: None),
)
broken(
    "locks-not-resolved (usual): resolved_ts passes undecided prewrites",
    ("simulator.core.cluster:Cluster.held", lambda self: {}),
)
broken(
    "closing-row-left-out (upstream): a subscription that ends does not write its last resolved ts",
    (
        "pusher.core.batcher:Batcher._tick",
        "self._cut_ts = cut_ts",
        (
            "self._cut_ts = cut_ts; "
            "slots = self._marks.slots(np.array(sorted(self._closed), np.int64)); "
            "self._marks._marks[1, slots] = self._marks._marks[3, slots]"
        ),
    ),
)


@register(
    "closing-row-awaited (spread): as closing-row-left-out, and subscriptions open at what was resolved, not written"
)
def _closing_row_awaited() -> Iterator[None]:
    with REGISTER["closing-row-left-out"].patch(), opening_at_resolved():
        yield


@contextmanager
def opening_at_resolved() -> Iterator[None]:
    """A subscription opens at what the previous one has resolved. Legal as long as closing rows carry that."""
    from pusher.worker import PusherWorker
    from simulator.dst.upstream import SimSource

    whole, resolve = PusherWorker._checkpoint_of, SimSource._resolve

    def checkpoint_of(self: Any, region: Any) -> int | None:
        published = whole(self, region)
        said = vars(self._source._cluster).get("said", [])
        return published and max([published, *(ts for range_, ts in said if range_ == region)])

    def said(self: Any, fetched_ts: int) -> None:
        resolve(self, fetched_ts)
        resolved, by = self._came[-1], vars(self._cluster).setdefault("said", [])
        for subscription, ts in zip(resolved.subscriptions.tolist(), resolved.resolved_ts.tolist(), strict=True):
            by.append((self._subscriptions[subscription].region.range, ts))

    with replaced(PusherWorker, "_checkpoint_of", checkpoint_of), replaced(SimSource, "_resolve", said):
        yield


@register("incarnation-issued-twice (usual): a restarted pusher reuses its earlier incarnation")
def _incarnation_issued_twice() -> Iterator[None]:
    from simulator.dst import roles
    from tistream.catalog.work.stores import issue_incarnation, newest_incarnation

    def issue(catalog: Any, tenant: Any, store_id: int) -> Any:
        newest = newest_incarnation(catalog, tenant, store_id)
        return (newest, 0) if newest else issue_incarnation(catalog, tenant, store_id)

    with replaced(roles, "issue_incarnation", issue):
        yield


@register("opens-above-frontier (upstream): a subscription opens at its pusher's newest time, above the frontier")
def _opens_above_frontier() -> Iterator[None]:
    from pusher.worker import PusherWorker

    whole = PusherWorker._checkpoint_of

    def checkpoint_of(self: Any, region: Any) -> int | None:
        published = whole(self, region)
        return published and max(published, self._batcher._cut_ts)

    with replaced(PusherWorker, "_checkpoint_of", checkpoint_of):
        yield


broken(
    "scan-from-above (upstream): the opening scan leaves out what was committed just above its checkpoint_ts",
    (
        "simulator.core.cluster:Cluster._scanned",
        "subscription.checkpoint_ts]",
        f"subscription.checkpoint_ts + {_TWO_SECONDS}]",
    ),
)
broken(
    "scan-without-prewrites (upstream): an opening scan does not send the open prewrites",
    ("simulator.core.cluster:Cluster._scanned", "entry.lock is not None and entry.lock.is_sent", "False"),
)
broken(
    "scan-behind-live (scans): an opening scan's prewrite may follow a newer live one",
    ("pusher.core.batcher:Batcher._in_order", lambda self, event: event.rows),
)
broken(
    "bytes-change-on-retry (upstream): a file that is put again has other bytes under its old number",
    (
        "pusher.uploader:Uploader._put",
        "with self._changed:\n                self._retries += 1",
        (
            "data = data[:-1] + bytes([data[-1] ^ 1])\n            with self._changed:\n"
            "                self._retries += 1"
        ),
    ),
)
