"""Lanes of changefeeds: the unit of ownership and of progress of a changefeed that the service runs.

    assign_lanes       by the leader: owner, epoch + 1; `catch_up_ts` becomes what the owner before has attempted
    lanes_of           what a worker may write, and from when on
    attempt_stretch    `attempted_ts` rises, with the record of the plan, before anything beyond it is written
    finish_stretch     `checkpoint_ts` rises, and with it the changefeed's, the lowest of its lanes
    give_up_lane       the owner has stopped writing: the next one need not wait

    checkpoint_ts <= attempted_ts                     both never fall while a lane exists
    checkpoint_ts < catch_up_ts                           catching up: a key may show an older version than before

A destination cannot fence a writer. So an owner writes only until LANE_LEASE_MS after it last read its lanes, or wrote
to one of them, and a new owner from LANE_LEASE_MS after it first read that the lane is its own, unless the owner before
has given it up; each by its own monotonic clock. Until the transaction that changes the owner commits the one before
reads that the lane is its own. The new one reads it after the commit, so a time that counts from there is long enough;
one that the transaction stores is not. Epochs fence the catalog.

`writable_ms` is 0 once no former owner can write: one has given the lane up, or this one has begun to write. Else it is
shown: about when that will be, by the database's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection, and_, bindparam, case, func, literal, or_, select
from sqlalchemy.sql.elements import ColumnElement

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_assignments, record_event
from tistream.catalog.database.records import record_of
from tistream.catalog.database.tables import changefeeds, lanes, next_numbers, of_asked_tenant, tenant_ids, tenant_of
from tistream.catalog.tenancy.destinations import Claimed, repeats
from tistream.catalog.tenancy.log_readers import ReaderState
from tistream.catalog.work.core.lane_scope import LaneScope, Progress, error_text, inherited, parse_scope, with_skipped
from tistream.catalog.work.tasks import holds_leadership
from tistream.catalog.work.workers import is_newest_incarnation
from tistream.errors import Fenced, NotFound
from tistream.ids import Tenant
from tistream.limits import LANE_LEASE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneRow:
    """A lane as the catalog has it."""

    lane_id: int
    tenant: Tenant
    changefeed_id: str
    number: int  #: order of the lanes of a changefeed
    scope: LaneScope
    checkpoint_ts: int  #: the destination has everything of the lane at or below
    attempted_ts: int  #: and may have anything up to here
    catch_up_ts: int  #: while the checkpoint is below, a key may show an older version than before
    record: str  #: of the plan of an unfinished stretch; empty = none that a retry must know
    record_ts: int  #: where that stretch ends
    epoch: int
    owner: str | None
    is_free: bool  #: no owner before can write
    writable_in_ms: int  #: else about how long one still may, for people
    unmoved_ms: int  #: since the checkpoint rose
    rows_done: int
    bytes_done: int
    tries: int  #: failed ones of the current stretch
    error: dict[str, Any] | None  #: of the last try; with `stopped`, the lane waits for an operator

    @property
    def is_stopped(self) -> bool:
        """Whether it waits for an operator."""
        return self.error is not None and bool(self.error.get("stopped"))


class LaneJob(NamedTuple):
    """A lane that a worker owns, with what it needs to know of the changefeed."""

    lane: LaneRow
    sink_uri: str
    options: str
    filters: str
    target_ts: int
    lanes: int  #: of the changefeed
    idle_limit_ms: int = 0  #: its log is kept for so long while it does not move; 0 = for ever
    first: int = 0  #: the lowest number of its lanes: its owner reports to the destination


_SETTINGS = LaneJob._fields[1:]


class LanePlace(NamedTuple):
    """The owner of a lane."""

    lane_id: int
    tenant: Tenant
    epoch: int
    owner: str | None
    name: str  #: for events


class LaneAssignment(NamedTuple):
    """Assigns a lane to a worker if its epoch is still `seen_epoch`."""

    lane_id: int
    worker_id: str
    seen_epoch: int
    tenant: Tenant | None = None  #: for the event, as what follows
    name: str = ""


_l, _f = lanes.c, changefeeds.c
_OF_FEED = and_(of_asked_tenant(lanes), _l.changefeed_id == bindparam("asked_id"))
_READ = select(lanes, now_ms().label("now_ms"))
_ALL = _READ.where(_OF_FEED).order_by(_l.number)
_OF_TENANT = _READ.where(of_asked_tenant(lanes)).order_by(_l.changefeed_id, _l.number)
_FEED = and_(_f.cluster_id == _l.cluster_id, _f.tenant_id == _l.tenant_id, _f.changefeed_id == _l.changefeed_id)
_COUNTED = (
    select(
        *(lanes.c.changefeed_id, lanes.c.cluster_id, lanes.c.tenant_id),
        func.count().label("lanes"),
        func.min(lanes.c.number).label("first"),
    )
    .group_by(lanes.c.cluster_id, lanes.c.tenant_id, lanes.c.changefeed_id)
    .subquery()
)
_OWNED = (
    select(
        lanes,
        now_ms().label("now_ms"),
        _f.sink_uri,
        _f.options,
        _f.filters,
        _f.target_ts,
        _f.idle_limit_ms,
        _COUNTED.c.lanes,
        _COUNTED.c.first,
    )
    .select_from(
        lanes.join(changefeeds, _FEED).join(
            _COUNTED,
            and_(
                _COUNTED.c.cluster_id == _l.cluster_id,
                _COUNTED.c.tenant_id == _l.tenant_id,
                _COUNTED.c.changefeed_id == _l.changefeed_id,
            ),
        )
    )
    .where(_l.owner == bindparam("asked_worker"), _f.state == ReaderState.NORMAL, is_newest_incarnation())
    .order_by(_l.lane_id)
)
_RUNNING = select(_l.lane_id, _l.cluster_id, _l.tenant_id, _l.epoch, _l.owner, _l.changefeed_id, _l.number).join(
    changefeeds, _FEED
)
_PLACES = _RUNNING.where(_f.state == ReaderState.NORMAL).order_by(_l.lane_id)
_FREE = (
    select(_l.lane_id, _l.epoch)
    .where(_l.lane_id.in_(bindparam("asked_lanes", expanding=True)))
    .order_by(_l.lane_id)
    .with_for_update(skip_locked=True)
)
_IS_MINE = and_(_l.lane_id == bindparam("asked_lane"), _l.epoch == bindparam("my_epoch"))


def _raised_attempt() -> ColumnElement[int]:
    return case((_l.attempted_ts > bindparam("to_ts"), _l.attempted_ts), else_=bindparam("to_ts"))


_ATTEMPT = (
    lanes.update()
    .where(_IS_MINE, _l.checkpoint_ts == bindparam("seen_ts"))
    .values(attempted_ts=_raised_attempt(), record=bindparam("new_record"), record_ts=bindparam("to_ts"), writable_ms=0)
)
_FINISH = (
    lanes.update()
    .where(_IS_MINE, _l.checkpoint_ts <= bindparam("to_ts"))
    .values(
        checkpoint_ts=bindparam("to_ts"),
        attempted_ts=_raised_attempt(),
        record="",
        record_ts=0,
        error=None,
        tries=0,
        writable_ms=0,
        advanced_ms=now_ms(),
        rows_done=_l.rows_done + bindparam("more_rows"),
        bytes_done=_l.bytes_done + bindparam("more_bytes"),
    )
)
_LOWEST = select(func.min(_l.checkpoint_ts)).where(_OF_FEED).scalar_subquery()
_MOVE_FEED = (
    changefeeds.update()
    .where(of_asked_tenant(changefeeds), _f.changefeed_id == bindparam("asked_id"), _f.checkpoint_ts < _LOWEST)
    .values(checkpoint_ts=_LOWEST, last_active_ms=now_ms())
)
_COUNT_LETTERS = (
    changefeeds.update()
    .where(of_asked_tenant(changefeeds), _f.changefeed_id == bindparam("asked_id"))
    .values(dead_letters=_f.dead_letters + bindparam("more_letters"))
)
_LOCK_FEED = (
    select(_f.state).where(of_asked_tenant(changefeeds), _f.changefeed_id == bindparam("asked_id")).with_for_update()
)
_FEED_TS = select(_f.checkpoint_ts).where(of_asked_tenant(changefeeds), _f.changefeed_id == bindparam("asked_id"))
_UNFINISHED = select(_l.attempted_ts, _l.record, _l.record_ts).where(_IS_MINE)
_FAIL = lanes.update().where(_IS_MINE).values(error=bindparam("new_error"), tries=_l.tries + 1)
_GIVE_UP = lanes.update().where(_IS_MINE).values(owner=None, epoch=_l.epoch + 1, catch_up_ts=_l.attempted_ts)
_LEFT = lanes.update().where(_l.lane_id == bindparam("asked_lane"), _l.epoch == bindparam("my_epoch") + 1)
_FREED = _LEFT.values(writable_ms=0)


def _give(conn: Connection, given: Sequence[LaneAssignment]) -> None:
    """Give these lanes, which are locked and have the seen epochs, to their workers."""
    owners = case({a.lane_id: a.worker_id for a in given}, value=_l.lane_id)
    writable_ms = case((_l.owner.is_not(None), now_ms() + LANE_LEASE_MS), else_=_l.writable_ms)
    conn.execute(
        lanes.update()
        .where(_l.lane_id.in_([a.lane_id for a in given]))
        .ordered_values(  # MariaDB assigns in this order: the owner last: `writable_ms` depends on the former one
            (_l.writable_ms, writable_ms),
            (_l.catch_up_ts, _l.attempted_ts),
            (_l.epoch, _l.epoch + 1),
            (_l.owner, owners),
        )
    )


def lane_places(catalog: Catalog) -> list[LanePlace]:
    """The owner of each lane of all running changefeeds, by id: the lanes of others are no work of anybody."""
    with catalog.reading() as conn:
        return [
            LanePlace(row.lane_id, tenant_of(row), row.epoch, row.owner, f"{row.number} of {row.changefeed_id}")
            for row in conn.execute(_PLACES)
        ]


def assign_lanes(catalog: Catalog, assignments: Sequence[LaneAssignment], *, leader_epoch: int) -> int:
    """Assign lanes in one transaction, each with its own guard; the number assigned. 0 when `leader_epoch` is not the
    leader's. Locked rows are skipped until the next call."""
    if not assignments:
        return 0
    wanted = {a.lane_id: a for a in assignments}
    with catalog.transaction() as conn:
        if not holds_leadership(conn, leader_epoch):
            return 0
        rows = conn.execute(_FREE, {"asked_lanes": sorted(wanted)}).all()
        given = [wanted[lane_id] for lane_id, epoch in rows if wanted[lane_id].seen_epoch == epoch]
        if given:
            _give(conn, given)
            told = [(a.name or a.lane_id, a.tenant, a.worker_id) for a in given]
            record_assignments(conn, EventKind.LANE_ASSIGNED, told, leader_epoch=leader_epoch)
        return len(given)


def lanes_of(catalog: Catalog, worker_id: str, incarnation: int) -> list[LaneJob]:
    """The lanes of running changefeeds that this incarnation of the worker owns, by id. Empty when a newer one has
    registered."""
    asked = {"asked_worker": worker_id, "asked_incarnation": incarnation}
    with catalog.reading() as conn:
        return [LaneJob(_row(row), *(getattr(row, name) for name in _SETTINGS)) for row in conn.execute(_OWNED, asked)]


def list_lanes(catalog: Catalog, tenant: Tenant, changefeed_id: str | None = None) -> list[LaneRow]:
    """The lanes of a changefeed, or of all of the tenant, by number."""
    asked = {**tenant_ids(tenant), "asked_id": changefeed_id}
    query = _OF_TENANT if changefeed_id is None else _ALL
    with catalog.reading() as conn:
        return [_row(row) for row in conn.execute(query, asked)]


def attempt_stretch(catalog: Catalog, lane: LaneRow, upto: int, record: str, *, again: bool = False) -> None:
    """Note that the stretch above the lane's checkpoint is written up to `upto` from now on. `again`: it is planned
    otherwise than by an earlier try, which may have written any part of it; an event names that. Safe to repeat. Fenced
    when the lane has another owner or checkpoint."""
    asked = {**_mine(lane), "seen_ts": lane.checkpoint_ts, "to_ts": upto, "new_record": record}
    with catalog.transaction() as conn:
        if conn.execute(_ATTEMPT, asked).rowcount != 1:
            raise _fenced(lane)
        if again:
            attempted_ts = int(conn.execute(_UNFINISHED, _mine(lane)).one().attempted_ts)
            record_event(
                conn, EventKind.CHANGEFEED_REPEATS, lane.changefeed_id, tenant=lane.tenant, lane=lane.number,
                **repeats(lane.checkpoint_ts, attempted_ts),
            )  # fmt: skip


def finish_stretch(catalog: Catalog, lane: LaneRow, upto: int, *, rows: int, size: int, letters: int = 0) -> int:
    """The destination has everything of the lane at or below `upto`, but for `letters` changes, which are dead letters;
    the changefeed's checkpoint. Safe to repeat, without letters. Fenced when the lane has another owner."""
    asked = {**_mine(lane), "to_ts": upto, "more_rows": rows, "more_bytes": size}
    feed = {**tenant_ids(lane.tenant), "asked_id": lane.changefeed_id}
    with catalog.transaction() as conn:
        conn.execute(_LOCK_FEED, feed)  # first, so that two lanes of a changefeed never wait for each other
        if conn.execute(_FINISH, asked).rowcount != 1:
            raise _fenced(lane)
        conn.execute(_MOVE_FEED, feed)
        if letters:
            conn.execute(_COUNT_LETTERS, {**feed, "more_letters": letters})
        return int(conn.execute(_FEED_TS, feed).scalar_one())


def fail_stretch(catalog: Catalog, lane: LaneRow, error: dict[str, Any]) -> None:
    """Note the error of a try. Fenced when the lane has another owner."""
    with catalog.transaction() as conn:
        if conn.execute(_FAIL, {**_mine(lane), "new_error": error_text(error)}).rowcount != 1:
            raise _fenced(lane)


def give_up_lane(catalog: Catalog, lane: LaneRow, *, waited: bool = False) -> None:
    """The owner has stopped writing: the next one waits only for those before. When it has another owner already, that
    one need not wait any more, unless this one has `waited` to its end and never written. Safe to repeat."""
    with catalog.transaction() as conn:
        if conn.execute(_GIVE_UP, _mine(lane)).rowcount != 1 and not waited:
            conn.execute(_FREED, _mine(lane))


def add_lanes(
    conn: Connection, tenant: Tenant, changefeed_id: str, wanted: Sequence[LaneScope], start_ts: int, claimed: Claimed
) -> None:
    """The first lanes of a changefeed, which the caller's transaction adds, at the destination that it has claimed."""
    fresh = [(scope, start_ts, max(start_ts, claimed.attempted_ts)) for scope in wanted]
    writable_ms = 0 if claimed.is_free else LANE_LEASE_MS
    _insert(conn, tenant, changefeed_id, fresh, first=0, writable_ms=writable_ms, epoch=claimed.epoch)


def replace_lanes(catalog: Catalog, tenant: Tenant, changefeed_id: str, wanted: Sequence[LaneScope]) -> list[LaneRow]:
    """Replace all lanes of a changefeed at once; those before. Each new one starts at the least checkpoint that it
    covers, and may be written when no owner before may write any more. NotFound without lanes."""
    asked = {**tenant_ids(tenant), "asked_id": changefeed_id}
    with catalog.transaction() as conn:
        next_numbers(conn, "lane", 0)  # before any lane, as `destinations.claim` locks: one order
        before = [_row(row) for row in conn.execute(_ALL.with_for_update(), asked)]
        if not before:
            raise NotFound(f"Changefeed {changefeed_id} of tenant {tenant} has no lanes.", changefeed_id=changefeed_id)
        conn.execute(lanes.delete().where(_OF_FEED), asked)
        old = [
            Progress(scope=lane.scope, checkpoint_ts=lane.checkpoint_ts, attempted_ts=lane.attempted_ts)
            for lane in before
        ]
        fresh = []
        for scope in wanted:
            checkpoint_ts, attempted_ts = inherited(scope, old)
            scope = with_skipped(scope, [lane.scope for lane in before], checkpoint_ts)
            fresh.append((scope, checkpoint_ts, attempted_ts))
        wait_ms = LANE_LEASE_MS if any(lane.owner is not None or not lane.is_free for lane in before) else 0
        _insert(
            conn, tenant, changefeed_id, fresh, first=max(lane.number for lane in before) + 1,
            writable_ms=wait_ms, epoch=max(lane.epoch for lane in before) + 1,
        )  # fmt: skip
        named = repeats(min(lane.checkpoint_ts for lane in before), max(lane.attempted_ts for lane in before))
        record_event(
            conn, EventKind.CHANGEFEED_REBALANCED, changefeed_id, tenant=tenant, was=len(before), lanes=len(wanted),
            **named,
        )  # fmt: skip
        return before


def isolate(catalog: Catalog, lane: LaneRow, rest: LaneScope, alone: LaneScope, error: dict[str, Any]) -> None:
    """Give a refused change's table or key a lane of its own, which is stopped; the rest of the lane continues. Fenced
    when the lane has another owner."""
    with catalog.transaction() as conn:
        next_numbers(conn, "lane", 0)  # before any lane, as `destinations.claim` locks: one order
        changed = lanes.update().where(_IS_MINE, _l.checkpoint_ts == bindparam("seen_ts"))
        asked = {**_mine(lane), "seen_ts": lane.checkpoint_ts}
        if conn.execute(changed.values(scope=rest.text(), error=None, tries=0), asked).rowcount != 1:
            raise _fenced(lane)
        last = select(func.max(_l.number)).where(_OF_FEED)
        number = int(conn.execute(last, {**tenant_ids(lane.tenant), "asked_id": lane.changefeed_id}).scalar_one())
        now = conn.execute(_UNFINISHED, _mine(lane)).one()  # the caller may have taken the lane over before the attempt
        fresh = [(alone, lane.checkpoint_ts, now.attempted_ts)]
        _insert(
            conn, lane.tenant, lane.changefeed_id, fresh, first=number + 1, writable_ms=0,
            record=now.record, record_ts=now.record_ts, error=error_text({**error, "stopped": True}), epoch=lane.epoch,
        )  # fmt: skip
        record_event(conn, EventKind.CHANGEFEED_STOPPED, lane.changefeed_id, tenant=lane.tenant, **error)


def rescope(catalog: Catalog, lane: LaneRow, scope: LaneScope) -> None:
    """An operator's decision about a stopped lane: it is tried again, with this scope. Fenced when it has changed
    meanwhile."""
    with catalog.transaction() as conn:
        unchanged = and_(_l.lane_id == bindparam("asked_lane"), _l.checkpoint_ts == bindparam("seen_ts"))
        changed = lanes.update().where(unchanged, _l.error.is_not(None))
        asked = {"asked_lane": lane.lane_id, "seen_ts": lane.checkpoint_ts}
        if conn.execute(changed.values(scope=scope.text(), error=None, tries=0), asked).rowcount != 1:
            raise Fenced(f"Lane {lane.number} of changefeed {lane.changefeed_id} has changed meanwhile.")


def rewind_lanes(conn: Connection, tenant: Tenant, changefeed_id: str, to_ts: int, claimed: Claimed) -> dict[str, str]:
    """Let all lanes of a changefeed continue above `to_ts`, under new epochs, at the destination that it has claimed:
    what was attempted is planned anew. What may be written again, for an event."""
    asked = {**tenant_ids(tenant), "asked_id": changefeed_id}
    attempted_ts = int(conn.execute(select(func.max(_l.attempted_ts)).where(_OF_FEED), asked).scalar() or 0)
    waits = or_(_l.owner.is_not(None), literal(not claimed.is_free))
    writable_ms = case((waits, now_ms() + LANE_LEASE_MS), else_=_l.writable_ms)
    moved = lanes.update().where(_OF_FEED).ordered_values(  # see `_give`
        (_l.writable_ms, writable_ms), (_l.catch_up_ts, _higher(_l.attempted_ts, claimed.attempted_ts)),
        (_l.checkpoint_ts, to_ts),
        (_l.attempted_ts, _higher(_higher(_l.attempted_ts, claimed.attempted_ts), to_ts)),
        (_l.record, ""), (_l.record_ts, 0), (_l.epoch, _higher(_l.epoch, claimed.epoch) + 1),
    )  # fmt: skip
    conn.execute(moved, asked)
    return repeats(to_ts, max(attempted_ts, claimed.attempted_ts))


def _higher(column: ColumnElement[int], value: int) -> ColumnElement[int]:
    return case((column > value, column), else_=value)


def retry_lanes(conn: Connection, tenant: Tenant, changefeed_id: str) -> None:
    """Try all stopped lanes of a changefeed again."""
    asked = {**tenant_ids(tenant), "asked_id": changefeed_id}
    conn.execute(
        lanes.update().where(_OF_FEED, or_(_l.error.is_not(None), _l.tries > 0)).values(error=None, tries=0), asked
    )


def _insert(
    conn: Connection,
    tenant: Tenant,
    changefeed_id: str,
    fresh: Sequence[tuple[LaneScope, int, int]],
    *,
    first: int,
    writable_ms: int,
    record: str = "",
    record_ts: int = 0,
    error: str | None = None,
    epoch: int = 0,
) -> None:
    numbers = next_numbers(conn, "lane", len(fresh))
    conn.execute(
        lanes.insert().values(writable_ms=now_ms() + writable_ms if writable_ms else 0, advanced_ms=now_ms()),
        [
            {
                "lane_id": lane_id,
                "cluster_id": tenant.cluster_id,
                "tenant_id": tenant.tenant_id,
                "changefeed_id": changefeed_id,
                "number": first + n,
                "scope": scope.text(),
                "checkpoint_ts": checkpoint_ts,
                "attempted_ts": attempted_ts,
                "catch_up_ts": attempted_ts,
                "record": record,
                "record_ts": record_ts,
                "epoch": epoch,
                "owner": None,
                "rows_done": 0,
                "bytes_done": 0,
                "tries": 0,
                "error": error,
            }
            for n, (lane_id, (scope, checkpoint_ts, attempted_ts)) in enumerate(zip(numbers, fresh, strict=True))
        ],
    )


def _mine(lane: LaneRow) -> dict[str, Any]:
    return {"asked_lane": lane.lane_id, "my_epoch": lane.epoch}


def _fenced(lane: LaneRow) -> Fenced:
    text = f"Lane {lane.number} of changefeed {lane.changefeed_id} has another owner."
    return Fenced(text, changefeed_id=lane.changefeed_id, lane=lane.number, epoch=lane.epoch)


def _row(row: Any) -> LaneRow:
    return record_of(
        LaneRow,
        row,
        tenant=tenant_of(row),
        scope=parse_scope(row.scope),
        is_free=row.writable_ms == 0,
        writable_in_ms=max(0, row.writable_ms - row.now_ms),
        unmoved_ms=max(0, row.now_ms - row.advanced_ms),
        error=None if row.error is None else orjson.loads(row.error),
    )
