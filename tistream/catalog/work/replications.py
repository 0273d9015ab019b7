"""Replications: changefeeds that the service runs, with their lanes. Each call is one transaction.

create   the changefeed and its first lanes
resume   normal again, with all errors forgotten; its checkpoint may be moved
update   other settings, while it is stopped or failed
fail     by a lane's owner: an error that no retry can mend, such as a log that no longer has what follows

The first three refuse a changefeed that would write to the same place as another one that is not finished (`place`), as
the last thing of their transactions: a lock of all of them makes the second of two wait for the COMMIT of the first.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import and_, bindparam, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_event
from tistream.catalog.database.tables import (
    amendments,
    changefeeds,
    lanes,
    next_numbers,
    of_asked_tenant,
    tenant_ids,
    tenant_of,
)
from tistream.catalog.tenancy.changefeeds import FeedState, add_changefeed, no_changefeed
from tistream.catalog.work.core.lane_scope import LaneScope, skip
from tistream.catalog.work.core.place import place_in
from tistream.catalog.work.lanes import LaneRow, add_lanes, error_text, list_lanes, rescope, retry_lanes, rewind_lanes
from tistream.errors import Fenced, InvalidInput, NotFound, StateForbids
from tistream.ids import Tenant

_f, _l = changefeeds.c, lanes.c
_ONE = and_(of_asked_tenant(changefeeds), _f.changefeed_id == bindparam("asked_id"))
_LOCK = select(changefeeds).where(_ONE).with_for_update()
_WRITERS = select(_f.cluster_id, _f.tenant_id, _f.changefeed_id, _f.options).where(
    _f.sink_uri != "", _f.state != FeedState.FINISHED
)
_IDLE = (FeedState.STOPPED, FeedState.FAILED, FeedState.FINISHED)
Sees = Callable[[Tenant], bool]
"""Whether the user may know of a tenant."""


def no_other(tenant: Tenant) -> bool:
    """Sees no tenant but its own."""
    return False


def called(owner: Tenant, changefeed_id: str, tenant: Tenant, sees: Sees) -> str:
    """A changefeed for a user of `tenant`, at the begin of a sentence. Others are named only to those who see them."""
    if owner == tenant:
        return f"Changefeed {changefeed_id}"
    return f"Changefeed {changefeed_id} of tenant {owner}" if sees(owner) else "A changefeed of another tenant"


def create_replication(
    catalog: Catalog,
    tenant: Tenant,
    changefeed_id: str,
    start_ts: int | None,
    *,
    sink_uri: str,
    options: str,
    filters: str,
    scopes: Sequence[LaneScope],
    target_ts: int,
    hold_ms: int,
    actor: str = "",
    sees: Sees = no_other,
) -> bool:
    """Register a replication that has everything at or below `start_ts` (None: the start of the log). `hold_ms`: how
    long its log is kept while its checkpoint does not move; 0 = for ever. False when it is already registered alike;
    InvalidInput when another one writes to the same place; other errors as `add_changefeed`."""

    def added(conn: Any, start: int) -> None:
        add_lanes(conn, tenant, changefeed_id, scopes, start)
        record_event(conn, EventKind.CHANGEFEED_CREATED, changefeed_id, tenant=tenant, actor=actor, start_ts=str(start))
        _check_place(conn, tenant, changefeed_id, options, sees)

    return add_changefeed(
        catalog,
        tenant,
        changefeed_id,
        start_ts,
        target_ts=target_ts,
        filters=filters,
        partitions=0,
        idle_limit_ms=hold_ms,
        sink_uri=sink_uri,
        options=options,
        added=added,
    )


def resume_replication(
    catalog: Catalog,
    tenant: Tenant,
    changefeed_id: str,
    *,
    to_ts: int | None = None,
    actor: str = "",
    sees: Sees = no_other,
) -> None:
    """Run it again and try its stopped lanes again. `to_ts`: all lanes continue above it, also further back.
    StateForbids when it is finished and not moved below its target, InvalidInput when another one writes to the same
    place."""
    asked = {**tenant_ids(tenant), "asked_id": changefeed_id}
    with catalog.transaction() as conn:
        row = _locked(conn, tenant, changefeed_id)
        if row.state == FeedState.FINISHED and (to_ts is None or to_ts >= row.target_ts > 0):
            raise StateForbids(f"Changefeed {changefeed_id} is finished.", state=row.state)
        retry_lanes(conn, tenant, changefeed_id)
        values: dict[str, Any] = {"state": FeedState.NORMAL, "error": None, "seen_ms": now_ms()}
        if to_ts is not None:
            newest = select(amendments.c.number).where(of_asked_tenant(amendments))
            seen = max((int(number) for number in conn.execute(newest, asked).scalars()), default=0)
            rewind_lanes(conn, tenant, changefeed_id, to_ts, seen)
            values["checkpoint_ts"] = to_ts
        conn.execute(changefeeds.update().where(_ONE).values(**values), asked)
        record_event(
            conn, EventKind.CHANGEFEED_CHANGED, changefeed_id, tenant=tenant, actor=actor,
            was=row.state, to=FeedState.NORMAL, to_ts=None if to_ts is None else str(to_ts),
        )  # fmt: skip
        _check_place(conn, tenant, changefeed_id, row.options, sees)


def update_replication(
    catalog: Catalog,
    tenant: Tenant,
    changefeed_id: str,
    *,
    sink_uri: str,
    options: str,
    filters: str,
    target_ts: int,
    hold_ms: int,
    actor: str = "",
    sees: Sees = no_other,
) -> None:
    """Change the settings of a replication that does not run. StateForbids while it is normal, InvalidInput when
    another one writes to the same place."""
    asked = {**tenant_ids(tenant), "asked_id": changefeed_id}
    with catalog.transaction() as conn:
        row = _locked(conn, tenant, changefeed_id)
        if row.state not in _IDLE:
            raise StateForbids(f"Changefeed {changefeed_id} runs: pause it first.", state=row.state)
        values = {"sink_uri": sink_uri, "options": options, "filters": filters}
        numbers = {"target_ts": target_ts, "idle_limit_ms": hold_ms}
        conn.execute(changefeeds.update().where(_ONE).values(**values, **numbers), asked)
        record_event(conn, EventKind.CHANGEFEED_CHANGED, changefeed_id, tenant=tenant, actor=actor)
        _check_place(conn, tenant, changefeed_id, options, sees)


def fail_replication(catalog: Catalog, lane: LaneRow, error: dict[str, Any]) -> None:
    """No retry of this lane can succeed: the changefeed is failed until an operator resumes it. Fenced when the lane
    has another owner."""
    asked = {**tenant_ids(lane.tenant), "asked_id": lane.changefeed_id}
    with catalog.transaction() as conn:
        _locked(conn, lane.tenant, lane.changefeed_id)
        mine = select(_l.lane_id).where(_l.lane_id == lane.lane_id, _l.epoch == lane.epoch)
        if conn.execute(mine).first() is None:
            raise Fenced(f"Lane {lane.number} of changefeed {lane.changefeed_id} has another owner.")
        failed = {"state": FeedState.FAILED, "error": error_text(error)}
        changed = conn.execute(changefeeds.update().where(_ONE, _f.state == FeedState.NORMAL).values(**failed), asked)
        if changed.rowcount:
            record_event(
                conn, EventKind.CHANGEFEED_FAILED, lane.changefeed_id, tenant=lane.tenant, lane=lane.number, **error
            )


def decide_refusal(
    catalog: Catalog, tenant: Tenant, changefeed_id: str, number: int, *, leave_out: bool, dry_run: bool = False
) -> dict[str, Any]:
    """Try the refused change of a stopped lane again, or leave it out; why the lane is stopped. StateForbids when it is
    not, NotFound without such a lane."""
    lane = next((each for each in list_lanes(catalog, tenant, changefeed_id) if each.number == number), None)
    if lane is None:
        raise NotFound(f"Changefeed {changefeed_id} has no lane {number}.", lane=number)
    error = lane.error
    if error is None or not lane.is_stopped:
        raise StateForbids(f"Lane {number} of changefeed {changefeed_id} is not stopped.", lane=number)
    if leave_out and not {"key", "commit_ts"} <= error.keys():
        raise StateForbids(f"The destination did not say which change of lane {number} it refuses.", lane=number)
    if not dry_run:
        kept = skip(lane.scope, str(error["key"]), int(error["commit_ts"])) if leave_out else lane.scope
        rescope(catalog, lane, kept)
    return error


def _check_place(conn: Any, tenant: Tenant, changefeed_id: str, options: str, sees: Sees) -> None:
    """InvalidInput when another changefeed writes to the place in these options."""
    place = place_in(options)
    if place is None:
        return
    next_numbers(conn, "lane", 0)  # its row is the lock
    for other in conn.execute(_WRITERS):
        owner, theirs = tenant_of(other), place_in(other.options)
        if (owner, other.changefeed_id) != (tenant, changefeed_id) and theirs is not None and place.meets(theirs):
            who = called(owner, other.changefeed_id, tenant, sees)
            raise InvalidInput(
                f"{who} writes to {place.shared}. Let one write elsewhere, or remove one; a paused one counts, too.",
                option="sink-uri",
            )


def _locked(conn: Any, tenant: Tenant, changefeed_id: str) -> Any:
    row = conn.execute(_LOCK, {**tenant_ids(tenant), "asked_id": changefeed_id}).one_or_none()
    if row is None:
        raise no_changefeed(tenant, changefeed_id)
    if not row.sink_uri:
        raise StateForbids(f"Changefeed {changefeed_id} has no destination: members read it.", state=row.state)
    return row
