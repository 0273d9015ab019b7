"""After a restore: deeds of the journal are done again, in a catalog that has some of them and not others.

Rows are inserted if they are absent, and a state only moves forward, so the order of the deeds does not matter as long
as tenants come first and deletions last. What has happened to a tenant since is not in the journal: its tasks begin
again where its log begins, and sort the same batch files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, and_, bindparam, case, func, or_, select

from tistream.catalog.database.tables import api_keys, of_asked_tenant, tasks, tenant_ids, tenants
from tistream.catalog.rows.tenants import TenantState
from tistream.catalog.tenancy.keys import revoke_pusher_keys
from tistream.catalog.tenancy.tenants import GIVEN_UP
from tistream.catalog.work.deletion import delete_here
from tistream.ids import Tenant

Row = Mapping[str, Any]

_BEGINNING = {"floor_ts": 0, "decided_no": 0}
_UNBEGUN = {"owner": None, "snapshot_key": None, "snapshot_no": 0, "error": None, "merge_with": None}
_BOUND = ("state", "reason", "keyspace_id", "upstream_id", "start_ts", "start_key", "end_key")
_STATE = select(tenants.c.state, tenants.c.start_ts).where(of_asked_tenant(tenants))
_MOVE = [
    table.update()
    .where(of_asked_tenant(table), table.c[column] < bindparam("to_ts"))
    .values({name: bindparam("to_ts") for name in names})
    for table, column, names in (
        (tenants, "start_ts", ("start_ts",)),
        (tasks, "durable_ts", ("start_ts", "durable_ts")),
    )
]
_k = api_keys.c
_KEY = select(_k.key_id).where(_k.key_id == bindparam("asked_key"))
_SOONER = or_(_k.expires_ms == 0, and_(bindparam("ends_ms") > 0, bindparam("ends_ms") < _k.expires_ms))
_FORWARD = (
    api_keys.update()
    .where(_k.key_id == bindparam("asked_key"))
    .values(
        revoked_ms=case((_k.revoked_ms == 0, bindparam("ended_ms")), else_=_k.revoked_ms),
        replaced_by=func.coalesce(_k.replaced_by, bindparam("successor")),
        expires_ms=case((_SOONER, bindparam("ends_ms")), else_=_k.expires_ms),
    )
)


def replay_tenant(conn: Connection, row: Row, of_tasks: Sequence[Row]) -> bool:
    """A tenant was registered, or its log began. Whether the catalog did not know it."""
    asked = tenant_ids(_tenant(row))
    there = conn.execute(_STATE, asked).one_or_none()
    if there is None:
        conn.execute(tenants.insert(), [{**row, **_BEGINNING}])
        _begin(conn, of_tasks)
        return True
    if there.state == TenantState.AWAITING_SNAPSHOT and row["state"] not in (there.state, *GIVEN_UP):
        known = {name: row[name] for name in _BOUND}
        conn.execute(tenants.update().where(of_asked_tenant(tenants)).values(known), asked)
        _begin(conn, of_tasks)
        return True
    if there.state not in GIVEN_UP and row["start_ts"] > there.start_ts:  # of a recording
        for move in _MOVE:
            conn.execute(move, {**asked, "to_ts": row["start_ts"]})
        return True
    return False


def replay_key(conn: Connection, row: Row) -> bool:
    """A key was created, given a successor or revoked. Whether the catalog did not know the key."""
    if conn.execute(_KEY, {"asked_key": row["key_id"]}).first() is None:
        conn.execute(api_keys.insert(), [dict(row)])
        return True
    since = {"ended_ms": row["revoked_ms"], "successor": row["replaced_by"], "ends_ms": row["expires_ms"]}
    conn.execute(_FORWARD, {"asked_key": row["key_id"], **since})
    return False


def replay_deletion(conn: Connection, row: Row, *, actor: str) -> bool:
    """A tenant was deleted. Whether the catalog did not know that."""
    tenant = _tenant(row)
    there = conn.execute(_STATE, tenant_ids(tenant)).one_or_none()
    if there is None:
        there_state = TenantState.AWAITING_SNAPSHOT
        conn.execute(tenants.insert(), [{**row, **_BEGINNING, "state": there_state}])
    else:
        there_state = TenantState(there.state)
    if there_state in GIVEN_UP:
        revoke_pusher_keys(conn, tenant)  # those of the journal
        return False
    return delete_here(conn, tenant, there_state, row["reason"], actor)


def _begin(conn: Connection, rows: Sequence[Row]) -> None:
    if rows:
        conn.execute(tasks.insert(), [{**row, **_UNBEGUN, "durable_ts": row["start_ts"]} for row in rows])


def _tenant(row: Row) -> Tenant:
    return Tenant(row["cluster_id"], row["tenant_id"])
