"""Where the lag of a tenant goes: the age of what is served, cut into the stages of the way. Pure.

    now ≥ durable ≥ fetched ≥ heard ≥ watermark ≥ durable watermark ≥ served

Each is a point in the upstream's time, the lowest of its kind in the tenant; the time between two of them is what the
stage between them holds back now. A point that is not known makes one stage of the two beside it: nothing is guessed.
Points are told by several processes at slightly different moments, so one may seem to have overtaken another; the later
ones of the way are then believed. All stages together are the whole lag.
"""

from __future__ import annotations

from dataclasses import dataclass

from tistream import ts
from tistream.runtime.metrics import STAGES

MEANS = {
    "upstream_flush": "not in the bucket yet: the upstream, the pusher's flush interval, the upload",
    "fetch": "in the bucket, not read by a dispatcher yet",
    "match": "read, not taken in by a sorter yet",
    "watermark_gap_wait": "taken in, held by a region that is silent or a transaction that is open",
    "flush": "complete, not in the committed log yet",
    "serve": "in the committed log, waiting for the schema history",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Timestamps (TSO), each the lowest of the tenant; None = not known."""

    durable: int | None  #: cut of the newest batch file in the bucket
    fetched: int | None  #: cut of the newest batch file that the dispatcher has read
    heard: int | None  #: cut of the newest batch file that the core of a task took
    watermark: int | None  #: of a task
    durable_ts: int  #: of a task, in the catalog
    served: int  #: what a pull reaches


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of the lag."""

    stages: tuple[str, ...]  #: of STAGES; several where what lies between them is not known
    ms: int

    @property
    def means(self) -> str:
        """In words."""
        return "; or ".join(MEANS[stage] for stage in self.stages)


def waterfall(points: Points, now_ms: int) -> list[Stage]:
    """The stages in the order of the way; their sum is the lag."""
    later, joined = ts.physical_ms(points.served), []
    known: list[tuple[tuple[str, ...], int]] = []
    ends = (points.durable, points.fetched, points.heard, points.watermark, points.durable_ts, points.served)
    at: list[tuple[str, int | None]] = [
        (stage, None if end is None else ts.physical_ms(end)) for stage, end in zip(STAGES, ends, strict=True)
    ]
    for stage, begin in reversed(list(zip(STAGES, [now_ms, *(end for _, end in at[:-1])], strict=True))):
        joined.append(stage)
        if begin is not None:
            begin = min(max(begin, later), max(now_ms, later))
            known.append((tuple(reversed(joined)), begin - later))
            later, joined = begin, []
    return [Stage(stages=stages, ms=ms) for stages, ms in reversed(known)]
