"""The lifecycle of changefeeds, with their lanes. Each call is one transaction.

create   the changefeed and its first lanes
resume   normal again, with all errors forgotten; its checkpoint may be moved
update   other settings, while it is stopped or failed
remove   with its lanes; its destination is released
end      by a lane's owner: the target is reached, and the destination knows it
fail     by a lane's owner: an error that no retry can mend, such as a log that no longer has what follows

The first three claim the destination (`tistream.catalog.tenancy.destinations`), and are refused when another one has
it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, bindparam, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_event
from tistream.catalog.database.tables import (
    changefeeds,
    lanes,
    of_asked_tenant,
    tenant_of,
)
from tistream.catalog.tenancy import destinations
from tistream.catalog.tenancy.changefeeds import CHANGEFEEDS
from tistream.catalog.tenancy.log_readers import ReaderState, reader_ids, refuse_future
from tistream.catalog.work.core.lane_scope import LaneScope, error_text, skip
from tistream.catalog.work.core.location import Files, letters_in, location_in, location_of_text, location_text
from tistream.catalog.work.lanes import (
    LaneRow,
    add_lanes,
    list_lanes,
    rescope,
    retry_lanes,
    rewind_lanes,
)
from tistream.errors import Fenced, InvalidInput, NotFound, StateForbids
from tistream.ids import Tenant

_f, _l = changefeeds.c, lanes.c
_ONE = CHANGEFEEDS.one
_REMOVE_LANES = lanes.delete().where(of_asked_tenant(lanes), _l.changefeed_id == bindparam("asked_id"))
_IS_CURRENT = (
    changefeeds.update()
    .where(_ONE, _f.state == ReaderState.NORMAL, _f.checkpoint_ts >= bindparam("to_ts"))
    .values(last_active_ms=now_ms())
)
_WITH_DEAD_LETTERS = select(_f.cluster_id, _f.tenant_id, _f.changefeed_id, _f.options).where(
    _f.options.contains('"dead_letter_location":'), _f.state != ReaderState.FINISHED
)
_IDLE = (ReaderState.STOPPED, ReaderState.FAILED, ReaderState.FINISHED)
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


def create_changefeed(
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
    """Register a changefeed that has everything at or below `start_ts` (None: the start of the log). `hold_ms`: how
    long its log is kept while its checkpoint does not move; 0 = for ever. False when it is already registered alike;
    InvalidInput when another one writes to the same destination; other errors as `ReaderTable.add`."""
    settings = {"target_ts": target_ts, "filters": filters, "idle_limit_ms": hold_ms}
    settings |= {"sink_uri": sink_uri, "options": options}
    with catalog.transaction() as conn:
        start = CHANGEFEEDS.add(conn, tenant, changefeed_id, start_ts, settings, {"dead_letters": 0})
        if start is None:
            return False
        claimed = _claim(conn, tenant, changefeed_id, options, sees)
        add_lanes(conn, tenant, changefeed_id, scopes, start, claimed)
        record_event(
            conn, EventKind.CHANGEFEED_CREATED, changefeed_id, tenant=tenant, actor=actor, start_ts=str(start),
            **destinations.repeats(start, claimed.attempted_ts),
        )  # fmt: skip
        return True


def resume_changefeed(
    catalog: Catalog,
    tenant: Tenant,
    changefeed_id: str,
    *,
    to_ts: int | None = None,
    actor: str = "",
    sees: Sees = no_other,
) -> None:
    """Run it again and try its stopped lanes again. `to_ts`: all lanes continue above it, also further back.
    StateForbids when it is finished and not moved below its target, TsOutOfRange when it is moved into the future,
    InvalidInput when another one writes to the same destination."""
    with catalog.transaction() as conn:
        row = CHANGEFEEDS.locked(conn, tenant, changefeed_id)
        if row.state == ReaderState.FINISHED and (to_ts is None or to_ts >= row.target_ts > 0):
            raise StateForbids(f"Changefeed {changefeed_id} is finished.", state=row.state)
        claimed = _claim(conn, tenant, changefeed_id, row.options, sees)
        retry_lanes(conn, tenant, changefeed_id)
        values: dict[str, Any] = {"state": ReaderState.NORMAL, "error": None, "last_active_ms": now_ms()}
        named: dict[str, str] = {}
        if to_ts is not None:
            refuse_future(conn, tenant, to_ts)
            named = rewind_lanes(conn, tenant, changefeed_id, to_ts, claimed)
            values["checkpoint_ts"] = to_ts
        conn.execute(changefeeds.update().where(_ONE).values(**values), reader_ids(tenant, changefeed_id))
        record_event(
            conn, EventKind.CHANGEFEED_CHANGED, changefeed_id, tenant=tenant, actor=actor,
            was=row.state, to=ReaderState.NORMAL, to_ts=None if to_ts is None else str(to_ts), **named,
        )  # fmt: skip


def update_changefeed(
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
    """Change the settings of a changefeed that does not run. Another destination or other filters hold from its
    checkpoint on: lanes that are above it go back to it, under new epochs, and what is not finished is planned again.
    StateForbids while it is normal, InvalidInput when another one writes to the same destination."""
    with catalog.transaction() as conn:
        row = CHANGEFEEDS.locked(conn, tenant, changefeed_id)
        if row.state not in _IDLE:
            raise StateForbids(f"Changefeed {changefeed_id} runs: pause it first.", state=row.state)
        is_over = row.state == ReaderState.FINISHED
        claimed = _claim(conn, tenant, changefeed_id, options, sees, take=not is_over)
        named: dict[str, str] = {}
        if not is_over and (location_in(options), filters) != (location_in(row.options), row.filters):
            named = rewind_lanes(conn, tenant, changefeed_id, row.checkpoint_ts, claimed)
        values = {"sink_uri": sink_uri, "options": options, "filters": filters}
        numbers = {"target_ts": target_ts, "idle_limit_ms": hold_ms}
        conn.execute(changefeeds.update().where(_ONE).values(**values, **numbers), reader_ids(tenant, changefeed_id))
        record_event(conn, EventKind.CHANGEFEED_CHANGED, changefeed_id, tenant=tenant, actor=actor, **named)


def remove_changefeed(catalog: Catalog, tenant: Tenant, changefeed_id: str) -> bool:
    """Delete the changefeed, which releases its log and its destination. False when it does not exist."""
    with catalog.transaction() as conn:
        removed = CHANGEFEEDS.delete(conn, tenant, changefeed_id)
        destinations.release(conn, tenant, changefeed_id)
        conn.execute(_REMOVE_LANES, reader_ids(tenant, changefeed_id))
        return removed


def note_current(catalog: Catalog, lane: LaneRow, resolved_ts: int) -> None:
    """A worker has seen that nothing is left to write up to the watermark `resolved_ts`: a changefeed that has all of
    its log is not idle, however long its source is away."""
    with catalog.transaction() as conn:
        conn.execute(_IS_CURRENT, {**reader_ids(lane.tenant, lane.changefeed_id), "to_ts": resolved_ts})


def end_changefeed(catalog: Catalog, lane: LaneRow) -> bool:
    """Finished, if its checkpoint has reached its target: the owner of a lane has told the destination. It releases its
    destination. Whether it is so; Fenced when the lane has another owner."""
    with catalog.transaction() as conn:
        CHANGEFEEDS.locked(conn, lane.tenant, lane.changefeed_id)
        _check_owner(conn, lane)
        is_over = _ONE, _f.target_ts > 0, _f.target_ts <= _f.checkpoint_ts, _f.state == ReaderState.NORMAL
        end = changefeeds.update().where(*is_over).values(state=ReaderState.FINISHED)
        ended = conn.execute(end, reader_ids(lane.tenant, lane.changefeed_id)).rowcount == 1
        if ended:
            destinations.release(conn, lane.tenant, lane.changefeed_id)
        return ended


def fail_changefeed(catalog: Catalog, lane: LaneRow, error: dict[str, Any]) -> None:
    """No retry of this lane can succeed: the changefeed is failed until an operator resumes it. Fenced when the lane
    has another owner."""
    with catalog.transaction() as conn:
        CHANGEFEEDS.locked(conn, lane.tenant, lane.changefeed_id)
        _check_owner(conn, lane)
        failed = {"state": ReaderState.FAILED, "error": error_text(error)}
        fail = changefeeds.update().where(_ONE, _f.state == ReaderState.NORMAL).values(**failed)
        if conn.execute(fail, reader_ids(lane.tenant, lane.changefeed_id)).rowcount:
            record_event(
                conn, EventKind.CHANGEFEED_FAILED, lane.changefeed_id, tenant=lane.tenant, lane=lane.number, **error
            )


def decide_refusal(
    catalog: Catalog,
    tenant: Tenant,
    changefeed_id: str,
    number: int,
    *,
    leave_out: bool,
    dry_run: bool = False,
    change: tuple[str, int] | None = None,
) -> dict[str, Any]:
    """Try the refused change of a stopped lane again, or leave it out; why the lane is stopped. `change`: the one to
    leave out, as `Skipped` names it; repeated, it does nothing more. StateForbids when the lane is not stopped, or by
    another change; NotFound without such a lane."""
    lane = next((each for each in list_lanes(catalog, tenant, changefeed_id) if each.number == number), None)
    if lane is None:
        raise NotFound(f"Changefeed {changefeed_id} has no lane {number}.", lane=number)
    if change is not None and change in lane.scope.skipped:
        return {"key": change[0], "commit_ts": str(change[1])}
    error = lane.error
    if error is None or not lane.is_stopped:
        raise StateForbids(f"Lane {number} of changefeed {changefeed_id} is not stopped.", lane=number)
    if leave_out and not {"key", "commit_ts"} <= error.keys():
        raise StateForbids(f"The destination did not say which change of lane {number} it refuses.", lane=number)
    if leave_out and change is not None and change != (str(error["key"]), int(error["commit_ts"])):
        raise StateForbids(
            f"Lane {number} of changefeed {changefeed_id} is stopped by another change.",
            lane=number, key=error["key"], commit_ts=str(error["commit_ts"]),
        )  # fmt: skip
    if not dry_run:
        key, commit_ts = str(error.get("key")), int(error.get("commit_ts", 0))
        rescope(catalog, lane, skip(lane.scope, key, commit_ts, lane.checkpoint_ts) if leave_out else lane.scope)
    return error


def _claim(
    conn: Connection, tenant: Tenant, changefeed_id: str, options: str, sees: Sees, *, take: bool = True
) -> destinations.Claimed:
    """Claim the location in these options. InvalidInput when another changefeed writes to it."""
    location = location_in(options)
    if location is None:
        return destinations.Claimed()

    def refusal(owner: Tenant, name: str) -> InvalidInput:
        return InvalidInput(
            f"{called(owner, name, tenant, sees)} writes to {location.shared}. Let one write elsewhere, or remove one; "
            "a paused one counts, too.",
            option="sink-uri",
        )

    def overlaps(text: str) -> bool:
        return location.overlaps(location_of_text(text))

    wanted = destinations.Wanted(root_hash=location.root_hash, location=location_text(location), overlaps=overlaps)
    claimed = destinations.claim(conn, tenant, changefeed_id, wanted, refusal, take=take)
    _check_letters(conn, tenant, changefeed_id, options, sees)
    return claimed


def _check_letters(conn: Connection, tenant: Tenant, changefeed_id: str, options: str, sees: Sees) -> None:
    """InvalidInput when its dead letters would be in a destination, or another one's letters would be in its own. Its
    destination is claimed: no other request changes one meanwhile."""
    letters, location = letters_in(options), location_in(options)
    for row in [] if letters is None else destinations.owned_at(conn, letters.root_hash):
        other = location_of_text(row.location)
        if letters is not None and isinstance(other, Files) and other.has(letters):
            text = (
                f"{called(tenant_of(row), row.changefeed_id, tenant, sees)} writes to that folder, or to one above it"
            )
            raise InvalidInput(f"{text}. The dead letters need a place of their own.", option="dead-letter")
    for row in conn.execute(_WITH_DEAD_LETTERS) if isinstance(location, Files) else []:
        folder, is_own = letters_in(row.options), (tenant_of(row), row.changefeed_id) == (tenant, changefeed_id)
        if isinstance(location, Files) and folder is not None and not is_own and location.has(folder):
            owner = called(tenant_of(row), row.changefeed_id, tenant, sees)
            raise InvalidInput(f"{owner} has its dead letters in this folder. Write to another one.", option="sink-uri")


def _check_owner(conn: Connection, lane: LaneRow) -> None:
    mine = select(_l.lane_id).where(_l.lane_id == lane.lane_id, _l.epoch == lane.epoch)
    if conn.execute(mine).first() is None:
        raise Fenced(f"Lane {lane.number} of changefeed {lane.changefeed_id} has another owner.")
