"""The read leases of one process: what its pages have listed stays until they have fetched it.

Pages that begin within a while share one lease; a later page opens a new one, so a busy process does not keep replaced
objects for ever. A long page renews the lease that it began with.

Reads are correct without a lease too: a reader that finds an object gone lists again. So pages are served without one
while the catalog accepts no writes.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.read_leases import drop_lease, open_lease, renew_lease
from tistream.clock import Clock
from tistream.errors import CatalogUnavailable
from tistream.limits import READ_LEASE_TTL_MS

log = structlog.get_logger(__name__)

_SHARED_PART = 15  # of its time to live, in which further pages share it
_RENEWED_PART = 3  # of its time to live, after which it is renewed


class ReadLease:
    """A lease shared by the pages under way. `lease_id` is None when the catalog was not writable."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog, self._clock = catalog, clock
        self._lock = threading.Lock()
        self.users = 0
        self.lease_id: str | None = None
        self._open()

    @property
    def age_ms(self) -> float:
        """Milliseconds since it was opened or renewed, by this machine's clock."""
        return (self._clock.monotonic() - self._since) * 1000

    def renew(self) -> None:
        """Renew when due. Cheap: call it before each request of a long page."""
        if self.age_ms * _RENEWED_PART < READ_LEASE_TTL_MS:
            return
        with self._lock:
            if self.age_ms * _RENEWED_PART < READ_LEASE_TTL_MS:
                return
            begun = self._clock.monotonic()
            try:
                alive = self.lease_id is not None and renew_lease(self._catalog, self.lease_id, READ_LEASE_TTL_MS)
            except CatalogUnavailable as e:
                log.warning("read lease not renewed", cause=str(e))
                return
            if alive:
                self._since = begun
            else:
                self._open()  # it expired while we slept: listed objects may be gone

    def drop(self) -> None:
        """End the lease: no page needs it any more."""
        if self.lease_id is None:
            return
        try:
            drop_lease(self._catalog, self.lease_id)
        except CatalogUnavailable as e:
            log.warning("read lease not dropped, it will expire", cause=str(e))

    def _open(self) -> None:
        self._since = self._clock.monotonic()
        self.lease_id = secrets.token_hex(12)
        try:
            open_lease(self._catalog, self.lease_id, READ_LEASE_TTL_MS)
        except CatalogUnavailable as e:
            self.lease_id = None
            log.warning("reading without a read lease", cause=str(e))


class ReaderLeases:
    """The leases of one process. Safe to use from several threads."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog, self._clock = catalog, clock
        self._lock = threading.Lock()
        self._newest: ReadLease | None = None

    @contextmanager
    def held(self) -> Iterator[ReadLease]:
        """Hold a lease; list segments only inside."""
        with self._lock:
            replaced, lease = self._lease()
            lease.users += 1
        if replaced is not None:
            replaced.drop()
        try:
            yield lease
        finally:
            with self._lock:
                lease.users -= 1
                is_last = lease.users == 0 and lease is not self._newest
            if is_last:
                lease.drop()

    def _lease(self) -> tuple[ReadLease | None, ReadLease]:
        """The lease to drop, if any, and the lease to use."""
        newest = self._newest
        if newest is not None and newest.lease_id is not None and newest.age_ms * _SHARED_PART < READ_LEASE_TTL_MS:
            return None, newest
        self._newest = ReadLease(self._catalog, self._clock)
        return (newest if newest is not None and not newest.users else None), self._newest
