"""Segments as rows of the catalog: of the log (`segments`), of seeds (`seed_segments`), of bases (`base_segments`)."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Table

from tistream.catalog.rows.segments import SEGMENT_FIELDS, SegmentFormat, SegmentRow
from tistream.codec.compacted_file import Footer
from tistream.codec.segment_file import SegmentInfo
from tistream.ids import Tenant

_COLUMNS = {"number": "segment_no", "rows": "row_count", "offset": "byte_offset", "length": "byte_length"}


def segment_values(table: Table, tenant: Tenant, info: SegmentInfo, **others: Any) -> dict[str, Any]:
    """The columns of a table for a segment, and `others`."""
    columns = {_COLUMNS.get(name, name): getattr(info, name) for name in SEGMENT_FIELDS}
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
