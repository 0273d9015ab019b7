"""Who serves which keys at a line of the recording, and the regions that PD names for them.

For each key it is the recorded registration alive at that line, else the next one that serves, else the last one. Pure.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from simulator.playback.recording import NEVER, KnownRegion, Recording, Registration
from tistream.keyrange import KeyRange, gaps
from tistream.tikv.core import wire

_MADE_UP = 1 << 40  #: ids from here on belong to regions that are made up


@dataclass(frozen=True, slots=True)
class Tile:
    """A region as PD shows it."""

    region: KnownRegion
    range: KeyRange  #: plain keys; the region's own, or its rest after the tile before
    store_id: int  #: that leads it


class PlaybackPlan:
    """The plan at any line; asked for in the order of the lines."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._serving = [r for r in recording.registrations if r.serves]
        self._pieces: list[tuple[KeyRange, Registration]] = []
        self._until = -1  # the pieces hold up to this line
        self._known: dict[tuple[int, int], list[KnownRegion]] = {}
        for region in recording.regions:
            self._known.setdefault((region.region_id, region.version), []).append(region)

    def pieces(self, line: int) -> list[tuple[KeyRange, Registration]]:
        """Disjoint ranges in key order, and who serves each of them before `line` is played."""
        if line > self._until:
            self._pieces = self._divide(line)
            self._until = min((r.end for _, r in self._pieces if r.end >= line), default=NEVER)
        return self._pieces

    def tiles(self, line: int, start: bytes, end: bytes) -> Iterator[Tile]:
        """The regions that touch [start, end), in key order, without a gap."""
        pieces = self.pieces(line)
        regions = [(self.region_of(r), r.store_id) for _, r in pieces]
        at, first = start, True
        while True:
            serving = next((r for key_range, r in pieces if at in key_range), None)
            if serving is not None:
                serving = self._oldest(serving, at, pieces)
                region, store_id = self.region_of(serving), serving.store_id
            else:
                holder = next((known for known in regions if at in known[0].range), None)
                region, store_id = holder or self._made_up(at, [r.range for r, _ in regions])
            shown = region.range if first else KeyRange(max(at, region.range.start), region.range.end)
            yield Tile(region, shown, store_id)
            if not region.range.end or (end and region.range.end >= end):
                return
            at, first = region.range.end, False

    def region_of(self, registration: Registration) -> KnownRegion:
        """PD's answer about the region when it was registered."""
        known = self._known[registration.region_id, registration.version]
        before = [k for k in known if k.line < registration.begin] or known
        return next((k for k in reversed(before) if k.peer_on(registration.store_id)), before[-1])

    def is_made_up(self, region_id: int) -> bool:
        """Whether the region is in a range that was never requested from PD."""
        return region_id >= _MADE_UP

    def _oldest(self, serving: Registration, at: bytes, pieces: list[tuple[KeyRange, Registration]]) -> Registration:
        """The registration of the oldest version of that region which serves now and has the key. A client that has
        seen a newer version of a region takes no older one."""
        same = [r for _, r in pieces if r.region_id == serving.region_id and r.version < serving.version]
        return min((r for r in same if at in self.region_of(r).range), key=lambda r: r.version, default=serving)

    def _divide(self, line: int) -> list[tuple[KeyRange, Registration]]:
        out: list[tuple[KeyRange, Registration]] = []
        free = list(self._recording.ranges)
        coming = (r for r in self._serving if r.end >= line)
        over = sorted((r for r in self._serving if r.end < line), key=lambda r: -r.end)
        for registration in (*coming, *over):
            if not free:
                break
            taken = [part for part in (f.intersect(registration.range) for f in free) if part is not None]
            if taken:
                out += [(part, registration) for part in taken]
                free = [rest for f in free for rest in gaps(f, [registration.range])]
        return sorted(out, key=lambda piece: piece[0].start)

    def _made_up(self, key: bytes, known: list[KeyRange]) -> tuple[KnownRegion, int]:
        start = max((r.end for r in known if r.end and r.end <= key), default=b"")
        end = min((r.start for r in known if r.start > key), default=b"")
        region_id = _MADE_UP + zlib.crc32(start)
        store_id = self._recording.registrations[0].store_id
        peer = wire.Peer(id=region_id, store_id=store_id)
        return (
            KnownRegion(line=0, region_id=region_id, conf_ver=1, version=1, range=KeyRange(start, end), peers=(peer,)),
            store_id,
        )
