"""Consumers as people and programs see them: state, checkpoint, lag, members with their partitions and leases, what is
held of the log; and the actions to reset, pause, resume and remove one.

A consumer's lag is what is served and not acknowledged: the watermark minus its checkpoint.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from tistream import ts as tso
from tistream.admin import actions
from tistream.admin.core.units import duration_text
from tistream.admin.replications import replication_facts
from tistream.admin.views import Sources
from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.consumers import Readers, readers_of, reset_consumer
from tistream.catalog.tenancy.changefeeds import (
    LIVE,
    ChangefeedRow,
    FeedState,
    get_changefeed,
    list_changefeeds,
    remove_changefeed,
    switch_changefeed,
)
from tistream.catalog.work.lanes import LaneRow, list_lanes
from tistream.catalog.work.stream_ends import stream_end
from tistream.catalog.work.tasks import served_watermark
from tistream.errors import InvalidInput
from tistream.ids import Tenant

_AT_REST = (FeedState.STOPPED, FeedState.FINISHED)


def consumers_of(catalog: Catalog, tenant: Tenant) -> list[dict[str, Any]]:
    """The consumers of a tenant, by id."""
    readers, served, end_ts = (
        readers_of(catalog, tenant),
        served_watermark(catalog, tenant),
        stream_end(catalog, tenant),
    )
    rows = list_changefeeds(catalog, tenant)
    lanes: dict[str, list[LaneRow]] = {}
    for lane in list_lanes(catalog, tenant):
        lanes.setdefault(lane.changefeed_id, []).append(lane)
    return [
        consumer_fact(row, readers.get(row.changefeed_id, Readers()), served, end_ts, lanes.get(row.changefeed_id, ()))
        for row in rows
    ]


def one_consumer(catalog: Catalog, row: ChangefeedRow) -> dict[str, Any]:
    """A consumer that was read."""
    readers = readers_of(catalog, row.tenant, row.changefeed_id)
    lanes = list_lanes(catalog, row.tenant, row.changefeed_id) if row.is_replication else ()
    served, end_ts = served_watermark(catalog, row.tenant), stream_end(catalog, row.tenant)
    return consumer_fact(row, readers.get(row.changefeed_id, Readers()), served, end_ts, lanes)


def consumer_fact(
    row: ChangefeedRow, readers: Readers, served: int, end_ts: int | None, lanes: Sequence[LaneRow]
) -> dict[str, Any]:
    """A consumer for people and programs."""
    now_ms = row.last_active_ms + row.idle_ms
    return {
        "changefeed_id": row.changefeed_id,
        **replication_facts(row, lanes, served, end_ts),
        "keys": json.loads(row.options).get("keys", {}),
        "start_ts": str(row.start_ts),
        "checkpoint_ts": str(row.checkpoint_ts),
        "checkpoint_time": tso.to_text(row.checkpoint_ts) if row.checkpoint_ts else None,
        "target_ts": str(row.target_ts),
        "filters": json.loads(row.filters),
        "created_time": tso.to_text(tso.compose(row.created_ms)),
        "seen_time": tso.to_text(tso.compose(row.last_active_ms)),
        "lag_s": _lag_s(served, row.checkpoint_ts) if row.state is not FeedState.FINISHED else 0,
        "idle_s": row.idle_ms / 1000,
        "idle_limit_s": row.idle_limit_ms / 1000,
        "holds_log": row.holds_log,
        "members": [member.name for member in readers.members],
        "leases_s": {member.name: (member.expires_ms - now_ms) / 1000 for member in readers.members},
        "partitions": [
            {
                "partition": part.number,
                "member": part.member,
                "epoch": part.epoch,
                "checkpoint_ts": str(part.checkpoint_ts),
                "lag_s": _lag_s(served, part.checkpoint_ts) if row.state is not FeedState.FINISHED else 0,
            }
            for part in readers.partitions
        ],
    }


def pause(sources: Sources, tenant: Tenant, name: str, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Give its members nothing more."""
    _live(sources, tenant, name)
    if not dry_run:
        switch_changefeed(sources.catalog, tenant, name, FeedState.STOPPED)
    words = f"The members of consumer {name} are refused. Its checkpoint and its log are kept."
    return actions.outcome("pause", f"changefeed {name}", dry_run, words)


def resume(sources: Sources, tenant: Tenant, name: str, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Let its members continue."""
    _live(sources, tenant, name)
    if not dry_run:
        switch_changefeed(sources.catalog, tenant, name, FeedState.NORMAL)
    words = f"The members of consumer {name} continue at its checkpoint."
    return actions.outcome("resume", f"changefeed {name}", dry_run, words)


def reset(sources: Sources, tenant: Tenant, name: str, to_ts: int, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Let all its partitions continue above `to_ts`."""
    row = get_changefeed(sources.catalog, tenant, name)
    if not dry_run:
        reset_consumer(sources.catalog, tenant, name, to_ts)
    away = duration_text(abs(tso.physical_ms(row.checkpoint_ts) - tso.physical_ms(to_ts)))
    if to_ts < row.checkpoint_ts:
        effect = f"the changes of the last {away} before its checkpoint come again"
    elif to_ts > row.checkpoint_ts:
        effect = f"the changes of {away} after its checkpoint are skipped"
    else:
        effect = "its slowest partition stays where it is, the others read again"
    words = f"Consumer {name} continues at {tso.described(to_ts)}: {effect}. What its members have at hand is refused."
    return actions.outcome("reset", f"changefeed {name}", dry_run, words)


def remove(sources: Sources, tenant: Tenant, name: str, *, dry_run: bool, actor: str) -> dict[str, Any]:
    """Forget the consumer."""
    row = get_changefeed(sources.catalog, tenant, name)
    if not dry_run:
        remove_changefeed(sources.catalog, tenant, name)
    log = " The log above its checkpoint is no longer kept for it." if row.holds_log else ""
    words = f"Consumer {name} and its position {tso.described(row.checkpoint_ts)} are removed for good.{log}"
    return actions.outcome("remove", f"changefeed {name}", dry_run, words)


def _live(sources: Sources, tenant: Tenant, name: str) -> ChangefeedRow:
    row = get_changefeed(sources.catalog, tenant, name)
    if row.state not in LIVE:
        raise InvalidInput(f"Changefeed {name} is {row.state}.", state=row.state)
    return row


def _lag_s(served: int, checkpoint_ts: int) -> float:
    begun = checkpoint_ts > 0  # else it begins where the log will, and there is nothing to measure from
    return max(0, tso.physical_ms(served) - tso.physical_ms(checkpoint_ts)) / 1000 if begun else 0.0


def live_consumers(catalog: Catalog, tenant: Tenant) -> list[dict[str, Any]]:
    """How far the changefeeds are behind that are neither paused nor finished; the furthest comes first."""
    live = [feed for feed in consumers_of(catalog, tenant) if feed["state"] not in _AT_REST]
    return [
        {
            **{name: feed[name] for name in ("changefeed_id", "state", "lag_s", "checkpoint_time", "idle_s")},
            "destination": feed["sink_uri"].partition("?")[0],
            "members": sum(left > 0 for left in feed["leases_s"].values()),
        }
        for feed in sorted(live, key=lambda feed: -feed["lag_s"])
    ]
