"""Region cache: one reader of PD's region lists for all sources of a cluster.

    request(range)          read these regions; every source gets the answer: what one store lost another may lead
    report_leader(region)   a store reported the region's leader: the other sources learn it before PD does
    refresh                 all wanted ranges are read periodically, less often in clusters with many regions, because
                            each page costs PD and every source time

Lists are read in pages; a region that also covers the following ranges is read once. A list may be stale, have gaps, or
lack leaders: `feed` handles that. A persistent gap is reported as a problem. When PD does not answer, those who asked
get None instead of a list.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from tistream.clock import Clock
from tistream.errors import ErrorKind, StoreUnavailable, TiStreamError
from tistream.keyrange import KeyRange
from tistream.model.problem import Problem
from tistream.runtime.service import Repeating
from tistream.tikv.core.pd_messages import Region
from tistream.tikv.core.regions import Pd, first_gap, plain_range, regions_of

REFRESH_S = 10.0
REGIONS_A_SECOND = 1000  #: average refresh rate
_GAP_SHOWN_S = 5.0

Listener = Callable[[KeyRange | None, Sequence[Region] | None], None]
"""(requested range or None, regions or None when PD did not answer). Called in any thread."""


class RegionCache:
    """Start it, let sources `listen`, stop it. Thread-safe."""

    def __init__(self, pd: Pd, ranges: Sequence[KeyRange], *, clock: Clock, refresh_s: float = REFRESH_S) -> None:
        self._pd, self._wanted, self._clock, self._refresh_s = pd, tuple(ranges), clock, refresh_s
        self._lock = threading.Lock()
        self._listeners: list[Listener] = []
        self._requested: dict[KeyRange, None] = {}
        self._refresh_at = float("-inf")
        self._failure: TiStreamError | None = None
        self._gaps: dict[KeyRange, tuple[float, bytes]] = {}  # range -> (since when, key of the gap)
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
        """The error that ended the reader: no further regions will be read."""
        return self._failure if self._reader.crashed else None

    def problems(self) -> list[Problem]:
        now = self._clock.monotonic()
        gaps = [
            Problem(
                source=self.name,
                code=StoreUnavailable.code,
                message="PD lists no region here, or none with a leader",
                facts={"key": key.hex(), "for_s": round(now - since)},
            )
            for since, key in list(self._gaps.values())
            if now - since >= _GAP_SHOWN_S
        ]
        return [*self._reader.problems(), *gaps]

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Call the listener with every list from now on; returns a function that ends that."""
        with self._lock:
            self._listeners.append(listener)

        def end() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return end

    def request(self, part: KeyRange) -> None:
        with self._lock:
            self._requested[part] = None
        self._reader.wake()

    def report_leader(self, region: Region) -> None:
        """A store reported the region's leader."""
        self._notify(None, [region])

    def _step(self) -> None:
        try:
            self.read()
        except TiStreamError as e:
            self._failure = e if e.kind is not ErrorKind.RETRY else None
            raise
        except Exception as e:  # a defect: the owner raises it
            self._failure = TiStreamError("the region cache failed", cause=repr(e))
            raise

    def read(self) -> None:
        """Read the requested ranges, and all if a refresh is due. Raises PD's error after notifying listeners."""
        now = self._clock.monotonic()
        with self._lock:
            requested, self._requested = list(self._requested), {}
        refresh = now >= self._refresh_at
        if refresh:
            requested = [*self._wanted, *(a for a in requested if a not in self._wanted)]
        failed: TiStreamError | None = None
        count, last = 0, None
        for part in requested:
            regions: list[Region] | None = None
            try:
                if failed is None:
                    regions = self._regions_of(part, last)
            except TiStreamError as e:
                failed = e
            if regions:
                count += len(regions) - (regions[0] is last)
                last = regions[-1]
            self._note_gap(part, regions)
            self._notify(part, regions)
        if refresh:
            self._refresh_at = now + max(self._refresh_s, count / REGIONS_A_SECOND)
        if failed is not None:
            raise failed

    def _regions_of(self, part: KeyRange, last: Region | None) -> list[Region]:
        """`last`: the last region of the previously read range."""
        region_range = plain_range(last) if last is not None else None
        if last is not None and region_range is not None and region_range.covers(part):
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
