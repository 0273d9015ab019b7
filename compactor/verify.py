"""What the driver asks of the results before it swaps (pure).

A worker compares its file with what it read; here the results are compared with the plan, that is with the catalog:
each row of the plan is answered once, and its file has as many rows as the catalog says of its segments, within the
commit_ts that the catalog says.
"""

from __future__ import annotations

from collections.abc import Sequence

from compactor.plan import PlanRow
from compactor.task import RangeResult
from tistream.errors import TiStreamError


def verified(rows: Sequence[PlanRow], results: Sequence[RangeResult]) -> list[RangeResult]:
    """One result for each plan row, in that order; of several for one row, which are the same work done twice, the
    first by key. TiStreamError when a result is missing or is not what was planned."""
    found: dict[int, RangeResult] = {}
    for result in sorted(results, key=lambda r: r.object_key):
        found.setdefault(result.range_id, result)
    return [_checked(row, found.get(row.range_id)) for row in rows]


def _checked(row: PlanRow, result: RangeResult | None) -> RangeResult:
    facts = {"job": row.job, "range": row.range_id, "task": row.task_id}
    if result is None:
        raise TiStreamError("a part of a compaction has no result", **facts)
    planned = (
        sum(s.rows for s in row.segments),
        min(s.lo_ts for s in row.segments),
        max(s.hi_ts for s in row.segments),
    )
    for contents in (result.before, result.after):
        if (contents.rows, contents.lo_ts, contents.hi_ts) != planned:
            raise TiStreamError("a compacted file is not what was planned", planned=planned, found=contents, **facts)
    in_groups = sum(group.rows for group in result.groups)
    if result.before.fingerprint != result.after.fingerprint or in_groups != planned[0]:
        raise TiStreamError("a compacted file differs from its inputs", object=result.object_key, **facts)
    return result
