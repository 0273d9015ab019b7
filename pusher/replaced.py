"""Whether this pusher is still the one whose files are read: nobody issued another incarnation of its store since.

Once a newer incarnation is in the catalog, dispatchers end the older one at its last contiguous file, whoever writes.
A pusher that went on would upload files that nobody reads, and if the newer one died its store would stand still. So it
asks, and ends as Fenced when another number is the newest one. Its supervisor may start a new life: that takes a newer
incarnation still, and fences whoever is left.

- A number that was issued and never used (a lost reply, a life that died at once) ends the older pusher all the same,
  for dispatchers wait for the newest number only.
- A smaller number than one's own comes of a catalog that was restored to an earlier state: nobody reads this
  incarnation either.
- With the control plane away nothing is concluded: the pusher goes on, and asks again.
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
    """Asks for one store's pusher, every INCARNATION_CHECK_MS at most. Used from one thread."""

    def __init__(self, control: _KnowsIncarnations, clock: Clock, store_id: int) -> None:
        self._control, self._clock, self._store_id = control, clock, store_id
        self._next_at = float("-inf")
        self.error: TiStreamError | None = None  #: why the last attempt failed; None when it did not

    def check(self, incarnation: int) -> None:
        """Fenced when another incarnation than this one is the newest of the store. Raises what the control says,
        unless that is to try again."""
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
                "another pusher of this store has begun, what this one writes is not read any more",
                store=self._store_id,
                incarnation=incarnation,
                newest=newest,
            )
            error.hint = "One pusher runs for each store. If two are started again and again, stop one of the two."
            raise error
