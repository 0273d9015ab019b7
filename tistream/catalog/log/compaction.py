"""Compaction in the catalog: pieces to compact, and their commit.

The unit is a piece: all segments that one task has in one object. `pieces` is one statement, hence one state of the
catalog. `commit_compaction` is one transaction:

    lock the inputs' objects, in order of key      -> all live?
    count and delete the segments of every piece   -> as many as were read?
    insert the outputs, live, and their segments
    take the next replacement number                      (locked until COMMIT: numbers are committed in order)
    objects without a segment left -> superseded, with that number

Each statement has many pieces, so the counter is locked for a few statements. A job with many groups commits some of
them at a time.

Either all inputs are replaced by all outputs or nothing happens, so one listing sees every row of the log once, before
or after the commit. An object with segments of another task stays live. `durable_ts` does not change: compaction moves
rows, and readers see the same log. Garbage collection leaves out rows at or below the floor only, which no reader is
given.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import BindParameter, Connection, and_, bindparam, func, or_, select
from sqlalchemy.sql.elements import ColumnElement

from tistream.catalog.database.engine import Catalog, GuardFailed
from tistream.catalog.database.tables import objects, of_asked_tenant, of_tenant, segments, tasks, tenant_ids
from tistream.catalog.log.objects import ObjectKind, ObjectState, in_chunks, insert_live, replace_unnamed
from tistream.catalog.log.page import span_class
from tistream.catalog.log.segments import segment_of_log, segment_values
from tistream.catalog.rows.compaction import Output, Piece
from tistream.catalog.rows.segments import SegmentFormat, SegmentRow
from tistream.catalog.rows.tenants import TaskKind
from tistream.catalog.tenancy.served import edge_of_asked_tenant
from tistream.codec.segment_file import SegmentInfo
from tistream.errors import invariant
from tistream.ids import Tenant
from tistream.limits import INT_MAX

_s, _o = segments.c, objects.c


def _behind(lo_ts: ColumnElement[int], *name: ColumnElement[Any]) -> ColumnElement[bool]:
    """Pieces after the one given by the parameters, in the order of `pieces`."""
    key: BindParameter[Any] = bindparam("after_key")
    task: BindParameter[Any] = bindparam("after_task")
    same = and_(lo_ts == bindparam("after_lo"), or_(name[0] > key, and_(name[0] == key, name[1] > task)))
    return or_(lo_ts > bindparam("after_lo"), same)


_EDGE = edge_of_asked_tenant(tasks.c.kind == TaskKind.DATA)
_PIECES = (
    select(
        _s.object_key,
        _s.task_id,
        func.count().label("segments"),
        func.sum(_s.row_count).label("row_count"),
        func.sum(_s.byte_length).label("stored_bytes"),
        func.sum(_s.raw_length).label("raw_bytes"),
        func.min(_s.lo_ts).label("lo_ts"),
        func.max(_s.hi_ts).label("hi_ts"),
    )
    .select_from(segments.join(objects, _o.object_key == _s.object_key))
    .where(of_asked_tenant(segments), _s.kind == TaskKind.DATA, _o.state == ObjectState.LIVE)
    .group_by(_s.object_key, _s.task_id)
    .having(func.max(_s.hi_ts) <= bindparam("upto_ts"), _behind(func.min(_s.lo_ts), _s.object_key, _s.task_id))
    .order_by(func.min(_s.lo_ts), _s.object_key, _s.task_id)
    .limit(bindparam("at_most"))
)
_PIECES_OF_TASKS = _PIECES.where(_s.task_id.in_(bindparam("asked_tasks", expanding=True)))
_OF_PIECES = and_(_s.object_key.in_(bindparam("asked_keys", expanding=True)), _s.task_id == bindparam("asked_task"))
_COUNT = select(_s.object_key, func.count()).where(_OF_PIECES).group_by(_s.object_key)
_REMOVE = segments.delete().where(_OF_PIECES)
_ADD = segments.insert()


def lowest_durable_ts(catalog: Catalog, tenant: Tenant) -> int:
    """The lowest `durable_ts` of the tenant's data tasks: the live edge of its log; less while a store is quarantined.
    0 without tasks."""
    with catalog.reading() as conn:
        return int(conn.execute(_EDGE, tenant_ids(tenant)).scalar() or 0)


def pieces(
    catalog: Catalog,
    tenant: Tenant,
    *,
    upto_ts: int,
    limit: int,
    after: Piece | None = None,
    task_ids: Sequence[int] = (),
) -> list[Piece]:
    """The oldest pieces that lie entirely at or below `upto_ts`, by (lo_ts, object, task), following `after`; of the
    tenant, or only of the tasks that are given."""
    parameters: dict[str, Any] = {
        "upto_ts": min(upto_ts, INT_MAX),
        "at_most": limit,
        "after_lo": -1 if after is None else after.lo_ts,
        "after_key": "" if after is None else after.object_key,
        "after_task": 0 if after is None else after.task_id,
    }
    if task_ids:
        parameters["asked_tasks"] = list(task_ids)
    with catalog.reading() as conn:
        return [
            Piece(
                object_key=row.object_key,
                task_id=row.task_id,
                segments=int(row.segments),
                rows=int(row.row_count),
                stored_bytes=int(row.stored_bytes),
                raw_bytes=int(row.raw_bytes),
                lo_ts=int(row.lo_ts),
                hi_ts=int(row.hi_ts),
            )
            for row in conn.execute(_PIECES_OF_TASKS if task_ids else _PIECES, {**tenant_ids(tenant), **parameters})
        ]


def segments_of(catalog: Catalog, tenant: Tenant, wanted: Sequence[Piece]) -> dict[tuple[str, int], list[SegmentRow]]:
    """(object key, task id) -> live segments by number. Pieces replaced meanwhile are missing."""
    keys = sorted({piece.object_key for piece in wanted})
    rows: dict[tuple[str, int], list[SegmentRow]] = {}
    for some in in_chunks(keys):
        query = (
            select(segments)
            .join(objects, _o.object_key == _s.object_key)
            .where(
                of_tenant(segments, tenant),
                _s.kind == TaskKind.DATA,
                _s.object_key.in_(some),
                _o.state == ObjectState.LIVE,
            )
            .order_by(_s.object_key, _s.segment_no)
        )
        with catalog.reading() as conn:
            for row in conn.execute(query):
                rows.setdefault((row.object_key, row.task_id), []).append(segment_of_log(row))
    return rows


def commit_compaction(catalog: Catalog, tenant: Tenant, inputs: Sequence[Piece], outputs: Sequence[Output]) -> bool:
    """Replace the inputs by the outputs. False, without effect, when an input is no longer live as read. Fenced when an
    output's key has a row."""
    invariant(len({(p.object_key, p.task_id) for p in inputs}) == len(inputs), "a commit names each piece once")
    _check_sums(inputs, outputs)
    try:
        with catalog.transaction() as conn:
            _exchange(conn, tenant, inputs, outputs)
    except GuardFailed:
        return False
    return True


def _exchange(conn: Connection, tenant: Tenant, inputs: Sequence[Piece], outputs: Sequence[Output]) -> None:
    keys = sorted({piece.object_key for piece in inputs})
    if not _all_live(conn, keys):
        raise GuardFailed
    of_task: dict[int, dict[str, int]] = {}
    for piece in inputs:
        of_task.setdefault(piece.task_id, {})[piece.object_key] = piece.segments
    for task_id, wanted in of_task.items():
        _remove(conn, task_id, wanted)
    for output in outputs:
        insert_live(conn, tenant, output.object_key, ObjectKind.COMPACTED, output.object_bytes)
        conn.execute(_ADD, [_values(tenant, output, group) for group in output.groups])
    replace_unnamed(conn, keys, _s.object_key)


def _check_sums(inputs: Sequence[Piece], outputs: Sequence[Output]) -> None:
    """Check that inputs and outputs have the same number of rows per task, but for collected ones."""
    rows: dict[int, int] = {}
    for piece in inputs:
        rows[piece.task_id] = rows.get(piece.task_id, 0) + piece.rows
    for output in outputs:
        written = sum(group.rows for group in output.groups)
        rows[output.task_id] = rows.get(output.task_id, 0) - written - output.collected
    invariant(not any(rows.values()), "a commit keeps the number of rows", difference=rows)


def _all_live(conn: Connection, keys: list[str]) -> bool:
    live = 0
    for some in in_chunks(keys):
        states = select(_o.state).where(_o.object_key.in_(some)).order_by(_o.object_key).with_for_update()
        live += sum(state == ObjectState.LIVE for state in conn.execute(states).scalars())
    return live == len(keys)


def _remove(conn: Connection, task_id: int, wanted: dict[str, int]) -> None:
    """Delete the task's pieces in these objects, which are locked. GuardFailed when one has not as many segments as it
    had."""
    for some in in_chunks(sorted(wanted)):
        parameters = {"asked_keys": some, "asked_task": task_id}
        counted = {key: int(count) for key, count in conn.execute(_COUNT, parameters)}
        if counted != {key: wanted[key] for key in some}:
            raise GuardFailed
        conn.execute(_REMOVE, parameters)


def _values(tenant: Tenant, output: Output, group: SegmentInfo) -> dict[str, Any]:
    return segment_values(
        segments,
        tenant,
        group,
        object_key=output.object_key,
        kind=TaskKind.DATA,
        task_id=output.task_id,
        span_class=span_class(group.lo_ts, group.hi_ts),
        format=SegmentFormat.PARQUET,
        footer_offset=output.footer.offset,
        footer_length=output.footer.length,
        footer_crc=output.footer.crc,
    )
