"""Segments as rows of the catalog: of the log (`segments`), of seeds (`seed_segments`), of bases (`base_segments`)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Table

from tistream.codec.compacted_file import NO_FOOTER, Footer
from tistream.codec.segment_file import SegmentInfo
from tistream.ids import Tenant

_INFO = [field.name for field in dataclasses.fields(SegmentInfo)]
_COLUMNS = {"number": "segment_no", "rows": "row_count", "offset": "byte_offset", "length": "byte_length"}


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
    return SegmentRow(object_key=object_key, **{name: getattr(info, name) for name in _INFO})


def segment_values(table: Table, tenant: Tenant, info: SegmentInfo, **others: Any) -> dict[str, Any]:
    """The columns of a table for a segment, and `others`."""
    columns = {_COLUMNS.get(name, name): getattr(info, name) for name in _INFO}
    ids = {"cluster_id": tenant.cluster_id, "tenant_id": tenant.tenant_id}
    return {**{name: value for name, value in columns.items() if name in table.c}, **ids, **others}


def segment_of_log(row: Any) -> SegmentRow:
    """Convert a row of `segments`."""
    return SegmentRow(
        number=row.segment_no,
        kind=row.kind,
        task_id=row.task_id,
        table_lo=row.table_lo,
        table_hi=row.table_hi,
        start_key=row.start_key,
        end_key=row.end_key,
        lo_ts=row.lo_ts,
        hi_ts=row.hi_ts,
        rows=row.row_count,
        offset=row.byte_offset,
        length=row.byte_length,
        raw_length=row.raw_length,
        crc=row.crc,
        object_key=row.object_key,
        format=SegmentFormat(row.format),
        footer=Footer(offset=row.footer_offset, length=row.footer_length, crc=row.footer_crc),
    )


def segment_of_table(row: Any) -> SegmentRow:
    """Convert a row of `seed_segments` or `base_segments`."""
    return SegmentRow(
        number=row.segment_no,
        kind="seed",
        table_lo=row.table_id,
        table_hi=row.table_id,
        start_key=row.start_key,
        end_key=row.end_key,
        rows=row.row_count,
        offset=row.byte_offset,
        length=row.byte_length,
        crc=row.crc,
        object_key=row.object_key,
    )
