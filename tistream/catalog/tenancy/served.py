"""Up to where a tenant's log may be read: the lowest `durable_ts` of its tasks, or less while a store is quarantined.

A store that contradicts its own promise is quarantined (`tistream.catalog.work.quarantines`). Until an operator has
decided, nothing above `good_ts` counts as final. The tasks' `durable_ts` stays: it says what is written, and never
falls. `limits` has both, so that whatever asks how far a log goes takes the least of them in one statement.

When an operator rejects a store, the log is served on. What had been served above `good_ts` may lack rows of the store:
this interval is the *gap* that readers are told of.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from sqlalchemy import Select, Subquery, and_, case, func, null, select, type_coerce, union_all
from sqlalchemy.sql.elements import ColumnElement

from tistream.catalog.database.columns import UInt
from tistream.catalog.database.tables import of_asked_tenant, quarantines, tasks
from tistream.catalog.rows.tenants import TaskKind


class QuarantineState(StrEnum):
    """What has become of a quarantined store."""

    QUARANTINED = "quarantined"  #: until an operator decides
    REJECTED = "rejected"  #: its incarnation is given up from the file on


class Edge(NamedTuple):
    """Up to where a log may be read."""

    ts: int
    good_ts: int | None = None  #: of the quarantined stores; None when there is none
    gap: tuple[int, int] | None = None  #: (after, upto): rows of rejected stores may be missing here


_q = quarantines.c
IS_OPEN = _q.state == QuarantineState.QUARANTINED  #: nothing above `good_ts` is served
_COLUMNS = ("ts", "is_data", "good_ts", "gap_after", "gap_upto")
_LEAVES_GAP = and_(_q.state == QuarantineState.REJECTED, _q.good_ts < _q.served_ts)


def limits(
    *,
    of_tasks: ColumnElement[bool] | None = None,
    of_stores: ColumnElement[bool] | None = None,
) -> Subquery:
    """Everything that bounds what may be read: a row (ts, is_data) for each task, (ts, good_ts) for each quarantine,
    (gap_after, gap_upto) for each rejected store, each with its tenant. The conditions narrow `tasks` and
    `quarantines`."""
    none = type_coerce(null(), UInt)
    t = tasks.c
    parts: list[tuple[Any, dict[str, Any], ColumnElement[bool] | None]] = [
        (t, {"ts": t.durable_ts, "is_data": case((t.kind == TaskKind.DATA, 1))}, of_tasks),
        (_q, {"ts": _q.good_ts, "good_ts": _q.good_ts}, IS_OPEN if of_stores is None else and_(of_stores, IS_OPEN)),
        (
            _q,
            {"gap_after": _q.good_ts, "gap_upto": _q.served_ts},
            _LEAVES_GAP if of_stores is None else and_(of_stores, _LEAVES_GAP),
        ),
    ]
    selects = []
    for table, values, condition in parts:
        named = [values.get(name, none).label(name) for name in _COLUMNS]
        part = select(table.cluster_id, table.tenant_id, *named)
        selects.append(part if condition is None else part.where(condition))
    return union_all(*selects).subquery("limits")


def edge_columns(subquery: Subquery) -> list[ColumnElement[Any]]:
    """What `edge_of` reads, of a subquery of limits."""
    c = subquery.c
    return [
        func.min(c.ts).label("ts"),
        func.count(c.is_data).label("data_tasks"),
        func.min(c.good_ts).label("good_ts"),
        func.min(c.gap_after).label("gap_after"),
        func.max(c.gap_upto).label("gap_upto"),
    ]


def edge_of(row: Any) -> Edge:
    """The edge of a tenant; 0 without data tasks."""
    gap = None if row.gap_upto is None else (int(row.gap_after), int(row.gap_upto))
    good_ts = None if row.good_ts is None else int(row.good_ts)
    return Edge(int(row.ts) if row.data_tasks else 0, good_ts, gap)


def edge_of_asked_tenant(*of_tasks: ColumnElement[bool]) -> Select[Any]:
    """The lowest limit of the tenant of `tenant_ids`; None without tasks."""
    edge = limits(
        of_tasks=and_(of_asked_tenant(tasks), *of_tasks),
        of_stores=of_asked_tenant(quarantines),
    )
    return select(func.min(edge.c.ts))


def good_ts_of_asked_tenant() -> Select[Any]:
    """The last timestamp known to be good; None when no store of the tenant is quarantined."""
    return select(func.min(_q.good_ts)).where(of_asked_tenant(quarantines), IS_OPEN)
