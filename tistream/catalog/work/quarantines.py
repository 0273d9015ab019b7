"""Quarantined stores: a store sent commits at or below a resolved ts that it had promised before.

    record_quarantine    a task found such rows in a file; guarded by the task's epoch. From now on nothing above
                         `good_ts` is served of the tenant (`tistream.catalog.tenancy.served`), and no task of the
                         tenant takes a file of the store. Nothing is deleted: positions do not move
    reject_store         an operator's decision: the rows are not commits of the cluster. The incarnation is given up
                         from the file on. The store gets a new one, so its pusher begins again with new subscriptions
                         at the frontier, and every task ends the old one where it stands (`decisions`)

Rows that are commits have no way into the log: what was served stays as it was served. Then another tenant is connected
to the cluster, and this one is deleted (docs/decisions/0021-what-was-served-is-only-extended.md).

A row is (store, incarnation, seq, task): several tasks may find rows in one file, each those of its range. Rows stay as
a record. Recording twice has no effect, so a lost reply is simply repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from sqlalchemy import and_, bindparam, exists, or_, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_event
from tistream.catalog.database.records import record_of
from tistream.catalog.database.tables import (
    ensure_row,
    of_asked_tenant,
    of_tenant,
    quarantines,
    store_incarnations,
    tasks,
    tenant_ids,
    tenant_of,
)
from tistream.catalog.tenancy.served import IS_OPEN, QuarantineState, edge_of_asked_tenant
from tistream.catalog.tenancy.tenants import lock_tenant
from tistream.catalog.work.stores import issue_in
from tistream.errors import NotFound, PromiseContradicted
from tistream.ids import Tenant
from tistream.model.contradiction import SAMPLE_ROWS_MAX, BatchFileId, ContradictingRow, Contradiction
from tistream.model.problem import Problem
from tistream.objectstore.layout import BatchKey

_KEY_HEX_MAX = 400  # of a named key; a TEXT column holds 64 KiB


@dataclass(frozen=True, slots=True, kw_only=True)
class QuarantineRow:
    """A quarantine as the catalog has it."""

    tenant: Tenant
    store_id: int
    incarnation: int
    seq: int
    task_id: int
    object_key: str
    good_ts: int
    served_ts: int  #: without the rows the log was served up to here, or is once the store is rejected
    rows: int
    sample: Sequence[Mapping[str, Any]]  #: some of the rows; keys are hexadecimal, timestamps text
    state: QuarantineState
    since_ms: int
    decided_ms: int
    decided_by: str

    @property
    def file(self) -> BatchFileId:
        return BatchFileId(self.store_id, self.incarnation, self.seq)

    def problem(self) -> Problem:
        """What is shown while it is undecided."""
        facts = {"store": self.store_id, "incarnation": self.incarnation, "seq": self.seq, "object": self.object_key}
        error = PromiseContradicted(
            f"Store {self.store_id} of tenant {self.tenant} sent {self.rows} rows at or below its own promise in "
            f"{self.object_key}. Nothing above {self.good_ts} is served, and no file of the store is taken.",
            tenant=str(self.tenant),
            task=self.task_id,
            rows=self.rows,
            good_ts=self.good_ts,
            **facts,
        )
        return Problem.of(f"tenant {self.tenant} store {self.store_id}", error)


@dataclass(frozen=True, slots=True)
class Decisions:
    """What sorters do with the stores of a tenant."""

    held: Mapping[Tenant, frozenset[int]] = field(default_factory=dict)  #: no file of these stores is taken
    rejected: Mapping[Tenant, frozenset[tuple[int, int]]] = field(default_factory=dict)  #: ended (store, incarnation)
    open: Sequence[QuarantineRow] = ()


_q = quarantines.c
_ALL = select(quarantines).order_by(_q.since_ms, _q.cluster_id, _q.tenant_id, _q.store_id, _q.incarnation, _q.seq)
_LOCK_TASK = select(tasks.c.epoch).where(tasks.c.task_id == bindparam("asked_task")).with_for_update()
_OPEN_OF_STORE = and_(of_asked_tenant(quarantines), _q.store_id == bindparam("asked_store"), IS_OPEN)
_IS_KNOWN = exists().where(
    store_incarnations.c.cluster_id == _q.cluster_id,
    store_incarnations.c.tenant_id == _q.tenant_id,
    store_incarnations.c.store_id == _q.store_id,
    store_incarnations.c.incarnation == _q.incarnation,
)
_IN_FORCE = _ALL.where(or_(IS_OPEN, and_(_q.state == QuarantineState.REJECTED, _IS_KNOWN)))


def record_quarantine(catalog: Catalog, tenant: Tenant, task_id: int, epoch: int, contradiction: Contradiction) -> bool:
    """Quarantine a store. False, without effect, when the task has another owner by now."""
    key, object_key = _key_of(tenant, task_id, contradiction.file), _object_key_of(tenant, contradiction.file)
    sample = [_shown(row) for row in contradiction.sample[:SAMPLE_ROWS_MAX]]
    with catalog.transaction() as conn:
        if conn.execute(_LOCK_TASK, {"asked_task": task_id}).scalar() != epoch:
            return False
        mine = and_(*(quarantines.c[name] == value for name, value in key.items()))
        if conn.execute(select(_q.state).where(mine)).first() is not None:
            return True  # recorded
        edge_ts = int(conn.execute(edge_of_asked_tenant(), tenant_ids(tenant)).scalar() or 0)
        # a task writes up to what it was promised, ahead of others or later, and new subscriptions begin there
        served_ts = max(edge_ts, contradiction.promised_ts)
        ensure_row(
            conn, quarantines, timed="since_ms", **key, object_key=object_key, good_ts=contradiction.good_ts,
            served_ts=served_ts, row_count=contradiction.rows, sample=orjson.dumps(sample).decode(),
            state=QuarantineState.QUARANTINED, decided_ms=0, decided_by="",
        )  # fmt: skip
        record_event(
            conn,
            EventKind.STORE_QUARANTINED,
            contradiction.store_id,
            tenant=tenant,
            incarnation=contradiction.incarnation,
            seq=contradiction.seq,
            task=task_id,
            object=object_key,
            good_ts=str(contradiction.good_ts),
            served_ts=str(served_ts),
            rows=contradiction.rows,
        )
        return True


def reject_store(catalog: Catalog, tenant: Tenant, store_id: int, *, actor: str = "") -> list[QuarantineRow]:
    """Give up the quarantined incarnations of a store; the quarantines that this decides. NotFound when there is none.

    The rows stay named in the record. What of them had a place at or below what was served is missing in the log, or
    never was in the upstream: the operator has decided that."""
    parameters = {**tenant_ids(tenant), "asked_store": store_id}
    with catalog.transaction() as conn:
        lock_tenant(conn, tenant)
        held = [
            _row_of(row)
            for row in conn.execute(select(quarantines).where(_OPEN_OF_STORE).with_for_update(), parameters)
        ]
        if not held:
            raise NotFound(f"Store {store_id} of tenant {tenant} is not quarantined.", store=store_id)
        decided = {"state": QuarantineState.REJECTED, "decided_ms": now_ms(), "decided_by": actor[:128]}
        conn.execute(quarantines.update().where(_OPEN_OF_STORE).values(**decided), parameters)
        newest = issue_in(conn, tenant, store_id, above=max(row.incarnation for row in held))
        record_event(
            conn, EventKind.STORE_REJECTED, store_id, tenant=tenant, actor=actor, newest_incarnation=newest,
            good_ts=str(min(row.good_ts for row in held)), served_ts=str(max(row.served_ts for row in held)),
            rows=sum(row.rows for row in held), objects=sorted({row.object_key for row in held})[:SAMPLE_ROWS_MAX],
        )  # fmt: skip
        return held


def list_quarantines(
    catalog: Catalog, tenant: Tenant | None = None, *, state: QuarantineState | None = None
) -> list[QuarantineRow]:
    """The quarantines of one tenant, or of all, oldest first."""
    query = _ALL
    if tenant is not None:
        query = query.where(of_tenant(quarantines, tenant))
    if state is not None:
        query = query.where(_q.state == state)
    with catalog.reading() as conn:
        return [_row_of(row) for row in conn.execute(query)]


def open_quarantines(catalog: Catalog, tenant: Tenant | None = None) -> list[QuarantineRow]:
    """Those that bound what is served: the undecided ones."""
    return list_quarantines(catalog, tenant, state=QuarantineState.QUARANTINED)


def lowest_quarantine(catalog: Catalog, tenant: Tenant) -> QuarantineRow | None:
    """The open quarantine with the lowest `good_ts`, or None."""
    quarantines_open = open_quarantines(catalog, tenant)
    return min(quarantines_open, key=lambda row: row.good_ts, default=None)


def decisions(catalog: Catalog, tenants: Collection[Tenant]) -> Decisions:
    """What holds for the stores of these tenants now: one state of the catalog. Nearly always empty."""
    with catalog.reading() as conn:
        in_force = [row for row in map(_row_of, conn.execute(_IN_FORCE)) if row.tenant in tenants]
    held = dict[Tenant, set[int]]()
    rejected = dict[Tenant, set[tuple[int, int]]]()
    for row in in_force:
        if row.state == QuarantineState.QUARANTINED:
            held.setdefault(row.tenant, set()).add(row.store_id)
        else:
            rejected.setdefault(row.tenant, set()).add((row.store_id, row.incarnation))
    return Decisions(
        {tenant: frozenset(stores) for tenant, stores in held.items()},
        {tenant: frozenset(stores) for tenant, stores in rejected.items()},
        [row for row in in_force if row.state == QuarantineState.QUARANTINED],
    )


def _key_of(tenant: Tenant, task_id: int, file: BatchFileId) -> dict[str, int]:
    """The primary key of a task's quarantine."""
    ids = {"cluster_id": tenant.cluster_id, "tenant_id": tenant.tenant_id}
    return {**ids, **file._asdict(), "task_id": task_id}


def _object_key_of(tenant: Tenant, file: BatchFileId) -> str:
    """Where the file lies."""
    return str(BatchKey(tenant=tenant, store_id=file.store_id, incarnation=file.incarnation, seq=file.seq))


def _shown(row: ContradictingRow) -> dict[str, Any]:
    return {
        "key": row.key.hex()[:_KEY_HEX_MAX],
        "start_ts": str(row.start_ts),
        "commit_ts": str(row.commit_ts),
        "promised_ts": str(row.promised_ts),
        "region": row.region_id,
    }


def _row_of(row: Any) -> QuarantineRow:
    """Convert a row of `quarantines`."""
    return record_of(
        QuarantineRow,
        row,
        tenant=tenant_of(row),
        rows=int(row.row_count),
        sample=orjson.loads(row.sample),
        state=QuarantineState(row.state),
    )
