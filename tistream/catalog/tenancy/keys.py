"""API keys as the catalog holds them: the hash of a secret, what the key is for, and how long it counts.

    living --rotate_key--> living until the overlap ends, with a successor
       |----- time ------> expired
       '---revoke_key----> revoked

A key never comes back to life, and none is ever deleted: `made_by` and `replaced_by` stay readable. All ages are by the
database's clock; a row carries the time at which it was read, so that a reader with a cache of its own can tell when
the key ends without asking again. Roles are plain words here: what they allow is decided elsewhere. Secrets never get
here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, case, func, or_, select

from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import api_keys, next_numbers, now_ms, of_asked_tenant, tenant_ids
from tistream.errors import Fenced, NotFound, invariant
from tistream.ids import Tenant

PUSHER = "pusher"  #: the role of a tenant's pushers: it ends with the tenant
USED_EVERY_MS = 60_000  #: the last use of a key is written at most so often


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key to be made."""

    key_id: str
    secret_hash: str
    name: str
    role: str
    tenant: Tenant | None = None
    ttl_ms: int = 0  #: 0 = it does not end by itself
    made_by: str = ""  #: id of the key that asked for it; empty = the command line or a first start


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRow:
    """A key, dead or alive. Times are Unix milliseconds by the database's clock; 0 = never."""

    key_id: str
    secret_hash: str
    name: str
    role: str
    tenant: Tenant | None
    made_by: str
    replaced_by: str | None
    created_ms: int
    expires_ms: int
    used_ms: int
    revoked_ms: int
    read_ms: int  #: when this was read

    @property
    def state(self) -> str:
        """living, expired or revoked: when it was read."""
        if self.revoked_ms:
            return "revoked"
        return "expired" if 0 < self.expires_ms <= self.read_ms else "living"


_k = api_keys.c
_READ = select(api_keys, now_ms().label("read_ms"))
_ONE = _READ.where(_k.key_id == bindparam("asked_key"))
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
    .where(_k.key_id == bindparam("asked_key"), _k.used_ms < now_ms() - USED_EVERY_MS)
    .values(used_ms=now_ms())
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
    """Make a key known."""
    with catalog.transaction() as conn:
        _insert(conn, new)
        return _one(conn, new.key_id)


def create_first_key(catalog: Catalog, new: NewKey) -> bool:
    """Make the first key of this catalog. False when it has, or had, any. Of callers that race one wins."""
    with catalog.transaction() as conn:
        next_numbers(conn, "first key", 1)  # its row's lock: who comes second counts what the first one made
        if conn.execute(_COUNT).scalar_one():
            return False
        _insert(conn, new)
        return True


def get_key(catalog: Catalog, key_id: str) -> KeyRow:
    """The key, dead or alive."""
    with catalog.reading() as conn:
        return _one(conn, key_id)


def list_keys(catalog: Catalog, tenant: Tenant | None = None) -> list[KeyRow]:
    """All keys, or those bound to one tenant; the oldest first."""
    with catalog.reading() as conn:
        found = conn.execute(_ALL) if tenant is None else conn.execute(_OF_TENANT, tenant_ids(tenant))
        return [key_row(row) for row in found]


def revoke_key(catalog: Catalog, key_id: str) -> bool:
    """End a key now. False when it was revoked before; NotFound when there is none."""
    with catalog.transaction() as conn:
        if conn.execute(_REVOKE, {"asked_key": key_id}).rowcount == 1:
            return True
        _one(conn, key_id)
        return False


def revoke_pusher_keys(conn: Connection, tenant: Tenant) -> int:
    """End the keys of a tenant's pushers in the caller's transaction; how many."""
    return conn.execute(_REVOKE_PUSHERS, tenant_ids(tenant)).rowcount


def rotate_key(catalog: Catalog, key_id: str, new_id: str, new_hash: str, *, overlap_ms: int, made_by: str) -> KeyRow:
    """Give a living key a successor with the same name, role, tenant and length of life; the old one counts for
    `overlap_ms` more at most. Fenced when it has one already, or does not live: of callers that race one wins."""
    with catalog.transaction() as conn:
        old = _one(conn, key_id)
        asked = {"asked_key": key_id, "successor": new_id, "overlap_ms": overlap_ms}
        if conn.execute(_REPLACE, asked).rowcount != 1:
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
                ttl_ms=ttl_ms,
                made_by=made_by,
            ),
        )
        return _one(conn, new_id)


def note_key_used(catalog: Catalog, key_id: str) -> None:
    """The key was used now; written at most once in USED_EVERY_MS."""
    with catalog.transaction() as conn:
        conn.execute(_USED, {"asked_key": key_id})


def key_row(row: Any) -> KeyRow:
    """A row of `api_keys` with the time at which it was read."""
    return KeyRow(
        key_id=row.key_id,
        secret_hash=row.secret_hash,
        name=row.name,
        role=row.role,
        tenant=None if row.cluster_id is None else Tenant(row.cluster_id, row.tenant_id),
        made_by=row.made_by,
        replaced_by=row.replaced_by,
        created_ms=row.created_ms,
        expires_ms=row.expires_ms,
        used_ms=row.used_ms,
        revoked_ms=row.revoked_ms,
        read_ms=row.read_ms,
    )


def _one(conn: Connection, key_id: str) -> KeyRow:
    row = conn.execute(_ONE, {"asked_key": key_id}).one_or_none()
    if row is None:
        raise NotFound(f"there is no key {key_id[:32]}", key_id=key_id[:32])
    return key_row(row)


def _insert(conn: Connection, new: NewKey) -> None:
    invariant(len(new.secret_hash) == 64, "what is stored of a secret is its SHA-256")
    tenant = new.tenant
    conn.execute(
        api_keys.insert().values(
            key_id=new.key_id,
            secret_hash=new.secret_hash,
            name=new.name,
            role=new.role,
            cluster_id=None if tenant is None else tenant.cluster_id,
            tenant_id=None if tenant is None else tenant.tenant_id,
            made_by=new.made_by,
            created_ms=now_ms(),
            expires_ms=now_ms() + new.ttl_ms if new.ttl_ms else 0,
            used_ms=0,
            revoked_ms=0,
        )
    )
