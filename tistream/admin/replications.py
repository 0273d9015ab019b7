"""Replications as people and programs see them: their lanes, and what would be lost if the source were lost now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tistream import ts as tso
from tistream.catalog.tenancy.changefeeds import ChangefeedRow, FeedState, masked_uri
from tistream.catalog.work.lanes import LaneRow


def replication_facts(
    row: ChangefeedRow, lanes: Sequence[LaneRow], served_ts: int, end_ts: int | None
) -> dict[str, Any]:
    """The members of a changefeed that only a replication has. `end_ts`: of the tenant's stream; None = it has none."""
    now_ms = row.last_active_ms + row.idle_ms
    first = next((lane.error for lane in lanes if lane.error is not None), None)
    retries = row.state is FeedState.NORMAL and first is not None
    return {
        "state": FeedState.ERROR if retries else row.state,
        "sink_uri": row.shown_uri,
        "dead_letter": masked_uri(row.dead_letter),
        "dead_letters": row.dead_letters,
        "rpo": _rpo(row, lanes, served_ts, tso.lag_ms(served_ts, now_ms, end_ts))
        if row.is_replication and row.state is FeedState.NORMAL
        else None,
        "catching_up": any(lane.checkpoint_ts < lane.catch_up_ts for lane in lanes),
        "lanes": lane_facts(lanes),
        "error": row.error or (first if retries else None),
    }


def _rpo(row: ChangefeedRow, lanes: Sequence[LaneRow], served_ts: int, served_lag_ms: int) -> dict[str, float] | None:
    """The age of the checkpoint, in three parts; None before the log or the checkpoint begins."""
    if not served_ts or not row.checkpoint_ts:
        return None
    slowest = min(lanes, key=lambda lane: lane.checkpoint_ts, default=None)
    tried_ts = row.checkpoint_ts if slowest is None else max(slowest.attempted_ts, slowest.checkpoint_ts)
    at = [tso.physical_ms(ts) for ts in (row.checkpoint_ts, min(tried_ts, max(served_ts, row.checkpoint_ts)))]
    served_ms = max(tso.physical_ms(served_ts), at[1])
    return {
        "total_s": (served_lag_ms + served_ms - at[0]) / 1000,
        "resolved_ts_s": served_lag_ms / 1000,
        "queue_s": (served_ms - at[1]) / 1000,
        "destination_s": (at[1] - at[0]) / 1000,
    }


def lane_facts(lanes: Sequence[LaneRow]) -> list[dict[str, Any]]:
    """Lanes for people and programs."""
    return [
        {
            "lane": lane.number,
            "scope": lane.scope.shown,
            "worker": lane.owner,
            "epoch": lane.epoch,
            "checkpoint_ts": str(lane.checkpoint_ts),
            "attempted_ts": str(lane.attempted_ts),
            "catching_up": lane.checkpoint_ts < lane.catch_up_ts,
            "waits_s": lane.writable_in_ms / 1000,
            "unmoved_s": lane.unmoved_ms / 1000,
            "rows": lane.rows_done,
            "bytes": lane.bytes_done,
            "tries": lane.tries,
            "stopped": lane.is_stopped,
            "error": lane.error,
        }
        for lane in lanes
    ]
