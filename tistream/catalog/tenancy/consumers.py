"""Consumers: registered readers whose members pull partitions of a tenant's changes and acknowledge them.

A consumer's checkpoint is the lowest of its partitions. Each call of a member is one transaction around
`tistream.catalog.tenancy.core.consumer_group`, which decides:

    lock the consumer's row; read its members and partitions; apply the event; write its effects
    an acknowledgement also moves the consumer's checkpoint, which retention waits for

Leases end by the database's clock. An acknowledgement whose reply was lost is safe to repeat; a pull whose reply was
lost gives the same changes again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, bindparam, case, func, select

from tistream import ts as tso
from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.engine import now_ms as database_ms
from tistream.catalog.database.records import record_of
from tistream.catalog.database.tables import (
    consumer_members,
    consumer_partitions,
    consumers,
    of_asked_tenant,
    tenant_ids,
)
from tistream.catalog.tenancy.core.consumer_group import (
    Acknowledged,
    ConsumerGroup,
    DropMember,
    Effect,
    Event,
    Left,
    Member,
    Partition,
    Pulled,
    Reset,
    SetMember,
    SetPartition,
)
from tistream.catalog.tenancy.log_readers import LIVE, LogReader, ReaderState, ReaderTable, reader_ids
from tistream.catalog.tenancy.served import edge_of_asked_tenant
from tistream.catalog.tenancy.tenants import get_tenant
from tistream.errors import Fenced, StateForbids, TsExpired, TsOutOfRange
from tistream.ids import Tenant
from tistream.limits import CONSUMER_IDLE_HOURS_DEFAULT, CONSUMERS_MAX


def _row(row: Any, common: Mapping[str, Any]) -> LogReader:
    return record_of(LogReader, row, **common)


CONSUMERS = ReaderTable(consumers, "consumer", CONSUMERS_MAX, _row)
_c, _p, _m = consumers.c, consumer_partitions.c, consumer_members.c
_ONE = CONSUMERS.one
_ITS_PARTITIONS = and_(of_asked_tenant(consumer_partitions), _p.consumer_id == bindparam("asked_id"))
_ITS_MEMBERS = and_(of_asked_tenant(consumer_members), _m.consumer_id == bindparam("asked_id"))
_PARTITIONS = select(consumer_partitions).where(_ITS_PARTITIONS).order_by(_p.number)
_MEMBERS = select(consumer_members).where(_ITS_MEMBERS).order_by(_m.member)
_LISTED = [
    select(consumer_partitions).where(of_asked_tenant(consumer_partitions)).order_by(_p.number),
    select(consumer_members).where(of_asked_tenant(consumer_members)).order_by(_m.member),
]
_SET_PARTITION = (
    consumer_partitions.update()
    .where(_ITS_PARTITIONS, _p.number == bindparam("asked_number"))
    .values(
        checkpoint_ts=bindparam("to_ts"),
        commit_position=bindparam("to_commit_position"),
        member=bindparam("to_member"),
        epoch=bindparam("to_epoch"),
    )
)
_DROP_MEMBER = consumer_members.delete().where(_ITS_MEMBERS, _m.member == bindparam("asked_member"))
_SEEN = consumers.update().where(_ONE).values(last_active_ms=now_ms(), last_epoch=bindparam("to_epoch"))
_HAS_ALL = and_(_c.target_ts > 0, _c.target_ts <= bindparam("to_ts"), _c.state.in_(LIVE))
_MOVE = (
    consumers.update()
    .where(_ONE)
    .values(state=case((_HAS_ALL, ReaderState.FINISHED), else_=_c.state), checkpoint_ts=bindparam("to_ts"))
)
_ADVANCE = _MOVE.where(_c.state.in_(LIVE), _c.checkpoint_ts <= bindparam("to_ts")).values(last_active_ms=now_ms())
_ADVANCE_PARTITIONS = (
    consumer_partitions.update()
    .where(_ITS_PARTITIONS, _p.checkpoint_ts < bindparam("to_ts"))
    .values(checkpoint_ts=bindparam("to_ts"), commit_position=None)
)
_COUNT = select(func.count()).select_from(consumer_partitions).where(_ITS_PARTITIONS)
_REMOVE_PARTS = consumer_partitions.delete().where(_ITS_PARTITIONS), consumer_members.delete().where(_ITS_MEMBERS)
_REOPEN = consumers.update().where(_ONE, _c.state == ReaderState.FINISHED).values(state=ReaderState.NORMAL)
_EDGE = edge_of_asked_tenant()


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a pull of a member may read."""

    session: int  #: of the member, for its next pull
    partition: Partition | None  #: None while others hold all of them
    partitions: int  #: of the consumer
    filters: str  #: JSON
    target_ts: int  #: where the consumer ends; 0 = never


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerParts:
    """The partitions of a consumer and its members."""

    partitions: tuple[Partition, ...] = ()
    members: tuple[Member, ...] = ()


def add_consumer(
    catalog: Catalog,
    tenant: Tenant,
    consumer_id: str,
    start_ts: int | None,
    *,
    target_ts: int = 0,
    filters: str = "{}",
    partitions: int = 1,
    idle_limit_ms: int = CONSUMER_IDLE_HOURS_DEFAULT * 3_600_000,
) -> bool:
    """Register a consumer that has everything at or below `start_ts` (None: the start of the log). False when it is
    registered alike; errors as `ReaderTable.add`."""
    settings = {"target_ts": target_ts, "filters": filters, "idle_limit_ms": idle_limit_ms}
    with catalog.transaction() as conn:
        # epochs start at the time of creation: none of an earlier consumer of the same name is used again
        start = CONSUMERS.add(conn, tenant, consumer_id, start_ts, settings, {"last_epoch": now_ms()})
        if start is None:
            if conn.execute(_COUNT, reader_ids(tenant, consumer_id)).scalar_one() != partitions:
                raise CONSUMERS.registered_otherwise(consumer_id, CONSUMERS.locked(conn, tenant, consumer_id).start_ts)
            return False
        fresh = {
            "cluster_id": tenant.cluster_id,
            "tenant_id": tenant.tenant_id,
            "consumer_id": consumer_id,
            "checkpoint_ts": start,
            "member": None,
            "epoch": 0,
        }
        conn.execute(consumer_partitions.insert(), [{**fresh, "number": number} for number in range(partitions)])
        conn.execute(_MOVE, {**reader_ids(tenant, consumer_id), "to_ts": start})  # finished, if that is its target
        return True


def move_checkpoint(catalog: Catalog, tenant: Tenant, consumer_id: str, to_ts: int) -> LogReader:
    """Advance the checkpoint to `to_ts`. Fenced when it is already higher or the consumer is finished, TsOutOfRange
    above the watermark."""
    move = {**reader_ids(tenant, consumer_id), "to_ts": to_ts}
    with catalog.transaction() as conn:
        edge = int(conn.execute(_EDGE, tenant_ids(tenant)).scalar() or 0)
        moved = to_ts <= edge and conn.execute(_ADVANCE, move).rowcount == 1
        if moved:
            conn.execute(_ADVANCE_PARTITIONS, move)
    row = CONSUMERS.get(catalog, tenant, consumer_id)
    if to_ts > edge:
        raise TsOutOfRange(f"{to_ts} lies above the watermark {edge}.", latest_ts=str(edge))
    if not moved:
        raise Fenced(
            f"The checkpoint of {consumer_id} is {row.checkpoint_ts} ({row.state}) and cannot move back.",
            checkpoint_ts=str(row.checkpoint_ts),
            state=row.state,
        )
    return row


def remove_consumer(catalog: Catalog, tenant: Tenant, consumer_id: str) -> bool:
    """Delete the consumer, which releases its log. False when it does not exist."""
    with catalog.transaction() as conn:
        removed = CONSUMERS.delete(conn, tenant, consumer_id)
        for statement in _REMOVE_PARTS:
            conn.execute(statement, reader_ids(tenant, consumer_id))
        return removed


def claim_partition(
    catalog: Catalog,
    tenant: Tenant,
    consumer_id: str,
    member: str,
    *,
    session: int | None,
    lease_ms: int,
) -> Claim:
    """Renew the member's lease and share the partitions; the one of the member's that is furthest behind. Fenced for a
    session that was superseded, StateForbids unless the consumer is normal, TsExpired when the log no longer has what
    follows the checkpoint."""
    earliest_ts = get_tenant(catalog, tenant).earliest_ts
    with _locked(catalog, tenant, consumer_id) as (conn, row, group):
        if row.state != ReaderState.NORMAL:
            raise StateForbids(f"Consumer {consumer_id} is {row.state}.", state=row.state)
        event = Pulled(member=member, session=session, now_ms=database_ms(conn), lease_ms=lease_ms)
        _apply(conn, tenant, consumer_id, group, event)
        held = group.held_by(member)
        if held and held[0].checkpoint_ts < earliest_ts:
            raise _out_of_log(consumer_id, held[0], earliest_ts)
        return Claim(
            session=group.members[member].session,
            partition=held[0] if held else None,
            partitions=len(group.partitions),
            filters=row.filters,
            target_ts=row.target_ts,
        )


def acknowledge(
    catalog: Catalog,
    tenant: Tenant,
    consumer_id: str,
    number: int,
    *,
    epoch: int,
    ts: int,
    commit_position: str = "",
) -> Partition:
    """Everything of the partition at or below `ts` is done, and what is before `commit_position` in the commit that
    follows. Without effect at or below what was acknowledged. Fenced after a hand-over, TsOutOfRange above the
    watermark."""
    with _locked(catalog, tenant, consumer_id) as (conn, _, group):
        edge = int(conn.execute(_EDGE, tenant_ids(tenant)).scalar() or 0)
        if ts > edge and epoch == group.partitions[number].epoch:  # else it is of a catalog before a restore
            raise TsOutOfRange(f"{ts} lies above the watermark {edge}.", latest_ts=str(edge))
        event = Acknowledged(partition=number, epoch=epoch, ts=ts, commit_position=commit_position)
        _apply(conn, tenant, consumer_id, group, event)
        return group.partitions[number]


def leave(catalog: Catalog, tenant: Tenant, consumer_id: str, member: str, session: int) -> None:
    """Give up the member's partitions and its lease. Safe to repeat; Fenced when the member was started again."""
    with _locked(catalog, tenant, consumer_id) as (conn, _, group):
        _apply(conn, tenant, consumer_id, group, Left(member=member, session=session))


def reset_consumer(catalog: Catalog, tenant: Tenant, consumer_id: str, to_ts: int) -> None:
    """Let all partitions go on above `to_ts`, also below their checkpoints. What members have at hand can no longer be
    acknowledged. TsExpired below the log, TsOutOfRange above the watermark."""
    earliest_ts = get_tenant(catalog, tenant).earliest_ts
    with _locked(catalog, tenant, consumer_id) as (conn, row, group):
        edge = int(conn.execute(_EDGE, tenant_ids(tenant)).scalar() or 0)
        if to_ts < earliest_ts:
            raise TsExpired(f"The log of this tenant begins at {earliest_ts}.", earliest_ts=str(earliest_ts))
        if to_ts > edge:
            raise TsOutOfRange(f"{to_ts} lies above the watermark {edge}.", latest_ts=str(edge))
        if not row.target_ts or to_ts < row.target_ts:
            conn.execute(_REOPEN, reader_ids(tenant, consumer_id))
        _apply(conn, tenant, consumer_id, group, Reset(ts=to_ts))


def parts_of(catalog: Catalog, tenant: Tenant, consumer_id: str | None = None) -> dict[str, ConsumerParts]:
    """Partitions and members of the tenant's consumers, or of one, by the consumer's id."""
    partitions: dict[str, list[Partition]] = {}
    members: dict[str, list[Member]] = {}
    queries = _LISTED if consumer_id is None else [_PARTITIONS, _MEMBERS]
    of = tenant_ids(tenant) if consumer_id is None else reader_ids(tenant, consumer_id)
    with catalog.reading() as conn:
        for row in conn.execute(queries[0], of):
            partitions.setdefault(row.consumer_id, []).append(_partition(row))
    with catalog.reading() as conn:
        for row in conn.execute(queries[1], of):
            members.setdefault(row.consumer_id, []).append(_member(row))
    return {
        name: ConsumerParts(partitions=tuple(kept), members=tuple(members.get(name, ())))
        for name, kept in partitions.items()
    }


def _out_of_log(consumer_id: str, partition: Partition, earliest_ts: int) -> TsExpired:
    return TsExpired(
        f"Consumer {consumer_id} was idle beyond its limit, and changes above its checkpoint "
        f"{partition.checkpoint_ts} were deleted. The log begins at {tso.described(earliest_ts)}. To go on from there: "
        f"tistream consumer reset {consumer_id} --to earliest",
        earliest_ts=str(earliest_ts),
        earliest_time=tso.to_text(earliest_ts),
        checkpoint_ts=str(partition.checkpoint_ts),
        partition=partition.number,
    )


@contextmanager
def _locked(catalog: Catalog, tenant: Tenant, consumer_id: str) -> Iterator[tuple[Connection, Any, ConsumerGroup]]:
    """A transaction with the consumer's row locked, that row, and its group."""
    of = reader_ids(tenant, consumer_id)
    with catalog.transaction() as conn:
        row = CONSUMERS.locked(conn, tenant, consumer_id)
        partitions = [_partition(part) for part in conn.execute(_PARTITIONS, of)]
        members = [_member(member) for member in conn.execute(_MEMBERS, of)]
        yield conn, row, ConsumerGroup(partitions, members, row.last_epoch)


def _apply(conn: Connection, tenant: Tenant, consumer_id: str, group: ConsumerGroup, event: Event) -> None:
    of = reader_ids(tenant, consumer_id)
    before = group.checkpoint_ts
    for effect in group.handle(event):
        _write(conn, tenant, consumer_id, effect)
    conn.execute(_SEEN, {**of, "to_epoch": group.counter})
    if group.checkpoint_ts != before:
        conn.execute(_MOVE, {**of, "to_ts": group.checkpoint_ts})


def _write(conn: Connection, tenant: Tenant, consumer_id: str, effect: Effect) -> None:
    of = reader_ids(tenant, consumer_id)
    match effect:
        case SetPartition(partition):
            values = {
                "to_ts": partition.checkpoint_ts,
                "to_commit_position": partition.commit_position or None,
            }
            holder = {"to_member": partition.member, "to_epoch": partition.epoch, "asked_number": partition.number}
            if conn.execute(_SET_PARTITION, {**of, **values, **holder}).rowcount != 1:
                raise Fenced(f"Consumer {consumer_id} was removed.")
        case DropMember(name):
            conn.execute(_DROP_MEMBER, {**of, "asked_member": name})
        case SetMember(member):
            conn.execute(_DROP_MEMBER, {**of, "asked_member": member.name})
            conn.execute(
                consumer_members.insert(),
                {
                    "cluster_id": tenant.cluster_id,
                    "tenant_id": tenant.tenant_id,
                    "consumer_id": consumer_id,
                    "member": member.name,
                    "session": member.session,
                    "expires_ms": member.expires_ms,
                },
            )


def _partition(row: Any) -> Partition:
    return record_of(Partition, row, commit_position=row.commit_position or "")


def _member(row: Any) -> Member:
    return Member(name=row.member, session=row.session, expires_ms=row.expires_ms)
