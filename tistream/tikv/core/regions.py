"""Regions as PD lists them, and the two forms of their boundaries.

PD and TiKV write a boundary as the memcomparable bytes of a user key, without a timestamp (region form); an empty start
is minus infinity, an empty end plus infinity. TiStream uses plain user keys elsewhere. The memcomparable code preserves
order, so "the smallest plain key whose code is at or above the boundary" converts any boundary, even bytes that are no
valid code (a region split by hand): a key lies in the region in one form exactly if it does in the other, and
neighbours still touch.

`Pd` is the part of the placement driver that a source needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from tistream.codec.memcomparable import GROUP, encode_bytes
from tistream.keyrange import KeyRange
from tistream.tikv.core.pd_messages import Region, Store

_PAGE_REGIONS = 1024
_FULL = 0xFF  #: marker of a full group that another one follows
_NO_PAD_MIN = 0xFF - GROUP  #: marker of an empty group


class Pd(Protocol):
    """The placement driver. Every request raises StoreUnavailable when no member answers."""

    @property
    def cluster_id(self) -> int: ...

    def tso(self) -> int:
        """A timestamp above all earlier ones."""
        ...

    def scan_regions(self, start: bytes, end: bytes, limit: int) -> Sequence[Region]:
        """Up to `limit` regions that intersect [start, end) (region form), in key order."""
        ...

    def stores(self) -> Sequence[Store]: ...


def regions_of(pd: Pd, part: KeyRange) -> list[Region]:
    """All regions of a range, as PD lists them, read in pages. A short page need not be the last: for a keyspace,
    regions outside it are omitted."""
    at, end = region_form(part.start), region_form(part.end)
    regions: list[Region] = []
    while True:
        page = pd.scan_regions(at, end, _PAGE_REGIONS)
        regions += page
        if not page or not page[-1].end or page[-1].end <= at or (end and page[-1].end >= end):
            return regions
        at = page[-1].end


def first_gap(part: KeyRange, regions: Sequence[Region]) -> bytes | None:
    """The first boundary in `part`, in region form, where no region with a leader starts; None = no gap."""
    at, end = region_form(part.start), region_form(part.end)
    for region in regions:
        if region.start > at or not region.leader_store_id:
            return at
        if not region.end or (end and region.end >= end):
            return None
        at = max(at, region.end)
    return at


def plain_range(region: Region) -> KeyRange | None:
    """The region's range in plain keys; None when no key lies in it."""
    start, end = plain_key(region.start), plain_key(region.end)
    return None if region.end and end <= start else KeyRange(start, end if region.end else b"")


def region_form(key: bytes) -> bytes:
    """The boundary at a plain key; empty stays empty (infinity)."""
    return encode_bytes(key) if key else b""


def plain_key(boundary: bytes) -> bytes:
    """The smallest plain key whose memcomparable bytes are at or above `boundary`."""
    prefix = b""
    while len(boundary) > GROUP and boundary[GROUP] == _FULL:
        prefix, boundary = prefix + boundary[:GROUP], boundary[GROUP + 1 :]
    body = boundary[:GROUP].ljust(GROUP, b"\0")
    size = len(body.rstrip(b"\0"))
    if len(boundary) > GROUP:
        needed = boundary[GROUP] - _NO_PAD_MIN + (len(boundary) > GROUP + 1)
        size = min(max(size, needed), GROUP)
    return prefix + body[:size]
