"""Which releases may run on the catalog: the one row of `catalog_release`.

`min_release` is the lowest release that may run on it, `migrated_by` the one that demanded it last. Both only rise: a
migration raises them before its first statement, a feature in the transaction that switches it on. An older process
meets the row

    when it starts      `refuse_older`, before it reads any other table
    when it registers   `admit`, which locks the row: none registers while a feature is being switched on
    with its heartbeat  `may_run` guards the heartbeats of workers and of the leader
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, bindparam, case, exists, select

from tistream.catalog.database.release_tables import catalog_release
from tistream.release import Release, ReleaseTooOld

_c = catalog_release.c
_ROW = select(_c.migrated_by, _c.min_release).where(_c.id == 1)
_SHARED = _ROW.with_for_update(read=True)
_LOCKED = _ROW.with_for_update()
_RAISE = (
    catalog_release.update()
    .where(_c.id == 1)
    .values(
        migrated_by=case((_c.migrated_by < bindparam("by"), bindparam("by")), else_=_c.migrated_by),
        min_release=case((_c.min_release < bindparam("lowest"), bindparam("lowest")), else_=_c.min_release),
    )
)


def may_run() -> ColumnElement[bool]:
    """Condition for guarded updates: the release `my_release` may run on the catalog."""
    return exists().where(_c.id == 1, _c.min_release <= bindparam("my_release"))


def demanded(conn: Connection) -> tuple[Release, Release]:
    """(`migrated_by`, `min_release`)."""
    migrated_by, min_release = conn.execute(_ROW).one()
    return Release.of_number(migrated_by), Release.of_number(min_release)


def refuse_older(conn: Connection, release: Release) -> None:
    """ReleaseTooOld when this release may not run on the catalog."""
    _refuse(conn.execute(_ROW).one(), release)


def admit(conn: Connection, release: Release) -> None:
    """As `refuse_older`; the answer holds until the transaction ends."""
    _refuse(conn.execute(_SHARED).one(), release)


def keep_out(conn: Connection) -> None:
    """Admit no process until the transaction ends."""
    conn.execute(_LOCKED)


def demand(conn: Connection, *, by: Release, lowest: Release) -> None:
    """Release `by` demands that releases below `lowest` run no longer."""
    conn.execute(_RAISE, {"by": by.number, "lowest": lowest.number})


def _refuse(row: Row[Any, Any], release: Release) -> None:
    migrated_by, min_release = map(Release.of_number, row)
    if release < min_release:
        raise ReleaseTooOld(
            f"This is TiStream {release}, and TiStream {migrated_by} has changed the catalog: only {min_release} and "
            f"later may run on it. Start {min_release} or later.",
            release=release,
            min_release=min_release,
            migrated_by=migrated_by,
        )
