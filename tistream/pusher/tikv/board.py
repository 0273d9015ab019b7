"""Where the sources of one cluster's stores learn which regions there are: one reader of PD for all of them.

    ask(range)      somebody wants to know; every source hears the answer, since a region that one store has lost is
                    what another one waits for
    tell(region)    a store has said who leads a region now: the others hear it before PD knows
    refresh         what is followed is read as a whole from time to time, whatever happens

A list of regions is read in pages. It may be stale, have gaps, or name no leader: what to make of it is `feed`'s
business. When PD does not answer, those who asked hear that too (None instead of a list).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tistream.clock import Clock
from tistream.errors import TiStreamError
from tistream.keyrange import KeyRange
from tistream.pusher.tikv.pd_messages import Region
from tistream.pusher.tikv.regions import Pd, regions_of
from tistream.service import Problem, Repeating

REFRESH_S = 10.0

Listener = Callable[[KeyRange | None, Sequence[Region] | None], None]
"""(what was asked for, or None when nobody did; the regions, or None when PD did not answer). Called in any thread."""


class RegionBoard:
    """Start it, let sources `follow` it, stop it. Thread-safe."""

    def __init__(self, pd: Pd, wanted: Sequence[KeyRange], *, clock: Clock, refresh_s: float = REFRESH_S) -> None:
        self._pd, self._wanted, self._clock, self._refresh_s = pd, tuple(wanted), clock, refresh_s
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._asked: dict[KeyRange, None] = {}
        self._refresh_at = float("-inf")
        self._reader = Repeating("regions", self.read, interval_s=refresh_s, clock=clock)
        self.name = self._reader.name

    def start(self) -> None:
        self._reader.start()

    def stop(self) -> None:
        self._reader.stop()

    def wait_until_ready(self, timeout_s: float) -> bool:
        return self._reader.wait_until_ready(timeout_s)

    def problems(self) -> list[Problem]:
        return self._reader.problems()

    def follow(self, listener: Listener) -> Callable[[], None]:
        """Hear of everything from now on; call what comes back to end that."""
        with self._lock:
            self._listeners.append(listener)

        def end() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return end

    def ask(self, part: KeyRange) -> None:
        """Read these regions now."""
        with self._lock:
            self._asked[part] = None
        self._reader.wake()

    def tell(self, region: Region) -> None:
        """A store says who leads the region."""
        self._give(None, [region])

    def read(self) -> None:
        """Read what was asked for, and everything if it is time. Raises what PD says, after everybody was told."""
        now = self._clock.monotonic()
        with self._lock:
            asked, self._asked = list(self._asked), {}
        if now >= self._refresh_at:
            self._refresh_at = now + self._refresh_s
            asked = [*self._wanted, *(a for a in asked if a not in self._wanted)]
        failed: TiStreamError | None = None
        for part in asked:
            regions: list[Region] | None = None
            try:
                regions = None if failed else regions_of(self._pd, part)
            except TiStreamError as e:
                failed = e
            self._give(part, regions)
        if failed is not None:
            raise failed

    def _give(self, asked: KeyRange | None, regions: Sequence[Region] | None) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener(asked, regions)
