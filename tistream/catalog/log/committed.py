"""The committed log: visible segments of files, and the flush that makes them visible.

A flush is one transaction. For each task, in order of id (against deadlocks):

    UPDATE tasks SET durable_ts = :new WHERE task_id = :id AND epoch = :mine AND durable_ts = :seen

comes first and must match one row. Objects and segments are inserted for the matching tasks only; the bytes of the
others stay in the files, unreferenced. `seen_durable_ts < new_durable_ts`, and every segment's timestamps lie in
(seen_durable_ts, new_durable_ts]. A flush may hold any number of objects, and one commit_ts may lie in several of
them: all become visible together. The number of statements depends on the number of tasks alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from sqlalchemy import Connection, Update, and_, bindparam, case, or_, select
from sqlalchemy.sql.elements import ColumnElement

from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import of_asked_tenant, segments, tasks, tenant_ids, tenant_of
from tistream.catalog.log.objects import ObjectKind, insert_all_live
from tistream.catalog.log.page import page_bounds, page_of_segments, span_class
from tistream.catalog.log.segments import segment_of_log, segment_values
from tistream.catalog.rows.segments import SegmentRow
from tistream.catalog.rows.tenants import TaskKind
from tistream.errors import invariant
from tistream.ids import Tenant
from tistream.limits import INT_MAX

_ADD_SEGMENTS = segments.insert()
_LOCK_TOGETHER = (
    select(tasks.c.task_id, tasks.c.cluster_id, tasks.c.tenant_id, tasks.c.epoch, tasks.c.durable_ts)
    .where(tasks.c.task_id.in_(bindparam("asked_tasks", expanding=True)))
    .order_by(tasks.c.task_id)
    .with_for_update()
)
_PAGE = page_of_segments()
_TOGETHER_MIN = 4  # from this many tasks on, two statements for all are fewer than one for each
_TOGETHER_MAX = 500  # in one statement
_TABLE_IDS_MAX = 200  # more become one interval: databases bound the depth of an expression


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAdvance:
    """The part of a flush for one task."""

    task_id: int
    epoch: int  #: the flushing owner's
    seen_durable_ts: int  #: the task's durable watermark as its owner knows it
    new_durable_ts: int
    segments: tuple[SegmentRow, ...] = ()


def commit_flush(
    catalog: Catalog, *, tenant: Tenant, objects: Mapping[str, int], advances: Sequence[TaskAdvance]
) -> frozenset[int]:
    """Make a flush visible. Returns the tasks that advanced; the others were reassigned and must be stopped.

    `objects` (key -> bytes) hold the segments; without any only the durable watermarks advance. Fenced, without
    effect, when a key already has a row: what was written under these keys is lost.
    """
    with catalog.transaction() as conn:
        return flush_in(conn, tenant, objects, advances)


def flush_in(
    conn: Connection, tenant: Tenant, objects: Mapping[str, int], advances: Sequence[TaskAdvance]
) -> frozenset[int]:
    """`commit_flush` within a larger transaction."""
    _check_advances(objects, advances)
    advanced = [a for a in sorted(advances, key=lambda a: a.task_id) if _advance(conn, tenant, a)]
    kinds = _kinds(conn, [a.task_id for a in advanced if a.segments])
    if kinds:
        used = {s.object_key for a in advanced for s in a.segments}
        sizes = {key: size for key, size in objects.items() if key in used}
        insert_all_live(conn, tenant, sizes, ObjectKind.COMMITTED)
        rows = [_values_of_segment(tenant, kinds[a.task_id], a.task_id, s) for a in advanced for s in a.segments]
        conn.execute(_ADD_SEGMENTS, rows)
    return frozenset(a.task_id for a in advanced)


def advance_durable_timestamps(catalog: Catalog, advances: Sequence[tuple[Tenant, TaskAdvance]]) -> frozenset[int]:
    """`commit_flush` without segments, of several tenants, each task with its own guard. Returns the tasks that
    advanced; the others were reassigned and must be stopped. The number of statements hardly depends on the number of
    tasks: a sorter may have thousands of idle ones, and their rows are locked until the transaction ends.
    """
    _check_advances({}, [a for _, a in advances])
    with catalog.transaction() as conn:
        in_order = sorted(advances, key=lambda pair: pair[1].task_id)
        if len(in_order) < _TOGETHER_MIN:
            return frozenset(a.task_id for tenant, a in in_order if _advance(conn, tenant, a))
        return frozenset(
            task_id
            for at in range(0, len(in_order), _TOGETHER_MAX)
            for task_id in _advance_together(conn, in_order[at : at + _TOGETHER_MAX])
        )


def durable_timestamps(catalog: Catalog, task_ids: Iterable[int]) -> dict[int, tuple[int, int]]:
    """task id -> (epoch, durable watermark), to determine the outcome of a flush whose reply was lost."""
    wanted = list(task_ids)
    with catalog.reading() as conn:
        rows = conn.execute(
            select(tasks.c.task_id, tasks.c.epoch, tasks.c.durable_ts).where(tasks.c.task_id.in_(wanted))
        )
        return {row.task_id: (row.epoch, row.durable_ts) for row in rows}


def find_segments(
    catalog: Catalog,
    tenant: Tenant,
    *,
    after_ts: int,
    upto_ts: int,
    kind: str = TaskKind.DATA,
    table_ids: Collection[int] | None = None,
    limit: int,
) -> list[SegmentRow]:
    """Live segments that may hold changes in (after_ts, upto_ts], by (lo_ts, hi_ts, object_key, segment_no).

    `table_ids` narrows to segments whose interval of table ids contains one of them: a reader still filters the rows.
    When `limit` segments are returned, later ones may begin at the last one's `lo_ts`.
    """
    if table_ids is not None and not table_ids:
        return []
    narrowed = None if table_ids is None else touches(table_ids)
    asked = page_bounds(min(after_ts, INT_MAX), min(upto_ts, INT_MAX))
    with catalog.reading() as conn:
        query = _PAGE if narrowed is None else page_of_segments(narrowed)
        rows = conn.execute(query, {**tenant_ids(tenant), "asked_kind": kind, "at_most": limit, **asked})
        return [segment_of_log(row) for row in rows]


def _check_advances(objects: Mapping[str, int], advances: Sequence[TaskAdvance]) -> None:
    invariant(len({a.task_id for a in advances}) == len(advances), "a flush names each task once")
    for a in advances:
        invariant(
            a.seen_durable_ts < a.new_durable_ts,
            "durable watermark only rises",
            task_id=a.task_id,
            seen_durable_ts=a.seen_durable_ts,
            new_durable_ts=a.new_durable_ts,
        )
        for s in a.segments:
            invariant(s.object_key in objects, "a segment lies in an object of the flush", task_id=a.task_id)
            invariant(
                a.seen_durable_ts < s.lo_ts <= s.hi_ts <= a.new_durable_ts,
                "a segment lies between the old and the new durable watermark",
                task_id=a.task_id,
                segment=s.number,
                lo_ts=s.lo_ts,
                hi_ts=s.hi_ts,
            )


@cache
def _advancing() -> Update:
    return tasks.update().where(
        tasks.c.task_id == bindparam("asked_task"),
        of_asked_tenant(tasks),
        tasks.c.epoch == bindparam("my_epoch"),
        tasks.c.durable_ts == bindparam("seen_durable_ts"),
    )


def _advance(conn: Connection, tenant: Tenant, a: TaskAdvance) -> bool:
    seen = {"asked_task": a.task_id, "my_epoch": a.epoch, "seen_durable_ts": a.seen_durable_ts}
    return conn.execute(_advancing(), {**tenant_ids(tenant), **seen, "durable_ts": a.new_durable_ts}).rowcount == 1


def _advance_together(conn: Connection, advances: Sequence[tuple[Tenant, TaskAdvance]]) -> list[int]:
    """`_advance` of several tasks, in order of id, in two statements: each guard is checked under its lock."""
    parameters = {"asked_tasks": [a.task_id for _, a in advances]}
    rows = {row.task_id: row for row in conn.execute(_LOCK_TOGETHER, parameters)}
    new = {a.task_id: a.new_durable_ts for tenant, a in advances if _is_as_seen(rows.get(a.task_id), tenant, a)}
    if new:
        durable_timestamps = case(new, value=tasks.c.task_id)
        conn.execute(tasks.update().where(tasks.c.task_id.in_(list(new))).values(durable_ts=durable_timestamps))
    return list(new)


def _is_as_seen(row: Any, tenant: Tenant, a: TaskAdvance) -> bool:
    return (
        row is not None
        and tenant_of(row) == tenant
        and row.epoch == a.epoch
        and row.durable_ts == a.seen_durable_ts
    )  # fmt: skip


def _kinds(conn: Connection, task_ids: list[int]) -> dict[int, str]:
    if not task_ids:
        return {}
    rows = conn.execute(select(tasks.c.task_id, tasks.c.kind).where(tasks.c.task_id.in_(task_ids)))
    return {row.task_id: row.kind for row in rows}


def _values_of_segment(tenant: Tenant, kind: str, task_id: int, s: SegmentRow) -> dict[str, Any]:
    """The columns of `segments` for a segment that a sorter has written."""
    others = {"object_key": s.object_key, "kind": kind, "task_id": task_id, "span_class": span_class(s.lo_ts, s.hi_ts)}
    return segment_values(segments, tenant, s, **others)


def touches(
    table_ids: Collection[int],
    lo: ColumnElement[int] = segments.c.table_lo,
    hi: ColumnElement[int] = segments.c.table_hi,
) -> ColumnElement[bool]:
    """Whether a segment may hold one of the tables (approximate)."""
    if len(table_ids) > _TABLE_IDS_MAX:
        return and_(lo <= max(table_ids), hi >= min(table_ids))
    return or_(*(and_(lo <= table_id, hi >= table_id) for table_id in sorted(table_ids)))
