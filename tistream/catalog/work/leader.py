"""Leader election of the meta servers: one row, one leader, one epoch.

The row exists from the first migration, so an election is a guarded update and never an insert. The lease (database
time) says when another meta server may take over; the epoch, tested by every assignment, fences the old leader. A
heartbeat in the future means that the database's clock was set back; it counts as expired once it is a lease away.

Each epoch is given once, to one caller, who keeps it with `renew_leadership`. A process that starts under the present
leader's name replaces it at once, with a new epoch: an earlier incarnation that still runs is fenced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import bindparam, or_, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.compatibility import may_run, refuse_older
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, list_events, record_event
from tistream.catalog.database.tables import leader
from tistream.catalog.rows.reports import WorkerReport
from tistream.catalog.work.reports import encode_report, readable_report
from tistream.errors import Fenced, invariant
from tistream.limits import LEADER_LEASE_MS
from tistream.release import Release

_c = leader.c
_ROW = _c.id == 1
_MINE = _c.name == bindparam("me")
_RENEW = leader.update().where(_ROW, _MINE, _c.epoch == bindparam("my_epoch"), may_run()).values(heartbeat_ms=now_ms())
_NEW: dict[str, Any] = {
    "name": bindparam("me"),
    "release_no": bindparam("my_release"),
    "epoch": _c.epoch + 1,
    "heartbeat_ms": now_ms(),
    "report": None,
}
_TAKE = (
    leader.update()
    .where(
        _ROW,
        may_run(),
        or_(
            _c.epoch == 0,
            _c.heartbeat_ms + bindparam("lease_ms") < now_ms(),
            _c.heartbeat_ms > now_ms() + bindparam("lease_ms"),  # the database's clock was set back since
        ),
    )
    .values(_NEW)
)
_REPLACE = leader.update().where(_ROW, _MINE, may_run()).values(_NEW)
_REPORT = leader.update().where(_ROW, _MINE, _c.epoch == bindparam("my_epoch")).values(report=bindparam("said"))
_EPOCH = select(_c.epoch).where(_ROW)
_GET = select(_c.name, _c.release_no, _c.epoch, _c.heartbeat_ms, now_ms().label("now_ms")).where(_ROW)
_REPORTED = select(_c.name, _c.report).where(_ROW)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderRow:
    """The last elected leader, alive or not."""

    name: str
    release: Release
    epoch: int
    heartbeat_age_ms: int  #: by the database's clock


def acquire_leadership(catalog: Catalog, me: str, *, starts: bool = False) -> int | None:
    """Become the leader; the new epoch, or None while another one leads or this release may not run on the catalog.

    Succeeds when the last heartbeat is older than LEADER_LEASE_MS, or at once when this incarnation `starts` (it has
    not led yet) and the row names `me`.
    """
    invariant(bool(me), "a leader has a name")
    parameters = {"me": me, "my_release": catalog.release.number}
    with catalog.transaction() as conn:
        taken = starts and conn.execute(_REPLACE, parameters).rowcount
        if not taken and not conn.execute(_TAKE, {**parameters, "lease_ms": LEADER_LEASE_MS}).rowcount:
            return None
        epoch = int(conn.execute(_EPOCH).scalar_one())
        record_event(conn, EventKind.OWNER_ELECTED, me, epoch=epoch)
        return epoch


def renew_leadership(catalog: Catalog, me: str, epoch: int) -> None:
    """Renew the lease. Fenced when another leader was elected, ReleaseTooOld when the catalog has been changed to what
    this release cannot read."""
    parameters = {"me": me, "my_epoch": epoch, "my_release": catalog.release.number}
    with catalog.transaction() as conn:
        if conn.execute(_RENEW, parameters).rowcount != 1:
            refuse_older(conn, catalog.release)
            raise Fenced("another meta server was elected leader", leader=me, epoch=epoch)


def report_as_leader(catalog: Catalog, me: str, epoch: int, report: WorkerReport) -> None:
    """Replace the leader's report. Fenced when another leader was elected."""
    with catalog.transaction() as conn:
        if conn.execute(_REPORT, {"me": me, "my_epoch": epoch, "said": encode_report(report)}).rowcount != 1:
            raise Fenced("another meta server was elected leader", leader=me, epoch=epoch)


def note_silence(catalog: Catalog, worker_id: str, incarnation: int, *, is_silent: bool, leader_epoch: int) -> None:
    """Record that an incarnation of a worker sends no heartbeats any more, or sends them again, unless its newest event
    says so: a killed process records nothing itself. Nothing when `leader_epoch` is not the leader's."""
    newest = next(iter(list_events(catalog, limit=1, kind="worker", subject=worker_id)), None)
    was_silent = newest is not None and newest.kind == EventKind.WORKER_SILENT
    if is_silent == (was_silent and newest is not None and newest.detail.get("incarnation") == incarnation):
        return
    with catalog.transaction() as conn:
        if leader_epoch and conn.execute(_EPOCH.with_for_update()).scalar() == leader_epoch:
            kind = EventKind.WORKER_SILENT if is_silent else EventKind.WORKER_RETURNED
            record_event(conn, kind, worker_id, incarnation=incarnation)


def leader_report(catalog: Catalog) -> WorkerReport:
    """What the last elected leader has reported; empty before its first report."""
    with catalog.reading() as conn:
        row = conn.execute(_REPORTED).one()
    return readable_report(f"leader {row.name}", row.report)


def get_leader(catalog: Catalog) -> LeaderRow | None:
    """The last elected leader; None before the first election."""
    with catalog.reading() as conn:
        row = conn.execute(_GET).one()
    if row.epoch == 0:
        return None
    age_ms = abs(row.now_ms - row.heartbeat_ms)
    return LeaderRow(name=row.name, release=Release.of_number(row.release_no), epoch=row.epoch, heartbeat_age_ms=age_ms)
