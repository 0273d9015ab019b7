"""Accepts the rows of a quarantined store: an operator's decision, and how the sorters carry it out.

    accept_store     the command: open quarantines of the store -> ACCEPTING. Readers are still served up to `good_ts`
    amend            one task takes the file: its new segments at or below `durable_ts` and its state checkpoint behind
                     the file appear together, guarded by epoch and `durable_ts`, or not at all
    refuse           rows of the file cannot be merged: back to QUARANTINED, with the reason
    finish_accepted  every task of the tenant has durably taken the file -> ACCEPTED. The log is served on, and rows at
                     or below what was served become an amendment, in one transaction

The decision is about files, not tasks: a task that finds rows in an accepted file merges them too, also the parts of a
split. Repeating any of these has no effect. A store that is rejected after some tasks have amended their part leaves an
amendment as well (`publish_amended`), so no row appears without a number.

Transactions lock the tenant's row first, then the task's, then quarantines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, and_, bindparam, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog, GuardFailed
from tistream.catalog.database.events import EventKind, record_event
from tistream.catalog.database.tables import ensure_row, of_asked_tenant, quarantines, segments, tasks, tenant_ids
from tistream.catalog.log.committed import values_of_segment
from tistream.catalog.log.objects import ObjectKind, insert_all_live
from tistream.catalog.log.segments import SegmentRow
from tistream.catalog.log.snapshots import ALL_CONSUMED, NewSnapshot, durable_floor, switch_in
from tistream.catalog.tenancy.served import QuarantineState
from tistream.catalog.tenancy.tenants import TaskKind, lock_tenant
from tistream.catalog.work.quarantines import (
    OPEN_OF_STORE,
    QuarantineRow,
    key_of,
    list_quarantines,
    object_key_of,
    publish_amended,
    row_of,
)
from tistream.errors import NotFound, RowsNotAcceptable, invariant
from tistream.ids import Tenant
from tistream.model.contradiction import BatchFile

_q = quarantines.c
_OF_FILE = and_(
    of_asked_tenant(quarantines),
    _q.store_id == bindparam("asked_store"),
    _q.incarnation == bindparam("asked_incarnation"),
    _q.seq == bindparam("asked_seq"),
)
_ACCEPTING = and_(_OF_FILE, _q.state == QuarantineState.ACCEPTING)
_LOCK_ACCEPTING = select(quarantines).where(_ACCEPTING).with_for_update()
_LOCK_TASK = (
    select(tasks.c.epoch, tasks.c.durable_ts, tasks.c.kind)
    .where(tasks.c.task_id == bindparam("asked_task"))
    .with_for_update()
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskAmendment:
    """What one task adds to the log at or below its `durable_ts`; without rows it only takes the file."""

    file: BatchFile
    seen_durable_ts: int  #: the task's, as its owner knows it
    objects: Mapping[str, int]  #: key -> bytes
    segments: Sequence[SegmentRow]


def accept_store(catalog: Catalog, tenant: Tenant, store_id: int, *, actor: str = "") -> list[QuarantineRow]:
    """Accept the rows of a quarantined store; the quarantines that this decides. NotFound when there is none,
    RowsNotAcceptable when rows lie where the log can not be amended."""
    asked = {**tenant_ids(tenant), "asked_store": store_id}
    with catalog.transaction() as conn:
        _, floor_ts = lock_tenant(conn, tenant)
        query = select(quarantines).where(OPEN_OF_STORE).with_for_update()
        found = [row_of(row) for row in conn.execute(query, asked)]
        found = [row for row in found if row.state == QuarantineState.QUARANTINED]
        if not found:
            raise NotFound(f"Store {store_id} of tenant {tenant} is not quarantined.", store=store_id)
        for row in found:
            kind = conn.execute(_LOCK_TASK, {"asked_task": row.task_id}).one_or_none()
            _check_place(row.good_ts, floor_ts, TaskKind.DATA if kind is None else kind.kind, row.object_key)
        mine = and_(OPEN_OF_STORE, _q.state == QuarantineState.QUARANTINED)
        decided = {"state": QuarantineState.ACCEPTING, "decided_ms": now_ms(), "decided_by": actor[:128], "error": None}
        conn.execute(quarantines.update().where(mine).values(**decided), asked)
        record_event(
            conn, EventKind.STORE_ACCEPTED, store_id, tenant=tenant, actor=actor,
            good_ts=str(min(row.good_ts for row in found)), rows=sum(row.rows for row in found),
            objects=sorted({row.object_key for row in found})[:20],
        )  # fmt: skip
        return found


def amend(
    catalog: Catalog, tenant: Tenant, task_id: int, epoch: int, new: TaskAmendment, snapshot: NewSnapshot
) -> bool:
    """Add the rows of an accepted file to the log, and make the state that has taken the file the task's: both or
    nothing. False, without effect, when the task has another owner or other progress, or the file is not accepted any
    more. RowsNotAcceptable when the log can not be amended there."""
    with suppress(GuardFailed), catalog.transaction() as conn:
        _, floor_ts = lock_tenant(conn, tenant)
        task = conn.execute(_LOCK_TASK, {"asked_task": task_id}).one_or_none()
        if task is None or (task.epoch, task.durable_ts) != (epoch, new.seen_durable_ts):
            raise GuardFailed
        accepted = [row_of(row) for row in conn.execute(_LOCK_ACCEPTING, _asked(tenant, new.file))]
        if not accepted or not switch_in(conn, task_id, epoch, snapshot):
            raise GuardFailed
        if new.segments:
            _check_place(min(s.lo_ts for s in new.segments) - 1, floor_ts, task.kind, object_key_of(tenant, new.file))
            _insert(conn, tenant, task_id, new, accepted[0])
        return True
    return False


def refuse(catalog: Catalog, tenant: Tenant, task_id: int, epoch: int, file: BatchFile, error: str) -> bool:
    """Quarantine the store again, because this task cannot merge rows of the accepted file. False when the task has
    another owner."""
    with catalog.transaction() as conn:
        lock_tenant(conn, tenant)
        task = conn.execute(_LOCK_TASK, {"asked_task": task_id}).one_or_none()
        if task is None or task.epoch != epoch:
            return False
        asked = _asked(tenant, file)
        back = {"state": QuarantineState.QUARANTINED, "decided_ms": 0, "decided_by": "", "error": error[:4000]}
        if conn.execute(quarantines.update().where(_ACCEPTING).values(**back), asked).rowcount:
            record_event(
                conn, EventKind.STORE_NOT_ACCEPTED, file.store_id, tenant=tenant, task=task_id,
                object=object_key_of(tenant, file), error=error[:4000],
            )  # fmt: skip
        return True


def finish_accepted(catalog: Catalog, tenant: Tenant) -> int:
    """Serve the log on where every task of the tenant has durably taken an accepted file; the number of files."""
    files = {row.file for row in list_quarantines(catalog, tenant, state=QuarantineState.ACCEPTING)}
    floors = {store_id: durable_floor(catalog, tenant, store_id) for store_id in {file.store_id for file in files}}
    taken = [file for file in sorted(files) if floors[file.store_id].get(file.incarnation, ALL_CONSUMED) >= file.seq]
    return sum(_finish(catalog, tenant, file) for file in taken)


def _finish(catalog: Catalog, tenant: Tenant, file: BatchFile) -> bool:
    asked = _asked(tenant, file)
    with catalog.transaction() as conn:
        lock_tenant(conn, tenant)
        rows = [row_of(row) for row in conn.execute(_LOCK_ACCEPTING, asked)]
        if not rows:
            return False
        conn.execute(quarantines.update().where(_ACCEPTING).values(state=QuarantineState.ACCEPTED), asked)
        actor = rows[0].decided_by
        number = publish_amended(conn, tenant, rows, actor)
        record_event(
            conn, EventKind.STORE_AMENDED, file.store_id, tenant=tenant, actor=actor, amendment=number or 0,
            object=object_key_of(tenant, file), rows=sum(row.amended_rows for row in rows),
        )  # fmt: skip
        return True


def _insert(conn: Connection, tenant: Tenant, task_id: int, new: TaskAmendment, decided: QuarantineRow) -> None:
    """The segments, and the record of them on the task's quarantine, which is made if other tasks found the file."""
    from_ts, to_ts = min(s.lo_ts for s in new.segments) - 1, max(s.hi_ts for s in new.segments)
    rows = sum(s.rows for s in new.segments)
    invariant(to_ts <= new.seen_durable_ts, "an amendment lies below the durable watermark", task=task_id)
    insert_all_live(conn, tenant, new.objects, ObjectKind.COMMITTED)
    values = [values_of_segment(tenant, TaskKind.DATA, task_id, s) for s in new.segments]
    conn.execute(segments.insert(), values)
    key = key_of(tenant, task_id, new.file)
    ensure_row(
        conn, quarantines, timed="since_ms", **key, object_key=object_key_of(tenant, new.file), good_ts=from_ts,
        served_ts=decided.served_ts, row_count=rows, sample="[]", state=QuarantineState.ACCEPTING,
        decided_ms=decided.decided_ms, decided_by=decided.decided_by, amended_from=0, amended_to=0, amended_rows=0,
    )  # fmt: skip
    mine = and_(*(quarantines.c[name] == value for name, value in key.items()))
    added = {"amended_from": from_ts, "amended_to": to_ts, "amended_rows": rows}
    conn.execute(quarantines.update().where(mine).values(state=QuarantineState.ACCEPTING, **added))


def _check_place(from_ts: int, floor_ts: int, kind: str, object_key: str) -> None:
    """Raise RowsNotAcceptable where the log can not be amended."""
    facts: dict[str, object] = {"object": object_key, "from_ts": str(from_ts)}
    if kind != TaskKind.DATA:
        raise RowsNotAcceptable("The rows change the schema, and later rows were decoded without them.", **facts)
    if from_ts < floor_ts:
        raise RowsNotAcceptable(f"Retention has removed the log up to {floor_ts}; rows lie below it.", **facts)


def _asked(tenant: Tenant, file: BatchFile) -> dict[str, Any]:
    at = {"asked_store": file.store_id, "asked_incarnation": file.incarnation, "asked_seq": file.seq}
    return {**tenant_ids(tenant), **at}
