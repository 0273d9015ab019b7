"""Reads a page inside the changes of one commit_ts, which are too many for one page (see `reading.core.inside`).

Segments are read by the places that they hold, the lowest first, each one when it is needed: what is held is the page
and the rows of segments that overlap at its end. So all pages together read the commit a small number of times, however
many there are. A page also ends after a number of bytes read, whether it has rows or not.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from reading.core import page_rows
from reading.core.inside import (
    NO_CHANGE,
    SECOND,
    UPDATE_RANK,
    Inside,
    Place,
    from_place,
    place_of,
    ranks_of,
)
from reading.core.page_rows import bytes_of
from reading.filters import Selected
from reading.rows.decode import Quarantined
from tistream.catalog.rows.segments import SegmentRow
from tistream.model import change

_LOOKED_AT_BYTES_MAX = 256 << 20  # unpacked, of segments that are read for one page
_PLACE = ["table_id", "key"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How a reader orders and selects the rows of a commit."""

    mode: str  #: names all of the rest, and the filter
    ranked: bool  #: by rank; else undecoded rows, by key
    splits: bool  #: updates of unique keys are delivered as a delete and an insert
    select: Callable[[pa.Table], Selected]  #: the rows (schema change.COMMITTED) that pass
    sizes: Callable[[pa.Table], npt.NDArray[np.int64]]  #: bytes of the body that each row becomes, estimated


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """How large a page may be; one row always fits."""

    rows: int
    bytes: int  #: of keys and values, and of the body


@dataclass(frozen=True, slots=True, kw_only=True)
class InsidePage:
    """A page inside a commit."""

    rows: pa.Table  #: schema change.COMMITTED, by (start_ts, table_id, rank, key)
    second: pa.Table  #: split updates; only their inserts belong to the page
    quarantined: tuple[Quarantined, ...]  #: rows that the filter could not ask
    next: Inside | None  #: None: the commit is complete


def read_inside(
    at: Inside,
    segments: Sequence[SegmentRow],
    fetch: Callable[[SegmentRow], pa.Table],
    manner: Manner,
    room: Room,
) -> InsidePage:
    """The page at `at`. `segments` are all that may hold rows of the commit; `fetch` gives those that one has."""
    walk = _Walk(at, segments, fetch, manner, room)
    following = walk.run()
    nothing = change.COMMITTED.empty_table()
    return InsidePage(
        rows=pa.concat_tables([nothing, *walk.rows]),
        second=pa.concat_tables([nothing, *walk.second]),
        quarantined=tuple(walk.quarantined),
        next=following,
    )


class _Walk:
    """One page as it is read. `at` is the position that it has reached."""

    def __init__(
        self,
        at: Inside,
        segments: Sequence[SegmentRow],
        fetch: Callable[[SegmentRow], pa.Table],
        manner: Manner,
        room: Room,
    ) -> None:
        self._at = at
        self._segments = sorted(segments, key=_first_place)
        self._fetch, self._manner, self._room = fetch, manner, room
        self._rows_left, self._bytes_left, self._looked_at = room.rows, room.bytes, 0
        self._is_full = False
        self._kept: OrderedDict[tuple[str, int], Selected] = OrderedDict()  # small tables of one segment need it again
        self._kept_bytes = 0
        self.rows: list[pa.Table] = []
        self.second: list[pa.Table] = []
        self.quarantined: list[Quarantined] = []

    def run(self) -> Inside | None:
        """Read on until the page is full; where the next one begins."""
        following: Inside | None = self._at
        while following is not None and not self._is_full:
            self._at = following
            following = self._pass() if following.start_ts else self._look_up()
        return following

    def _look_up(self) -> Inside | None:
        """Collect the ranks and the first transaction."""
        for _, upto in self._chunks():
            if upto is not None and self._goes_beyond(upto):
                return self._at
        return self._at.next_transaction(splits=self._manner.splits)

    def _pass(self) -> Inside | None:
        """Take the rows of one rank of one table."""
        at = self._at
        wanted = UPDATE_RANK if at.rank == SECOND else at.rank
        table_id = at.table_id if at.rank != at.first_rank or at.key else None
        for rows, upto in self._chunks():
            ids = rows["table_id"].to_numpy()
            if table_id is None and len(ids):
                table_id = int(ids[0])
            if table_id is not None:
                mine = page_rows.only(rows, ids == table_id)
                mine = page_rows.only(mine, ranks_of(mine, ranked=self._manner.ranked) == wanted)
                if (stop := self._take(mine, self.second if at.rank == SECOND else self.rows)) is not None:
                    return self._at.at(stop)
                if upto is None or upto[0] > table_id or (len(ids) and ids[-1] > table_id):
                    return self._at.after_rank(table_id)
            if upto is None:
                return self._at.next_transaction(splits=self._manner.splits)
            if self._goes_beyond(upto):
                break
        return self._at

    def _goes_beyond(self, place: Place) -> bool:
        """Move to the place; whether the page has read enough."""
        self._at = self._at.at(place)
        self._is_full = self._looked_at >= _LOOKED_AT_BYTES_MAX
        return self._is_full

    def _take(self, rows: pa.Table, into: list[pa.Table]) -> Place | None:
        """Add the rows that fit; the place of the first one that does not."""
        if not rows.num_rows:
            return None
        reached = np.cumsum(np.maximum(bytes_of(rows), self._manner.sizes(rows)))
        fit = min(int(np.searchsorted(reached, self._bytes_left, side="right")), self._rows_left)
        if not self.rows and not self.second:
            fit = max(1, fit)
        if fit:
            into.append(rows.slice(0, fit))
            self._rows_left -= fit
            self._bytes_left -= int(reached[fit - 1])
        if fit == rows.num_rows:
            return None
        self._is_full = True
        return place_of(rows, fit)

    def _chunks(self) -> Iterator[tuple[pa.Table, Place | None]]:
        """(rows of the transaction below a place, that place), on from the position; None after the last row. It may
        end earlier: then continue from the last place."""
        place = self._at.place
        held, bad, ceiling = change.COMMITTED.empty_table(), list[Quarantined](), None
        segments = [s for s in self._segments if _reaches(s, place)]
        for n, segment in enumerate(segments):
            following = _first_place(segments[n + 1]) if n + 1 < len(segments) else None
            chosen = self._chosen(segment)
            self._at = self._at.seen(chosen.rows, ranks_of(chosen.rows, ranked=self._manner.ranked))
            if self._at.start_ts:
                more = self._of_transaction(chosen.rows, place)
                held, ceiling = self._lowest(pa.concat_tables([held, more]) if held.num_rows else more, ceiling)
            else:
                bad += [q for q in chosen.quarantined if (q.table_id, q.key) >= place]
            upto = following if ceiling is None or (following is not None and following < ceiling) else ceiling
            if upto is not None and upto <= place:
                continue
            later = np.zeros(held.num_rows, np.bool_) if upto is None else from_place(held, upto)
            self.quarantined += [q for q in bad if upto is None or (q.table_id, q.key) < upto]
            bad = [q for q in bad if upto is not None and (q.table_id, q.key) >= upto]
            yield page_rows.only(held, ~later), upto
            if upto is not None and upto == ceiling:
                return
            held = page_rows.only(held, later)
        if not segments:
            yield held, None

    def _of_transaction(self, rows: pa.Table, place: Place) -> pa.Table:
        keep = (rows["start_ts"].to_numpy() == np.uint64(self._at.start_ts)) & from_place(rows, place)
        return page_rows.only(rows, keep)

    def _lowest(self, held: pa.Table, ceiling: Place | None) -> tuple[pa.Table, Place | None]:
        """The rows by place, and the place from which on they are left out: they may be many where segments overlap."""
        if ceiling is not None:
            held = page_rows.only(held, ~from_place(held, ceiling))
        if held["key"].num_chunks > 1:
            order = pc.sort_indices(held.select(_PLACE), sort_keys=[(name, "ascending") for name in _PLACE])
            held = held.take(order).combine_chunks()
        if held.nbytes <= 2 * self._room.bytes:
            return held, ceiling
        fit = max(1, int(np.searchsorted(np.cumsum(bytes_of(held)), self._room.bytes, side="right")))
        return (held, ceiling) if fit >= held.num_rows else (held.slice(0, fit), place_of(held, fit))

    def _chosen(self, segment: SegmentRow) -> Selected:
        """The rows of the commit that pass and change something."""
        name = segment.object_key, segment.number
        if (kept := self._kept.get(name)) is not None:
            return kept
        rows = self._fetch(segment)
        self._looked_at += max(segment.raw_length, segment.length)
        chosen = self._manner.select(rows)
        if self._manner.ranked:
            keep = ranks_of(chosen.rows, ranked=True) != NO_CHANGE
            chosen = replace(chosen, rows=page_rows.only(chosen.rows, keep))
        if chosen.rows.nbytes <= self._room.bytes:
            self._kept[name] = chosen
            self._kept_bytes += chosen.rows.nbytes
            while self._kept_bytes > self._room.bytes:
                self._kept_bytes -= self._kept.popitem(last=False)[1].rows.nbytes
        return chosen


def _first_place(segment: SegmentRow) -> Place:
    """The lowest place that the segment may hold. Its keys are those of one table, or of several."""
    return segment.table_lo, segment.start_key if segment.table_lo == segment.table_hi else b""


def _reaches(segment: SegmentRow, place: Place) -> bool:
    """Whether the segment may hold something at or above the place."""
    if segment.table_lo != segment.table_hi:
        return segment.table_hi >= place[0]
    return (segment.table_hi, segment.end_key) >= place
