"""Pieces: the parts of the key space to register with one store. A piece is a region's part of one wanted range.

A region with many wanted parts (small tables without their indexes) is one piece from the first part to the last,
because each registration costs the store a scan and memory. Rows between the wanted parts are removed here
(`wanted_rows`).

A piece waits until it is due, or is registered. Pieces never overlap. Lists from PD change them so:

- a region led by this store adds its pieces, except where they overlap a registered one: the store itself ends outdated
  registrations, and knows better than PD;
- among waiting pieces the higher region version wins; a later list may be older;
- a region led by another store removes waiting pieces, never registered ones.

Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import islice

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from sortedcontainers import SortedDict

from pusher.tikv.core.opening import OpeningPrewrites
from tistream.keyrange import KeyRange, gaps
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.core.regions import plain_range

PARTS_MAX = 8  #: a region with more wanted parts is one piece


class Phase(IntEnum):
    WAITING = 0
    SCANNING = 1  #: registered, not INITIALIZED
    SCANNED = 2  #: INITIALIZED, no TSO fetched since
    READY = 3
    OVER = 4


@dataclass(slots=True, kw_only=True, eq=False)
class Piece:
    """One part of one region. The fields after `due` belong to its registration."""

    region_id: int
    conf_ver: int
    version: int
    range: KeyRange
    due: float = 0.0  #: when to register it
    phase: Phase = Phase.WAITING
    request_id: int = 0
    subscription: int = 0
    checkpoint_ts: int = 0
    opened_at: float = 0.0
    opening: OpeningPrewrites = field(default_factory=OpeningPrewrites)
    entries: list[bytes] = field(default_factory=list)  #: live rows, not decoded
    has_gaps: bool = False  #: not everything in `range` is wanted

    def requeued(self, due: float) -> Piece:
        """The same part, waiting to be registered."""
        return Piece(
            region_id=self.region_id,
            conf_ver=self.conf_ver,
            version=self.version,
            range=self.range,
            due=due,
            has_gaps=self.has_gaps,
        )


class Pieces:
    """The pieces of one store, waiting and registered."""

    def __init__(self, ranges: Sequence[KeyRange]) -> None:
        self.wanted = tuple(ranges)  #: in key order, apart from each other
        self._starts = [w.start for w in self.wanted]
        self._bounds = (pl.Series(self._starts, dtype=pl.Binary), pa.array([w.end for w in ranges], pa.binary()))
        self._by_start: SortedDict = SortedDict()  # start of the range -> piece
        self._whole: dict[int, tuple[int, bytes, bytes]] = {}  # regions with all parts present, as listed by PD
        self._waiting = 0

    def __iter__(self) -> Iterator[Piece]:
        return iter(list(self._by_start.values()))

    def parts(self, region_range: KeyRange) -> list[KeyRange]:
        """The wanted parts of a range."""
        at = max(0, bisect_right(self._starts, region_range.start) - 1)
        key_ranges = []
        for wanted in islice(self.wanted, at, None):
            if region_range.end and wanted.start >= region_range.end:
                break
            if part := wanted.intersect(region_range):
                key_ranges.append(part)
        return key_ranges

    def _to_register(self, region_range: KeyRange) -> list[KeyRange]:
        """The parts to register of a region: its wanted parts, or all from the first to the last."""
        parts = self.parts(region_range)
        return parts if len(parts) <= PARTS_MAX else [KeyRange(parts[0].start, parts[-1].end)]

    def _is_wanted(self, part: KeyRange) -> bool:
        return any(wanted.covers(part) for wanted in self.parts(part)[:1])

    def wanted_rows(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows (schema change.ROWS) whose keys are wanted."""
        starts, ends = self._bounds
        keys = rows.column("key")
        at = starts.search_sorted(pl.Series(keys), side="right").to_numpy().astype(np.int64) - 1
        end = ends.take(pa.array(np.maximum(at, 0)))
        inside = pc.or_(pc.equal(end, b""), pc.less(keys, end))
        return rows.filter(pc.and_(inside, pa.array(at >= 0)))

    def overlapping(self, part: KeyRange) -> list[Piece]:
        first = self._by_start.bisect_right(part.start) - 1
        pieces = []
        for start in self._by_start.irange(self._by_start.peekitem(first)[0] if first >= 0 else None):
            if part.end and start >= part.end:
                break
            piece = self._by_start[start]
            if piece.range.intersect(part):
                pieces.append(piece)
        return pieces

    def led_here(self, region: Region, due: float) -> list[Piece]:
        """This store leads the region; returns the new waiting pieces."""
        listed = (region.version, region.start, region.end)
        if self._whole.get(region.id) == listed:
            return []
        region_range = plain_range(region)
        new, complete = [], True
        for part in self._to_register(region_range) if region_range else ():
            cached = self._by_start.get(part.start)
            if cached and cached.range == part and (cached.region_id, cached.version) == (region.id, region.version):
                continue
            before = self.overlapping(part)
            if any(p.phase is not Phase.WAITING or p.version > region.version for p in before):
                complete = False
                continue
            for piece in before:
                self.remove(piece)
            piece = Piece(
                region_id=region.id,
                conf_ver=region.conf_ver,
                version=region.version,
                range=part,
                due=due,
                has_gaps=not self._is_wanted(part),
            )
            self.add(piece)
            new.append(piece)
        if complete:
            self._whole[region.id] = listed
        return new

    def led_elsewhere(self, region: Region) -> None:
        """Another store leads the region."""
        region_range = plain_range(region) if self._waiting else None
        for part in self.parts(region_range) if region_range else ():
            for piece in self.overlapping(part):
                if piece.phase is Phase.WAITING and piece.version <= region.version:
                    self.remove(piece)

    def add(self, piece: Piece) -> None:
        self._by_start[piece.range.start] = piece
        self._waiting += 1

    def registered(self, piece: Piece) -> None:
        piece.phase = Phase.SCANNING
        self._waiting -= 1

    def remove(self, piece: Piece) -> None:
        del self._by_start[piece.range.start]
        self._whole.pop(piece.region_id, None)
        self._waiting -= piece.phase is Phase.WAITING
        piece.phase = Phase.OVER

    def missing(self, range_: KeyRange, others: Iterable[KeyRange]) -> list[KeyRange]:
        """The wanted parts of `range_` that are neither covered by a piece nor in `others`."""
        out = []
        others = list(others)
        for part in self.parts(range_):
            out += gaps(part, [*(p.range for p in self.overlapping(part)), *others])
        return out
