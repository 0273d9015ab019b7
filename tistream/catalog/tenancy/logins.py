"""Console logins: one-time codes, and the sessions that they become.

    open_login("code") --redeem_code, once--> "session" --end_session, or time--> gone

A login stands for an API key and ends with it. Only hashes are stored; later logins delete expired rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import bindparam, select

from tistream.catalog.database.clock_sql import now_ms
from tistream.catalog.database.engine import Catalog
from tistream.catalog.database.tables import api_keys, logins
from tistream.catalog.tenancy.keys import KeyRow, key_row

_l = logins.c
_SESSION, _CODE = "session", "code"
_OPEN = logins.insert().values(expires_ms=now_ms() + bindparam("ttl_ms"))
_IS_CODE = (_l.token_hash == bindparam("key_hash"), _l.kind == _CODE, _l.expires_ms > now_ms())
_KEY_OF_CODE = select(_l.key_id).where(*_IS_CODE)
_TAKE_CODE = logins.delete().where(*_IS_CODE)
_END = logins.delete().where(_l.token_hash == bindparam("key_hash"), _l.kind == _SESSION)
_SWEEP = logins.delete().where(_l.expires_ms <= now_ms())
_FIND = (
    select(api_keys, now_ms().label("read_ms"), _l.expires_ms.label("session_ends_ms"))
    .join_from(logins, api_keys, api_keys.c.key_id == _l.key_id)
    .where(_l.token_hash == bindparam("key_hash"), _l.kind == _SESSION, _l.expires_ms > now_ms())
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """A live session and its key, which may be expired or revoked."""

    key: KeyRow
    ends_ms: int


def open_code(catalog: Catalog, code_hash: str, key_id: str, ttl_ms: int) -> None:
    """Store a code that can become a session once within `ttl_ms`."""
    _open(catalog, code_hash, _CODE, key_id, ttl_ms)


def open_session(catalog: Catalog, token_hash: str, key_id: str, ttl_ms: int) -> None:
    """Log in as the key."""
    _open(catalog, token_hash, _SESSION, key_id, ttl_ms)


def redeem_code(catalog: Catalog, code_hash: str, token_hash: str, ttl_ms: int) -> bool:
    """Turn a code into a session. False when it is used, expired or unknown. Of racing callers one wins."""
    with catalog.transaction() as conn:
        conn.execute(_SWEEP)
        key_id = conn.execute(_KEY_OF_CODE, {"key_hash": code_hash}).scalar_one_or_none()
        if key_id is None or conn.execute(_TAKE_CODE, {"key_hash": code_hash}).rowcount != 1:
            return False
        conn.execute(_OPEN, {"token_hash": token_hash, "kind": _SESSION, "key_id": key_id, "ttl_ms": ttl_ms})
        return True


def find_session(catalog: Catalog, token_hash: str) -> SessionRow | None:
    """The live session of this token, or None."""
    with catalog.reading() as conn:
        row = conn.execute(_FIND, {"key_hash": token_hash}).one_or_none()
    return None if row is None else SessionRow(key=key_row(row), ends_ms=row.session_ends_ms)


def end_session(catalog: Catalog, token_hash: str) -> None:
    """Log out."""
    with catalog.transaction() as conn:
        conn.execute(_END, {"key_hash": token_hash})


def _open(catalog: Catalog, token_hash: str, kind: str, key_id: str, ttl_ms: int) -> None:
    with catalog.transaction() as conn:
        conn.execute(_SWEEP)
        conn.execute(_OPEN, {"token_hash": token_hash, "kind": kind, "key_id": key_id, "ttl_ms": ttl_ms})
