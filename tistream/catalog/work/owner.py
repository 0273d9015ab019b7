"""Who runs assignment: one row, one owner, one epoch.

The row is there from the first migration, so taking it is always a guarded update and never an insert. The lease
(database time) says when somebody else may take over; the epoch, tested by every assignment, says who is right. A
heartbeat from the future is as good as none: the database's clock was set back, and whoever lives says so soon again.

An epoch is given once, to one caller; who has it stays the owner by `renew_owner`. A process that starts under the name
of the present owner takes its place under a new epoch: it is the same place, and its earlier life, if it still runs, is
fenced. Two processes of one name never share an epoch.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, or_, select

from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_event
from tistream.catalog.database.tables import now_ms
from tistream.catalog.database.tables import owner as owner_table
from tistream.errors import Fenced, invariant
from tistream.limits import OWNER_LEASE_MS

_t = owner_table.c
_ROW = _t.id == 1
_MINE = _t.owner == bindparam("me")
_RENEW = owner_table.update().where(_ROW, _MINE, _t.epoch == bindparam("my_epoch")).values(heartbeat_ms=now_ms())
_TAKE = (
    owner_table.update()
    .where(
        _ROW,
        or_(
            _t.epoch == 0,
            _t.heartbeat_ms + bindparam("lease_ms") < now_ms(),
            _t.heartbeat_ms > now_ms() + bindparam("lease_ms"),  # the database's clock was set back since
        ),
    )
    .values(owner=bindparam("me"), epoch=_t.epoch + 1, heartbeat_ms=now_ms())
)
_REPLACE = owner_table.update().where(_ROW, _MINE).values(epoch=_t.epoch + 1, heartbeat_ms=now_ms())
_EPOCH = select(_t.epoch).where(_ROW)
_WHOLE = select(owner_table, now_ms().label("now_ms")).where(_ROW)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerRow:
    """The last owner that was elected, alive or not."""

    owner: str
    epoch: int
    heartbeat_age_ms: int  #: by the database's clock


def acquire_owner(catalog: Catalog, me: str, *, starts: bool = False) -> int | None:
    """Become the owner. Returns a new epoch when the last owner has been silent for longer than OWNER_LEASE_MS, or when
    this life `starts` (has not been the owner yet) and the row names me: then an earlier life is replaced at once.
    None when somebody else owns it."""
    invariant(bool(me), "an owner has a name")
    with catalog.transaction() as conn:
        taken = starts and conn.execute(_REPLACE, {"me": me}).rowcount
        if not taken and not conn.execute(_TAKE, {"me": me, "lease_ms": OWNER_LEASE_MS}).rowcount:
            return None
        epoch = int(conn.execute(_EPOCH).scalar_one())
        record_event(conn, EventKind.OWNER_ELECTED, me, epoch=epoch)
        return epoch


def renew_owner(catalog: Catalog, me: str, epoch: int) -> None:
    """Say that I still run assignment. Fenced when somebody else was elected."""
    with catalog.transaction() as conn:
        if conn.execute(_RENEW, {"me": me, "my_epoch": epoch}).rowcount != 1:
            raise Fenced("somebody else runs assignment now", owner=me, epoch=epoch)


def get_owner(catalog: Catalog) -> OwnerRow | None:
    """The last owner that was elected; None when there was none yet."""
    with catalog.reading() as conn:
        row = conn.execute(_WHOLE).one()
    if row.epoch == 0:
        return None
    return OwnerRow(owner=row.owner, epoch=row.epoch, heartbeat_age_ms=abs(row.now_ms - row.heartbeat_ms))
