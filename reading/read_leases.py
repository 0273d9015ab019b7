"""A reader process's pins in the catalog: what its pages have listed stays until they have fetched it.

One pin serves all pages that begin within a while of each other; a page that begins later gets a new one, so that a
busy process does not hold for ever what was replaced long ago. A page that takes long renews the pin that it began
with.

Without a pin reads are right all the same: who finds an object gone lists again. So when the catalog takes no writes,
pages go on without.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import structlog

from tistream.catalog.database.engine import Catalog
from tistream.catalog.log.read_leases import drop_pin, open_pin, renew_pin
from tistream.clock import Clock
from tistream.errors import CatalogUnavailable
from tistream.limits import PIN_TTL_MS

log = structlog.get_logger(__name__)

_SHARED_PART = 15  # of its time to live, in which a pin is given to further pages
_RENEWED_PART = 3  # of its time to live, after which it is renewed


class Pin:
    """A pin of this process, shared by the pages under way. `pin_id` is None when the catalog took none."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog, self._clock = catalog, clock
        self._lock = threading.Lock()
        self.users = 0
        self.pin_id: str | None = None
        self._open()

    @property
    def age_ms(self) -> float:
        """Since it was opened or renewed, by this machine."""
        return (self._clock.monotonic() - self._since) * 1000

    def renew(self) -> None:
        """Keep it alive; costs nothing until that is due. Call it before each request of a long page."""
        if self.age_ms * _RENEWED_PART < PIN_TTL_MS:
            return
        with self._lock:
            if self.age_ms * _RENEWED_PART < PIN_TTL_MS:
                return
            begun = self._clock.monotonic()
            try:
                alive = self.pin_id is not None and renew_pin(self._catalog, self.pin_id, PIN_TTL_MS)
            except CatalogUnavailable as e:
                log.warning("a pin was not renewed", cause=str(e))
                return
            if alive:
                self._since = begun
            else:
                self._open()  # it ended while we slept: what was listed under it may be gone

    def drop(self) -> None:
        """No page needs it any more."""
        if self.pin_id is None:
            return
        try:
            drop_pin(self._catalog, self.pin_id)
        except CatalogUnavailable as e:
            log.warning("a pin was not dropped, it ends by itself", cause=str(e))

    def _open(self) -> None:
        self._since = self._clock.monotonic()
        self.pin_id = secrets.token_hex(12)
        try:
            open_pin(self._catalog, self.pin_id, PIN_TTL_MS)
        except CatalogUnavailable as e:
            self.pin_id = None
            log.warning("reading without a pin", cause=str(e))


class ReaderPins:
    """The pins of one process. Safe to use from several threads."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog, self._clock = catalog, clock
        self._lock = threading.Lock()
        self._newest: Pin | None = None

    @contextmanager
    def held(self) -> Iterator[Pin]:
        """Hold a pin; list segments only inside."""
        with self._lock:
            replaced, pin = self._pin()
            pin.users += 1
        if replaced is not None:
            replaced.drop()
        try:
            yield pin
        finally:
            with self._lock:
                pin.users -= 1
                is_last = pin.users == 0 and pin is not self._newest
            if is_last:
                pin.drop()

    def _pin(self) -> tuple[Pin | None, Pin]:
        """The pin that nobody uses any more, if there is one, and the one to use."""
        newest = self._newest
        if newest is not None and newest.pin_id is not None and newest.age_ms * _SHARED_PART < PIN_TTL_MS:
            return None, newest
        self._newest = Pin(self._catalog, self._clock)
        return (newest if newest is not None and not newest.users else None), self._newest
