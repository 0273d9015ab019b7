"""All versions of one key between two timestamps, oldest first.

The rows are those of a pull. `scanned_from_ts` of a version says that others above it and below this version may be
missing; here it is the lower end of the gap that really remains, as `core.gaps` has it. Rows above the interval count
for that.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from reading.asof.source import TableSource
from reading.filters import Selected
from reading.kv.core.gaps import COLUMNS, by_key, gap_starts
from reading.kv.selection import Selection
from reading.pages.entries import EntryPages
from reading.pages.key_snapshot import range_of, served_keys
from reading.rows.scope import Scope
from reading.served.position import encode_cursor, locate
from reading.served.services import Services
from schemas.bases import Base
from tistream.catalog.rows.bases import KEY_RANGE
from tistream.keyrange import KeyRange
from tistream.model import change
from tistream.model.change import FLAG_SCANNED

_PAGE_BYTES = 32 << 20  # of values
_STAMPS = pa.schema([change.COMMITTED.field(name) for name in COLUMNS])


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryRequest:
    """A parsed read. `cursor` wins over `start_ts`."""

    scope: Scope
    key: bytes
    selection: Selection  #: the key's form
    format: str
    limit: int  #: versions
    start_ts: str | None = None
    end_ts: str | None = None
    cursor: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryAnswer:
    """Versions of the key in (after, end]."""

    content: pa.Buffer
    next_cursor: str
    resolved_ts: int
    has_more: bool
    gap: tuple[int, int] | None  #: (after, upto] at the end of the interval: later versions may be missing there


def read_history(services: Services, request: HistoryRequest) -> HistoryAnswer:
    """One page. Errors as of a pull."""
    tenant = request.scope.tenant
    served = served_keys(services, tenant)
    interval = locate(request, served, services.clock.unix_ms())
    keys = range_of(served, Selection(range=KeyRange(request.key, request.key + b"\0")))
    versions = _Versions(interval.upto, request.limit)
    if keys is not None and interval.after < interval.upto:
        source = TableSource(catalog=services.catalog, store=services.store, reader=services.reader)
        log = Base(physical_id=KEY_RANGE, ts=interval.after, source=None)
        for rows in source.versions(tenant, log, served.resolved, keys):
            versions.add(rows)
    versions_read, has_more = versions.page()
    end = versions_read["commit_ts"][-1].as_py() if has_more else max(interval.after, interval.upto)
    marked, gap_ts = _marked(versions_read, versions.stamps(), interval.after, end)
    pages = EntryPages(selection=request.selection, format=request.format, buffers=None, watermarks=False)
    page = pages.page(Selected(rows=marked, quarantined=()), interval.after, end, has_more=has_more)
    return HistoryAnswer(
        content=page.content,
        next_cursor=encode_cursor(request.scope, end),
        resolved_ts=served.resolved,
        has_more=has_more,
        gap=None if gap_ts is None else (gap_ts, end),
    )


class _Versions:
    """Gathers the first versions at or below `upto`, and the timestamps of all."""

    def __init__(self, upto: int, limit: int) -> None:
        self._upto, self._limit = pa.scalar(upto, pa.uint64()), limit
        self._stamps = [_STAMPS.empty_table()]
        self._held = change.COMMITTED.empty_table()
        self._is_cut = False

    def add(self, rows: pa.Table) -> None:
        """Rows of the key (schema change.COMMITTED), in any order."""
        self._stamps.append(rows.select(COLUMNS))
        wanted = rows.filter(pc.less_equal(rows["commit_ts"], self._upto))
        self._held = by_key(pa.concat_tables([self._held, wanted]))
        sizes = pc.fill_null(pc.binary_length(self._held["value"]), 0).to_numpy().astype(np.int64)
        fitting = max(1, int(np.searchsorted(np.cumsum(sizes), _PAGE_BYTES, side="right")))
        count = min(self._limit, fitting)
        if count < self._held.num_rows:
            self._held, self._is_cut = self._held.slice(0, count), True
            self._upto = self._held["commit_ts"][count - 1]

    def page(self) -> tuple[pa.Table, bool]:
        """(versions by timestamp, whether more follow)."""
        return self._held.combine_chunks(), self._is_cut

    def stamps(self) -> pa.Table:
        """`gaps.COLUMNS` of all versions, by timestamp."""
        return by_key(pa.concat_tables(self._stamps))


def _marked(table: pa.Table, stamps: pa.Table, after: int, end: int) -> tuple[pa.Table, int | None]:
    """(the versions, flagged where others are missing before them, since when some are missing before `end`)."""
    starts, ends = np.maximum(gap_starts(stamps), np.uint64(after)), stamps["commit_ts"].to_numpy()
    following = int(np.searchsorted(ends, np.uint64(end), side="right"))
    gap_ts = int(starts[following]) if following < len(ends) and starts[following] < end else None
    at = np.searchsorted(ends, table["commit_ts"].to_numpy())
    is_gap = starts[at] + np.uint64(1) < ends[at]
    flags = (table["flags"].to_numpy() & ~np.uint8(FLAG_SCANNED)) | np.where(is_gap, FLAG_SCANNED, 0).astype(np.uint8)
    columns = {"start_ts": np.where(is_gap, starts[at], ends[at]), "flags": flags}
    for name, values in columns.items():
        place = change.COMMITTED.get_field_index(name)
        table = table.set_column(place, change.COMMITTED.field(place), pa.array(values))
    return table, gap_ts
