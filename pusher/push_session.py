"""Session credentials of a pusher: which count, and when they are renewed.

    age     0 ......... 2/3 of their life ......... 15 s before the end ....... end
            GOOD        DUE                         OVER

- GOOD ones are used as they are.
- DUE ones are renewed; when that fails they are used on, and renewal is tried again a little later: the control plane
  may be away for a third of their life before anybody notices.
- OVER ones are never used: without new ones there are none, and the error says why.

Age is counted by the pusher's own monotonic clock from before they were asked for, so no two clocks have to agree.
Credentials that the store refused are taken to be over; a refusal of ones that are new changes nothing, or a role that
is too narrow would be asked for without end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import StrEnum

import structlog

from pusher.control import PushCredentials
from tistream.clock import Clock
from tistream.errors import ErrorKind, TiStreamError

log = structlog.get_logger(__name__)

MARGIN_S = 15.0  #: a request that begins so long before the end is answered in time
TRY_AGAIN_S = 10.0
NEW_S = 10.0


class Standing(StrEnum):
    """What credentials are good for."""

    GOOD = "good"
    DUE = "due"
    OVER = "over"


def standing(age_s: float, valid_s: float) -> Standing:
    """What credentials are good for that were issued so long ago, for so long."""
    if age_s >= valid_s - MARGIN_S:
        return Standing.OVER
    return Standing.DUE if age_s * 3 >= valid_s * 2 else Standing.GOOD


class PushSession:
    """The credentials of one process. Thread-safe; one thread renews at a time, and others wait only if they must."""

    def __init__(self, fetch: Callable[[], PushCredentials], clock: Clock) -> None:
        self._fetch, self._clock = fetch, clock
        self._lock, self._renewing = threading.Lock(), threading.Lock()
        self._held: PushCredentials | None = None
        self._issued = self._next_try = 0.0  # by the monotonic clock

    def current(self) -> PushCredentials:
        """Credentials that count, renewed when it is time. Raises what the control plane says when there are none."""
        usable, is_time = self._look()
        if usable is not None and not (is_time and self._renewing.acquire(blocking=False)):
            return usable
        if usable is None:
            self._renewing.acquire()
        try:
            return self._renewed()
        finally:
            self._renewing.release()

    def refused(self, used: PushCredentials) -> None:
        """The store refused these: ask for others, unless they are new."""
        with self._lock:
            if used is self._held and self._clock.monotonic() - self._issued >= NEW_S:
                self._held = None

    def _look(self) -> tuple[PushCredentials | None, bool]:
        """(what may be used now, whether to renew it)."""
        with self._lock:
            if self._held is None:
                return None, True
            now = self._clock.monotonic()
            stands = standing(now - self._issued, self._held.valid_s)
            usable = None if stands is Standing.OVER else self._held
            return usable, stands is not Standing.GOOD and now >= self._next_try

    def _renewed(self) -> PushCredentials:
        """With `_renewing` held."""
        usable, is_time = self._look()
        if usable is not None and not is_time:  # another thread was faster
            return usable
        asked = self._clock.monotonic()
        try:
            fresh = self._fetch()
        except TiStreamError as e:
            if usable is None or e.kind is not ErrorKind.RETRY:
                raise
            log.warning("session credentials could not be renewed yet", error=str(e))
            with self._lock:
                self._next_try = self._clock.monotonic() + TRY_AGAIN_S
            return usable
        with self._lock:
            self._held, self._issued, self._next_try = fresh, asked, 0.0
        return fresh
