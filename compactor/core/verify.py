"""What the driver asks of the results before it swaps (pure).

A worker compares its file with what it read; here the results are compared with the plan, that is with the catalog:
each row of the plan is answered once, and its file has as many rows as the catalog says of its segments, within the
commit_ts that the catalog says. Of bases: nothing but the planned tables, nothing above the planned timestamp.
"""

from __future__ import annotations

from collections.abc import Sequence

from compactor.base_task import BaseResult
from compactor.core.base_plan import BasePlanRow
from compactor.core.plan import PlanRow
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


def verified_bases(rows: Sequence[BasePlanRow], results: Sequence[BaseResult]) -> list[BaseResult]:
    """As `verified`, for bases."""
    found: dict[int, BaseResult] = {}
    for result in sorted(results, key=lambda r: [file.object_key for file in r.files]):
        found.setdefault(result.range_id, result)
    return [_checked_base(row, found.get(row.range_id)) for row in rows]


def _checked_base(row: BasePlanRow, result: BaseResult | None) -> BaseResult:
    facts = {"job": row.job, "range": row.range_id, "ts": row.ts}
    if result is None:
        raise TiStreamError("a part of a job has no result", **facts)
    in_files: dict[int, int] = {}
    for file in result.files:
        for info in file.segments:
            in_files[info.table_lo] = in_files.get(info.table_lo, 0) + info.rows
            if info.table_lo != info.table_hi or info.hi_ts > row.ts:
                raise TiStreamError("a base is not what was planned", object=file.object_key, **facts)
    if result.ts != row.ts or in_files != result.rows or not in_files.keys() <= {t.table_id for t in row.tables}:
        raise TiStreamError("a base is not what was planned", rows=result.rows, found=in_files, **facts)
    return result
