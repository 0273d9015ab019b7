"""Counts what maintenance a tenant's log needs: files that may be merged, and the log since the newest base.

Three statements, each an aggregate over one tenant's rows. The counts decide whether a job is worth planning; the job
plans by itself, from the pieces as they are then.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, func, select

from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import bases, excluded_objects, of_asked_tenant, segments, tenant_ids
from tistream.catalog.log.exclusions import COUNTS
from tistream.catalog.rows.tenants import TaskKind
from tistream.ids import Tenant
from tistream.limits import COMPACTED_FILE_BYTES_TARGET, COMPACTED_RAW_BYTES_MAX, COMPACTED_ROWS_MAX, INT_MAX

_s = segments.c
_PIECES = (
    select(_s.object_key, _s.task_id, func.sum(_s.byte_length).label("stored_bytes"))
    .where(
        of_asked_tenant(segments),
        _s.kind == TaskKind.DATA,
        ~select(excluded_objects.c.object_key).where(excluded_objects.c.object_key == _s.object_key, COUNTS).exists(),
    )
    .group_by(_s.object_key, _s.task_id)
    .having(
        func.max(_s.hi_ts) <= bindparam("upto_ts"),
        2 * func.sum(_s.byte_length) < COMPACTED_FILE_BYTES_TARGET,
        2 * func.sum(_s.raw_length) < COMPACTED_RAW_BYTES_MAX,
        2 * func.sum(_s.row_count) < COMPACTED_ROWS_MAX,
    )
    .subquery()
)
_SMALL = (
    select(_PIECES.c.task_id, func.count().label("pieces"), func.sum(_PIECES.c.stored_bytes).label("stored_bytes"))
    .group_by(_PIECES.c.task_id)
    .order_by(_PIECES.c.task_id)
)
_NEWEST = select(bases.c.table_id, func.max(bases.c.ts).label("ts")).where(of_asked_tenant(bases))
_OF_TABLES = _NEWEST.group_by(bases.c.table_id).subquery()
_BASES = (
    select(
        func.max(bases.c.ts).label("ts"), func.count().label("number"), func.sum(bases.c.bytes).label("stored_bytes")
    )
    .select_from(bases.join(_OF_TABLES, (_OF_TABLES.c.table_id == bases.c.table_id) & (_OF_TABLES.c.ts == bases.c.ts)))
    .where(of_asked_tenant(bases))
)
_TAIL = select(func.sum(_s.byte_length)).where(
    of_asked_tenant(segments),
    _s.kind == TaskKind.DATA,
    _s.hi_ts > bindparam("after_ts"),
    _s.lo_ts <= bindparam("upto_ts"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallPieces:
    """The pieces of a task that are not full: compaction may merge them."""

    task_id: int
    pieces: int
    stored_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseFigures:
    """The newest bases of all tables."""

    ts: int  #: of the newest one; 0 without one
    number: int
    stored_bytes: int


def small_pieces(catalog: Catalog, tenant: Tenant, *, upto_ts: int) -> list[SmallPieces]:
    """Of each data task with any, the pieces that lie entirely at or below `upto_ts`, are not full, and are not
    excluded from merges."""
    with catalog.reading() as conn:
        return [
            SmallPieces(task_id=int(row.task_id), pieces=int(row.pieces), stored_bytes=int(row.stored_bytes))
            for row in conn.execute(_SMALL, {**tenant_ids(tenant), "upto_ts": min(upto_ts, INT_MAX)})
        ]


def base_figures(catalog: Catalog, tenant: Tenant) -> BaseFigures:
    """Count the newest base of each table."""
    with catalog.reading() as conn:
        row = conn.execute(_BASES, tenant_ids(tenant)).one()
    return BaseFigures(ts=int(row.ts or 0), number=int(row.number), stored_bytes=int(row.stored_bytes or 0))


def tail_bytes(catalog: Catalog, tenant: Tenant, *, after_ts: int, upto_ts: int) -> int:
    """Stored bytes of the log that may hold changes in (`after_ts`, `upto_ts`]."""
    parameters = {**tenant_ids(tenant), "after_ts": min(after_ts, INT_MAX), "upto_ts": min(upto_ts, INT_MAX)}
    with catalog.reading() as conn:
        return int(conn.execute(_TAIL, parameters).scalar() or 0)
