"""Session credentials of a pusher, and when they are renewed.

    age     0 ......... 2/3 of the validity ......... 15 s before the end ....... end
            GOOD        DUE                           OVER

- GOOD: used as they are.
- DUE: renewed. If that fails they stay in use and renewal is retried a little later, so the control plane may be away
  for a third of the validity without effect.
- OVER: never used. If renewal fails, the error is raised.

Age is measured by the monotonic clock from before the request, so clocks need not agree. Credentials that the store
refused count as OVER, unless they are new: a role that is too narrow would otherwise cause endless requests.
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

MARGIN_S = 15.0  #: a request that starts this long before expiry finishes in time
TRY_AGAIN_S = 10.0
NEW_S = 10.0


class CredentialState(StrEnum):
    GOOD = "good"
    DUE = "due"
    OVER = "over"


def credential_state(age_s: float, valid_s: float) -> CredentialState:
    if age_s >= valid_s - MARGIN_S:
        return CredentialState.OVER
    return CredentialState.DUE if age_s * 3 >= valid_s * 2 else CredentialState.GOOD


class PushSession:
    """The credentials of one process. Thread-safe. One thread renews at a time; others wait only if they have none."""

    def __init__(self, fetch: Callable[[], PushCredentials], clock: Clock) -> None:
        self._fetch, self._clock = fetch, clock
        self._lock, self._renewing = threading.Lock(), threading.Lock()
        self._held: PushCredentials | None = None
        self._issued = self._next_try = 0.0  # monotonic seconds

    def current(self) -> PushCredentials:
        """Valid credentials, renewed when due. Raises the control plane's error when there are none."""
        usable, is_due = self._usable()
        if usable is not None and not (is_due and self._renewing.acquire(blocking=False)):
            return usable
        if usable is None:
            self._renewing.acquire()
        try:
            return self._renewed()
        finally:
            self._renewing.release()

    def refused(self, used: PushCredentials) -> None:
        """The store refused these: get new ones, unless they are new."""
        with self._lock:
            if used is self._held and self._clock.monotonic() - self._issued >= NEW_S:
                self._held = None

    def _usable(self) -> tuple[PushCredentials | None, bool]:
        """(credentials that may be used now, whether to renew them)."""
        with self._lock:
            if self._held is None:
                return None, True
            now = self._clock.monotonic()
            state = credential_state(now - self._issued, self._held.valid_s)
            usable = None if state is CredentialState.OVER else self._held
            return usable, state is not CredentialState.GOOD and now >= self._next_try

    def _renewed(self) -> PushCredentials:
        """Fetch new credentials; the caller holds `_renewing`."""
        usable, is_due = self._usable()
        if usable is not None and not is_due:  # another thread renewed them
            return usable
        asked_at = self._clock.monotonic()
        try:
            fresh = self._fetch()
        except TiStreamError as e:
            if usable is None or e.kind is not ErrorKind.RETRY:
                raise
            log.warning("renewing session credentials failed, retrying", error=str(e))
            with self._lock:
                self._next_try = self._clock.monotonic() + TRY_AGAIN_S
            return usable
        with self._lock:
            self._held, self._issued, self._next_try = fresh, asked_at, 0.0
        return fresh
