"""What was in force when: values with the timestamp from which each holds, looked up by bisection.

A value of None says that from there on there is nothing (dropped), which is not the same as never having been.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import numpy.typing as npt

from schemas.model import Table

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timeline(Generic[T]):
    """Immutable: `extended` gives a new one. `starts` rises strictly."""

    starts: tuple[int, ...] = ()
    values: tuple[T | None, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.starts)

    @property
    def last(self) -> T | None:
        """What is in force at the end."""
        return self.values[-1] if self.values else None

    def at(self, ts: int) -> T | None:
        """The newest value that starts at or before `ts`."""
        i = bisect_right(self.starts, ts) - 1
        return self.values[i] if i >= 0 else None

    def during(self, after_ts: int, upto_ts: int) -> Iterator[T]:
        """The values in force at some time in [after_ts, upto_ts]."""
        first = max(bisect_right(self.starts, after_ts) - 1, 0)
        last = bisect_right(self.starts, upto_ts)
        return (value for value in self.values[first:last] if value is not None)

    def extended(self, ts: int, value: T | None) -> Timeline[T]:
        """With `value` in force from `ts` on. `ts` must not lie before the last start; an equal one replaces it."""
        starts, values = self.starts, self.values
        if starts and starts[-1] == ts:
            starts, values = starts[:-1], values[:-1]
        return Timeline((*starts, ts), (*values, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionIntervals:
    """The versions of one physical id, for lookups of many rows at once."""

    starts: npt.NDArray[np.uint64]  #: (n,) finished timestamps, rising
    versions: tuple[Table | None, ...]  #: n of them; None = the id was retired at that timestamp

    def whole_after(self, ts: int) -> bool:
        """Whether every row committed at or after `ts` has a version."""
        return bool(len(self.starts)) and int(self.starts[0]) < ts and None not in self.versions

    def index(self, commit_ts: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
        """Per row the index of its version: the newest with start < commit_ts. -1 where there is none."""
        if not self.versions:
            return np.full(len(commit_ts), -1, dtype=np.int64)
        found = np.searchsorted(self.starts, commit_ts, side="left").astype(np.int64) - 1
        alive = np.array([version is not None for version in self.versions])
        return np.where((found >= 0) & alive[found], found, -1)
