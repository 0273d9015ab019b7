"""What reads a tenant's log and holds it: consumers, which members pull, and changefeeds, which the service writes.

    normal <--pause, resume--> stopped
       |  ^
       |  +--resume-- failed         changefeeds: an error that no retry can mend
       +-- its checkpoint reaches its target --> finished

A checkpoint means that everything at or below it is consumed, or written to the destination; it never falls, except by
a reset. Until a reader is finished, the tenant's log above its checkpoint is kept, until no request of the consumer has
come, or the checkpoint of the changefeed has not moved, for `idle_limit_ms`. `ReaderTable.add` locks the tenant's row,
as `raise_floor` does (see `retention`): a reader starts where the log still exists, or is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Table, and_, bindparam, case, func, or_, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import of_asked_tenant, tenant_ids, tenant_of
from tistream.catalog.tenancy.served import edge_of_asked_tenant
from tistream.catalog.tenancy.tenants import lock_tenant
from tistream.errors import Fenced, InvalidInput, NotFound, StateForbids, TsExpired, TsOutOfRange
from tistream.ids import Tenant
from tistream.limits import CLOCK_SKEW_MAX_MS
from tistream.ts import compose


class ReaderState(StrEnum):
    """States of a reader, named as in TiCDC. A changefeed is shown as `error` while a lane retries or waits."""

    NORMAL = "normal"
    STOPPED = "stopped"
    ERROR = "error"
    FAILED = "failed"
    FINISHED = "finished"


LIVE = (ReaderState.NORMAL, ReaderState.STOPPED)  #: these may be moved by their reader
_HOLDING = (*LIVE, ReaderState.FAILED)  # the log above their checkpoint, unless idle for too long
_EDGE = edge_of_asked_tenant()
_NOW = select(now_ms())


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReader:
    """A consumer, or what changefeeds have in common with one."""

    tenant: Tenant
    name: str  #: the id of the consumer, or of the changefeed
    state: ReaderState
    start_ts: int
    checkpoint_ts: int  #: the reader has everything at or below
    target_ts: int  #: where it ends; 0 = never
    filters: str  #: JSON of its filters, as the query of a pull has them
    created_ms: int
    last_active_ms: int  #: of its last request, or when its checkpoint moved, by the database's clock
    idle_ms: int  #: since then
    idle_limit_ms: int  #: idle for longer, it no longer holds the log; 0 = it holds for ever
    holds_log: bool  #: above its checkpoint


RowT = TypeVar("RowT", bound=LogReader)


class ReaderTable(Generic[RowT]):
    """The table of consumers, or that of changefeeds.

    `one` is the condition for one of them; `lowest` selects the lowest checkpoint of those that hold a tenant's log.
    `make` gives the row with these fields of `LogReader`."""

    def __init__(self, table: Table, noun: str, most: int, make: Callable[[Any, Mapping[str, Any]], RowT]) -> None:
        c = table.c
        self._table, self._noun, self._most, self._make = table, noun, most, make
        self._key = f"{noun}_id"  # a plain str, which JSON takes as a name
        self._id = c[self._key]
        self.one = and_(of_asked_tenant(table), self._id == bindparam("asked_id"))
        is_used = c.last_active_ms + c.idle_limit_ms > now_ms()
        holds_log = and_(c.state.in_(_HOLDING), or_(c.idle_limit_ms == 0, is_used))
        self.lowest = select(func.min(c.checkpoint_ts)).where(of_asked_tenant(table), holds_log)
        read = select(table, now_ms().label("now_ms"), case((holds_log, 1), else_=0).label("holds_log"))
        self._get, self._list = read.where(self.one), read.where(of_asked_tenant(table)).order_by(self._id)
        self._normal = select(c.cluster_id, c.tenant_id, c.checkpoint_ts).where(c.state == ReaderState.NORMAL)
        self._count = select(func.count()).select_from(table).where(of_asked_tenant(table))
        self._switch = (
            table.update()
            .where(self.one, c.state.in_(LIVE))
            .values(state=bindparam("to_state", type_=c.state.type), last_active_ms=now_ms())
        )
        self._lock = select(table).where(self.one).with_for_update()
        self._delete = table.delete().where(self.one)

    def add(
        self,
        conn: Connection,
        tenant: Tenant,
        name: str,
        start_ts: int | None,
        settings: Mapping[str, Any],
        initial: Mapping[str, Any],
    ) -> int | None:
        """Register a reader that has everything at or below `start_ts` (None: the start of the log), which is returned.
        `settings` and `initial`: the other columns. None when it is registered alike, InvalidInput with another start
        or other settings, TsExpired when the log begins later, TsOutOfRange for a start in the future, StateForbids for
        one too many."""
        earliest = max(lock_tenant(conn, tenant))
        start = earliest if start_ts is None else start_ts
        before = conn.execute(self._get, reader_ids(tenant, name)).one_or_none()
        if before is not None:
            same_start = start_ts is None or before.start_ts == start
            if not same_start or any(getattr(before, column) != value for column, value in settings.items()):
                raise self.registered_otherwise(name, before.start_ts)
            return None
        if conn.execute(self._count, tenant_ids(tenant)).scalar_one() >= self._most:
            kind = f"{self._noun}s"
            raise StateForbids(f"The tenant has {self._most} {kind}: remove one.", **{kind: self._most})
        if start < earliest:
            raise TsExpired(f"The log of this tenant begins at {earliest}.", earliest_ts=str(earliest))
        refuse_future(conn, tenant, start)
        target_ts = settings["target_ts"]
        if target_ts and target_ts < start:
            raise InvalidInput("target_ts must not lie below start_ts.", start_ts=start, target_ts=target_ts)
        values = {
            "cluster_id": tenant.cluster_id,
            "tenant_id": tenant.tenant_id,
            self._key: name,
            "state": ReaderState.NORMAL,
            "start_ts": start,
            "checkpoint_ts": start,
            "created_ms": now_ms(),
            "last_active_ms": now_ms(),
        }
        conn.execute(self._table.insert().values(**values, **settings, **initial))
        return start

    def get(self, catalog: Catalog, tenant: Tenant, name: str) -> RowT:
        """The reader of this name. NotFound when it does not exist."""
        with catalog.reading() as conn:
            row = conn.execute(self._get, reader_ids(tenant, name)).one_or_none()
        if row is None:
            raise self.not_found(tenant, name)
        return self._row(tenant, row)

    def of_tenant(self, catalog: Catalog, tenant: Tenant) -> list[RowT]:
        """The tenant's readers, by name."""
        with catalog.reading() as conn:
            return [self._row(tenant, row) for row in conn.execute(self._list, tenant_ids(tenant))]

    def checkpoints(self, catalog: Catalog) -> list[tuple[Tenant, int]]:
        """(tenant, checkpoint) of each reader of all tenants that is normal."""
        with catalog.reading() as conn:
            return [(tenant_of(row), row.checkpoint_ts) for row in conn.execute(self._normal)]

    def locked(self, conn: Connection, tenant: Tenant, name: str) -> Any:
        """The columns of the reader, locked until the end of the transaction. NotFound when it does not exist."""
        row = conn.execute(self._lock, reader_ids(tenant, name)).one_or_none()
        if row is None:
            raise self.not_found(tenant, name)
        return row

    def switch(self, catalog: Catalog, tenant: Tenant, name: str, to: ReaderState) -> RowT:
        """Pause (`stopped`) or resume (`normal`). Fenced when it is finished."""
        with catalog.transaction() as conn:
            switched = conn.execute(self._switch, {**reader_ids(tenant, name), "to_state": to}).rowcount == 1
        row = self.get(catalog, tenant, name)
        if not switched:
            raise Fenced(f"{self._noun.capitalize()} {name} is {row.state}.", state=row.state)
        return row

    def delete(self, conn: Connection, tenant: Tenant, name: str) -> bool:
        """Delete its row, which releases the log. False when it does not exist."""
        return conn.execute(self._delete, reader_ids(tenant, name)).rowcount == 1

    def not_found(self, tenant: Tenant, name: str) -> NotFound:
        """The error for a name that is not registered."""
        return NotFound(f"tenant {tenant} has no {self._noun} '{name}'", **{self._key: name})

    def registered_otherwise(self, name: str, start_ts: int) -> InvalidInput:
        """The error for a name that is registered with other settings."""
        return InvalidInput(f"{self._noun.capitalize()} {name} is registered with other settings.", start_ts=start_ts)

    def _row(self, tenant: Tenant, row: Any) -> RowT:
        common = {
            "tenant": tenant,
            "name": getattr(row, self._key),
            "state": ReaderState(row.state),
            "idle_ms": max(0, row.now_ms - row.last_active_ms),
            "holds_log": bool(row.holds_log),
        }
        return self._make(row, common)


def reader_ids(tenant: Tenant, name: str) -> dict[str, Any]:
    """The parameters of a statement about one reader."""
    return {**tenant_ids(tenant), "asked_id": name}


def refuse_future(conn: Connection, tenant: Tenant, ts: int) -> None:
    """TsOutOfRange for a checkpoint above both the watermark and the time of now. A backup may be a little newer than
    the watermark; from further ahead nothing would be read until that time has come, and the lag would show as none."""
    edge = int(conn.execute(_EDGE, tenant_ids(tenant)).scalar() or 0)
    latest = max(edge, compose(int(conn.execute(_NOW).scalar_one()) + CLOCK_SKEW_MAX_MS))
    if ts > latest:
        raise TsOutOfRange(f"{ts} is in the future; the watermark is {edge}.", latest_ts=str(edge))
