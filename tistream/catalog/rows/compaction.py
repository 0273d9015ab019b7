"""What a compaction reads and writes."""

from __future__ import annotations

from dataclasses import dataclass

from tistream.codec.compacted_file import Footer
from tistream.codec.segment_file import SegmentInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """All live segments of one task in one object."""

    object_key: str
    task_id: int
    segments: int  #: how many
    rows: int
    stored_bytes: int
    raw_bytes: int = 0  #: unpacked; 0 = not known
    lo_ts: int
    hi_ts: int  #: inclusive


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A compacted file that replaces inputs."""

    object_key: str
    object_bytes: int
    task_id: int
    groups: tuple[SegmentInfo, ...]
    footer: Footer
    collected: int = 0  #: rows of the inputs that garbage collection left out
