"""The entries of a key range as of a timestamp, from rows of the log in any order (pure).

    rows at or below t    newest version of each key ──┐
                                                       ├─> entries by key: value, expiry, known or not
    flagged rows above t  gap around t? (see `gaps`) ──┘

An entry with an expiry at or below t's own second, and a deleted one, is not there. A key whose state is not known has
an entry all the same, with the newest version that is known.

A page is the first keys of the range. Memory holds these, and the keys of the whole range whose state is not known:
the answer depends on them even if the page does not.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tistream import ts as tso
from tistream.codec.newest import states
from tistream.model.arrays import Mask
from tistream.model.change import FLAG_SCANNED

_NONE = np.uint64((1 << 64) - 1)
_HELD_ROWS = 1 << 16  # between two reductions
_VERSION = pa.schema(
    [
        pa.field("key", pa.binary(), False),
        pa.field("commit_ts", pa.uint64(), False),
        pa.field("value", pa.binary()),
        pa.field("expire_ts", pa.uint64(), False),
    ]
)
#: what is known of a key: its newest version (`commit_ts` 0: none; `value` null: none, or deleted) and the least
#: `start_ts` of the gaps around t (all ones: none)
_ENTRY = _VERSION.append(pa.field("gap_ts", pa.uint64(), False))

#: an entry as of t; `value` null: none is known, or it is deleted or expired, and `known` is false
ENTRIES = _VERSION.append(pa.field("known", pa.bool_(), False))


class RangeState:
    """Gathers the first `limit` keys of a range as of `t`, fewer if they have more than `size` bytes."""

    def __init__(self, t: int, *, limit: int, size: int) -> None:
        self._t, self._limit, self._size = np.uint64(t), limit, size
        self._page: list[pa.Table] = [_ENTRY.empty_table()]
        self._gaps: list[pa.Table] = [_ENTRY.empty_table()]
        self._held = 0
        self.last_key: bytes | None = None  #: the page ends here; None = with the range

    def add(self, rows: pa.Table) -> None:
        """Take in rows of the log (schema change.COMMITTED) of this range, also from above t."""
        entries = _entries(rows, self._t)
        if not entries.num_rows:
            return
        gap = (entries["gap_ts"].to_numpy() != _NONE) | (entries["commit_ts"].to_numpy() == self._t)
        self._gaps.append(_without_values(entries.filter(pa.array(gap))))
        if self.last_key is not None:
            entries = entries.filter(pc.less_equal(entries["key"], pa.scalar(self.last_key, pa.binary())))
        self._page.append(entries)
        self._held += entries.num_rows
        if self._held > _HELD_ROWS or sum(part.nbytes for part in self._page) > 2 * self._size:
            self._reduce()

    def entries(self) -> pa.Table:
        """The page (schema ENTRIES), by key: what is there at t, and the keys whose state is not known."""
        self._reduce()
        page = self._page[0]
        known = ~_unknown(page, self._t)
        alive = pc.and_(pc.is_valid(page["value"]), pa.array(~_expired(page, self._t)))
        value = pc.if_else(alive, page["value"], pa.scalar(None, pa.binary()))
        shown = page.set_column(2, "value", value).drop_columns("gap_ts").append_column("known", pa.array(known))
        return shown.filter(pc.or_(alive, pa.array(~known))).cast(ENTRIES).combine_chunks()

    def unknown_keys(self) -> pa.ChunkedArray:
        """The keys of the whole range whose state at t is not known, in order."""
        gaps = _reduced(self._gaps)
        return gaps["key"].filter(pa.array(_unknown(gaps, self._t)))

    def _reduce(self) -> None:
        page = _reduced(self._page)
        sizes = pc.add(pc.binary_length(page["key"]), pc.fill_null(pc.binary_length(page["value"]), 0))
        fitting = int(np.searchsorted(np.cumsum(sizes.to_numpy().astype(np.int64)), self._size, side="right"))
        count = min(self._limit, max(1, fitting))
        if count < page.num_rows:
            page = page.slice(0, count)
            self.last_key = page["key"][count - 1].as_py()
        self._page, self._held = [page], 0
        reduced, *added = self._gaps
        if sum(part.num_rows for part in added) > max(_HELD_ROWS, reduced.num_rows):
            self._gaps = [_reduced(self._gaps)]


def _entries(rows: pa.Table, t: np.uint64) -> pa.Table:
    """One entry (schema _ENTRY) for each row that says something of its key at t."""
    commit_ts, start_ts, flags = (rows[name].to_numpy() for name in ("commit_ts", "start_ts", "flags"))
    at_or_below = commit_ts <= t
    gap = ~at_or_below & (flags & FLAG_SCANNED != 0) & (start_ts < t)
    keep = at_or_below | gap
    versions = states(rows.filter(pa.array(keep)), _VERSION)
    is_version = at_or_below[keep]
    shown = pa.array(is_version)
    columns = [
        versions["key"],
        pa.array(np.where(is_version, commit_ts[keep], np.uint64(0))),
        pc.if_else(shown, versions["value"], pa.scalar(None, pa.binary())),
        pc.if_else(shown, versions["expire_ts"], pa.scalar(0, pa.uint64())),
        pa.array(np.where(is_version, _NONE, start_ts[keep])),
    ]
    return pa.Table.from_arrays(columns, schema=_ENTRY)


def _reduced(parts: list[pa.Table]) -> pa.Table:
    """One entry for each key, in key order: of its newest version, and the least start of its gaps."""
    whole = pa.concat_tables(parts).combine_chunks()
    if whole.num_rows < 2:
        return whole
    order = pc.sort_indices(whole, sort_keys=[("key", "ascending"), ("commit_ts", "descending")]).to_numpy()
    keys = whole["key"].take(pa.array(order))
    changes = pc.not_equal(keys.slice(1), keys.slice(0, len(keys) - 1)).to_numpy()
    first = np.flatnonzero(np.concatenate([[True], changes]))
    gap_ts = np.minimum.reduceat(whole["gap_ts"].to_numpy()[order], first)
    newest = whole.take(pa.array(order[first]))
    return newest.set_column(len(_ENTRY) - 1, _ENTRY.field("gap_ts"), pa.array(gap_ts)).combine_chunks()


def _unknown(entries: pa.Table, t: np.uint64) -> Mask:
    mask: Mask = (entries["gap_ts"].to_numpy() != _NONE) & (entries["commit_ts"].to_numpy() != t)
    return mask


def _expired(entries: pa.Table, t: np.uint64) -> Mask:
    """Which entries have expired at t, by t's own clock."""
    expire_ts = entries["expire_ts"].to_numpy()
    mask: Mask = (expire_ts != 0) & (expire_ts <= np.uint64(tso.physical_ms(int(t)) // 1000))
    return mask


def _without_values(entries: pa.Table) -> pa.Table:
    nothing = pa.nulls(entries.num_rows, pa.binary())
    return entries.set_column(2, _ENTRY.field("value"), nothing)
