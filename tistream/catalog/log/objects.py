"""Published objects and tombstones.

    live -> superseded -> dead        an object is replaced, then collected
            (nothing) -> dead         an orphan is tombstoned first, then deleted

An object of a snapshot is live as long as a task's snapshot refers to it (`snapshot_objects`); several tasks of a
tenant may share one.

Every key has at most one row. The tombstone of an orphan stays for ever: a late writer of that key violates the primary
key and is fenced. The row of a dead object that was once visible may be deleted (`forget_dead`): a writer publishes an
object once, so none comes late. Rows are inserted only in the transactions of other modules.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum

from sqlalchemy import Column, Connection, bindparam, exc, exists, func, literal_column, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.decisions import begun_no, is_deletable
from tistream.catalog.database.engine import Catalog, is_duplicate
from tistream.catalog.database.tables import (
    ensure_row,
    next_numbers,
    objects,
    of_asked_tenant,
    of_tenant,
    read_leases,
    snapshot_objects,
    tenant_ids,
)
from tistream.catalog.log.builds import may_be_published
from tistream.errors import Fenced
from tistream.ids import Tenant


class ObjectKind(StrEnum):
    """What an object contains."""

    COMMITTED = "committed"
    COMPACTED = "compacted"
    SNAPSHOT = "snapshot"
    SCHEMAS = "schemas"
    SEED = "seed"
    BASE = "base"
    UNKNOWN = "unknown"  #: a tombstone without an earlier row


class ObjectState(StrEnum):
    """The life cycle of an object."""

    LIVE = "live"
    SUPERSEDED = "superseded"
    DEAD = "dead"


KEYS_AT_ONCE = 200

_o = objects.c
_INSERT = objects.insert().values(changed_ms=now_ms())
_r = snapshot_objects.c
_LOCK = select(_o.object_key).where(_o.object_key == bindparam("asked_key")).with_for_update()
_RELEASE = snapshot_objects.delete().where(
    _r.task_id == bindparam("asked_task"), _r.object_key == bindparam("asked_key")
)
_SUPERSEDE = (
    objects.update()
    .where(
        _o.object_key == bindparam("asked_key"),
        _o.state == ObjectState.LIVE,
        ~select(_r.task_id).where(_r.object_key == bindparam("asked_key")).exists(),
    )
    .values(state=ObjectState.SUPERSEDED, changed_ms=now_ms(), decided_no=begun_no())
)
_BURY = (
    objects.update()
    .where(_o.object_key == bindparam("asked_key"), _o.state != ObjectState.LIVE)
    .values(state=ObjectState.DEAD, changed_ms=now_ms())
)
_DECIDE_ORPHAN = (
    objects.update()
    .where(_o.object_key == bindparam("asked_key"), _o.kind == ObjectKind.UNKNOWN)
    .values(decided_no=begun_no())
)
_STATES = select(_o.object_key, _o.state).where(_o.object_key.in_(bindparam("asked_keys", expanding=True)))
_DELETABLE = select(_o.object_key).where(
    _o.object_key.in_(bindparam("asked_keys", expanding=True)),
    _o.state == ObjectState.DEAD,
    is_deletable(_o.decided_no),
)
_LEASED = exists().where(read_leases.c.replacements_seen < _o.replacement_no, read_leases.c.expires_ms > now_ms())
_REPLACED = (
    select(_o.object_key)
    .where(
        of_asked_tenant(objects), _o.state == ObjectState.SUPERSEDED, _o.changed_ms + bindparam("grace_ms") <= now_ms()
    )
    .order_by(_o.changed_ms, _o.object_key)
    .limit(bindparam("at_most"))
)
_DEAD = (
    select(_o.object_key)
    .where(
        _o.state == ObjectState.DEAD, _o.kind != ObjectKind.UNKNOWN, _o.changed_ms + bindparam("older_ms") <= now_ms()
    )
    .limit(bindparam("at_most"))
)
_FORGET = objects.delete().where(
    _o.object_key.in_(bindparam("asked_keys", expanding=True)),
    _o.state == ObjectState.DEAD,
    _o.kind != ObjectKind.UNKNOWN,
)
_LIVE = (
    select(_o.object_key, _o.bytes)
    .where(of_asked_tenant(objects), _o.state == ObjectState.LIVE, _o.object_key > bindparam("after_key"))
    .order_by(_o.object_key)
    .limit(bindparam("at_most"))
)
_SUPERSEDED = _REPLACED.where(~_LEASED, is_deletable(_o.decided_no))


def replace_unnamed(conn: Connection, object_keys: Iterable[str], *naming: Column[str]) -> None:
    """Supersede those of these objects that no row of the `naming` columns refers to, under the next replacement
    number. Its counter is locked until COMMIT, for every tenant: call this last."""
    keys = sorted(object_keys)
    if not keys:
        return
    number = next_numbers(conn, "replacement", 1)[0]
    unnamed = [~select(column).where(column == _o.object_key).exists() for column in naming]
    replacing = (
        objects.update()
        .where(
            _o.object_key.in_(bindparam("asked_keys", expanding=True)), _o.state == literal_column("'live'"), *unnamed
        )
        .values(
            state=ObjectState.SUPERSEDED,
            changed_ms=now_ms(),
            replacement_no=bindparam("replacement_no"),
            decided_no=begun_no(),
        )
    )
    for some in in_chunks(keys):
        conn.execute(replacing, {"asked_keys": some, "replacement_no": number})


def in_chunks(keys: Sequence[str]) -> Iterator[Sequence[str]]:
    """Lists that one statement takes."""
    return (keys[at : at + KEYS_AT_ONCE] for at in range(0, len(keys), KEYS_AT_ONCE))


def insert_live(conn: Connection, tenant: Tenant, object_key: str, kind: ObjectKind, object_bytes: int) -> None:
    """Publish an object. Fenced when its key has a row: it was tombstoned, or another writer published it."""
    insert_all_live(conn, tenant, {object_key: object_bytes}, kind)


def insert_all_live(conn: Connection, tenant: Tenant, sizes: Mapping[str, int], kind: ObjectKind) -> None:
    """Publish objects (key -> bytes) with one statement, all or none. Fenced when a key has a row."""
    rows = [
        {
            "object_key": key,
            "cluster_id": tenant.cluster_id,
            "tenant_id": tenant.tenant_id,
            "kind": kind,
            "state": ObjectState.LIVE,
            "bytes": size,
        }
        for key, size in sizes.items()
    ]
    try:
        conn.execute(_INSERT, rows)
    except exc.IntegrityError as e:
        if not is_duplicate(e):
            raise
        raise Fenced("this object already has a catalog row", object_key=", ".join(sizes)) from e


def release(conn: Connection, task_id: int, object_keys: Collection[str]) -> None:
    """Remove the references of the task's snapshot to these objects. An object without references becomes superseded
    and may be collected after its grace period.

    The object's row is locked first, so that of two tasks that release it at once the later one sees the last
    reference go."""
    for key in sorted(object_keys):  # in key order, against deadlocks
        parameters = {"asked_key": key}
        conn.execute(_LOCK, parameters)
        conn.execute(_RELEASE, {**parameters, "asked_task": task_id})
        conn.execute(_SUPERSEDE, parameters)


def tombstone(catalog: Catalog, tenant: Tenant, object_key: str, *, grace_ms: int = 0) -> bool:
    """Mark the object as dead before it is deleted. False when it is live and must stay, and when it has no row but a
    writer that lives and may still publish it (`builds`); `grace_ms`: how long one may be silent at least."""
    with catalog.transaction() as conn:
        has_row = conn.execute(_STATES, {"asked_keys": [object_key]}).first() is not None
        if not has_row and may_be_published(conn, object_key, grace_ms=grace_ms):
            return False
        ensure_row(
            conn,
            objects,
            timed="changed_ms",
            object_key=object_key,
            cluster_id=tenant.cluster_id,
            tenant_id=tenant.tenant_id,
            kind=ObjectKind.UNKNOWN,
            state=ObjectState.DEAD,
            bytes=0,
        )
        if not has_row:
            conn.execute(_DECIDE_ORPHAN, {"asked_key": object_key})
        return conn.execute(_BURY, {"asked_key": object_key}).rowcount == 1


def object_states(catalog: Catalog, object_keys: Collection[str]) -> dict[str, ObjectState]:
    """key -> state, for those keys (at most a few hundred) that have a row."""
    with catalog.reading() as conn:
        rows = conn.execute(_STATES, {"asked_keys": list(object_keys)})
        return {key: ObjectState(state) for key, state in rows}


def deletable_objects(catalog: Catalog, object_keys: Collection[str]) -> set[str]:
    """Those of these keys (at most a few hundred) that are dead, and may be deleted now
    (`tistream.catalog.database.decisions`)."""
    with catalog.reading() as conn:
        return set(conn.execute(_DELETABLE, {"asked_keys": list(object_keys)}).scalars())


def superseded_objects(catalog: Catalog, tenant: Tenant, *, grace_ms: int, limit: int) -> list[str]:
    """Keys replaced at least `grace_ms` ago (database clock) that no read lease protects, and whose replacement is in a
    verified export: `tombstone` each, then delete it."""
    with catalog.reading() as conn:
        rows = conn.execute(_SUPERSEDED, {**tenant_ids(tenant), "grace_ms": grace_ms, "at_most": limit})
        return list(rows.scalars())


def forget_dead(catalog: Catalog, *, older_ms: int, limit: int) -> int:
    """Delete at most `limit` rows of once visible objects that have been dead for `older_ms` (database clock); their
    number. Tombstones of orphans stay."""
    with catalog.transaction() as conn:
        keys = list(conn.execute(_DEAD, {"older_ms": older_ms, "at_most": limit}).scalars())
        return conn.execute(_FORGET, {"asked_keys": keys}).rowcount if keys else 0


def live_objects(catalog: Catalog, tenant: Tenant, *, after_key: str, limit: int) -> list[tuple[str, int]]:
    """(key, bytes) of the tenant's live objects with a greater key, by key."""
    with catalog.reading() as conn:
        rows = conn.execute(_LIVE, {**tenant_ids(tenant), "after_key": after_key, "at_most": limit})
        return [(key, int(size)) for key, size in rows]


def stored_bytes(catalog: Catalog, tenant: Tenant) -> dict[tuple[str, str], tuple[int, int]]:
    """(kind, state) -> (number of objects, bytes), for the status page."""
    with catalog.reading() as conn:
        rows = conn.execute(
            select(objects.c.kind, objects.c.state, func.count(), func.sum(objects.c.bytes))
            .where(of_tenant(objects, tenant))
            .group_by(objects.c.kind, objects.c.state)
        )
        return {(kind, state): (int(count), int(total)) for kind, state, count, total in rows}
