"""Segments, and the object that holds each."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum

from tistream.codec.compacted_file import NO_FOOTER, Footer
from tistream.codec.segment_file import SegmentInfo

SEGMENT_FIELDS = [field.name for field in dataclasses.fields(SegmentInfo)]


class SegmentFormat(StrEnum):
    """How a segment's bytes are encoded."""

    SEGMENT = "segment"  #: of a segment file
    PARQUET = "parquet"  #: a row group of a compacted file


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentRow(SegmentInfo):
    """A segment and the object that holds it. In a listing of the log `kind` is that of the task."""

    object_key: str
    format: SegmentFormat = SegmentFormat.SEGMENT
    footer: Footer = NO_FOOTER  #: of a compacted file


def segment_in(object_key: str, info: SegmentInfo) -> SegmentRow:
    """The segment that the footer of this file describes."""
    return SegmentRow(object_key=object_key, **{name: getattr(info, name) for name in SEGMENT_FIELDS})
