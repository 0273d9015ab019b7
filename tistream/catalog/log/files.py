"""Listings of the committed log as files, with the figures that readers choose by.

A listing is one statement, hence one state of the catalog, before or after a compaction's commit: every row of the log
lies in one of its files, once. Figures cover the live segments of a file: in a file of several tasks a compaction may
have replaced some.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from sqlalchemy import bindparam, func, select

from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import objects, of_asked_tenant, segments, tenant_ids
from tistream.catalog.log.committed import touches
from tistream.catalog.log.objects import ObjectKind, ObjectState
from tistream.catalog.rows.segments import SegmentFormat
from tistream.catalog.rows.tenants import TaskKind
from tistream.ids import Tenant
from tistream.limits import INT_MAX

_s, _o = segments.c, objects.c
_OF_THE_LOG = (ObjectKind.COMMITTED, ObjectKind.COMPACTED)
_FILES = (
    select(
        _s.object_key,
        _s.format,
        _o.bytes,
        func.count().label("segments"),
        func.sum(_s.row_count).label("row_count"),
        func.min(_s.lo_ts).label("lo_ts"),
        func.max(_s.hi_ts).label("hi_ts"),
        func.min(_s.start_key).label("start_key"),
        func.max(_s.end_key).label("end_key"),
        func.min(_s.table_lo).label("table_lo"),
        func.max(_s.table_hi).label("table_hi"),
    )
    .select_from(segments.join(objects, _o.object_key == _s.object_key))
    .where(of_asked_tenant(segments), _s.kind == TaskKind.DATA, _o.state == ObjectState.LIVE)
    .group_by(_s.object_key, _s.format, _o.bytes)
    .having(func.max(_s.hi_ts) > bindparam("after_ts"), func.min(_s.lo_ts) <= bindparam("upto_ts"))
    .order_by(func.min(_s.lo_ts), func.max(_s.hi_ts), _s.object_key)
    .limit(bindparam("at_most"))
)
_THERE = select(_o.bytes).where(
    of_asked_tenant(objects),
    _o.object_key == bindparam("asked_key"),
    _o.kind.in_(_OF_THE_LOG),
    _o.state != ObjectState.DEAD,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRow:
    """An object that holds a part of the log."""

    object_key: str
    format: SegmentFormat
    stored_bytes: int  #: of the whole object
    segments: int
    rows: int
    lo_ts: int  #: smallest commit_ts
    hi_ts: int  #: largest commit_ts, inclusive
    start_key: bytes  #: smallest key
    end_key: bytes  #: largest key, inclusive
    table_lo: int
    table_hi: int  #: inclusive


def list_files(
    catalog: Catalog,
    tenant: Tenant,
    *,
    after_ts: int,
    upto_ts: int,
    table_ids: Collection[int] | None = None,
    limit: int,
) -> list[FileRow]:
    """Live files that may hold changes in (after_ts, upto_ts], by (lo_ts, hi_ts, object_key); at most `limit`.

    `table_ids` narrows to files of which a segment may hold one of the tables.
    """
    if table_ids is not None and not table_ids:
        return []
    query = _FILES
    if table_ids is not None:
        inner = segments.alias()
        holds = select(inner.c.object_key).where(
            inner.c.object_key == _s.object_key, touches(table_ids, inner.c.table_lo, inner.c.table_hi)
        )
        query = query.where(holds.exists())
    asked = {"after_ts": min(after_ts, INT_MAX), "upto_ts": min(upto_ts, INT_MAX), "at_most": limit}
    with catalog.reading() as conn:
        return [
            FileRow(
                object_key=row.object_key,
                format=SegmentFormat(row.format),
                stored_bytes=int(row.bytes),
                segments=int(row.segments),
                rows=int(row.row_count),
                lo_ts=int(row.lo_ts),
                hi_ts=int(row.hi_ts),
                start_key=bytes(row.start_key),
                end_key=bytes(row.end_key),
                table_lo=int(row.table_lo),
                table_hi=int(row.table_hi),
            )
            for row in conn.execute(query, {**tenant_ids(tenant), **asked})
        ]


def file_bytes(catalog: Catalog, tenant: Tenant, object_key: str) -> int | None:
    """Bytes of a file of the tenant's log that is not collected yet; else None."""
    with catalog.reading() as conn:
        size = conn.execute(_THERE, {**tenant_ids(tenant), "asked_key": object_key}).scalar()
        return None if size is None else int(size)
