"""Processes: where they are, and when the database last heard of them.

    up -> draining -> gone;  a heartbeat makes gone up again;  registering makes it up, under a new incarnation

A worker id names a place, an incarnation one life in it. Registering takes over the place: what the earlier life owned
goes on under new epochs, so nothing that it still tries can succeed. A heartbeat of an older life is refused: its
process must drop what it holds and stop.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from typing import Any

import structlog
from sqlalchemy import ColumnElement, Update, bindparam, case, exists, select

from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_event
from tistream.catalog.database.names import is_name
from tistream.catalog.database.tables import WORKER_NAME_MAX, ensure_row, now_ms, stores, tasks, workers
from tistream.catalog.work.reports import WorkerReport, decode_report, encode_report
from tistream.errors import CorruptObject, Fenced, NotFound

log = structlog.get_logger(__name__)


class WorkerKind(StrEnum):
    """What a process does."""

    DISPATCHER = "dispatcher"
    SORTER = "sorter"
    API = "api"
    META = "meta"
    REPLAY = "replay"  #: holds a tenant's tasks while it replays a backlog; is given nothing
    OTHER = "other"  #: of a newer version, which this one does not know; is given nothing


_KINDS = {str(kind): kind for kind in WorkerKind}


class WorkerState(StrEnum):
    """Whether a process may be given work."""

    UP = "up"
    DRAINING = "draining"
    GONE = "gone"
    OTHER = "other"  #: of a newer version, which this one does not know; is given nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerRow:
    """A process as the catalog has it."""

    worker_id: str
    kind: WorkerKind
    address: str
    incarnation: int
    state: WorkerState
    heartbeat_age_ms: int  #: by the database's clock; how far in the future it lies, if that was set back since
    report: WorkerReport = field(default_factory=WorkerReport)  #: what it said with its newest heartbeat


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulse:
    """A worker's sign of life."""

    worker_id: str
    kind: WorkerKind
    incarnation: int
    state: WorkerState
    heartbeat_ms: int  #: the database's time of the newest heartbeat: another number = it has beaten
    heartbeat_age_ms: int


_STATES = {str(state): state for state in WorkerState}
_DECODED_MAX = 1000  # workers whose reports are kept decoded

_ME = workers.c.worker_id == bindparam("asked_worker")
_NEW_LIFE = (
    workers.update().where(_ME).values(incarnation=workers.c.incarnation + 1, heartbeat_ms=now_ms(), report=None)
)
_INCARNATION = select(workers.c.incarnation).where(_ME)
_FENCE_STORES = (
    stores.update()
    .where(stores.c.dispatcher == bindparam("asked_worker"))
    .values(dispatcher_epoch=stores.c.dispatcher_epoch + 1)
)


def register_worker(catalog: Catalog, worker_id: str, kind: str, address: str) -> int:
    """Start a life under this id. Returns its incarnation, which is larger than any before.

    Tasks and stores of an earlier life stay with the id, fenced against that life: their epochs rise in the same
    transaction. Two processes of one name can otherwise not be told apart by any guard.
    """
    kind = WorkerKind(kind)
    with catalog.transaction() as conn:
        ensure_row(
            conn,
            workers,
            worker_id=worker_id,
            kind=kind,
            address=address,
            incarnation=0,
            state=WorkerState.UP,
            heartbeat_ms=0,
        )
        me = {"asked_worker": worker_id}
        conn.execute(_NEW_LIFE, {**me, "kind": kind, "address": address, "state": WorkerState.UP})
        conn.execute(_fencing_tasks(), me)
        conn.execute(_FENCE_STORES, me)
        incarnation = int(conn.execute(_INCARNATION, me).scalar_one())
        record_event(conn, EventKind.WORKER_REGISTERED, worker_id, kind=kind, address=address, incarnation=incarnation)
        return incarnation


@cache
def _fencing_tasks() -> Update:
    return tasks.update().where(tasks.c.owner == bindparam("asked_worker")).values(epoch=tasks.c.epoch + 1)


def asked_life_lives() -> ColumnElement[bool]:
    """A condition for another table's query: the life that the parameters `asked_worker` and `asked_incarnation` name
    is the newest of its id, and was not declared gone."""
    return exists().where(
        workers.c.worker_id == bindparam("asked_worker"),
        workers.c.incarnation == bindparam("asked_incarnation"),
        workers.c.state != WorkerState.GONE,
    )


_BEAT = (
    workers.update()
    .where(_ME, workers.c.incarnation == bindparam("asked_incarnation"))
    .values(
        heartbeat_ms=now_ms(),
        state=case((workers.c.state == WorkerState.GONE, WorkerState.UP), else_=workers.c.state),
    )
)
_REPORT = _BEAT.values(report=bindparam("asked_report"))
_LIFE = workers.update().where(_ME, workers.c.incarnation == bindparam("asked_incarnation"))
_CHANGE = _LIFE.where(workers.c.state == bindparam("asked_state"))
_RETIRE = _LIFE.where(workers.c.state != WorkerState.GONE)
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
    """Say that this life goes on, also after it was declared gone: a machine that slept too long may work again, and
    what it owned meanwhile went to others under new epochs. Fenced when a newer life has registered.

    A `report` replaces the one before; without one that stays."""
    me = {"asked_worker": worker_id, "asked_incarnation": incarnation}
    with catalog.transaction() as conn:
        if report is None:
            beat = conn.execute(_BEAT, me)
        else:
            beat = conn.execute(_REPORT, {**me, "asked_report": encode_report(report)})
        if beat.rowcount != 1:
            raise Fenced("a newer process runs under this worker's name", worker_id=worker_id, incarnation=incarnation)


def list_workers(catalog: Catalog, kind: str | None = None) -> list[WorkerRow]:
    """All workers, or those of one kind, ordered by id."""
    with catalog.reading() as conn:
        found = conn.execute(_ALL) if kind is None else conn.execute(_OF_KIND, {"asked_kind": kind})
        return [_worker_row(row) for row in found]


def get_worker(catalog: Catalog, worker_id: str) -> WorkerRow:
    """The worker's row. NotFound when nobody ever registered under this name."""
    row = None
    if is_name(worker_id, WORKER_NAME_MAX):
        with catalog.reading() as conn:
            row = conn.execute(_ONE, {"asked_worker": worker_id}).one_or_none()
    if row is None:
        raise NotFound(f"there is no worker '{worker_id}'", worker_id=worker_id)
    return _worker_row(row)


def pulses(catalog: Catalog) -> list[Pulse]:
    """The signs of life of all workers, ordered by id: without their reports, which are long."""
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
    """Give this life no more work. False when it is not up."""
    return _change(catalog, worker_id, incarnation, WorkerState.UP, WorkerState.DRAINING, actor)


def undrain_worker(catalog: Catalog, worker_id: str, incarnation: int, *, actor: str = "") -> bool:
    """Give this life work again. False when it is not draining."""
    return _change(catalog, worker_id, incarnation, WorkerState.DRAINING, WorkerState.UP, actor)


def _change(catalog: Catalog, worker_id: str, incarnation: int, seen: WorkerState, to: WorkerState, actor: str) -> bool:
    me = {"asked_worker": worker_id, "asked_incarnation": incarnation, "asked_state": seen}
    with catalog.transaction() as conn:
        if conn.execute(_CHANGE, {**me, "state": to}).rowcount != 1:
            return False
        told = EventKind.WORKER_DRAINING if to is WorkerState.DRAINING else EventKind.WORKER_RETURNED
        record_event(conn, told, worker_id, actor=actor, incarnation=incarnation)
        return True


def retire_worker(catalog: Catalog, worker_id: str, incarnation: int) -> None:
    """End this life: said by the process itself when it stops, or by the owner when its lease has run out. A newer life
    is left alone."""
    with catalog.transaction() as conn:
        me = {"asked_worker": worker_id, "asked_incarnation": incarnation}
        if conn.execute(_RETIRE, {**me, "state": WorkerState.GONE}).rowcount == 1:
            record_event(conn, EventKind.WORKER_GONE, worker_id, incarnation=incarnation)


_decoded: dict[str, tuple[str, WorkerReport]] = {}  # by worker: the text of its newest report and what it says


def _report(worker_id: str, text: str) -> WorkerReport:
    """A report is decoded once, however often it is read: a worker's changes every few seconds, and pages, lists and
    the leader read all of them. Where two threads decode the same one the later stays.

    A report that cannot be read is taken for one without load whose only problem says so: the other workers' reports
    count, and the worker keeps its work."""
    known = _decoded.get(worker_id)
    if known is not None and known[0] == text:
        return known[1]
    try:
        report = decode_report(text)
    except CorruptObject as e:
        log.warning("the report of a worker cannot be read; its load counts as zero", worker=worker_id, error=str(e))
        report = WorkerReport(problems=(_unreadable(worker_id, e),))
    if len(_decoded) >= _DECODED_MAX:
        _decoded.clear()
    _decoded[worker_id] = text, report
    return report


def _unreadable(worker_id: str, error: CorruptObject) -> dict[str, object]:
    """As tistream.runtime.service.Problem.shown gives it."""
    facts = {name: str(value) for name, value in error.facts.items()}
    return {"source": worker_id, "code": error.code, "message": error.message, "fatal": False, "facts": facts}


def _worker_row(row: Any) -> WorkerRow:
    return WorkerRow(
        worker_id=row.worker_id,
        kind=_KINDS.get(row.kind, WorkerKind.OTHER),
        address=row.address,
        incarnation=row.incarnation,
        state=_STATES.get(row.state, WorkerState.OTHER),
        heartbeat_age_ms=abs(row.now_ms - row.heartbeat_ms),
        report=_report(row.worker_id, row.report or "{}"),
    )
