"""What a plan row became, stored files that are not visible yet, and its verification before the commit (pure).

A worker compares its file with its inputs; here results are compared with the plan, hence with the catalog: each plan
row has a result, and its file has the rows and the commit_ts range of its segments; where versions of keys may be
collected, the rows but for those, and their newest commit_ts. Bases: only planned tables, and
nothing above the planned timestamp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compactor.core.base_plan import BasePlanRow
from compactor.core.plan import PlanRow
from tistream.codec.compacted_file import Footer
from tistream.codec.segment_file import SegmentInfo
from tistream.errors import TiStreamError


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """Figures that inputs and output share."""

    rows: int
    lo_ts: int
    hi_ts: int
    fingerprint: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeResult:
    """A stored file that is not visible yet."""

    range_id: int
    task_id: int
    object_key: str
    object_bytes: int
    groups: tuple[SegmentInfo, ...]
    footer: Footer
    before: Contents  #: of the inputs
    after: Contents  #: of the file, decoded again
    seconds: float
    collected: int = 0  #: rows of the inputs that garbage collection removed; `before` is without them


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFile:
    """A stored file of rows; each segment is of one table."""

    object_key: str
    object_bytes: int
    segments: tuple[SegmentInfo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseResult:
    """The bases of a group, not visible yet."""

    range_id: int
    ts: int
    files: tuple[BaseFile, ...]
    rows: dict[int, int]  #: table id -> rows, without empty tables
    seconds: float


def verified(rows: Sequence[PlanRow], results: Sequence[RangeResult]) -> list[RangeResult]:
    """One result per plan row, in that order; of several for one row, from repeated work, the first by key.
    TiStreamError when a result is missing or does not match the plan."""
    results_by_number: dict[int, RangeResult] = {}
    for result in sorted(results, key=lambda r: r.object_key):
        results_by_number.setdefault(result.range_id, result)
    return [_checked(row, results_by_number.get(row.range_id)) for row in rows]


def _checked(row: PlanRow, result: RangeResult | None) -> RangeResult:
    facts = {"job": row.job, "range": row.range_id, "task": row.task_id}
    if result is None:
        raise TiStreamError("a compaction range has no result", **facts)
    planned = (
        sum(s.rows for s in row.segments),
        min(s.lo_ts for s in row.segments),
        max(s.hi_ts for s in row.segments),
    )
    collected = result.collected
    may_go = 0 <= collected <= sum(s.rows for s in row.segments if s.lo_ts <= row.safe_ts)
    for contents in (result.before, result.after):
        lo_ts = min(planned[1], contents.lo_ts) if collected else contents.lo_ts
        if not may_go or (contents.rows + collected, lo_ts, contents.hi_ts) != planned:
            raise TiStreamError("a compacted file does not match its plan", planned=planned, found=contents, **facts)
    in_groups = sum(group.rows for group in result.groups)
    if result.before.fingerprint != result.after.fingerprint or in_groups != result.after.rows:
        raise TiStreamError("a compacted file differs from its inputs", object=result.object_key, **facts)
    return result


def verified_bases(rows: Sequence[BasePlanRow], results: Sequence[BaseResult]) -> list[BaseResult]:
    """`verified`, for bases."""
    results_by_number: dict[int, BaseResult] = {}
    for result in sorted(results, key=lambda r: [file.object_key for file in r.files]):
        results_by_number.setdefault(result.range_id, result)
    return [_checked_base(row, results_by_number.get(row.range_id)) for row in rows]


def _checked_base(row: BasePlanRow, result: BaseResult | None) -> BaseResult:
    facts = {"job": row.job, "range": row.range_id, "ts": row.ts}
    if result is None:
        raise TiStreamError("a range of bases has no result", **facts)
    in_files: dict[int, int] = {}
    for file in result.files:
        for info in file.segments:
            in_files[info.table_lo] = in_files.get(info.table_lo, 0) + info.rows
            if info.table_lo != info.table_hi or info.hi_ts > row.ts:
                raise TiStreamError("a base does not match its plan", object=file.object_key, **facts)
    if result.ts != row.ts or in_files != result.rows or not in_files.keys() <= {t.table_id for t in row.tables}:
        raise TiStreamError("a base does not match its plan", rows=result.rows, found=in_files, **facts)
    return result
