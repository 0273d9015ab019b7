"""Lanes of changefeeds: the unit of ownership and of progress of a changefeed that the service runs.

    assign_lanes       by the leader: owner, epoch + 1; `redo_ts` becomes what the owner before has attempted
    lanes_of           what a worker may write, and from when on
    attempt_stretch    `attempted_ts` rises, with the record of the plan, before anything beyond it is written
    finish_stretch     `checkpoint_ts` rises, and with it the changefeed's, the lowest of its lanes
    give_up_lane       the owner has stopped writing: the next one need not wait

    checkpoint_ts <= attempted_ts                     both never fall while a lane exists
    checkpoint_ts < redo_ts                           catching up: a key may show an older version than before

A destination cannot fence a writer. So an owner writes only until LANE_LEASE_MS after it last read its lanes, or wrote
to one of them, and a new owner from LANE_LEASE_MS after it first read that the lane is its own, unless the owner before
has given it up; each by its own monotonic clock. Until the transaction that changes the owner commits, which may take
long, the one before still reads that the lane is its own. The new one reads it after the commit, so a time that counts
from there is long enough; one that the transaction stores is not. Epochs fence the catalog.

`free_ms` is 0 once no owner before can write: one has given the lane up, or this one has begun to write. Else it is for
people: about when that will be, by the database's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson
from sqlalchemy import Connection, and_, bindparam, case, func, literal_column, or_, select
from sqlalchemy.sql.elements import ColumnElement

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_assignments, record_event
from tistream.catalog.database.tables import changefeeds, lanes, next_numbers, of_asked_tenant, tenant_ids, tenant_of
from tistream.catalog.tenancy.changefeeds import FeedState
from tistream.catalog.work.core.lane_scope import LaneScope, Progress, inherited, parse_scope
from tistream.catalog.work.tasks import holds_leadership
from tistream.catalog.work.workers import is_newest_incarnation
from tistream.errors import Fenced, NotFound
from tistream.ids import Tenant
from tistream.limits import LANE_LEASE_MS

_TEXT_MAX = 8000  #: a TEXT column holds 64 KiB of UTF-8


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
    redo_ts: int  #: while the checkpoint is below, a key may show an older version than before
    amended: int  #: number of the newest amendment of the log that is included
    record: str  #: of the plan of an unfinished stretch; empty = none that a retry must know
    record_ts: int  #: where that stretch ends
    epoch: int
    owner: str | None
    is_free: bool  #: no owner before can write
    free_in_ms: int  #: else about how long one still may, for people
    moved_age_ms: int  #: since the checkpoint rose
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


class LanePlace(NamedTuple):
    """The owner of a lane."""

    lane_id: int
    tenant: Tenant
    epoch: int
    owner: str | None


class LaneAssignment(NamedTuple):
    """Assigns a lane to a worker if its epoch is still `seen_epoch`."""

    lane_id: int
    worker_id: str
    seen_epoch: int
    tenant: Tenant | None = None  #: for the event


_l, _f = lanes.c, changefeeds.c
_OF_FEED = and_(of_asked_tenant(lanes), _l.changefeed_id == bindparam("asked_id"))
_READ = select(lanes, now_ms().label("now_ms"))
_ALL = _READ.where(_OF_FEED).order_by(_l.number)
_OF_TENANT = _READ.where(of_asked_tenant(lanes)).order_by(_l.changefeed_id, _l.number)
_FEED = and_(_f.cluster_id == _l.cluster_id, _f.tenant_id == _l.tenant_id, _f.changefeed_id == _l.changefeed_id)
_COUNTED = (
    select(lanes.c.changefeed_id, lanes.c.cluster_id, lanes.c.tenant_id, func.count().label("lanes"))
    .group_by(lanes.c.cluster_id, lanes.c.tenant_id, lanes.c.changefeed_id)
    .subquery()
)
_OWNED = (
    select(lanes, now_ms().label("now_ms"), _f.sink_uri, _f.options, _f.filters, _f.target_ts, _COUNTED.c.lanes)
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
    .where(_l.owner == bindparam("asked_worker"), _f.state == FeedState.NORMAL, is_newest_incarnation())
    .order_by(_l.lane_id)
)
_PLACES = select(_l.lane_id, _l.cluster_id, _l.tenant_id, _l.epoch, _l.owner).order_by(_l.lane_id)
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
    .values(attempted_ts=_raised_attempt(), record=bindparam("new_record"), record_ts=bindparam("to_ts"), free_ms=0)
)
_FINISH = (
    lanes.update()
    .where(_IS_MINE, _l.checkpoint_ts <= bindparam("to_ts"))
    .values(
        checkpoint_ts=bindparam("to_ts"),
        attempted_ts=_raised_attempt(),
        amended=bindparam("seen_amended"),
        record="",
        record_ts=0,
        error=None,
        tries=0,
        free_ms=0,
        moved_ms=now_ms(),
        rows_done=_l.rows_done + bindparam("more_rows"),
        bytes_done=_l.bytes_done + bindparam("more_bytes"),
    )
)
_LOWEST = select(func.min(_l.checkpoint_ts)).where(_OF_FEED).scalar_subquery()
_MOVE_FEED = (
    changefeeds.update()
    .where(of_asked_tenant(changefeeds), _f.changefeed_id == bindparam("asked_id"), _f.checkpoint_ts < _LOWEST)
    .values(
        state=case(
            (
                and_(_f.target_ts > 0, _f.target_ts <= _LOWEST, _f.state == FeedState.NORMAL),
                literal_column(f"'{FeedState.FINISHED}'"),
            ),
            else_=_f.state,
        ),
        checkpoint_ts=_LOWEST,
        seen_ms=now_ms(),
    )
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
_GIVE_UP = lanes.update().where(_IS_MINE).values(owner=None, epoch=_l.epoch + 1, redo_ts=_l.attempted_ts)
_LEFT = lanes.update().where(_l.lane_id == bindparam("asked_lane"), _l.epoch == bindparam("my_epoch") + 1)
_FREED = _LEFT.values(free_ms=0)


def _give(conn: Connection, given: Sequence[LaneAssignment]) -> None:
    """Give these lanes, which are locked and have the seen epochs, to their workers."""
    owners = case({a.lane_id: a.worker_id for a in given}, value=_l.lane_id)
    free_ms = case((_l.owner.is_not(None), now_ms() + LANE_LEASE_MS), else_=_l.free_ms)
    conn.execute(
        lanes.update()
        .where(_l.lane_id.in_([a.lane_id for a in given]))
        .ordered_values(  # MariaDB assigns in this order: the owner last, because `free_ms` depends on the one before
            (_l.free_ms, free_ms), (_l.redo_ts, _l.attempted_ts), (_l.epoch, _l.epoch + 1), (_l.owner, owners)
        )
    )


def lane_places(catalog: Catalog) -> list[LanePlace]:
    """The owner of each lane of all tenants, by id."""
    with catalog.reading() as conn:
        return [LanePlace(row.lane_id, tenant_of(row), row.epoch, row.owner) for row in conn.execute(_PLACES)]


def assign_lanes(catalog: Catalog, assignments: Sequence[LaneAssignment], *, leader_epoch: int) -> int:
    """Assign lanes in one transaction, each with its own guard; the number assigned. 0 when `leader_epoch` is not the
    leader's. Locked rows are skipped until the next call."""
    if not assignments:
        return 0
    wanted = {a.lane_id: a for a in assignments}
    with catalog.transaction() as conn:
        if not holds_leadership(conn, leader_epoch):
            return 0
        found = conn.execute(_FREE, {"asked_lanes": sorted(wanted)}).all()
        given = [wanted[lane_id] for lane_id, epoch in found if wanted[lane_id].seen_epoch == epoch]
        if given:
            _give(conn, given)
            told = [(a.lane_id, a.tenant, a.worker_id) for a in given]
            record_assignments(conn, EventKind.LANE_ASSIGNED, told, leader_epoch=leader_epoch)
        return len(given)


def lanes_of(catalog: Catalog, worker_id: str, incarnation: int) -> list[LaneJob]:
    """The lanes of running changefeeds that this incarnation of the worker owns, by id. Empty when a newer one has
    registered."""
    asked = {"asked_worker": worker_id, "asked_incarnation": incarnation}
    with catalog.reading() as conn:
        return [
            LaneJob(_row(row), row.sink_uri, row.options, row.filters, row.target_ts, row.lanes)
            for row in conn.execute(_OWNED, asked)
        ]


def list_lanes(catalog: Catalog, tenant: Tenant, changefeed_id: str | None = None) -> list[LaneRow]:
    """The lanes of a changefeed, or of all of the tenant, by number."""
    asked = {**tenant_ids(tenant), "asked_id": changefeed_id}
    query = _OF_TENANT if changefeed_id is None else _ALL
    with catalog.reading() as conn:
        return [_row(row) for row in conn.execute(query, asked)]


def attempt_stretch(catalog: Catalog, lane: LaneRow, upto: int, record: str) -> None:
    """Note that the stretch above the lane's checkpoint is written up to `upto` from now on. Safe to repeat. Fenced
    when the lane has another owner or checkpoint."""
    asked = {**_mine(lane), "seen_ts": lane.checkpoint_ts, "to_ts": upto, "new_record": record}
    with catalog.transaction() as conn:
        if conn.execute(_ATTEMPT, asked).rowcount != 1:
            raise _fenced(lane)


def finish_stretch(
    catalog: Catalog, lane: LaneRow, upto: int, *, rows: int, size: int, amended: int, letters: int = 0
) -> int:
    """The destination has everything of the lane at or below `upto`, but for `letters` changes, which are dead letters;
    the changefeed's checkpoint. Safe to repeat, without letters. Fenced when the lane has another owner."""
    asked = {**_mine(lane), "to_ts": upto, "more_rows": rows, "more_bytes": size, "seen_amended": amended}
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


def add_lanes(conn: Connection, tenant: Tenant, changefeed_id: str, wanted: Sequence[LaneScope], start_ts: int) -> None:
    """The first lanes of a changefeed, which the caller's transaction adds."""
    fresh = [(scope, start_ts, start_ts) for scope in wanted]
    _insert(conn, tenant, changefeed_id, fresh, first=0, amended=0, free_ms=0)


def replace_lanes(catalog: Catalog, tenant: Tenant, changefeed_id: str, wanted: Sequence[LaneScope]) -> list[LaneRow]:
    """Replace all lanes of a changefeed at once; those before. Each new one starts at the least checkpoint that it
    covers, and may be written when no owner before may write any more. NotFound without lanes."""
    asked = {**tenant_ids(tenant), "asked_id": changefeed_id}
    with catalog.transaction() as conn:
        before = [_row(row) for row in conn.execute(_ALL.with_for_update(), asked)]
        if not before:
            raise NotFound(f"Changefeed {changefeed_id} of tenant {tenant} has no lanes.", changefeed_id=changefeed_id)
        conn.execute(lanes.delete().where(_OF_FEED), asked)
        old = [
            Progress(scope=lane.scope, checkpoint_ts=lane.checkpoint_ts, attempted_ts=lane.attempted_ts)
            for lane in before
        ]
        fresh = [(scope, *inherited(scope, old)) for scope in wanted]
        wait_ms = LANE_LEASE_MS if any(lane.owner is not None or not lane.is_free for lane in before) else 0
        _insert(
            conn, tenant, changefeed_id, fresh, first=max(lane.number for lane in before) + 1,
            amended=min(lane.amended for lane in before), free_ms=wait_ms,
        )  # fmt: skip
        record_event(
            conn, EventKind.CHANGEFEED_REBALANCED, changefeed_id, tenant=tenant, was=len(before), lanes=len(wanted)
        )
        return before


def isolate(catalog: Catalog, lane: LaneRow, rest: LaneScope, alone: LaneScope, error: dict[str, Any]) -> None:
    """Give a refused change's table or key a lane of its own, which is stopped; the rest of the lane continues. Fenced
    when the lane has another owner."""
    with catalog.transaction() as conn:
        changed = lanes.update().where(_IS_MINE, _l.checkpoint_ts == bindparam("seen_ts"))
        asked = {**_mine(lane), "seen_ts": lane.checkpoint_ts}
        if conn.execute(changed.values(scope=rest.text(), error=None, tries=0), asked).rowcount != 1:
            raise _fenced(lane)
        last = select(func.max(_l.number)).where(_OF_FEED)
        number = int(conn.execute(last, {**tenant_ids(lane.tenant), "asked_id": lane.changefeed_id}).scalar_one())
        now = conn.execute(_UNFINISHED, _mine(lane)).one()  # the caller may have taken the lane over before the attempt
        fresh = [(alone, lane.checkpoint_ts, now.attempted_ts)]
        _insert(
            conn, lane.tenant, lane.changefeed_id, fresh, first=number + 1, amended=lane.amended, free_ms=0,
            record=now.record, record_ts=now.record_ts, error=error_text({**error, "stopped": True}),
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


def rewind_lanes(conn: Connection, tenant: Tenant, changefeed_id: str, to_ts: int, amended: int) -> None:
    """Let all lanes of a changefeed continue above `to_ts`, under new epochs."""
    free_ms = case((_l.owner.is_not(None), now_ms() + LANE_LEASE_MS), else_=_l.free_ms)
    moved = lanes.update().where(_OF_FEED).ordered_values(  # see `_give`
        (_l.free_ms, free_ms), (_l.redo_ts, _l.attempted_ts), (_l.checkpoint_ts, to_ts),
        (_l.attempted_ts, case((_l.attempted_ts > to_ts, _l.attempted_ts), else_=to_ts)),
        (_l.record, ""), (_l.record_ts, 0), (_l.amended, amended), (_l.epoch, _l.epoch + 1),
    )  # fmt: skip
    conn.execute(moved, {**tenant_ids(tenant), "asked_id": changefeed_id})


def retry_lanes(conn: Connection, tenant: Tenant, changefeed_id: str) -> None:
    """Try all stopped lanes of a changefeed again."""
    asked = {**tenant_ids(tenant), "asked_id": changefeed_id}
    conn.execute(
        lanes.update().where(_OF_FEED, or_(_l.error.is_not(None), _l.tries > 0)).values(error=None, tries=0), asked
    )


def error_text(error: dict[str, Any]) -> str:
    """As the catalog keeps it."""
    kept = {name: value if not isinstance(value, str) else value[:_TEXT_MAX] for name, value in error.items()}
    return orjson.dumps(kept, default=str).decode()


def _insert(
    conn: Connection,
    tenant: Tenant,
    changefeed_id: str,
    fresh: Sequence[tuple[LaneScope, int, int]],
    *,
    first: int,
    amended: int,
    free_ms: int,
    record: str = "",
    record_ts: int = 0,
    error: str | None = None,
) -> None:
    numbers = next_numbers(conn, "lane", len(fresh))
    conn.execute(
        lanes.insert().values(free_ms=now_ms() + free_ms if free_ms else 0, moved_ms=now_ms()),
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
                "redo_ts": attempted_ts,
                "amended": amended,
                "record": record,
                "record_ts": record_ts,
                "epoch": 0,
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
    return Fenced(
        f"Lane {lane.number} of changefeed {lane.changefeed_id} has another owner.",
        changefeed_id=lane.changefeed_id,
        lane=lane.number,
        epoch=lane.epoch,
    )


def _row(row: Any) -> LaneRow:
    return LaneRow(
        lane_id=row.lane_id,
        tenant=tenant_of(row),
        changefeed_id=row.changefeed_id,
        number=row.number,
        scope=parse_scope(row.scope),
        checkpoint_ts=row.checkpoint_ts,
        attempted_ts=row.attempted_ts,
        redo_ts=row.redo_ts,
        amended=row.amended,
        record=row.record,
        record_ts=row.record_ts,
        epoch=row.epoch,
        owner=row.owner,
        is_free=row.free_ms == 0,
        free_in_ms=max(0, row.free_ms - row.now_ms),
        moved_age_ms=max(0, row.now_ms - row.moved_ms),
        rows_done=row.rows_done,
        bytes_done=row.bytes_done,
        tries=row.tries,
        error=None if row.error is None else orjson.loads(row.error),
    )
