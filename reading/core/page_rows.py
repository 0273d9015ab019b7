"""Selects and orders the rows of a page (pure), copying only where it must.

A segment inside the interval is used as it was read, one that crosses an edge is sliced where its rows are contiguous,
and segments that follow each other in commit order are concatenated without a copy. Rows move only where segments of
several tables or tasks overlap in time.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reading.core import merge
from tistream.keyrange import KeyRange
from tistream.model import change
from tistream.model.change import Op

_ORDER = ("commit_ts", "start_ts", "table_id", "key")


def select(
    table: pa.Table, after: int, upto: int, table_ids: Collection[int] | None, *, changes_only: bool = True
) -> pa.Table:
    """Rows in (after, upto] of these tables, from one segment (one chunk, table ids ascending). `changes_only` drops
    rows that are kept only for reads as of a timestamp."""
    ts = table["commit_ts"].to_numpy()
    keep = (ts > np.uint64(after)) & (ts <= np.uint64(upto))
    if changes_only:
        keep &= (table["flags"].to_numpy() & change.FLAG_NOT_A_CHANGE) == 0
    if table_ids is not None and len(ts):
        ids = table["table_id"].to_numpy()
        keep &= ids[0] in table_ids if ids[0] == ids[-1] else np.isin(ids, np.array(sorted(table_ids), np.int64))
    return only(table, keep)


def within(table: pa.Table, keys: KeyRange) -> pa.Table:
    """The rows with keys of the range."""
    if keys.start:
        table = table.filter(pc.greater_equal(table["key"], pa.scalar(keys.start, pa.binary())))
    if keys.end:
        table = table.filter(pc.less(table["key"], pa.scalar(keys.end, pa.binary())))
    return table


def deletes_nothing(table: pa.Table) -> npt.NDArray[np.bool_]:
    """Which rows of tables delete a row that did not exist. TiDB leaves such a record when a transaction deletes a row
    that it has inserted itself."""
    mask: npt.NDArray[np.bool_] = table["old_value"].is_null().to_numpy() & (table["op"].to_numpy() == Op.DELETE)
    if not mask.any():
        return mask
    known: npt.NDArray[np.bool_] = table["flags"].to_numpy() & change.FLAG_OLD_VALUE_UNKNOWN == 0
    of_table: npt.NDArray[np.bool_] = table["table_id"].to_numpy() > 0
    return mask & known & of_table


def only(table: pa.Table, keep: npt.NDArray[np.bool_]) -> pa.Table:
    """The rows where `keep` holds; a slice if they are contiguous."""
    count = int(np.count_nonzero(keep))
    first = int(keep.argmax()) if count else 0
    if keep[first : first + count].all():
        return table.slice(first, count)
    return table.filter(pa.array(keep))


def page(parts: Sequence[pa.Table], *, upto: int, rows: int, size: int) -> tuple[pa.Table, int]:
    """(the first rows by (commit_ts, start_ts, table_id, key), the commit_ts at which they end): as many as `rows` and
    `size`, bytes of keys and values, allow (see `merge.cut`). Parts are sorted by (table_id, commit_ts, start_ts, key).
    Rows already in order keep their chunks; else only the rows of the page move."""
    whole = pa.concat_tables([change.COMMITTED.empty_table(), *parts])
    order = _order(whole, parts)
    commit_ts = whole["commit_ts"].to_numpy()
    if order is None:
        n, end = merge.cut(commit_ts, upto=upto, rows=_fitting(whole, None, rows, size))
        return whole.slice(0, n), end
    n, end = merge.cut(commit_ts[order], upto=upto, rows=_fitting(whole, order, rows, size))
    return whole.take(pa.array(order[:n])).combine_chunks(), end


class Gathering:
    """The rows of a page as segments give them, in any order: those of the lowest commit timestamps, no more than the
    page needs. So a page is bounded although the segments that overlap at its beginning are not."""

    def __init__(self, *, upto: int, rows: int, size: int, commit_size: int) -> None:
        """`upto`: end of the segments. `commit_size`: bytes of keys and values; a commit_ts with more is left out."""
        self.upto = upto  #: what lies above is no longer of use
        self.large: int | None = None  #: a commit_ts that is left out; the page ends below it
        self._rows, self._size, self._commit_size = rows, size, commit_size
        self._parts: list[pa.Table] = []
        self._held, self._bound = 0, 2 * size

    def add(self, part: pa.Table, of: int) -> None:
        """Selected rows of one segment, which takes `of` bytes. A small part of it is copied, so that it is let go."""
        if part.num_rows and 2 * part.nbytes < of:
            part = part.take(pa.array(np.arange(part.num_rows)))
        self._parts.append(part)
        self._held += part.nbytes
        if self._held > self._bound:
            self._cut()

    @property
    def held(self) -> int:
        """Bytes of the rows."""
        return self._held

    def page(self) -> tuple[pa.Table, int]:
        """(the rows, the commit_ts at which they end)."""
        self._cut()
        return self._parts[0], self.upto

    def _cut(self) -> None:
        parts = [select(part, 0, self.upto, None, changes_only=False) for part in self._parts]
        whole, end = page(parts, upto=self.upto, rows=self._rows, size=self._size)
        if whole.num_rows:
            last = whole["commit_ts"][-1].as_py()
            below = int(np.searchsorted(whole["commit_ts"].to_numpy(), np.uint64(last)))
            if int(bytes_of(whole.slice(below)).sum()) > self._commit_size:
                whole, end, self.large = whole.slice(0, below), last - 1, last
        self._parts, self.upto, self._held = [whole], end, whole.nbytes
        self._bound = max(2 * self._size, 2 * whole.nbytes)


def bytes_of(rows: pa.Table) -> npt.NDArray[np.int64]:
    """Bytes of key and values of each row."""
    sizes = np.zeros(rows.num_rows, np.int64)
    for name in ("key", "value", "old_value"):
        sizes += pc.fill_null(pc.binary_length(rows[name]), 0).to_numpy()
    return sizes


def _order(whole: pa.Table, parts: Sequence[pa.Table]) -> npt.NDArray[np.int64] | None:
    """The row numbers in page order; None when the rows are in that order."""
    commit_ts, start_ts, ids = (whole[name].to_numpy() for name in _ORDER[:3])
    if (commit_ts[1:] > commit_ts[:-1]).all():
        return None
    order = np.lexsort((ids, start_ts, commit_ts))
    _order_ties(whole, parts, order)
    return None if (order[1:] > order[:-1]).all() else order


def _order_ties(whole: pa.Table, parts: Sequence[pa.Table], order: npt.NDArray[np.int64]) -> None:
    """Sort by key, in `order`, the rows of one transaction and table that come from several parts."""
    equal = np.ones(max(0, len(order) - 1), np.bool_)
    for name in _ORDER[:3]:
        column = whole[name].to_numpy()[order]
        equal &= column[1:] == column[:-1]
    part = np.repeat(np.arange(len(parts)), [p.num_rows for p in parts])[order]
    mixed = equal & (part[1:] != part[:-1])
    if not mixed.any():
        return
    group = np.concatenate([[0], np.cumsum(~equal)])
    chosen = np.isin(group, group[1:][mixed])
    rows = order[chosen]
    tied = whole.select(_ORDER).take(pa.array(rows)).combine_chunks().to_batches()[0]
    order[chosen] = rows[pc.sort_indices(tied, sort_keys=[(name, "ascending") for name in _ORDER]).to_numpy()]


def _fitting(whole: pa.Table, order: npt.NDArray[np.int64] | None, rows: int, size: int) -> int:
    """How many of the first rows fit a page; at least one."""
    if whole.nbytes <= size or not whole.num_rows:
        return max(1, min(rows, int(whole.num_rows)))
    sizes = bytes_of(whole)
    reached = np.cumsum(sizes if order is None else sizes[order])
    return max(1, min(rows, int(np.searchsorted(reached, size, side="right"))))
