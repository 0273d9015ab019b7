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

from tistream.clock import Clock
from tistream.errors import ErrorKind, TiStreamError
from tistream.pusher.control import PushCredentials

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
    """The credentials of one process. Thread-safe."""

    def __init__(self, fetch: Callable[[], PushCredentials], clock: Clock) -> None:
        self._fetch, self._clock = fetch, clock
        self._lock = threading.Lock()
        self._held: PushCredentials | None = None
        self._issued = self._next_try = 0.0  # by the monotonic clock

    def current(self) -> PushCredentials:
        """Credentials that count, renewed when it is time. Raises what the control plane says when there are none."""
        with self._lock:
            held, now = self._held, self._clock.monotonic()
            stands = Standing.OVER if held is None else standing(now - self._issued, held.valid_s)
            if held is not None and (stands is Standing.GOOD or (stands is Standing.DUE and now < self._next_try)):
                return held
            try:
                fresh = self._fetch()
            except TiStreamError as e:
                if held is None or stands is Standing.OVER or e.kind is not ErrorKind.RETRY:
                    raise
                self._next_try = self._clock.monotonic() + TRY_AGAIN_S
                log.warning("session credentials could not be renewed yet", error=str(e))
                return held
            self._held, self._issued, self._next_try = fresh, now, 0.0
            return fresh

    def refused(self, used: PushCredentials) -> None:
        """The store refused these: ask for others, unless they are new."""
        with self._lock:
            if used is self._held and self._clock.monotonic() - self._issued >= NEW_S:
                self._held = None
