"""Creates keys, login codes and sessions. The text of a secret is returned once; the catalog stores its hash."""

from __future__ import annotations

import math
import secrets
from dataclasses import dataclass

from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy import keys, logins
from tistream.errors import InvalidInput
from tistream.http.auth.core.keys import ID_BYTES, SECRET_BYTES, format_key, format_token, hash_of, parse_key
from tistream.http.auth.core.roles import LIMITABLE, Role, fits
from tistream.ids import Tenant
from tistream.limits import LOGIN_CODE_MS, SESSION_MS

NAME_MAX = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedKey:
    """A new key."""

    text: str  #: the key itself: show it once
    row: keys.KeyRow


def ttl_ms_of(seconds: float) -> int:
    """Milliseconds of a lifetime in seconds, rounded up: only 0 seconds (no expiry) is 0 ms."""
    return math.ceil(seconds * 1000)


def issue_key(
    catalog: Catalog,
    *,
    name: str,
    role: Role,
    tenant: Tenant | None = None,
    tables: tuple[str, ...] | None = None,
    ttl_ms: int = 0,
    created_by: str = "",
) -> IssuedKey:
    """Create a key. InvalidInput when the role does not fit the tenant or the tables, whose rules the caller has
    parsed."""
    if not fits(role, tenant):
        raise InvalidInput(
            f"A key of role {role} is bound to a tenant: give cluster_id and tenant_id."
            if tenant is None
            else f"A key of role {role} is bound to no tenant: leave out cluster_id and tenant_id.",
            role=role,
        )
    if tables is not None and role not in LIMITABLE:
        raise InvalidInput(
            f"A key of role {role} cannot be limited to tables: only a {' or '.join(sorted(LIMITABLE))} key can.",
            role=role,
        )
    if not name.strip() or len(name) > NAME_MAX or not name.isprintable():
        raise InvalidInput(f"A key has a name of 1 to {NAME_MAX} printable characters.")
    text = _new_text()
    parsed = parse_key(text)
    new = keys.NewKey(
        key_id=parsed.key_id, secret_hash=parsed.secret_hash, name=name, role=role, tenant=tenant, tables=tables,
        ttl_ms=ttl_ms, created_by=created_by,
    )  # fmt: skip
    return IssuedKey(text=text, row=keys.create_key(catalog, new))


def first_owner_key(catalog: Catalog) -> str | None:
    """The text of a new owner's key if there was no key at all; one of several concurrent callers gets it."""
    text = _new_text()
    parsed = parse_key(text)
    new = keys.NewKey(key_id=parsed.key_id, secret_hash=parsed.secret_hash, name="first owner", role=Role.OWNER)
    return text if keys.create_first_key(catalog, new) else None


def rotated_key(catalog: Catalog, key_id: str, *, overlap_ms: int, created_by: str) -> IssuedKey:
    """A successor of an active key, see `keys.rotate_key`."""
    text = _new_text()
    parsed = parse_key(text)
    row = keys.rotate_key(
        catalog, key_id, parsed.key_id, parsed.secret_hash, overlap_ms=overlap_ms, created_by=created_by
    )
    return IssuedKey(text=text, row=row)


def login_code(catalog: Catalog, key_id: str) -> str:
    """A code that opens the console once as this key, within LOGIN_CODE_MS."""
    code = format_token("tsl", secrets.token_bytes(SECRET_BYTES))
    logins.open_code(catalog, hash_of(code), key_id, LOGIN_CODE_MS)
    return code


def session_by_code(catalog: Catalog, code: str) -> str | None:
    """The token of a new session; None when the code is unknown, used or expired."""
    token = format_token("tss", secrets.token_bytes(SECRET_BYTES))
    return token if logins.redeem_code(catalog, hash_of(code), hash_of(token), SESSION_MS) else None


def session_of(catalog: Catalog, key_id: str) -> str:
    """The token of a new session as this key."""
    token = format_token("tss", secrets.token_bytes(SECRET_BYTES))
    logins.open_session(catalog, hash_of(token), key_id, SESSION_MS)
    return token


def _new_text() -> str:
    return format_key(secrets.token_bytes(ID_BYTES), secrets.token_bytes(SECRET_BYTES))
