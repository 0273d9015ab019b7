"""Builds: what writes files that a later transaction makes visible, and while it lives no collector takes them.

    begin_build    a number, which the keys of its files contain, and a lease (COMMIT) -> files -> commit, add_bases
    renew_build    every BUILD_RENEW_MS, as long as the driver lives
    end_build      published, or given up: files that no transaction has named are orphans now

A merge or a round of bases may take days, so the age of an unpublished file says nothing. A file is an orphan when its
build has ended, or was not renewed for BUILD_LEASE_MS, or for the collector's grace period if that is longer.

The files of a replay need no lease of their own: their keys name the epoch under which it holds the task as a worker.
When it has gone, or another worker takes the task, they can never be handed over.

Leases save work. A driver that slept past the end of its lease finds its file tombstoned, and is fenced.
"""

from __future__ import annotations

from sqlalchemy import Connection, bindparam, literal_column, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import builds, next_numbers, tasks, tenant_ids, workers
from tistream.ids import Tenant
from tistream.limits import BUILD_LEASE_MS
from tistream.objectstore.layout import (
    BaseKey,
    CommittedKey,
    CompactedKey,
    SnapshotKey,
    build_of,
    parse,
    replayed_under,
)

_c = builds.c
_IS_ASKED = _c.build_id == bindparam("asked_build")
_RENEW = builds.update().where(_IS_ASKED).values(renewed_ms=now_ms())
_END = builds.delete().where(_IS_ASKED)
_LIVES = select(_c.build_id).where(_IS_ASKED, _c.renewed_ms + bindparam("lease_ms") > now_ms())
_DROP_EXPIRED = builds.delete().where(_c.renewed_ms + bindparam("lease_ms") <= now_ms())
_HOLDS = (
    select(tasks.c.task_id)
    .join(workers, workers.c.worker_id == tasks.c.owner)
    .where(
        tasks.c.task_id == bindparam("asked_task"),
        tasks.c.epoch == bindparam("asked_epoch"),
        workers.c.state != literal_column("'gone'"),
    )
)


def begin_build(catalog: Catalog, tenant: Tenant) -> int:
    """A unique number, with a lease."""
    ids = tenant_ids(tenant)
    place = {"cluster_id": ids["asked_cluster"], "tenant_id": ids["asked_tenant"]}
    with catalog.transaction() as conn:
        number = next_numbers(conn, "compaction", 1)[0]
        conn.execute(builds.insert().values(build_id=number, renewed_ms=now_ms(), **place))
    return number


def renew_build(catalog: Catalog, build_id: int) -> bool:
    """Extend the lease. False when it has ended."""
    with catalog.transaction() as conn:
        return conn.execute(_RENEW, {"asked_build": build_id}).rowcount == 1


def end_build(catalog: Catalog, build_id: int) -> None:
    """Its unpublished files are orphans from now on."""
    with catalog.transaction() as conn:
        conn.execute(_END, {"asked_build": build_id})


def drop_expired_builds(catalog: Catalog, *, grace_ms: int) -> int:
    """Delete the leases of builds that died; the number deleted."""
    with catalog.transaction() as conn:
        return conn.execute(_DROP_EXPIRED, {"lease_ms": max(grace_ms, BUILD_LEASE_MS)}).rowcount


def may_be_published(conn: Connection, object_key: str, *, grace_ms: int) -> bool:
    """Whether the writer of an object without a row lives, so that it may still publish it."""
    match key := parse(object_key):
        case CompactedKey() | BaseKey():
            parameters = {"asked_build": build_of(key), "lease_ms": max(grace_ms, BUILD_LEASE_MS)}
            return conn.execute(_LIVES, parameters).first() is not None
        case CommittedKey() | SnapshotKey():
            if (held := replayed_under(key)) is not None:
                return conn.execute(_HOLDS, {"asked_task": held[0], "asked_epoch": held[1]}).first() is not None
    return False
