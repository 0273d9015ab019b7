"""Changefeeds: consumers that members read, and replications that the service writes to a destination.

    normal <--pause, resume--> stopped
       |  ^
       |  +--resume-- failed         replications: an error that no retry can mend
       +-- its checkpoint reaches its target --> finished

A checkpoint means that everything at or below it is consumed, or written to the destination; it never falls, except by
a reset. It is the lowest of the consumer's partitions, which members read (`tistream.catalog.log.consumers`), or of the
replication's lanes (`tistream.catalog.work.lanes`). Until a changefeed is finished, the tenant's log above its
checkpoint is kept, until no request of the consumer has come, or the checkpoint has not moved, for `idle_limit_ms`.
`add_changefeed` locks the tenant's row, as `raise_floor` does (see `retention`): a changefeed starts where the log
still exists, or is refused.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from urllib.parse import unquote_plus

import orjson
from sqlalchemy import Connection, and_, bindparam, case, func, or_, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.records import record_of
from tistream.catalog.database.tables import (
    changefeeds,
    consumer_members,
    consumer_partitions,
    lanes,
    of_asked_tenant,
    tenant_ids,
    tenant_of,
)
from tistream.catalog.tenancy import destinations
from tistream.catalog.tenancy.served import edge_of_asked_tenant
from tistream.catalog.tenancy.tenants import lock_tenant
from tistream.errors import Fenced, InvalidInput, NotFound, StateForbids, TsExpired, TsOutOfRange
from tistream.ids import Tenant
from tistream.limits import CHANGEFEEDS_MAX, CLOCK_SKEW_MAX_MS, CONSUMER_IDLE_HOURS_DEFAULT
from tistream.ts import compose


class FeedState(StrEnum):
    """States of a changefeed, named as in TiCDC. A replication is shown as `error` while a lane retries or waits."""

    NORMAL = "normal"
    STOPPED = "stopped"
    ERROR = "error"
    FAILED = "failed"
    FINISHED = "finished"


_SECRET = re.compile("secret|token|passw|credential", re.IGNORECASE)  # in the name of an option
_USER = re.compile(r"//[^/?#]*@")
_OPTIONS = re.compile(r"[?#]")
_HIDDEN = "***"
LIVE = (FeedState.NORMAL, FeedState.STOPPED)  #: these may be moved by their reader
_HOLDING = (*LIVE, FeedState.FAILED)  # the log above their checkpoint, unless idle for too long


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangefeedRow:
    """A registered consumer."""

    tenant: Tenant
    changefeed_id: str
    state: FeedState
    start_ts: int
    checkpoint_ts: int  #: the consumer has everything at or below
    target_ts: int  #: where it ends; 0 = never
    filters: str  #: JSON of the filters of its pulls, as the query of a pull has them
    created_ms: int
    last_active_ms: int  #: of its last request, by the database's clock
    idle_ms: int  #: since then
    idle_limit_ms: int  #: idle for longer, it no longer holds the log; 0 = it holds for ever
    holds_log: bool  #: above its checkpoint
    sink_uri: str = ""  #: where the service writes; empty = a consumer, which members read
    options: str = "{}"  #: JSON of a replication's settings beside the URI, and of what its destination is
    dead_letters: int = 0  #: refused changes that were written to its dead-letter place
    error: dict[str, Any] | None = None  #: why it is failed

    @property
    def is_replication(self) -> bool:
        """Whether the service writes it to a destination."""
        return bool(self.sink_uri)

    @property
    def dead_letter(self) -> str:
        """Where refused changes are written; empty = an operator decides about them."""
        return str(orjson.loads(self.options).get("dead_letter", ""))

    @property
    def shown_uri(self) -> str:
        """The sink URI without secrets."""
        return masked_uri(self.sink_uri)


def masked_uri(sink_uri: str) -> str:
    """A sink URI for people: user names with passwords, and the values of secret options, are replaced. Names are
    compared as they are read, decoded; a value ends at the next `&`."""
    begin = _OPTIONS.search(sink_uri)
    at = len(sink_uri) if begin is None else begin.end()
    options = sink_uri[at:].split("&")
    return _USER.sub(f"//{_HIDDEN}@", sink_uri[:at]) + "&".join(map(_masked_option, options))


def _masked_option(text: str) -> str:
    name, given, value = text.partition("=")
    return f"{name}={_HIDDEN}" if given and (_SECRET.search(_decoded(name)) or _USER.search(_decoded(value))) else text


def _decoded(text: str) -> str:
    while (once := unquote_plus(text)) != text:
        text = once
    return text


_f, _p = changefeeds.c, consumer_partitions.c
HOLDS_LOG = and_(_f.state.in_(_HOLDING), or_(_f.idle_limit_ms == 0, _f.last_active_ms + _f.idle_limit_ms > now_ms()))
_ONE = and_(of_asked_tenant(changefeeds), _f.changefeed_id == bindparam("asked_id"))
_IS_CONSUMER = _f.sink_uri == ""
_READ = select(changefeeds, now_ms().label("now_ms"), case((HOLDS_LOG, 1), else_=0).label("holds_log"))
_GET = _READ.where(_ONE)
_NORMAL = select(_f.cluster_id, _f.tenant_id, _f.checkpoint_ts).where(_f.state == FeedState.NORMAL)
_ALL = _READ.where(of_asked_tenant(changefeeds)).order_by(_f.changefeed_id)
_ITS_PARTITIONS = and_(of_asked_tenant(consumer_partitions), _p.consumer_id == bindparam("asked_id"))
_HOW_MANY = select(func.count()).select_from(changefeeds).where(of_asked_tenant(changefeeds))
_COUNT = select(func.count()).select_from(consumer_partitions).where(_ITS_PARTITIONS)
_MOVE_PARTITIONS = (
    consumer_partitions.update()
    .where(_ITS_PARTITIONS, _p.checkpoint_ts < bindparam("to_ts"))
    .values(checkpoint_ts=bindparam("to_ts"), commit_position=None)
)
_EDGE = edge_of_asked_tenant()
_NOW = select(now_ms())
_MOVE = (
    changefeeds.update()
    .where(_ONE, _IS_CONSUMER, _f.state.in_(LIVE), _f.checkpoint_ts <= bindparam("to_ts"))
    .values(
        state=case((and_(_f.target_ts > 0, _f.target_ts <= bindparam("to_ts")), FeedState.FINISHED), else_=_f.state),
        checkpoint_ts=bindparam("to_ts"),
        last_active_ms=now_ms(),
    )
)
_SWITCH = (
    changefeeds.update()
    .where(_ONE, _f.state.in_(LIVE))
    .values(state=bindparam("to_state", type_=_f.state.type), last_active_ms=now_ms())
)
_REMOVE = changefeeds.delete().where(_ONE)
_REMOVE_PARTS = [
    table.delete().where(of_asked_tenant(table), column == bindparam("asked_id"))
    for table, column in (
        (consumer_partitions, _p.consumer_id),
        (consumer_members, consumer_members.c.consumer_id),
        (lanes, lanes.c.changefeed_id),
    )
]


def add_changefeed(
    catalog: Catalog,
    tenant: Tenant,
    changefeed_id: str,
    start_ts: int | None,
    *,
    target_ts: int = 0,
    filters: str = "{}",
    partitions: int = 1,
    idle_limit_ms: int = CONSUMER_IDLE_HOURS_DEFAULT * 3_600_000,
    sink_uri: str = "",
    options: str = "{}",
    added: Callable[[Connection, int], None] = lambda conn, start_ts: None,
) -> bool:
    """Register a consumer that has everything at or below `start_ts` (None: the start of the log), or a replication.
    `added` completes the transaction. False when it is already registered alike, InvalidInput with other settings,
    TsExpired when the log begins later, TsOutOfRange for a start in the future, StateForbids for one too many."""
    asked = {**tenant_ids(tenant), "asked_id": changefeed_id}
    with catalog.transaction() as conn:
        earliest = max(lock_tenant(conn, tenant))
        start = earliest if start_ts is None else start_ts
        known = conn.execute(_GET, asked).one_or_none()
        if known is not None:
            before = known.target_ts, known.filters, known.idle_limit_ms, conn.execute(_COUNT, asked).scalar_one()
            same_start = start_ts is None or known.start_ts == start
            alike = before == (target_ts, filters, idle_limit_ms, partitions)
            if same_start and alike and (known.sink_uri, known.options) == (sink_uri, options):
                return False
            raise InvalidInput(
                f"Changefeed {changefeed_id} is registered with other settings.", start_ts=known.start_ts
            )
        if conn.execute(_HOW_MANY, tenant_ids(tenant)).scalar_one() >= CHANGEFEEDS_MAX:
            raise StateForbids(
                f"The tenant has {CHANGEFEEDS_MAX} changefeeds: remove one.", changefeeds=CHANGEFEEDS_MAX
            )
        if start < earliest:
            raise TsExpired(f"The log of this tenant begins at {earliest}.", earliest_ts=str(earliest))
        refuse_future(conn, tenant, start)
        if target_ts and target_ts < start:
            raise InvalidInput("target_ts must not lie below start_ts.", start_ts=start, target_ts=target_ts)
        owner = {"cluster_id": tenant.cluster_id, "tenant_id": tenant.tenant_id}
        conn.execute(
            # epochs start at the time of creation: none of an earlier consumer of the same name is used again
            changefeeds.insert().values(created_ms=now_ms(), last_active_ms=now_ms(), last_epoch=now_ms()),
            {
                **owner,
                "changefeed_id": changefeed_id,
                "state": FeedState.FINISHED if 0 < target_ts <= start and not sink_uri else FeedState.NORMAL,
                "start_ts": start,
                "checkpoint_ts": start,
                "target_ts": target_ts,
                "filters": filters,
                "idle_limit_ms": idle_limit_ms,
                "sink_uri": sink_uri,
                "options": options,
                "dead_letters": 0,
            },
        )
        added(conn, start)
        fresh = {**owner, "consumer_id": changefeed_id, "checkpoint_ts": start, "member": None, "epoch": 0}
        if partitions:
            conn.execute(consumer_partitions.insert(), [{**fresh, "number": n} for n in range(partitions)])
        return True


def refuse_future(conn: Connection, tenant: Tenant, ts: int) -> None:
    """TsOutOfRange for a checkpoint above both the watermark and the time of now. A backup may be a little newer than
    the watermark; from further ahead nothing would be read until that time has come, and the lag would show as none."""
    edge = int(conn.execute(_EDGE, tenant_ids(tenant)).scalar() or 0)
    latest = max(edge, compose(int(conn.execute(_NOW).scalar_one()) + CLOCK_SKEW_MAX_MS))
    if ts > latest:
        raise TsOutOfRange(f"{ts} lies in the future; the watermark is {edge}.", latest_ts=str(edge))


def list_changefeeds(catalog: Catalog, tenant: Tenant) -> list[ChangefeedRow]:
    """The tenant's changefeeds, by id."""
    with catalog.reading() as conn:
        return [_row(tenant, row) for row in conn.execute(_ALL, tenant_ids(tenant))]


def checkpoints(catalog: Catalog) -> list[tuple[Tenant, int]]:
    """(tenant, checkpoint) of each changefeed that is neither paused nor at its end."""
    with catalog.reading() as conn:
        return [(tenant_of(row), row.checkpoint_ts) for row in conn.execute(_NORMAL)]


def get_changefeed(catalog: Catalog, tenant: Tenant, changefeed_id: str) -> ChangefeedRow:
    """The changefeed with this id. NotFound when it does not exist."""
    with catalog.reading() as conn:
        row = conn.execute(_GET, {**tenant_ids(tenant), "asked_id": changefeed_id}).one_or_none()
    if row is None:
        raise no_changefeed(tenant, changefeed_id)
    return _row(tenant, row)


def no_changefeed(tenant: Tenant, changefeed_id: str) -> NotFound:
    """The error for a name that is not registered."""
    return NotFound(f"tenant {tenant} has no changefeed '{changefeed_id}'", changefeed_id=changefeed_id)


def move_checkpoint(catalog: Catalog, tenant: Tenant, changefeed_id: str, to_ts: int) -> ChangefeedRow:
    """Advance the checkpoint to `to_ts`. Fenced when it is already higher or the changefeed is finished, TsOutOfRange
    above the watermark."""
    asked = {**tenant_ids(tenant), "asked_id": changefeed_id}
    with catalog.transaction() as conn:
        edge = int(conn.execute(_EDGE, tenant_ids(tenant)).scalar() or 0)
        moved = to_ts <= edge and conn.execute(_MOVE, {**asked, "to_ts": to_ts}).rowcount == 1
        if moved:
            conn.execute(_MOVE_PARTITIONS, {**asked, "to_ts": to_ts})
    row = get_changefeed(catalog, tenant, changefeed_id)
    if to_ts > edge:
        raise TsOutOfRange(f"{to_ts} lies above the watermark {edge}.", latest_ts=str(edge))
    if not moved:
        raise Fenced(
            f"The checkpoint of {changefeed_id} is {row.checkpoint_ts} ({row.state}) and cannot move back.",
            checkpoint_ts=str(row.checkpoint_ts),
            state=row.state,
        )
    return row


def switch_changefeed(catalog: Catalog, tenant: Tenant, changefeed_id: str, to: FeedState) -> ChangefeedRow:
    """Pause (`stopped`) or resume (`normal`). Fenced when it is finished."""
    with catalog.transaction() as conn:
        asked = {**tenant_ids(tenant), "asked_id": changefeed_id, "to_state": to}
        switched = conn.execute(_SWITCH, asked).rowcount == 1
    row = get_changefeed(catalog, tenant, changefeed_id)
    if not switched:
        raise Fenced(f"Changefeed {changefeed_id} is {row.state}.", state=row.state)
    return row


def remove_changefeed(catalog: Catalog, tenant: Tenant, changefeed_id: str) -> bool:
    """Delete the changefeed, which releases its log and its destination. False when it does not exist."""
    asked = {**tenant_ids(tenant), "asked_id": changefeed_id}
    with catalog.transaction() as conn:
        removed = conn.execute(_REMOVE, asked).rowcount == 1
        destinations.release(conn, tenant, changefeed_id)
        for statement in _REMOVE_PARTS:
            conn.execute(statement, asked)
        return removed


def _row(tenant: Tenant, row: Any) -> ChangefeedRow:
    return record_of(
        ChangefeedRow,
        row,
        tenant=tenant,
        state=FeedState(row.state),
        idle_ms=max(0, row.now_ms - row.last_active_ms),
        holds_log=bool(row.holds_log),
        error=None if row.error is None else orjson.loads(row.error),
    )
