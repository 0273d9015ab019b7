"""Workers: registration, heartbeats and state of processes.

    up -> draining -> gone;  a heartbeat returns gone to up;  registering sets up, under a new incarnation

A worker id is a stable name, an incarnation one process under it. Registering fences the earlier incarnation: its tasks
and stores get new epochs, so its later writes fail. A heartbeat of an older incarnation is refused; that process must
drop its state and stop.

A process whose release may not run on the catalog is refused when it registers and with each heartbeat
(`tistream.catalog.database.compatibility`).
"""

from __future__ import annotations

from functools import cache
from typing import Any

from sqlalchemy import ColumnElement, Update, bindparam, case, exists, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.columns import WORKER_NAME_MAX
from tistream.catalog.database.compatibility import admit, may_run, refuse_older
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_event
from tistream.catalog.database.names import is_name
from tistream.catalog.database.tables import ensure_row, lanes, stores, tasks, workers
from tistream.catalog.rows.reports import WorkerReport
from tistream.catalog.rows.workers import Pulse, WorkerKind, WorkerRow, WorkerState
from tistream.catalog.work.reports import encode_report, readable_report
from tistream.errors import Fenced, NotFound
from tistream.limits import LANE_LEASE_MS
from tistream.release import Release

FORGOTTEN_MS = 3_600_000  #: the row of a killed process that owned nothing is kept so long, as a sign of its end

_KINDS = {str(kind): kind for kind in WorkerKind}


_STATES = {str(state): state for state in WorkerState}

_ME = workers.c.worker_id == bindparam("asked_worker")
_NEW_INCARNATION = (
    workers.update().where(_ME).values(incarnation=workers.c.incarnation + 1, heartbeat_ms=now_ms(), report=None)
)
_INCARNATION = select(workers.c.incarnation).where(_ME)
_FENCE_LANES = (  # the process before may write until its lease ends, see `lanes`
    lanes.update()
    .where(lanes.c.owner == bindparam("asked_worker"))
    .values(epoch=lanes.c.epoch + 1, catch_up_ts=lanes.c.attempted_ts, writable_ms=now_ms() + bindparam("lease_ms"))
)
_FENCE_STORES = (
    stores.update()
    .where(stores.c.dispatcher == bindparam("asked_worker"))
    .values(dispatcher_epoch=stores.c.dispatcher_epoch + 1)
)


def register_worker(catalog: Catalog, worker_id: str, kind: str, address: str) -> int:
    """Register a process under this id; its incarnation, larger than any before. ReleaseTooOld: see `compatibility`.

    Tasks, stores and lanes stay with the id, and their epochs rise in the same transaction, which fences the earlier
    incarnation: no other guard could distinguish two processes of one name.
    """
    kind = WorkerKind(kind)
    columns: dict[str, Any] = {
        "kind": kind,
        "address": address,
        "release_no": catalog.release.number,
        "state": WorkerState.UP,
    }
    with catalog.transaction() as conn:
        admit(conn, catalog.release)
        ensure_row(conn, workers, worker_id=worker_id, **columns, incarnation=0, heartbeat_ms=0)
        me = {"asked_worker": worker_id}
        conn.execute(_NEW_INCARNATION, {**me, **columns})
        conn.execute(_fencing_tasks(), me)
        conn.execute(_FENCE_STORES, me)
        if kind is WorkerKind.REPLICATE:
            conn.execute(_FENCE_LANES, {**me, "lease_ms": LANE_LEASE_MS})
        incarnation = int(conn.execute(_INCARNATION, me).scalar_one())
        record_event(conn, EventKind.WORKER_REGISTERED, worker_id, kind=kind, address=address, incarnation=incarnation)
        return incarnation


@cache
def _fencing_tasks() -> Update:
    return tasks.update().where(tasks.c.owner == bindparam("asked_worker")).values(epoch=tasks.c.epoch + 1)


def is_newest_incarnation() -> ColumnElement[bool]:
    """Condition for other queries: `asked_incarnation` is the newest incarnation of `asked_worker`, and not gone."""
    return exists().where(
        workers.c.worker_id == bindparam("asked_worker"),
        workers.c.incarnation == bindparam("asked_incarnation"),
        workers.c.state != WorkerState.GONE,
    )


_BEAT = (
    workers.update()
    .where(_ME, workers.c.incarnation == bindparam("asked_incarnation"), may_run())
    .values(
        heartbeat_ms=now_ms(), state=case((workers.c.state == WorkerState.GONE, WorkerState.UP), else_=workers.c.state)
    )
)
_REPORT = _BEAT.values(report=bindparam("asked_report"))
_MINE = workers.update().where(_ME, workers.c.incarnation == bindparam("asked_incarnation"))
_CHANGE = _MINE.where(workers.c.state == bindparam("asked_state"))
_RETIRE = _MINE.where(workers.c.state != WorkerState.GONE)
_LEAVE = workers.delete().where(_ME, workers.c.incarnation == bindparam("asked_incarnation"))
_FORGET = workers.delete().where(
    workers.c.kind.in_((WorkerKind.API, WorkerKind.META, WorkerKind.COMMAND)),
    workers.c.heartbeat_ms + FORGOTTEN_MS < now_ms(),
)
_ALL = select(workers, now_ms().label("now_ms")).order_by(workers.c.worker_id)
_ONE = _ALL.where(_ME)
_PULSES = select(
    workers.c.worker_id,
    workers.c.kind,
    workers.c.incarnation,
    workers.c.state,
    workers.c.heartbeat_ms,
    now_ms().label("now_ms"),
).order_by(workers.c.worker_id)
_OF_KIND = _ALL.where(workers.c.kind == bindparam("asked_kind"))


def heartbeat(catalog: Catalog, worker_id: str, incarnation: int, report: WorkerReport | None = None) -> None:
    """Renew the lease of this incarnation, even if declared gone: a process that slept may work again; its tasks
    were reassigned under new epochs. Fenced when a newer incarnation has registered, ReleaseTooOld when the catalog has
    been changed to what this release cannot read.

    A `report` replaces the previous one; None keeps it."""
    me = {"asked_worker": worker_id, "asked_incarnation": incarnation, "my_release": catalog.release.number}
    with catalog.transaction() as conn:
        if report is None:
            beat = conn.execute(_BEAT, me)
        else:
            beat = conn.execute(_REPORT, {**me, "asked_report": encode_report(report)})
        if beat.rowcount != 1:
            refuse_older(conn, catalog.release)
            raise Fenced("a newer process runs under this worker's name", worker_id=worker_id, incarnation=incarnation)


def list_workers(catalog: Catalog, kind: str | None = None) -> list[WorkerRow]:
    """All workers, or those of one kind, ordered by id."""
    with catalog.reading() as conn:
        rows = conn.execute(_ALL) if kind is None else conn.execute(_OF_KIND, {"asked_kind": kind})
        return [_worker_row(row) for row in rows]


def get_worker(catalog: Catalog, worker_id: str) -> WorkerRow:
    """The worker. NotFound when no process has ever registered under this name."""
    row = None
    if is_name(worker_id, WORKER_NAME_MAX):
        with catalog.reading() as conn:
            row = conn.execute(_ONE, {"asked_worker": worker_id}).one_or_none()
    if row is None:
        raise NotFound(f"worker '{worker_id}' not found", worker_id=worker_id)
    return _worker_row(row)


def pulses(catalog: Catalog) -> list[Pulse]:
    """Heartbeats of all workers, by id, without their long reports."""
    with catalog.reading() as conn:
        return [
            Pulse(
                worker_id=row.worker_id,
                kind=_KINDS.get(row.kind, WorkerKind.OTHER),
                incarnation=row.incarnation,
                state=_STATES.get(row.state, WorkerState.OTHER),
                heartbeat_ms=row.heartbeat_ms,
                heartbeat_age_ms=abs(row.now_ms - row.heartbeat_ms),
            )
            for row in conn.execute(_PULSES)
        ]


def drain_worker(catalog: Catalog, worker_id: str, incarnation: int, *, actor: str = "") -> bool:
    """Assign no more work to this incarnation. False when it is not up."""
    return _change(catalog, worker_id, incarnation, WorkerState.UP, WorkerState.DRAINING, actor)


def undrain_worker(catalog: Catalog, worker_id: str, incarnation: int, *, actor: str = "") -> bool:
    """Assign work to this incarnation again. False when it is not draining."""
    return _change(catalog, worker_id, incarnation, WorkerState.DRAINING, WorkerState.UP, actor)


def _change(catalog: Catalog, worker_id: str, incarnation: int, seen: WorkerState, to: WorkerState, actor: str) -> bool:
    me = {"asked_worker": worker_id, "asked_incarnation": incarnation, "asked_state": seen}
    with catalog.transaction() as conn:
        if conn.execute(_CHANGE, {**me, "state": to}).rowcount != 1:
            return False
        kind = EventKind.WORKER_DRAINING if to is WorkerState.DRAINING else EventKind.WORKER_RETURNED
        record_event(conn, kind, worker_id, actor=actor, incarnation=incarnation)
        return True


def retire_worker(catalog: Catalog, worker_id: str, incarnation: int) -> None:
    """Declare this incarnation gone, when it stops. A newer incarnation is not affected."""
    with catalog.transaction() as conn:
        me = {"asked_worker": worker_id, "asked_incarnation": incarnation}
        if conn.execute(_RETIRE, {**me, "state": WorkerState.GONE}).rowcount == 1:
            record_event(conn, EventKind.WORKER_GONE, worker_id, incarnation=incarnation)


def leave(catalog: Catalog, worker_id: str, incarnation: int) -> None:
    """Remove the row of a process that owns nothing, when it stops. A newer incarnation is not affected."""
    with catalog.transaction() as conn:
        conn.execute(_LEAVE, {"asked_worker": worker_id, "asked_incarnation": incarnation})


def forget_presences(catalog: Catalog) -> None:
    """Remove the rows of processes that owned nothing and were killed."""
    with catalog.transaction() as conn:
        conn.execute(_FORGET)


def _worker_row(row: Any) -> WorkerRow:
    return WorkerRow(
        worker_id=row.worker_id,
        kind=_KINDS.get(row.kind, WorkerKind.OTHER),
        address=row.address,
        release=Release.of_number(row.release_no),
        incarnation=row.incarnation,
        state=_STATES.get(row.state, WorkerState.OTHER),
        heartbeat_age_ms=abs(row.now_ms - row.heartbeat_ms),
        report=readable_report(row.worker_id, row.report),
    )
