"""Authenticates API keys and console sessions against the catalog, with a cache of KEY_CACHE_MS.

A revoked key is accepted for at most KEY_CACHE_MS by other processes, and not at all by the one that revoked it. Expiry
takes effect on time everywhere, because cache entries know it. Secrets are compared in constant time, also for unknown
keys. While the catalog is unavailable, cached principals are served and others get a retryable error.
"""

from __future__ import annotations

import hmac
import threading
from dataclasses import dataclass

import structlog
from starlette.concurrency import run_in_threadpool

from tistream.catalog.database.engine import Catalog
from tistream.catalog.tenancy import keys, logins
from tistream.clock import Clock
from tistream.errors import CatalogUnavailable, NotFound, Unauthenticated
from tistream.http.auth.core.keys import hash_of, parse_key
from tistream.http.auth.core.roles import Principal, Role
from tistream.limits import KEY_CACHE_MS

log = structlog.get_logger(__name__)

_KEPT_MAX = 4096
_NO_HASH = "0" * 64
_NO_SESSION = "The session of the console has ended: log in again."


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """A cache entry."""

    secret_hash: str
    principal: Principal | None  #: None: unknown, revoked or expired
    reason: str
    known: Principal | None  #: the same, also of one that is revoked or expired
    good_until_s: float  #: by the monotonic clock
    ends_s: float  #: when it expires


class Authenticator:
    """Authenticates against one catalog. Safe to use from several threads."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self.catalog = catalog
        self._clock = clock
        self._kept: dict[str, _Found] = {}
        self._lock = threading.Lock()
        self._forgotten = 0  # entries read before the last `forget` are not cached

    async def authenticate_key(self, text: str) -> Principal:
        """The principal of a key. Unauthenticated with the reason."""
        key = parse_key(text)
        entry = self._usable(key.key_id)
        if entry is None:
            entry = await run_in_threadpool(self._read_key, key.key_id)
        if not hmac.compare_digest(entry.secret_hash, key.secret_hash):
            raise Unauthenticated("The API key is unknown.")
        return self._principal_of(entry)

    async def authenticate_session(self, token: str) -> Principal:
        """The principal of a session. Unauthenticated when it has ended."""
        token_hash = hash_of(token)
        entry = self._usable(token_hash)
        if entry is None:
            entry = await run_in_threadpool(self._read_session, token_hash)
        return self._principal_of(entry)

    def forget(self, name: str | None = None) -> None:
        """Drop a key or session from the cache; all of them without a name."""
        with self._lock:
            self._forgotten += 1
            if name is None:
                self._kept.clear()
            else:
                self._kept.pop(name, None)

    def _principal_of(self, entry: _Found) -> Principal:
        if entry.principal is None:
            raise _ended(entry.reason, entry.known)
        if self._clock.monotonic() >= entry.ends_s:
            raise _ended("The API key has expired.", entry.known)
        return entry.principal

    def _usable(self, name: str) -> _Found | None:
        entry = self._kept.get(name)
        return entry if entry is not None and self._clock.monotonic() < entry.good_until_s else None

    def _read_key(self, key_id: str) -> _Found:
        era = self._forgotten
        try:
            row = keys.get_key(self.catalog, key_id)
        except NotFound:
            return self._keep(era, key_id, None, "The API key is unknown.", secret_hash=_NO_HASH)
        self._note_used(row)
        return self._keep(era, key_id, row, f"The API key has {_ENDED.get(row.state, '')}.", ends_ms=row.expires_ms)

    def _read_session(self, token_hash: str) -> _Found:
        era = self._forgotten
        session = logins.find_session(self.catalog, token_hash)
        if session is None:
            return self._keep(era, token_hash, None, _NO_SESSION, secret_hash="")
        row = session.key
        ends_ms = min(session.ends_ms, row.expires_ms or session.ends_ms)
        self._note_used(row)
        return self._keep(era, token_hash, row, _NO_SESSION, ends_ms=ends_ms)

    def _note_used(self, row: keys.KeyRow) -> None:
        if row.state == "living" and row.read_ms - row.last_used_ms > keys.USED_EVERY_MS:
            try:
                keys.note_key_used(self.catalog, row.key_id)
            except CatalogUnavailable as e:  # the next use is noted
                log.info("the last use of a key was not noted", key_id=row.key_id, error=str(e))

    def _keep(
        self, era: int, name: str, row: keys.KeyRow | None, reason: str, *, secret_hash: str = "", ends_ms: int = 0
    ) -> _Found:
        now_s = self._clock.monotonic()
        living = row is not None and row.state == "living"
        entry = _Found(
            secret_hash=row.secret_hash if row is not None else secret_hash,
            principal=_principal(row) if row is not None and living else None,
            known=None if row is None else _principal(row),
            reason=reason,
            good_until_s=now_s + KEY_CACHE_MS / 1000,
            ends_s=now_s + (ends_ms - row.read_ms) / 1000 if row is not None and ends_ms else float("inf"),
        )
        with self._lock:
            if len(self._kept) >= _KEPT_MAX:
                self._kept.clear()
            if era == self._forgotten:
                self._kept[name] = entry
        return entry


_ENDED = {"revoked": "been revoked", "expired": "expired"}


def _ended(reason: str, who: Principal | None) -> Unauthenticated:
    """The refusal of a key or session, which knows for the audit log whose it was."""
    error = Unauthenticated(reason)
    error.ended = who
    return error


def _principal(row: keys.KeyRow) -> Principal:
    return Principal(key_id=row.key_id, name=row.name, role=Role(row.role), tenant=row.tenant, tables=row.tables)
