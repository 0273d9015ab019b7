"""Cuts a range of keys into parts, at boundaries of the destination's regions: one part for each lane.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from tistream.keyrange import KeyRange, end_before


def cut_ranges(boundaries: Iterable[bytes], wanted: KeyRange, parts: int) -> list[KeyRange]:
    """`wanted` as up to `parts` consecutive ranges with about as many regions each; fewer where regions are fewer.
    `boundaries`: first keys of regions, in any order."""
    inside = sorted({key for key in boundaries if key > wanted.start and end_before(key, wanted.end)})
    regions = len(inside) + 1
    parts = max(min(parts, regions), 1)
    at = [wanted.start, *(inside[i * regions // parts - 1] for i in range(1, parts)), wanted.end]
    return [KeyRange(start, end) for start, end in pairwise(at)]
