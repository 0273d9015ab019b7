"""Splits the lag of a tenant into pipeline stages. Pure.

    now ≥ durable ≥ fetched ≥ taken in ≥ watermark ≥ durable watermark ≥ served

Each is a timestamp of the upstream, the lowest of its kind in the tenant; the time between two is what the stage
between them holds back. An unknown timestamp joins the two stages beside it. Timestamps come from several processes, so
one may seem to overtake another; then the later stages are trusted. The stages add up to the lag.
"""

from __future__ import annotations

from dataclasses import dataclass

from tistream import ts

STAGES = (
    "upstream_flush",
    "fetch",
    "match",
    "watermark_gap_wait",
    "flush",
    "serve",
)  #: from a commit to a reader
MEANS = {
    "upstream_flush": "not in the bucket yet: the upstream, the pusher's flush interval, the upload",
    "fetch": "in the bucket, not read by a dispatcher yet",
    "match": "read, not taken in by a sorter yet",
    "watermark_gap_wait": "taken in, held by an idle region or an open transaction",
    "flush": "below the watermark, not in the committed log yet",
    "serve": "in the committed log, waiting for the schema history",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Timestamps (TSO), each the lowest of the tenant; None = not known."""

    durable: int | None  #: cut of the newest batch file in the bucket
    fetched: int | None  #: cut of the newest batch file read by the dispatcher
    taken_in: int | None  #: cut of the newest batch file taken in by a task's core
    watermark: int | None  #: of a task
    durable_ts: int  #: of a task, in the catalog
    served: int  #: served watermark


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of the lag."""

    stages: tuple[str, ...]  #: of STAGES; several when the timestamps between them are unknown
    ms: int

    @property
    def means(self) -> str:
        """Description."""
        return "; or ".join(MEANS[stage] for stage in self.stages)


def waterfall(points: Points, now_ms: int) -> list[Stage]:
    """The stages in pipeline order; their sum is the lag."""
    later, joined = ts.physical_ms(points.served), []
    known: list[tuple[tuple[str, ...], int]] = []
    ends = (points.durable, points.fetched, points.taken_in, points.watermark, points.durable_ts, points.served)
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
