"""Where the sources of one cluster's stores learn which regions there are: one reader of PD for all of them.

    ask(range)      somebody wants to know; every source hears the answer, since a region that one store has lost is
                    what another one waits for
    tell(region)    a store has said who leads a region now: the others hear it before PD knows
    refresh         what is followed is read as a whole from time to time, whatever happens: a cluster of many regions
                    less often, since a page of them costs PD and every source time

A list of regions is read in pages; a region that holds the next parts as well is read once. It may be stale, have gaps,
or name no leader: what to make of it is `feed`'s business. A gap that stays is a problem to show. When PD does not
answer, those who requested hear that too (None instead of a list).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tistream.clock import Clock
from tistream.errors import ErrorKind, StoreUnavailable, TiStreamError
from tistream.keyrange import KeyRange
from tistream.runtime.service import Problem, Repeating
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.core.regions import Pd, first_gap, plain_range, regions_of

REFRESH_S = 10.0
REGIONS_A_SECOND = 1000  #: so many are refreshed, on average, at most
_GAP_SHOWN_S = 5.0

Listener = Callable[[KeyRange | None, Sequence[Region] | None], None]
"""(what was requested for, or None when nobody did; the regions, or None when PD did not answer). Called in any thread."""


class RegionCache:
    """Start it, let sources `follow` it, stop it. Thread-safe."""

    def __init__(self, pd: Pd, wanted: Sequence[KeyRange], *, clock: Clock, refresh_s: float = REFRESH_S) -> None:
        self._pd, self._wanted, self._clock, self._refresh_s = pd, tuple(wanted), clock, refresh_s
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._requested: dict[KeyRange, None] = {}
        self._refresh_at = float("-inf")
        self._failure: TiStreamError | None = None
        self._gaps: dict[KeyRange, tuple[float, bytes]] = {}  # part that was read -> since when, at which key
        self._reader = Repeating("regions", self._step, interval_s=refresh_s, clock=clock)
        self.name = self._reader.name

    def start(self) -> None:
        self._reader.start()

    def stop(self) -> None:
        self._reader.stop()

    def wait_until_ready(self, timeout_s: float) -> bool:
        return self._reader.wait_until_ready(timeout_s)

    @property
    def failure(self) -> TiStreamError | None:
        """What has failure the reader: nobody learns of regions any more, and whoever follows them must not go on."""
        return self._failure if self._reader.crashed else None

    def problems(self) -> list[Problem]:
        now = self._clock.monotonic()
        gaps = [
            Problem(
                source=self.name,
                code=StoreUnavailable.code,
                message="PD names no region, or none with a leader",
                facts={"key": key.hex(), "for_s": round(now - since)},
            )
            for since, key in list(self._gaps.values())
            if now - since >= _GAP_SHOWN_S
        ]
        return [*self._reader.problems(), *gaps]

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Hear of everything from now on; call what comes back to end that."""
        with self._lock:
            self._listeners.append(listener)

        def end() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return end

    def request(self, part: KeyRange) -> None:
        """Read these regions now."""
        with self._lock:
            self._requested[part] = None
        self._reader.wake()

    def report_leader(self, region: Region) -> None:
        """A store says who leads the region."""
        self._notify(None, [region])

    def _step(self) -> None:
        try:
            self.read()
        except TiStreamError as e:
            self._failure = e if e.kind is not ErrorKind.RETRY else None
            raise
        except Exception as e:  # a defect: the owner raises it
            self._failure = TiStreamError("the reader of regions has failure", cause=repr(e))
            raise

    def read(self) -> None:
        """Read what was requested for, and everything if it is time. Raises what PD says, after everybody was told."""
        now = self._clock.monotonic()
        with self._lock:
            requested, self._requested = list(self._requested), {}
        refresh = now >= self._refresh_at
        if refresh:
            requested = [*self._wanted, *(a for a in requested if a not in self._wanted)]
        failed: TiStreamError | None = None
        found, last = 0, None
        for part in requested:
            regions: list[Region] | None = None
            try:
                if failed is None:
                    regions = self._regions_of(part, last)
            except TiStreamError as e:
                failed = e
            if regions:
                found += len(regions) - (regions[0] is last)
                last = regions[-1]
            self._note_gap(part, regions)
            self._notify(part, regions)
        if refresh:
            self._refresh_at = now + max(self._refresh_s, found / REGIONS_A_SECOND)
        if failed is not None:
            raise failed

    def _regions_of(self, part: KeyRange, last: Region | None) -> list[Region]:
        """`last`: of the part that was read before this one."""
        whole = plain_range(last) if last is not None else None
        if last is not None and whole is not None and whole.covers(part):
            return [last]
        return regions_of(self._pd, part)

    def _note_gap(self, part: KeyRange, regions: Sequence[Region] | None) -> None:
        if regions is None:
            return
        key = first_gap(part, regions)
        if key is not None:
            self._gaps[part] = (self._gaps[part][0] if part in self._gaps else self._clock.monotonic(), key)
            return
        for other in [p for p in self._gaps if part.covers(p)]:
            del self._gaps[other]

    def _notify(self, requested: KeyRange | None, regions: Sequence[Region] | None) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener(requested, regions)
