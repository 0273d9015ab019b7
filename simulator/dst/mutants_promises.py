"""Mutants of the rule that a store keeps its own promises, and of the quarantine of one that does not."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulator.dst.mutants import broken
from sorter.core.promised import PROMISED, Promised


def _highest(self: Promised, regions: Any, store_id: int, incarnation: int) -> Any:
    promised = [int(known.resolved.max(initial=0)) for known in self._by_incarnation.values()]
    return np.full(regions.num_rows, max(promised, default=0), np.uint64)


broken(
    "promise-not-saved (promises): a state checkpoint holds no promises",
    ("sorter.core.promised:Promised.snapshot", lambda self: PROMISED.empty_table()),
)
broken(
    "promise-of-another (promises): a row is compared with the highest promise of any subscription",
    ("sorter.core.promised:Promised.before", _highest),
)
broken(
    "prewrites-contradict (promises): a prewrite at or below a promise counts as a contradiction",
    (
        "sorter.core.contradictions:suspects",
        'commit_ts = rows.ts("commit_ts")',
        'commit_ts = np.where(rows.kind == RowKind.PREWRITE, rows.ts("start_ts"), rows.ts("commit_ts"))',
        "near[(kinds == RowKind.COMMIT) | (kinds >= RowKind.COMMITTED)]",
        "near[kinds != RowKind.ROLLBACK]",
    ),
)
broken(
    "bytes-not-compared (promises): a row with the version of a known one counts as repeated, whatever its value",
    ("sorter.core.contradictions:_equal", 'if "value_held" in both.columns:', "if False:"),
)
broken(
    "quarantine-not-heeded (promises): readers are served above the last timestamp known to be good",
    ("tistream.catalog.tenancy.served:limits", '"ts": _q.good_ts, "good_ts": _q.good_ts', '"good_ts": none'),
    ("reading.log.reader:LogReader._listed", "self._catalog, tenant, after, upto)", "self._catalog, tenant, after, 0)"),
)
broken(
    "rejected-goes-on (promises): a store keeps the incarnation that an operator has rejected",
    (
        "simulator.dst.contradictions:reject_store",
        "newest = issue_in(conn, tenant, store_id, above=max(row.incarnation for row in held))",
        "newest = 0",
    ),
)
