"""Figures of changefeeds from the catalog, for metrics: state, lag by cause, rows, tries, refused changes.

One aggregate statement. At most CHANGEFEEDS_SHOWN_MAX are shown: those that are failed or have a lane with an error
first, then those whose checkpoint is oldest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import and_, case, func, select

from tistream import ts as tso
from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.tables import changefeeds, lanes, tasks
from tistream.catalog.tenancy.log_readers import ReaderState
from tistream.catalog.work.stream_ends import ENDED
from tistream.runtime import metrics
from tistream.runtime.metrics import Metric

_F, _L, _T = changefeeds.c, lanes.c, tasks.c
_SERVED = (
    select(_T.cluster_id, _T.tenant_id, func.min(_T.durable_ts).label("ts"))
    .group_by(_T.cluster_id, _T.tenant_id)
    .subquery("served_ts")
)
_ENDED = ENDED.subquery("ended")
_IS_SLOWEST = _L.checkpoint_ts <= _F.checkpoint_ts
_LANES = (
    select(
        _L.cluster_id,
        _L.tenant_id,
        _L.changefeed_id,
        func.min(case((_IS_SLOWEST, _L.attempted_ts))).label("attempted_ts"),
        func.sum(_L.rows_done).label("rows_done"),
        func.sum(_L.bytes_done).label("bytes_done"),
        func.sum(_L.tries).label("tries"),
        func.count(_L.error).label("errors"),
        func.count(case((_L.error.like('%"stopped":true%'), 1))).label("stopped"),
    )
    .select_from(
        lanes.join(
            changefeeds,
            and_(_F.cluster_id == _L.cluster_id, _F.tenant_id == _L.tenant_id, _F.changefeed_id == _L.changefeed_id),
        )
    )
    .group_by(_L.cluster_id, _L.tenant_id, _L.changefeed_id)
    .subquery("of_lanes")
)
_HAS_ERROR = case((_F.state == ReaderState.FAILED, 0), (_LANES.c.errors > 0, 1), else_=2)
CHANGEFEEDS = (
    select(
        _F.cluster_id,
        _F.tenant_id,
        _F.changefeed_id,
        _F.state,
        _F.checkpoint_ts,
        _F.last_active_ms,
        _F.dead_letters,
        now_ms().label("now_ms"),
        _SERVED.c.ts.label("served_ts"),
        _ENDED.c.end_ts,
        *(_LANES.c[name] for name in ("attempted_ts", "rows_done", "bytes_done", "tries", "errors", "stopped")),
    )
    .join(
        _LANES,
        and_(
            _LANES.c.cluster_id == _F.cluster_id,
            _LANES.c.tenant_id == _F.tenant_id,
            _LANES.c.changefeed_id == _F.changefeed_id,
        ),
    )
    .outerjoin(_SERVED, and_(_SERVED.c.cluster_id == _F.cluster_id, _SERVED.c.tenant_id == _F.tenant_id))
    .outerjoin(_ENDED, and_(_ENDED.c.cluster_id == _F.cluster_id, _ENDED.c.tenant_id == _F.tenant_id))
    .order_by(_HAS_ERROR, _F.checkpoint_ts)
    .limit(metrics.CHANGEFEEDS_SHOWN_MAX)
)


def changefeed_metrics(rows: Iterable[Any]) -> list[Metric]:
    """The families of the rows of CHANGEFEEDS."""
    state, lag, *others = (metrics.collected(name) for name, _ in metrics.OF_CHANGEFEEDS)
    rows_done, bytes_done, tries, stopped, letters, unmoved = others
    for row in rows:
        labels = [str(row.cluster_id), str(row.tenant_id), row.changefeed_id]
        runs = row.state == ReaderState.NORMAL
        state.add_metric([*labels, ReaderState.ERROR if runs and row.errors else row.state], 1)
        figures = (rows_done, row.rows_done), (bytes_done, row.bytes_done), (tries, row.tries), (stopped, row.stopped)
        for family, value in (*figures, (letters, row.dead_letters)):
            family.add_metric(labels, float(value))
        if runs and row.served_ts:  # else its log has not begun
            has_all = row.end_ts is not None and row.checkpoint_ts >= row.end_ts
            unmoved.add_metric(labels, 0.0 if has_all else max(0, row.now_ms - row.last_active_ms) / 1000)
            for part, seconds in zip(metrics.LAG_PARTS, _lag_s(row), strict=True) if row.checkpoint_ts else ():
                lag.add_metric([*labels, part], seconds)
    return [state, lag, *others]


def _lag_s(row: Any) -> tuple[float, float, float]:
    """The age of the checkpoint: up to what is served, from there to what is being written, from there to it."""
    checkpoint_ts = int(row.checkpoint_ts)
    served_ts = max(int(row.served_ts or 0), checkpoint_ts)
    tried_ts = min(max(int(row.attempted_ts or 0), checkpoint_ts), served_ts)
    checkpoint, tried, served = (tso.physical_ms(ts) for ts in (checkpoint_ts, tried_ts, served_ts))
    resolved_s = tso.lag_ms(served_ts, row.now_ms, row.end_ts) / 1000
    return resolved_s, (served - tried) / 1000, (tried - checkpoint) / 1000
