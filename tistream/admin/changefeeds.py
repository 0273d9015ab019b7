"""Changefeeds as people and programs see them, with their lanes, and what would be lost if the source were lost now.

The actions pause, resume or remove one, or decide about a refused change. Each says in words what it does or would do.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tistream import ts as tso
from tistream.admin import actions
from tistream.admin.reader_facts import now_ms, reader_facts
from tistream.admin.views import Sources
from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS, ChangefeedRow, masked_uri
from tistream.catalog.tenancy.log_readers import ReaderState
from tistream.catalog.work.changefeeds import decide_refusal, remove_changefeed, resume_changefeed
from tistream.catalog.work.lanes import LaneRow, list_lanes
from tistream.catalog.work.stream_ends import stream_end
from tistream.catalog.work.tasks import served_watermark
from tistream.errors import InvalidInput, StateForbids
from tistream.ids import Tenant


def changefeeds_of(catalog: Catalog, tenant: Tenant) -> list[dict[str, Any]]:
    """The changefeeds of a tenant, by id."""
    lanes: dict[str, list[LaneRow]] = {}
    for lane in list_lanes(catalog, tenant):
        lanes.setdefault(lane.changefeed_id, []).append(lane)
    served, end_ts = served_watermark(catalog, tenant), stream_end(catalog, tenant)
    return [_facts(row, lanes.get(row.name, ()), served, end_ts) for row in CHANGEFEEDS.of_tenant(catalog, tenant)]


def changefeed_facts(catalog: Catalog, row: ChangefeedRow) -> dict[str, Any]:
    """A changefeed that was read."""
    served, end_ts = served_watermark(catalog, row.tenant), stream_end(catalog, row.tenant)
    return _facts(row, list_lanes(catalog, row.tenant, row.name), served, end_ts)


def _facts(row: ChangefeedRow, lanes: Sequence[LaneRow], served_ts: int, end_ts: int | None) -> dict[str, Any]:
    """`end_ts`: of the tenant's stream; None = it has none."""
    first = next((lane.error for lane in lanes if lane.error is not None), None)
    retries = row.state is ReaderState.NORMAL and first is not None
    return {
        "changefeed_id": row.name,
        **reader_facts(row, served_ts),
        "state": ReaderState.ERROR if retries else row.state,
        "keys": json.loads(row.options).get("keys", {}),
        "sink_uri": row.shown_uri,
        "dead_letter": masked_uri(row.dead_letter),
        "dead_letters": row.dead_letters,
        "rpo": _rpo(row, lanes, served_ts, tso.lag_ms(served_ts, now_ms(row), end_ts))
        if row.state is ReaderState.NORMAL
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


def pause(sources: Sources, tenant: Tenant, name: str, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Write nothing more."""
    row = CHANGEFEEDS.get(sources.catalog, tenant, name)
    if row.state is not ReaderState.NORMAL:
        raise StateForbids(f"Changefeed {name} is {row.state}.", state=row.state)
    if not dry_run:
        CHANGEFEEDS.switch(sources.catalog, tenant, name, ReaderState.STOPPED)
    words = (
        f"Nothing more is written to {_place(row.sink_uri)} after the stretch that is being written. The checkpoint "
    )
    return actions.outcome("pause", f"changefeed {name}", dry_run, words + "and the log above it are kept.")


def resume(sources: Sources, tenant: Tenant, name: str, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Write again, and try everything that was refused again."""
    row = CHANGEFEEDS.get(sources.catalog, tenant, name)
    if row.state is ReaderState.FINISHED:
        raise StateForbids(f"Changefeed {name} is finished.", state=row.state)
    if not dry_run:
        resume_changefeed(sources.catalog, tenant, name, actor=actor)
    words = f"Writing continues above {tso.described(row.checkpoint_ts)}, and refused changes are tried again."
    return actions.outcome("resume", f"changefeed {name}", dry_run, words)


def remove(sources: Sources, tenant: Tenant, name: str, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Forget the changefeed."""
    row = CHANGEFEEDS.get(sources.catalog, tenant, name)
    if not dry_run:
        remove_changefeed(sources.catalog, tenant, name)
    words = f"Changefeed {name} and its checkpoint {tso.described(row.checkpoint_ts)} are removed for good. What "
    words += f"{_place(row.sink_uri)} has stays there."
    log = " The log above its checkpoint is no longer kept for it." if row.holds_log else ""
    return actions.outcome("remove", f"changefeed {name}", dry_run, words + log)


def retry(sources: Sources, tenant: Tenant, name: str, number: int, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Try the refused change of a lane again."""
    error = decide_refusal(sources.catalog, tenant, name, number, leave_out=False, dry_run=dry_run)
    words = f"The change at {_change(error)} is tried again. If it is refused again, the lane stops again."
    return actions.outcome("retry", f"lane {number} of changefeed {name}", dry_run, words)


def skip(
    sources: Sources,
    tenant: Tenant,
    name: str,
    number: int,
    *,
    change: tuple[str, int] | None,
    dry_run: bool,
    actor: str,
) -> dict[str, Any]:
    """Leave the refused change of a lane out. `change`: the one that a dry run has shown, under `fields`; another one
    may stop the lane meanwhile."""
    if change is None and not dry_run:
        raise InvalidInput("Name the change to leave out: its key and its commit_ts.")
    error = decide_refusal(sources.catalog, tenant, name, number, leave_out=True, dry_run=dry_run, change=change)
    words = f"The change at {_change(error)} is never written. The destination differs from the source there until the "
    words += "row changes again."
    fields = {"key": error["key"], "commit_ts": error["commit_ts"]}
    return actions.outcome("skip", f"lane {number} of changefeed {name}", dry_run, words, fields=fields)


def _change(error: dict[str, Any]) -> str:
    if not {"key", "commit_ts"} <= error.keys():
        return "a place that the destination did not name"
    table = f" of {error['db']}.{error['table']}" if "table" in error else ""
    return f"{tso.described(int(error['commit_ts']))}{table}, key {error['key']},"


def _place(sink_uri: str) -> str:
    return sink_uri.partition("?")[0]
