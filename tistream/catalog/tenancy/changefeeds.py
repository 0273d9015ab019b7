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

import orjson
from sqlalchemy import Connection, and_, bindparam, case, func, or_, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import (
    amendments,
    changefeeds,
    consumer_members,
    consumer_partitions,
    lanes,
    of_asked_tenant,
    tenant_ids,
)
from tistream.catalog.tenancy.served import edge_of_asked_tenant
from tistream.catalog.tenancy.tenants import lock_tenant
from tistream.errors import Fenced, InvalidInput, NotFound, TsExpired, TsOutOfRange
from tistream.ids import Tenant
from tistream.limits import CONSUMER_IDLE_HOURS_DEFAULT


class FeedState(StrEnum):
    """States of a changefeed, named as in TiCDC. A replication is shown as `error` while a lane retries or waits."""

    NORMAL = "normal"
    STOPPED = "stopped"
    ERROR = "error"
    FAILED = "failed"
    FINISHED = "finished"


_SECRET = re.compile(r"((?:secret[-_]access[-_]key|session[-_]token|password)=)[^&]*", re.IGNORECASE)
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
    seen_ms: int  #: of its last request, by the database's clock
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
    """A sink URI for people: the values of secret options are replaced."""
    return _SECRET.sub(r"\1***", sink_uri)


_f, _p = changefeeds.c, consumer_partitions.c
HOLDS_LOG = and_(_f.state.in_(_HOLDING), or_(_f.idle_limit_ms == 0, _f.seen_ms + _f.idle_limit_ms > now_ms()))
_ONE = and_(of_asked_tenant(changefeeds), _f.changefeed_id == bindparam("asked_id"))
_IS_CONSUMER = _f.sink_uri == ""
_READ = select(changefeeds, now_ms().label("now_ms"), case((HOLDS_LOG, 1), else_=0).label("holds_log"))
_GET = _READ.where(_ONE)
_ALL = _READ.where(of_asked_tenant(changefeeds)).order_by(_f.changefeed_id)
_NEWEST_AMENDMENT = select(func.max(amendments.c.number)).where(of_asked_tenant(amendments))
_ITS_PARTITIONS = and_(of_asked_tenant(consumer_partitions), _p.changefeed_id == bindparam("asked_id"))
_COUNT = select(func.count()).select_from(consumer_partitions).where(_ITS_PARTITIONS)
_MOVE_PARTITIONS = (
    consumer_partitions.update()
    .where(_ITS_PARTITIONS, _p.checkpoint_ts < bindparam("to_ts"))
    .values(checkpoint_ts=bindparam("to_ts"), amended=bindparam("newest"))
)
_EDGE = edge_of_asked_tenant()
_MOVE = (
    changefeeds.update()
    .where(_ONE, _IS_CONSUMER, _f.state.in_(LIVE), _f.checkpoint_ts <= bindparam("to_ts"))
    .values(
        state=case((and_(_f.target_ts > 0, _f.target_ts <= bindparam("to_ts")), FeedState.FINISHED), else_=_f.state),
        checkpoint_ts=bindparam("to_ts"),
        seen_ms=now_ms(),
    )
)
_SWITCH = (
    changefeeds.update()
    .where(_ONE, _f.state.in_(LIVE))
    .values(state=bindparam("to_state", type_=_f.state.type), seen_ms=now_ms())
)
_REMOVE = changefeeds.delete().where(_ONE)
_REMOVE_READERS = [
    table.delete().where(of_asked_tenant(table), table.c.changefeed_id == bindparam("asked_id"))
    for table in (consumer_partitions, consumer_members, lanes)
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
    TsExpired when the log begins later."""
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
        if start < earliest:
            raise TsExpired(f"The log of this tenant begins at {earliest}.", earliest_ts=str(earliest))
        if target_ts and target_ts < start:
            raise InvalidInput("target_ts must not lie below start_ts.", start_ts=start, target_ts=target_ts)
        key = {"cluster_id": tenant.cluster_id, "tenant_id": tenant.tenant_id, "changefeed_id": changefeed_id}
        conn.execute(
            # epochs start at the time of creation: none of an earlier consumer of the same name is used again
            changefeeds.insert().values(created_ms=now_ms(), seen_ms=now_ms(), last_epoch=now_ms(), dead_letters=0),
            {
                **key,
                "state": FeedState.FINISHED if target_ts and target_ts <= start else FeedState.NORMAL,
                "start_ts": start,
                "checkpoint_ts": start,
                "target_ts": target_ts,
                "filters": filters,
                "idle_limit_ms": idle_limit_ms,
                "sink_uri": sink_uri,
                "options": options,
            },
        )
        added(conn, start)
        newest = int(conn.execute(_NEWEST_AMENDMENT, asked).scalar() or 0)
        fresh = {**key, "checkpoint_ts": start, "amended": newest, "member": None, "epoch": 0}
        if partitions:
            conn.execute(consumer_partitions.insert(), [{**fresh, "number": n} for n in range(partitions)])
        return True


def list_changefeeds(catalog: Catalog, tenant: Tenant) -> list[ChangefeedRow]:
    """The tenant's changefeeds, by id."""
    with catalog.reading() as conn:
        return [_row(tenant, row) for row in conn.execute(_ALL, tenant_ids(tenant))]


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
            newest = int(conn.execute(_NEWEST_AMENDMENT, asked).scalar() or 0)
            conn.execute(_MOVE_PARTITIONS, {**asked, "to_ts": to_ts, "newest": newest})
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
    """Delete the changefeed, which releases its log. False when it does not exist."""
    asked = {**tenant_ids(tenant), "asked_id": changefeed_id}
    with catalog.transaction() as conn:
        removed = conn.execute(_REMOVE, asked).rowcount == 1
        for statement in _REMOVE_READERS:
            conn.execute(statement, asked)
        return removed


def _row(tenant: Tenant, row: Any) -> ChangefeedRow:
    return ChangefeedRow(
        tenant=tenant,
        changefeed_id=row.changefeed_id,
        state=FeedState(row.state),
        start_ts=row.start_ts,
        checkpoint_ts=row.checkpoint_ts,
        target_ts=row.target_ts,
        filters=row.filters,
        created_ms=row.created_ms,
        seen_ms=row.seen_ms,
        idle_ms=max(0, row.now_ms - row.seen_ms),
        idle_limit_ms=row.idle_limit_ms,
        holds_log=bool(row.holds_log),
        sink_uri=row.sink_uri,
        options=row.options,
        dead_letters=row.dead_letters,
        error=None if row.error is None else orjson.loads(row.error),
    )
