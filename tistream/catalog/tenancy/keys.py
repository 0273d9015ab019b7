"""API keys in the catalog: the hash of the secret, role, tenant, tables and expiry.

    living --rotate_key--> living until the overlap ends, with a successor
       |----- time ------> expired
       '---revoke_key----> revoked

A dead key never becomes valid again, and none is deleted: `created_by` and `replaced_by` stay readable. Times are by
the database's clock; a row carries its read time, so that a cache can tell when the key expires. Roles and table rules
are opaque here. Secrets never reach this module.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, case, func, or_, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.journaled import Journaled, journaled
from tistream.catalog.database.records import record_of
from tistream.catalog.database.tables import api_keys, next_numbers, of_asked_tenant, tenant_ids
from tistream.catalog.rows.journal import EntryKind
from tistream.errors import Fenced, NotFound, invariant
from tistream.ids import Tenant

PUSHER = "pusher"  #: the role of a tenant's pushers; these keys end with the tenant
USED_EVERY_MS = 60_000  #: the last use of a key is written at most this often


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key to create."""

    key_id: str
    secret_hash: str
    name: str
    role: str
    tenant: Tenant | None = None
    tables: tuple[str, ...] | None = None  #: rules of the tables that it may read; None = all
    ttl_ms: int = 0  #: 0 = no expiry
    created_by: str = ""  #: id of the creating key; empty = the command line or the first start


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """A key in any state. Times are Unix milliseconds by the database's clock; 0 = never."""

    key_id: str
    secret_hash: str
    name: str
    role: str
    tenant: Tenant | None
    tables: tuple[str, ...] | None
    created_by: str
    replaced_by: str | None
    created_ms: int
    expires_ms: int
    last_used_ms: int
    revoked_ms: int
    read_ms: int  #: read time of this row

    @property
    def state(self) -> str:
        """living, expired or revoked, at read time."""
        if self.revoked_ms:
            return "revoked"
        return "expired" if 0 < self.expires_ms <= self.read_ms else "living"


_k = api_keys.c
_READ = select(api_keys, now_ms().label("read_ms"))
_ONE = _READ.where(_k.key_id == bindparam("asked_key"))
_ROWS = select(api_keys).where(_k.key_id.in_(bindparam("asked_keys", expanding=True))).order_by(_k.key_id)
_ALL = _READ.order_by(_k.created_ms, _k.key_id)
_OF_TENANT = _ALL.where(of_asked_tenant(api_keys))
_LIVING = (_k.revoked_ms == 0, or_(_k.expires_ms == 0, _k.expires_ms > now_ms()))
_COUNT = select(func.count()).select_from(api_keys)
_REVOKE = api_keys.update().where(_k.key_id == bindparam("asked_key"), _k.revoked_ms == 0).values(revoked_ms=now_ms())
_REVOKE_PUSHERS = (
    api_keys.update()
    .where(of_asked_tenant(api_keys), _k.role == PUSHER, _k.revoked_ms == 0)
    .values(revoked_ms=now_ms())
)
_USED = (
    api_keys.update()
    .where(_k.key_id == bindparam("asked_key"), _k.last_used_ms < now_ms() - USED_EVERY_MS)
    .values(last_used_ms=now_ms())
)
_OVER = now_ms() + bindparam("overlap_ms")
_REPLACE = (
    api_keys.update()
    .where(_k.key_id == bindparam("asked_key"), _k.replaced_by.is_(None), *_LIVING)
    .values(
        replaced_by=bindparam("successor"),
        expires_ms=case((or_(_k.expires_ms == 0, _k.expires_ms > _OVER), _OVER), else_=_k.expires_ms),
    )
)


def create_key(catalog: Catalog, new: NewKey) -> KeyRow:
    """Create a key. It ends with the key that made it, if not before."""
    with journaled(catalog, EntryKind.KEY, new.created_by) as deed:
        _insert(deed.conn, new, _maker_ends_ms(deed.conn, new.created_by))
        _note(deed, new.key_id)
        return _one(deed.conn, new.key_id)


def create_first_key(catalog: Catalog, new: NewKey) -> bool:
    """Create the first key of this catalog. False when it has, or had, any. Of racing callers one wins."""
    with journaled(catalog, EntryKind.KEY) as deed:
        next_numbers(deed.conn, "first key", 1)  # locks the row: a second caller counts the first one's key
        if deed.conn.execute(_COUNT).scalar_one():
            return False
        _insert(deed.conn, new)
        _note(deed, new.key_id)
        return True


def get_key(catalog: Catalog, key_id: str) -> KeyRow:
    """The key in any state. NotFound when it does not exist."""
    with catalog.reading() as conn:
        return _one(conn, key_id)


def list_keys(catalog: Catalog, tenant: Tenant | None = None) -> list[KeyRow]:
    """All keys, or those of one tenant, oldest first."""
    with catalog.reading() as conn:
        rows = conn.execute(_ALL) if tenant is None else conn.execute(_OF_TENANT, tenant_ids(tenant))
        return [key_row(row) for row in rows]


def revoke_key(catalog: Catalog, key_id: str, *, actor: str = "") -> bool:
    """Revoke a key. False when it was revoked before; NotFound when it does not exist. A repeat puts it into the
    journal once more: the process that did it may have died before it could."""
    with journaled(catalog, EntryKind.REVOCATION, actor) as deed:
        _note(deed, key_id)
        if deed.conn.execute(_REVOKE, {"asked_key": key_id}).rowcount == 1:
            return True
        _one(deed.conn, key_id)
        return False


def revoke_pusher_keys(conn: Connection, tenant: Tenant) -> int:
    """Revoke the pusher keys of a tenant in the caller's transaction; the number revoked."""
    return conn.execute(_REVOKE_PUSHERS, tenant_ids(tenant)).rowcount


def rotate_key(
    catalog: Catalog, key_id: str, new_id: str, new_hash: str, *, overlap_ms: int, created_by: str
) -> KeyRow:
    """Create a successor with the same name, role, tenant, tables and lifetime; the old key stays valid for at
    most `overlap_ms`, the successor until the key that makes it ends. Fenced when the old key already has a successor
    or is not valid. Of racing callers one wins."""
    with journaled(catalog, EntryKind.KEY, created_by) as deed:
        conn = deed.conn
        old, maker_ends_ms = _one(conn, key_id), _maker_ends_ms(conn, created_by)  # before it may be the one replaced
        parameters = {"asked_key": key_id, "successor": new_id, "overlap_ms": overlap_ms}
        if conn.execute(_REPLACE, parameters).rowcount != 1:
            raise Fenced(f"key {key_id} has been rotated, has expired or was revoked", key_id=key_id)
        ttl_ms = old.expires_ms - old.created_ms if old.expires_ms else 0
        _insert(
            conn,
            NewKey(
                key_id=new_id,
                secret_hash=new_hash,
                name=old.name,
                role=old.role,
                tenant=old.tenant,
                tables=old.tables,
                ttl_ms=ttl_ms,
                created_by=created_by,
            ),
            maker_ends_ms,
        )
        _note(deed, key_id, new_id)
        return _one(conn, new_id)


def note_key_used(catalog: Catalog, key_id: str) -> None:
    """Record a use of the key, at most once in USED_EVERY_MS."""
    with catalog.transaction() as conn:
        conn.execute(_USED, {"asked_key": key_id})


def key_row(row: Any) -> KeyRow:
    """Convert a row of `api_keys` with its read time."""
    return record_of(
        KeyRow,
        row,
        tenant=None if row.cluster_id is None else Tenant(row.cluster_id, row.tenant_id),
        tables=None if row.tables is None else tuple(json.loads(row.tables)),
    )


def _note(deed: Journaled, *key_ids: str) -> None:
    deed.note(api_keys, _ROWS, {"asked_keys": list(key_ids)})


def _one(conn: Connection, key_id: str) -> KeyRow:
    row = conn.execute(_ONE, {"asked_key": key_id}).one_or_none()
    if row is None:
        raise NotFound(f"key {key_id[:32]} not found", key_id=key_id[:32])
    return key_row(row)


def _insert(conn: Connection, new: NewKey, maker_ends_ms: int = 0) -> None:
    invariant(len(new.secret_hash) == 64, "a secret is stored as its SHA-256")
    tenant = new.tenant
    conn.execute(
        api_keys.insert().values(
            key_id=new.key_id,
            secret_hash=new.secret_hash,
            name=new.name,
            role=new.role,
            cluster_id=None if tenant is None else tenant.cluster_id,
            tenant_id=None if tenant is None else tenant.tenant_id,
            tables=None if new.tables is None else json.dumps(new.tables),
            created_by=new.created_by,
            created_ms=now_ms(),
            expires_ms=_end_of(new.ttl_ms, maker_ends_ms),
            last_used_ms=0,
            revoked_ms=0,
        )
    )


def _maker_ends_ms(conn: Connection, key_id: str) -> int:
    """When the key that makes another one expires; 0 = never."""
    maker = conn.execute(_ONE, {"asked_key": key_id}).one_or_none()
    return 0 if maker is None else int(maker.expires_ms)


def _end_of(ttl_ms: int, maker_ends_ms: int) -> Any:
    """When a key expires; 0 = never. It does not outlive its maker: a key that expires would otherwise make one that
    does not, or its own successor again and again."""
    if not ttl_ms:
        return maker_ends_ms
    asked_ms = now_ms() + ttl_ms
    return case((asked_ms < maker_ends_ms, asked_ms), else_=maker_ends_ms) if maker_ends_ms else asked_ms
