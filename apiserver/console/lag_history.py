"""Recent lags of tenants, for percentiles and sparklines. In memory, of this process.

Samples are taken when the overview is rendered (an open tab: every two seconds), at most one per second; the newest
SAMPLES_MAX are kept.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tistream.ids import Tenant

SAMPLES_MAX = 450
LINE_S = 5.0  #: the promised lag
_EVERY_S = 1.0
_SPARK_SAMPLES = 60
_WIDTH, _HEIGHT = 120.0, 24.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Of all samples of some tenants, in seconds; None without samples."""

    p50_s: float | None
    p99_s: float | None
    seconds: int  #: from the first sample to the last


class LagHistory:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._times: list[float] = []
        self._lags: dict[Tenant, array[float]] = {}

    def note(self, now_s: float, lags: Mapping[Tenant, float]) -> None:
        """Add a sample of each tenant that has a lag."""
        with self._lock:
            if self._times and now_s - self._times[-1] < _EVERY_S:
                return
            self._times = [*self._times[1 - SAMPLES_MAX :], now_s]
            for tenant, lag_s in lags.items():
                kept = self._lags.setdefault(tenant, array("d"))
                kept.append(lag_s)
                del kept[:-SAMPLES_MAX]

    def percentiles(self, tenants: Iterable[Tenant]) -> Percentiles:
        """The percentiles over these tenants."""
        with self._lock:
            lags = sorted(lag for tenant in tenants for lag in self._lags.get(tenant, ()))
            seconds = round(self._times[-1] - self._times[0]) if self._times else 0
        if not lags:
            return Percentiles(p50_s=None, p99_s=None, seconds=seconds)
        return Percentiles(p50_s=_rank(lags, 0.5), p99_s=_rank(lags, 0.99), seconds=seconds)

    def line(self, tenant: Tenant) -> dict[str, object]:
        """The newest samples as points of an SVG line, and the height of LINE_S; no points before two samples."""
        with self._lock:
            lags = list(self._lags.get(tenant, ()))[-_SPARK_SAMPLES:]
        top = max([2 * LINE_S, *lags])
        step = _WIDTH / max(1, len(lags) - 1)
        points = [f"{n * step:.1f},{_y(lag, top):.1f}" for n, lag in enumerate(lags)]
        return {"points": " ".join(points) if len(points) > 1 else "", "limit_y": round(_y(LINE_S, top), 1)}


def _rank(ordered: Sequence[float], share: float) -> float:
    """The nearest-rank quantile."""
    return round(ordered[math.ceil(share * len(ordered)) - 1], 3)


def _y(lag_s: float, top: float) -> float:
    return _HEIGHT - 1.0 - (_HEIGHT - 2.0) * lag_s / top
