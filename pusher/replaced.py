"""Detects that a newer incarnation has replaced this pusher.

Once a newer incarnation is in the catalog, dispatchers end the older one at its last contiguous file. An older pusher
that continued would upload files that are never read; and if the newer one died, its store would be stalled. So each
pusher checks, and fails with Fenced when its own number is not the newest. A supervisor may restart it: that takes a
newer incarnation again.

- A number that was issued but never used (a lost reply, an immediate crash) still fences the older pusher, because
  dispatchers wait for the newest number only.
- A number smaller than our own means that the catalog was restored to an earlier state: our files are not read either.
- While the control plane is unavailable the pusher continues and checks again.
"""

from __future__ import annotations

from typing import Protocol

from pusher.frontier import pause_after_error
from tistream.clock import Clock
from tistream.errors import ErrorKind, Fenced, TiStreamError
from tistream.limits import INCARNATION_CHECK_MS


class _KnowsIncarnations(Protocol):
    def newest_incarnation(self, store_id: int) -> int: ...


class ReplacedCheck:
    """The check for one store's pusher, at most once per INCARNATION_CHECK_MS. Used from one thread."""

    def __init__(self, control: _KnowsIncarnations, clock: Clock, store_id: int) -> None:
        self._control, self._clock, self._store_id = control, clock, store_id
        self._next_at = float("-inf")
        self.error: TiStreamError | None = None  #: of the last attempt; None = it succeeded

    def check(self, incarnation: int) -> None:
        """Raise Fenced when this incarnation is not the store's newest, and errors of the control plane that are not
        kind RETRY."""
        now = self._clock.monotonic()
        if now < self._next_at:
            return
        try:
            newest = self._control.newest_incarnation(self._store_id)
        except TiStreamError as e:
            if e.kind is not ErrorKind.RETRY:
                raise
            self.error = e
            failed = self._clock.monotonic()
            self._next_at = failed + pause_after_error(failed - now)
            return
        self.error = None
        self._next_at = self._clock.monotonic() + INCARNATION_CHECK_MS / 1000
        if newest != incarnation:
            error = Fenced(
                "another pusher of this store has started: files of this one are no longer read",
                store=self._store_id,
                incarnation=incarnation,
                newest=newest,
            )
            error.hint = (
                "Run one pusher per store. If two supervisors restart pushers of the same store, stop one of them."
            )
            raise error
