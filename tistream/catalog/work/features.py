"""Features that older processes cannot read, and the moment from which they are used.

A release that can read something new does not write it while processes of earlier releases live: those would fail on
it. Each such feature is in FEATURES, or belongs to a setting, as EXPORTS. The leader switches it on when every living
process runs a release that has it, and raises `min_release` in the same transaction, so that no older process starts
afterwards (`tistream.catalog.database.compatibility`). What is switched on stays so.

A process lives until it retires, or until LIVING_MS have passed since its last heartbeat. One that slept for longer is
refused with its next heartbeat.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import bindparam, func, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.compatibility import demand, keep_out
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.events import EventKind, record_event
from tistream.catalog.database.release_tables import features
from tistream.catalog.database.tables import leader, workers
from tistream.catalog.rows.workers import WorkerState
from tistream.errors import Fenced
from tistream.limits import LEASE_MS
from tistream.release import Release

LIVING_MS = 6 * LEASE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Feature:
    """Something in the catalog or the bucket that releases before `since` cannot read."""

    name: str
    since: Release
    changes: str  #: what is written once it is on


EXPORTS = Feature(
    name="exports",
    since=Release(0, 2, 0),
    changes="the catalog is exported, and objects are deleted only when an export has the decision",
)

#: Those of every deployment, the oldest first.
FEATURES: tuple[Feature, ...] = ()

_LEADS = select(leader.c.epoch).where(leader.c.id == 1).with_for_update()
_NAMES = select(features.c.name)
_LIVES = (workers.c.state != WorkerState.GONE, workers.c.heartbeat_ms + LIVING_MS >= now_ms())
_OLDEST = select(func.min(workers.c.release_no)).where(*_LIVES)
_LIVING = select(workers.c.worker_id, workers.c.release_no).where(*_LIVES).order_by(workers.c.worker_id)
_SWITCH_ON = features.insert().values(name=bindparam("feature"), release_no=bindparam("since"), enabled_ms=now_ms())


def switched_on(catalog: Catalog) -> frozenset[str]:
    """The names of the features that may be used."""
    with catalog.reading() as conn:
        return frozenset(conn.execute(_NAMES).scalars())


def living(catalog: Catalog) -> dict[str, Release]:
    """The processes that live, with the release that each runs."""
    with catalog.reading() as conn:
        return {row.worker_id: Release.of_number(row.release_no) for row in conn.execute(_LIVING)}


def switch_on(catalog: Catalog, features: Sequence[Feature], *, leader_epoch: int) -> frozenset[str]:
    """Switch on those of the wanted features that every living process has; the names of all that are on. Fenced when
    another leader was elected."""
    with catalog.transaction() as conn:
        if conn.execute(_LEADS).scalar_one() != leader_epoch:
            raise Fenced("another meta server was elected leader", epoch=leader_epoch)
        keep_out(conn)  # before the workers are read: who registers meanwhile waits, and is judged by the new row
        on = set(conn.execute(_NAMES).scalars())
        oldest = conn.execute(_OLDEST).scalar()
        new = [f for f in features if f.name not in on and (oldest is None or oldest >= f.since.number)]
        for feature in new:
            conn.execute(_SWITCH_ON, {"feature": feature.name, "since": feature.since.number})
            demand(conn, by=catalog.release, lowest=feature.since)
        for feature in new:
            record_event(conn, EventKind.FEATURE_ON, feature.name, since=str(feature.since), changes=feature.changes)
        return frozenset(on | {feature.name for feature in new})
